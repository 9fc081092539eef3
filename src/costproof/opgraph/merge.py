"""Add cost nodes: those of equal id, those of all experts of a layer, and those of decode steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import sympy

from costproof.algebra.series import STEPS, sum_over_steps
from costproof.algebra.symbols import parse, text
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.metrics import FLOOR, UNFUSED, Metric
from costproof.ledger.node import CostNode, UnknownOp, exact_sum

MAX_EVIDENCE: Final = 12
_MORE: Final = re.compile(r"… and (\d+) more")


def merge_nodes(nodes: Iterable[CostNode]) -> tuple[CostNode, ...]:
    """Merge nodes of equal id, in order of first appearance; their costs and expressions are added."""
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
    """Return a metric as an expression; 0 if the node lacks it, ``None`` if it is unknown."""
    if metric in node.exprs:
        return parse(node.exprs[metric])
    value = node.cost(metric)
    return None if value is None else sympy.Integer(value)


def evidence(labels: Iterable[str]) -> tuple[str, ...]:
    """Return at most :data:`MAX_EVIDENCE` labels, followed by a text with the number of the others.

    The number includes labels that lists among the arguments already left out.
    """
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
    """Merge the unknown operators to one entry per stage, module and operator."""
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


Groups = Mapping[str, tuple[int, ...]]
"""Number of rows (tokens) that each expert receives in the run, by path of the module that holds the experts."""
READING: Final[tuple[Metric, ...]] = ("weight_read_bytes", UNFUSED)
"""Metrics that include the bytes of weights read."""


def group_costs(nodes: Iterable[CostNode], groups: Groups) -> tuple[CostNode, ...]:
    """Move the costs of expert modules to the module that holds them; the number of their calls is left out.

    A mixture with one module per expert runs the experts that received tokens. The cost of each depends on the router;
    the cost of all together does not, so it is attributed to the container, where a formula can give it. The callgraph
    has the calls of each expert.

    Weights read count min(E, rows) of E experts, as for every kernel of experts (docs/conventions.md). The trace has
    only the experts that rows reached, so their bytes are scaled up; experts are alike, and if the result is not an
    integer, the number is unknown. The floor of the stage grows by the same bytes.
    """
    found, inside = _split(nodes, groups)
    unseen: dict[tuple[str, str], list[int | None]] = {}
    for node in merge_nodes(replace(n, costs={m: v for m, v in n.costs.items() if m != "calls"}) for n in inside):
        read = node.cost("weight_read_bytes")
        if read:
            rows = groups[node.module]
            bound, rest = divmod(read * min(len(rows), sum(rows)), sum(1 for r in rows if r))
            more = None if rest else bound - read
            unseen.setdefault((node.stage, node.invocation), []).append(more)
            node = _with_more(node, READING, [more])
        if node.costs:
            found.append(node)
    return tuple(
        _with_more(n, (FLOOR,), unseen.get((n.stage, n.invocation), ())) if n.module == "" else n for n in found
    )


def group_parameters(nodes: Iterable[CostNode], groups: Groups, positions: int) -> tuple[CostNode, ...]:
    """Move the parameters of expert modules to the module that holds them.

    Of the parameters of E experts one token passes rows / (positions E): as many experts as rows per position.

    Args:
        positions: number of tokens that passed the router.
    """
    found, inside = _split(nodes, groups)
    for node in merge_nodes(inside):
        rows = groups[node.module]
        held = node.cost("params")
        share, rest = divmod((held or 0) * sum(rows), positions * len(rows))
        active = None if rest or held is None else share
        found.append(replace(node, costs={**node.costs, "params_active": active}))
    return tuple(found)


def _with_more(node: CostNode, metrics: Iterable[Metric], more: Iterable[int | None]) -> CostNode:
    """Return the node with all amounts in ``more`` added to each of these metrics."""
    added = {m: exact_sum((node.cost(m), *more)) for m in metrics if m in node.costs}
    return replace(node, costs=node.costs | added)


def _split(nodes: Iterable[CostNode], groups: Groups) -> tuple[list[CostNode], list[CostNode]]:
    """Split nodes into those outside of all expert groups and those inside one, which get the group as their module."""
    found: list[CostNode] = []
    inside: list[CostNode] = []
    for node in nodes:
        group = next((g for g in groups if node.module.startswith(g + ".")), None)
        if group is None:
            found.append(node)
        else:
            inside.append(replace(node, module=group, owner="experts"))
    return found, inside


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Cost nodes of a traced decode step, with the number of cached tokens before the step."""

    context: int
    """Number of cached tokens before the step."""
    nodes: tuple[CostNode, ...]
    tables: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Bytes of the parameters in which the step looks up rows, by name; see
    :func:`~costproof.opgraph.reuse.partly_read`.
    """


def sum_traced_steps(steps: Sequence[DecodeStep], count: int) -> tuple[list[CostNode], list[str]]:
    """Extrapolate the costs of ``count`` decode steps from the first, a middle and the last; return them and notes.

    Up to two steps are all traced. With more, a cost f that is linear over the traced steps sums to count * (f_first +
    f_last) / 2, and one of several linear pieces piece by piece, if a piece begins one step behind the one before and
    has a third step between its ends. Any other is unknown and gets a note. The floor is piecewise linear where more
    rows of a table are looked up than it has: then the rows and the rest are linear separately.
    """
    if not steps:
        return [], []
    by_id: list[dict[str, CostNode]] = [{n.id: n for n in step.nodes} for step in steps]
    at = [step.context - steps[0].context for step in steps]
    result: list[CostNode] = []
    notes: list[str] = []
    for node_id in dict.fromkeys(i for nodes in by_id for i in nodes):
        present = [nodes.get(node_id) for nodes in by_id]
        node = next(n for n in present if n is not None)
        costs: dict[Metric, int | None] = {}
        for metric in dict.fromkeys(m for n in present if n is not None for m in n.costs):
            values = [0 if n is None else n.cost(metric) for n in present]
            costs[metric] = _line_sum(values, at, count)
            if costs[metric] is None and metric == FLOOR:
                costs[metric] = _floor_sum(values, [step.tables for step in steps], at, count)
            if costs[metric] is None and None not in values:
                notes.append(f"{node_id}: {metric} of the traced decode steps is not a straight line: {values}")
        result.append(replace(node, costs=costs, exprs={}))
    return result, notes


class NoClosedSum(Incomplete):
    """Raised if a cost of a decode step has no closed sum over the steps; it gives the cost."""

    def in_deeper_model(self) -> NoClosedSum:
        """Return the error of a model with more layers: it has the same cost in a layer, and another one outside."""
        return self if _IN_LAYER.search(self.where or "") else NoClosedSum(self.what, where=self.where)


_IN_LAYER: Final = re.compile(r"[./]\d+(?=[./:]|$)")


def sum_all_steps(node: CostNode) -> CostNode:
    """Return the costs of N decode steps, summed from the formula of the step at context P.

    Raises:
        NoClosedSum: a cost has no closed sum, for example where a table of positions is cut off at its end.
    """
    costs: dict[Metric, int | None] = {}
    exprs: dict[Metric, str] = {}
    for metric in dict.fromkeys((*node.costs, *node.exprs)):
        one = expression(node, metric)
        if one is None:
            costs[metric] = None
            continue
        try:
            exprs[metric] = text(sum_over_steps(one) if one.free_symbols else one * STEPS)
        except BadInput as error:
            raise NoClosedSum(error.what, where=f"{metric} of {node.id}", got=text(one)) from error
    return replace(node, costs=costs, exprs=exprs)


def _line_sum(values: Sequence[int | None], at: Sequence[int], count: int) -> int | None:
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    if len(known) == count:
        return sum(known)
    if at[-1] != count - 1:
        return None
    doubled, first = 0, 0
    while first < len(known):  # the longest piece from here on
        end = first + 1
        while end < len(known) and _is_straight(known[first : end + 1], at[first : end + 1]):
            end += 1
        length = at[end - 1] - at[first] + 1
        apart = end < len(known) and at[end] - at[end - 1] > 1
        few = end - first < min(length, 3)
        if apart or few:
            return None
        doubled += length * (known[first] + known[end - 1])
        first = end
    return doubled // 2 if doubled % 2 == 0 else None


def _is_straight(values: Sequence[int], at: Sequence[int]) -> bool:
    """Return whether values are on a line over their places."""
    rise, run = values[-1] - values[0], at[-1] - at[0]
    return all((v - values[0]) * run == rise * (x - at[0]) for v, x in zip(values, at, strict=True))


def _floor_sum(
    values: Sequence[int | None], tables: Sequence[Mapping[str, tuple[int, int]]], at: Sequence[int], count: int
) -> int | None:
    """Add up ``floor_bytes`` over decode steps if looked-up rows count at most once per table."""
    whole = {name: size for found in tables for name, (_, size) in found.items()}
    rows = {name: [found.get(name, (size, size))[0] for found in tables] for name, size in whole.items()}
    once = [sum(min(size, rows[name][i]) for name, size in whole.items()) for i in range(len(at))]
    rest = _line_sum([None if v is None else v - o for v, o in zip(values, once, strict=True)], at, count)
    looked_up = [_full_sum(rows[name], size, at, count) for name, size in whole.items()]
    return exact_sum((rest, *looked_up))


def _full_sum(values: Sequence[int], most: int, at: Sequence[int], count: int) -> int | None:
    """Add up ``count`` values of a linear sequence, each capped at ``most``."""
    first, last, length = values[0], values[-1], at[-1]
    step, odd = divmod(last - first, length)
    if odd or step < 0 or any(v != first + step * x for v, x in zip(values, at, strict=True)):
        return None
    if step == 0:
        return count * min(first, most)
    below = min(count, max(0, (most - first) // step + 1))
    return below * first + step * (below * (below - 1) // 2) + (count - below) * most
