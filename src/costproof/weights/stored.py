"""Read from the files of a checkpoint folder how weights are stored, and which image sizes its processor makes."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, get_args

from costproof.ledger.errors import BadInput, Recount, check_recounts
from costproof.ledger.files import read_json
from costproof.ledger.workload import Dtype
from costproof.storage.headers import header_object
from costproof.storage.scheme import PLAIN as NOT_QUANTISED
from costproof.storage.scheme import Scheme, UnknownFormat, names_of_none, read_scheme, scheme_keys

PROCESSOR_FILES: Final = ("preprocessor_config.json", "processor_config.json")
"""Names of processor files next to a configuration; the second file has an object for each processor."""
_PART: Final = "image_processor"
_CROPS: Final = "do_center_crop"
_SIZES: Final = (("crop_size", (_CROPS,)), ("size", ("do_resize",)))
"""Keys of an image size, of the last processing step first, with the switches that turn the step off."""
_LARGEST: Final = 16384
_TOKEN: Final = {"patch_size": 14, "merge_size": 2}
"""Keys whose product is the side of an image token in pixels, with the default values of transformers' class."""


@dataclass(frozen=True, slots=True)
class ImageSize:
    """Side in pixels of the square images that a processor makes, and the configuration key that states it."""

    side: int
    where: str


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """Least and most pixels of an image that a processor does not rescale, as for Qwen2-VL."""

    least: int
    most: int
    step: int
    """Pixels per token along a side, to whose multiples the sides of every image are rounded."""
    where: str
    """Configuration key and file that state the limits."""

    def fit(self, side: int) -> ImageSize:
        """Return the size to which the processor resizes a square image with this side."""
        nearest = max(round(side / self.step), 1)
        if (nearest * self.step) ** 2 > self.most:
            nearest = max(math.isqrt(self.most) // self.step, 1)
        elif (nearest * self.step) ** 2 < self.least:
            nearest = -(-(math.isqrt(max(self.least - 1, 0)) + 1) // self.step)
        return ImageSize(nearest * self.step, self.where)


def pixel_limits(path: Path) -> PixelLimits | None:
    """Return the pixel limits of the processor next to a configuration, or ``None`` if it has none.

    Raises:
        BadInput: the file of the processor cannot be read.
    """
    for part, prefix, name in _parts(path):
        size = part.get("size")
        for given, least, most, inner in (
            (part, "min_pixels", "max_pixels", prefix),
            (size if isinstance(size, dict) else {}, "shortest_edge", "longest_edge", f"{prefix}.size"),
        ):
            low, high = (n if type(n := given.get(key)) is int and n > 0 else None for key in (least, most))
            # A longest edge beyond any side is a number of pixels, as of Qwen2-VL; below that it is an edge.
            if high is None or low is None or low > high or (given is size and high <= _LARGEST):
                continue
            patch, merge = (n if type(n := part.get(key)) is int and n > 0 else usual for key, usual in _TOKEN.items())
            if 0 < patch * merge <= _LARGEST and low <= _LARGEST**2:
                return PixelLimits(low, high, patch * merge, f"{inner}.{most} in {name}")
    return None


def image_size(path: Path) -> ImageSize | None:
    """Return the size to which the processor next to a configuration resizes square images.

    Args:
        path: the configuration.

    Returns:
        ``None`` if there is no processor, or if it does not resize images to squares of one size.

    Raises:
        BadInput: the file of the processor cannot be read.
    """
    for part, prefix, name in _parts(path):
        for key, side in _sides(part):
            return None if side is None else ImageSize(side, f"{prefix}.{key} in {name}")
    return None


def _parts(path: Path) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Yield (object, JSON path, file name) for each object with image settings in a processor's files."""
    for name in PROCESSOR_FILES:
        file = path.parent / name
        data = read_json(file, what="configuration of a processor") if is_there(file) else None
        for part, prefix in ((data, "$"), (data.get(_PART) if isinstance(data, dict) else None, f"$.{_PART}")):
            if isinstance(part, dict):
                yield part, prefix, name


def is_there(file: Path) -> bool:
    """Return whether a regular file exists next to a configuration.

    Raises:
        BadInput: a dangling link, a FIFO, a device or a folder has its name; ignoring it would hide what it describes.
    """
    if os.path.lexists(file) and not file.is_file():
        got = "a link that leads nowhere" if file.is_symlink() and not file.exists() else "not a regular file"
        raise BadInput("a file beside the configuration cannot be read", where=str(file), expected="a file", got=got)
    return file.is_file()


def unfit(images: ImageSize, expected: object, place: str) -> BadInput:
    """Return the error for an image size that the model cannot run on.

    Args:
        expected: image size that the model runs on.
        place: path of the configuration.
    """
    what, fix = (
        "the image processor makes images of another size than the vision tower takes",
        "--image-size SIDE if the target has this option; else make the two files agree",
    )
    return BadInput(what, where=f"{images.where} beside {place}", expected=expected, got=images.side, fix=fix)


def _sides(part: Mapping[str, Any]) -> Iterator[tuple[str, int | None]]:
    """Yield (key, side in pixels or ``None``) of each image size in force, in order of precedence."""
    for key, switches in _SIZES:
        if part.get(key) is not None and all(part.get(switch, True) is True for switch in switches):
            yield key, _side(part[key])


def _side(value: Any) -> int | None:
    """Return the side of the square image that a size setting states; ``None`` for other settings."""
    if isinstance(value, dict):
        given = {key: n for key, n in value.items() if n is not None}
        sides = set(given.values()) if given.keys() in ({"height", "width"}, {"shortest_edge"}) else set()
        value = sides.pop() if len(sides) == 1 else None
    return value if type(value) is int and 0 < value <= _LARGEST else None


_KEY: Final = re.compile(
    r"((\w+_)?(quant|quanti[sz](e|ed|ation)|compression)_(config|cfg|method|algo|bits?|dtype|type|scheme)"
    r"|(hqq|quark|awq|gptq|bnb|quanto|torchao|aqlm|exl[23]|modelopt|auto_?round)_config|quanti[sz]ed"
    r"|_?load_in_[48]bit|_pre_quantization_dtype|expert_dtype|weights?_(dtype|bits|bit_width)|w_?bits?)"
)
"""Configuration keys, at any depth, that describe a quantised checkpoint."""
_MLX: Final = "quantization"
"""Configuration key that describes quantisation if its value is a text or has a key of :data:`_OF_A_FORMAT`."""
_OF_A_FORMAT: Final = ("bits", "group_size", "quant_method", "quant_algo", "mode")
_NOT_BELOW: Final = 16
"""Least number of bits at which weights do not count as quantised."""
QUANTISATION_FILES: Final = (
    "hf_quant_config.json", "quantize_config.json", "quantization_config.json", "quant_config.json",
    "quanto_qmap.json", "quantization_map.json",
)  # fmt: skip
"""Names of files of ModelOpt, AutoGPTQ, AutoRound, AutoAWQ and Quanto that describe quantised weights."""
_DESCRIPTIONS: Final = "quant_model_description*.json"
"""Name pattern of the files of msModelSlim that describe quantised weights."""
_INDICES: Final = "*.index*.json"
_WEIGHTS: Final = "*.safetensors"
_GGUF: Final = "*.gguf"
_NOT_PACKED: Final = re.compile(r"(?i).*(f16|f32|fp16|fp32).*")
"""Name pattern of GGUF files with unquantised weights."""
_MOST_FILES: Final = 256
_RECIPE: Final = "recipe.yaml"
"""Name of the file in which llm-compressor states its changes of a checkpoint."""
_MODIFIER: Final = re.compile(r"\b(\w+Modifier)\b")
_NOT_QUANTISING: Final = re.compile(
    r"(SparseGPT|Wanda(Pruning)?|(Magnitude|Constant|Global\w*|Layer\w*)Pruning|OutputDistillation|SmoothQuant"
    r"|LogarithmicEqualization|CycleEqualization|LearningRate|Training|Transform|SpinQuant|QuIP)Modifier"
)
"""Modifiers of llm-compressor that leave weights unquantised: they prune, train, or change only values."""
_SCHEME: Final = re.compile(r"^\W*scheme\W+(\w+)", re.MULTILINE)
_KV_SCHEME: Final = re.compile(r"^\W*kv_cache_scheme['\"]?\s*:(?![ \t]*(null|~)[ \t]*$)", re.MULTILINE)
_TABLE: Final = re.compile(r"(^|\.)(embed_tokens|wte|shared|word_embeddings|embed_in|tok_embeddings)\.weight$")
_OUTPUT: Final = re.compile(r"(^|\.)(lm_head|embed_out|output)\.weight$")
_BUFFER: Final = re.compile(r"(^|\.)(inv_freq|masked_bias|attn\.bias|attention\.bias|position_ids)$")
_OF_CACHE: Final = re.compile(r".*(^|[._])(k|v|kv|k_cache|v_cache|kv_cache)_(scale|scaling_factor|zero_point)s?")
"""Names of tensors that only a checkpoint with a quantised key/value cache has."""
_PACKED: Final = re.compile(
    r".*(\.(q?weight|[A-Za-z_]*proj)\.(absmax|quant_map|quant_state\.\w+|_data|_scale|qdata|scales|zeros|indices)"
    r"|\.(qweight|qzeros|q_weight|q_scale|g_idx|SCB|absmax|quant_map|codes|codebooks|W_q|trellis|Qidxs|lookup_table"
    r"|centroids\.weight|input_scale|qscale_\w+|deq_scale|quant_bias|weight_(packed\w*|scales?|scale_inv|scale_2|qdata"
    r"|zero_point|shape|global_scale|format)|\w*quantizer\._\w+)|[._](gate_up|down)_proj_(blocks|scales))"
)
"""Names of tensors that only a quantised checkpoint has."""
_NARROW: Final = re.compile(r"F8_\w+|F[46]\w*|[IU][48]")
"""Dtypes in safetensors headers of weights that must be quantised, since no run uses these dtypes."""
_METHODS: Final = ("quant_method", "quant_algo", "quantization_method")
_BITS: Final = ("bits", "num_bits", "w_bit", "wbits", "weight_bits")
_GROUPS: Final = ("group_size", "q_group_size")
_CACHES: Final = ("kv_cache_scheme", "kv_cache_quant_algo", "kv_cache_dtype", "cache_dtype")
_DTYPES: Final = ("dtype", "torch_dtype")
_BEFORE: Final = "_pre_quantization_dtype"
_PLAIN_VALUES: Final = (None, "", "none", "auto", *get_args(Dtype))
_NOT_NAMED: Final = "a format without a name"
NEXT_TOKEN: Final = "num_nextn_predict_layers"
"""Key with the number of multi-token prediction modules, which follow the last layer in a checkpoint."""
_STATED: Final = ("tie_word_embeddings", NEXT_TOKEN)
"""Keys that decide which tensors a checkpoint has, if the configuration does not leave them to the class's default."""
_LONGEST: Final = 40


@dataclass(frozen=True, slots=True)
class Stored:
    """Properties of a checkpoint that its small files state, without its weights."""

    quantised: tuple[tuple[str, str], ...] = ()
    """(``weights`` or ``cache``, format and location) for each that is quantised; empty if nothing indicates it."""
    dtype: Dtype | None = None
    """Dtype in the configuration; ``None`` without a dtype there, or if no run supports it."""
    images: ImageSize | None = None
    """Size to which the processor resizes images; ``None`` if unknown."""
    pixels: PixelLimits | None = None
    """Limits of pixels within which the processor does not rescale an image; ``None`` if unknown."""
    described: str = ""
    """JSON text of the quantisation settings: configuration keys that
    :mod:`costproof.storage.scheme` reads, and under ``beside`` the contents of further files.
    """
    folder: str = ""
    """Folder with the weights, or their headers, in safetensors or GGUF files; empty if there are none."""
    stated: tuple[tuple[str, int], ...] | None = field(default=None, compare=False)
    """Values of the keys :data:`_STATED` in the configuration; ``None`` without a configuration."""

    def scheme(self, model_type: str) -> Scheme:
        """Return the quantisation scheme of the stored weights.

        Raises:
            UnknownFormat: they are, in a manner whose layout is not known.
        """
        named = dict(self.quantised).get("weights", "")
        found = json.loads(self.described) if self.described else {}
        scheme = read_scheme(found, found.get("beside", {}), model_type)
        if named and scheme == NOT_QUANTISED:
            raise UnknownFormat(named, "no layout is known for it")
        return scheme

    def names_of_none(self, paths: Iterable[str], classes: Collection[str]) -> list[str]:
        """Return the names in the quantisation settings that match nothing in the model and have no effect.

        Args:
            paths: paths of modules and names of tensors, as in :func:`.scheme.names_of_none`.
            classes: names of the classes of modules.
        """
        found = json.loads(self.described) if self.described else {}
        return names_of_none(found, found.get("beside", {}), paths, classes)

    @property
    def cache_dtype(self) -> str | None:
        """Return the key/value cache format in the quantisation settings; ``None`` if it is missing or unsupported."""
        found = json.loads(self.described) if self.described else {}
        inner = found.get("text_config") or {}
        parts = [part.get(key) for part in (found, inner) for key in ("quantization_config", "compression_config")]
        parts += list(found.get("beside", {}).values())
        formats = []
        for part in (p for value in parts if isinstance(value, dict) for p in (value, value.get("quantization"))):
            if not isinstance(part, dict):
                continue
            scheme, algorithm = part.get("kv_cache_scheme"), str(part.get("kv_cache_quant_algo") or "").lower()
            if isinstance(scheme, dict) and (scheme.get("num_bits"), scheme.get("type", "float")) == (8, "float"):
                formats.append("fp8")
            if algorithm in ("fp8", "nvfp4"):
                formats.append(algorithm)
        kind = formats[0] if formats else None
        if again := _cache_formats(found):
            check_recounts([Recount("configuration", "the format of the cache", "is read", kind in again, True)])
        return kind


PLAIN: Final = Stored()
"""Properties of a checkpoint without any information."""


def stored(data: object, path: Path | None) -> Stored:
    """Read the properties of a checkpoint from its configuration and the files next to it.

    Args:
        data: the configuration.
        path: its file; ``None`` without one.

    Raises:
        BadInput: a file beside it cannot be read, or a value is none that its key takes.
    """
    _check(data, "$")
    places = list(_described(data, "$"))
    weights = [f"{_format(value)} ({place})" for place, value in places]
    cache = [f"{text} ({place})" for place, value in places if (text := _cache(value))]
    cache += _caches(data, "$")
    if path is not None:
        for name, value in _beside(path):
            weights.append(f"{_format(value)} ({name})")
            cache += [f"{text} ({name})" for text in (_cache(value),) if text]
        recipe = _recipe(path.parent)
        weights += [] if weights else recipe.get("weights", [])
        cache += [] if cache else recipe.get("cache", [])
        signs = {} if weights and cache else _signs(path.parent)
        weights += [] if weights else [f"{_NOT_NAMED} ({sign})" for sign in signs.get("weights", ())]
        cache += [] if cache else [f"{_NOT_NAMED} ({sign})" for sign in signs.get("cache", ())]
    if not weights and (missed := next(_described_again(data), "")):
        check_recounts([Recount("configuration", missed, "the description of quantised weights is read", False, True)])
    weights += [] if weights else [f"{_NOT_NAMED} ({file})" for file in _files_again(path)]
    if not weights:
        odd = next((name for name in _dtypes(data) if name not in (*get_args(Dtype), "auto")), "")
        weights += [f"{odd[:_LONGEST]} (the dtype that the configuration names)"] if odd else []
    named = _dtype(data)
    stated = {
        value.removeprefix("torch.")
        for key, value in _pairs(data)
        if key in _DTYPES and isinstance(value, str) and value
    }
    if len(stated) == 1:
        check_recounts([Recount("configuration", "its only dtype", "is read", {named} == stated, True)])
    found = {"weights": "; ".join(weights), "cache": "; ".join(cache)}
    run = named if named in get_args(Dtype) else None
    quantised = tuple((part, text) for part, text in found.items() if text)
    images, pixels = (None, None) if path is None else (image_size(path), pixel_limits(path))
    described = _descriptions(data, path) if found["weights"] else ""
    weights_there = path is not None and any(next(path.parent.glob(kind), None) for kind in (_WEIGHTS, _GGUF))
    folder = str(path.parent.absolute()) if path is not None and weights_there else ""
    pixels = None if images else pixels
    return Stored(quantised, run, images, pixels, described, folder, tuple(_stated(data)))  # type: ignore[arg-type]


def _check(data: object, path: str) -> None:
    """Check configuration keys that no class of transformers checks, or that contradict each other.

    Raises:
        BadInput: a dtype is not a name, a base of rotary positions not a number, or weights have both 4 and 8 bits.
    """
    if not isinstance(data, dict):
        return
    for key, value in data.items():
        where, got = f"{path}.{key}", json.dumps(value, default=str)[:_LONGEST]
        if key in _DTYPES and not (value is None or isinstance(value, str | dict)):
            raise BadInput("this is not the name of a dtype", where=where, expected='a name, as "bfloat16"', got=got)
        if key == "rope_theta" and not all(map(_is_base, value if isinstance(value, list) else [value])):
            raise BadInput("this is not a base of rotary positions", where=where, expected="a positive number", got=got)
        _check(value, where)
    if all(data.get(f"load_in_{n}bit") or data.get(f"_load_in_{n}bit") for n in (4, 8)):
        expected = "load_in_4bit or load_in_8bit"
        raise BadInput("the weights cannot have both 4 and 8 bits", where=path, expected=expected, got="both are true")


def _is_base(value: object) -> bool:
    """Return whether a value is valid as ``rope_theta``: a finite positive number, or ``None`` for the default."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (number and 0 < value < math.inf)  # type: ignore[operator]


def _descriptions(data: object, path: Path | None) -> str:
    """Return the quantisation settings in a configuration and the files next to it, as JSON text."""
    beside = dict(_beside(path)) if path is not None else {}
    read = scheme_keys(data) if isinstance(data, dict) else {}
    return json.dumps({**read, "beside": beside})


def _beside(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (file name, content) of the files next to a configuration that describe quantised weights."""
    named = (path.parent / name for name in QUANTISATION_FILES)
    for beside in (*named, *sorted(path.parent.glob(_DESCRIPTIONS))):
        if is_there(beside) and beside != path:
            yield beside.name, read_json(beside, what="description of a quantised checkpoint")


def without(data: Any) -> Any:
    """Return a configuration without the keys that describe quantisation, which do not affect the model."""
    if not isinstance(data, dict):
        return data
    return {key: without(value) for key, value in data.items() if not _describes(key, value)}


def without_dtype(data: Any) -> Any:
    """Return a configuration without the dtype that :func:`stored` reads."""
    if not isinstance(data, dict):
        return data
    return {key: value for key, value in data.items() if not (key in _DTYPES and isinstance(value, str))}


def _describes(key: str, value: Any) -> bool:
    if key in _CACHES:
        return True
    if key == _MLX:
        return isinstance(value, str) or (isinstance(value, dict) and any(k in value for k in _OF_A_FORMAT))
    return _KEY.fullmatch(key) is not None


def _says_so(key: str, value: Any) -> bool:
    """Return whether the value of a quantisation key means that weights are quantised."""
    if key == _BEFORE:
        return bool(value)
    if key in _CACHES or value is False or value in _PLAIN_VALUES:
        return False
    return type(value) is not int or 0 < value < _NOT_BELOW


def _described(data: object, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the JSON path and the value of each description of quantised weights in a configuration."""
    for key, value in data.items() if isinstance(data, dict) else ():
        if _describes(key, value):
            if _says_so(key, value):
                yield f"{path}.{key}", value
        else:
            yield from _described(value, f"{path}.{key}")


_SPEAKS: Final = re.compile(r"(?i)(.*[._-])?quant(o|i[sz](ed|e|ation))?[._-].*json")
"""Name of a file that describes quantised weights, whichever library wrote it."""
_CONTENT: Final = re.compile(
    r'(?i)"(\w*quant\w*|w_?bits?|bits|q_group_size|group_size|weights)"|"(W\dA\d+|q?u?int[248])\w*"'
)


def _described_again(data: object) -> Iterator[str]:
    """Yield the places that describe quantised weights, by the contents of objects at any depth.

    A second reading, to check the first one, which looks up keys of :data:`_KEY`.
    """
    left = [(data, "$")]
    while left:
        value, where = left.pop()
        if isinstance(value, list):
            left += [(inner, f"{where}[{i}]") for i, inner in enumerate(value)]
        if not isinstance(value, dict):
            continue
        left += [(inner, f"{where}.{key}") for key, inner in value.items()]
        method = any(isinstance(value.get(f"quant_{key}"), str) for key in ("method", "algo"))
        bits = next((n for key in ("bits", "num_bits", "w_bit") if type(n := value.get(key)) is int), 0)
        grouped = 1 < bits < 16 and not {"group_size", "q_group_size"}.isdisjoint(value)
        if method or grouped or True in (value.get("load_in_4bit"), value.get("load_in_8bit")):
            yield where


def _files_again(path: Path | None) -> Iterator[str]:
    """Yield names of files next to a configuration that describe quantised weights and are not known by name.

    A tool of which nothing is known wrote them, so that the weights are of no known format.
    """
    for file in sorted(path.parent.iterdir()) if path is not None and path.parent.is_dir() else ():
        if _SPEAKS.fullmatch(file.name) and file != path and file.is_file():
            text = file.read_bytes()[:_MOST_READ].decode("utf-8", "replace")
            if '"model_type"' not in text and _CONTENT.search(text):
                yield file.name


_MOST_READ: Final = 2**20


def _format(value: object) -> str:
    """Return a readable name of a quantisation format, such as ``fp8, blocks of 128 x 128``."""
    if isinstance(value, str):
        return value[:_LONGEST] or _NOT_NAMED
    if type(value) is int:
        return f"{value} bits"
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
    """Yield nested objects with quantisation settings: those of groups, and of ModelOpt's file."""
    groups = value.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        if isinstance(group, dict) and isinstance(group.get("weights"), dict):
            yield group["weights"]
    if isinstance(value.get(_MLX), dict):
        yield value[_MLX]


def _cache(value: object) -> str:
    """Return the cache format in a quantisation description; empty if it has none."""
    if not isinstance(value, dict):
        return ""
    said = (v[k] for v in (value, *_inside(value)) for k in _CACHES if v.get(k) and v[k] not in _PLAIN_VALUES)
    named = next(said, None)
    return "" if named is None else named[:_LONGEST] if isinstance(named, str) else _format(named)


def _cache_formats(described: Mapping[str, Any]) -> set[str]:
    """Return the names of key/value cache formats that a regular expression finds in the text of the settings.

    A second reading, to check the first one, which looks up keys.
    """
    sections = ("quantization_config", "compression_config")
    inner = described.get("text_config") or {}
    text = json.dumps([described.get("beside", {}), *(of.get(key) for of in (described, inner) for key in sections)])
    found = {name.lower() for name in re.findall(r'"kv_cache_quant_algo": "(fp8|nvfp4)"', text, re.IGNORECASE)}
    for scheme in re.findall(r'"kv_cache_scheme": \{([^{}]*)\}', text):
        is_float = '"type": "float"' in scheme or '"type": ' not in scheme
        found |= {"fp8"} if re.search(r'"num_bits": 8\b(?!\.)', scheme) and is_float else set()
    return found


def _caches(data: object, path: str) -> Iterator[str]:
    """Yield each key/value cache format in a configuration and its sections, with its JSON path."""
    for key, value in data.items() if isinstance(data, dict) else ():
        if key in _CACHES and (text := _cache({key: value})):
            yield f"{text} ({path}.{key})"
        elif isinstance(value, dict) and not _describes(key, value):
            yield from _caches(value, f"{path}.{key}")


def _recipe(folder: Path) -> dict[str, list[str]]:
    """Return the formats of ``weights`` and ``cache`` in an llm-compressor recipe, as lists by these names."""
    if not is_there(folder / _RECIPE):
        return {}
    from costproof.ledger.document import read_source

    text = read_source(folder / _RECIPE, "a recipe of llm-compressor")
    found: dict[str, list[str]] = {}
    names = [name for name in dict.fromkeys(_MODIFIER.findall(text)) if not _NOT_QUANTISING.fullmatch(name)]
    if names:
        scheme = _SCHEME.search(text)
        found["weights"] = [f"{(scheme[1] if scheme else names[0])[:_LONGEST]} ({_RECIPE})"]
    if _KV_SCHEME.search(text):
        found["cache"] = [f"{_NOT_NAMED} ({_RECIPE})"]
    return found


def _signs(folder: Path) -> dict[str, list[str]]:
    """Return the first sign in tensor headers and file names that ``weights`` or ``cache`` are quantised."""
    found: dict[str, list[str]] = {}
    for file, name, part in _tensors(folder):
        found.setdefault(part, [f"{name[-60:]} in {file}"])
    if "weights" not in found and (contradicted := next(_contradicted(folder), "")):
        found["weights"] = [contradicted]
    if "weights" not in found and next(folder.glob(_WEIGHTS), None) is None:
        files = sorted(file.name for file in folder.glob(_GGUF))
        found["weights"] = [name[-60:] for name in files if not _NOT_PACKED.fullmatch(name)][:1]
    return found


def _tensors(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (file, name, ``weights`` or ``cache``) of tensors that only quantised checkpoints have."""
    for index in filter(is_there, islice(sorted(folder.glob(_INDICES)), _MOST_FILES)):
        for name in sorted(_index(index)[0]):
            if part := _sign(name):
                yield index.name, name, part
    for file in filter(is_there, islice(sorted(folder.glob(_WEIGHTS)), _MOST_FILES)):
        for name, tensor in sorted(_header(file).items()):
            dtype = str(tensor.get("dtype", "")) if isinstance(tensor, dict) else ""
            if part := _sign(name, dtype):
                yield file.name, name, part


def _sign(name: str, dtype: str = "") -> str:
    """Return ``weights`` or ``cache`` if a tensor exists only where these are quantised; else an empty text."""
    if _OF_CACHE.fullmatch(name):
        return "cache"
    return "weights" if _PACKED.fullmatch(name) or (name.endswith("weight") and _NARROW.fullmatch(dtype)) else ""


def _index(file: Path) -> tuple[dict[str, str], int | None]:
    """Return the file of each tensor, and the total size in bytes, from a checkpoint's index."""
    data = read_json(file, what="index of the weights")
    names = data.get("weight_map") if isinstance(data, dict) else None
    metadata = data.get("metadata") if isinstance(data, dict) else None
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    files = {str(k): str(v) for k, v in names.items()} if isinstance(names, dict) else {}
    return files, size if type(size) is int and size > 0 else None


def _contradicted(folder: Path) -> Iterator[str]:
    """Yield a text for each index whose total size contradicts the tensors in its shards, if all shards are there.

    A total is the bytes of the tensors, of the files with their headers, or of the tensors with a copy of a table of
    tokens that the output shares. It may leave out tensors that the index does not name, and buffers. No other
    difference is accepted, however small.
    """
    for index in filter(is_there, islice(sorted(folder.glob(_INDICES)), _MOST_FILES)):
        names, total = _index(index)
        files = sorted({folder / Path(name).name for name in names.values()})
        if total is None or not 0 < len(files) <= _MOST_FILES or not all(map(is_there, files)):
            continue
        headers = [_header(file) for file in files]
        sizes = {name: size for header in headers for name, tensor in header.items() if (size := _bytes(tensor))}
        if not all(any(name in sizes for name in header) for header in headers):
            continue
        held = sum(sizes.values())
        whole = sum(file.stat().st_size for file in files)
        tables = [size for name, size in sizes.items() if _TABLE.search(name)]
        more = {0, whole - held, *(tables if not any(map(_OUTPUT.search, sizes)) else ())}
        unnamed = sum(size for name, size in sizes.items() if name not in names)
        buffers = sum(size for name, size in sizes.items() if _BUFFER.search(name))
        if total - held not in {m - less for m in more for less in (0, unnamed, buffers)}:
            yield f"total_size {total} in {index.name}, {held} bytes in its files"


def _bytes(tensor: object) -> int:
    """Return the bytes of a tensor's data in its file; 0 if the header does not state them."""
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    if not isinstance(offsets, list) or [type(n) for n in offsets] != [int, int]:
        return 0
    return max(0, int(offsets[1]) - int(offsets[0]))


def _header(file: Path) -> dict[str, Any]:
    """Return the header of a safetensors file, or ``{}`` if the file is not one, such as a Git LFS pointer."""
    try:
        with file.open("rb") as stream:
            return header_object(stream, file)
    except (OSError, BadInput):
        return {}


def _dtypes(data: object) -> Iterator[str]:
    """Yield the dtypes that a configuration and its sections name."""
    if not isinstance(data, dict):
        return
    for key, value in data.items():
        if key in _DTYPES:
            named: Iterable[object] = value.values() if isinstance(value, dict) else (value,)
            yield from (text.removeprefix("torch.") for text in named if isinstance(text, str) and text)
        elif isinstance(value, dict) and not _describes(key, value):
            yield from _dtypes(value)


def _stated(data: object) -> Iterator[tuple[str, int]]:
    """Yield (key, value) for each key of :data:`_STATED` that a configuration or its text section sets to a number."""
    parts = (data, data.get("text_config") if isinstance(data, dict) else None)
    for key in _STATED:
        values = (part.get(key) for part in parts if isinstance(part, dict))
        yield from [(key, value) for value in values if isinstance(value, int)][:1]


def _pairs(data: object) -> Iterator[tuple[str, object]]:
    """Yield the (key, value) pairs of a configuration and of its text section."""
    for key, value in data.items() if isinstance(data, dict) else ():
        yield key, value
        yield from value.items() if key == "text_config" and isinstance(value, dict) else ()


def _dtype(data: object) -> str:
    """Return the dtype in a configuration, or else in its text section."""
    for part in (data, data.get("text_config") if isinstance(data, dict) else None):
        for key in _DTYPES:
            value = part.get(key) if isinstance(part, dict) else None
            if isinstance(value, str) and value:
                return value.removeprefix("torch.")
    return ""
