"""Count 0 FLOPs for operators without arithmetic: views, casts, copies, factories and metadata.

Views and casts return their argument in another shape, order or type and are not work. ``reshape``, ``contiguous`` and
``clone`` may copy and casts do, but whether they do depends on the kernels around them; in the fused-ideal count they
are part of the reader. Copies write a new tensor, so their bytes count.
"""

from __future__ import annotations

from costproof.opgraph.graph import OpCall
from costproof.opgraph.rules.cost import OpCost, Uncountable
from costproof.opgraph.rules.names import overwrites
from costproof.opgraph.rules.registry import operator_rule


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
    """Count 0 FLOPs; the argument is returned in another shape or order.

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
    """Count 0 FLOPs; the argument in another dtype or on another device is computed by the operator that reads it."""
    return OpCost(role="alias")


@operator_rule("broadcast_tensors")
def broadcast_tensors(op: OpCall) -> OpCost:
    """Count 0 FLOPs; each output is a view of the argument at the same position."""
    return OpCost(role="alias", aliases=op.tensors)


@operator_rule(
    "pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d", "stack", "hstack", "vstack", "dstack", "block_diag",
    "roll", "flip", "fliplr", "flipud", "rot90", "repeat", "tile", "repeat_interleave", "tril", "triu", "where",
    "one_hot", "im2col", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "meshgrid",
    "cartesian_prod", "combinations", "diag", "diag_embed", "diagflat", "complex",
    "_jagged_to_padded_dense_forward", "_padded_dense_to_jagged_forward",
)  # fmt: skip
def move(op: OpCall) -> OpCost:
    """Count 0 FLOPs: elements are copied into a new tensor."""
    return OpCost(role="move")


@operator_rule("cat")
def cat(op: OpCall) -> OpCost:
    """Count 0 FLOPs for a copy; if all tensors but one are empty, the result is that tensor."""
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
    """Count 0 FLOPs; ``Tensor.unfold`` is a view, ``torch.nn.functional.unfold`` (with a kernel size) copies."""
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
    """Count 0 FLOPs; a tensor is created without reading one; ``*_like`` uses only the shape."""
    return OpCost(role="factory", reads=())


@operator_rule("fill", "zero")
def fill(op: OpCall) -> OpCost:
    """Count 0 FLOPs; a tensor is created without reading one, or overwritten by a number in place."""
    return OpCost(role="factory", reads=(), aliases=op.tensors[:1] * len(op.outputs) if overwrites(op) else None)


@operator_rule(
    "sym_size", "sym_numel", "sym_stride", "sym_storage_offset", "sym_is_contiguous", "size", "dim", "ndimension",
    "numel", "nelement", "stride", "storage_offset", "is_contiguous", "is_floating_point", "is_complex", "is_nonzero",
    "is_same_size", "element_size", "get_device", "data_ptr", "shape", "result_type", "sym_constrain_range",
    "sym_constrain_range_for_size", "_assert_async", "_functional_assert_async", "_assert_scalar",
    "_assert_tensor_metadata", "_check", "item", "_local_scalar_dense", "tolist", "numpy", "record_stream",
    "is_pinned", "pin_memory", "manual_seed", "_set_grad_enabled", "_log_api_usage_once",
)  # fmt: skip
def free(op: OpCall) -> OpCost:
    """Count 0 FLOPs for metadata, assertions, and values returned to Python."""
    return OpCost(role="free", reads=())


@operator_rule("vmap")
def vmap(op: OpCall) -> OpCost:
    """Count 0 FLOPs for indices and masks; other operators inside ``torch.vmap`` are unknown."""
    if any(v.floating for v in op.outputs):
        raise Uncountable("operators that torch.vmap runs over a batch are not counted")
    return OpCost(role="move")


@operator_rule("none")
def unseen(op: OpCall) -> OpCost:
    """Count 0 FLOPs for indices and masks; other tensors whose operator TorchLens did not see are unknown."""
    if any(v.floating for v in op.outputs):
        raise Uncountable("TorchLens did not see which operator made this tensor")
    return OpCost(role="free", reads=())
