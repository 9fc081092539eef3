"""Convert the operator names that sources use to canonical names.

``aten.linear.default``, ``torch.nn.functional.linear`` and ``linear`` are one operator; so are
``aten.add_.Tensor``, ``__radd__`` and ``add``. Custom operators keep their namespace.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from costproof.opgraph.graph import OpCall

_TORCH: Final = frozenset({"aten", "prims", "torch", "F", "Tensor", "_TensorBase", "TensorBase", "_VariableFunctions"})

_BINARY: Final = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "div": "div", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
_DUNDER: Final = {
    **{f"__{prefix}{name}__": op for name, op in _BINARY.items() for prefix in ("", "r", "i")},
    "__matmul__": "matmul", "__imatmul__": "matmul", "__rmatmul__": "rmatmul",
    "__rsub__": "rsub", "__neg__": "neg", "__pos__": "positive", "__abs__": "abs", "__invert__": "bitwise_not",
    "__eq__": "eq", "__ne__": "ne", "__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge",
    "__getitem__": "getitem", "__setitem__": "setitem", "__iter__": "unbind",
    "__len__": "sym_size", "__bool__": "item", "__int__": "item", "__float__": "item", "__index__": "item",
    "__contains__": "eq",
}  # fmt: skip
_SYNONYM: Final = {
    "multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div", "negative": "neg",
    "absolute": "abs", "clip": "clamp", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le",
    "not_equal": "ne", "concat": "cat", "concatenate": "cat", "swapaxes": "transpose", "swapdims": "transpose",
    "moveaxis": "movedim", "linalg_matmul": "matmul", "linalg_vecdot": "vecdot",
    "vector_norm": "linalg_vector_norm", "matrix_norm": "linalg_matrix_norm", "grouped_mm": "_grouped_mm",
    "scaled_grouped_mm": "_scaled_grouped_mm", "special_expit": "sigmoid", "special_erf": "erf",
    "special_exp2": "exp2", "special_softmax": "softmax", "special_log_softmax": "log_softmax",
    "special_expm1": "expm1", "special_log1p": "log1p", "fix": "trunc", "arccos": "acos", "arcsin": "asin",
    "arctan": "atan", "arctan2": "atan2", "ger": "outer", "_unsafe_view": "view", "_reshape_alias": "reshape",
    "_to_copy": "to", "_conj": "conj", "hardtanh": "clamp", "row_stack": "vstack", "column_stack": "hstack",
    "_unsafe_index": "index", "_unsafe_index_put": "index_put", "_index_put_impl": "index_put",
    "_adaptive_avg_pool2d": "adaptive_avg_pool2d", "_adaptive_avg_pool3d": "adaptive_avg_pool3d",
}  # fmt: skip

# ``_flash_attn2_cuda_9e27194_dirty``: name of a loaded kernel of the Hugging Face hub.
_HUB: Final = re.compile(
    r"_(?P<kernel>[a-z][a-z0-9_]*?)(?:_(?:cuda|rocm|xpu|cpu|metal))?_(?:[0-9a-f]{7}|[0-9]{14})(?:_dirty)?"
)


@lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """Return the canonical name of an operator, under which its rule is registered.

    Overload, torch's own namespaces, in-place underscores, dunders and synonyms are dropped;
    ``transformers.grouped_mm_fallback.default`` becomes ``transformers.grouped_mm_fallback``, and
    ``_flash_attn2_cuda_9e27194::fwd`` ``flash_attn2.fwd``: the hash of a build is dropped.
    """
    parts = _unhashed(name).replace("::", ".").split(".")
    if len(parts) == 1:
        return _plain(parts[0])
    if parts[0] in ("aten", "prims"):
        return _plain(parts[1])
    if parts[0] in _TORCH:
        if parts[1] == "ops" and len(parts) >= 4:
            return canonical(".".join(parts[2:]))
        return _plain(parts[-1])
    return ".".join(parts[:2])


def overwrites(op: OpCall) -> bool:
    """Return whether an operator overwrites its first argument: ``mul_``, ``y += x``, ``inplace=True``."""
    parts = op.name.split(".")
    name = parts[1] if parts[0] == "aten" else parts[-1]
    if name.startswith("__"):
        return name.startswith("__i") and f"__{name[3:]}" in _DUNDER
    return name.endswith("_") or op.attrs.get("inplace") is True


def _plain(name: str) -> str:
    if name.startswith("__") and name.endswith("__"):
        return _DUNDER.get(name, name)
    name = name.rstrip("_") or name
    return _SYNONYM.get(name, name)


@lru_cache(maxsize=4096)
def source_kind(name: str) -> str:
    """Return an operator's name as its source writes it, without the overload: ``aten.linear``."""
    name = _unhashed(name)
    parts = name.replace("::", ".").split(".")
    if len(parts) >= 3 and parts[0] != "torch":
        return ".".join(parts[:2])
    return name


def _unhashed(name: str) -> str:
    space, dot, operator = name.replace("::", ".").partition(".")
    build = _HUB.fullmatch(space)
    return f"{build['kernel']}.{operator}" if dot and build else name
