"""Evaluate a run's formulas as functions of one setting, with all other settings unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING, Any, Final, cast

from costproof.algebra.crossing import FAR, NotSolved, first_above
from costproof.algebra.evaluation import evaluate
from costproof.algebra.series import CONTEXT, STEPS
from costproof.algebra.symbols import parse, sym
from costproof.claims.truth import TargetRun
from costproof.compare.diff.changes import WORKLOAD, settings
from costproof.estimate.arithmetic import CallTerm, FormulaSum, Take, distinct_layers
from costproof.estimate.roofline import ThresholdOutcome
from costproof.ledger.baseline import Baseline
from costproof.ledger.errors import Bug, CostproofError, first_problem
from costproof.ledger.mesh import AXES, RANK
from costproof.ledger.workload import Invocation
from costproof.models.target import WithKeys
from costproof.parametric.concolic import SizeExpr, branch_limit, evaluate_size, to_sympy, variables_of
from costproof.parametric.evaluator import Evaluator, PointChoices, Regime
from costproof.parametric.targets import BlendedTarget

if TYPE_CHECKING:
    import sympy

_MOST_RANGES: Final = 64
_PROBES: Final = (*range(1, 9), *(2**i for i in range(4, 31)))
_MOST_BOUNDARIES: Final = 16
_MOST_TRIED: Final = 256
"""Number of setting values, from 1 on, that are tried to find which ones the target accepts."""


class _RunFamily:
    """All runs of a target that differ from a given run only in settings.

    Args:
        side: the run.
        target: the target of its configuration.
    """

    def __init__(self, side: Baseline, target: WithKeys) -> None:
        self.given = settings(side)
        self.model = BlendedTarget(target, side, side)
        self.evaluator = Evaluator(self.model)

    def _regime_at(self, changed: Mapping[str, int]) -> tuple[Regime, dict[str, int]]:
        """Return the regime of the run with changed settings, and the integers that vary within the regime."""
        return self.evaluator.regime(self._choices(changed))

    def _choices(self, changed: Mapping[str, int]) -> PointChoices:
        return PointChoices({}, None, {f"{WORKLOAD}{name}": value for name, value in changed.items()})

    def _range_end(self, setting: str, changed: Mapping[str, int], step: int = 1) -> tuple[Regime, int | None]:
        """Return the regime at a setting value, and the next value at which a branch may change.

        The value is given in units of ``step``, as the next one is, which is looked for among its multiples.
        """
        regime, numbers = self._regime_at({**changed, setting: step * changed[setting]})
        path = next(path for path in regime.paths if path.holds(numbers))
        return regime, branch_limit(path, _variable(setting), changed[setting], step)


@dataclass(frozen=True, slots=True)
class Threshold:
    """Setting value where a sum exceeds another; see :class:`~costproof.estimate.roofline.BottleneckThreshold`."""

    outcome: ThresholdOutcome
    at: int | None = None
    why: str = ""
    before: int | None = None
    """The last accepted value below the threshold, if any."""

    def places(self, own: int) -> tuple[int, ...]:
        """Return the values at which to show both sums: around the threshold, or the last accepted or the run's own."""
        if self.outcome != "from" or self.at is None:
            return (own if self.before is None else self.before,)
        return (self.at,) if self.before is None else (self.before, self.at)


@dataclass(frozen=True, slots=True)
class RegimeRange:
    """A range of setting values with one regime, both ends included, in units of the counted rank's share."""

    low: int
    high: int
    regime: Regime | None
    """Regime of these values; ``None`` if the model refuses them."""


EQUAL_BATCHES: Final = "limits of the batch are among those of which all ranks have equal parts"
"""Note that limits of the batch are searched only among batches that all ranks share equally."""
ONE_ROUTING: Final = "no limits are solved: the routing of --pairs is that of one batch and length"
"""Note that a routing file says how many tokens there are, so that no other number can be tried."""


class SettingCurve(_RunFamily):
    """The formulas of a run as functions of one setting, for solving where sums of formulas cross.

    Ranks that share a batch, or sequences, see their own parts of it: sums are solved for the sequences of the counted
    rank, at batches of which all ranks have equal parts, and mapped back to the first accepted batch that has as many.

    Args:
        side: the run.
        target: the target of its configuration.
        setting: a number that every workload has: ``batch``, ``text_tokens``.
    """

    def __init__(self, side: Baseline, target: WithKeys, setting: str) -> None:
        _RunFamily.__init__(self, side, target)
        self.setting = setting
        mesh, place = side.workload.mesh, side.workload.mesh.coordinates(side.workload.rank)
        self._parts, self._index, self._alike = 1, 0, 1
        if setting == "batch":
            self._parts = self._alike = mesh.dp * mesh.fsdp
            self._index = place.dp * mesh.fsdp + place.fsdp
            if mesh.batches > 1:  # what a rank does depends on the batches of others, so all are equal
                self._index, self._alike = self._parts - 1, 1
        elif setting == "text_tokens":  # of which all parts are equal
            self._parts = side.workload.sequence_parts
            self._index = self._parts - 1
        self.own = cast(int, self.given[f"{WORKLOAD}{setting}"])
        self.variable = sym(setting)
        self._ranges: tuple[RegimeRange, ...] | NotSolved | None = None

    def regime(self, at: int) -> Regime:
        """Return the regime at a value of the setting.

        Raises:
            BadInput, Problems: the model refuses the value.
        """
        regime, numbers = self._regime_at({self.setting: at})
        if regime.ledger is None:
            raise self.evaluator.refusal(self._choices({self.setting: at}), numbers)
        return regime

    def expression(self, regime: Regime, terms: FormulaSum) -> sympy.Expr:
        """Return a sum of formulas as one expression in the symbol of the setting.

        Raises:
            NotSolved: the target computes a size that is not a polynomial of the setting.
        """
        import sympy

        total = sympy.Integer(0)
        for (stage, invocation, source), factor, take in self._formulas(regime, terms):
            sizes = regime.call_sizes.get((stage, invocation), regime.call_sizes["", ""])
            values = {sym(name): self._size(expr) for name, expr in sizes.items()}
            if take == "last step":
                _keep_last_step(values, CONTEXT, STEPS, sympy.Integer(1))
            total += factor * parse(source).xreplace(values)
        return sympy.expand(total)

    def _size(self, expr: SizeExpr) -> sympy.Expr:
        try:
            return to_sympy(expr, lambda _: self._parts * self.variable)
        except NotSolved:
            raise NotSolved(f"a size is not a polynomial of {self.setting}") from None

    def value(self, at: int, terms: FormulaSum) -> int:
        """Return a sum of formulas at a setting value by evaluating every formula, without solved expressions."""
        regime, sizes = self.regime(at), self.sizes(at)
        total = 0
        for (stage, invocation, source), factor, take in self._formulas(regime, terms):
            values = dict(sizes[stage, invocation])
            if take == "last step":
                _keep_last_step(values, CONTEXT.name, STEPS.name, 1)
            total += factor * evaluate(source, values)
        return total

    def sizes(self, at: int) -> dict[tuple[str, str], dict[str, int]]:
        """Return the symbol values of each call at a value of the setting, by (stage, invocation)."""
        work = self.model.workload(None, **{f"{WORKLOAD}{self.setting}": at})
        config = self.model.config.symbols()
        return {(c.stage, c.id): {**config, **c.symbols} for c in self.model.invocations(work)}

    def _formulas(self, regime: Regime, terms: FormulaSum) -> list[tuple[tuple[str, str, str], int, Take]]:
        """Return the distinct formulas of a sum, each with its call, number of occurrences, and steps to take."""
        assert regime.ledger is not None
        found: Counter[tuple[tuple[str, str, str], Take]] = Counter()
        for term in terms:
            if isinstance(term, CallTerm):
                needed = {symbol.name for symbol in parse(term.source).free_symbols}
                for (stage, invocation), known in regime.call_sizes.items():
                    here = term.stage in (None, stage) and term.invocation in (None, invocation)
                    if stage and here and needed <= known.keys():
                        found[(stage, invocation, term.source), "whole"] += 1
                continue
            if term.layers != "all" and regime.one_of_each is None:
                regime.one_of_each = list(distinct_layers(regime.ledger.nodes))
            for node in regime.ledger.nodes if term.layers == "all" else regime.one_of_each or ():
                if term.metric in node.exprs and term.nodes(node):
                    found[(node.stage, node.invocation, node.exprs[term.metric]), term.take] += term.factor
        return [(key, factor, take) for (key, take), factor in found.items()]

    def ranges(self) -> tuple[RegimeRange, ...]:
        """Return consecutive ranges from 1 on, within each of which the formulas take the same branches.

        The boundaries follow from the branches that the target took. Two neighbouring ranges have the same regime if
        the target merely took other branches to it.

        Raises:
            NotSolved: there are too many ranges.
        """
        if self._ranges is None:
            try:
                self._ranges = tuple(self._each_range())
            except NotSolved as error:
                self._ranges = error
        if isinstance(self._ranges, NotSolved):
            raise self._ranges
        return self._ranges

    def _each_range(self) -> Iterator[RegimeRange]:
        low = 1
        for _ in range(_MOST_RANGES):
            regime, end = self._range_end(self.setting, {self.setting: low}, self._parts)
            high = FAR if end is None else min(end - 1, FAR)
            yield RegimeRange(low, high, None if regime.ledger is None else regime)
            if end is None or end > FAR:
                return
            low = end
        raise NotSolved(f"the formulas change at too many values of {self.setting}")

    def depends(self, terms: FormulaSum) -> bool:
        """Return whether a sum of formulas depends on the setting, or may depend since its expression is unknown."""
        try:
            regimes = {id(part.regime): part.regime for part in self.ranges() if part.regime is not None}
            expressions = {self.expression(regime, terms) for regime in regimes.values()}
        except NotSolved:
            return True
        return len(expressions) > 1 or any(expr.has(self.variable) for expr in expressions)

    def first(self, left: FormulaSum, right: FormulaSum, more: int = 0) -> Threshold:
        """Return the first value at which the left sum exceeds the right one, solved exactly and checked by evaluation.

        All values are considered, not only those above the run's own: each range is solved with its own formulas, and
        values that the model refuses are skipped. If the left sum is larger at no accepted value, the formulas of the
        last range give the refused value at which it would be.

        Args:
            left, right: the two sums.
            more: a constant that is added to the right sum.
        """
        return self._first(
            lambda part, start: self._first_in(part, left, right, more, start),
            lambda at: self.value(at, left) > self.value(at, right) + more,
        )

    def first_over(self, over: Callable[[int], bool]) -> Threshold:
        """Return the first accepted value at which a non-decreasing quantity is too large, by bisection.

        Args:
            over: whether it is too large at a value; it is also asked at values that the model refuses.
        """

        def first_in(part: RegimeRange, start: int) -> int | None:
            end = part.high if start <= part.high else FAR
            return _bisect(lambda n: over(n * self._parts), start, end) if over(end * self._parts) else None

        return self._first(first_in, over)

    def _first(self, first_in: Callable[[RegimeRange, int], int | None], above: Callable[[int], bool]) -> Threshold:
        """Return the first value at which a condition holds, checked at this value and at the one before.

        Args:
            first_in: range, start -> the first part from there on at which it holds by the formulas of the range.
            above: whether it holds at a value of the setting.
        """
        try:
            accepted = [part for part in self.ranges() if part.regime is not None]
            before: int | None = None
            for part in accepted:
                found = first_in(part, part.low)
                if found is not None and found <= part.high:
                    before = found - 1 if found > part.low else before
                    return self._checked(found, before, above)
                before = part.high
            last = accepted[-1]
            found = None if last.high >= FAR else first_in(last, last.high + 1)
        except NotSolved as error:
            return Threshold("not solved", None, str(error))
        if found is None:
            return Threshold("never")
        values = self._values(found)
        if any(map(self._accepts, values)):  # the largest batch may be none of equal parts
            return self._checked(found, last.high if found == last.high + 1 else None, above)
        return Threshold("refused", values[0], self._refusal_line(values[0]), self.last(values[0]))

    def _values(self, part: int) -> range:
        """Return the setting values at which the counted rank's share has this size."""
        first = (part - 1) * self._parts + self._index + 1
        return range(first, first + self._alike)

    def _accepts(self, at: int) -> bool:
        return at > 0 and self._regime_at({self.setting: at})[0].ledger is not None

    def _first_in(self, part: RegimeRange, left: FormulaSum, right: FormulaSum, more: int, start: int) -> int | None:
        """Return the first value from ``start`` on in one range at which the left sum exceeds the right one."""
        assert part.regime is not None
        less = self.expression(part.regime, right) + more
        return first_above(self.expression(part.regime, left) - less, self.variable, start)

    def _checked(self, part: int, before: int | None, above: Callable[[int], bool]) -> Threshold:
        """Return the threshold for a share of the setting, checked at the values of this and the previous share.

        Args:
            part: the first part at which the condition holds.
            before: the part before, if any.
            above: whether the condition holds at a value of the setting.
        """
        found = next(at for at in self._values(part) if self._accepts(at))
        below = () if before is None else reversed(self._values(before))
        last = next((at for at in below if at < found and self._accepts(at)), None)
        if not above(found) or (last is not None and above(last)):
            raise Bug("a border is not where it was solved to be", where=self.setting, got=found)
        return Threshold("from", found, before=last)

    def last(self, below: int) -> int:
        """Return the largest value below a bound that the model accepts.

        Raises:
            NotSolved: the accepted values are not known.
        """
        ends = (min(self._values(p.high)[-1], below - 1) for p in reversed(self.ranges()) if p.regime is not None)
        taken = (at for end in ends for at in range(end, max(0, end - self._parts), -1) if self._accepts(at))
        return next(taken, self.own)

    def _refusal_line(self, at: int) -> str:
        """Return the error with which the model refuses a value, in one line."""
        try:
            self.regime(at)
        except CostproofError as error:
            return first_problem(error)
        raise Bug("a value was taken for one that the model refuses", where=self.setting, got=at)


class WorkloadFamily(_RunFamily):
    """All runs of a target that differ only in integer settings: batch, length, image size.

    Implements :class:`costproof.claims.truth.Runs`.
    """

    def __init__(self, side: Baseline, target: WithKeys) -> None:
        _RunFamily.__init__(self, side, target)
        sizes = {k.removeprefix(WORKLOAD): v for k, v in self.given.items() if type(v) is int}
        # A formula of a rank is one for its mesh: on one device it has other symbols.
        self.own: Mapping[str, int] = {k: v for k, v in sizes.items() if k not in (*AXES, RANK)}
        self._config = target.config.symbols().keys()
        self._sizes: dict[str, tuple[int, int]] = {}
        self._boundaries: dict[str, tuple[int, ...]] = {}
        self._runs: dict[tuple[tuple[str, int], ...], TargetRun | None] = {}

    def at(self, changed: Mapping[str, int]) -> TargetRun | None:
        key = tuple(sorted({**self.own, **changed}.items()))
        if key not in self._runs:
            regime, numbers = self._regime_at({**self.own, **changed})
            self._runs[key] = None if regime.ledger is None else self._run(regime, numbers)
        return self._runs[key]

    def source(self, stage: str, call: str, symbol: str) -> sympy.Expr | None:
        """Return a call's symbol as an expression of the settings; ``None`` if no setting changes the symbol."""
        expr = self._call_sizes.get((stage, call), {}).get(symbol, ("int", 0))
        if not variables_of(expr):
            return None
        return to_sympy(expr, lambda name: sym(name.removeprefix(_variable(""))), floors=True)

    def sizes(self, setting: str) -> tuple[int, int]:
        """Return the smallest accepted value of a setting, and the step to the next accepted value."""
        if setting not in self._sizes:
            taken = [v for v in range(1, _MOST_TRIED + 1) if self.at({setting: v}) is not None]
            known = taken if len(taken) > 1 else [self.own[setting]]
            self._sizes[setting] = known[0], gcd(*(v - known[0] for v in known))
        return self._sizes[setting]

    def ends(self, setting: str) -> tuple[int, ...]:
        """Return the setting values at which other formulas start to apply or the target starts to refuse."""
        if setting not in self._boundaries:
            self._boundaries[setting] = tuple(self._find_boundaries(setting))
        return self._boundaries[setting]

    def _find_boundaries(self, setting: str) -> list[int]:
        found: dict[int, None] = {}
        probes, at = list(_PROBES), 1
        while len(found) < _MOST_BOUNDARIES:
            _, end = self._range_end(setting, {**self.own, setting: at})
            if end is not None and at + 1 < end <= FAR:
                found[end] = None
            elif end is None or end > FAR:
                break
            # A range of a single value says nothing about the following ones, so that only some of them are probed.
            at = end if end > at + 1 else next((p for p in probes if p > at), FAR)
            if at >= FAR:
                break
        return list(found)

    @cached_property
    def _call_sizes(self) -> Mapping[tuple[str, str], Mapping[str, SizeExpr]]:
        return self._regime_at(self.own)[0].call_sizes

    def _run(self, regime: Regime, numbers: Mapping[str, int]) -> TargetRun:
        known: dict[SizeExpr, int] = {}
        calls = tuple(
            Invocation(stage, call, 1, {
                n: evaluate_size(e, numbers, known) for n, e in symbols.items() if n not in self._config
            }, ())
            for (stage, call), symbols in regime.call_sizes.items() if stage
        )  # fmt: skip
        assert regime.ledger is not None
        return TargetRun(calls, regime.ledger)


def _bisect(over: Callable[[int], bool], low: int, high: int) -> int:
    """Return the first value in a range at which a monotone condition holds."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if over(middle) else (middle + 1, high)
    return low


def _variable(setting: str) -> str:
    """Return the name that a setting has in expressions of a regime."""
    return f"setting:{WORKLOAD}{setting}"


def _keep_last_step(values: MutableMapping[Any, Any], context: Any, steps: Any, one: Any) -> None:
    """Change the symbol values of a series of decode steps to those of its last step."""
    if context in values and steps in values:
        values[context], values[steps] = values[context] + values[steps] - one, one
