"""Experts that are modules of their own: which of them ran, and which no token reached.

The formulas know what all experts of a layer cost together. Which of them ran only a run can tell, so
these findings compare nothing: an expert that ran is ``dynamic-only``, one that did not ``not-executed``.
"""

from __future__ import annotations

from collections.abc import Iterator

from costproof.compare.findings import Finding, Status
from costproof.compare.patterns import patterns
from costproof.ledger.capture import Capture

Place = tuple[str, str]
"""(stage, invocation)"""


def expert_findings(capture: Capture) -> list[Finding]:
    """Calls of every expert, by stage: one finding per pattern of experts that ran equally often."""
    if capture.run is None or capture.callgraph is None:
        return []
    modules = capture.callgraph.module_types
    # A prompt of S tokens and steps after a context of P: the two ways in which a decoder runs.
    places = {"P" in i.symbols: (i.stage, i.id) for i in capture.invocations if {"S", "P"} & i.symbols.keys()}
    calls: dict[Place, dict[str, int]] = {}
    rows: dict[Place, dict[str, int]] = {}
    for run in capture.run.runs:
        place = places[run.context is not None]
        for container, received in run.expert_tokens.items():
            for number, count in enumerate(received):
                expert = f"{container}.{number}"
                if expert not in modules:  # a stack of matrices: experts without a module
                    break
                calls.setdefault(place, {}).setdefault(expert, 0)
                calls[place][expert] += int(count > 0)
                rows.setdefault(place, {}).setdefault(expert, 0)
                rows[place][expert] += count
    return [finding for place, counted in calls.items() for finding in _findings(place, counted, rows[place])]


def _findings(place: Place, calls: dict[str, int], rows: dict[str, int]) -> Iterator[Finding]:
    stage, invocation = place
    alike: dict[int, list[str]] = {}
    for expert, count in calls.items():
        alike.setdefault(count, []).append(expert)
    for count in sorted(alike):
        status: Status = "dynamic-only" if count else "not-executed"
        for pattern, inside in patterns(alike[count]):
            received = sum(rows[expert] for expert in inside)
            yield Finding(
                id=f"{stage}[{invocation}]/{pattern}#calls",
                level="module",
                stage=stage,
                invocation=invocation,
                module=pattern,
                kind="",
                metric="calls",
                status=status,
                values={"dynamic": count * len(inside)},
                delta=None,
                causes=(),
                residual=None,
                count=len(inside),
                evidence=(f"dynamic: {received} rows",) if received else ("dynamic: no token reached them",),
            )
