"""Operators that return their argument in another shape, order or type: no work of their own.

``reshape``, ``contiguous`` and ``clone`` may copy and casts do, but whether they do is a matter of the
kernels around them; in the fused-ideal count they are part of whoever reads them.
"""

from __future__ import annotations

from costproof.opgraph.graph import OpCall
from costproof.opgraph.rules.cost import OpCost
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
    """0: the argument in another shape or order.

    ``identity`` is TorchLens's word for a module that returns it; ``_remove_batch_dim`` repeats what ``torch.vmap``
    worked out without its batch: one that comes out of the batch is called ``vmap``.
    """
    return OpCost(role="alias")


@operator_rule(
    "to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "short", "char", "byte", "bool",
    "cfloat", "cpu", "cuda", "convert_element_type", "_autocast_to_full_precision",
    "_autocast_to_reduced_precision", "detach", "requires_grad", "data",
)  # fmt: skip
def cast(op: OpCall) -> OpCost:
    """0: the argument in another type or place; the cast fuses into a neighbour."""
    return OpCost(role="alias")


@operator_rule("broadcast_tensors")
def broadcast_tensors(op: OpCall) -> OpCost:
    """0: each output is a view of its own argument."""
    return OpCost(role="alias", aliases=op.tensors)
