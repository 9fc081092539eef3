"""Tiny configurations of model types of transformers, by one rule: the default one with little depth and narrow widths.

Depth goes down to the shortest prefix that has every kind of layer, widths are divided by one power of two, so that
what divided evenly still does; experts become few. Sizes of images, windows and vocabularies stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

FACTORS: Final = (16, 8, 4, 2, 1)
"""What widths are divided by: the first one at which the model builds is taken."""
LAYERS: Final = 2
EXPERTS: Final = 8
GROUPS: Final = 4
ACTIVE: Final = 2
CONTEXT: Final = 1024
"""Of what was seen of a series."""
SHARED: Final = 1
"""Layers at the end that take keys and values of one before."""

_DEPTH: Final = re.compile(r"(.*_)?(n|num)?_?(hidden_|attention_|encoder_|decoder_)*(layers?|blocks)|.*depth")
_EXPERTS: Final = re.compile(r"(.*_)?(num|n)_(\w+_)?experts|(\w+_)?num_experts(_\w+)?")
_WIDTH: Final = re.compile(
    r".*(hidden|dim|width|d_head|channels?|inner|intermediate|ffn|rank|d_model|d_ff|d_kv|embd|sections?|embed|filter|size).*"
)
_NO_WIDTH: Final = re.compile(
    r"(max|num|n)_.*|.*(image|patch|crop|feature_sizes|vocab|window|kernel|grid|chunk|block|context|memory|position|token|pool|group"
    r"|stride|dilation|length|step|ratio|codebook|factor|state|label|frame|temporal|tubelet|batch|bucket|input_size"
    r"|mult|eps|_id|_ids|axis|sample|spec|num).*"
)
_SHARING: Final = "num_kv_shared_layers"
_OF_LAYERS: Final = ("types", "type", "_per_layer")
"""Ends of names of lists with an entry for each layer."""
_FEW: Final = 4
"""A list longer than this that is as long as the depth has an entry for each layer, whatever its name."""
_FOLLOWING: Final = ("out_features", "stage_names")
"""What a configuration makes of its depth and of indices."""
_NO_PARTS: Final = ("id2label", "label2id")
_SMALLEST: Final = 32
"""From here on a number whose name is that of a width is one."""


def tiny(data: Mapping[str, Any], factor: int) -> dict[str, Any]:
    """A configuration with every part of it shrunk.

    Args:
        data: with its parts as objects.
        factor: of :data:`FACTORS`.
    """
    return dict(_shrunk(data, factor))


def _shrunk(data: Mapping[str, Any], factor: int) -> Iterator[tuple[str, Any]]:
    depths = {v for k, v in data.items() if _is_depth(k, v)}
    kept = {old: _depth(data, old) for old in depths}
    for key, value in data.items():
        if isinstance(value, Mapping) and key not in _NO_PARTS:
            part = tiny(value, factor)
            yield key, {k: v for k, v in part.items() if int(k) < max(kept.values())} if _by_layer(part, kept) else part
        elif key == _SHARING:
            yield key, min(value or 0, SHARED)
        elif _is_depth(key, value):
            yield key, kept[value]
        elif key == "context_length" and _whole(value):
            yield key, min(value, CONTEXT)
        elif key == "depths":
            yield key, [min(LAYERS, d) for d in value]
        elif key in ("first_k_dense_replace", "num_dense_layers"):
            yield key, min(value, 1)
        elif isinstance(value, list) and len(value) in kept and (key.endswith(_OF_LAYERS) or len(value) > _FEW):
            yield key, _of_width(key, value[: kept[len(value)]], factor)
        elif key in _FOLLOWING and depths:
            continue
        elif "indices" in key and isinstance(value, list) and value and depths:
            old = max(depths)
            yield key, [i if i < 0 else i * kept[old] // old for i in value]
        elif _whole(value) and (small := _fewer(key)) is not None:
            yield key, min(value, small)
        else:
            yield key, _of_width(key, value, factor)


def _is_depth(key: str, value: Any) -> bool:
    return bool(_DEPTH.fullmatch(key)) and key != _SHARING and _whole(value)


def _by_layer(part: Mapping[str, Any], kept: Mapping[int, int]) -> bool:
    """Whether it has entries for some layers, by their index."""
    return bool(part and kept) and all(str(k).isdecimal() for k in part)


def _of_width(key: str, value: Any, factor: int) -> Any:
    if key.endswith("_section") and isinstance(value, list):  # of the width of a head
        return [v // factor for v in value] if all(v % factor == 0 for v in value) else value
    return _narrow(value, factor) if _is_width(key) else value


def _depth(data: Mapping[str, Any], old: int) -> int:
    """Layers of the shortest prefix that has every kind; one for each place that features are taken from."""
    least = LAYERS
    for key, value in data.items():
        if isinstance(value, list) and len(value) == old and key.endswith(("types", "type")):
            first = {str(kind): value.index(kind) for kind in value}
            least = max(least, 1 + max(first.values()))
        if "indices" in key and isinstance(value, list):
            least = max(least, len(value))
        if key.endswith("_layer_offset") and _whole(value):  # of every so many layers the first of another kind
            least = max(least, 1 + value)
    return min(old, least + min(data.get(_SHARING) or 0, SHARED))


def _fewer(key: str) -> int | None:
    """How many there are at most of what is counted under this name; ``None``: it is not such a number."""
    if ("per_tok" in key and "length" not in key) or key in (
        "top_k",
        "moe_top_k",
        "moe_topk",
        "num_selected_experts",
        "top_k_experts",
    ):
        return ACTIVE
    if key in ("n_group", "num_expert_groups"):
        return GROUPS
    if key == "topk_group":
        return ACTIVE
    if "expert" in key and "shared" not in key and "size" not in key and _EXPERTS.fullmatch(key):
        return EXPERTS
    return None


def _is_width(key: str) -> bool:
    return bool(_WIDTH.fullmatch(key)) and not (_NO_WIDTH.fullmatch(key) and key not in _WIDTHS)


_WIDTHS: Final = (
    "num_channels_latents",
    "num_filters",
    "intermediate_size_mlp",
    "n_embd",
    "n_inner",
    "downsample_channels",
    "adapter_input_size",
)


def _narrow(value: Any, factor: int) -> Any:
    if isinstance(value, list):
        return [_narrow(v, factor) for v in value]
    return value // factor if _whole(value) and value >= _SMALLEST and value % factor == 0 else value


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def candidates(
    data: Mapping[str, Any], builds: Callable[[dict[str, Any]], bool]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Configurations to try, the smallest first, and their names; then the default one."""
    for factor in FACTORS:
        made = tiny(data, factor)
        if builds(made):
            yield f"widths / {factor}" if factor > 1 else "few layers", made
    if builds(dict(data)):
        yield "default", dict(data)
