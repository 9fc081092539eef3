"""Count the costs of grouped products (many small matrix products in one call) and of equal loops over experts.

A loop over experts computes ``linear(rows, stack[e])`` for every expert e that received rows. Counted as plain layers,
each product would read its own tensor, and the matrices that are read would depend on the data. Therefore, where data
decides which rows meet which matrix, the transform :func:`looped` renames the indexing of the stack to
``expert_matrix``, which reads a part of the stack, and the product to ``expert_linear``, a part of the grouped product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from costproof.opgraph.graph import Graph, OpCall, Size, Value
from costproof.opgraph.rules.cost import OpCost, PartialRead, Uncountable, out_elements, tensor
from costproof.opgraph.rules.matmul import mac
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.registry import UnknownCost, cost_of, graph_transform, operator_rule
from costproof.opgraph.rules.sizes import numel, prod, smaller, total

EXPERT_LINEAR: Final = "expert_linear"
EXPERT_MATRIX: Final = "expert_matrix"
_ROWS: Final = "rows"
"""Option of the operator ``expert_matrix``: number of rows to be multiplied by an expert's matrix."""
_PRODUCTS: Final = frozenset({"linear", "matmul", "mm"})
_SEARCHES: Final = frozenset({"argwhere", "nonzero", "nonzero_numpy", "where"})
"""Operators that return the indices of a tensor's nonzero elements; ``where`` only with a single tensor."""
_SORTS: Final = frozenset({"argsort", "sort"})
_INDEXING: Final = frozenset({"getitem", "index", "index_select"})
_JOINING: Final = frozenset({"cat", "stack", "hstack", "vstack"})


def matrices_read(stack: Value, rows: Size) -> PartialRead:
    """Return the partial read of a matrix stack (E, ..) by ``rows`` rows, which reach at most min(E, rows) matrices."""
    experts = stack.shape[0]
    return PartialRead(stack, prod((smaller(experts, rows), *stack.shape[1:])), distinct=True, rows=rows)


@operator_rule("_grouped_mm", "_scaled_grouped_mm")
def grouped_mm(op: OpCall) -> OpCost:
    """Count 2 * elements of the first operand * N FLOPs: every row meets the matrix of only one group.

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
    """Count 2*M*K*N FLOPs for one group (M, K) x (K, N) of a loop over experts; ``expert_matrix`` reads the matrix."""
    rows, _, *bias = op.tensors
    return OpCost(flops=prod((mac(op), out_elements(op), rows.shape[-1])), role="matmul", reads=(rows, *bias))


@operator_rule(EXPERT_MATRIX)
def expert_matrix(op: OpCall) -> OpCost:
    """Count 0 FLOPs; the matrix of one expert is read for the rows that it multiplies."""
    return OpCost(role="lookup", partial=(matrices_read(op.tensors[0], op.attrs[_ROWS]),), aliases=op.tensors)


@operator_rule("transformers.grouped_mm_fallback")
def grouped_mm_fallback(op: OpCall) -> OpCost:
    """Count 2*M*K*N FLOPs for a loop over the groups of (M, K) x (G, K, N), as for the fused kernel."""
    rows, stack = tensor(op, "input", 0), tensor(op, "weight", 1)
    read = (matrices_read(stack, rows.shape[0]),)
    return OpCost(flops=prod((mac(op), *rows.shape, stack.shape[-1])), role="matmul", partial=read)


@graph_transform
def looped(graph: Graph) -> Graph:
    """Rename matrix selections and products in loops over experts to ``expert_matrix`` and ``expert_linear``.

    A pick indexes a parameter of three dimensions (experts, .., ..), or a view of one, with one integer. It belongs to
    a loop over experts if data decides how many rows it multiplies and which matrix is picked: its index was found by a
    search, or the code picks other matrices of the stack for rows chosen by data too. A pick is left unchanged if
    anything but a product reads it or a view of it, or if the code or a caller picks the matrix for all rows or for
    some (the matrix of an adapter or of a task).
    """
    chosen = _data_dependent(graph)
    views: dict[str, str] = {}
    """Parameter that a view was made from, by id of the view."""
    picks: dict[str, list[Size]] = {}
    """Numbers of rows of the products with a selected matrix, by id of the matrix."""
    picked: dict[str, str] = {}
    """Selected matrix that a view was made from, by id of the view."""
    which: dict[str, tuple[str, str]] = {}
    """Parameter and index that a matrix was selected by, by id of the matrix."""
    decided: set[str] = set()
    """Selected matrices that are multiplied by rows chosen by data."""
    searched: set[str] = set()
    """Parameters of which a search selected a matrix."""
    for op in graph.ops:
        source = op.tensors[0] if op.tensors else None
        if source is not None and (source.origin == "param" or source.id in views):
            stack = views.get(source.id, source.id)
            if _picks(op):
                one = op.outputs[0].id
                picks[one], picked[one] = [], one
                which[one] = stack, op.tensors[1].id if len(op.tensors) > 1 else str(op.attrs)
                # In an export the index that a search found is a constant.
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
    return replace(graph, ops=tuple(_renamed(op, found, picked) for op in graph.ops)) if found else graph


@dataclass(slots=True)
class _DataDependent:
    """Ids of tensors whose values or number of rows depend on data."""

    places: set[str] = field(default_factory=set)
    """Ids of indices that a search (``nonzero``, ``where``) found, and of values computed from them."""
    read: set[tuple[str, int]] = field(default_factory=set)
    """(module, call number) of calls whose Python code read one of these indices."""
    order: set[str] = field(default_factory=set)
    """Ids of indices that a sort returned, and of values computed from them."""
    sorted: set[str] = field(default_factory=set)
    """Ids of tensors with rows in a sorted order, or with joined parts of such rows."""
    parts: set[str] = field(default_factory=set)
    """Ids of rows that a search or mask selected, of parts of sorted rows, and of results computed row by row."""


def _data_dependent(graph: Graph) -> _DataDependent:
    """Find the tensors whose number of rows depends on data."""
    found = _DataDependent()
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
        if name in _INDEXING and integers:
            by = [t for t in op.tensors[1:] if not t.floating]
            if any(t.dtype == "bool" or t.id in found.places for t in by):
                found.parts |= rows
            elif any(t.id in found.order for t in by):
                found.sorted |= rows
        elif integers:
            continue  # an operator with rows and integers scatters the rows back among all
        elif any(t.id in found.parts for t in op.tensors):
            (found.sorted if name in _JOINING else found.parts).update(rows)
        elif any(t.id in found.sorted for t in op.tensors):
            (found.parts if _role(op) == "alias" and _drops_rows(op) else found.sorted).update(rows)
    return found


def _drops_rows(op: OpCall) -> bool:
    """Return whether a view drops rows of dimension 0, as opposed to a reshape."""
    source, shown = op.tensors[0], op.outputs[0]
    return bool(shown.shape) and shown.shape[0] != source.shape[0] and shown.shape[1:] == source.shape[1:]


def _renamed(op: OpCall, picks: Mapping[str, Size], picked: Mapping[str, str]) -> OpCall:
    """Rename a call that selects the matrix of one expert from a stack, or multiplies rows by such a matrix.

    The rule of the new name counts the call for all experts.
    """
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
