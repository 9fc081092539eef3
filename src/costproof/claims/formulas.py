"""Evaluate claimed formulas at a workload, and compare them with the true formulas at other workloads."""

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
"""Number of other workloads at which a set of causes must reproduce a claimed formula."""
_TRIED: Final = 5_000
_FARTHEST: Final = 97


class Comparison:
    """A claimed formula and the formulas of the true nodes, to evaluate at any values of the workload's symbols.

    A formula with a symbol whose value differs between invocations (``n``, ``H``) is summed over the invocations; any
    other formula is evaluated once. In each invocation, such a symbol becomes a separate variable: ``n_global``.

    Args:
        formula: the claimed formula.
        case: the claim and the truth.
        shared: symbols that are one variable in all calls; if ``None``, those with one value at this workload.
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
        # Pairs of an expression's text and a map from its symbols to variables.
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
        """Return the map from symbols to variables in one invocation."""
        return {n: n if n in self.shared else f"{n}_{call.id}" for n in call.symbols}

    def numbers(self, values: Mapping[str, int]) -> tuple[ExactNumber | None, ExactNumber | None]:
        """Return claim and truth at these values of the free variables; ``None`` if one is undefined."""
        every = self.everywhere(values)
        return _sum(self.given, every, self.case.capture), _sum(self.truth, every, self.case.capture)

    def everywhere(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return the values of all variables: the given ones, variables that depend on them, and fixed variables."""
        return {**values, **{n: values[s] for n, s in self.tied.items() if s in values}, **self.fixed}

    def parts(self) -> tuple[tuple[sympy.Expr, ...], tuple[sympy.Expr, ...]]:
        """Return the addends of claim and truth in the free variables; the configuration's values are substituted."""
        fixed = {**self.case.capture.target.symbols, **self.fixed}
        numbers, alias = tuple(sorted(fixed.items())), tuple(sorted(self.tied.items()))
        given, truth = (
            tuple(parse(put_in(_renamed(*part), numbers, alias)) for part in side) for side in (self.given, self.truth)
        )
        return given, truth

    @property
    def piecewise(self) -> bool:
        """Whether the claim or the truth has a minimum, maximum or rounding, which a few points cannot distinguish."""
        return any(branches(source) for source, _ in (*self.given, *self.truth))

    def same(self) -> bool:
        """Whether claim and truth are the same formula for all values (see :mod:`costproof.algebra.identity`).

        Each minimum, maximum or rounding is treated as an independent variable, which must occur in both.
        """
        if any(a != b for a, b in map(self.numbers, points(frozenset(self.free)))):
            return False
        if not self.piecewise:
            return True
        return same_pieces(*self.parts(), self.free)

    def expression(self) -> str | None:
        """Return claim minus truth, factored; ``None`` if that would take too long."""
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
        """Yield other workloads, multiples of this one so that counts stay integers, with the claim's value there."""
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
    """Return the value of a claimed formula at the claim's workload.

    Raises:
        BadInput: a symbol has no value at this workload, or the result is not an integer.
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
    """Return the comparison of a claimed formula with the truth; ``None`` for a number, or without true formulas."""
    formula = case.claim.value
    return Comparison(formula, case) if isinstance(formula, Formula) and case.symbolic else None


def _runs(claim: PublishedClaim, call: Invocation, capture: Capture) -> bool:
    """Whether a claim sums over a call: a claim on all stages counts a view only in the first stage that it passes."""
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
    """Yield all assignments of positive integers to the names, in ascending order of their sum."""
    if not names:
        yield {}
        return
    total = len(names)
    while True:
        # Each choice of cut points splits the sum into positive parts, one for each name.
        for cuts in combinations(range(1, total), len(names) - 1):
            ends = (0, *cuts, total)
            yield {n: b - a for n, a, b in zip(names, ends, ends[1:], strict=False)}
        total += 1
