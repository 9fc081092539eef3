"""Look-ups: rows picked by index. No FLOPs; only the rows that are picked are read from a parameter."""

from __future__ import annotations

from costproof.graph.graph import OpCall, Value
from costproof.graph.rules.cost import OpCost, PartialRead
from costproof.graph.rules.experts import matrices_read
from costproof.graph.rules.move import copy
from costproof.graph.rules.operands import attr, computes, optional, out_elements, result, tensor
from costproof.graph.rules.registry import operator_rule
from costproof.graph.rules.sizes import numel, prod


def _table(op: OpCall) -> Value:
    """The table of an embedding: torch has it first, torch.nn.functional second."""
    if "weight" in op.names:
        return op.names["weight"]
    return next((t for t in op.tensors if t.floating), op.tensors[0])


def _rows(table: Value, op: OpCall) -> PartialRead:
    """As many elements as the result has, rows that are picked twice read twice."""
    return PartialRead(table, out_elements(op), distinct=False)


@operator_rule("embedding")
def embedding(op: OpCall) -> OpCost:
    """0 FLOP; reads one row of the table per index."""
    return OpCost(role="lookup", partial=(_rows(_table(op), op),))


@operator_rule("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(op: OpCall) -> OpCost:
    """Rows are looked up and reduced: 1 per element looked up, 2 with per-sample weights."""
    table = _table(op)
    indices = op.names.get("indices") or op.names.get("input") or next(t for t in op.tensors if not t.floating)
    looked_up = prod((numel(indices), table.shape[-1]))
    weighted = "per_sample_weights" in op.names
    read = PartialRead(table, looked_up, distinct=False)
    return OpCost(vector=prod((2 if weighted else 1, looked_up)), role="lookup", partial=(read,))


@operator_rule("index", "index_select", "gather", "take", "take_along_dim")
def index(op: OpCall) -> OpCost:
    """0 FLOP; reads as many elements as the result has; of a stack of matrices each one at most once."""
    source = tensor(op, "self", 0)
    if len(op.tensors) < 2:
        return OpCost(role="lookup")
    if len(source.shape) >= 3 and len(op.tensors) == 2 and not op.tensors[1].floating:
        rest = len(source.shape) - 1
        picked = result(op).shape
        if picked[len(picked) - rest :] == source.shape[1:]:
            return OpCost(role="lookup", partial=(matrices_read(source, numel(op.tensors[1])),))
    return OpCost(role="lookup", partial=(_rows(source, op),))


@operator_rule("getitem")
def getitem(op: OpCall) -> OpCost:
    """With index tensors a look-up; with slices, numbers and ``None`` a view."""
    return index(op) if len(op.tensors) > 1 or attr(op, "tensor_index") else OpCost(role="alias")


@operator_rule("masked_select", "nonzero", "argwhere", "nonzero_static")
def masked_select(op: OpCall) -> OpCost:
    """0 FLOP: elements are picked."""
    return OpCost(role="lookup")


@operator_rule("scatter", "masked_scatter", "index_copy", "index_fill", "select_scatter", "slice_scatter",
               "diagonal_scatter", "as_strided_scatter", "put", "masked_fill")  # fmt: skip
def scatter(op: OpCall) -> OpCost:
    """0 FLOP: elements are written in place of others; with a ``reduce``, 1 per element of the source."""
    if attr(op, "reduce") is not None:
        return scatter_add(op)
    return OpCost(role="move")


@operator_rule("setitem")
def setitem(op: OpCall) -> OpCost:
    """With index tensors or lists elements are written in place of others; with slices and numbers a copy in a view."""
    key = attr(op, "key")
    listed = isinstance(key, list) and any(isinstance(part, list) for part in key)
    return scatter(op) if listed or not all(t.floating for t in op.tensors[1:]) else copy(op)


@operator_rule("scatter_add", "scatter_reduce", "index_add", "index_reduce")
def scatter_add(op: OpCall) -> OpCost:
    """1 per element of the source that is added in."""
    source = op.names.get("source") or optional(op, "src", 2) or op.tensors[-1]
    return OpCost(vector=numel(source) if computes(op) else 0, role="move")


@operator_rule("fold", "col2im")
def fold(op: OpCall) -> OpCost:
    """1 per element of the columns, each of which is added where its window lies."""
    return OpCost(vector=numel(op.tensors[0]) if computes(op) else 0, role="move")


@operator_rule("index_put")
def index_put(op: OpCall) -> OpCost:
    """0 FLOP; 1 per value where ``accumulate`` is set."""
    if not attr(op, "accumulate", default=False) or not computes(op):
        return OpCost(role="move")
    return OpCost(vector=numel(op.names.get("values") or op.tensors[-1]), role="move")
