"""One wrong claim explained: sets of causes first, then another length, and what neither explains."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import islice, product
from typing import Final

from costproof.claims.effects import Effect
from costproof.claims.formulas import ELSEWHERE, Comparison, comparison
from costproof.claims.lengths import best, chance_text, hold
from costproof.claims.relations import RARE, SELDOM, Relation, expected, numbers, ratio
from costproof.claims.search import Found, Reachable, reach, search, walk
from costproof.claims.truth import Case
from costproof.claims.types import Amount, Explanation, Formula, Judgement, Lengths, Step

CHANCE: Final = Fraction(1, 10)
"""With more fits than this expected by chance, a fit explains nothing."""
_SHOWN: Final = 5
_EVIDENCE: Final = 4
_NAMES_TRIED: Final = 64


def explained(blank: Judgement, case: Case, amount: Amount) -> Judgement:
    """The judgement on a claim that is not the truth, or that states conventions."""
    beside = comparison(case)
    among = case.once("sets", lambda: Reachable(case.items, case.effects, case.stated))
    found = search(among, amount.low, amount.high, most=1)
    others: list[Relation] = []
    if not found.sets:
        if beside is None and not isinstance(case.claim.value, Formula):
            others = numbers(case, amount)
            if (related := _related(blank, case, amount, others)) is not None:
                return related
        found = search(among, amount.low, amount.high)
    sets = found.sets if beside is None else _everywhere(beside, found)
    judged = replace(
        blank,
        tried=found.tried,
        coincidences=chance_text(found.coincidences),
        explanations=tuple(_explanation(case, s) for s in sets[:_SHOWN]),
        note=f"{len(sets)} sets of causes fit; {_SHOWN} are shown" if len(sets) > _SHOWN else "",
    )
    if not sets:
        left = _open(judged, case, amount, beside, fitted=bool(found.sets))
        exact = amount.low == amount.high and left.status in ("refuted", "unexplained")
        return _not_evidence(left, case, amount, others) if others and exact else left
    if found.coincidences <= CHANCE:
        return replace(judged, status="explained" if judged.explanations[0].steps else "right")
    few = "the printed digits are too few: other sets of causes would fit by chance"
    return _by_length(replace(judged, status="undetermined", residual=judged.delta, note=few), case, amount)


def _related(blank: Judgement, case: Case, amount: Amount, others: list[Relation]) -> Judgement | None:
    """A simple relation to the truth, where chance would not give it."""
    exact, chance = ratio(case, amount)
    if exact is not None and chance <= SELDOM:
        same = tuple(r.cause for r in others)
        ways: tuple[Explanation, ...] = (_by_relation(case, amount, exact, same),)
    else:
        chance = expected(case, amount)
        ways = tuple(_by_relation(case, amount, r) for r in others if r.chance <= RARE)
    if not ways:
        return None
    return replace(blank, status="explained", coincidences=chance_text(chance), explanations=ways[:_SHOWN])


def _not_evidence(judged: Judgement, case: Case, amount: Amount, others: list[Relation]) -> Judgement:
    ways = tuple(_by_relation(case, amount, r) for r in others[:_SHOWN])
    note = "fits, not evidence: with a number of the configuration free, chance alone would give such a number"
    return replace(judged, status="undetermined", explanations=ways, residual=judged.delta, note=note)


def _by_relation(case: Case, amount: Amount, found: Relation, same: tuple[str, ...] = ()) -> Explanation:
    before = _explanation(case, ())
    step = Step(found.cause, found.what, amount.low - before.reaches, (), or_else=same)
    return Explanation((*before.steps, step), amount.low)


def _open(judged: Judgement, case: Case, amount: Amount, beside: Comparison | None, *, fitted: bool) -> Judgement:
    """No set of causes leads to the claim."""
    rest = judged.delta
    if case.stated:
        ends = _explanation(case, ())
        rest = distance(amount, ends.reaches)
        judged = replace(judged, explanations=(ends,))
    judged = replace(judged, status="unexplained", residual=rest)
    if isinstance(case.claim.value, Formula):
        note = "causes that fit at this workload do not fit elsewhere" if fitted else ""
        if beside is None or case.stated:
            return replace(judged, note=note)
        example = beside.counterexample() if judged.delta == 0 else None
        return replace(judged, residual_expression=beside.expression(), counterexample=example, note=note)
    return _by_length(judged, case, amount)


def same_everywhere(judged: Judgement, case: Case) -> Judgement:
    """A formula that gives the right number here must be the same formula, not only agree at this workload."""
    beside = comparison(case)
    if beside is None:
        return replace(judged, status="undetermined", note="right at this workload; the truth has no formula elsewhere")
    if beside.same():
        return judged
    return replace(
        judged,
        status="unexplained",
        residual_expression=beside.expression(),
        counterexample=beside.counterexample(),
        note="right at this workload, but not the same formula",
    )


def _everywhere(beside: Comparison, found: Found) -> tuple[tuple[Effect, ...], ...]:
    """The sets that lead to a formula at three other workloads too, with the names that do so; none if unchecked."""
    places = list(beside.elsewhere())
    if len(places) < ELSEWHERE:
        return ()

    def leads(causes: tuple[tuple[str, str], ...]) -> bool:
        return all(
            claimed is not None and reach(there.items, there.chosen(causes)) == claimed for there, claimed in places
        )

    kept = []
    for chosen in found.sets:
        whole = (*beside.case.stated, *chosen)
        # Causes that do the same here may differ elsewhere.
        ways = islice(product(*([(n, e.needs) for n in (e.cause, *e.or_else)] for e in whole)), _NAMES_TRIED)
        right = [w for w in ways if leads(w)]
        if right:
            ours = zip(chosen, *(w[len(whole) - len(chosen) :] for w in right), strict=True)
            kept.append(tuple(
                replace(e, cause=ways[0][0], or_else=tuple(dict.fromkeys(n for n, _ in ways if n != ways[0][0])))
                for e, *ways in ours
            ))  # fmt: skip
    return tuple(kept)


def _by_length(judged: Judgement, case: Case, amount: Amount) -> Judgement:
    """A number without explanation at every length: another length explains it, or none can, or chance may."""
    held = hold(case, amount)
    if held is None:
        return judged
    judged = replace(judged, lengths=(held.lengths,))
    found = best(held.lengths)
    if not found:
        return replace(judged, status="refuted", explanations=judged.explanations if case.stated else (), note="")
    chance = held.chance(len(found[0][0].causes))
    if judged.status == "unexplained" and chance <= CHANCE:
        return replace(judged, status="explained", explanations=at_lengths(judged, case, held.lengths), residual=0)
    few = f"fits, not evidence: with {held.lengths.symbol} free, chance alone would give such a number"
    shown = judged.explanations or at_lengths(judged, case, held.lengths)
    return replace(judged, status="undetermined", explanations=shown, residual=judged.delta, note=judged.note or few)


def at_lengths(judged: Judgement, case: Case, lengths: Lengths) -> tuple[Explanation, ...]:
    """The lengths that fit, as explanations."""
    found = []
    for reading, length in best(lengths):
        there = case.at_length(lengths.symbol, length)
        assert there is not None
        chosen = there.chosen((c, "") for c in (*lengths.model, *reading.causes))
        rest = _explanation(there, chosen)
        moved = rest.reaches - sum(s.amount for s in rest.steps) - judged.truth
        what = {"S": "prompt", "P": "context"}[lengths.symbol]
        step = Step(f"another {what}", f"{lengths.symbol} = {length:,}, which the claim does not state", moved, ())
        found.append(Explanation((step, *rest.steps), rest.reaches))
    return tuple(found)


def _explanation(case: Case, chosen: tuple[Effect, ...]) -> Explanation:
    # Units last: their size is then half of all that is counted, which is how a reader thinks of it.
    known = case.stated
    late = sorted((*known, *chosen), key=lambda e: (e.family == "unit", e.family == "training", bool(e.needs), e.cause))
    amounts, reached = walk(case.items, late)
    steps = []
    for effect, amount in zip(late, amounts, strict=True):
        touched = sorted(effect.switches | effect.factors.keys())
        evidence = tuple(dict.fromkeys(x for i in touched for x in case.items[i].evidence))[:_EVIDENCE]
        steps.append(Step(effect.cause, effect.what, amount, evidence, effect in known, effect.or_else))
    return Explanation(tuple(steps), reached)


def distance(amount: Amount, truth: int) -> int:
    """The nearest number that a claim may stand for, minus the truth."""
    return min(max(truth, amount.low), amount.high) - truth
