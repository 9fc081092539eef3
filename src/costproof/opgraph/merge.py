"""Sums over nodes: one node for each id, one entry for each unknown operator."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import sympy

from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, UnknownOp, exact_sum
from costproof.ledger.symbols import parse, text

MAX_EVIDENCE: Final = 12
_MORE: Final = re.compile(r"… and (\d+) more")


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
            parts = [expression(node, metric) for node in group]
            if all(p is not None for p in parts):
                whole = sympy.expand(sympy.Add(*parts))
                exprs[metric] = text(whole)
                if whole.is_Integer:
                    costs[metric] = int(whole)
                continue
        costs[metric] = exact_sum(node.cost(metric) for node in group)
    owner = next((n.owner for n in group if n.owner), "")
    return replace(
        group[0], costs=costs, exprs=exprs, owner=owner, evidence=evidence(n for g in group for n in g.evidence)
    )


def expression(node: CostNode, metric: Metric) -> sympy.Expr | None:
    """The metric as an expression; 0 where the node does not have it, ``None`` where it is unknown."""
    if metric in node.exprs:
        return parse(node.exprs[metric])
    value = node.cost(metric)
    return None if value is None else sympy.Integer(value)


def evidence(labels: Iterable[str]) -> tuple[str, ...]:
    """At most a dozen labels, and how many more there are, with those that a shortened list among them left out."""
    found, more = dict[str, None](), 0
    for label in labels:
        left = _MORE.fullmatch(label)
        if left:
            more += int(left[1])
        else:
            found[label] = None
    more += max(0, len(found) - MAX_EVIDENCE)
    return (*list(found)[:MAX_EVIDENCE], *([f"… and {more} more"] if more else []))


def merge_unknown(found: Iterable[UnknownOp]) -> tuple[UnknownOp, ...]:
    """Unknown operators, each stage, module and operator once."""
    merged: dict[tuple[str, str, str, str], UnknownOp] = {}
    for op in found:
        key = (op.stage, op.module, op.op, op.why)
        if key not in merged:
            merged[key] = op
            continue
        old = merged[key]
        bound = exact_sum((old.bound_flops, op.bound_flops))
        merged[key] = replace(old, count=old.count + op.count, bound_flops=bound)
    return tuple(merged.values())
