"""Experts that are modules of their own: which of them ran, and which no token reached.

The formulas know what all experts of a layer cost together. Which of them ran only a run can tell, so
these findings compare nothing: an expert that ran is ``dynamic-only``, one that did not ``not-executed``.
"""

from __future__ import annotations

from costproof.compare.findings import Finding
from costproof.compare.patterns import patterns
from costproof.ledger.capture import Capture

Place = tuple[str, str]
"""(stage, invocation)"""


def expert_findings(capture: Capture) -> list[Finding]:
    """Calls of every expert, by stage: one finding per pattern of experts that ran equally often."""
    if capture.run is None or capture.callgraph is None:
        return []
    # A prompt of S tokens and steps after a context of P: the two ways in which a decoder runs.
    places = {"P" in i.symbols: (i.stage, i.id) for i in capture.invocations if {"S", "P"} & i.symbols.keys()}
    received: dict[tuple[Place, str], list[int]] = {}
    for run in capture.run.runs:
        for container, rows in run.expert_tokens.items():
            for number, count in enumerate(rows):
                # Experts without a module are a stack of matrices.
                if (expert := f"{container}.{number}") in capture.callgraph.module_types:
                    received.setdefault((places[run.context is not None], expert), []).append(count)
    alike: dict[Place, dict[int, dict[str, int]]] = {}
    for (place, expert), counts in received.items():
        alike.setdefault(place, {}).setdefault(sum(c > 0 for c in counts), {})[expert] = sum(counts)
    return [
        _finding(place, pattern, len(inside), calls, sum(rows[e] for e in inside))
        for place, groups in alike.items()
        for calls, rows in sorted(groups.items())
        for pattern, inside in patterns(rows)
    ]


def _finding(place: Place, pattern: str, count: int, calls: int, rows: int) -> Finding:
    stage, invocation = place
    return Finding(
        id=f"{stage}[{invocation}]/{pattern}#calls",
        level="module",
        stage=stage,
        invocation=invocation,
        module=pattern,
        kind="",
        metric="calls",
        status="dynamic-only" if calls else "not-executed",
        values={"dynamic": calls * count},
        delta=None,
        causes=(),
        residual=None,
        count=count,
        evidence=(f"dynamic: {rows} rows" if rows else "dynamic: no token reached them",),
    )
