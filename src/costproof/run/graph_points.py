"""Evaluate the points of a sweep by exported graphs, for a target without formulas."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from costproof.ledger.errors import BadInput, CostproofError, Incomplete, no_such
from costproof.ledger.metrics import SUMMED, Metric
from costproof.ledger.node import Ledger
from costproof.models.target import Exportable
from costproof.parametric.concolic import BranchCondition
from costproof.parametric.evaluator import Evaluator, PointChoices, Regime
from costproof.parametric.path_conditions import PathCondition
from costproof.parametric.polynomial import AtomTable
from costproof.run.operands import export_target

MOST_GRAPH_POINTS = 1_000
"""Limit for the points of a sweep that exported graphs count one by one."""


@dataclass(slots=True)
class GraphEvaluator(Evaluator[Any]):
    """The exported graphs of a target at any workload; every point is counted by itself.

    An export with symbolic sizes is cached and serves all points at which its guards hold.
    """

    metrics: Collection[Metric] = ()
    """Costs that must be known at a point."""

    def key(self, name: str, where: str = "") -> str:
        """Raise ``BadInput``: the configuration of a target without formulas does not vary."""
        raise no_such("setting", name, [s.name for s in self.target.settings()], where=where or name)

    def keys(self) -> dict[str, Any]:
        """Return no key."""
        return {}

    def trace(self, choices: PointChoices, numbers: Mapping[str, int]) -> Regime:
        """Return a regime of one point, whose costs are numbers."""
        conditions = (BranchCondition("==", ("var", name), ("int", value), True) for name, value in numbers.items())
        found = self._regime([PathCondition(conditions)], choices, numbers)
        self.known(choices, numbers).append(found)
        return found

    def _regime(self, paths: list[PathCondition], choices: PointChoices, numbers: Mapping[str, int]) -> Regime:
        atoms = AtomTable()
        try:
            ledger = self.ledger(choices, numbers)
            calls = self.target.invocations(self.run(choices, numbers)[1])
        except CostproofError:
            return Regime(paths, None, {}, {}, atoms, {})
        sizes = {(c.stage, c.id): {name: atoms.from_size(("int", n)) for name, n in c.symbols.items()} for c in calls}
        nodes = tuple(replace(n, exprs={m: str(cost) for m in SUMMED if (cost := n.cost(m))}) for n in ledger.nodes)
        counted = replace(ledger, nodes=nodes)
        return Regime(paths, counted, {}, {("", ""): {}, **sizes}, atoms, {}, checked=True)

    def ledger(self, choices: PointChoices, numbers: Mapping[str, int]) -> Ledger:
        """Count one point by exported graphs.

        Raises:
            Problems, BadInput: the target refuses the point.
            Incomplete: an export failed, or a cost is not known.
        """
        target, workload = self.run(choices, numbers)
        counted = export_target(target, workload).exported
        assert counted is not None
        found = counted.ledger
        for metric in self.metrics:
            if metric in SUMMED and found.total(metric) is None:
                raise Incomplete("a cost of this point is not known", where=workload.name, got=metric)
        return found


def graph_evaluator(target: object, name: str, metrics: Collection[Metric]) -> GraphEvaluator:
    """Return the evaluator of a target without formulas.

    Raises:
        BadInput: it has no graphs either.
    """
    if not isinstance(target, Exportable):
        raise BadInput("neither formulas nor graphs describe this target", where=name)
    return GraphEvaluator(target, metrics=metrics)
