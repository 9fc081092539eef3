"""Read a quantisation configuration as the library that loads or writes the checkpoint does, for the static source.

This is independent of :mod:`costproof.storage.scheme`, which formulas use: both share only the classes of formats, so
that a mistake in either shows as a difference. There, a configuration becomes rules; here, each module is looked up in
the configuration, and transformers itself says what it leaves unquantised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.attributes import attribute
from costproof.ledger.errors import first_line
from costproof.storage import formats
from costproof.storage.formats import Format
from costproof.storage.scheme import LinearModule, UnknownFormat
from costproof.weights.stored import Stored

if TYPE_CHECKING:
    from torch import nn

Settings = Mapping[str, Any]


def products_stated(described: str) -> frozenset[str] | None:
    """Return the dtypes in which quantised layers multiply, according to their settings; ``None`` if unknown.

    They are named as by ``Format.products``: empty if inputs are not quantised and weights are unpacked.

    Args:
        described: the settings as JSON, as in :class:`~costproof.weights.stored.Stored`.
    """
    every = list(_pairs(json.loads(described or "{}")))
    stated = {key: str(value).lower() for key, value in reversed(every) if isinstance(value, (str, bool))}
    if algorithm := stated.get("quant_algo"):
        every_one = {str(value).lower() for key, value in every if key == "quant_algo"} - {"mixed_precision"}
        known = {"fp8": "float8", "nvfp4": "float4"}
        return frozenset(known[one] for one in every_one) if algorithm and every_one <= known.keys() else None
    match stated.get("quant_method", "").replace("_", "-"):
        case "fp8":
            return frozenset({"float8"})  # also of experts in fp4, whose inputs are in fp8
        case "bitsandbytes":
            four = any(value for key, value in every if key.removeprefix("_") == "load_in_4bit")
            return frozenset({"" if four else "int8"})
        case "torchao":
            kind = stated.get("_type", "")
            return frozenset({("int8" if "int8" in kind else "float8") if "dynamicactivation" in kind else ""})
        case "gptq" | "awq" | "mxfp4" | "auto-round":
            return frozenset({""})
        case "compressed-tensors":
            groups = [group for key, found in every if key == "config_groups" for group in found.values()]
            named = {name: group for group in groups for name in group.get("targets") or ()}  # the last one counts
            return frozenset(_of_inputs(group, stated.get("format")) for group in named.values())
    return None


def _pairs(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield the (key, value) pairs of all nested objects in settings, outer objects first."""
    inner = settings.values() if isinstance(settings, dict) else settings if isinstance(settings, list) else ()
    yield from settings.items() if isinstance(settings, dict) else ()
    for value in inner:
        yield from _pairs(value)


def _of_inputs(group: Settings, usual: str | None) -> str:
    weights, layout = group.get("weights") or {}, group.get("format") or usual
    if not group.get("input_activations") or layout in ("pack-quantized", "mxfp4-pack-quantized"):
        return ""
    bits = [part.get("num_bits", 8) for part in (weights, group["input_activations"])]
    if weights.get("type") == "float":
        return {8: "float8", 4: "float4"}.get(max(bits), "other")
    return "int8" if bits[0] == 8 else "other"


@dataclass(frozen=True, slots=True)
class LibraryReading:
    """Quantisation settings of a checkpoint, with the decisions of the library that reads them."""

    method: str = ""
    """Quantisation method; empty: the checkpoint is not quantised."""
    settings: Settings = field(default_factory=dict)
    model_type: str = ""
    kept: tuple[str, ...] = ()
    """Names in the configuration's list of unquantised modules, with those that transformers adds."""
    prefix: tuple[str, str] = ("", "")
    """Prefix of module paths, and the prefix under which lists name these modules."""
    listed: str = ""
    """A further prefix under which lists may name them."""

    @property
    def stacked(self) -> bool:
        """Return whether the experts of a layer are stored as stacked tensors, as in gpt-oss."""
        return self.method == "mxfp4"

    @property
    def float32(self) -> bool:
        """Return whether modules that the class keeps in float32 are also stored in float32, as by bitsandbytes."""
        return self.method == "bitsandbytes"

    @property
    def named(self) -> tuple[str, ...]:
        """Return the paths of modules with individual settings; the model must have these modules."""
        own = (key for key, value in self.settings.items() if isinstance(value, dict) or value is False)
        return tuple(own) if self.method == "mlx" else ()

    @property
    def cache(self) -> str:
        """Return the method whose scales attention stores for a quantised cache; empty: no scales."""
        scheme: Any = self.settings.get("kv_cache_scheme")
        if self.method == "modelopt":
            return self.method if self.settings.get("kv_cache_quant_algo") or scheme else ""
        is_stored = self.method == "compressed-tensors" and scheme is not None
        return self.method if is_stored and scheme.get("dynamic") is not True else ""

    def format_of(self, place: LinearModule) -> Format | None:
        """Return the format of a linear layer or embedding table; ``None`` if it is not quantised.

        Raises:
            UnknownFormat: the library has a layout of its own for the module, or none for its shape or these settings.
        """
        try:
            return self._format_of(place)
        except (AttributeError, KeyError, TypeError, ValueError, re.error) as error:
            raise UnknownFormat(self.method, f"its library does not read the settings: {first_line(error)}") from error

    def _format_of(self, place: LinearModule) -> Format | None:
        paths = tuple(self._listed(path) for path in place.paths)
        if self.listed and place.path.startswith(self.prefix[0]):
            paths = (*paths, self.listed + place.path.removeprefix(self.prefix[0]))
        if not self.method or not _TAKES[self.method](place):
            return None
        settings = self._settings_of(place, paths)
        of = None if settings is None else _FORMATS[self.method](settings, self.model_type)
        if of is None or (self.method == "torchao" and not _fits_torchao(of, place)):
            return None
        if place.is_tied and self.method != "mlx":
            raise UnknownFormat(
                self.method, f"{place.path[:60]} is tied and not left out: its library would make a copy"
            )
        if place.rows % of.unit[0] or place.columns % of.unit[1]:
            raise UnknownFormat(self.method, f"{place.path[:60]} [{place.rows}, {place.columns}] is not whole groups")
        return of

    def _listed(self, path: str) -> str:
        old, new = self.prefix
        return new + path[len(old) :] if old and path.startswith(old) else path

    def _settings_of(self, place: LinearModule, paths: tuple[str, ...]) -> Settings | None:
        """Return the quantisation settings of a module; ``None`` if it is not quantised."""
        match self.method:
            case "fp8" | "bitsandbytes" | "torchao":
                own = {} if place.kind == "Expert" else {"expert_dtype": ""}
                return {**self.settings, **own} if self._is_converted(paths) else None
            case "awq":  # a name may be any part of a path
                return None if [name for name in self.kept for path in paths if path.count(name)] else self.settings
            case "modelopt" if self.settings["quant_algo"].upper() == "MIXED_PRECISION":
                layers = self.settings["quantized_layers"]
                inside = [name for path in paths for name in layers if f"{path}.".startswith(f"{name}.")]
                left = [n for n in self.kept for p in paths if fnmatchcase(p, n) or p.startswith(n.rstrip(".*") + ".")]
                return None if left or not inside else layers[max(inside, key=len)]
            case "modelopt":  # the pattern of a module, or the name of one that it is inside of
                outer = {outer for path in paths for outer in accumulate(path.split("."), "{}.{}".format)}
                found = [n for n in self.kept if n.rstrip(".*") in outer or any(fnmatchcase(p, n) for p in paths)]
                return None if found or (not self.kept and place.is_head) else self.settings
            case "gptq":
                return self._of_gptq(place, paths)
            case "mlx":
                return self._of_mlx(place, paths)
            case "auto-round":
                return self._of_autoround(place, paths)
            case "compressed-tensors":
                groups = [(key, group) for group in self.settings["config_groups"].values()
                          for name in group.get("targets") or () if (key := _target(name, place, paths))]  # fmt: skip
                kept = any(_target(name, place, paths) for name in self.kept)
                first = min(groups, key=lambda found: found[0], default=None)
                return None if kept or first is None else {"format": self.settings.get("format"), **_stated(first[1])}
        return self.settings

    def _is_converted(self, paths: tuple[str, ...]) -> bool:
        from transformers.quantizers.quantizers_utils import should_convert_module

        end = ".weight" if self.method == "torchao" else ""  # which is asked of parameters
        return all(should_convert_module(path + end, list(self.kept)) for path in paths)

    def _of_gptq(self, place: LinearModule, paths: tuple[str, ...]) -> Settings | None:
        """Return GPTQ settings of a module: the first match in ``dynamic`` decides (GPTQModel, dynamic_get).

        Of a layer, only the modules of ``modules_in_block_to_quantize`` are quantised if it is there (optimum,
        GPTQQuantizer), and only of layers in the block that ``block_name_to_quantize`` names.
        """
        if place.is_head and self.settings.get("lm_head") is not True:
            return None
        if not place.is_head and not _is_in_a_layer(place):
            return None
        if not place.is_head:
            lists, around = (self.settings.get(f"{key}_to_quantize") for key in ("modules_in_block", "block_name"))
            if lists and not [name for names in lists for name in names if paths[0].endswith(name)]:
                return None
            if around and not [path for path in paths if f".{path}".find(f".{around}.") == 0]:
                return None
        for pattern, own in (self.settings.get("dynamic") or {}).items():
            sign, expression = re.fullmatch(r"([+-]:)?(.*)", pattern, re.DOTALL).groups()  # type: ignore[union-attr]
            if any(re.match(expression, path) for path in paths):
                return None if sign == "-:" else {**self.settings, **own}
        return self.settings

    def _of_autoround(self, place: LinearModule, paths: tuple[str, ...]) -> Settings | None:
        """Return AutoRound's settings of a module (auto_round.inference.convert_model, get_layer_config).

        Settings under a name count before those under a pattern, and of patterns the first; 16 bits mean that the
        layer is not quantised.
        """
        extra, blocks = self.settings.get("extra_config") or {}, self.settings.get("block_name_to_quantize") or ""
        starts = blocks.split(",") if isinstance(blocks, str) else blocks
        starts = [_alike(start) if isinstance(start, list) else start for start in starts if start]
        own = [extra[path] for path in paths if path in extra]
        if not own:
            in_blocks = [start for start in starts for path in paths if path.find(start.strip()) == 0]
            if place.is_head or not (in_blocks if starts else _is_in_a_numbered_layer(place)):
                return None
            names = [
                name for name in extra if extra[name] and (set(name) & set("*^$|()[]?+") or not _NUMBER.search(name))
            ]
            own = [extra[name] for name in names if [path for path in paths if re.search(name, path)]]
        settings = {**self.settings, **(own[0] if own else {})}
        return None if settings["bits"] >= 16 else settings

    def _of_mlx(self, place: LinearModule, paths: tuple[str, ...]) -> Settings | None:
        """Return MLX settings of a module: those under its path, else the common ones (mlx_lm.utils.load_model)."""
        for own in (self.settings[path] for path in paths if path in self.settings):
            return {**self.settings, **own} if isinstance(own, dict) else None
        if place.kind == "Expert":
            raise UnknownFormat("mlx", "MLX has modules of its own for experts and routers")
        is_seen = re.search(r"vision_tower|vision_model|visual", place.path)
        return None if is_seen or place.columns % self.settings["group_size"] else self.settings


def library_reading(stored: Stored, model: nn.Module) -> LibraryReading:
    """Return the quantisation of a model's checkpoint, from the settings in :class:`Stored`.

    Only configurations that :func:`~costproof.storage.scheme.read_scheme` accepts are read.
    """
    data = json.loads(stored.described) if stored.described else {}
    model_type = str(attribute(attribute(model, "config"), "model_type", ""))
    stated = [part[key] for part in (data, data.get("text_config") or {})
              for key in ("quantization_config", "compression_config", "quantization") if part.get(key)]  # fmt: skip
    for settings in (*stated, *data.get("beside", {}).values()):
        match settings:
            case {"quant_method": str(name), **_rest} if name:
                method = name.lower().replace("_", "-")
            case {"quantization": {"quant_algo": _} as inner}:
                method, settings = "modelopt", inner
            case {"quant_algo": _}:
                method = "modelopt"
            case {"bits": _, "desc_act": _}:
                method = "gptq"
            case {"bits": _, "group_size": _}:
                method = "mlx"
            case _:
                method = "awq"
        if method == "modelopt" and "quantization" in settings:
            settings = settings["quantization"]
        if settings.get("quant_algo") == "MIXED_PRECISION" and not settings.get("quantized_layers"):
            settings = next(own["quantization"] for own in data["beside"].values() if "quantization" in own)
        names = next((settings[key] for key in _LISTS.get(method, ()) if settings.get(key) is not None), None)
        if method == "fp8" and model_type == "deepseek_v4" and data.get("expert_dtype"):  # DeepseekV4Config moves it
            settings = {"expert_dtype": data["expert_dtype"], **settings}
        if method in ("fp8", "bitsandbytes", "torchao"):
            names = _kept_by_transformers(model, names)
        return LibraryReading(method, settings, model_type, tuple(names or ()))
    return LibraryReading()


def _kept_by_transformers(model: nn.Module, names: list[str] | None) -> list[str]:
    """Return the names of modules that transformers leaves unquantised, by a list or, without a list, by the model."""
    from transformers.quantizers.base import HfQuantizer

    found: list[str] = HfQuantizer.get_modules_to_not_convert(
        model, names if names is None else list(names), attribute(model, "_keep_in_fp32_modules")
    )
    return found


_LISTS: Final = {
    "fp8": ("modules_to_not_convert", "ignored_layers"), "bitsandbytes": ("llm_int8_skip_modules",),
    "torchao": ("modules_to_not_convert",), "awq": ("modules_to_not_convert",), "compressed-tensors": ("ignore",),
    "modelopt": ("exclude_modules", "ignore"),
}  # fmt: skip
"""Keys of the list of unquantised modules, by method; the first key with a value counts."""


_NUMBER: Final = re.compile(r"\.\d+\.")


def _alike(names: list[str]) -> str:
    """Return the characters with which all names begin, without dots at the end."""
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*names, strict=False))
    return "".join(column[0] for column in columns).rstrip(".")


def _is_in_a_numbered_layer(place: LinearModule) -> bool:
    return re.search(r"(^|\.)(layers?|h|blocks?)\.\d+\.", place.own_path or place.path) is not None


def _is_in_a_layer(place: LinearModule) -> bool:
    """Return whether a module is in a layer that AutoGPTQ and AutoAWQ process, and has more than one row."""
    return _is_in_a_numbered_layer(place) and place.rows > 1


def _is(*names: str) -> Callable[[LinearModule], bool]:
    return lambda place: bool({*names} & {*place.classes})


_TAKES: Final[Mapping[str, Callable[[LinearModule], bool]]] = {
    "fp8": lambda place: re.fullmatch(r"Linear|Expert|\w*GroupedLinear\w*", place.kind) is not None,
    "bitsandbytes": lambda place: place.kind in ("Linear", "Conv1D", "Expert"),
    "awq": lambda place: _is("Linear")(place) and _is_in_a_layer(place),
    "gptq": _is("Linear", "Conv1D"),
    "auto-round": _is("Linear", "Conv1D"),
    "mlx": _is("Linear", "Embedding"),
    "mxfp4": lambda place: place.kind == "Expert",
    "modelopt": _is("Linear"),
    "compressed-tensors": _is("Linear", "Embedding"),
    "torchao": _is("Linear"),
}
"""Predicate by method: whether the library quantises modules of this class."""


def _target(name: str, place: LinearModule, paths: tuple[str, ...]) -> tuple[int, bool, str] | None:
    """Return the priority of a compressed-tensors target that matches a module, lowest first; else ``None``."""
    expression = name[3:] if name.startswith("re:") else None
    if expression is None and name in paths:
        return 0, False, name
    if expression is not None and [path for path in paths if re.match(expression, path)]:
        return 1, True, name
    return (2, False, name) if name in place.classes else None


def _stated(settings: Settings) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}


def _of_bitsandbytes(settings: Settings, _: str) -> Format:
    stated = {key.removeprefix("_"): value for key, value in settings.items()}
    if not stated.get("load_in_4bit"):
        return formats.LlmInt8()
    kind, nested = (stated.get(f"bnb_4bit_{key}") for key in ("quant_type", "use_double_quant"))
    return formats.FourBit(kind or "fp4", nested is True or nested == 1)


def _of_gptq(settings: Settings, _: str) -> Format:
    if settings.get("is_marlin_format"):
        raise UnknownFormat("gptq", "its library stores tiles of Marlin (is_marlin_format)")
    named = [(settings.get("meta") or {}).get("quantizer"), settings.get("provider")]
    adds_none = re.search("gptqmodel|auto-round", json.dumps(named), re.IGNORECASE) or "autoround_version" in settings
    size = settings["group_size"]
    return formats.Gptq(settings["bits"], size if size and size > 0 else None, zero_bias=not adds_none)


def _of_autoround(settings: Settings, _: str) -> Format:
    size = settings["group_size"]
    if settings["packing_format"] == "auto_round:auto_awq":
        return formats.Awq(4, size)
    return formats.Gptq(settings["bits"], None if size < 0 else size, zero_bias=False, indexed=False)


def _of_modelopt(settings: Settings, _: str) -> Format:
    return {"NVFP4": formats.Nvfp4(settings.get("group_size")), "FP8": formats.ModelOptFp8()}[
        settings["quant_algo"].upper()
    ]


def _of_compressed(group: Settings, _: str) -> Format:
    """Return the format of a compressed-tensors config group, with the defaults of QuantizationArgs."""
    weights: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True} | _stated(group["weights"])
    inputs: dict[str, Any] = {"dynamic": False, "symmetric": True} | _stated(group.get("input_activations") or {})
    is_float, size = weights["type"] == "float", weights.get("group_size", 0)
    by_default = "group" if size > 0 else "channel" if size else "tensor"
    strategy, order = weights.get("strategy", by_default), str(weights.get("actorder")).lower()
    when = {True: "dynamic", False: "static", "local": "dynamic"}[inputs["dynamic"]]
    return formats.CompressedTensors(
        group["format"].replace("naive", weights["type"]), weights["num_bits"], is_float, strategy,
        group=max(size, 0), block=tuple(weights["block_structure"]) if strategy == "block" else (0, 0),
        symmetric=weights["symmetric"], ordered=order in ("group", "dynamic", "true"),
        inputs=when if group.get("input_activations") else "",
        input_levels=inputs.get("strategy") == "tensor_group" and inputs["dynamic"] is not True,
        input_zero=not inputs["symmetric"], input_bits=inputs.get("num_bits", 8),
    )  # fmt: skip


def _of_torchao(settings: Settings, _: str) -> Format:
    """Return the format in a configuration serialised by torchao: objects with ``_type`` and ``_data``."""
    config = settings["quant_type"]["default"] if "default" in settings["quant_type"] else settings["quant_type"]
    kind, data = config["_type"], config["_data"]
    if kind.startswith("Int4"):
        tiled = "TILE" in json.dumps(data.get("int4_packing_format")).upper()
        return formats.TorchaoInt4(data.get("group_size", 128), tiled)
    dtype = "I8" if kind.startswith("Int8") else "F8_E5M2" if "e5m2" in json.dumps(data).lower() else "F8_E4M3"
    unit = data.get("granularity")
    unit = unit[-1] if isinstance(unit, list) else unit
    unit = unit or {"_type": "PerTensor" if kind.startswith("Float8Dynamic") else "PerRow"}
    size = (unit.get("_data") or {}).get("group_size") if unit["_type"] == "PerGroup" else None
    return formats.TorchaoEightBit(dtype, size, unit["_type"] == "PerTensor", "Dynamic" in kind)


def _fits_torchao(of: Format, place: LinearModule) -> bool:
    """Return whether torchao quantises a matrix of this shape; it skips other matrices without an error.

    Raises:
        UnknownFormat: it is an expert.
    """
    if place.kind == "Expert":
        raise UnknownFormat("torchao", "whether stacks of experts are quantised depends on transformers' version")
    if isinstance(of, formats.TorchaoInt4):
        return not place.columns % of.group
    in_fp8 = isinstance(of, formats.TorchaoEightBit) and of.dynamic and of.dtype.startswith("F8")
    return not in_fp8 or not (place.rows % 16 or place.columns % 16)


def _of_fp8(settings: Settings, model_type: str) -> Format:
    """Return the storage format of weights that transformers loads as ``FP8Linear``, always float8 E4M3.

    Those of ``FP8Experts`` may be of four bits.

    Raises:
        UnknownFormat: the settings name another float8 type.
    """
    named = str(settings.get("fmt") or "e4m3").removeprefix("float8_").removesuffix("fn")
    if named != "e4m3":
        raise UnknownFormat("fp8", f"its library multiplies in E4M3, not in {named[:40]}")
    if settings.get("expert_dtype") == "fp4":
        return formats.Fp4(settings.get("scale_fmt") == "ue8m0", model_type)
    block, is_static = settings.get("weight_block_size"), settings.get("activation_scheme") == "static"
    return formats.Fp8(tuple(block) if block else None, is_static, settings.get("scale_fmt") == "ue8m0", model_type)


_FORMATS: Final[Mapping[str, Callable[[Settings, str], Format]]] = {
    "fp8": _of_fp8,
    "bitsandbytes": _of_bitsandbytes,
    "awq": lambda s, _: formats.Awq(4, s.get("group_size") or s["q_group_size"], (s.get("version") or "gemm").lower()),
    "gptq": _of_gptq,
    "auto-round": _of_autoround,
    "mlx": lambda s, _: formats.Mlx(s["bits"], s["group_size"]),
    "mxfp4": lambda s, _: formats.Mxfp4(),
    "modelopt": _of_modelopt,
    "compressed-tensors": _of_compressed,
    "torchao": _of_torchao,
}  # fmt: skip
"""Function by method that returns the storage format of a matrix, from the settings and the model type."""
