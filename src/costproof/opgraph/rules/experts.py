"""Grouped products: many small matrix products with one call, as mixture-of-experts layers use them.

A loop over experts does the same products one matrix at a time: ``linear(rows, stack[e])`` for every expert e that
received rows. Seen as plain layers each would read a tensor of its own, the matrices read would depend on the data,
and nothing would tie them to the stack. So where numbers decide which rows meet which matrix the pick is called
``expert_matrix`` and reads a part of the stack, for the rows that meet it; the product is called ``expert_linear``,
and is a part of the grouped one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from costproof.opgraph.graph import Graph, OpCall, Size, Value
from costproof.opgraph.rules.cost import OpCost, PartialRead, Uncountable
from costproof.opgraph.rules.matmul import mac
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.operands import out_elements, tensor
from costproof.opgraph.rules.registry import UnknownCost, cost_of, graph_transform, operator_rule
from costproof.opgraph.rules.sizes import numel, prod, smaller, total

EXPERT_LINEAR: Final = "expert_linear"
EXPERT_MATRIX: Final = "expert_matrix"
_ROWS: Final = "rows"
"""Option of a pick: how many rows meet the matrix."""
_PRODUCTS: Final = frozenset({"linear", "matmul", "mm"})
_SEARCHES: Final = frozenset({"argwhere", "nonzero", "nonzero_numpy", "where"})
"""Give places of one tensor, and as many as the data wants; ``where`` of three tensors gives none."""
_SORTS: Final = frozenset({"argsort", "sort"})
_CHOOSING: Final = frozenset({"getitem", "index", "index_select"})
_JOINING: Final = frozenset({"cat", "stack", "hstack", "vstack"})


def matrices_read(stack: Value, rows: Size) -> PartialRead:
    """Reading a stack (E, ..) for ``rows`` rows touches at most min(E, rows) of its matrices."""
    experts = stack.shape[0]
    return PartialRead(stack, prod((smaller(experts, rows), *stack.shape[1:])), distinct=True, rows=rows)


@operator_rule("_grouped_mm", "_scaled_grouped_mm")
def grouped_mm(op: OpCall) -> OpCost:
    """2 * elements of the first operand * N: every row meets one group's matrix only.

    (M, K) x (G, K, N), rows grouped: 2*M*K*N. (G, M, K) x (G, K, N): 2*G*M*K*N. (M, K) x (K, N), K grouped:
    2*M*K*N. (G, M, K) x (K, N), columns grouped: 2*M*K*N.
    """
    a, b = tensor(op, "mat_a", 0), tensor(op, "mat_b", 1)
    ranks = (len(a.shape), len(b.shape))
    partial: tuple[PartialRead, ...] = ()
    if ranks == (2, 3):
        partial = (matrices_read(b, a.shape[0]),)
    elif ranks == (3, 2):
        partial = (matrices_read(a, b.shape[-1]),)
    elif ranks not in ((2, 2), (3, 3)):
        raise Uncountable(f"a grouped product of ranks {ranks[0]} and {ranks[1]}")
    rows = a.shape[-2:] if ranks == (3, 2) else a.shape
    return OpCost(flops=prod((mac(op), *rows, b.shape[-1])), role="matmul", partial=partial)


@operator_rule(EXPERT_LINEAR)
def expert_linear(op: OpCall) -> OpCost:
    """One group of a looped grouped product, (M, K) x (K, N): 2*M*K*N; the pick of the matrix has read it."""
    rows, _, *bias = op.tensors
    return OpCost(flops=prod((mac(op), out_elements(op), rows.shape[-1])), role="matmul", reads=(rows, *bias))


@operator_rule(EXPERT_MATRIX)
def expert_matrix(op: OpCall) -> OpCost:
    """0 FLOP: one matrix of a stack, read for the rows that meet it."""
    return OpCost(role="lookup", partial=(matrices_read(op.tensors[0], op.attrs[_ROWS]),), aliases=op.tensors)


@operator_rule("transformers.grouped_mm_fallback")
def grouped_mm_fallback(op: OpCall) -> OpCost:
    """A loop over the groups of (M, K) x (G, K, N): 2*M*K*N, as the fused kernel."""
    rows, stack = tensor(op, "input", 0), tensor(op, "weight", 1)
    read = (matrices_read(stack, rows.shape[0]),)
    return OpCost(flops=prod((mac(op), *rows.shape, stack.shape[-1])), role="matmul", partial=read)


@graph_transform
def looped(graph: Graph) -> Graph:
    """The graph with every product of rows and one matrix picked from a stack parameter named for what it is.

    A pick is an index of one integer into a parameter, or a view of one, of three dimensions (experts, .., ..). It is
    one of a loop over experts where the data decides how many rows it meets, and which matrix: a search found its
    index, or the code picks others of the stack for such rows too. If anything but a product reads what was picked, or
    a view of it, it stays as it is, as does a matrix that the code or a caller picks for all rows, or for some: that of
    an adapter, or of a task.
    """
    chosen = _chosen(graph)
    views: dict[str, str] = {}
    """A view of a parameter -> the parameter."""
    picks: dict[str, list[Size]] = {}
    """What was picked -> rows of each product that it is in."""
    picked: dict[str, str] = {}
    """A view of what was picked -> what was picked."""
    which: dict[str, tuple[str, str]] = {}
    """What was picked -> the parameter, and which of its matrices."""
    decided: set[str] = set()
    """Of what was picked, what meets rows that the data chose."""
    searched: set[str] = set()
    """Parameters of which a search picked a matrix."""
    for op in graph.ops:
        source = op.tensors[0] if op.tensors else None
        if source is not None and (source.origin == "param" or source.id in views):
            stack = views.get(source.id, source.id)
            if _picks(op):
                one = op.outputs[0].id
                picks[one], picked[one] = [], one
                which[one] = stack, op.tensors[1].id if len(op.tensors) > 1 else str(op.attrs)
                # An export has the number that a search gave as one of its own.
                if which[one][1] in chosen.places or (op.module, op.call) in chosen.read:
                    searched.add(stack)
            elif _role(op) == "alias":
                views.update((out.id, stack) for out in op.outputs)
        for place, value in enumerate(op.tensors):
            one = picked.get(value.id, "")
            if one not in picks:
                continue
            if canonical(op.name) in _PRODUCTS and place == 1:
                picks[one].append(numel(replace(op.tensors[0], shape=op.tensors[0].shape[:-1])))
                if op.tensors[0].id in chosen.parts:
                    decided.add(one)
            elif _role(op) == "alias":
                picked.update((out.id, one) for out in op.outputs)
            elif _role(op) != "free":
                del picks[one]
    met = Counter(stack for stack, _ in {which[one] for one in decided & picks.keys()})
    several = {stack for stack, matrices in met.items() if matrices > 1} | searched
    found = {one: total(rows) for one, rows in picks.items() if one in decided and which[one][0] in several}
    return replace(graph, ops=tuple(_named(op, found, picked) for op in graph.ops)) if found else graph


@dataclass(slots=True)
class _Chosen:
    """What the data chose, by ids."""

    places: set[str] = field(default_factory=set)
    """Integers that a search found, and what is computed of them."""
    read: set[tuple[str, int]] = field(default_factory=set)
    """Calls of modules whose code looked at such an integer."""
    order: set[str] = field(default_factory=set)
    """Integers of a sort, and what is computed of them."""
    sorted: set[str] = field(default_factory=set)
    """Rows in such an order, or parts of them put together again."""
    parts: set[str] = field(default_factory=set)
    """Rows at such places, or under a mask; a part of sorted rows; and what is computed of each row by itself."""


def _chosen(graph: Graph) -> _Chosen:
    """What the data chose: how many rows such a part has is not known beforehand."""
    found = _Chosen()
    for op in graph.ops:
        name, integers = canonical(op.name), [t for t in op.tensors if not t.floating]
        whole = {out.id for out in op.outputs if not out.floating}
        placed = any(t.id in found.places for t in integers)
        if placed and name == "item":
            found.read.add((op.module, op.call))
        if placed or (name in _SEARCHES and len(op.tensors) == 1):
            found.places |= whole
        elif name in _SORTS or any(t.id in found.order for t in integers):
            found.order |= whole
        rows = {out.id for out in op.outputs if out.floating}
        if name in _CHOOSING and integers:
            by = [t for t in op.tensors[1:] if not t.floating]
            if any(t.dtype == "bool" or t.id in found.places for t in by):
                found.parts |= rows
            elif any(t.id in found.order for t in by):
                found.sorted |= rows
        elif integers:
            continue  # What has integers beside the rows puts them back among all.
        elif any(t.id in found.parts for t in op.tensors):
            (found.sorted if name in _JOINING else found.parts).update(rows)
        elif any(t.id in found.sorted for t in op.tensors):
            (found.parts if _role(op) == "alias" and _fewer(op) else found.sorted).update(rows)
    return found


def _fewer(op: OpCall) -> bool:
    """Whether a view has less of its tensor's first dimension, and not by another shape of the same numbers."""
    source, shown = op.tensors[0], op.outputs[0]
    return bool(shown.shape) and shown.shape[0] != source.shape[0] and shown.shape[1:] == source.shape[1:]


def _named(op: OpCall, picks: Mapping[str, Size], picked: Mapping[str, str]) -> OpCall:
    """A pick, or a product with what was picked, by its name; any other operator as it is."""
    if op.outputs and op.outputs[0].id in picks:
        rows = picks[op.outputs[0].id]
        return replace(op, name=EXPERT_MATRIX, tensors=op.tensors[:1], attrs={_ROWS: rows}, names={})
    if len(op.tensors) > 1 and picked.get(op.tensors[1].id) in picks and canonical(op.name) in _PRODUCTS:
        return replace(op, name=EXPERT_LINEAR, names={})
    return op


def _picks(op: OpCall) -> bool:
    stack = op.tensors[0]
    if canonical(op.name) not in ("getitem", "select", "index") or len(op.outputs) != 1 or len(stack.shape) != 3:
        return False
    return op.outputs[0].shape == stack.shape[1:]


def _role(op: OpCall) -> str:
    cost = cost_of(op)
    return "" if isinstance(cost, UnknownCost) else cost.role
