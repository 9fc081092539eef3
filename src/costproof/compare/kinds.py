"""Operator kinds in words common to all sources.

Every source names an operator its own way: ``linear``, ``aten.addmm``, ``__matmul__``,
``scaled_dot_product_attention``. The table brings a name to one of few kinds. ``matmul`` is the
generic one: attention, einsum and experts may each be carried out by it, so where one source says
``attention`` and another ``matmul`` they may mean the same work (:mod:`costproof.compare.align`
decides).
"""

from __future__ import annotations

from functools import cache
from typing import Final

GENERIC: Final = "matmul"

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "linear": ("linear", "addmm", "mm", "router", "lm_head", "mv", "addmv", "sparse_linear"),
    "conv": (
        "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
        "cudnn_convolution", "mkldnn_convolution", "slow_conv2d_forward", "thnn_conv2d", "patch_embedding",
    ),
    "attention": (
        "attention", "scaled_dot_product_attention", "scaled_dot_product_flash_attention",
        "scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_efficient_attention",
        "scaled_dot_product_cudnn_attention", "scaled_dot_product_attention_math",
        "scaled_dot_product_fused_attention_overrideable", "flash_attn_forward", "flash_attn_varlen_forward",
        "flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache", "flex_attention",
        # Namespaces of FlashAttention's operators, of which only the forward ones are ever counted.
        "flash_attn", "flash_attn2", "flash_attn3", "vllm_flash_attn3", "flash_attn_3", "vllm_fa2_C", "vllm_fa3_C",
        "multi_head_attention_forward", "native_multi_head_attention",
    ),
    "einsum": ("einsum",),
    "expert_gemm": ("expert_gemm", "grouped_mm", "grouped_mm_fallback", "scaled_grouped_mm", "expert_linear"),
    "layer_norm": ("layer_norm", "native_layer_norm"),
    "group_norm": ("group_norm", "native_group_norm"),
    "batch_norm": ("batch_norm", "native_batch_norm", "cudnn_batch_norm"),
    "instance_norm": ("instance_norm",),
    "resample": ("interpolate", "upsample", "upsample_nearest2d", "upsample_bilinear2d"),
    "pool": ("adaptive_avg_pool2d",),
    "grid_sample": ("grid_sample", "grid_sampler", "grid_sampler_2d"),
    GENERIC: ("matmul", "bmm", "baddbmm", "addbmm", "dot", "vdot", "inner", "tensordot", "chain_matmul", "mul_mat"),
}  # fmt: skip

_CANONICAL: Final[dict[str, str]] = {name: kind for kind, names in _NAMES.items() for name in names}

_SPACES: Final = ("aten", "torch", "transformers", "F", "Tensor")
"""Namespaces in which an operator is known by its name alone."""

CARRIED_OUT_BY_MATMUL: Final[frozenset[str]] = frozenset({"attention", "einsum", "expert_gemm", "linear"})
"""Kinds that some source may execute as plain matrix products."""


@cache
def kind_of(kind: str) -> str:
    """The common kind of a source's operator name; of a name outside the table, what torch calls it.

    ``aten._grouped_mm.default`` -> ``expert_gemm``, ``__rmatmul__`` -> ``matmul``, ``aten.lstm.input`` -> ``lstm``,
    ``foo::bar`` -> ``foo::bar``.
    """
    space, _, name = kind.rpartition("::")
    parts = [p for p in name.split(".") if p]
    if parts and parts[0] in _SPACES:
        space, *parts = parts
    bare = (parts[0] if parts else name).strip("_")
    # A name alone, or with torch's namespace and perhaps an overload.
    torch_s = len(parts) <= 2 if space in _SPACES else len(parts) == 1 and not space
    return _CANONICAL.get(bare) or _CANONICAL.get(bare.removeprefix("r"), bare if torch_s else kind)


def same_operator(first: str, second: str) -> bool:
    """Whether two names of operators may stand for the same work."""
    a, b = kind_of(first), kind_of(second)
    return a == b or (GENERIC in (a, b) and bool({a, b} & CARRIED_OUT_BY_MATMUL))
