"""Count the costs of look-ups, which read only the selected rows, and of writes at indices."""

from __future__ import annotations

from functools import reduce
from typing import Final

from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.cost import (
    OpCost,
    PartialRead,
    Uncountable,
    addition,
    attr,
    computes,
    is_complex,
    multiplication,
    out_elements,
    result,
    scaling,
    tensor,
)
from costproof.opgraph.rules.experts import matrices_read
from costproof.opgraph.rules.movement import copy
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import broadcast, numel, prod


def _table(op: OpCall) -> Value:
    """Return the table of an embedding call: the first argument in torch, the second in torch.nn.functional."""
    if "weight" in op.names:
        return op.names["weight"]
    return next((t for t in op.tensors if t.floating), op.tensors[0])


def _rows(table: Value, op: OpCall) -> PartialRead:
    """Return the read of a table for as many elements as the result has; rows looked up twice are read twice."""
    return PartialRead(table, out_elements(op), distinct=False)


@operator_rule("embedding")
def embedding(op: OpCall) -> OpCost:
    """Count 0 FLOPs; one row of the table is read per index."""
    return OpCost(role="lookup", partial=(_rows(_table(op), op),))


@operator_rule("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(op: OpCall) -> OpCost:
    """Count 1 FLOP per element looked up (add), 2 with per-sample weights: rows are looked up and reduced."""
    table = _table(op)
    indices = op.names.get("indices") or op.names.get("input") or next(t for t in op.tensors if not t.floating)
    looked_up = prod((numel(indices), table.shape[-1]))
    weighted = "per_sample_weights" in op.names
    read = PartialRead(table, looked_up, distinct=False)
    return OpCost(vector=prod((2 if weighted else 1, looked_up)), role="lookup", partial=(read,))


@operator_rule("index", "index_select", "gather", "take", "take_along_dim")
def index(op: OpCall) -> OpCost:
    """Count 0 FLOPs; as many elements are read as the result has, but each matrix of a stack at most once.

    A mask selects a number of elements that depends on its values, so the whole tensor counts as read.
    """
    source = tensor(op, "self", 0)
    if len(op.tensors) < 2 or any(t.dtype in ("bool", "uint8") for t in op.tensors[1:]):
        return OpCost(role="lookup")
    if len(source.shape) >= 3 and len(op.tensors) == 2 and not op.tensors[1].floating:
        rest = len(source.shape) - 1
        picked = result(op).shape
        if picked[len(picked) - rest :] == source.shape[1:]:
            return OpCost(role="lookup", partial=(matrices_read(source, numel(op.tensors[1])),))
    return OpCost(role="lookup", partial=(_rows(source, op),))


@operator_rule("getitem")
def getitem(op: OpCall) -> OpCost:
    """Count 0 FLOPs: a look-up if the index has tensors; a view if it has slices, numbers and ``None``."""
    return index(op) if len(op.tensors) > 1 or attr(op, "tensor_index") else OpCost(role="alias")


@operator_rule("masked_select", "nonzero", "argwhere", "nonzero_static")
def masked_select(op: OpCall) -> OpCost:
    """Count 0 FLOPs: elements are picked by a mask."""
    return OpCost(role="lookup")


_MULTIPLY: Final = ("prod", "multiply")
"""Values of the argument ``reduce`` with which a scatter multiplies."""


def _write_cost(op: OpCall, elements: Size, each: int) -> OpCost:
    """Return the cost of writing ``elements``, with ``each`` FLOPs per element if the result is floating point."""
    return OpCost(vector=prod((each, elements)) if computes(op) else 0, role="move")


@operator_rule("masked_scatter", "index_copy", "index_fill", "select_scatter", "slice_scatter", "diagonal_scatter",
               "as_strided_scatter", "masked_fill")  # fmt: skip
def write(op: OpCall) -> OpCost:
    """Count 0 FLOPs: elements overwrite others."""
    return OpCost(role="move")


@operator_rule("scatter", "scatter_reduce")
def scatter(op: OpCall) -> OpCost:
    """Count 0 FLOPs: elements overwrite others; with ``reduce`` 1 per index, complex 2, or 6 for a product.

    The source is read at as many elements as there are indices. The division of a mean is not counted separately.
    """
    how = attr(op, "reduce")
    if how is None:
        return OpCost(role="move")
    value = attr(op, "value", "src")
    real = value is not None and not isinstance(value, complex)
    each = multiplication(op, 1 if real else 2) if how in _MULTIPLY else addition(op)
    return _write_cost(op, numel(tensor(op, "index", 1)), each)


@operator_rule("setitem")
def setitem(op: OpCall) -> OpCost:
    """Count 0 FLOPs: elements overwrite others at index tensors or lists.

    With slices and numbers, a copy into a view.
    """
    key = attr(op, "key")
    listed = isinstance(key, list) and any(isinstance(part, list) for part in key)
    return write(op) if listed or not all(t.floating for t in op.tensors[1:]) else copy(op)


@operator_rule("scatter_add")
def scatter_add(op: OpCall) -> OpCost:
    """Count 1 FLOP per index (add), 2 if complex."""
    return _write_cost(op, numel(tensor(op, "index", 1)), addition(op))


@operator_rule("index_add")
def index_add(op: OpCall) -> OpCost:
    """Count 1 FLOP per element of the added tensor, 2 with a scale ``alpha`` other than 1; complex as in ``add``."""
    return _write_cost(op, numel(tensor(op, "source", 2)), addition(op) + scaling(op, attr(op, "alpha", default=1)))


@operator_rule("index_reduce")
def index_reduce(op: OpCall) -> OpCost:
    """Count 1 FLOP per element of the reduced tensor; the division of a mean is not counted separately."""
    if is_complex(op):
        raise Uncountable("complex arithmetic without a documented count")
    return _write_cost(op, numel(tensor(op, "source", 2)), 1)


@operator_rule("put")
def put(op: OpCall) -> OpCost:
    """Count 0 FLOPs; with ``accumulate`` 1 per index, 2 if complex."""
    added = attr(op, "accumulate", default=False)
    return _write_cost(op, numel(tensor(op, "index", 1)), addition(op)) if added else OpCost(role="move")


@operator_rule("fold", "col2im")
def fold(op: OpCall) -> OpCost:
    """Count 1 FLOP per element of the columns, which are added to the output where their windows lie; 2 if complex."""
    return _write_cost(op, numel(op.tensors[0]), addition(op))


@operator_rule("index_put")
def index_put(op: OpCall) -> OpCost:
    """Count 0 FLOPs; with ``accumulate`` 1 per element written, 2 if complex."""
    if not attr(op, "accumulate", default=False) or not computes(op):
        return OpCost(role="move")
    return _write_cost(op, _indexed_elements(op), addition(op))


def _indexed_elements(op: OpCall) -> Size:
    """Count the elements selected by index tensors, one tensor per indexed dimension.

    Dimensions are indexed from the first on; a ``None`` among the indices skips one. Values may broadcast.
    """
    table, *given = op.tensors
    values = op.names.get("values") or given[-1]
    indices = [t for t in given if not t.floating]
    masks = [i for i in indices if i.dtype in ("bool", "uint8")]
    there = attr(op, "indices", default=[True] * len(indices))
    rest, widths = list(table.shape), iter([len(i.shape) if i in masks else 1 for i in indices])
    at = 0
    for indexed in there:
        if indexed:
            del rest[at : at + next(widths)]
        else:
            at += 1
    if not masks:
        return prod((*reduce(broadcast, (i.shape for i in indices)), *rest))
    # Values with a row for each selected element give their number; a single row may broadcast.
    rows = there.index(True)
    if len(indices) == 1 and len(values.shape) == len(rest) + 1 and values.shape[rows] != 1:
        return prod((values.shape[rows], *rest))
    raise Uncountable("how many elements a mask selects depends on its values")
