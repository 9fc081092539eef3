"""Operator rules: what one call of one operator costs, from its shapes alone.

Rules never read a formula of ``analytic``; they are tested against torch's own FlopCounterMode and
against brute-force counting. An operator has a cost rule, is declared free, or is unknown, and unknown is reported.
"""

from costproof.graph.rules.cost import OpCost, PartialRead, Role, Uncountable
from costproof.graph.rules.names import canonical, source_kind
from costproof.graph.rules.registry import RuleInfo, UnknownCost, cost_of, graph_transform, operator_rule, rule_table

__all__ = [
    "OpCost",
    "PartialRead",
    "Role",
    "RuleInfo",
    "Uncountable",
    "UnknownCost",
    "canonical",
    "cost_of",
    "graph_transform",
    "operator_rule",
    "rule_table",
    "source_kind",
]
