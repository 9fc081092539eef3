"""How a checkpoint stores its weights, as far as its configuration and the files beside that say it.

Formats are recognised and not yet counted: a format in another dtype than the run's makes answers about bytes unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from costproof.ledger.files import read_json
from costproof.ledger.workload import Dtype
from costproof.models.processor import ImageSize, image_size

KEYS: Final = ("quantization_config", "compression_config", "quantize_config", "quant_config", "hf_quant_config")
"""Keys of a configuration, or of a part of it, that describe a quantised checkpoint."""
_MLX: Final = "quantization"
"""A key that does so where its value is an object with :data:`_OF_A_FORMAT`."""
_OF_A_FORMAT: Final = ("bits", "group_size", "quant_method", "quant_algo", "mode")
_PART_DTYPE: Final = "expert_dtype"
FILES: Final = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""Files beside a configuration that do the same, by the names of ModelOpt, AutoGPTQ and AutoAWQ."""
_INDEX: Final = "model.safetensors.index.json"
_PACKED: Final = (
    ".qweight", ".qzeros", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".weight_scale_2", "_blocks",
    ".SCB", ".absmax", ".quant_map", ".weight.absmax", ".weight.quant_map",
)  # fmt: skip
"""How tensors end that only a quantised checkpoint has."""
_METHODS: Final = ("quant_method", "quant_algo", "quantization_method")
_BITS: Final = ("bits", "num_bits", "w_bit", "wbits", "weight_bits")
_GROUPS: Final = ("group_size", "q_group_size")
_CACHES: Final = ("kv_cache_scheme", "kv_cache_quant_algo")
_DTYPES: Final = ("dtype", "torch_dtype")
_NOT_NAMED: Final = "a format without a name"
_LONGEST: Final = 40


@dataclass(frozen=True, slots=True)
class Stored:
    """What is known of a checkpoint without reading it."""

    quantised: tuple[tuple[str, str], ...] = ()
    """``weights`` or ``cache`` -> the format and where it is named; empty: nothing says that it is quantised."""
    dtype: Dtype | None = None
    """What the configuration names; ``None``: nothing, or what no run has."""
    images: ImageSize | None = None
    """The size that its processor makes of images; ``None``: nothing says it."""


PLAIN: Final = Stored()
"""Of a checkpoint of which nothing is known."""


def stored(data: object, path: Path | None) -> Stored:
    """Return what a configuration and the files beside it say.

    Args:
        data: the configuration.
        path: its file; ``None``: it has none.

    Raises:
        BadInput: a file beside it cannot be read.
    """
    described = list(_described(data, "$"))
    weights = [f"{_format(value)} ({place})" for place, value in described]
    cache = [f"{text} ({place})" for place, value in described if (text := _cache(value))]
    for name in FILES if path is not None else ():
        assert path is not None
        beside = path.parent / name
        if beside.is_file() and beside != path:
            value = read_json(beside, what="description of a quantised checkpoint")
            weights.append(f"{_format(value)} ({name})")
            cache += [f"{text} ({name})" for text in (_cache(value),) if text]
    if not weights and path is not None and (path.parent / _INDEX).is_file():
        weights += [f"{_NOT_NAMED} ({name} in {_INDEX})" for name in _packed(path.parent / _INDEX)]
    named = _dtype(data)
    run = named if named in get_args(Dtype) else None
    if named and run is None and named != "auto" and not weights:
        weights.append(f"{named[:_LONGEST]} (the dtype that the configuration names)")
    found = {"weights": "; ".join(weights), "cache": "; ".join(cache)}
    images = None if path is None else image_size(path)
    return Stored(tuple((part, text) for part, text in found.items() if text), run, images)  # type: ignore[arg-type]


def without(data: Any) -> Any:
    """Return a configuration without its descriptions of a quantised checkpoint: they say nothing of the model."""
    if not isinstance(data, dict):
        return data
    return {key: without(value) for key, value in data.items() if not _describes(key, value)}


def without_dtype(data: Any) -> Any:
    """Return a configuration without the dtype that :func:`stored` reads."""
    if not isinstance(data, dict):
        return data
    return {key: value for key, value in data.items() if not (key in _DTYPES and isinstance(value, str))}


def _describes(key: str, value: Any) -> bool:
    if key == _PART_DTYPE:
        return isinstance(value, str)
    return key in KEYS or (key == _MLX and isinstance(value, dict) and any(k in value for k in _OF_A_FORMAT))


def _described(data: object, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the descriptions of quantised weights in a configuration and in its parts, with their places."""
    for key, value in data.items() if isinstance(data, dict) else ():
        if _describes(key, value):
            if value is not None and value is not False:
                yield f"{path}.{key}", value
        else:
            yield from _described(value, f"{path}.{key}")


def _format(value: object) -> str:
    """Return a format in words: ``fp8, blocks of 128 x 128``."""
    if isinstance(value, str):
        return value[:_LONGEST] or _NOT_NAMED
    if not isinstance(value, dict):
        return _NOT_NAMED
    inner = [value, *_inside(value)]
    method = next((str(v[k])[:_LONGEST] for v in inner for k in _METHODS if isinstance(v.get(k), str) and v[k]), "")
    parts = [method, str(value["format"])[:_LONGEST] if isinstance(value.get("format"), str) else ""]
    parts += ["nf4"] if value.get("bnb_4bit_quant_type") == "nf4" and value.get("load_in_4bit", True) else []
    bits = sorted({v[k] for v in inner for k in _BITS if type(v.get(k)) is int})
    bits = bits or [n for n in (4, 8) if value.get(f"load_in_{n}bit") is True]
    parts.append(f"{' and '.join(map(str, bits))} bits" if bits else "")
    group = next((v[k] for v in inner for k in _GROUPS if type(v.get(k)) is int), None)
    parts.append(f"groups of {group}" if group is not None and group > 0 else "")
    block = value.get("weight_block_size")
    whole = isinstance(block, list) and all(type(n) is int for n in block)
    parts.append(f"blocks of {' x '.join(map(str, block))}" if whole and block else "")
    return ", ".join(filter(None, parts)) or _NOT_NAMED


def _inside(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in which the settings of weights lie: those of groups, and that of ModelOpt's file."""
    groups = value.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        if isinstance(group, dict) and isinstance(group.get("weights"), dict):
            yield group["weights"]
    if isinstance(value.get(_MLX), dict):
        yield value[_MLX]


def _cache(value: object) -> str:
    """Return the format of keys and values, where a description has one."""
    if not isinstance(value, dict):
        return ""
    named = next((v[k] for v in (value, *_inside(value)) for k in _CACHES if v.get(k)), None)
    return "" if named is None else named[:_LONGEST] if isinstance(named, str) else _format(named)


def _packed(index: Path) -> Iterator[str]:
    """Yield the first tensor of a checkpoint that only a quantised one has."""
    data = read_json(index, what="index of the weights")
    names = data.get("weight_map") if isinstance(data, dict) else None
    found = (str(name) for name in sorted(names if isinstance(names, dict) else ()) if str(name).endswith(_PACKED))
    yield from [name[-60:] for name in (next(found, ""),) if name]


def _dtype(data: object) -> str:
    """Return the dtype that a configuration names, or that of its text where it names none itself."""
    for part in (data, data.get("text_config") if isinstance(data, dict) else None):
        for key in _DTYPES:
            value = part.get(key) if isinstance(part, dict) else None
            if isinstance(value, str) and value:
                return value.removeprefix("torch.")
    return ""
