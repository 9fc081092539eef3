"""Evaluate claimed formulas at a workload, and decide whether they equal the true formulas at other workloads.

The truth of a target is piecewise: other formulas hold once an attention window is full or every expert is read. A
claim is therefore compared at many runs of the target, each with the formulas that hold there: small sizes, sizes
around each boundary where a minimum, maximum or rounding takes another branch or where the target has other formulas,
powers of two, and large sizes.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from itertools import combinations, islice, product
from typing import Final

import sympy

from costproof.algebra.evaluation import ExactNumber, evaluate, shared_values
from costproof.algebra.identity import at, branches, difference, free_symbols, points, put_in, same_pieces
from costproof.algebra.piecewise import PIECEWISE, NotDecided, deciding, grid
from costproof.algebra.symbols import MOST_TERMS, parse, sym, term_count, text
from costproof.claims.terms import MESH
from costproof.claims.truth import TIED, ClaimCase, TargetRuns
from costproof.claims.types import TOTAL, Formula, FormulaCounterexample, PublishedClaim
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, CostproofError, first_line
from costproof.ledger.workload import Invocation

ELSEWHERE: Final = 3
"""Number of further workloads at which a set of causes must reproduce a claimed formula."""
_TRIED: Final = 5_000
_FARTHEST: Final = 97


class Comparison:
    """A claimed formula and the true one, to be evaluated at any values of the workload's symbols.

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
        held = {self.names(c)[n] for c in calls for n in c.symbols if n in claim.at or n in MESH}
        self.fixed = {n: v for n, v in base.items() if n in held}
        self.free = {n: base[n] for n in sorted({self.tied.get(n, n) for n in used} - held) if n in base}

    def names(self, call: Invocation) -> dict[str, str]:
        """Return the variable of each symbol of a call; a symbol that differs between calls has one per call."""
        return {n: n if n in self.shared else f"{n}_{call.id}" for n in call.symbols}

    def numbers(self, values: Mapping[str, int]) -> tuple[ExactNumber | None, ExactNumber | None]:
        """Return (claimed value, true value) at these values of the free variables; ``None`` for an undefined value."""
        every = self.everywhere(values)
        return _sum(self.given, every, self.case.capture), _sum(self.truth, every, self.case.capture)

    def everywhere(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return the values of all variables: those given, those tied to them, and fixed ones."""
        return {**values, **{n: values[s] for n, s in self.tied.items() if s in values}, **self.fixed}

    def parts(self) -> tuple[tuple[sympy.Expr, ...], tuple[sympy.Expr, ...]]:
        """Return the summands of the claimed and of the true formula, with the configuration's numbers inserted."""
        fixed = {**self.case.capture.target.symbols, **self.fixed}
        numbers, alias = tuple(sorted(fixed.items())), tuple(sorted(self.tied.items()))
        given, truth = (
            tuple(parse(put_in(_renamed(*part), numbers, alias)) for part in side) for side in (self.given, self.truth)
        )
        return given, truth

    @property
    def piecewise(self) -> bool:
        """Return whether either formula has a minimum, maximum or rounding, so that samples may miss a difference."""
        return any(branches(source) for source, _ in (*self.given, *self.truth))

    def same(self) -> bool:
        """Return whether both formulas are equal for all values (see :mod:`costproof.algebra.identity`).

        Each minimum, maximum or rounding is treated as an independent variable, which must occur in both.
        """
        if any(a != b for a, b in map(self.numbers, points(frozenset(self.free)))):
            return False
        if not self.piecewise:
            return True
        return same_pieces(*self.parts(), self.free)

    def expression(self) -> str | None:
        """Return the claimed formula minus the true one, factored; ``None`` if that takes too long."""
        if term_count(parse(self.formula)) > MOST_TERMS:
            return None
        given, truth = (tuple(_renamed(*part) for part in side) for side in (self.given, self.truth))
        fixed = {**self.case.capture.target.symbols, **self.fixed}
        try:
            return difference(given, truth, tuple(sorted(fixed.items())), tuple(sorted(self.tied.items())))
        except (CostproofError, RecursionError):
            return None

    def counterexample(self) -> FormulaCounterexample | None:
        """Return the values with the smallest sum at which the two formulas differ."""
        for values in islice(_ascending(tuple(self.free)), _TRIED):
            claimed, truth = self.numbers(values)
            if truth is not None and truth.denominator == 1 and claimed is not None and claimed != truth:
                return FormulaCounterexample(values, str(claimed), int(truth))
        return None

    def elsewhere(self) -> Iterator[tuple[ClaimCase, ExactNumber | None]]:
        """Yield (case, claimed value) at workloads with multiples of the claim's sizes, so that costs stay integers."""
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
    except (OverflowError, MemoryError, RecursionError, ValueError) as error:
        raise BadInput(
            "a formula cannot be evaluated", where=claim.where, expected="a value of at most a few thousand digits",
            got=first_line(error),
        ) from None  # fmt: skip


def comparison(case: ClaimCase) -> Comparison | None:
    """Return the comparison of a claimed formula with the true one; ``None`` if either is only a number."""
    formula = case.claim.value
    return Comparison(formula, case) if isinstance(formula, Formula) and case.symbolic else None


def _runs(claim: PublishedClaim, call: Invocation, capture: Capture) -> bool:
    """Return whether a claim covers a call; a claim on all stages covers each view only in its first stage."""
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
    """Yield all assignments of positive integers to the names, ordered by their sum."""
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


_SMALL: Final = 64
_POWERS: Final = 20
_SCALES: Final = (100, 1_000, 10_000, 100_000, 1_000_000)
_GRID: Final = 4_000
_MIXED: Final = 200
_DRAWS: Final = ((101, 4_993), (10_007, 1_000_003))
"""Ranges of random values for symbols that no setting of the target controls."""
_ELEMENT: Final = (4, 2)
"""Element sizes, in bytes, at which a claimed formula is compared with the truth."""
_SEVERAL: Final = sym("_several")
"""Placeholder for a symbol that depends on the settings differently in each call."""


@dataclass(frozen=True, slots=True)
class EquivalenceOutcome:
    """Result of comparing a claimed formula with the true one at other runs of the target."""

    wrong: FormulaCounterexample | None
    """The smallest run found at which the claim differs from the truth."""
    runs: int
    """Number of runs compared."""
    decided: bool
    """Whether agreement at all runs proves the formulas equal, as far as these runs cover the target's formulas."""


class EquivalenceCheck:
    """Comparison of a claimed formula with the true one at other runs of the target.

    Args:
        beside: the comparison at the run of the claim.
        runs: other runs of the target; if ``None``, the symbols take any positive values instead.
    """

    def __init__(self, beside: Comparison, runs: TargetRuns | None) -> None:
        self.beside, self.case, self.runs = beside, beside.case, runs
        self.own: Mapping[str, int] = beside.free
        self.follows: dict[str, sympy.Expr] = {v: sym(v) for v in beside.free}
        if runs is not None:
            self.follows = {}
            for call in self.case.calls:
                for symbol, variable in beside.names(call).items():
                    if (source := runs.source(call.stage, call.id, symbol)) is not None:
                        # Two calls that share a value in this run may differ in another run.
                        same = self.follows.get(variable, source) == source
                        self.follows[variable] = source if same else _SEVERAL
                        self.follows[f"{symbol}_{call.id}"] = source
            used = {s.name for source in self.follows.values() for s in source.free_symbols - {_SEVERAL}}
            self.own = {s: runs.own[s] for s in sorted(used)}

    def outcome(self) -> EquivalenceOutcome:
        """Compare the formulas at many runs, and return the outcome."""
        lists, decided = self._lists()
        tried: set[tuple[int, ...]] = set()
        wrong: FormulaCounterexample | None = None
        for place in self._places(lists, decided=decided):
            key = tuple(place.values())
            if key in tried or (there := self._at(place)) is None:
                continue
            tried.add(key)
            found = self._differ(there)
            if found is not None and (wrong is None or _size(found) < _size(wrong)):
                wrong = found
        return EquivalenceOutcome(wrong, len(tried), decided)

    @property
    def several(self) -> bool:
        """Return whether the target's formulas differ between its runs."""
        return any(self._at({s: end}) is not None for s in self.own for end in (self.runs.ends(s) if self.runs else ()))

    def cases(self, most: int) -> Iterator[tuple[ClaimCase, ExactNumber | None]]:
        """Yield (case, claimed value) at runs around each size at which a formula changes branches.

        Args:
            most: the approximate number of runs.
        """
        for place in self._mixed(self._lists()[0], most):
            there = self._at(place)
            case = there and there.case.moved(lambda _: {})
            if there and case:
                yield case, there.numbers(there.free)[0]

    def _differ(self, there: Comparison) -> FormulaCounterexample | None:
        """Return symbol values at which the formulas differ in a given run; ``None`` if the formulas agree."""
        other = there.free.keys() - self.follows.keys()
        draws = [{n: low + zlib.crc32(f"{low}:{n}".encode()) % (high - low) for n in other} for low, high in _DRAWS]
        element = [{"b": size} for size in _ELEMENT] if self.runs is not None and "b" in other else [{}, {}]
        for drawn in ({}, *(d | e for d, e in zip(draws, element, strict=True))) if other else ({},):
            values = {**there.free, **drawn}
            claimed, truth = there.numbers(values)
            if truth is not None and claimed != truth and truth.denominator == 1:
                shown = {**self._moved(there), **values}
                return FormulaCounterexample(shown, "nothing" if claimed is None else str(claimed), int(truth))
        return None

    def _moved(self, there: Comparison) -> dict[str, int]:
        """Return the symbols that occur in neither formula but differ in another run, for a counterexample.

        They belong to a counterexample because they may decide which formula applies.
        """
        if self.runs is None:
            return {}
        here, other = (
            {one.names(c)[n]: v for c in one.case.calls for n, v in c.symbols.items()} for one in (self.beside, there)
        )
        return {n: v for n, v in other.items() if n in self.follows and n not in there.tied and here.get(n) != v}

    def _at(self, place: Mapping[str, int]) -> Comparison | None:
        """Return the comparison at other settings; ``None`` if the target refuses them or the claim excludes them.

        Args:
            place: setting -> value, for the settings that differ from the claim's run.
        """
        if self.runs is None:
            made = copy(self.beside)
            made.free = {**self.beside.free, **place}
            return made
        run = self.runs.at(place)
        at = self.case.claim.at.items()
        if run is None or any(c.symbols.get(n, v) != v for c in run.calls for n, v in at):
            return None
        if not {c.stage for c in self.case.calls} <= {c.stage for c in run.calls}:
            return None  # a stage of the claim does not run: for example, no decode without new tokens
        regime = self.case.once(f"formulas {id(run.ledger)}", lambda: replace(self.case, ledger=run.ledger))
        if not regime.symbolic:
            return None
        there = regime.claiming(self.case.claim).calling(run.calls)
        return Comparison(self.beside.given_formula, there, self.beside.shared)

    def _lists(self) -> tuple[dict[str, tuple[int, ...]], bool]:
        """Return the values to compare at, by setting, and whether agreement at all of them is a proof."""
        lists: dict[str, tuple[int, ...]] = {}
        decided = True
        ends: dict[str, tuple[int, ...]] = {s: self.runs.ends(s) if self.runs else () for s in self.own}
        exprs = self._expressions(self.beside)
        for setting, found in ends.items():
            for end in found:
                there = self._at({setting: end})
                exprs |= self._expressions(there) if there is not None else set()
        for setting, own in self.own.items():
            first, step = self.runs.sizes(setting) if self.runs else (1, 1)
            try:
                if not step:
                    raise NotDecided
                lists[setting] = deciding(exprs, setting, first, step, ends[setting])
            except NotDecided:
                decided = False
                lists[setting] = tuple(sorted({first, own, *(e + k for e in ends[setting] for k in (-1, 0, 1))}))
        try:
            grid(lists, _GRID)
        except NotDecided:
            decided = False
        return lists, decided and not any(self._open(expr) for expr in exprs)

    def _open(self, expr: sympy.Expr) -> bool:
        """Return whether the branches of an expression depend on symbols other than the settings."""
        known = {sym(s) for s in self.own}
        return expr.has(_SEVERAL) or any(not a.free_symbols <= known for a in expr.atoms(*PIECEWISE))

    def _expressions(self, there: Comparison) -> set[sympy.Expr]:
        """Return the summands of both formulas as expressions in the settings."""
        put = {sym(variable): source for variable, source in self.follows.items()}
        return {expr.xreplace(put) for side in there.parts() for expr in side}

    def _places(self, lists: Mapping[str, tuple[int, ...]], *, decided: bool) -> Iterator[dict[str, int]]:
        yield dict(self.own)
        if decided:
            yield from grid(lists, _GRID)
        for setting, decisive in lists.items():
            first, step = self.runs.sizes(setting) if self.runs else (1, 1)
            usual = {first + step * i for i in range(_SMALL)}
            usual |= {first + step * (2**i + k) for i in range(_POWERS) for k in (-2, -1, 0)}
            usual |= {first + step * (zlib.crc32(f"{setting}:{high}".encode()) % high) for high in _SCALES}
            for value in sorted({*usual, *decisive}):
                yield {**self.own, setting: value}
        yield from self._mixed(lists, _MIXED)

    def _mixed(self, lists: Mapping[str, tuple[int, ...]], most: int) -> Iterator[dict[str, int]]:
        """Yield about ``most`` combinations of the listed setting values, including those of the claim's run."""
        short = {s: sorted({*values[:3], *values[-3:], self.own[s], *values[:: len(values) // 6 + 1]})
                 for s, values in lists.items()}  # fmt: skip
        whole = [dict(zip(short, values, strict=True)) for values in product(*short.values())]
        yield from whole[:: len(whole) // most + 1]


def _size(found: FormulaCounterexample) -> tuple[int, ...]:
    return sum(found.values.values()), *found.values.values()
