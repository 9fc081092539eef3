"""The analytic source by itself: no graph, no run, and nothing that they need is imported."""

from __future__ import annotations

from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.target import WithFormulas


def analytic_ledger(target: WithFormulas, workload: Workload) -> Ledger:
    """The closed formulas with this workload's numbers put in."""
    values = {(i.stage, i.id): i.symbols for i in target.invocations(workload)}
    return evaluate_ledger(target.formulas(workload), values, target.info().symbols)
