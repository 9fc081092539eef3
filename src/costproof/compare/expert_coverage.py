"""Report which experts of a mixture ran, and experts whose cost per token differs from the others'.

This concerns experts that are separate modules. The formulas give only the cost of all experts of a layer together;
which of them receive tokens is known only after a run. These findings therefore compare no sources: an expert that ran
is ``dynamic-only``, one that did not is ``not-executed``. Costs per token are compared among the experts of a layer,
which must be equal.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from costproof.compare.findings import Cause, Finding
from costproof.compare.patterns import patterns
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput
from costproof.ledger.run import TracedRun

Place = tuple[str, str]
"""(stage, invocation)"""


def expert_findings(capture: Capture) -> list[Finding]:
    """Return the calls of experts by stage: one finding per pattern of experts that ran equally often."""
    if capture.run is None or capture.callgraph is None:
        return []
    places = _places(capture)
    received: dict[tuple[Place, str], list[int]] = {}
    for run in capture.run.runs:
        for container, rows in run.expert_tokens.items():
            for number, count in enumerate(rows):
                # Experts without a module of their own are stacked matrices.
                if (expert := f"{container}.{number}") in capture.callgraph.module_types:
                    received.setdefault((_place(places, run), expert), []).append(count)
    alike: dict[Place, dict[int, dict[str, int]]] = {}
    for (place, expert), counts in received.items():
        alike.setdefault(place, {}).setdefault(sum(c > 0 for c in counts), {})[expert] = sum(counts)
    return [
        _finding(place, pattern, len(inside), calls, sum(rows[e] for e in inside))
        for place, groups in alike.items()
        for calls, rows in sorted(groups.items())
        for pattern, inside in patterns(rows)
    ]


def uneven_experts(capture: Capture) -> list[Finding]:
    """Return one finding for each expert whose cost per token differs from that of most experts of its layer."""
    found, places = [], _places(capture)
    for run in capture.run.runs if capture.run is not None else ():
        for container, flops in run.expert_flops.items():
            rows = run.expert_tokens.get(container, ())
            if len(rows) != len(flops):
                raise _damaged(run, f"rows and FLOPs of the same experts of {container}", f"{len(rows)}, {len(flops)}")
            each = {i: Fraction(f, r) for i, (f, r) in enumerate(zip(flops, rows, strict=True)) if r}
            usual = Counter(each.values()).most_common(1)[0][0] if each else Fraction(0)
            place = _place(places, run)
            found += [
                _uneven(place, f"{container}.{i}", run.id, flops[i], usual * rows[i])
                for i, one in each.items()
                if one != usual
            ]
    return list({f.id: f for f in reversed(found)}.values())


def _places(capture: Capture) -> dict[bool, Place]:
    """Return the calls of a prompt of S tokens and of steps after a context of P, the two modes of a decoder."""
    return {"P" in i.symbols: (i.stage, i.id) for i in capture.invocations if {"S", "P"} & i.symbols.keys()}


def _place(places: dict[bool, Place], run: TracedRun) -> Place:
    step = run.context is not None
    if step not in places:
        raise _damaged(run, f"a call with {'P' if step else 'S'} among its sizes", "no such call")
    return places[step]


def _damaged(run: TracedRun, expected: str, got: str) -> BadInput:
    where = f"$.run.runs in the capture, {run.id}"
    return BadInput("the rows of experts contradict the rest of the file", where=where, expected=expected, got=got)


def _uneven(place: Place, expert: str, run: str, flops: int, usual: Fraction) -> Finding:
    stage, invocation = place
    delta = flops - int(usual)
    why = f"run {run}: {flops:,} FLOPs, where its rows would cost {int(usual):,} in most experts beside it"
    return Finding(
        id=f"judge/{stage}[{invocation}]/{expert}#flops",
        level="judge",
        stage=stage,
        invocation=invocation,
        module=expert,
        kind="",
        metric="flops",
        status="unexplained",
        values={"dispatcher": flops},
        delta=delta,
        causes=(Cause("judge_difference", delta, (), accepted=False, note=why),),
        residual=delta,
        reference="the other experts",
        evidence=(why,),
    )


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
