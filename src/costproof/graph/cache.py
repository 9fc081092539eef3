"""The key/value cache: what a graph leaves in it beyond what it found there."""

from __future__ import annotations

from collections.abc import Iterable

import sympy

from costproof.graph.graph import Graph, Value
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode
from costproof.ledger.symbols import text


def cache_nodes(stage: str, invocation: str, graph: Graph, cache_inputs: Iterable[Value]) -> list[CostNode]:
    """What the cache holds after the run less what it held before, on the module that writes or reads it."""
    if not graph.cache_outputs:
        return []
    writer = {v.id: op.module for op in graph.ops for v in op.outputs}
    reader: dict[str, str] = {}
    for op in graph.ops:
        for value in op.tensors:
            reader.setdefault(value.id, op.module)
    growth: dict[str, sympy.Expr] = {}
    for sign, values in ((1, graph.cache_outputs), (-1, cache_inputs)):
        for value in values:
            module = writer.get(value.id) or reader.get(value.id, "")
            growth[module] = growth.get(module, sympy.Integer(0)) + sign * sympy.sympify(value.nbytes)
    nodes = []
    for module, grown in growth.items():
        expr = sympy.expand(grown)
        if expr != 0:
            costs: dict[Metric, int | None] = {"kv_cache_bytes": int(expr)} if expr.is_Integer else {}
            exprs: dict[Metric, str] = {"kv_cache_bytes": text(expr)}
            nodes.append(CostNode(stage, invocation, module, "", costs, exprs))
    return nodes
