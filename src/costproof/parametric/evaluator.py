"""Evaluate the formulas of a target at any configuration and workload; each branch is compiled once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import numpy as np

from costproof.algebra.symbols import parse
from costproof.configs.config import key_named, keys_of
from costproof.ledger.baseline import BaselineRow
from costproof.ledger.errors import BadInput, Bug, CostproofError, Incomplete, Problems
from costproof.ledger.metrics import COMM, PEAK_METRICS, STAGE_WIDE, Metric
from costproof.ledger.node import CostNode, Ledger, not_given
from costproof.ledger.peaks import CallPeaks
from costproof.ledger.workload import Workload
from costproof.models.native import stored_formulas
from costproof.models.registry import load_target
from costproof.models.settings import option, typed_settings
from costproof.models.target import WithKeys
from costproof.parametric.concolic import (
    BranchCondition,
    PathCondition,
    PathRecorder,
    PointValues,
    SizeExpr,
    expression_of,
    merge_paths,
)
from costproof.parametric.exact_arrays import ExactColumn, ExactEvaluator, Int128Array, PointBatch
from costproof.parametric.polynomial import AtomTable, Polynomial, Quotient, add, as_quotient, scale
from costproof.parametric.targets import Configurable, evaluate_formulas

CostCell = tuple[str, Metric]
"""(stage, metric); an empty stage stands for the whole run."""


@dataclass(frozen=True, slots=True)
class PointCosts:
    """All costs that the formulas give at one point, in exact integers."""

    rows: Mapping[BaselineRow, int]
    totals: Mapping[CostCell, int]
    """Sums per stage, and for the whole run under an empty stage.

    A module that works in two stages counts its parameters in each of them, and once in the whole.
    """


@dataclass(frozen=True, slots=True)
class PointChoices:
    """The values that define a point: configuration keys, preset, and workload settings."""

    keys: Mapping[str, Any]
    preset: str | None
    settings: Mapping[str, Any]


@dataclass(slots=True)
class Regime:
    """Set of points at which formulas take the same branches, with path conditions and costs as polynomials."""

    paths: list[PathCondition]
    """Path conditions, any of which leads to these formulas."""
    ledger: Ledger | None
    """The formulas in symbols; ``None`` if the target refuses these points."""
    call_sizes: Mapping[tuple[str, str], Mapping[str, SizeExpr]]
    """Expressions of each call's symbols, by (stage, invocation); common symbols are under ``("", "")``."""
    symbols: Mapping[tuple[str, str], Mapping[str, Polynomial]]
    """Symbols of each call as polynomials, by (stage, invocation)."""
    atoms: AtomTable
    costs: dict[CostCell | BaselineRow, Quotient]
    """Costs compiled so far, by stage and metric, or by row."""
    formulas: dict[tuple[str, str, str], Polynomial] = field(default_factory=dict)
    """Formulas as polynomials, by (stage, invocation, formula), shared by the sums of a stage and of the whole run."""
    bearing: dict[Metric, list[CostNode]] = field(default_factory=dict)
    """Nodes with a formula for a metric, by metric; filled when a cost is compiled."""
    checked: bool = False
    """Whether the compiled costs were compared with the formulas at another point."""
    rows: dict[BaselineRow, list[tuple[CostNode, Metric]]] = field(default_factory=dict)
    one_of_each: list[CostNode] | None = None
    """Nodes of :func:`~costproof.estimate.arithmetic.distinct_layers`, computed when first needed."""
    graphs: tuple[CallPeaks, ...] = ()
    """Calls with their graph peaks as expressions; empty unless a sweep of graph peaks requests them."""
    compared: dict[int, Incomplete | None] = field(default_factory=dict)
    """Difference of an export from :attr:`graphs`, by bit mask of the sizes that are 1 at the exported point."""

    def mask(self, values: PointValues) -> Any:
        """Return which points belong to the regime: one bool for all, or an array that broadcasts to the points."""
        held: Any = False
        for path in self.paths:
            mask = path.mask(values)
            if mask is True:
                return True
            if mask is not False:
                held = mask if held is False else np.logical_or(held, mask)
        # Branches that split on only one axis and cover it: no array as large as the points is needed.
        return True if held is not False and held.all() else held

    def holds(self, values: Mapping[str, int]) -> bool:
        """Return whether one point belongs to the regime."""
        return any(path.holds(values) for path in self.paths)

    def equals(self, other: Regime) -> bool:
        """Return whether two regimes have the same formulas although they took different branches.

        They do if a branch affects no cost, only a name for example.
        """
        return (
            self.ledger is not None
            and other.ledger is not None
            and self.call_sizes == other.call_sizes
            and self.ledger.nodes == other.ledger.nodes
            and self.ledger.stages == other.ledger.stages
        )

    def columns(self, cells: Sequence[CostCell], values: PointValues, shape: tuple[int, ...]) -> list[ExactColumn]:
        """Return the costs at points of the regime, one column per cost."""
        costs = [self.cost(cell) for cell in cells]
        chunk = PointBatch(self.atoms.found, values, shape)
        return [chunk.column(cost) for cost in costs]

    def costs_at(self, values: Mapping[str, int]) -> PointCosts:
        """Return all costs at one point inside the regime."""
        assert self.ledger is not None
        if not self.rows:
            for node in self.ledger.nodes:
                for metric in node.exprs:
                    self.rows.setdefault(BaselineRow(node.stage, node.role, node.kind, metric), []).append(
                        (node, metric)
                    )
        rows = {row: self.cost(row) for row in self.rows}
        cells = {(stage, m): self.cost((stage, m)) for stage in ("", *self.ledger.stages) for m in self.ledger.metrics}
        exact = ExactEvaluator(self.atoms.found, values)
        return PointCosts(
            {row: exact.number(cost) for row, cost in rows.items()},
            {cell: exact.number(cost) for cell, cost in cells.items()},
        )

    def at(self, cells: Sequence[CostCell], values: Mapping[str, int]) -> dict[CostCell, int]:
        """Return some of the costs at one point of the regime."""
        costs = {cell: self.cost(cell) for cell in cells}
        exact = ExactEvaluator(self.atoms.found, values)
        return {cell: exact.number(cost) for cell, cost in costs.items()}

    def graphs_hold(self, values: PointValues, shape: tuple[int, ...]) -> Any:
        """Return at which points the exported graphs of the regime are valid, as an array that broadcasts."""
        chunk = PointBatch(self.atoms.found, values, shape)
        held: Any = np.True_
        for call in self.graphs:
            for source in call.holds:
                margin = chunk.column(as_quotient(self._of_call(call, source)))
                held = held & ((margin.python() if isinstance(margin, Int128Array) else margin) >= 0)
        return held

    def _of_call(self, call: CallPeaks, source: str) -> Polynomial:
        return self.atoms.from_formula(parse(source), self.symbols[call.stage, call.invocation])

    def cost(self, what: CostCell | BaselineRow) -> Quotient:
        """Return a cost compiled to a quotient of polynomials: of a row or a stage, or the largest graph peak.

        Raises:
            Incomplete: the formulas leave the metric unknown, so no node has it.
        """
        if what not in self.costs:
            if not isinstance(what, BaselineRow) and what[1] in PEAK_METRICS:
                peaks = [self._of_call(call, call.form) for call in self.graphs if what[0] in ("", call.stage)]
                self.costs[what] = as_quotient(self.atoms.largest(peaks))
                return self.costs[what]
            if isinstance(what, BaselineRow):
                parts = self.rows[what]
            else:
                assert self.ledger is not None
                stage, metric = what
                if metric not in self.ledger.metrics and metric not in COMM:  # one device sends nothing
                    raise not_given(metric, self.ledger.source, where="--metric", fix=f"leave out --metric {metric}")
                if not self.bearing:
                    for node in self.ledger.nodes:
                        for each in node.exprs:
                            self.bearing.setdefault(each, []).append(node)
                parts = [(n, metric) for n in self.bearing.get(metric, ()) if stage in ("", n.stage)]
                if metric in STAGE_WIDE:
                    parts = list({n.module: (n, metric) for n, _ in parts}.values())
            self.costs[what] = self.compiled(parts)
        return self.costs[what]

    def compiled(self, parts: Iterable[tuple[CostNode, Metric]]) -> Quotient:
        """Compile a sum of (node, metric) pairs, with equal formulas of one call compiled once."""
        counts: dict[tuple[str, str, str], int] = {}
        for node, metric in parts:
            key = (node.stage, node.invocation, node.exprs[metric])
            counts[key] = counts.get(key, 0) + 1
        summands: list[Polynomial] = []
        for (stage, invocation, source), times in counts.items():
            if (stage, invocation, source) not in self.formulas:
                symbols = self.symbols.get((stage, invocation), self.symbols["", ""])
                self.formulas[stage, invocation, source] = self.atoms.from_formula(parse(source), symbols)
            summands.append(scale(self.formulas[stage, invocation, source], times))
        return as_quotient(add(summands))


def trace_regime(target: Configurable, choices: PointChoices, numbers: Mapping[str, int]) -> Regime:
    """Return the regime of a point, by running the target's formulas with concolic integers.

    Args:
        target: the target.
        choices: the point.
        numbers: the numbers of the point that may vary, by ``key:NAME`` and ``setting:NAME``.
    """
    path = PathRecorder()
    try:
        return _run_traced(target, choices, path, {name: path.variable(name, value) for name, value in numbers.items()})
    except CostproofError:
        return Regime([PathCondition(path.conditions)], None, {}, {}, AtomTable(), {})
    except (AssertionError, AttributeError, TypeError, ValueError):
        # A concolic integer does not support the operation, such as JSON of it: the regime is this point only.
        alone = PathCondition(
            BranchCondition("==", ("var", name), ("int", value), True) for name, value in numbers.items()
        )
        try:
            return replace(_run_traced(target, choices, path, numbers), paths=[alone])
        except CostproofError:
            return Regime([alone], None, {}, {}, AtomTable(), {})


def _run_traced(
    target: Configurable, choices: PointChoices, path: PathRecorder, variables: Mapping[str, Any]
) -> Regime:
    """Build the regime from a run of the target's formulas, with concolic or plain integers."""
    keys = {k: variables.get(f"key:{k}", v) for k, v in choices.keys.items()}
    settings = {k: variables.get(f"setting:{k}", v) for k, v in choices.settings.items()}
    model = target.with_keys(keys) if keys else target
    work = model.workload(choices.preset, **settings)
    calls = model.invocations(work)
    ledger = stored_formulas(model, work)
    config = model.config.symbols()
    atoms = AtomTable()
    common = _common_symbols([call.symbols for call in calls])
    call_sizes = {
        at: {name: expression_of(value) for name, value in {**config, **own}.items()}
        for at, own in {("", ""): common, **{(c.stage, c.id): c.symbols for c in calls}}.items()
    }
    symbols = {at: {name: atoms.from_size(expr) for name, expr in own.items()} for at, own in call_sizes.items()}
    return Regime([PathCondition(path.conditions)], ledger, call_sizes, symbols, atoms, {})


def _common_symbols(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the symbols that have the same value in all calls that define them."""
    found: dict[str, Any] = {}
    for symbols in calls:
        for name, value in symbols.items():
            if name in found and found[name] is not None and expression_of(found[name]) != expression_of(value):
                found[name] = None
            found.setdefault(name, value)
    return {name: value for name, value in found.items() if value is not None}


NO_CHANGES: Final[Mapping[str, Any]] = {}


T = TypeVar("T", bound=Configurable)


@dataclass(slots=True)
class Evaluator(Generic[T]):
    """The formulas of a target, evaluated at any point, that is at any configuration and workload.

    Formulas are traced and compiled once for each regime, that is for all points at which the target takes the same
    branches.
    """

    target: T
    varied: set[str] = field(default_factory=set)
    """Configuration keys that some earlier point changed; later points set them too, to share regimes."""
    regimes: dict[Any, list[Regime]] = field(default_factory=dict)
    """Regimes found so far, by the non-numeric values of their points (dtype, attention)."""

    @classmethod
    def of(cls, name: str, config: Path | None = None, *, trusted: bool = False) -> Evaluator[WithKeys]:
        """Return the evaluator of a registered target, or of a configuration file.

        Raises:
            BadInput: there is no such target, or it has no formulas.
        """
        target = load_target(name, config, trusted=trusted)
        if not isinstance(target, WithKeys):
            raise BadInput(
                "no formulas describe this target",
                where=name,
                expected="a family of costproof targets",
                fix=f"costproof derive {name} reads closed forms off its graph; costproof report {name} counts one run",
            )
        return Evaluator(target)

    def key(self, name: str, where: str = "") -> str:
        """Return the full configuration key for a short name; see :func:`~costproof.configs.config.key_named`."""
        return key_named(self.target.config, name, where or name)

    def keys(self) -> dict[str, Any]:
        """Return every configuration key with its value."""
        return keys_of(self.target.config)

    def at(
        self: Evaluator[WithKeys],
        keys: Mapping[str, Any] = NO_CHANGES,
        preset: str | None = None,
        settings: Mapping[str, Any] = NO_CHANGES,
    ) -> PointCosts:
        """Return the costs at one point.

        Args:
            keys: overrides of configuration keys, by full name.
            preset: name of a workload (default: the target's default workload).
            settings: overrides of the workload, by the target's names.

        Raises:
            Problems: everything that makes this an invalid model or workload.
        """
        self.varied.update(keys)
        now = self.keys()
        choices = self.choices({name: keys.get(name, now[name]) for name in sorted(self.varied)}, preset, settings)
        regime, numbers = self.regime(choices)
        if regime.ledger is None:
            raise self.refusal(choices, numbers)
        return regime.costs_at(numbers)

    def choices(
        self: Evaluator[WithKeys], keys: Mapping[str, Any], preset: str | None, settings: Mapping[str, Any]
    ) -> PointChoices:
        """Return the values that define a point, converted to the types that the target declares.

        Raises:
            Problems: a setting that does not exist or has the wrong type.
        """
        problems: list[CostproofError] = []
        chosen = typed_settings(self.target.settings(), settings, option, problems)
        if problems:
            raise Problems("the workload cannot be run", problems)
        return PointChoices(keys, preset, chosen)

    def regime(self, choices: PointChoices) -> tuple[Regime, dict[str, int]]:
        """Return the regime of a point, and the integers of the point that vary within the regime."""
        now = self.keys()
        given = {f"key:{k}": v for k, v in choices.keys.items() if now[k] is None or type(now[k]) is int}
        given |= {f"setting:{k}": v for k, v in choices.settings.items()}
        numbers = {name: value for name, value in given.items() if type(value) is int}
        found = next((regime for regime in self.known(choices, numbers) if regime.holds(numbers)), None)
        return found or self.trace(choices, numbers), numbers

    def known(self, choices: PointChoices, numbers: Collection[str]) -> list[Regime]:
        """Return the regimes found so far for points that differ only in ``numbers``, as a list to be extended."""
        return self.regimes.setdefault(_without_numbers(choices, numbers), [])

    def trace(self, choices: PointChoices, numbers: Mapping[str, int]) -> Regime:
        """Trace the formulas at a point that no known regime covers.

        If the formulas are those of a known regime, its path conditions are extended and it is returned.
        """
        found, known = trace_regime(self.target, choices, numbers), self.known(choices, numbers)
        for other in known:
            if found.equals(other):
                other.paths = merge_paths([*other.paths, *found.paths])
                return other
        known.append(found)
        return found

    def ledger(self, choices: PointChoices, numbers: Mapping[str, int]) -> Ledger:
        """Evaluate the formulas at one point directly, without compiled regimes.

        Raises:
            Problems, BadInput: the target refuses the point.
        """
        target, workload = self.run(choices, numbers)
        return evaluate_formulas(target, workload)

    def run(self, choices: PointChoices, numbers: Mapping[str, int]) -> tuple[T, Workload]:
        """Return the model and the workload of a point.

        Raises:
            Problems, BadInput: as :meth:`ledger`.
        """
        keys = {k: numbers.get(f"key:{k}", v) for k, v in choices.keys.items()}
        settings = {k: numbers.get(f"setting:{k}", v) for k, v in choices.settings.items()}
        target = self.target.with_keys(keys) if keys else self.target
        return target, target.workload(choices.preset, **settings)

    def refusal(self, choices: PointChoices, numbers: Mapping[str, int]) -> CostproofError:
        """Return the error with which the target refuses a point."""
        try:
            self.ledger(choices, numbers)
        except CostproofError as error:
            return error
        raise Bug("a point was taken for one that the target refuses", where=str(choices))


def _without_numbers(choices: PointChoices, numbers: Collection[str]) -> Any:
    """Return the values of a point without its numbers, as a dictionary key."""
    others = [
        (name, None if name in numbers else str(value))
        for name, value in (
            *((f"key:{k}", v) for k, v in choices.keys.items()),
            *((f"setting:{k}", v) for k, v in choices.settings.items()),
        )
    ]
    return choices.preset, tuple(sorted(others, key=lambda pair: pair[0]))
