"""Build the callgraph of a capture from its traced runs, with the settings that decided the shapes of each module.

A table lists every size of torch's own layers. For all other classes three rules apply to the class and its
constructor:

1. attributes named like a constructor argument or like a size (``hidden_size``, ``num_heads``);
2. sizes of the module's configuration that the constructor mentions;
3. shapes of the parameters that the module owns (``gate_up_proj.shape``).
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.attributes import attribute, has_attribute
from costproof.ledger.callgraph import CallGraph, ConstructorValue, Event, ValueAt
from costproof.tracers.hooks import ROOT, Hooked
from costproof.tracers.paths import Paths

if TYPE_CHECKING:
    from torch import nn


def call_graph(
    hooked: Sequence[Hooked],
    operators: Mapping[str, Mapping[str, int]],
    feeds: Mapping[tuple[str, str], int],
    *,
    all_calls: bool = False,
) -> CallGraph:
    """Return the callgraph of several runs of one model, in order, with calls numbered across runs.

    Args:
        operators: numbers of calls by innermost module and operator, from the operator trace.
        feeds: by (a, b), how often a result of a entered b, from the operator trace.
        all_calls: include inputs and outputs of every call, if the runs recorded them.
    """
    model = hooked[0].run.model
    counts: Counter[str] = Counter()
    edges: Counter[str] = Counter()
    inputs: dict[str, tuple[ValueAt, ...]] = {}
    outputs: dict[str, tuple[ValueAt, ...]] = {}
    events: list[Event] = []
    for part in hooked:
        for target, source in ((inputs, part.inputs), (outputs, part.outputs)):
            for path, values in source.items():
                if all_calls or path not in target:
                    target[path] = (*target.get(path, ()), *_renumbered(values, counts[path]))
        events += [_later(e, len(events) + i, counts[e.name]) for i, e in enumerate(part.events)]
        counts.update(part.call_counts)
        edges.update({f"{a}->{b}": n for (a, b), n in part.edges.items()})
    paths = Paths(model)
    modules = {path or ROOT: module for path, module in paths.modules.items()}
    return CallGraph(
        call_counts=dict(counts),
        edges=dict(edges),
        op_call_counts={k or ROOT: dict(v) for k, v in operators.items()},
        module_children={p or ROOT: k for p in paths.modules if (k := tuple(paths.children(p)))},
        module_types={path: type(module).__name__ for path, module in modules.items()},
        constructor_params={p: c for p, m in modules.items() if (c := constructor_params(m))},
        input_metadata=inputs,
        output_metadata=outputs,
        events=tuple(events),
        data_edges={f"{a or ROOT}->{b or ROOT}": n for (a, b), n in sorted(feeds.items())},
        module_aliases=paths.aliases,
        tied_parameters=paths.tied,
    )


def _renumbered(values: Iterable[ValueAt], before: int) -> tuple[ValueAt, ...]:
    return tuple(replace(v, call=v.call + before) if before else v for v in values)


def _later(event: Event, index: int, before: int) -> Event:
    call = event.data.get("call")
    data = {**event.data, "call": call + before} if isinstance(call, int) else event.data
    return replace(event, index=index, data=data)


_ENDS: Final = (
    "_size", "_sizes", "_dim", "_dims", "_rank", "_heads", "_features", "_channels", "_experts", "_groups", "_width",
    "_height", "_layers", "_length", "_tok", "_embeddings", "_ratio", "_indexes",
)  # fmt: skip
_NAMES: Final = frozenset({
    "eps", "variance_epsilon", "top_k", "scale", "scaling", "head_dim", "groups", "n_group", "topk_group", "stride",
    "kernel", "window", "hidden_act", "use_rel_pos", "use_abs_pos", "qkv_bias", "attention_bias", "mlp_bias",
})  # fmt: skip
_MAX_ITEMS: Final = 64


def constructor_params(module: nn.Module) -> dict[str, ConstructorValue]:
    """Return the settings that determined a module's parameter shapes, by name; tuples of integers stay tuples."""
    names = next((_told()[kind] for kind in type(module).__mro__ if kind in _told()), ())
    found = _given(module, names)
    own = type(module).__module__.partition(".")[0] == "torch"
    if not (found and own):
        found = {**_generic(module), **found}
    return {name: found[name] for name in sorted(found) if found[name] is not _UNKNOWN}


def setting(value: object) -> Any:
    """Return the value of a module's attribute as plain data; ``_UNKNOWN`` for other values.

    Plain data are ``None``, a boolean, a number, a text, or a short sequence of integers.
    """
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
    kind: Any = type(module)  # torch modules define their own hash
    arguments, mentioned = _constructor(kind)
    found: dict[str, Any] = {}
    configured = attribute(
        attribute(module, "config", None), "__dict__", {}
    )  # an attribute of this name may be anything
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
    """Return the argument names of a class's constructor, and the names that it and base constructors use."""
    try:
        arguments = frozenset(inspect.signature(kind.__init__).parameters)
    except (TypeError, ValueError):
        arguments = frozenset()
    codes = (attribute(vars(base).get("__init__"), "__code__", None) for base in kind.__mro__)
    return arguments, frozenset(name for code in codes if code is not None for name in code.co_names)


@lru_cache(maxsize=1)
def _told() -> Mapping[type, tuple[str, ...]]:
    """Return, by class, the names of constructor arguments that torch's own layers keep as attributes."""
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
    """Return the values of these attributes, as far as a module has them; ``bias`` is whether the module has a bias."""
    found = {name: setting(getattr(module, name)) for name in names if has_attribute(module, name)}
    if "bias" in names:
        bias = attribute(module, "bias", attribute(module, "in_proj_bias", None))
        found["bias"] = bias if isinstance(bias, bool) else bias is not None
    return found
