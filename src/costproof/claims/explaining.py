"""Explain a claim that differs from the true number: by sets of mistakes, simple ratios, or another text length."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import islice, product
from typing import Final, NamedTuple

from costproof.claims.catalogue import CONVENTION_CAUSES, CONVENTIONS, OF_RANKS, PART_OF_CALLS, WIDTHS
from costproof.claims.effects import Effect
from costproof.claims.formulas import ELSEWHERE, Comparison, EquivalenceCheck, comparison
from costproof.claims.lengths import ONE_NUMBER, RARE, Relation, best, chance_text, expected, hold, numbers, ratio
from costproof.claims.mistakes import RECOMPUTE, RECOMPUTED
from costproof.claims.search import Chance, Found, Reachable, fine, reach, search, walk
from costproof.claims.truth import ClaimCase
from costproof.claims.types import Amount, ClaimExplanation, Formula, Judgement, Lengths, Step

CHANCE: Final = Fraction(1, 10)
"""Maximum expected number of coincidental fits at which a set of causes still counts as evidence."""
SELDOM: Final = Fraction(1, 100)
"""Stricter maximum for an exact ratio, and for a single cause if the claim could be a coincidence of sizes.

It could be if the claim is a product of sizes or a multiple of the common divisor of all terms.
"""
UNCOMMON: Final = Fraction(1, 500)
"""Stricter maximum for several causes that are not all conventions, if the claim is a multiple of the divisor.

The divisor is the greatest common divisor of all terms.
"""
_SHOWN: Final = 5
_OF_RANKS_AT_ONCE: Final = 2
"""Most known mistakes in a rank's share that a claim may have at once without further evidence."""
_EVIDENCE: Final = 4
_NAMES_TRIED: Final = 64
_RUNS: Final = 24
"""Number of further runs of the target at which causes must reproduce a claimed formula with branches."""


def explained(blank: Judgement, case: ClaimCase, amount: Amount) -> Judgement:
    """Return the judgement of a claim that differs from the true number or states conventions of its own."""
    beside = comparison(case)
    among = case.once("sets", lambda: Reachable(case.terms, case.effects, case.stated))
    found = search(among, amount, most=1)
    if not found.sets and beside is None and not case.stated and case.capture.parallel is not None:
        # Two known mistakes in a rank's share come before any size that a claim does not name.
        pairs = search(among, amount, most=2)
        if of_ranks := tuple(s for s in pairs.sets if _known_of_ranks(s)):
            found = replace(pairs, sets=of_ranks)
    related = _Related([], [], (), Fraction(0))
    if not found.sets:
        if beside is None and not isinstance(case.claim.value, Formula):
            related = _related(case, amount, among)
            if related.evidence:
                said = chance_text(found.chance.both + related.chance)
                return replace(blank, status="explained", coincidences=said, explanations=related.evidence)
        found = search(among, amount)
    sets = found.sets if beside is None else _everywhere(beside, found)
    judged = replace(
        blank,
        tried=found.tried,
        coincidences=chance_text(found.chance.both + related.chance),
        explanations=tuple(_explanation(case, s) for s in sets[:_SHOWN]),
        note=f"{len(sets)} sets of causes fit; {_SHOWN} are shown" if len(sets) > _SHOWN else "",
    )
    if not sets:
        left = _open(judged, case, amount, beside, fitted=bool(found.sets))
        # Order of weak explanations: a ratio, then a length that may fit by chance, then other free numbers.
        weak = left.status in ("refuted", "unexplained") or (related.ratio and left.status == "undetermined")
        ways = [*related.ratio, *related.numbers] if fine(amount) and weak else []
        return _not_evidence(left, case, amount, ways) if ways else left
    if beside is not None or _is_evidence(sets, found.chance, amount):
        return replace(judged, status="explained" if judged.explanations[0].steps else "right")
    if fine(amount):
        few = "fits, not evidence: sets of so many causes lead to too many of the numbers that are made of these sizes"
    else:
        few = "the printed digits are too few: other sets of causes would fit by chance"
    return _by_length(replace(judged, status="undetermined", residual=judged.delta, note=few), case, amount)


def _known_of_ranks(causes: tuple[Effect, ...]) -> bool:
    return len(causes) <= _OF_RANKS_AT_ONCE and all(OF_RANKS & {e.cause, *e.aliases} for e in causes)


def _is_evidence(sets: tuple[tuple[Effect, ...], ...], chance: Chance, amount: Amount) -> bool:
    """Return whether fitting sets of causes are unlikely to be coincidence; limits are stricter for precise numbers."""
    if not fine(amount):
        return chance.numbers <= CHANCE
    most = SELDOM if len(sets[0]) <= 1 else RARE
    # Counting the same work by one other convention is as plausible as the truth itself.
    reading = any(all(CONVENTIONS & {e.cause, *e.aliases} for e in s) and len(s) <= 1 for s in sets)
    # A cache in another dtype is one too. Its factors (2, 1/2, 1/4) are multiples of any grain, so the chance says
    # nothing: it is evidence unless another single cause, such as windows without a cache, gives the same number.
    if all(len(s) == 1 and WIDTHS & {s[0].cause, *s[0].aliases} for s in sets):
        return True
    if all(map(_known_of_ranks, sets)):
        return True
    # Nor does a number of one of several calls, such as a view, count other work.
    part = reading or all(len(s) == 1 and s[0].cause.startswith(PART_OF_CALLS) for s in sets)
    stated = all({e.cause, *e.aliases} & CONVENTION_CAUSES for s in sets for e in s)
    lattice = chance.multiples <= (SELDOM if stated or len(sets[0]) <= 1 else UNCOMMON)
    return chance.numbers <= CHANCE and (part or lattice) and (reading or chance.products <= most)


class _Related(NamedTuple):
    """Simple relations of a claim to the true number: an exact ratio, or one size changed."""

    ratio: list[Relation]
    numbers: list[Relation]
    evidence: tuple[ClaimExplanation, ...]
    """Relations that are unlikely to be coincidence, as explanations."""
    chance: Fraction
    """Expected number of relations that would pass as evidence by coincidence."""


def _related(case: ClaimCase, amount: Amount, among: Reachable) -> _Related:
    others = numbers(case, amount)
    exact, chance = ratio(case, amount, among.reference)
    if exact is not None and chance.numbers <= SELDOM and chance.products <= RARE:
        # Other values with the same ratio are alternatives: the claim is proportional to those numbers.
        same = tuple(r.cause for r in others if r.times == exact.times)
        same = (RECOMPUTE, *same) if case.claim.metric == "flops" and exact.times == RECOMPUTED else same
        return _Related([exact], others, (_by_relation(case, amount, exact, same),), chance.both)
    ways = tuple(_by_relation(case, amount, r) for r in others if r.chance.numbers <= ONE_NUMBER)
    expectation = min(chance.both, SELDOM) + expected(case, amount)
    weak = [exact] if exact is not None and chance.both < 1 else []  # a relation that any number fits is meaningless
    return _Related(weak, others, ways[:_SHOWN], expectation)


def _not_evidence(judged: Judgement, case: ClaimCase, amount: Amount, others: list[Relation]) -> Judgement:
    ways = tuple(_by_relation(case, amount, r) for r in others[:_SHOWN])
    note = "fits, not evidence: with a number free, chance alone would give such a number"
    return replace(judged, status="undetermined", explanations=ways, residual=judged.delta, note=note)


def _by_relation(case: ClaimCase, amount: Amount, found: Relation, same: tuple[str, ...] = ()) -> ClaimExplanation:
    before = _explanation(case, ())
    step = Step(found.cause, found.what, amount.low - before.reaches, (), or_else=same)
    return ClaimExplanation((*before.steps, step), amount.low)


def _open(judged: Judgement, case: ClaimCase, amount: Amount, beside: Comparison | None, *, fitted: bool) -> Judgement:
    """Return the judgement of a claim that no set of mistakes explains.

    Args:
        judged: the judgement thus far.
        case: the claim and the truth.
        amount: the claimed number.
        beside: for a formula, the comparison with the true formulas.
        fitted: whether some set fits at the claim's workload, but not at others.
    """
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


def same_everywhere(judged: Judgement, case: ClaimCase) -> Judgement:
    """Judge a formula that is right at the claim's workload by its values at other workloads."""
    beside = comparison(case)
    if beside is None:
        return replace(judged, status="undetermined", note="right at this workload; the truth has no formula elsewhere")
    same = beside.same()
    others = (
        EquivalenceCheck(beside, case.runs).outcome() if same or beside.piecewise or case.runs is not None else None
    )
    wrong = None if others is None else others.wrong
    if wrong is None and same:
        return judged
    if wrong is None and others is not None and beside.piecewise:
        if others.decided:
            return judged
        note = f"right at all of {others.runs:,} runs that were tried; whether it is the same formula is not decided"
        return replace(judged, status="undetermined", note=note)
    return replace(
        judged,
        status="unexplained",
        residual_expression=None if same else beside.expression(),
        counterexample=wrong or beside.counterexample(),
        note="right where the formulas of this workload hold; elsewhere others do" if same
        else "right at this workload, but not the same formula",
    )  # fmt: skip


def _everywhere(beside: Comparison, found: Found) -> tuple[tuple[Effect, ...], ...]:
    """Return the sets of mistakes that explain a claimed formula at other workloads as well."""
    if not found.sets:
        return ()
    others = EquivalenceCheck(beside, beside.case.runs)
    # At multiples of this workload other formulas may hold; then the runs of the target are used instead.
    places = [] if others.several else list(beside.elsewhere())
    if len(places) < ELSEWHERE and not others.several:
        return ()
    places += others.cases(_RUNS) if others.several or beside.piecewise else ()
    if not places:
        return ()

    def leads(causes: tuple[tuple[str, str], ...]) -> bool:
        return all(
            claimed is not None and reach(there.terms, there.chosen(causes)) == claimed for there, claimed in places
        )

    kept = []
    for chosen in found.sets:
        whole = (*beside.case.stated, *chosen)
        # Causes with the same effect at this workload may differ at another.
        ways = islice(product(*([(n, e.requires) for n in (e.cause, *e.aliases)] for e in whole)), _NAMES_TRIED)
        right = [w for w in ways if leads(w)]
        if right:
            ours = zip(chosen, *(w[len(whole) - len(chosen) :] for w in right), strict=True)
            kept.append(tuple(
                replace(e, cause=ways[0][0], aliases=tuple(dict.fromkeys(n for n, _ in ways if n != ways[0][0])))
                for e, *ways in ours
            ))  # fmt: skip
    return tuple(kept)


def _by_length(judged: Judgement, case: ClaimCase, amount: Amount) -> Judgement:
    """Judge an unexplained number by comparing it with the cost at every text length."""
    held = hold(case, amount)
    if held is None:
        return judged
    chance = Fraction(judged.coincidences) + min(Fraction(held.lengths.coincidences), CHANCE)
    judged = replace(judged, lengths=(held.lengths,), coincidences=chance_text(chance))
    found = best(held.lengths)
    if not found and judged.status == "undetermined" and fine(amount):
        return judged  # a set of causes fits exactly, although that is weak evidence
    if not found:
        return replace(judged, status="refuted", explanations=judged.explanations if case.stated else (), note="")
    chance = held.chance(len(found[0][0].causes))
    if judged.status == "unexplained" and chance <= (RARE if fine(amount) else CHANCE):
        return replace(judged, status="explained", explanations=at_lengths(judged, case, held.lengths), residual=0)
    few = f"fits, not evidence: with {held.lengths.symbol} free, chance alone would give such a number"
    shown = judged.explanations or at_lengths(judged, case, held.lengths)
    return replace(judged, status="undetermined", explanations=shown, residual=judged.delta, note=judged.note or few)


def at_lengths(judged: Judgement, case: ClaimCase, lengths: Lengths) -> tuple[ClaimExplanation, ...]:
    """Return an explanation by another text length and mistakes, for each length at which a claim fits."""
    found = []
    for reading, length in best(lengths):
        there = case.at_length(lengths.symbol, length)
        assert there is not None
        chosen = there.chosen((c, "") for c in (*lengths.model, *reading.causes))
        rest = _explanation(there, chosen)
        moved = rest.reaches - sum(s.amount for s in rest.steps) - judged.truth
        what = {"S": "prompt", "P": "context"}[lengths.symbol]
        step = Step(f"another {what}", f"{lengths.symbol} = {length:,}, which the claim does not state", moved, ())
        found.append(ClaimExplanation((step, *rest.steps), rest.reaches))
    return tuple(found)


def _explanation(case: ClaimCase, chosen: tuple[Effect, ...]) -> ClaimExplanation:
    # Units come last: a unit such as MAC then accounts for half of everything counted, as readers expect.
    known = case.stated
    late = sorted(
        (*known, *chosen), key=lambda e: (e.family == "unit", e.family == "training", bool(e.requires), e.cause)
    )
    amounts, reached = walk(case.terms, late)
    steps = []
    for effect, amount in zip(late, amounts, strict=True):
        touched = sorted(effect.switches | effect.factors.keys())
        evidence = tuple(dict.fromkeys(x for i in touched for x in case.terms[i].evidence))[:_EVIDENCE]
        steps.append(Step(effect.cause, effect.what, amount, evidence, effect in known, effect.aliases))
    return ClaimExplanation(tuple(steps), reached)


def distance(amount: Amount, truth: int) -> int:
    """Return the distance from the true number to the interval of a claimed number; 0 if inside."""
    return min(max(truth, amount.low), amount.high) - truth
