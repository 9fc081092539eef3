"""Claims on a peak of live activations: what is alive at it, and what people read as such a peak.

A peak is not a sum over nodes, and has no formula: its terms are the tensors that are alive at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Final

from costproof.claims.bytes_mistakes import TYPES, prefixes
from costproof.claims.effects import ClaimTerms, Effect, scaled, switched, times, without
from costproof.claims.terms import ClaimTerm, nodes_of
from costproof.claims.types import TOTAL, Claim
from costproof.ledger.capture import Capture
from costproof.ledger.errors import Incomplete
from costproof.ledger.metrics import PEAK_METRICS, Metric
from costproof.ledger.node import Ledger, total
from costproof.ledger.peaks import CallPeaks, Peak
from costproof.ledger.workload import FLOAT_BYTES, ITEM_BYTES

_GRAPH, _EAGER = PEAK_METRICS
_RUN: Final = "the run's type"
"""Kind of the terms that are in the type of the run, whose size is the symbol ``b``."""
_WEIGHTS: Final = {
    "weights alone": "weights are counted in place of activations",
    "weights included": "the stage's weights are counted too",
    "weights of all stages included": "the weights of the whole model are counted too",
}
_PEAK: Final = "what"
"""The family of what is read as the peak."""


def peak_of(capture: Capture, claim: Claim) -> Peak:
    """The peak that a claim is about: the largest of its calls.

    Raises:
        Incomplete: the capture has no peaks, or not all of these calls'.
    """
    calls = [c for c in capture.peaks if c.stage == claim.stage and claim.invocation in ("", c.invocation)]
    found = _largest(calls, claim.metric)
    if found is None:
        raise Incomplete(
            "the peak is unknown here, so no claim can be checked against it",
            where=f"{claim.where}: {claim.stage}, {claim.metric}",
            expected="a capture with the peaks of all calls of the stage",
            got="; ".join(n for c in calls for n in c.notes) or "no peak",
            fix=f"costproof capture {capture.target.name} --peaks, or costproof peaks {capture.target.name}",
        )
    return found


def peak_terms(capture: Capture, ledger: Ledger, claim: Claim) -> tuple[ClaimTerm, ...]:
    """Tensors that are alive at the peak; and those of other peaks, sums and weights, which are off."""
    known = next((capture.values(i) for i in capture.invocations if i.stage == claim.stage), {})
    blank = ClaimTerm(claim.stage, claim.invocation, "", "peak", "", Fraction(0), "", known, 1, ())
    own = _tensors(blank, peak_of(capture, claim))
    kind = next(m for m in PEAK_METRICS if m != claim.metric)
    others: dict[str, list[CallPeaks]] = {}
    for call in capture.peaks:
        if call.stage != claim.stage:
            others.setdefault(f"another stage: {call.stage}", []).append(call)
        elif claim.invocation and call.invocation != claim.invocation:
            others.setdefault(f"another call: {call.invocation}", []).append(call)
    mine = [c for c in capture.peaks if c.stage == claim.stage and claim.invocation in ("", c.invocation)]
    found = {name: _largest(calls, claim.metric) for name, calls in others.items()}
    found[_other(claim.metric)] = _largest(mine, kind)
    off = [i for name, peak in found.items() if peak is not None for i in _tensors(blank, peak, name)]
    every = [_peak(c, claim.metric) for c in mine]
    if len(every) > 1:
        off += [i for p in every if p is not None for i in _tensors(blank, p, "calls added up")]
    sums = {
        "sum for peak": total(nodes_of(ledger, claim, "output_bytes"), "output_bytes"),
        "weights": total(nodes_of(ledger, claim, "weight_bytes"), "weight_bytes"),
        "all weights": total(nodes_of(ledger, replace(claim, stage=TOTAL), "weight_bytes"), "weight_bytes"),
    }
    return (*own, *off, *(
        replace(blank, kind=_RUN, value=Fraction(v), evidence=(name,), counted=False, stands_for=name)
        for name, v in sums.items() if v
    ))  # fmt: skip


def effects(terms: ClaimTerms, metric: Metric) -> Iterator[Effect]:
    """All causes, whether they change this claim or not."""
    instead = times(terms, lambda i: i.counted, 0)

    def read(cause: str, what: str, *extras: str) -> Effect:
        return Effect(cause, _PEAK, what, instead if switched(terms, *extras) else {}, switched(terms, *extras))

    yield read("sum for peak", "all activations that are written are added up, as if none were given back",
               "sum for peak")  # fmt: skip
    yield read("calls added up", "the peaks of all calls are added up, as if they were there at once", "calls added up")
    yield read(_other(metric), "the other peak: a graph frees a tensor after its last reader, variables of the module "
               "hold some for longer", _other(metric))  # fmt: skip
    for name in sorted({i.stands_for for i in terms if i.stands_for.startswith("another ")}):
        yield read(name, f"the peak of {name}", name)
    alone, included, whole = _WEIGHTS.items()
    yield read(*alone, "weights")
    yield Effect(*included[:1], "weights", included[1], {}, switched(terms, "weights"), excludes=alone[:1])
    yield Effect(*whole[:1], "weights", whole[1], {}, switched(terms, "all weights"), excludes=alone[:1])
    what = "what the stage is given is left out"
    yield without(terms, "inputs left out", "inputs", what, lambda i: i.counted and i.part == "input")
    for size, (cause, said) in TYPES.items():
        # One byte for each element is to forget the size, of whole numbers too.
        yield Effect(cause, "type", said, scaled(terms, lambda i: True, _sized(size)))
    yield from prefixes(terms)


def _other(metric: Metric) -> str:
    return "graph peak for eager peak" if metric == _EAGER else "eager peak for graph peak"


def _sized(size: int) -> Callable[[ClaimTerm], Fraction | None]:
    def factor(term: ClaimTerm) -> Fraction | None:
        usual = term.values.get("b") if term.kind == _RUN else ITEM_BYTES.get(term.kind)
        return Fraction(size, usual) if usual and (size == 1 or term.kind in (_RUN, *FLOAT_BYTES)) else None

    return factor


def _peak(call: CallPeaks, metric: Metric) -> Peak | None:
    return call.eager if metric == _EAGER else call.graph


def _largest(calls: Iterable[CallPeaks], metric: Metric) -> Peak | None:
    """The largest peak of calls; ``None`` if there is none, or one is unknown."""
    found = [_peak(c, metric) for c in calls]
    known = [p for p in found if p is not None]
    return max(known, key=lambda p: p.bytes) if known and len(known) == len(found) else None


def _tensors(blank: ClaimTerm, peak: Peak, extra: str = "") -> list[ClaimTerm]:
    return [
        replace(
            blank, role="result" if t.operator else "input", kind=t.dtype, value=Fraction(t.bytes), counted=not extra,
            stands_for=extra, evidence=(f"{t.module or '(root)'}: {t.name} {list(t.shape)} {t.dtype}",),
        )
        for t in peak.alive
    ]  # fmt: skip
