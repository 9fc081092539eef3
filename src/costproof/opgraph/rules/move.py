"""Operators that write a new tensor without arithmetic: their bytes count, their FLOPs are 0."""

from __future__ import annotations

from costproof.opgraph.graph import OpCall
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.registry import operator_rule


@operator_rule(
    "pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d", "stack", "hstack", "vstack", "dstack", "block_diag",
    "roll", "flip", "fliplr", "flipud", "rot90", "repeat", "tile", "repeat_interleave", "tril", "triu", "where",
    "one_hot", "im2col", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "meshgrid",
    "cartesian_prod", "combinations", "diag", "diag_embed", "diagflat", "complex",
)  # fmt: skip
def move(op: OpCall) -> OpCost:
    """0 FLOP: elements are copied into a new tensor."""
    return OpCost(role="move")


@operator_rule("cat")
def cat(op: OpCall) -> OpCost:
    """0 FLOP: a copy; with nothing to join but empty tensors it is the one tensor itself."""
    filled = [t for t in op.tensors if 0 not in t.shape]
    if len(filled) == 1 and len(op.tensors) > 1:
        return OpCost(role="alias", aliases=(filled[0],) * len(op.outputs))
    return OpCost(role="move")


@operator_rule("copy")
def copy(op: OpCall) -> OpCost:
    """0 FLOP: the second tensor is written over the first, or over the view of another that the first is."""
    return OpCost(role="move", reads=op.tensors[1:], aliases=op.tensors[:1] * len(op.outputs))


@operator_rule("unfold")
def unfold(op: OpCall) -> OpCost:
    """``Tensor.unfold`` is a view; ``torch.nn.functional.unfold`` (with a kernel size) copies patches."""
    return OpCost(role="move" if "kernel_size" in op.attrs else "alias")
