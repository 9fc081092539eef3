"""Read from a configuration which modules of a checkpoint are quantised, and in which format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from os.path import commonprefix
from typing import Any, Final

from costproof.storage import formats
from costproof.storage.formats import Format

Data = Mapping[str, Any]
_REGULAR: Final = "re:"


@dataclass(frozen=True, slots=True)
class LinearModule:
    """A linear layer or embedding table with the properties that the rules of a quantisation scheme ask for."""

    path: str
    """Path in the checkpoint; every expert has one, such as ``model.layers.3.mlp.experts.0.gate_proj``."""
    kind: str = "Linear"
    """Name of the module's class; ``Expert`` for a matrix in a stack of experts."""
    columns: int = 0
    """Number of input features, or the width of an embedding table."""
    is_head: bool = False
    """Whether the module computes the logits, or shares its weights with the embedding table."""
    in_layers: bool = True
    """Whether the module is in a numbered layer."""
    own_path: str = ""
    """Path in the model, if it differs from the path in the checkpoint."""
    classes: tuple[str, ...] = ("Linear",)
    """Names of the module's class and of its base classes."""
    rows: int = 0
    """Number of output features."""
    in_float32: bool = False
    """Whether the model's class loads the module in float32, whatever the model's dtype."""
    is_tied: bool = False
    """Whether the module is an output projection that uses the embedding's weights."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths under which configurations may list the module: in the checkpoint, and in the model."""
        return (self.path,) if self.own_path in ("", self.path) else (self.path, self.own_path)


_LAYERS: Final = ("layers", "h", "blocks", "block", "layer")


def in_numbered_layer(path: str) -> bool:
    """Return whether a module is in a numbered layer of a stack."""
    parts = path.split(".")
    return any(a in _LAYERS and b.isdigit() for a, b in pairwise(parts))


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """Differences between module paths of a model family in transformers and the names in its checkpoints."""

    expert_layers: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    """Names of the gate, up and down projection of an expert."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Parts of module paths with their replacements in the checkpoint; the first that matches counts."""
    linear_class: str = "Linear"
    """Class name of the linear layers, except the output projection."""
    inherited: tuple[tuple[str, str], ...] = ()
    """Ends of module paths with the class of these modules, a subclass of the linear one."""
    in_float32: tuple[str, ...] = ()
    """Parts of the paths of modules that the class loads in float32, whatever the model's dtype."""

    def classes(self, module: str) -> tuple[str, ...]:
        """Return the class names of a linear layer: its subclass, if it has one, and the usual class."""
        return (*(name for end, name in self.inherited if module.endswith(end)), self.linear_class)

    def loads_in_float32(self, module: str) -> bool:
        """Return whether transformers loads a module in float32 whatever the model's dtype."""
        return any(f".{name}." in f".{module}." for name in self.in_float32)

    def path(self, module: str) -> str:
        """Return the path of a module in the checkpoint."""
        for part, named in self.renamed:
            if part in module:
                return module.replace(part, named, 1)
        return module


_IN_FLOAT32: Final = {"deepseek_v4": ("attn_hc", "ffn_hc", "hc_head", "sinks", "position_bias")}
"""Modules and parameters that checkpoints store in float32, whatever else they have, by model type.

Source: headers of DeepSeek-V4-Flash and V4-Pro. They have norms in bfloat16, which the class loads in float32.
"""


def is_stored_in_float32(model_type: str, parameter: str) -> bool:
    """Return whether checkpoints store a parameter, by its name in the model, in float32 whatever else they have."""
    return not {*parameter.split(".")}.isdisjoint(_IN_FLOAT32.get(model_type, ()))


@dataclass(frozen=True, slots=True)
class Rule:
    """A storage format, and the modules to which it applies."""

    format: Format
    applies: Callable[[LinearModule], bool]


class UnknownFormat(Exception):
    """Raised for quantised weights whose storage layout is not known; states the format and the reason."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name, self.why = name, why


@dataclass(frozen=True, slots=True)
class Scheme:
    """Quantisation scheme of a checkpoint: which module has which format, and properties that formats depend on."""

    method: str
    rules: tuple[Rule, ...] = ()
    """Rules in order of priority: the first that applies to a module decides its format."""
    stacked: bool = False
    """Whether the experts of a layer are stored as stacked tensors, rather than as linear layers."""
    classes: tuple[str, ...] = ("Linear",)
    """Classes that the rules apply to, including their subclasses."""
    float32: bool = False
    """Whether the checkpoint stores in float32 the modules that the model's class loads in float32."""
    named: tuple[str, ...] = ()
    """Paths of modules with individual settings; if the model lacks such a module, the layout is unknown."""
    names_experts: bool = False
    """Whether a list or a pattern of module names may match single experts of a stack."""
    cache: str = ""
    """Kind of scales that every attention stores for its quantised cache, one of
    :func:`~costproof.storage.formats.cache_tensors`; empty: no scales.
    """
    assumed: tuple[str, ...] = field(default=())
    """Assumptions about properties that no key of the configuration states."""

    def format_of(self, module: LinearModule) -> Format | None:
        """Return the format of a linear layer or embedding table; ``None`` if it is not quantised.

        Raises:
            UnknownFormat: the library of the format refuses the shape, or the weights are those of the table.
        """
        if set(self.classes).isdisjoint(module.classes):
            return None
        of = next((rule.format for rule in self.rules if rule.applies(module)), None)
        if of is not None and module.is_tied and self.method != "mlx":  # which computes logits with the quantised table
            why = f"{module.path[:60]} is tied and not left out: libraries quantise a copy, which files may lack"
            raise UnknownFormat(self.method, why)
        if of is not None:
            for what, size, unit in zip(("rows", "columns"), (module.rows, module.columns), of.unit, strict=True):
                if size % unit:
                    why = f"{module.path[:60]} has {size} {what}, and the library takes multiples of {unit}"
                    raise UnknownFormat(self.method, why)
        return of


PLAIN: Final = Scheme("")
"""Scheme of a checkpoint without quantised weights."""


def read_scheme(data: Data, beside: Mapping[str, Any], model_type: str) -> Scheme:
    """Read the quantisation scheme of a checkpoint from its configuration.

    Args:
        data: the configuration.
        beside: contents, by file name, of the files beside the configuration that describe quantisation.
        model_type: the type of the model, from which scale dtypes that no key states are known.

    Raises:
        UnknownFormat: the checkpoint is quantised in a manner whose layout is not known.
    """
    found = list(_descriptions(data))
    found += [(name, value) for name, value in beside.items() if not found]
    parts = [part for part in (data, data.get("text_config")) if isinstance(part, Mapping)]
    experts = next((own for part in parts if (own := part.get("expert_dtype")) is not None), None)
    unknown = UnknownFormat(str(experts)[:40], "experts in a dtype of their own (expert_dtype)")
    if not found:
        if experts not in (None, "bfloat16"):
            raise unknown
        return PLAIN
    where, described = found[0]
    if not isinstance(described, Mapping):
        raise UnknownFormat(str(described)[:40], f"{where} is not an object")
    method = _method(described)
    if experts is not None and method == "fp8" and model_type == "deepseek_v4":  # which has the key in its class
        described = {"expert_dtype": experts, **described}
    elif experts is not None and (method == "fp8" or experts != "bfloat16"):
        raise unknown
    if str(described.get("quant_algo")).upper() == "MIXED_PRECISION" and not described.get("quantized_layers"):
        # The configuration that ModelOpt writes lacks the layers, which its own file has.
        described = next(
            (own for own in beside.values() if isinstance(own, Mapping) and "quantization" in own), described
        )
    reader = _READERS.get(method)
    if reader is None:
        raise UnknownFormat(method or "a format without a name", f"{where} names no known method")
    scheme, unread = reader(described, model_type), _unread_keys(described, method)
    deciding = next((key for key in unread if _DECIDING.search(key)), None)
    if deciding is not None:
        value = json.dumps(described.get(deciding), default=str)[:60]
        raise UnknownFormat(method, f"{deciding[:60]} {value}, which is not read")
    assumed = (*scheme.assumed, *(f"{key[:60]} in {where} changes no tensor" for key in unread))
    return replace(scheme, names_experts=any(map(_may_name_expert, _texts(described))), assumed=assumed)


_LISTS: Final = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules")
"""Keys with lists of the modules that stay as they are."""
_SETTINGS: Final = ("extra_config", "quantized_layers", "dynamic")
"""Keys with settings of their own by name or pattern of modules."""


def names_of_none(data: Data, beside: Mapping[str, Any], paths: Iterable[str], classes: Collection[str]) -> list[str]:
    """Return the names and patterns of modules in quantisation settings that match none, in their order.

    All readings compare a name with all, the start, the end or a part of a path, as a text, as a pattern with ``*`` or
    as a regular expression; a name that does none of this changes nothing, whatever the format.

    Args:
        data: the configuration.
        beside: contents, by file name, of the files beside the configuration that describe quantisation.
        paths: paths of modules and names of tensors, in the checkpoint and in the model, quantised or not.
        classes: names of the classes of modules.
    """
    described = [value for _, value in _descriptions(data) if isinstance(value, Mapping)]
    described += [value for value in beside.values() if isinstance(value, Mapping)]
    found: dict[str, None] = {}
    for part in (part for own in described for part in (own, own.get("quantization")) if isinstance(part, Mapping)):
        lists = [part.get(key) for key in _LISTS]
        groups = part.get("config_groups")
        for group in groups.values() if isinstance(groups, Mapping) else ():
            lists.append(group.get("targets") if isinstance(group, Mapping) else None)
        lists += [[*own] for key in _SETTINGS if isinstance(own := part.get(key), Mapping)]
        found |= dict.fromkeys(str(name) for names in lists if isinstance(names, list) for name in names)
    text = "\n".join(paths) if found else ""
    return [name for name in found if name not in classes and not _is_part(name, text)]


def _is_part(name: str, text: str) -> bool:
    """Return whether a name or pattern matches a part of a line."""
    plain = name.removeprefix("re:").removeprefix("+:").removeprefix("-:")
    if plain.strip("*").removesuffix(".") in text:
        return True
    forms = [plain, ".*".join(map(re.escape, plain.split("*")))]
    for form in forms:
        try:
            if re.search(form, text, re.MULTILINE):
                return True
        except re.error:
            continue
    return False


def _unread_keys(described: Data, method: str) -> list[str]:
    """Return the keys with a value that no reader knows in a quantisation description."""
    inner = described.get("quantization")
    stated = {**described, **(inner if isinstance(inner, Mapping) else {})}
    return [
        str(key)
        for key, value in stated.items()
        if not (value is None or value is False or value in ({}, []) or key in (*_KNOWN_KEYS[""], *_KNOWN_KEYS[method]))
        and not (method == "mlx" and isinstance(value, Mapping))
    ]


_DECIDING: Final = re.compile(
    r"module|layer|block|ignore|exclu|skip|convert|only|embed|head|expert|dtype|bits|group|format|transform|config"
)
"""Parts of names of keys that may decide which tensors a checkpoint has."""
_OF_AUTOROUND: Final = (
    "autoround_version sym data_type act_bits act_data_type act_group_size act_sym act_dynamic amp batch_size "
    "enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input gradient_accumulate_steps iters lr minmax_lr "
    "low_gpu_mem_usage nsamples seqlen scale_dtype supported_types super_bits super_group_size static_kv_dtype "
    "static_attention_dtype static_kv_granularity static_attention_granularity rotation_config rotation_configs "
    "quant_block_list to_quant_block_names dataset model_free"
)
"""Keys of AutoRound that are read, or that say how numbers were found; scales are float16 whatever ``scale_dtype`` is.

Source: auto_round, ``compressors.base.SerializedCompressorConfig`` and ``qlinear_torch_zp.QuantLinear.pack``.
"""
_KNOWN_KEYS: Final[Mapping[str, frozenset[str]]] = {
    method: frozenset(keys.split())
    for method, keys in {
        "": "quant_method quantization_method dequantize quantization",
        "fp8": "activation_scheme weight_block_size modules_to_not_convert ignored_layers scale_fmt fmt expert_dtype",
        "bitsandbytes": "load_in_4bit load_in_8bit _load_in_4bit _load_in_8bit llm_int8_threshold "
        "llm_int8_skip_modules llm_int8_enable_fp32_cpu_offload llm_int8_has_fp16_weight bnb_4bit_compute_dtype "
        "bnb_4bit_quant_type bnb_4bit_use_double_quant bnb_4bit_quant_storage",
        "awq": "bits w_bit group_size q_group_size zero_point version modules_to_not_convert backend do_fuse "
        "modules_to_fuse fuse_max_seq_len exllama_config",
        "auto-round": f"{_OF_AUTOROUND} bits group_size packing_format extra_config block_name_to_quantize provider",
        "gptq": f"{_OF_AUTOROUND} provider "
        "bits group_size desc_act sym static_groups damp_percent damp_auto_increment true_sequential "
        "act_group_aware checkpoint_format format meta dynamic lm_head pack_dtype modules_in_block_to_quantize "
        "block_name_to_quantize module_name_preceding_first_block model_name_or_path model_file_base_name model_seqlen "
        "tokenizer dataset backend batch_size pad_token_id max_input_length cache_block_outputs "
        "use_exllama disable_exllama exllama_config use_cuda_fp16 quantizer",
        "mlx": "bits group_size mode",
        "mxfp4": "modules_to_not_convert",
        "modelopt": "quant_algo kv_cache_quant_algo kv_cache_scheme exclude_modules ignore group_size config_groups "
        "producer has_zero_point pre_quant_scale quantized_layers",
        "compressed-tensors": "config_groups format ignore kv_cache_scheme global_compression_ratio "
        "quantization_status sparsity_config version run_compressed use_optimized_inference",
        "torchao": "quant_type modules_to_not_convert include_input_output_embeddings",
    }.items()
}
"""Keys that readers read, or that change no tensor, by method; under an empty name those of all methods.

Source: the configuration classes of transformers' ``quantization_config``, AutoGPTQ, GPTQModel, AutoAWQ and ModelOpt.
"""


def _texts(described: Any) -> Iterator[str]:
    """Yield all strings in a quantisation description: names, patterns, and keys."""
    if isinstance(described, str):
        yield described
    elif isinstance(described, (list, tuple)):
        for value in described:
            yield from _texts(value)
    elif isinstance(described, Mapping):
        for key, value in described.items():
            yield str(key)
            yield from _texts(value)


def _may_name_expert(text: str) -> bool:
    """Return whether a name or pattern may match single experts of a stack."""
    inside = re.sub(r"layers\W*\d+", "", text)
    return re.search(r"[\d\[(]", inside) is not None and ("experts" in text or text.startswith(("re:", "-:", "+:")))


_KEYS: Final = ("quantization_config", "compression_config", "quantization", "expert_dtype")


def scheme_keys(data: Data) -> dict[str, Any]:
    """Return the keys of a configuration that :func:`read_scheme` reads, with their values."""
    found = {key: data[key] for key in _KEYS if key in data}
    inner = data.get("text_config")
    return found | ({"text_config": scheme_keys(inner)} if isinstance(inner, Mapping) else {})


def _descriptions(data: Data) -> Iterator[tuple[str, Any]]:
    """Yield (path, quantisation settings) for each key of a configuration where transformers looks for them."""
    for prefix, part in (("$", data), ("$.text_config", data.get("text_config"))):
        for key in _KEYS[:3]:
            if isinstance(part, Mapping) and part.get(key):
                yield f"{prefix}.{key}", part[key]


def _method(described: Data) -> str:
    inner = described.get("quantization")
    named = described.get("quant_method") or (
        "modelopt" if "quant_algo" in (inner if isinstance(inner, Mapping) else described) else ""
    )
    if not named and {"group_size", "bits"} <= described.keys() and described.get("mode", "affine") == "affine":
        return "gptq" if "desc_act" in described else "mlx"
    if not named and "bits" in described and "desc_act" in described:
        return "gptq"
    if not named and described.get("w_bit") is not None:
        return "awq"
    return str(named).lower().replace("_", "-")


def _number(described: Data, *keys: str, least: int = 1) -> int | None:
    value = next((described[key] for key in keys if described.get(key) is not None), None)
    if value is None or value == -1:
        return None
    if type(value) is not int or value < least:
        raise UnknownFormat(_method(described), f"{keys[0]} is {value!r}")
    return value


def _bits(described: Data, method: str, widths: Sequence[int], *keys: str) -> int:
    """Return the number of bits of a weight; refuse widths that the method cannot pack."""
    bits = _number(described, *keys)
    if bits is None or bits not in widths:
        raise UnknownFormat(method, f"{bits} bits")
    return bits


def _names(described: Data, *keys: str) -> tuple[str, ...] | None:
    """Return the list of names under the first of these keys with a value; ``None`` if there is none."""
    value = next((described[key] for key in keys if described.get(key) is not None), None)
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise UnknownFormat(_method(described), f"{keys[0]} is not a list of names")
    return tuple(value)


def _compiled(pattern: str, method: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UnknownFormat(method, f"{pattern[:60]} is not a regular expression: {error}") from error


def _kept_by_transformers(described: Data, keys: tuple[str, ...], end: str = "") -> Callable[[LinearModule], bool]:
    """Return a predicate that tells whether transformers leaves a module unquantised.

    A name matches from the start up to the end of a part of the path, also as a regular expression, or as a suffix of
    the path with ``end``. Without a list the head and modules tied to the embedding are kept. Modules that the
    class of the model loads in float32 are always kept.
    """
    names = _names(described, *keys)
    if names is None:
        return lambda module: module.is_head or module.in_float32
    patterns = [(_compiled(rf"(?:{name})(?:(?<=\.)|(?=\.|$))", _method(described)), name) for name in names]
    return lambda module: (
        module.in_float32
        or any(p.match(path) or f"{path}{end}".endswith(name) for path in module.paths for p, name in patterns)
    )


def _is_pair(value: object) -> bool:
    """Return whether a value is a list of two positive integers."""
    return isinstance(value, list) and len(value) == 2 and all(type(n) is int and n > 0 for n in value)


def _fp8(described: Data, model_type: str) -> Scheme:
    kept = _kept_by_transformers(described, ("modules_to_not_convert", "ignored_layers"))
    block, scales = described.get("weight_block_size"), described.get("scale_fmt")
    if block is not None and not _is_pair(block):
        raise UnknownFormat("fp8", f"weight_block_size is {block!r}"[:80])
    if scales not in (None, "float", "ue8m0"):
        raise UnknownFormat("fp8", f"scale_fmt is {scales!r}"[:80])
    if described.get("fmt") not in (None, "e4m3", "e4m3fn", "float8_e4m3fn"):
        raise UnknownFormat("fp8", f"fmt is {described['fmt']!r}"[:80])
    static = described.get("activation_scheme") == "static"
    of = formats.Fp8(None if block is None else tuple(block), static, scales == "ue8m0", model_type)

    def quantised(module: LinearModule) -> bool:
        # What inherits from a linear layer stays, but for grouped ones (replace_with_fp8_linear).
        usual = module.kind in ("Linear", "Expert") or "GroupedLinear" in module.kind
        return usual and not kept(module)

    experts = described.get("expert_dtype")
    if experts not in (None, "fp8", "fp4"):
        raise UnknownFormat(str(experts)[:40], "experts in a dtype of their own (expert_dtype)")
    rule = Rule(of, quantised)
    if experts != "fp4":
        return Scheme("fp8", (rule,), assumed=of.assumed())
    if static:
        raise UnknownFormat("fp4", "experts in four bits with static scales of inputs (activation_scheme)")
    packed = formats.Fp4(scales == "ue8m0", model_type)
    first = Rule(packed, lambda module: module.kind == "Expert" and quantised(module))
    return Scheme("fp8", (first, rule), assumed=of.assumed())


def _bitsandbytes(described: Data, model_type: str) -> Scheme:
    kept = _kept_by_transformers(described, ("llm_int8_skip_modules",))
    four = described.get("load_in_4bit") or described.get("_load_in_4bit")
    if four:
        if described.get("bnb_4bit_quant_storage", "uint8") != "uint8":
            raise UnknownFormat("bitsandbytes", "bnb_4bit_quant_storage is not uint8")
        kind = str(described.get("bnb_4bit_quant_type") or "fp4")
        of: Format = formats.FourBit(kind, bool(described.get("bnb_4bit_use_double_quant")))
    elif described.get("load_in_8bit") or described.get("_load_in_8bit"):
        of = formats.LlmInt8()
    else:
        raise UnknownFormat("bitsandbytes", "neither load_in_4bit nor load_in_8bit is true")

    def quantised(module: LinearModule) -> bool:
        return module.kind in ("Linear", "Expert", "Conv1D") and not kept(module)  # replace_with_bnb_linear

    return Scheme("bitsandbytes", (Rule(of, quantised),), classes=("Linear", "Conv1D"), float32=True)


def _is_packable(module: LinearModule) -> bool:
    """Return whether AutoGPTQ and AutoAWQ quantise a module: it is inside a layer and not the gate of a shared expert.

    The gate has one row, and stays in 16 bits.
    """
    return module.in_layers and module.rows != 1


def _awq(described: Data, model_type: str) -> Scheme:
    version = str(described.get("version") or "gemm").lower()
    bits = _bits(described, "awq", (4,), "bits", "w_bit")
    if version not in ("gemm", "gemv", "gemv_fast", "marlin"):
        raise UnknownFormat("awq", f"version {version!r} with {bits} bits")
    group = _number(described, "group_size", "q_group_size")
    if group is None:  # AutoAWQ fails at -1; without the key transformers assumes another size than AutoAWQ
        raise UnknownFormat("awq", "group_size is missing, or is -1, which AutoAWQ cannot pack")
    if version.startswith("gemv") and group < 128 and group not in (32, 64):  # calculate_zeros_width
        raise UnknownFormat("awq", f"version {version} with groups of {group}, for which AutoAWQ has no kernel")
    if (version == "marlin") is not (described.get("zero_point") is False):
        raise UnknownFormat("awq", f"version {version} {'with' if version == 'marlin' else 'without'} zero points")
    of = formats.Awq(bits, group, version)
    names = _names(described, "modules_to_not_convert") or ()
    return Scheme(
        "awq",
        (Rule(of, lambda m: _is_packable(m) and not any(n in path for path in m.paths for n in names)),),
    )


_GPTQ_BITS: Final = (2, 3, 4, 8)
_MLX_BITS: Final = (2, 3, 4, 5, 6, 8)


def _gptq(described: Data, model_type: str) -> Scheme:
    bits, group = _bits(described, "gptq", _GPTQ_BITS, "bits"), _number(described, "group_size")
    if "group_size" not in described:  # AutoGPTQ then takes all columns, transformers 128
        raise UnknownFormat("gptq", "group_size is missing")
    if str(described.get("checkpoint_format") or "gptq") not in ("gptq", "gptq_v2"):
        raise UnknownFormat("gptq", f"{bits} bits, checkpoint_format {described.get('checkpoint_format')!r}")
    meta = described.get("meta")
    quantizers = meta.get("quantizer") if isinstance(meta, Mapping) else None
    zeros = not any("gptqmodel" in str(name).lower() for name in (quantizers or ()))
    if described.get("provider") == "auto-round" or described.get("autoround_version"):
        zeros = False
        _check_autoround(described, "gptq")
        if (blocks := _autoround_blocks(described)) and blocks != (described.get("block_name_to_quantize"),):
            raise UnknownFormat("gptq", f"blocks {blocks} are quantised, which AutoGPTQ does not read"[:160])
    if str(described.get("pack_dtype") or "int32").removeprefix("torch.") != "int32":
        raise UnknownFormat("gptq", f"pack_dtype {described['pack_dtype']!r}"[:80])
    chosen, block = _chosen_in_blocks(described), described.get("block_name_to_quantize")
    rules: list[Rule] = []
    dynamic = described.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise UnknownFormat("gptq", "dynamic is not an object")
    with_head = described.get("lm_head") is True
    left: tuple[re.Pattern[str], ...] = ()

    def rule(of: Format, pattern: re.Pattern[str]) -> Rule:
        """Return the rule for modules that match this pattern and no exclusion before it (GPTQModel, dynamic_get)."""
        before = left
        return Rule(
            of,
            lambda m: (
                (_is_packable(m) or (with_head and m.is_head))
                and (m.is_head or chosen is None or m.path.endswith(chosen))
                and (m.is_head or not block or any(path.startswith(f"{block}.") for path in m.paths))
                and any(map(pattern.match, m.paths))
                and not any(p.match(path) for path in m.paths for p in before)
            ),
        )

    for pattern, changes in dynamic.items():
        compiled = _compiled(str(pattern).removeprefix("+:").removeprefix("-:"), "gptq")
        if str(pattern).startswith("-:"):
            left += (compiled,)
            continue
        if not isinstance(changes, Mapping):
            raise UnknownFormat("gptq", f"dynamic[{str(pattern)[:40]!r}] is not an object")
        own = formats.Gptq(
            _bits({"bits": bits, **changes}, "gptq", _GPTQ_BITS, "bits"),
            _number({"group_size": group, **changes}, "group_size"),
            zeros,
        )
        rules.append(rule(own, compiled))
    of = formats.Gptq(bits, group, zeros)
    every = (*rules, rule(of, re.compile("")))
    return Scheme("gptq", every, assumed=of.assumed(), classes=("Linear", "Conv1D"))


def _check_autoround(described: Data, method: str) -> None:
    """Refuse settings of AutoRound with which its files have other tensors than integers of weights and their scales.

    Source: auto_round, ``compressors.base.SerializedCompressorConfig``.
    """
    kind = described.get("data_type") or "int"
    inputs = described.get("act_bits")
    if not isinstance(kind, str) or not kind.startswith("int"):
        raise UnknownFormat(method, f"data_type is {kind!r}"[:80])
    if inputs is not None and (type(inputs) is not int or inputs < 16):
        raise UnknownFormat(method, f"act_bits is {inputs!r}"[:80])
    for key in ("super_bits", "static_kv_dtype", "static_attention_dtype", "rotation_config", "rotation_configs",
                "enable_norm_bias_tuning"):  # fmt: skip
        if described.get(key):
            raise UnknownFormat(method, f"{key} is {described[key]!r}"[:80])


def _autoround_blocks(described: Data) -> tuple[str, ...]:
    """Return the starts of the paths of the modules that AutoRound quantises; empty: those in numbered layers.

    A list of lists names each layer; then the start is what the names have in common.
    """
    named = next(
        (described[key] for key in ("quant_block_list", "block_name_to_quantize", "to_quant_block_names")
         if described.get(key)), ()
    )  # fmt: skip
    parts: Any = named.split(",") if isinstance(named, str) else named if isinstance(named, list | tuple) else [named]
    # By characters, as AutoRound does it.
    found = [commonprefix(part).rstrip(".") if isinstance(part, list) else part for part in parts]  # noqa: RUF071
    if not all(isinstance(name, str) and name for name in found):
        raise UnknownFormat(_method(described), "the list of quantised blocks has other values than names")
    return tuple(name.strip() for name in found)


def _autoround(described: Data, model_type: str) -> Scheme:
    """Return the scheme of AutoRound: all linear layers in blocks, with settings of single layers in ``extra_config``.

    A key of ``extra_config`` is the name of a layer, which has a number, or a pattern that a name contains.
    Source: auto_round, ``export_to_autoround.export`` and ``inference.convert_model.get_layer_config``.
    """
    packing = str(described.get("packing_format") or "")
    version = re.match(r"(\d+)\.(\d+)", str(described.get("autoround_version") or ""))
    if packing not in ("auto_round", "auto_round:auto_gptq", "auto_round:auto_awq"):
        raise UnknownFormat("auto-round", f"packing_format {packing or 'is not stated'}"[:80])
    if version is None or tuple(map(int, version.groups())) < (0, 6):
        raise UnknownFormat("auto-round", "before AutoRound 0.6 the tensors depend on the packages that were installed")
    _check_autoround(described, "auto-round")
    extra, blocks = described.get("extra_config") or {}, _autoround_blocks(described)
    if not isinstance(extra, Mapping) or not all(isinstance(own, Mapping) for own in extra.values()):
        raise UnknownFormat("auto-round", "extra_config is not an object of objects")

    def of(own: Data) -> Format | None:
        stated = {"bits": described.get("bits"), "group_size": described.get("group_size"), **own}
        if type(stated["bits"]) is int and stated["bits"] > 8:
            return None
        _check_autoround(own, "auto-round")
        bits, group = _bits(stated, "auto-round", _GPTQ_BITS, "bits"), _number(stated, "group_size")
        if not packing.endswith("awq"):
            return formats.Gptq(bits, group, zero_bias=False, indexed=False)
        if bits != 4 or group is None:
            raise UnknownFormat("auto-round", f"{packing} with {bits} bits in groups of {group}")
        return formats.Awq(bits, group)

    each = {key: of(own) for key, own in extra.items()}
    usual = of({})
    patterns = [
        (key, _compiled(key, "auto-round"))
        for key, own in extra.items()
        if own and not re.fullmatch(r"[\w.]*\.\d+\.[\w.]*", key)
    ]

    def format_of(module: LinearModule) -> Format | None:
        for path in module.paths:
            if path in each:
                return each[path]
        inside = any(path.startswith(blocks) for path in module.paths) if blocks else module.in_layers
        if module.is_head or not inside:
            return None
        return next((each[key] for key, p in patterns if any(map(p.search, module.paths))), usual)

    found = dict.fromkeys(one for one in (usual, *each.values()) if one is not None)
    rules = (Rule(one, lambda m, one=one: format_of(m) == one) for one in found)  # type: ignore[misc]
    return Scheme("auto-round", tuple(rules), classes=("Linear", "Conv1D"))


def _chosen_in_blocks(described: Data) -> tuple[str, ...] | None:
    """Return the name endings of the modules that GPTQ quantises in a layer; ``None`` if it quantises all of them."""
    lists = described.get("modules_in_block_to_quantize")
    if lists is None:
        return None
    whole = isinstance(lists, list) and all(isinstance(names, list) for names in lists)
    names = [name for names in lists for name in names] if whole else []
    if not names or not all(isinstance(name, str) for name in names):
        raise UnknownFormat("gptq", "modules_in_block_to_quantize is not a list of lists of names")
    return tuple(names)


def _mlx(described: Data, model_type: str) -> Scheme:
    """Return the scheme of MLX: quantise every matrix whose rows divide into groups; modules may have own settings.

    A vision tower is left as it is, as mlx-vlm does by default.
    """
    bits, group = _bits(described, "mlx", _MLX_BITS, "bits"), _number(described, "group_size")
    if group is None:
        raise UnknownFormat("mlx", f"{bits} bits in groups of {group}")
    rules = []
    own = {key: value for key, value in described.items() if value is False or isinstance(value, Mapping)}
    for path, settings in own.items():
        if settings is not False:
            if settings.get("mode", "affine") != "affine":
                raise UnknownFormat("mlx", f"the mode of {path[:60]} is {settings['mode']!r}"[:160])
            own_bits = _bits({"bits": bits, **settings}, "mlx", _MLX_BITS, "bits")
            changed = formats.Mlx(own_bits, _number(settings, "group_size") or group)
            rules.append(Rule(changed, lambda m, path=path: path in m.paths))  # type: ignore[misc]

    def quantised(module: LinearModule) -> bool:
        if module.kind == "Expert":
            raise UnknownFormat("mlx", "MLX has modules of its own for experts and routers")
        seen = any(name in module.path for name in ("vision_tower", "vision_model", "visual"))
        return not seen and own.keys().isdisjoint(module.paths) and module.columns % group == 0

    return Scheme(
        "mlx", (*rules, Rule(formats.Mlx(bits, group), quantised)), classes=("Linear", "Embedding"), named=tuple(own)
    )


def _mxfp4(described: Data, model_type: str) -> Scheme:
    """Return the scheme of gpt-oss: only stacks of experts are MXFP4; the configuration's module list is ignored."""
    if model_type != "gpt_oss":
        raise UnknownFormat("mxfp4", f"the layout is known of gpt_oss, not of {model_type}")
    return Scheme("mxfp4", (Rule(formats.Mxfp4(), lambda m: m.kind == "Expert"),), stacked=True)


def _modelopt(described: Data, model_type: str) -> Scheme:
    inner = described.get("quantization")
    stated = inner if isinstance(inner, Mapping) else described
    mixed = str(stated.get("quant_algo")).upper() == "MIXED_PRECISION"
    of = None if mixed else _modelopt_format(stated)
    names = _names(stated, "exclude_modules", "ignore") or ()
    cache = stated.get("kv_cache_quant_algo") or (stated.get("kv_cache_scheme") and "FP8")
    if cache and str(cache).upper() not in ("FP8", "NVFP4"):
        raise UnknownFormat("modelopt", f"kv_cache_quant_algo {cache!r}")
    kind = "modelopt" if cache else ""

    def kept(module: LinearModule) -> bool:
        return any(
            fnmatchcase(path, name) or path.startswith(f"{name.rstrip('.*')}.")
            for path in module.paths
            for name in names
        )

    if of is None:
        layers = stated.get("quantized_layers")
        if (
            not isinstance(layers, Mapping)
            or not layers
            or not all(isinstance(own, Mapping) for own in layers.values())
        ):
            raise UnknownFormat("modelopt", "MIXED_PRECISION without quantized_layers, which hf_quant_config.json has")
        each = {str(name): _modelopt_format(own) for name, own in layers.items()}

        def format_of(module: LinearModule) -> Format | None:
            """Return the format of the layer, or of the layer that it is inside of."""
            outer = (path[:end] for path in module.paths for end in (len(path), *_ends(path)))
            return None if kept(module) else next((each[name] for name in outer if name in each), None)

        rules = (Rule(one, lambda m, one=one: format_of(m) == one) for one in dict.fromkeys(each.values()))  # type: ignore[misc]
        return Scheme("modelopt", tuple(rules), cache=kind)
    if not names:
        return Scheme("modelopt", (Rule(of, lambda m: not m.is_head),), cache=kind)
    return Scheme("modelopt", (Rule(of, lambda m: not kept(m)),), cache=kind)


def _ends(path: str) -> Iterator[int]:
    """Yield the ends of the outer modules in a path, the longest first."""
    yield from (at for at in range(len(path) - 1, 0, -1) if path[at] == ".")


def _modelopt_format(stated: Data) -> Format:
    """Return the format of a ``quant_algo`` of ModelOpt.

    Its AWQ formats scale the columns of inputs (``pre_quant_scale``). ModelOpt multiplies most of these scales into the
    norm or the layer before, and stores the rest; which, its version and its graph of the model decide, and no key.
    Source: ModelOpt, ``torch.export.quant_utils`` and ``unified_export_hf.requantize_resmooth_fused_llm_layers``.
    """
    algorithm = str(stated.get("quant_algo") or "").upper()
    if "AWQ" in algorithm or stated.get("pre_quant_scale"):
        why = "which layers store a pre_quant_scale no key says"
        raise UnknownFormat("modelopt", f"quant_algo {algorithm[:40]}, of which {why}")
    if algorithm == "FP8":
        return formats.ModelOptFp8()
    if algorithm == "NVFP4":
        return formats.Nvfp4(_number({**stated, "quant_method": "modelopt"}, "group_size"))
    raise UnknownFormat("modelopt", f"quant_algo {algorithm[:40] or 'is not named'}")


def _compressed(described: Data, model_type: str) -> Scheme:
    groups = described.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise UnknownFormat("compressed-tensors", "config_groups has no groups")
    sparse = described.get("sparsity_config")
    if isinstance(sparse, Mapping) and sparse.get("format") not in (None, "dense"):
        raise UnknownFormat("compressed-tensors", f"sparsity {sparse.get('format')!r}")
    ignored = _names(described, "ignore") or ()
    ignore = (*_ranks(ignored, "compressed-tensors"),)
    targets: dict[str, Format] = {}
    assumed: dict[str, None] = {}
    for name, group in groups.items():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            raise UnknownFormat("compressed-tensors", f"config_groups.{name} has no weights")
        parts = [(name, group, _GROUP_KEYS)]
        parts += [(f"{name}.{key}", group.get(key) or {}, _ARGUMENT_KEYS) for key in ("weights", "input_activations")]
        for where, stated, known in parts:
            more = [key for key, value in stated.items() if key not in known and value not in (None, {}, [])]
            if more:
                raise UnknownFormat("compressed-tensors", f"config_groups.{where}.{more[0]}, which is not read"[:160])
        of = _compressed_format(group, str(group.get("format") or described.get("format") or ""))
        targets |= dict.fromkeys(_names(group, "targets") or (), of)
        assumed |= dict.fromkeys(of.assumed())

    def kept(module: LinearModule) -> bool:
        return any(matches(module) for matches in ignore)

    rules = [
        Rule(targets[name], lambda m, one=one: not kept(m) and one(m))  # type: ignore[misc]
        for rank in range(3)
        for name, matches in (
            (name, _ranks((name,), "compressed-tensors")) for name in sorted(targets, key=_target_order)
        )
        for one in (matches[rank],)
    ]
    return Scheme(
        "compressed-tensors", tuple(rules), cache=_compressed_cache(described), assumed=tuple(assumed),
        classes=("Linear", "Embedding"),
    )  # fmt: skip


_GROUP_KEYS: Final = frozenset(("targets", "weights", "input_activations", "format"))
"""Keys of a config group of compressed-tensors that are read; outputs with scales of their own are not."""
_ARGUMENT_KEYS: Final = frozenset((
    "num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic", "actorder", "observer",
    "observer_kwargs", "scale_dtype", "zp_dtype",
))  # fmt: skip
"""Keys of the ``QuantizationArgs`` of compressed-tensors that are read, or that change no tensor."""


def _target_order(name: str) -> tuple[bool, str]:
    return name.startswith(_REGULAR), name


def _compressed_cache(described: Data) -> str:
    """Return the kind of scales stored for a quantised cache; empty if no scales are stored."""
    scheme = described.get("kv_cache_scheme")
    if scheme is None or (isinstance(scheme, Mapping) and scheme.get("dynamic") is True):
        return ""
    one = isinstance(scheme, Mapping) and (scheme.get("strategy") or "tensor") == "tensor"
    if not one or scheme.get("num_bits", 8) != 8 or scheme.get("symmetric") is False:
        raise UnknownFormat("compressed-tensors", "kv_cache_scheme is not of 8 bits with one scale and no zero point")
    return "compressed-tensors"


def _ranks(names: Iterable[str], method: str) -> tuple[Callable[[LinearModule], bool], ...]:
    """Return three predicates, in order of priority: whether a module matches by exact name, by pattern, or by class.

    compressed-tensors prefers an exact name to a regular expression, and both to a class (match_targets).
    """
    exact = {name for name in names if not name.startswith(_REGULAR)}
    patterns = [_compiled(n.removeprefix(_REGULAR), method) for n in names if n.startswith(_REGULAR)]
    return (
        lambda module: not exact.isdisjoint(module.paths),
        lambda module: any(pattern.match(path) for path in module.paths for pattern in patterns),
        lambda module: not exact.isdisjoint(module.classes),
    )


_COMPRESSED: Final[dict[str, Callable[[int, bool, str], bool]]] = {
    "pack-quantized": lambda bits, is_float, by: not is_float and by in ("group", "channel", "tensor"),
    "int-quantized": lambda bits, is_float, by: not is_float and by in ("group", "channel", "tensor"),
    "float-quantized": lambda bits, is_float, by: is_float and bits == 8 and by != "tensor_group",
    "mxfp8-quantized": lambda bits, is_float, by: is_float and bits == 8 and by == "group",
    "nvfp4-pack-quantized": lambda bits, is_float, by: is_float and bits == 4 and by == "tensor_group",
    "mxfp4-pack-quantized": lambda bits, is_float, by: is_float and bits == 4 and by == "group",
}
"""Predicate by compressed-tensors format: whether it can store numbers with (bits, is float, strategy of scales)."""
_SCALES: Final = {"mxfp8-quantized": "torch.uint8", "nvfp4-pack-quantized": "torch.float8_e4m3fn",
                  "mxfp4-pack-quantized": "torch.uint8"}  # fmt: skip
"""Dtype of scales by layout, if the layout allows one; for other layouts the configuration may not state any."""


def _compressed_format(group: Data, layout: str) -> Format:
    """Return the storage format of one of the ``config_groups`` of compressed-tensors."""
    weights, inputs = group["weights"], group.get("input_activations") or {}
    bits, is_float = weights.get("num_bits", 8), weights.get("type", "int") == "float"
    size = weights.get("group_size")
    strategy = str(weights.get("strategy") or ("tensor" if size is None else "channel" if size == -1 else "group"))
    unknown = UnknownFormat(
        "compressed-tensors",
        f"{layout or 'no format'}: {'float' if is_float else 'int'} of {bits} bits by {strategy}"[:160],
    )
    named = "float-quantized" if layout == "naive-quantized" and is_float else layout
    named = "int-quantized" if named == "naive-quantized" else named
    fits = _COMPRESSED.get(named)
    columns = _number({"group_size": size, "quant_method": "compressed-tensors"}, "group_size") or 0
    if type(bits) is not int or not 1 <= bits <= 8 or fits is None or not fits(bits, is_float, strategy):
        raise unknown
    block, grouped = weights.get("block_structure"), strategy in ("group", "tensor_group")
    if grouped != bool(columns) or (strategy == "block") != _is_pair(block):
        raise unknown
    zeros = "torch.float8_e4m3fn" if is_float else "torch.int8"
    if weights.get("scale_dtype") not in (None, _SCALES.get(named)) or weights.get("zp_dtype") not in (None, zeros):
        raise unknown
    order = str(weights.get("actorder")).lower()
    levels = inputs.get("strategy") == "tensor_group" and inputs.get("dynamic") is not True
    static = bool(inputs) and not inputs.get("dynamic")
    if not isinstance(inputs, Mapping) or (static and inputs.get("strategy", "tensor") != "tensor"):
        raise unknown
    return formats.CompressedTensors(
        named, bits, is_float, strategy, columns, tuple(block) if strategy == "block" else (0, 0),
        symmetric=weights.get("symmetric") is not False, ordered=order in ("group", "dynamic", "true"),
        inputs="static" if static else "dynamic" if inputs else "", input_levels=levels,
        input_zero=inputs.get("symmetric") is False, input_bits=inputs.get("num_bits", 8),
    )  # fmt: skip


def _torchao(described: Data, model_type: str) -> Scheme:
    """Return the scheme of torchao: one format for all linear layers that the configuration does not exclude.

    transformers quantises the modules that are linear layers in its class; until version 5 these included experts.
    """
    stated = described.get("quant_type")
    stated = stated.get("default") if isinstance(stated, Mapping) else stated
    if not isinstance(stated, Mapping) or described.get("include_input_output_embeddings"):
        raise UnknownFormat("torchao", f"quant_type {stated!r}"[:80] if stated else "embeddings are quantised too")
    of, rows, columns = _torchao_format(stated)
    left = _kept_by_transformers(described, ("modules_to_not_convert",), ".weight")

    def quantised(module: LinearModule) -> bool:
        if module.kind == "Expert":
            raise UnknownFormat("torchao", "whether stacks of experts are quantised depends on transformers' version")
        return not left(module) and module.rows % rows == 0 and module.columns % columns == 0

    return Scheme("torchao", (Rule(of, quantised),))


def _torchao_format(config: Any) -> tuple[Format, int, int]:
    """Return the format in a torchao configuration, with the numbers that rows and columns must be multiples of."""
    kind, version, data = (config.get(key) for key in ("_type", "_version", "_data"))  # absent: version 1
    if version != 2 or not isinstance(data, Mapping):
        raise UnknownFormat("torchao", f"{kind} of version {version or 1}, which is not a safetensors layout")
    if kind == "Int4WeightOnlyConfig":
        packing, group = _torchao_value(data.get("int4_packing_format"), "PLAIN"), data.get("group_size", 128)
        if packing not in ("PLAIN", "TILE_PACKED_TO_4D") or group not in (32, 64, 128, 256):
            raise UnknownFormat("torchao", f"int4_packing_format {packing} in groups of {group}"[:80])
        if data.get("int4_tile_packed_ntile", 8) != 8:
            raise UnknownFormat("torchao", "int4_tile_packed_ntile is not 8")
        return formats.TorchaoInt4(group, packing != "PLAIN"), 1, group
    known = {
        "Int8WeightOnlyConfig": ("I8", False), "Int8DynamicActivationInt8WeightConfig": ("I8", True),
        "Float8WeightOnlyConfig": ("F8", False), "Float8DynamicActivationFloat8WeightConfig": ("F8", True),
    }  # fmt: skip
    if kind not in known:
        raise UnknownFormat("torchao", str(kind)[:60])
    dtype, dynamic = known[kind]
    if dtype == "F8":
        dtypes = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
        dtype = dtypes.get(str(_torchao_value(data.get("weight_dtype"), "float8_e4m3fn")), "")
    granularity = data.get("granularity")
    if isinstance(granularity, list):  # of inputs and weights
        granularity = granularity[-1] if granularity else None
    usual = "PerTensor" if kind == "Float8DynamicActivationFloat8WeightConfig" else "PerRow"
    unit = granularity.get("_type") if isinstance(granularity, Mapping) else usual
    inner = granularity.get("_data") if isinstance(granularity, Mapping) else None
    inner = inner if isinstance(inner, Mapping) else {}
    group = _number({**inner, "quant_method": "torchao"}, "group_size") if unit == "PerGroup" else None
    plain = _torchao_value(data.get("packing_format"), "PLAIN") == "PLAIN"
    known_unit = unit in ("PerTensor", "PerRow") or (unit == "PerGroup" and group and not dynamic)
    if not (dtype and plain and known_unit and inner.get("dim", -1) in (-1, 1)):
        raise UnknownFormat("torchao", f"{kind} with {unit}, {data.get('weight_dtype')}"[:80])
    of = formats.TorchaoEightBit(dtype, group, unit == "PerTensor", dynamic)
    # Products in fp8 take multiples of 16 on both sides; other matrices stay as they are.
    return (of, 16, 16) if dynamic and dtype != "I8" else (of, 1, 1)


def _torchao_value(stated: Any, default: str) -> Any:
    """Return the value of an enumeration or a dtype in a torchao configuration."""
    return stated.get("_data") if isinstance(stated, Mapping) else default if stated is None else str(stated).upper()


_READERS: Final[dict[str, Callable[[Data, str], Scheme]]] = {
    "fp8": _fp8,
    "bitsandbytes": _bitsandbytes,
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _autoround,
    "mlx": _mlx,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed,
    "torchao": _torchao,
}
"""Function that reads the scheme from a quantisation description and the model type, by method."""
