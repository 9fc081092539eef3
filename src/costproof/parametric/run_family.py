"""Formulas of a run along one of its settings: as expressions of the setting, and evaluated at a value of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING, Any, Final, cast

import sympy

from costproof.algebra.crossing import FAR, NotSolved, first_above
from costproof.algebra.evaluation import evaluate
from costproof.algebra.series import CONTEXT, STEPS
from costproof.algebra.symbols import parse, sym
from costproof.claims.runs import Run
from costproof.compare.diff.changes import WORKLOAD, settings
from costproof.estimate.roofline import Outcome
from costproof.estimate.sums import CallTerm, FormulaSum, Take, distinct_layers
from costproof.ledger.baseline import Baseline
from costproof.ledger.errors import Bug, CostproofError, Problems
from costproof.ledger.workload import Invocation
from costproof.models.target import WithKeys
from costproof.parametric.concolic import SizeExpr, evaluate_size, variables_of
from costproof.parametric.evaluator import Evaluator, PointChoices, Regime
from costproof.parametric.path_conditions import branch_limit
from costproof.parametric.targets import BlendedTarget

if TYPE_CHECKING:
    import sympy


_MOST_PIECES: Final = 64


@dataclass(frozen=True, slots=True)
class Threshold:
    """Where a sum passes another; see :class:`~costproof.estimate.roofline.Border`."""

    outcome: Outcome
    at: int | None = None
    why: str = ""
    before: int | None = None
    """Of ``from``: the last value before it that is a run, if there is one."""

    def places(self, own: int) -> tuple[int, ...]:
        """Where both sides are shown: on both sides of a border; without one, at the run's own value."""
        if self.outcome != "from" or self.at is None:
            return (own,)
        return (self.at,) if self.before is None else (self.before, self.at)


@dataclass(frozen=True, slots=True)
class RegimeRange:
    """A range of values of a setting, both ends among them."""

    low: int
    high: int
    regime: Regime | None
    """``None``: the model does not take such a run."""


class SettingCurve:
    """A run whose one setting varies.

    Args:
        side: the run.
        target: of its configuration.
        setting: a number that every workload has: ``batch``, ``text_tokens``.
    """

    def __init__(self, side: Baseline, target: WithKeys, setting: str) -> None:
        self.setting = setting
        self.own = cast(int, settings(side)[f"{WORKLOAD}{setting}"])
        self.model = BlendedTarget(target, side, side, False)
        self.evaluator = Evaluator(self.model)
        self.variable = sym(setting)
        self._pieces: tuple[RegimeRange, ...] | NotSolved | None = None

    def regime(self, at: int) -> Regime:
        """What is counted at a value.

        Raises:
            BadInput, Problems: the model does not take such a run.
        """
        choices = PointChoices({}, None, {f"{WORKLOAD}{self.setting}": at})
        regime, numbers = self.evaluator.regime(choices)
        if regime.ledger is None:
            raise self.evaluator.refusal(choices, numbers)
        return regime

    def expression(self, regime: Regime, terms: FormulaSum) -> sympy.Expr:
        """A sum as an expression of the setting.

        Raises:
            NotSolved: the target computes something that is not a polynomial of it.
        """
        import sympy

        made = sympy.Integer(0)
        for (stage, invocation, source), factor, take in self._formulas(regime, terms):
            places = regime.places.get((stage, invocation), regime.places["", ""])
            put = {sym(name): self._of(expr) for name, expr in places.items()}
            if take == "last step":
                _last(put, CONTEXT, STEPS, sympy.Integer(1))
            whole = parse(source)
            made += factor * whole.xreplace(put)
        return sympy.expand(made)

    def _of(self, expr: Any) -> sympy.Expr:
        import sympy

        how, *parts = expr
        if how == "int":
            return sympy.Integer(parts[0])
        if how == "var":
            return self.variable
        if how not in ("+", "-", "*"):
            raise NotSolved(f"a size is not a polynomial of {self.setting}")
        left, right = (self._of(part) for part in parts)
        return left + right if how == "+" else left - right if how == "-" else left * right

    def value(self, at: int, terms: FormulaSum) -> int:
        """A sum at a value, by the formulas with the sizes of that very run: no expression of the setting is used."""
        regime, sizes = self.regime(at), self.sizes(at)
        whole = 0
        for (stage, invocation, source), factor, take in self._formulas(regime, terms):
            values = dict(sizes[stage, invocation])
            if take == "last step":
                _last(values, CONTEXT.name, STEPS.name, 1)
            whole += factor * evaluate(source, values)
        return whole

    def sizes(self, at: int) -> dict[tuple[str, str], dict[str, int]]:
        """(stage, invocation) -> the values of its symbols, where the setting has a value."""
        work = self.model.workload(None, **{f"{WORKLOAD}{self.setting}": at})
        config = self.model.config.symbols()
        return {(c.stage, c.id): {**config, **c.symbols} for c in self.model.invocations(work)}

    def _formulas(self, regime: Regime, terms: FormulaSum) -> list[tuple[tuple[str, str, str], int, Take]]:
        """Equal formulas of one call once, with how often they are there."""
        assert regime.ledger is not None
        found: Counter[tuple[tuple[str, str, str], Take]] = Counter()
        for term in terms:
            if isinstance(term, CallTerm):
                needed = {symbol.name for symbol in parse(term.source).free_symbols}
                for (stage, invocation), known in regime.places.items():
                    here = term.stage in (None, stage) and term.invocation in (None, invocation)
                    if stage and here and needed <= known.keys():
                        found[(stage, invocation, term.source), "whole"] += 1
                continue
            for node in regime.ledger.nodes if term.layers == "all" else distinct_layers(regime.ledger.nodes):
                if term.metric in node.exprs and term.nodes(node):
                    found[(node.stage, node.invocation, node.exprs[term.metric]), term.take] += term.factor
        return [(key, factor, take) for (key, take), factor in found.items()]

    def pieces(self) -> tuple[RegimeRange, ...]:
        """All values from 1 on, in ranges on each of which one regime holds, or the model takes no run.

        The ends come out of what the target asked about the value; a range has neighbours of the same regime where it
        asked them otherwise.

        Raises:
            NotSolved: they are too many.
        """
        if self._pieces is None:
            try:
                self._pieces = tuple(self._each_piece())
            except NotSolved as error:
                self._pieces = error
        if isinstance(self._pieces, NotSolved):
            raise self._pieces
        return self._pieces

    def _each_piece(self) -> Iterator[RegimeRange]:
        name, low = f"setting:{WORKLOAD}{self.setting}", 1
        for _ in range(_MOST_PIECES):
            choices = PointChoices({}, None, {f"{WORKLOAD}{self.setting}": low})
            regime, numbers = self.evaluator.regime(choices)
            (way, *_) = (way for way in regime.paths if way.holds(numbers))
            end = branch_limit(way, name, low)
            yield RegimeRange(low, FAR if end is None else min(end - 1, FAR), None if regime.ledger is None else regime)
            if end is None or end > FAR:
                return
            low = end
        raise NotSolved(f"other formulas hold at each of many {self.setting}")

    def depends(self, terms: FormulaSum) -> bool:
        """Whether the setting changes a sum at all; where its expression is not known, it may."""
        try:
            shapes = {id(piece.regime): piece.regime for piece in self.pieces() if piece.regime is not None}
            made = {self.expression(regime, terms) for regime in shapes.values()}
        except NotSolved:
            return True
        return len(made) > 1 or any(expr.has(self.variable) for expr in made)

    def first(self, left: FormulaSum, right: FormulaSum, more: int = 0) -> Threshold:
        """The first value at which the left sum is more than the right one, solved and then evaluated on both sides.

        It is that of the whole axis, wherever the run itself stands: each range of values is solved by its own
        formulas, and values that the model does not take are left out. Where it is at no value that the model takes,
        the formulas of the last range say from which value on it would be.

        Args:
            more: is on the right side too.
        """
        try:
            pieces = [piece for piece in self.pieces() if piece.regime is not None]
            before: int | None = None
            for piece in pieces:
                found = self._above(piece, left, right, more, piece.low)
                if found is not None and found <= piece.high:
                    before = found - 1 if found > piece.low else before
                    self._confirm(found, before, left, right, more)
                    return Threshold("from", found, before=before)
                before = piece.high
            last = pieces[-1]
            found = None if last.high >= FAR else self._above(last, left, right, more, last.high + 1)
        except NotSolved as error:
            return Threshold("not solved", None, str(error))
        if found is None:
            return Threshold("never")
        return Threshold("refused", found, self._why_refused(found))

    def _above(self, piece: RegimeRange, left: FormulaSum, right: FormulaSum, more: int, start: int) -> int | None:
        """The first value from a start on at which the left sum is more, by the formulas of a range."""
        assert piece.regime is not None
        less = self.expression(piece.regime, right) + more
        return first_above(self.expression(piece.regime, left) - less, self.variable, start)

    def _confirm(self, found: int, before: int | None, left: FormulaSum, right: FormulaSum, more: int) -> None:
        """Evaluate both sides at both ends of the border."""

        def above(at: int) -> bool:
            return self.value(at, left) > self.value(at, right) + more

        if not above(found) or (before is not None and above(before)):
            raise Bug("a border is not where it was solved to be", where=self.setting, got=found)

    def last(self, below: int) -> int:
        """The largest value below another one that is a run.

        Raises:
            NotSolved: it is not known which values are.
        """
        taken = [min(p.high, below - 1) for p in self.pieces() if p.regime is not None and p.low < below]
        return taken[-1] if taken else self.own

    def _why_refused(self, at: int) -> str:
        """What the model says against a value."""
        try:
            self.regime(at)
        except CostproofError as error:
            return _said(error)
        raise Bug("a value was taken for one that the model refuses", where=self.setting, got=at)


def _last(values: MutableMapping[Any, Any], context: Any, steps: Any, one: Any) -> None:
    """Sizes of the last of a series of steps, where it is one."""
    if context in values and steps in values:
        values[context], values[steps] = values[context] + values[steps] - one, one


def _said(error: CostproofError) -> str:
    """Why a run is refused, in one line."""
    return error.problems[0].line if isinstance(error, Problems) else error.line


_PROBES: Final = (*range(1, 9), *(2**i for i in range(4, 31)))
_MOST_ENDS: Final = 16
_SIZES: Final = 256
"""Values of a setting from 1 on that are tried to learn which ones the target takes."""


class WorkloadFamily:
    """All runs of a target that differ from one in numbers that a run chooses: a batch, a length, a side.

    Args:
        side: the one run.
        target: of its configuration.
    """

    def __init__(self, side: Baseline, target: WithKeys) -> None:
        given = settings(side)
        self.own: Mapping[str, int] = {k.removeprefix(WORKLOAD): v for k, v in given.items() if type(v) is int}
        self._config = target.config.symbols().keys()
        self._evaluator = Evaluator(BlendedTarget(target, side, side, False))
        self._sizes: dict[str, tuple[int, int]] = {}
        self._ends: dict[str, tuple[int, ...]] = {}
        self._runs: dict[tuple[tuple[str, int], ...], Run | None] = {}

    def at(self, changed: Mapping[str, int]) -> Run | None:
        """The run with these settings in place of its own; ``None``: the target takes no such run."""
        key = tuple(sorted({**self.own, **changed}.items()))
        if key not in self._runs:
            regime, numbers = self._regime(changed)
            self._runs[key] = None if regime.ledger is None else self._run(regime, numbers)
        return self._runs[key]

    def source(self, stage: str, call: str, symbol: str) -> sympy.Expr | None:
        """What a symbol of a call is in settings; ``None``: no setting changes it."""
        expr = self._places.get((stage, call), {}).get(symbol, ("int", 0))
        return _in_settings(expr) if variables_of(expr) else None

    def sizes(self, setting: str) -> tuple[int, int]:
        """The least value of a setting that the target takes, and the step to the next."""
        if setting not in self._sizes:
            taken = [v for v in range(1, _SIZES + 1) if self.at({setting: v}) is not None]
            known = taken if len(taken) > 1 else [self.own[setting]]
            self._sizes[setting] = known[0], gcd(*(v - known[0] for v in known))
        return self._sizes[setting]

    def ends(self, setting: str) -> tuple[int, ...]:
        """The values of a setting from which on other formulas hold, or runs are refused, the others as they are."""
        if setting not in self._ends:
            self._ends[setting] = tuple(self._each_end(setting))
        return self._ends[setting]

    def _each_end(self, setting: str) -> list[int]:
        found: dict[int, None] = {}
        probes, at = list(_PROBES), 1
        while len(found) < _MOST_ENDS:
            regime, numbers = self._regime({setting: at})
            way = next(way for way in regime.paths if way.holds(numbers))
            end = branch_limit(way, _variable(setting), at)
            if end is not None and at + 1 < end <= FAR:
                found[end] = None
            elif end is None or end > FAR:
                break
            # A way of one value says nothing about the next ones: they are looked at here and there.
            at = end if end > at + 1 else next((p for p in probes if p > at), FAR)
            if at >= FAR:
                break
        return list(found)

    @cached_property
    def _places(self) -> Mapping[tuple[str, str], Mapping[str, SizeExpr]]:
        return self._regime({})[0].places

    def _regime(self, changed: Mapping[str, int]) -> tuple[Regime, dict[str, int]]:
        values = {f"{WORKLOAD}{k}": v for k, v in {**self.own, **changed}.items()}
        return self._evaluator.regime(PointChoices({}, None, values))

    def _run(self, regime: Regime, numbers: Mapping[str, int]) -> Run:
        known: dict[SizeExpr, int] = {}
        calls = tuple(
            Invocation(stage, call, 1, {
                n: evaluate_size(e, numbers, known) for n, e in symbols.items() if n not in self._config
            }, ())
            for (stage, call), symbols in regime.places.items() if stage
        )  # fmt: skip
        assert regime.ledger is not None
        return Run(calls, regime.ledger)


def _variable(setting: str) -> str:
    return f"setting:{WORKLOAD}{setting}"


def _in_settings(expr: SizeExpr) -> sympy.Expr:
    """A size as an expression of the settings, each a symbol."""
    how, *parts = expr
    if how == "int":
        return sympy.Integer(parts[0])
    if how == "var":
        return sym(parts[0].removeprefix(_variable("")))
    left, right = (_in_settings(part) for part in parts)
    if how in ("//", "%"):
        whole = sympy.floor(left / right)
        return whole if how == "//" else left - right * whole
    return left + right if how == "+" else left - right if how == "-" else left * right
