"""What decided the shapes of a module when it was made, read from the module and its configuration.

Of torch's own layers a table names every size; for all other classes three rules apply, each
seen from the constructor of the class itself:

1. attributes that bear the name of one of its arguments, or of a size (``hidden_size``, ``num_heads``);
2. of the configuration that the module keeps, the sizes that its constructor mentions;
3. the shapes of the parameters that it owns (``gate_up_proj.shape``).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.callgraph import Setting
from costproof.models.attributes import attributes

if TYPE_CHECKING:
    from torch import nn

_ENDS: Final = (
    "_size", "_sizes", "_dim", "_dims", "_rank", "_heads", "_features", "_channels", "_experts", "_groups", "_width",
    "_height", "_layers", "_length", "_tok", "_embeddings", "_ratio", "_indexes",
)  # fmt: skip
_NAMES: Final = frozenset({
    "eps", "variance_epsilon", "top_k", "scale", "scaling", "head_dim", "groups", "n_group", "topk_group", "stride",
    "kernel", "window", "hidden_act", "use_rel_pos", "use_abs_pos", "qkv_bias", "attention_bias", "mlp_bias",
})  # fmt: skip
_MAX_ITEMS: Final = 64


def constructor_params(module: nn.Module) -> dict[str, Setting]:
    """Name -> value of what decided the module's shapes, by name. Tuples of integers stay tuples."""
    names = next((_told()[kind] for kind in type(module).__mro__ if kind in _told()), ())
    found = _given(module, names)
    own = type(module).__module__.partition(".")[0] == "torch"
    if not (found and own):
        found = {**_generic(module), **found}
    return {name: found[name] for name in sorted(found) if found[name] is not _UNKNOWN}


def setting(value: object) -> Any:
    """The value, if it is plain or a few integers; else a mark that it is neither."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | str):
        return value if isinstance(value, str) else int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple) and len(value) <= _MAX_ITEMS and all(type(v) is int for v in value):
        return tuple(value)
    return _UNKNOWN


_UNKNOWN: Final = object()


def _generic(module: nn.Module) -> dict[str, Any]:
    kind: Any = type(module)  # torch gives its modules a hash of its own
    arguments, mentioned = _constructor(kind)
    found: dict[str, Any] = {}
    configured = attributes(getattr(module, "config", None)) or {}  # what is called so may be anything
    for name in mentioned:
        if _is_size(name) and name in configured:
            found[name] = setting(configured[name])
    for name, value in vars(module).items():
        known = name in arguments or _is_size(name)
        if known and not name.startswith("_") and name != "training" and value is not None:
            found[name] = setting(value)
    for name, parameter in module.named_parameters(recurse=False):
        found[f"{name}.shape"] = tuple(int(s) for s in parameter.shape)
    return found


def _is_size(name: str) -> bool:
    return name.endswith(_ENDS) or name in _NAMES


@lru_cache(maxsize=4096)
def _constructor(kind: Any) -> tuple[frozenset[str], frozenset[str]]:
    """Arguments of a class's constructor, and the attributes that its code, base classes included, mentions."""
    try:
        arguments = frozenset(inspect.signature(kind.__init__).parameters)
    except (TypeError, ValueError):
        arguments = frozenset()
    codes = (getattr(vars(base).get("__init__"), "__code__", None) for base in kind.__mro__)
    return arguments, frozenset(name for code in codes if code is not None for name in code.co_names)


@lru_cache(maxsize=1)
def _told() -> Mapping[type, tuple[str, ...]]:
    """What the constructors of torch's own layers were given, under the names they use."""
    from torch import nn
    from torch.nn.modules import batchnorm, conv, pooling, rnn

    convolution = (
        "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode",
        "transposed", "bias",
    )  # fmt: skip
    embedding = ("num_embeddings", "embedding_dim", "padding_idx")
    norm = ("normalized_shape", "eps", "elementwise_affine", "bias")
    pool = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "output_size")
    return {
        nn.Linear: ("in_features", "out_features", "bias"),
        nn.Bilinear: ("in1_features", "in2_features", "out_features", "bias"),
        conv._ConvTransposeNd: (*convolution, "output_padding"),
        conv._ConvNd: convolution,
        nn.Embedding: embedding,
        nn.EmbeddingBag: embedding,
        nn.LayerNorm: norm,
        nn.RMSNorm: norm,
        nn.GroupNorm: ("num_groups", "num_channels", "eps", "affine"),
        batchnorm._NormBase: ("num_features", "eps", "affine"),
        nn.MultiheadAttention: ("embed_dim", "num_heads", "head_dim", "kdim", "vdim", "batch_first", "bias"),
        rnn.RNNBase: (
            "mode", "input_size", "hidden_size", "num_layers", "bias", "batch_first", "bidirectional", "proj_size",
        ),
        pooling._MaxPoolNd: pool,
        pooling._AvgPoolNd: pool,
        pooling._AdaptiveMaxPoolNd: pool,
        pooling._AdaptiveAvgPoolNd: pool,
        nn.Upsample: ("size", "scale_factor", "mode", "align_corners"),
        nn.PixelShuffle: ("upscale_factor",),
        nn.PixelUnshuffle: ("downscale_factor",),
        nn.Flatten: ("start_dim", "end_dim"),
    }  # fmt: skip


def _given(module: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Those of the names that the module has; of a bias, whether there is one."""
    found = {name: setting(getattr(module, name)) for name in names if hasattr(module, name)}
    if "bias" in names:
        bias = getattr(module, "bias", getattr(module, "in_proj_bias", None))
        found["bias"] = bias if isinstance(bias, bool) else bias is not None
    return found
