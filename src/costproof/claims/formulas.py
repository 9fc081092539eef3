"""Claims that are formulas: their value at the workload, and whether they hold away from it."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations, islice
from typing import Final

import sympy

from costproof.algebra.evaluation import ExactNumber, evaluate, shared_values
from costproof.algebra.identity import at, branches, difference, free_symbols, points, put_in, same_pieces
from costproof.algebra.symbols import MOST_TERMS, parse, sym, term_count, text
from costproof.claims.truth import TIED, ClaimCase
from costproof.claims.types import TOTAL, Formula, FormulaCounterexample, PublishedClaim
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.workload import Invocation

ELSEWHERE: Final = 3
"""Other workloads at which the causes of a formula have to lead to it."""
_TRIED: Final = 5_000
_FARTHEST: Final = 97


class Comparison:
    """A formula beside the truth's own formulas, at any values of the workload's symbols. Each node has one.

    A formula with symbols that differ between the invocations (``n``, ``H``) is summed over them; any
    other is evaluated once. Such a symbol is a variable of its own in each invocation: ``n_global``.

    Args:
        shared: symbols that may count as one in all calls; if ``None``, those that have one value here.
    """

    def __init__(self, formula: Formula, case: ClaimCase, shared: Collection[str] | None = None) -> None:
        self.formula, self.given_formula, self.case = formula.text, formula, case
        claim, capture, calls = case.claim, case.capture, case.calls
        self.shared = {
            n: v for n, v in shared_values(c.symbols for c in calls).items() if shared is None or n in shared
        }
        config = capture.target.symbols
        once = free_symbols(formula.text) <= config.keys() | self.shared.keys() or not calls
        own = {n: n for n in self.shared}
        names = {(c.stage, c.id): self.names(c) for c in calls}
        # Each text with the variables that stand for its symbols.
        self.given = [(formula.text, own)] if once else [
            (formula.text, names[c.stage, c.id]) for c in calls if _runs(claim, c, capture)
        ]  # fmt: skip
        counted = case.once(
            "counted", lambda: Counter((n.stage, n.invocation, n.exprs[claim.metric]) for n in case.nodes)
        )
        self.truth = [
            (f"{times}*({expr})", names.get((stage, call), own)) for (stage, call, expr), times in counted.items()
        ]
        used = {by[s] for source, by in (*self.given, *self.truth) for s in free_symbols(source) if s in by}
        base = {self.names(c)[n]: v for c in calls for n, v in c.symbols.items()}
        self.tied = {n: s for n, s in TIED.items() if n in base and s in base and base[n] == base[s]}
        held = {self.names(c)[n] for c in calls for n in c.symbols if n in claim.at}
        self.fixed = {n: v for n, v in base.items() if n in held}
        self.free = {n: base[n] for n in sorted({self.tied.get(n, n) for n in used} - held) if n in base}

    def names(self, call: Invocation) -> dict[str, str]:
        """Symbol -> variable, in one invocation."""
        return {n: n if n in self.shared else f"{n}_{call.id}" for n in call.symbols}

    def numbers(self, values: Mapping[str, int]) -> tuple[ExactNumber | None, ExactNumber | None]:
        """Claim and truth where the free variables have these values."""
        every = self.everywhere(values)
        return _sum(self.given, every, self.case.capture), _sum(self.truth, every, self.case.capture)

    def everywhere(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return these values, those that follow from them, and the fixed ones."""
        return {**values, **{n: values[s] for n, s in self.tied.items() if s in values}, **self.fixed}

    def parts(self) -> tuple[tuple[sympy.Expr, ...], tuple[sympy.Expr, ...]]:
        """Claim and truth, each as a sum: in the free variables, with the numbers of the configuration put in."""
        fixed = {**self.case.capture.target.symbols, **self.fixed}
        numbers, alias = tuple(sorted(fixed.items())), tuple(sorted(self.tied.items()))
        given, truth = (
            tuple(parse(put_in(_renamed(*part), numbers, alias)) for part in side) for side in (self.given, self.truth)
        )
        return given, truth

    @property
    def piecewise(self) -> bool:
        """Whether the claim or the truth takes branches: then four points do not tell them apart."""
        return any(branches(source) for source, _ in (*self.given, *self.truth))

    def same(self) -> bool:
        """Whether claim and truth are one formula, wherever the variables lead (:mod:`costproof.algebra.identity`).

        A minimum, maximum or rounding is a variable of its own here, which both have to have.
        """
        if any(a != b for a, b in map(self.numbers, points(frozenset(self.free)))):
            return False
        if not self.piecewise:
            return True
        return same_pieces(*self.parts(), self.free)

    def expression(self) -> str | None:
        """Claim minus truth, factored; ``None`` if that would take too long."""
        if term_count(parse(self.formula)) > MOST_TERMS:
            return None
        given, truth = (tuple(_renamed(*part) for part in side) for side in (self.given, self.truth))
        fixed = {**self.case.capture.target.symbols, **self.fixed}
        try:
            return difference(given, truth, tuple(sorted(fixed.items())), tuple(sorted(self.tied.items())))
        except (CostproofError, RecursionError):
            return None

    def counterexample(self) -> FormulaCounterexample | None:
        """Return the first point, by the sum of the variables, at which claim and truth differ."""
        for values in islice(_ascending(tuple(self.free)), _TRIED):
            claimed, truth = self.numbers(values)
            if truth is not None and truth.denominator == 1 and claimed is not None and claimed != truth:
                return FormulaCounterexample(values, str(claimed), int(truth))
        return None

    def elsewhere(self) -> Iterator[tuple[ClaimCase, ExactNumber | None]]:
        """Three other workloads, with the claim's number there: multiples of this one, so that all stays whole."""
        for i in range(ELSEWHERE):
            values = {
                n: v * (2 + zlib.crc32(f"{i}:{n}".encode()) % (_FARTHEST - 2)) for n, v in self.free.items()
            }  # fmt: skip
            every = self.everywhere(values)
            there = self.case.moved(lambda call, every=every: {  # type: ignore[misc]
                n: every[variable] for n, variable in self.names(call).items() if variable in every
            })  # fmt: skip
            if there is not None:
                yield there, self.numbers(values)[0]


def formula_value(formula: Formula, case: ClaimCase) -> int:
    """Return the claimed number at the workload.

    Raises:
        BadInput: a symbol has no value here, or the result is not an integer.
    """
    claim, capture, calls = case.claim, case.capture, case.calls
    common = {**capture.target.symbols, **shared_values(c.symbols for c in calls)}
    try:
        names = free_symbols(formula.text)
        if names <= common.keys() or not calls:
            return evaluate(formula.text, common)
        return sum(evaluate(formula.text, capture.values(call)) for call in calls if _runs(claim, call, capture))
    except CostproofError as error:
        error.where = f"{claim.where}: {error.where}"
        raise
    except (OverflowError, MemoryError, RecursionError, ValueError):
        raise BadInput("a formula cannot be evaluated", where=claim.where) from None


def comparison(case: ClaimCase) -> Comparison | None:
    """Claim beside truth; ``None`` for a number, or where the truth has no formulas."""
    formula = case.claim.value
    return Comparison(formula, case) if isinstance(formula, Formula) and case.symbolic else None


def _runs(claim: PublishedClaim, call: Invocation, capture: Capture) -> bool:
    """In a claim on all stages a view counts once, not once in every stage that it passes."""
    if claim.stage != TOTAL:
        return True
    first = next(i for i in capture.invocations if i.id == call.id)
    return first.stage == call.stage


def _sum(side: list[tuple[str, dict[str, str]]], every: Mapping[str, int], capture: Capture) -> ExactNumber | None:
    total: ExactNumber = 0
    for source, names in side:
        known = {**capture.target.symbols, **{n: every[v] for n, v in names.items() if v in every}}
        number = at((source,), known)
        if number is None:
            return None
        total += number
    return total


def _renamed(source: str, names: Mapping[str, str]) -> str:
    changed = {sym(n): sym(v) for n, v in names.items() if n != v}
    return text(parse(source).subs(changed, simultaneous=True)) if changed else source


def _ascending(names: tuple[str, ...]) -> Iterator[dict[str, int]]:
    """Positive values for the names, by their sum: all 1 first."""
    if not names:
        yield {}
        return
    total = len(names)
    while True:
        # Where to cut a row of so many ones into parts.
        for cuts in combinations(range(1, total), len(names) - 1):
            ends = (0, *cuts, total)
            yield {n: b - a for n, a, b in zip(names, ends, ends[1:], strict=False)}
        total += 1
