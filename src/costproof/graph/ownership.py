"""What modules own, and sums over nodes: the parts that both graph sources share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import sympy

from costproof.graph.graph import ITEM_BYTES
from costproof.ledger.metrics import FVCORE, METRICS, Metric
from costproof.ledger.node import CostNode, UnknownOp, exact_sum
from costproof.ledger.run import RunOptions
from costproof.ledger.symbols import parse, text

Progress = Callable[[str, int, int], None]
"""(what is being done, how much of it is done, of how much)."""

GRAPH_METRICS: Final[tuple[Metric, ...]] = tuple(METRICS)
"""What a graph can tell: everything."""


def graph_metrics(options: RunOptions) -> tuple[Metric, ...]:
    """:data:`GRAPH_METRICS`, and those of the convention that is counted beside."""
    return (*GRAPH_METRICS, *FVCORE) if options.convention else GRAPH_METRICS


MAX_EVIDENCE: Final = 12


def silent(what: str, done: int, total: int) -> None:
    """A progress callback that says nothing."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection: tracing makes objects by the hundred thousand, and all of them stay."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def renamer(prefix: Mapping[str, str]) -> Callable[[str], str | None]:
    """From paths inside a wrapper to paths from the model's root; ``None`` for scaffolding.

    Args:
        prefix: paths inside -> paths from the root; the longest prefix wins.
    """
    longest_first = sorted(prefix.items(), key=lambda kv: -len(kv[0]))

    def rename(path: str) -> str | None:
        for inner, outer in longest_first:
            if path == inner:
                return outer
            if path.startswith(inner + "."):
                rest = path[len(inner) + 1 :]
                return f"{outer}.{rest}" if outer else rest
        return None

    return rename


def parameter_nodes(
    parameters: Mapping[str, tuple[tuple[int, ...], str]],
    stages: Callable[[str], Iterable[str]],
    owners: Mapping[str, str],
    active: Mapping[str, int | None],
) -> list[CostNode]:
    """Stage-wide nodes: elements and bytes of the parameters that each module owns.

    Args:
        parameters: full name -> shape and dtype.
        stages: module path -> stages that the module works in.
        owners: module path -> class name.
        active: full name -> elements that one token passes, where that is not all of them.
    """
    passed: dict[str, int | None] = {}
    elements: dict[str, int] = {}
    size: dict[str, int] = {}
    for name, (shape, dtype) in parameters.items():
        module = name.rpartition(".")[0]
        count = 1
        for dim in shape:
            count *= dim
        elements[module] = elements.get(module, 0) + count
        size[module] = size.get(module, 0) + count * ITEM_BYTES[dtype]
        passed[module] = exact_sum((passed.get(module, 0), active.get(name, count)))
    return [
        CostNode(
            stage,
            "",
            module,
            "",
            {"params": elements[module], "params_active": passed[module], "weight_bytes": size[module]},
            owner=owners.get(module, ""),
        )
        for module in elements
        for stage in stages(module)
    ]


def with_owners(nodes: Iterable[CostNode], owners: Mapping[str, str]) -> tuple[CostNode, ...]:
    """The nodes with their modules' class names, which a structure-only trace does not have."""
    return tuple(node if node.owner else replace(node, owner=owners.get(node.module, "")) for node in nodes)


def merge_nodes(nodes: Iterable[CostNode]) -> tuple[CostNode, ...]:
    """One node per id; costs and expressions of equal ids are added, in order of first appearance."""
    groups: dict[str, list[CostNode]] = {}
    for node in nodes:
        groups.setdefault(node.id, []).append(node)
    return tuple(group[0] if len(group) == 1 else _sum(group) for group in groups.values())


def _sum(group: list[CostNode]) -> CostNode:
    costs: dict[Metric, int | None] = {}
    exprs: dict[Metric, str] = {}
    symbolic = {m for node in group for m in node.exprs}
    for metric in dict.fromkeys(m for node in group for m in (*node.costs, *node.exprs)):
        if metric in symbolic:
            parts = [_expr(node, metric) for node in group]
            if all(p is not None for p in parts):
                exprs[metric] = text(sympy.expand(sympy.Add(*parts)))
                if parse(exprs[metric]).is_Integer:
                    costs[metric] = int(exprs[metric])
                continue
        costs[metric] = exact_sum(node.cost(metric) for node in group)
    owner = next((n.owner for n in group if n.owner), "")
    return replace(
        group[0], costs=costs, exprs=exprs, owner=owner, evidence=evidence(n for g in group for n in g.evidence)
    )


def _expr(node: CostNode, metric: Metric) -> sympy.Expr | None:
    """The metric as an expression; 0 where the node does not have it, ``None`` where it is unknown."""
    if metric in node.exprs:
        return parse(node.exprs[metric])
    value = node.cost(metric)
    return None if value is None else sympy.Integer(value)


def evidence(labels: Iterable[str]) -> tuple[str, ...]:
    """At most a dozen labels, and how many more there are."""
    found = list(dict.fromkeys(labels))
    if len(found) <= MAX_EVIDENCE:
        return tuple(found)
    return (*found[:MAX_EVIDENCE], f"… and {len(found) - MAX_EVIDENCE} more")


def merge_unknown(found: Iterable[UnknownOp]) -> tuple[UnknownOp, ...]:
    """Unknown operators, each stage, module and operator once."""
    merged: dict[tuple[str, str, str, str], UnknownOp] = {}
    for op in found:
        key = (op.stage, op.module, op.op, op.why)
        if key not in merged:
            merged[key] = op
            continue
        old = merged[key]
        bound = None if op.bound_flops is None or old.bound_flops is None else old.bound_flops + op.bound_flops
        merged[key] = replace(old, count=old.count + op.count, bound_flops=bound)
    return tuple(merged.values())
