"""Map the operator names of all sources to operator kinds that the sources share.

Each source has its own names for operators: ``linear``, ``aten.addmm``, ``__matmul__``,
``scaled_dot_product_attention``. A table maps each name to one of a few kinds. ``matmul`` is the generic kind:
attention, einsum and experts may be executed as matrix products, so ``attention`` in one source and ``matmul`` in
another may be the same work, which :mod:`costproof.compare.align` decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from itertools import product
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
        "scaled_dot_product_fused_attention_overrideable", "flash_attention_forward",
        "flash_attention_forward_no_dropout_inplace", "efficient_attention_forward", "cudnn_attention_forward",
        "triton_scaled_dot_attention", "varlen_attn", "torch_attn", "flash_attn_forward", "flash_attn_varlen_forward",
        "flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache", "flex_attention", "nested_attention",
        # Namespaces of FlashAttention's operators, of which only the forward ones are ever counted.
        "flash_attn", "flash_attn2", "flash_attn3", "vllm_flash_attn3", "flash_attn_3", "vllm_fa2_C", "vllm_fa3_C",
        "multi_head_attention_forward", "native_multi_head_attention",
        "triton_multi_head_attention",
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
    "all_reduce": ("all_reduce", "allreduce"),
    "all_gather": ("all_gather", "all_gather_v", "all_gather_into_tensor", "allgather", "allgather_base"),
    "reduce_scatter": ("reduce_scatter", "reduce_scatter_v", "reduce_scatter_tensor", "reduce_scatter_base"),
    "all_to_all": ("all_to_all", "all_to_all_single", "alltoall", "alltoall_base", "shard_dim_alltoall"),
    GENERIC: ("matmul", "bmm", "baddbmm", "addbmm", "dot", "vdot", "inner", "tensordot", "chain_matmul", "mul_mat"),
}  # fmt: skip

_CANONICAL: Final[dict[str, str]] = {name: kind for kind, names in _NAMES.items() for name in names}

_SPACES: Final = ("aten", "torch", "transformers", "F", "Tensor", "c10d", "_c10d_functional", "_dtensor", "costproof")
"""Namespaces that can be stripped from an operator name without making the name ambiguous."""

CARRIED_OUT_BY_MATMUL: Final[frozenset[str]] = frozenset({"attention", "einsum", "expert_gemm", "linear"})
"""Kinds that some source may execute as plain matrix products."""


@cache
def kind_of(kind: str) -> str:
    """Return the operator kind, shared by all sources, of an operator name; the name itself if it is not listed.

    ``aten._grouped_mm.default`` -> ``expert_gemm``, ``__rmatmul__`` -> ``matmul``, ``aten.lstm.input`` -> ``lstm``,
    ``foo::bar`` -> ``foo::bar``.
    """
    space, _, name = kind.rpartition("::")
    parts = [p for p in name.split(".") if p]
    if parts and parts[0] in _SPACES:
        space, *parts = parts
    bare = (parts[0] if parts else name).strip("_")
    # A plain name, or one with torch's namespace and perhaps an overload.
    torch_s = len(parts) <= 2 if space in _SPACES else len(parts) == 1 and not space
    return _CANONICAL.get(bare) or _CANONICAL.get(bare.removeprefix("r"), bare if torch_s else kind)


def same_operator(first: str, second: str) -> bool:
    """Return whether two operator names may represent the same work."""
    a, b = kind_of(first), kind_of(second)
    return a == b or (GENERIC in (a, b) and bool({a, b} & CARRIED_OUT_BY_MATMUL))


Kinds = Mapping[str, int]
"""Number of element-wise and reduction FLOPs, by kind of vector work."""

_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "softmax": ("softmax", "log_softmax", "safe_softmax"),
    "norm": ("layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm", "fused_rms_norm"),
    "activation": ("gelu", "silu", "relu", "relu6", "leaky_relu", "elu", "hardswish", "hardsigmoid", "softplus"),
    "select": ("topk", "max", "amax", "min", "amin", "sort", "argmax", "argmin"),
    "resample": ("resample", "upsample_linear1d", "upsample_bicubic2d", "upsample_bicubic2d_aa", "upsample_bilinear2d"),
    "mean": ("mean",),
}
_KIND: Final = {name: kind for kind, names in _KINDS.items() for name in names}
_ARITHMETIC: Final = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "div": "div", "pow": "pow"}
_SAME: Final = {f"{how}{name}": same for name, same in _ARITHMETIC.items() for how in ("", "r", "i")}
"""Common names of Python's arithmetic operators, which occur in traces of a run, by name."""
ARITHMETIC: Final = "elementwise"
"""Kind of vector work of all operators without a kind of their own."""

_HALF: Final = Fraction(1, 2)
_Recipe = tuple[str, Mapping[str, Mapping[str, int | Fraction]]]
_WRITTEN_OUT: Final[Mapping[str, tuple[_Recipe, ...]]] = {
    # x / sqrt(mean(x²) + eps) * w: per element a square, the mean and two products, per row the sum and the root.
    "rsqrt": (("norm", {"mean": {"pow": 1, "mean": 1, "mul": 2}, "rsqrt": {"add": 1, "rsqrt": 1}}),),
    # (x - mean) / sqrt(var + eps) * w + c, operator by operator: two means and two differences.
    "sqrt": (
        (
            "norm",
            {
                "mean": {"mean": 1, "sub": 1, "pow": _HALF, "div": _HALF, "mul": _HALF, "add": _HALF},
                "sqrt": {"add": 1, "sqrt": 1},
            },
        ),
    ),
    # x sigmoid(1.702 x); only a sigmoid; or the sigmoid of a gate.
    "sigmoid": (
        ("activation", {"sigmoid": {"sigmoid": 1, "mul": 2}}),
        ("activation", {"sigmoid": {"sigmoid": 1}}),
        ("sigmoid", {"sigmoid": {"sigmoid": 1}}),
    ),
    # x / 2 (1 + tanh(c (x + d x³))), only a tanh, or the cap of scores, which is arithmetic.
    "tanh": (
        ("activation", {"tanh": {"tanh": 1, "mul": 4, "pow": 1, "add": 2}}),
        ("activation", {"tanh": {"tanh": 1}}),
    ),
    "sum": (("reduction", {"sum": {"sum": 1}}),),
}
"""Composites that an operator may be a part of, by operator.

Each composite is a kind, and the operators that belong to it per unit of one operator.
"""

_FUSED: Final = ({"softmax": Fraction(5, 6), ARITHMETIC: Fraction(1, 6)},
                 {"softmax": Fraction(5, 7), ARITHMETIC: Fraction(2, 7)})  # fmt: skip
"""Shares of kinds in the vector FLOPs of fused attention, without and with a mask.

Per score: 5 for the softmax, 1 for the scale, and 1 for a mask.
"""


def operators(kinds: Iterable[tuple[str, int | None]]) -> tuple[tuple[str, int], ...]:
    """Return the vector FLOPs of a module's operators, summed by the names that all sources share."""
    found: Counter[str] = Counter()
    for name, value in kinds:
        common = kind_of(name)
        found[_SAME.get(common, common)] += value or 0
    return tuple(sorted((name, value) for name, value in found.items() if value))


@lru_cache(maxsize=4096)
def readings(found: tuple[tuple[str, int], ...], softmax: int = 0) -> tuple[Kinds, ...]:
    """Return all ways to assign a module's operators to kinds of vector work; the first uses only operator names.

    Args:
        found: operators by their common name, each with its FLOPs.
        softmax: FLOPs of a softmax inside fused attention of which some calls have a mask; 0 if all or none do.
    """
    there = dict(found)
    recipes = [(None, *_WRITTEN_OUT[name]) for name in _WRITTEN_OUT if name in there]
    fused = _FUSED if "attention" in there else (_FUSED[0],)
    if softmax:
        share = Fraction(softmax, there["attention"])
        fused = ({"softmax": share, ARITHMETIC: 1 - share}, *fused)
    made = (_read(there, shares, written) for shares, *written in product(fused, *recipes))  # type: ignore[arg-type]
    return tuple({tuple(sorted(kinds.items())): kinds for kinds in made if kinds is not None}.values())


def _read(there: Kinds, fused: Mapping[str, Fraction], written: Sequence[_Recipe | None]) -> Kinds | None:
    """Return the vector FLOPs by kind in one assignment of operators; ``None`` if operators for it are missing."""
    left = {name: Fraction(value) for name, value in there.items()}
    kinds: dict[str, Fraction] = {}

    def take(kind: str, name: str, amount: Fraction) -> None:
        left[name] = left.get(name, Fraction(0)) - amount
        kinds[kind] = kinds.get(kind, Fraction(0)) + amount

    for recipe in written:
        for unit, taken in recipe[1].items() if recipe is not None else ():
            for name, times in taken.items():
                take(recipe[0], name, Fraction(times) * there.get(unit, 0))  # type: ignore[index]
    for kind, share in fused.items():
        take(kind, "attention", share * there.get("attention", 0))
    if min(left.values()) < 0:
        return None
    for name, rest in tuple(left.items()):
        take(_KIND.get(name, ARITHMETIC), name, rest)
    whole = all(amount.denominator == 1 for amount in kinds.values())
    return {kind: int(amount) for kind, amount in kinds.items() if amount} if whole else None


def nearest(formula: Kinds, found: tuple[tuple[str, int], ...]) -> Kinds:
    """Return the assignment of a graph's operators to kinds that differs least from the kinds of a formula.

    Args:
        formula: kinds of a formula, with the same sum as the operators.
        found: as for :func:`readings`.
    """

    def apart(other: Kinds) -> int:
        return sum(abs(formula.get(kind, 0) - other.get(kind, 0)) for kind in {*formula, *other})

    attention = dict(found).get("attention", 0)
    softmax = formula.get("softmax", 0) - sum(value for name, value in found if _KIND.get(name) == "softmax")
    scores, odd = divmod(softmax, 5)
    mixed = not odd and 0 < attention - 6 * scores < scores  # 6 a score, and 1 more of those with a mask
    return min(readings(found, softmax if mixed else 0), key=apart)
