"""Cost operators without arithmetic: views, casts, copies, factories and metadata, 0 FLOPs each.

Views and casts return their argument in another shape, order or type and are not work. ``reshape``, ``contiguous`` and
``clone`` may copy and casts do, but whether they do depends on the kernels around them; in the fused-ideal count they
are part of the reader. Copies write a new tensor, so their bytes count.
"""

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
from costproof.opgraph.rules.names import overwrites
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import broadcast, numel, prod


@operator_rule(
    "view", "view_as", "reshape", "reshape_as", "contiguous", "transpose", "t", "T", "mT", "H", "mH", "adjoint",
    "permute", "movedim", "expand", "expand_as", "broadcast_to", "slice", "select", "narrow", "chunk", "split",
    "split_with_sizes", "tensor_split", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "hsplit", "vsplit",
    "dsplit", "unbind", "squeeze", "unsqueeze", "flatten", "unflatten", "ravel", "diagonal", "as_strided",
    "atleast_1d", "atleast_2d", "atleast_3d", "numpy_T", "alias", "clone", "positive", "identity",
    "view_as_real", "view_as_complex", "real", "imag", "conj", "resolve_conj", "resolve_neg",
    "view_copy", "alias_copy", "expand_copy", "permute_copy", "slice_copy", "select_copy", "split_copy",
    "unsqueeze_copy", "squeeze_copy", "transpose_copy", "t_copy", "unbind_copy", "_remove_batch_dim",
)  # fmt: skip
def view(op: OpCall) -> OpCost:
    """Count 0: the argument in another shape or order.

    ``identity`` is TorchLens's name for a module that returns its argument. ``_remove_batch_dim`` repeats a result that
    ``torch.vmap`` computed without its batch; a result with the batch is called ``vmap``.
    """
    return OpCost(role="alias")


@operator_rule(
    "to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "short", "char", "byte", "bool",
    "cfloat", "cpu", "cuda", "convert_element_type", "_autocast_to_full_precision",
    "_autocast_to_reduced_precision", "detach", "requires_grad", "data",
)  # fmt: skip
def cast(op: OpCall) -> OpCost:
    """Count 0: the argument in another dtype or on another device; the cast fuses into a neighbor."""
    return OpCost(role="alias")


@operator_rule("broadcast_tensors")
def broadcast_tensors(op: OpCall) -> OpCost:
    """Count 0: each output is a view of its own argument."""
    return OpCost(role="alias", aliases=op.tensors)


@operator_rule(
    "pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d", "stack", "hstack", "vstack", "dstack", "block_diag",
    "roll", "flip", "fliplr", "flipud", "rot90", "repeat", "tile", "repeat_interleave", "tril", "triu", "where",
    "one_hot", "im2col", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "meshgrid",
    "cartesian_prod", "combinations", "diag", "diag_embed", "diagflat", "complex",
)  # fmt: skip
def move(op: OpCall) -> OpCost:
    """Count 0 FLOPs: elements are copied into a new tensor."""
    return OpCost(role="move")


@operator_rule("cat")
def cat(op: OpCall) -> OpCost:
    """Count 0 FLOPs: a copy; if all other tensors are empty, an alias of the one that is not."""
    filled = [t for t in op.tensors if 0 not in t.shape]
    if len(filled) == 1 and len(op.tensors) > 1:
        return OpCost(role="alias", aliases=(filled[0],) * len(op.outputs))
    return OpCost(role="move")


@operator_rule("copy")
def copy(op: OpCall) -> OpCost:
    """Count 0 FLOPs: the second tensor overwrites the first, which may be a view."""
    return OpCost(role="move", reads=op.tensors[1:], aliases=op.tensors[:1] * len(op.outputs))


@operator_rule("unfold")
def unfold(op: OpCall) -> OpCost:
    """Count 0: ``Tensor.unfold`` is a view; ``torch.nn.functional.unfold`` (with a kernel size) copies patches."""
    return OpCost(role="move" if "kernel_size" in op.attrs else "alias")


@operator_rule(
    "arange", "range", "linspace", "logspace", "eye", "zeros", "ones", "full", "empty", "empty_strided",
    "empty_permuted", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full",
    "new_empty", "new_empty_strided", "new_tensor", "tensor", "as_tensor", "scalar_tensor", "asarray",
    "from_numpy", "lift", "lift_fresh", "lift_fresh_copy", "tril_indices", "triu_indices",
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "uniform", "random",
    "exponential", "efficientzerotensor", "_efficientzerotensor",
)  # fmt: skip
def factory(op: OpCall) -> OpCost:
    """Count 0: a tensor is created without reading one; ``*_like`` uses only the shape."""
    return OpCost(role="factory", reads=())


@operator_rule("fill", "zero")
def fill(op: OpCall) -> OpCost:
    """Count 0: a tensor is created without reading one; in place it overwrites its argument, as a copy does."""
    return OpCost(role="factory", reads=(), aliases=op.tensors[:1] * len(op.outputs) if overwrites(op) else None)


@operator_rule(
    "sym_size", "sym_numel", "sym_stride", "sym_storage_offset", "size", "dim", "ndimension", "numel", "nelement",
    "stride", "storage_offset", "is_contiguous", "is_floating_point", "is_complex", "is_nonzero", "is_same_size",
    "element_size", "get_device", "data_ptr", "shape", "result_type", "sym_constrain_range",
    "sym_constrain_range_for_size", "_assert_async", "_functional_assert_async", "_assert_scalar",
    "_assert_tensor_metadata", "_check", "item", "_local_scalar_dense", "tolist", "numpy", "record_stream",
    "is_pinned", "pin_memory", "manual_seed", "_set_grad_enabled", "_log_api_usage_once",
)  # fmt: skip
def free(op: OpCall) -> OpCost:
    """Count 0: metadata, assertions, and values returned to Python."""
    return OpCost(role="free", reads=())


@operator_rule("vmap")
def vmap(op: OpCall) -> OpCost:
    """Count 0 for indices and masks; other operators inside ``torch.vmap`` are unknown."""
    if any(v.floating for v in op.outputs):
        raise Uncountable("operators that torch.vmap runs over a batch are not counted")
    return OpCost(role="move")


@operator_rule("none")
def unseen(op: OpCall) -> OpCost:
    """Count 0 for indices and masks; other tensors whose operator TorchLens did not see are unknown."""
    if any(v.floating for v in op.outputs):
        raise Uncountable("TorchLens did not see which operator made this tensor")
    return OpCost(role="free", reads=())


def _table(op: OpCall) -> Value:
    """Return the table of an embedding: the first argument of torch, the second of torch.nn.functional."""
    if "weight" in op.names:
        return op.names["weight"]
    return next((t for t in op.tensors if t.floating), op.tensors[0])


def _rows(table: Value, op: OpCall) -> PartialRead:
    """Return the partial read of a table: as many elements as the result has; a row picked twice is read twice."""
    return PartialRead(table, out_elements(op), distinct=False)


@operator_rule("embedding")
def embedding(op: OpCall) -> OpCost:
    """Count 0 FLOPs; one row of the table is read per index."""
    return OpCost(role="lookup", partial=(_rows(_table(op), op),))


@operator_rule("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(op: OpCall) -> OpCost:
    """Count 1 per element looked up (add), 2 with per-sample weights: rows are looked up and reduced."""
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
    """Count 0 FLOPs: a look-up with index tensors; a view with slices, numbers and ``None``."""
    return index(op) if len(op.tensors) > 1 or attr(op, "tensor_index") else OpCost(role="alias")


@operator_rule("masked_select", "nonzero", "argwhere", "nonzero_static")
def masked_select(op: OpCall) -> OpCost:
    """Count 0 FLOPs: elements are picked by a mask."""
    return OpCost(role="lookup")


_MULTIPLY: Final = ("prod", "multiply")
"""Values of the argument ``reduce`` with which a scatter multiplies."""


def _write_cost(op: OpCall, elements: Size, each: int) -> OpCost:
    """Return the cost of writing ``elements``, with ``each`` FLOPs for each if the result is floating point."""
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
    """Count 1 per index (add), 2 if complex."""
    return _write_cost(op, numel(tensor(op, "index", 1)), addition(op))


@operator_rule("index_add")
def index_add(op: OpCall) -> OpCost:
    """Count 1 per element of the source (add), 2 with a scale ``alpha`` other than 1; complex as in ``add``."""
    return _write_cost(op, numel(tensor(op, "source", 2)), addition(op) + scaling(op, attr(op, "alpha", default=1)))


@operator_rule("index_reduce")
def index_reduce(op: OpCall) -> OpCost:
    """Count 1 per element of the source; the division of a mean is not counted separately."""
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
    """Count 1 per element of the columns, which are added at their windows; 2 if complex."""
    return _write_cost(op, numel(op.tensors[0]), addition(op))


@operator_rule("index_put")
def index_put(op: OpCall) -> OpCost:
    """Count 0 FLOPs; with ``accumulate`` 1 per element written, 2 if complex."""
    if not attr(op, "accumulate", default=False) or not computes(op):
        return OpCost(role="move")
    return _write_cost(op, _indexed_elements(op), addition(op))


def _indexed_elements(op: OpCall) -> Size:
    """Count the elements at the indices, which are given as one tensor per indexed dimension.

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
