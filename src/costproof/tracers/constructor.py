"""What decided the shapes of a module when it was made, read from the module and its configuration.

torch's own layers have readers that name every size; for all other classes three rules apply, each
seen from the constructor of the class itself:

1. attributes that bear the name of one of its arguments, or of a size (``hidden_size``, ``num_heads``);
2. of the configuration that the module keeps, the sizes that its constructor mentions;
3. the shapes of the parameters that it owns (``gate_up_proj.shape``).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.callgraph import Setting

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
    for kind in type(module).__mro__:
        reader = _readers().get(kind)
        if reader is not None:
            found = {name: setting(value) for name, value in reader(module).items()}
            break
    else:
        found = {}
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
    config = getattr(module, "config", None)
    for name in mentioned:
        if _is_size(name) and config is not None and name in vars(config):
            found[name] = setting(vars(config)[name])
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
def _readers() -> Mapping[type, Callable[[Any], dict[str, Any]]]:
    """Readers of torch's own layers: what their constructors were given, under the names they use."""
    from torch import nn
    from torch.nn.modules.conv import _ConvNd
    from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd

    def linear(m: Any) -> dict[str, Any]:
        return {"in_features": m.in_features, "out_features": m.out_features, "bias": m.bias is not None}

    def conv(m: Any) -> dict[str, Any]:
        found = _take(m, "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
        if m.transposed:
            found["output_padding"] = m.output_padding
        return {**found, "padding_mode": m.padding_mode, "transposed": m.transposed, "bias": m.bias is not None}

    def embedding(m: Any) -> dict[str, Any]:
        return _take(m, "num_embeddings", "embedding_dim", "padding_idx")

    def norm(m: Any) -> dict[str, Any]:
        affine = {"elementwise_affine": m.elementwise_affine, "bias": getattr(m, "bias", None) is not None}
        return {**_take(m, "normalized_shape", "eps"), **affine}

    def pool(m: Any) -> dict[str, Any]:
        names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "output_size")
        return {name: getattr(m, name) for name in names if hasattr(m, name)}

    def attention(m: Any) -> dict[str, Any]:
        return {**_take(m, "embed_dim", "num_heads", "head_dim", "kdim", "vdim", "batch_first"),
                "bias": m.in_proj_bias is not None}  # fmt: skip

    def recurrent(m: Any) -> dict[str, Any]:
        return _take(m, "mode", "input_size", "hidden_size", "num_layers", "bias", "batch_first", "bidirectional",
                     "proj_size")  # fmt: skip

    return {
        nn.Linear: linear,
        nn.Bilinear: lambda m: {**_take(m, "in1_features", "in2_features", "out_features"), "bias": m.bias is not None},
        _ConvNd: conv,
        nn.Embedding: embedding,
        nn.EmbeddingBag: embedding,
        nn.LayerNorm: norm,
        nn.RMSNorm: norm,
        nn.GroupNorm: lambda m: _take(m, "num_groups", "num_channels", "eps", "affine"),
        nn.modules.batchnorm._NormBase: lambda m: _take(m, "num_features", "eps", "affine"),
        nn.MultiheadAttention: attention,
        nn.modules.rnn.RNNBase: recurrent,
        _MaxPoolNd: pool,
        _AvgPoolNd: pool,
        _AdaptiveMaxPoolNd: pool,
        _AdaptiveAvgPoolNd: pool,
        nn.Upsample: lambda m: _take(m, "size", "scale_factor", "mode", "align_corners"),
        nn.PixelShuffle: lambda m: _take(m, "upscale_factor"),
        nn.PixelUnshuffle: lambda m: _take(m, "downscale_factor"),
        nn.Flatten: lambda m: _take(m, "start_dim", "end_dim"),
    }


def _take(module: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names}
