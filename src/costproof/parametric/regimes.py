"""A shape: what all points have in common for which a target does the same, and the costs there as polynomials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from costproof.ledger.baseline import BaselineRow
from costproof.ledger.errors import CostproofError, Incomplete
from costproof.ledger.metrics import PEAK_METRICS, STAGE_WIDE, Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.peaks import CallPeaks
from costproof.ledger.symbols import parse
from costproof.parametric.concolic import BranchCondition, PathRecorder, PointValues, SizeExpr, expression_of
from costproof.parametric.exact_arrays import ExactColumn, ExactEvaluator, Int128Array, PointBatch
from costproof.parametric.formulas import Configurable
from costproof.parametric.path_conditions import PathCondition
from costproof.parametric.polynomial import AtomTable, Polynomial, Quotient, add, as_quotient, scale

CostCell = tuple[str, Metric]
"""(Stage, metric); the whole run has an empty stage."""


@dataclass(frozen=True, slots=True)
class PointCosts:
    """All that the formulas say at one point, as exact integers."""

    rows: Mapping[BaselineRow, int]
    totals: Mapping[CostCell, int]
    """Sums; of all stages under an empty name. A module that works in two stages has its parameters in each, and once
    in the whole."""


@dataclass(frozen=True, slots=True)
class PointChoices:
    """What is chosen at a point, numbers and all else."""

    keys: Mapping[str, Any]
    preset: str | None
    settings: Mapping[str, Any]


@dataclass(slots=True)
class Regime:
    """The conditions under which it holds, and what is counted there."""

    paths: list[PathCondition]
    """That lead here."""
    ledger: Ledger | None
    """In symbols; ``None`` if these points are not a model, or not a run of it."""
    places: Mapping[tuple[str, str], Mapping[str, SizeExpr]]
    """(Stage, invocation) -> the symbols there."""
    symbols: Mapping[tuple[str, str], Mapping[str, Polynomial]]
    """The same as polynomials."""
    atoms: AtomTable
    costs: dict[CostCell | BaselineRow, Quotient]
    """What was compiled."""
    checked: bool = False
    """Whether it was compared with the formulas themselves at another point."""
    rows: dict[BaselineRow, list[tuple[CostNode, Metric]]] = field(default_factory=dict)
    graphs: tuple[CallPeaks, ...] = ()
    """Its calls with their graph peaks in symbols, where these are wanted."""
    compared: dict[int, Incomplete | None] = field(default_factory=dict)
    """Which sizes are 1 -> how a graph at such a point differs from these."""

    def mask(self, values: PointValues) -> Any:
        """Which of some points have this shape: yes or no for all of them, or an array that broadcasts to theirs."""
        held: Any = False
        for path in self.paths:
            mask = path.mask(values)
            if mask is True:
                return True
            if mask is not False:
                held = mask if held is False else np.logical_or(held, mask)
        # Ways that part on one axis alone and take all of it: nothing as large as the points.
        return True if held is not False and held.all() else held

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether one point has this shape."""
        return any(path.holds(values) for path in self.paths)

    def equals(self, other: Regime) -> bool:
        """Whether the same is counted there, as where a target looked at a number for a name alone."""
        return (
            self.ledger is not None
            and other.ledger is not None
            and self.places == other.places
            and self.ledger.nodes == other.ledger.nodes
            and self.ledger.stages == other.ledger.stages
        )

    def columns(self, cells: Sequence[CostCell], values: PointValues, shape: tuple[int, ...]) -> list[ExactColumn]:
        """These costs at some points of this shape, of which there are as many as an array of ``shape`` has."""
        costs = [self.cost(cell) for cell in cells]
        chunk = PointBatch(self.atoms.found, values, shape)
        return [chunk.column(cost) for cost in costs]

    def costs_at(self, values: Mapping[str, int]) -> PointCosts:
        """Everything at one point of this shape."""
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
        """These costs at one point of this shape."""
        costs = {cell: self.cost(cell) for cell in cells}
        exact = ExactEvaluator(self.atoms.found, values)
        return {cell: exact.number(cost) for cell, cost in costs.items()}

    def graphs_hold(self, values: PointValues, shape: tuple[int, ...]) -> Any:
        """At which of some points of this shape its graphs hold: an array that broadcasts to them."""
        chunk = PointBatch(self.atoms.found, values, shape)
        held: Any = np.True_
        for call in self.graphs:
            for source in call.holds:
                margin = chunk.column(as_quotient(self._of_call(call, source)))
                held = held & ((margin.python() if isinstance(margin, Int128Array) else margin) >= 0)
        return held

    def _of_call(self, call: CallPeaks, source: str) -> Polynomial:
        return self.atoms.of_formula(parse(source), self.symbols[call.stage, call.invocation])

    def cost(self, what: CostCell | BaselineRow) -> Quotient:
        """A row, the sum of a stage, or the largest of its calls, as it is evaluated."""
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
                parts = [(n, metric) for n in self.ledger.nodes if metric in n.exprs and stage in ("", n.stage)]
                if metric in STAGE_WIDE:
                    parts = list({n.module: (n, metric) for n, _ in parts}.values())
            self.costs[what] = self.compiled(parts)
        return self.costs[what]

    def compiled(self, parts: Iterable[tuple[CostNode, Metric]]) -> Quotient:
        """The sum of metrics of nodes; equal formulas of one call are put in once."""
        counts: dict[tuple[str, str, str], int] = {}
        for node, metric in parts:
            key = (node.stage, node.invocation, node.exprs[metric])
            counts[key] = counts.get(key, 0) + 1
        made: list[Polynomial] = []
        for (stage, invocation, source), times in counts.items():
            symbols = self.symbols.get((stage, invocation), self.symbols["", ""])
            made.append(scale(self.atoms.of_formula(parse(source), symbols), times))
        return as_quotient(add(made))


def trace_regime(target: Configurable, place: PointChoices, numbers: Mapping[str, int]) -> Regime:
    """The shape of a point.

    Args:
        numbers: those of the place's values that may vary, by ``key:NAME`` and ``setting:NAME``.
    """
    path = PathRecorder()
    try:
        return _followed(target, place, path, {name: path.variable(name, value) for name, value in numbers.items()})
    except CostproofError:
        return Regime([PathCondition(path.conditions)], None, {}, {}, AtomTable(), {})
    except (AssertionError, AttributeError, TypeError, ValueError):
        # What a traced number cannot do, as JSON of it: then the shape is that of this point alone.
        alone = PathCondition(
            BranchCondition("==", ("var", name), ("int", value), True) for name, value in numbers.items()
        )
        try:
            return replace(_followed(target, place, path, numbers), paths=[alone])
        except CostproofError:
            return Regime([alone], None, {}, {}, AtomTable(), {})


def _followed(target: Configurable, place: PointChoices, path: PathRecorder, variables: Mapping[str, Any]) -> Regime:
    """What a target does with numbers, traced or not."""
    keys = {k: variables.get(f"key:{k}", v) for k, v in place.keys.items()}
    settings = {k: variables.get(f"setting:{k}", v) for k, v in place.settings.items()}
    model = target.with_keys(keys) if keys else target
    work = model.workload(place.preset, **settings)
    calls = model.invocations(work)
    ledger = model.formulas(work)
    config = model.config.symbols()
    atoms = AtomTable()
    common = _common([call.symbols for call in calls])
    places = {
        at: {name: expression_of(value) for name, value in {**config, **own}.items()}
        for at, own in {("", ""): common, **{(c.stage, c.id): c.symbols for c in calls}}.items()
    }
    symbols = {at: {name: atoms.of_value(expr) for name, expr in own.items()} for at, own in places.items()}
    return Regime([PathCondition(path.conditions)], ledger, places, symbols, atoms, {})


def _common(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The symbols that are the same in all calls that have them."""
    found: dict[str, Any] = {}
    for symbols in calls:
        for name, value in symbols.items():
            if name in found and found[name] is not None and expression_of(found[name]) != expression_of(value):
                found[name] = None
            found.setdefault(name, value)
    return {name: value for name, value in found.items() if value is not None}
