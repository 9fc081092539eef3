"""Evaluate the formulas of a ledger at one workload, in exact integers.

Equal layers have equal expressions: a ledger of a thousand nodes has a few dozen distinct ones, and each is computed
once for every call of a stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from costproof.algebra.evaluation import SymbolValues, evaluate, shared_values
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger


def evaluate_ledger(
    ledger: Ledger, values_by_invocation: Mapping[tuple[str, str], SymbolValues], config_values: SymbolValues
) -> Ledger:
    """Return the ledger with ``costs`` computed from ``exprs``; costs without an expression are unchanged.

    Args:
        values_by_invocation: (stage, invocation id) -> values of the workload's symbols there.
        config_values: values of the configuration's symbols. Stage-wide metrics use these, and workload symbols with
            one value in all invocations.

    Raises:
        BadInput: a symbol has no value, or a cost is not an integer; the error names the node.
    """
    common = shared_values(values_by_invocation.values())
    known: dict[tuple[str, str], tuple[dict[str, int], dict[str, int]]] = {}
    nodes: list[CostNode] = []
    for node in ledger.nodes:
        if not node.exprs:
            nodes.append(node)
            continue
        place = (node.stage, node.invocation)
        if place not in known:
            own = values_by_invocation.get(place, {}) if node.invocation else common
            known[place] = {**config_values, **own}, {}
        values, done = known[place]
        costs: dict[Metric, int | None] = dict(node.costs)
        for metric, source in node.exprs.items():
            if source not in done:
                try:
                    done[source] = evaluate(source, values)
                except BadInput as error:
                    error.where = f"{node.id}, {metric}: {error.where}"
                    raise
            costs[metric] = done[source]
        nodes.append(node.with_costs(costs, node.exprs))
    return replace(ledger, nodes=tuple(nodes))
