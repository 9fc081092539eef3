"""Head dimensions that are padded for a kernel, seen as what they are.

FlashAttention's package pads heads with zeros to a multiple of 8, and transformers pads values to the width
of the queries, before the operator is called. Columns of zeros add nothing to a product: the work is that of
the true head dimension, as it is for every other implementation. So attention here reads what was padded.
What the kernel spends on zeros is a matter of its tiles, as the masked half of a causal score matrix is.
"""

from __future__ import annotations

from dataclasses import replace

from costproof.opgraph.graph import Graph, OpCall, Value
from costproof.opgraph.rules.flash import is_flash
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.registry import graph_transform


@graph_transform
def unpadded(graph: Graph) -> Graph:
    """The graph with every FlashAttention on heads as wide as the model has them, in its arguments and its result."""
    inner: dict[str, Value] = {}
    """What was padded, by the id of the padded tensor."""
    narrow: dict[str, Value] = {}
    """Results of attention on padded heads, without the columns of zeros."""
    ops: list[OpCall] = []
    for op in graph.ops:
        source = _padded(op)
        if source is not None:
            inner[op.outputs[0].id] = inner.get(source.id, source)
        elif inner and is_flash(op.name):
            op = _reading(op, inner)
            result = op.outputs[0]
            width = op.tensors[2].shape[-1]
            if result.shape[-1] != width:
                narrow[result.id] = replace(result, shape=(*result.shape[:-1], width))
                op = replace(op, outputs=(narrow[result.id], *op.outputs[1:]))
        elif narrow:
            op = _reading(op, narrow)
        ops.append(op)
    if not inner:
        return graph
    kept: list[OpCall] = []
    read = {t.id for t in graph.outputs}
    for op in reversed(ops):
        if op.outputs and op.outputs[0].id in inner and op.outputs[0].id not in read:
            continue  # attention alone read it, so that this padding moves nothing either
        kept.append(op)
        read |= {t.id for t in op.tensors}
    return replace(graph, ops=tuple(reversed(kept)))


def _padded(op: OpCall) -> Value | None:
    """What a call pads at the end of its last dimension with zeros, and nowhere else."""
    if canonical(op.name) not in ("pad", "constant_pad_nd") or len(op.tensors) != 1 or len(op.outputs) != 1:
        return None
    before, after = op.tensors[0], op.outputs[0]
    amounts = op.attrs.get("pad")
    zeros = not op.attrs.get("value") and op.attrs.get("mode") in (None, "constant")
    at_the_end = isinstance(amounts, list | tuple) and amounts[0] == 0
    return before if zeros and at_the_end and before.shape[:-1] == after.shape[:-1] else None


def _reading(op: OpCall, inner: dict[str, Value]) -> OpCall:
    return op.reading(lambda t: inner.get(t.id, t)) if any(t.id in inner for t in op.tensors) else op
