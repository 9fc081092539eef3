"""Operators that make tensors from nothing, and those that touch no data at all."""

from __future__ import annotations

from costproof.opgraph.graph import OpCall
from costproof.opgraph.rules.cost import OpCost, Uncountable
from costproof.opgraph.rules.names import overwrites
from costproof.opgraph.rules.registry import operator_rule


@operator_rule(
    "arange", "range", "linspace", "logspace", "eye", "zeros", "ones", "full", "empty", "empty_strided",
    "empty_permuted", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full",
    "new_empty", "new_empty_strided", "new_tensor", "tensor", "as_tensor", "scalar_tensor", "asarray",
    "from_numpy", "lift", "lift_fresh", "lift_fresh_copy", "tril_indices", "triu_indices",
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "uniform", "random",
    "exponential", "efficientzerotensor", "_efficientzerotensor",
)  # fmt: skip
def factory(op: OpCall) -> OpCost:
    """0: a tensor is made without reading one; ``*_like`` takes only the shape."""
    return OpCost(role="factory", reads=())


@operator_rule("fill", "zero")
def fill(op: OpCall) -> OpCost:
    """0: a tensor is made without reading one; in place it is written over the first, as a copy is."""
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
    """0: metadata, assertions, and values handed to Python."""
    return OpCost(role="free", reads=())


@operator_rule("vmap")
def mapped(op: OpCall) -> OpCost:
    """What runs inside ``torch.vmap`` is not counted: what makes indices and masks is 0, all else is unknown."""
    if any(v.floating for v in op.outputs):
        raise Uncountable("what torch.vmap runs over a batch is not counted")
    return OpCost(role="move")


@operator_rule("none")
def nowhere(op: OpCall) -> OpCost:
    """TorchLens's word for a tensor that it saw no operator make: indices and masks are 0, all else is unknown."""
    if any(v.floating for v in op.outputs):
        raise Uncountable("TorchLens did not see which operator made this tensor")
    return OpCost(role="free", reads=())
