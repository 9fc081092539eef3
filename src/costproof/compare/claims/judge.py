"""Verdicts: each claim against the truth, taken apart into named causes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Final

from costproof.compare.claims.catalogue import effects, stated
from costproof.compare.claims.effects import Effect
from costproof.compare.claims.formulas import expression_of_rest, formula_value
from costproof.compare.claims.items import Item, items_of, nodes_of
from costproof.compare.claims.search import Found, search, walk
from costproof.compare.claims.types import (
    TOTAL,
    Amount,
    Claim,
    ClaimsFile,
    ClaimsReport,
    Explanation,
    Formula,
    Judgement,
    Step,
)
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import METRICS
from costproof.ledger.node import Ledger

CHANCE: Final = Fraction(1, 10)
"""With more fits than this expected by chance, a fit explains nothing."""
_SHOWN: Final = 5
_EVIDENCE: Final = 4


def judge(claims: ClaimsFile, capture: Capture, *, truth: str) -> ClaimsReport:
    """Hold every claim against the analytic ledger of a capture.

    Args:
        truth: how well that ledger is founded, in a few words, for the report.

    Raises:
        BadInput: a claim is about something that the target does not have, or its formula cannot be evaluated.
    """
    ledger = capture.ledger("analytic")
    if ledger is None:
        raise BadInput(
            "the capture has no formulas to hold claims against", where="$.ledgers", expected="a ledger 'analytic'"
        )
    judged = [judge_claim(c, capture, ledger) for c in claims.claims]
    judged = [_as_sum(j, judged) for j in judged]
    found = {j.status for j in judged}
    return ClaimsReport(
        target=capture.target,
        workload=capture.workload,
        environment=capture.environment,
        title=claims.title,
        source=claims.source,
        truth=truth,
        verdict="right" if found <= {"right"} else "explained" if found <= {"right", "explained"} else "unexplained",
        judgements=tuple(judged),
    )


def judge_claim(claim: Claim, capture: Capture, ledger: Ledger) -> Judgement:
    """The verdict on one claim."""
    _check(claim, capture, ledger)
    nodes = nodes_of(ledger, claim, claim.metric)
    truth = sum(n.costs[claim.metric] or 0 for n in nodes)
    if isinstance(claim.value, Formula):
        value = formula_value(claim, claim.value, capture)
        amount = Amount(claim.value.text, value, value)
    else:
        amount = claim.value
    blank = Judgement(
        id=claim.id,
        stage=claim.stage,
        metric=claim.metric,
        claimed=amount.text,
        invocation=claim.invocation,
        module=claim.module,
        status="right",
        low=amount.low,
        high=amount.high,
        truth=truth,
        delta=_distance(amount, truth),
        explanations=(),
        residual=0,
    )
    if amount.low <= truth <= amount.high and not claim.conventions:
        if isinstance(claim.value, Formula):
            return _same_everywhere(blank, claim, capture, ledger)
        return blank
    items = items_of(capture, ledger, claim)
    known = stated(items, claim.metric, claim.conventions)
    found = search(items, effects(items, claim.metric), amount.low, amount.high, known)
    return _concluded(blank, claim, capture, ledger, items, known, found)


def _concluded(
    blank: Judgement,
    claim: Claim,
    capture: Capture,
    ledger: Ledger,
    items: tuple[Item, ...],
    known: tuple[Effect, ...],
    found: Found,
) -> Judgement:
    explanations = tuple(_explanation(items, known, s) for s in found.sets[:_SHOWN])
    judged = replace(blank, tried=found.tried, coincidences=_chance(found.coincidences), explanations=explanations)
    if len(found.sets) > _SHOWN:
        judged = replace(judged, note=f"{len(found.sets)} sets of causes fit; {_SHOWN} are shown")
    if not found.sets:
        rest = judged.delta
        if known:
            ends = _explanation(items, known, ())
            rest = _distance(Amount("", judged.low, judged.high), ends.reaches)
            judged = replace(judged, explanations=(ends,))
        expression = expression_of_rest(claim, capture, ledger) if not known else None
        return replace(judged, status="unexplained", residual=rest, residual_expression=expression)
    if found.sets == ((),) and not known:
        return judged
    if found.coincidences > CHANCE:
        return replace(
            judged,
            status="undetermined",
            residual=judged.delta,
            note="the printed digits are too few: other sets of causes would fit by chance",
        )
    return replace(judged, status="explained" if explanations[0].steps else "right")


def _same_everywhere(judged: Judgement, claim: Claim, capture: Capture, ledger: Ledger) -> Judgement:
    """A formula that gives the right number here must be the same formula, not only agree at this workload."""
    rest = expression_of_rest(claim, capture, ledger)
    if rest in (None, "0"):
        return judged
    return replace(
        judged,
        status="unexplained",
        residual_expression=rest,
        note="right at this workload, but not the same formula: it differs elsewhere by the rest that is shown",
    )


def _explanation(items: tuple[Item, ...], known: tuple[Effect, ...], chosen: tuple[Effect, ...]) -> Explanation:
    # Units last: their size is then half of all that is counted, which is how a reader thinks of it.
    late = sorted((*known, *chosen), key=lambda e: (e.family == "unit", e.family == "training", bool(e.needs), e.cause))
    amounts, reached = walk(items, late)
    steps = tuple(
        Step(
            cause=e.cause,
            what=e.what,
            amount=amount,
            evidence=tuple(dict.fromkeys(x for i in sorted(e.touched) for x in items[i].evidence))[:_EVIDENCE],
            stated=e in known,
            or_else=e.or_else,
        )
        for e, amount in zip(late, amounts, strict=True)
    )
    return Explanation(steps, reached)


def _as_sum(judged: Judgement, others: list[Judgement]) -> Judgement:
    """A claimed total that is the sum of the claimed stages is as good as these are."""
    if judged.stage != TOTAL or judged.status in ("right", "explained") or judged.module:
        return judged
    rows = [o for o in others if o.stage != TOTAL and o.metric == judged.metric and not o.module]
    if len(rows) < 2 or len({r.stage for r in rows}) < len(rows):
        return judged
    if sum(r.low for r in rows) > judged.high or sum(r.high for r in rows) < judged.low:
        return replace(judged, note="it is not the sum of the claimed stages either")
    bad = [r.id for r in rows if r.status not in ("right", "explained")]
    said = "it is the sum of the claimed stages, each of which has its own causes"
    if bad:
        return replace(judged, note=f"{said}; not explained are {', '.join(bad)}")
    return replace(judged, status="explained", residual=0, note=said)


def _check(claim: Claim, capture: Capture, ledger: Ledger) -> None:
    stages = (*capture.target.stages, TOTAL)
    if claim.stage not in stages:
        raise BadInput("no such stage", where=f"{claim.where}.stage", expected="one of " + ", ".join(stages),
                       got=claim.stage)  # fmt: skip
    calls = sorted({i.id for i in capture.invocations if claim.stage in (TOTAL, i.stage)})
    if claim.invocation and claim.invocation not in calls:
        raise BadInput(
            "the workload has no such invocation", where=f"{claim.where}.invocation",
            expected="one of " + ", ".join(calls) if calls else "none: the stage does not run", got=claim.invocation,
        )  # fmt: skip
    if claim.metric not in METRICS or claim.metric not in ledger.metrics:
        raise BadInput("no such metric", where=claim.where, expected="one of " + ", ".join(METRICS), got=claim.metric)
    if claim.module and not any(_named(n.module, claim.module) for n in ledger.nodes):
        raise BadInput("no module has such a path", where=f"{claim.where}.module", got=claim.module)


def _named(module: str, pattern: str) -> bool:
    from fnmatch import fnmatchcase

    return fnmatchcase(module, pattern)


def _distance(amount: Amount, truth: int) -> int:
    """The nearest number that the claim may stand for, minus the truth."""
    return min(max(truth, amount.low), amount.high) - truth


def _chance(expected: Fraction) -> str:
    """An upper bound on the number of chance fits, as ``1/n``."""
    if expected == 0:
        return "0"
    return f"1/{int(1 / expected)}" if expected <= Fraction(1, 2) else str(ceil(expected))
