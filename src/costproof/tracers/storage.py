"""Count the bytes that a checkpoint stores for each module, and the bytes that a loaded model holds."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final, cast
from unittest import mock

from costproof.ledger.attributes import attribute
from costproof.ledger.errors import check_recounts, first_line
from costproof.ledger.metrics import STORAGE, Metric
from costproof.ledger.node import StatedDifference
from costproof.ledger.workload import ITEM_BYTES, Dtype, Workload
from costproof.models.native import NOT_KNOWN, STORED_IN_PARTS
from costproof.models.target import Target, WithStorage
from costproof.opgraph.tally import ParameterShapes
from costproof.patches.sharding import PARTS, quiet
from costproof.snapshots.copies import on_meta
from costproof.storage.formats import Format
from costproof.storage.scheme import (
    PLAIN,
    LinearModule,
    Scheme,
    UnknownFormat,
    in_numbered_layer,
    is_stored_in_float32,
)
from costproof.storage.tensors import width_recounts
from costproof.tracers.format_runs import NotPacked, cache_scales, fp8_scale_dtype, packed, packed_awq
from costproof.tracers.headers import layout_of, scheme_of
from costproof.tracers.paths import Paths, dtype_name, unwrapped
from costproof.tracers.stored_module import CheckpointNames, checkpoint_names
from costproof.weights.stored import Stored

if TYPE_CHECKING:
    import torch
    from torch import nn

Costs = dict[Metric, int | None]


@dataclass(frozen=True, slots=True)
class ModuleStorage:
    """Storage metrics by module path, without the metrics that are unknown for some module."""

    modules: Mapping[str, Costs] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    notes: tuple[str, ...] = ()
    differences: tuple[StatedDifference, ...] = ()
    """What a run holds otherwise than the layout, with the reason."""
    saved: Mapping[str, int] | None = None
    """Bytes by which a module with quantised weights is smaller than with weights in the run's dtype, by path.

    Its biases and scales are those of the checkpoint. ``None`` if they are unknown, or nothing is quantised.
    """


def storage_by_layout(
    target: Target, model: nn.Module, workload: Workload, parameters: ParameterShapes, buffers: Mapping[str, int | None]
) -> ModuleStorage:
    """Return the storage metrics of the checkpoint's computed layout, for the static source.

    Args:
        model: the model of the run.
        parameters: parameters of the model, each once.
        buffers: bytes by full name, not counted under another name.
    """
    try:
        if workload.mesh.fsdp > 1 and scheme_of(target, model).rules:
            return ModuleStorage(notes=(STORED_IN_PARTS,))
        scheme, modules = layout_of(target, model, workload)
    except UnknownFormat as error:
        return ModuleStorage(notes=(f"{NOT_KNOWN}: {error.name}: {error.why}",))
    found: dict[str, Costs] = {}
    for module in modules:
        tensors = (*module.quantised, *module.plain)
        known = not module.undetermined
        resident = sum(t.bytes for t in module.quantised if t.is_held)
        found[module.path] = {
            "stored_bytes": sum(t.bytes for t in tensors) if known else None,
            "stored_elements": sum(t.elements for t in tensors) if known else None,
            "resident_bytes": resident - module.replaced * ITEM_BYTES[workload.dtype],
        }
    for name, part in vars(model).get(PARTS, {}).items():  # a checkpoint of parts has no padding
        of = cast(Dtype, parameters[name][1])
        kept = of if of != workload.dtype or not isinstance(target, WithStorage) else target.dtype or of
        costs, padding = found[name.rpartition(".")[0]], part.bytes // ITEM_BYTES[of] - part.own
        for metric, item in (("stored_bytes", ITEM_BYTES[kept]), ("stored_elements", 1)):
            costs[metric] = (costs[metric] or 0) - padding * item
    held = [(name, prod(shape) * ITEM_BYTES[dtype]) for name, (shape, dtype) in parameters.items()]
    for name, size in (*held, *buffers.items()):
        _hold(found, name, size)
    item = ITEM_BYTES[workload.dtype]
    saved = {m.path: m.replaced * item - sum(t.bytes for t in m.quantised if t.is_held) for m in modules if m.replaced}
    return replace(_known(found, scheme), saved=saved or None)


def storage_of_run(target: Target, model: nn.Module, workload: Workload) -> ModuleStorage:
    """Return the storage metrics of a running model's tensors.

    The kernels of a quantised checkpoint need a GPU, so its weights are unpacked in a run. Then the tensors are those
    of the module that transformers builds for the checkpoint, or else of stand-in modules, and a note says which.
    """
    stored_dtype: Dtype | None = target.dtype if isinstance(target, WithStorage) else None
    dtypes = {workload.dtype: stored_dtype or workload.dtype}
    try:
        scheme = scheme_of(target, model)
        if workload.mesh.fsdp > 1 and scheme != PLAIN:
            return ModuleStorage(notes=(STORED_IN_PARTS,))
        if scheme == PLAIN:
            made = BuiltQuantised(model)
        elif not workload.mesh.one:
            raise NotBuilt(scheme.method, "transformers builds the whole module, not that of a rank")
        else:
            try:
                made = built_quantised(
                    model, target.stored if isinstance(target, WithStorage) else Stored(), scheme, dtypes
                )
            except NotBuilt as error:
                made = stand_in(model, scheme, dtypes, error)
    except (UnknownFormat, NotBuilt) as error:
        missing = NOT_KNOWN if isinstance(error, UnknownFormat) else NOT_OF_RUN
        return ModuleStorage(notes=(f"{missing}: {error.name}: {error.why}",))
    paths = Paths(made.model)
    tensors = {**paths.parameters, **paths.buffers}
    model_type = str(attribute(attribute(model, "config", None), "model_type", ""))
    persistent = {paths.parameter(unwrapped(name)) for name in made.model.state_dict(keep_vars=True)}
    found: dict[str, Costs] = {}
    padded = {name: part.bytes for name, part in vars(model).get(PARTS, {}).items()}
    for name, size in (resident_bytes(tensors) | padded).items():
        tensor = tensors[name]
        dtype = made.dtypes.get(name, dtype_name(tensor.dtype))
        described = _DESCRIPTION in name.rpartition(".")[2]
        _hold(found, name, 0 if described else size)
        costs = found[name.rpartition(".")[0]]
        if described and any(rule.format.undetermined() for rule in scheme.rules):
            costs["stored_bytes"] = costs["stored_elements"] = None
        if name in persistent and size != 0:
            is_plain = name in paths.parameters and name not in made.of_format
            stored = dtypes.get(dtype, dtype) if is_plain else dtype  # type: ignore[call-overload]
            usual, stored = stored, "float32" if is_stored_in_float32(model_type, name) else stored
            check_recounts(width_recounts(model_type, name, 8 * _ITEM[stored], 8 * _ITEM[usual]))
            for metric, size_of in (("stored_bytes", _ITEM[stored]), ("stored_elements", 1)):
                before = costs[metric]
                costs[metric] = None if before is None else before + tensor.numel() * size_of
    known = _known(found, scheme)
    wider = Counter[str]()
    differences = []
    for why, names in made.loaded_otherwise.items():
        more = Counter[str]()
        for name in names:
            held = tensors[name].dtype.itemsize - _ITEM[made.dtypes[name]]
            more[name.rpartition(".")[0]] += tensors[name].numel() * held
        wider.update(more)
        differences += [StatedDifference(path, "resident_bytes", why, size) for path, size in more.items()]
    saved: dict[str, int] | None = None
    if scheme != PLAIN and "resident_bytes" in known.metrics:
        plain = Counter[str]()
        of_run = Paths(model)
        for name, size in resident_bytes({**of_run.parameters, **of_run.buffers}).items():
            plain[name.rpartition(".")[0]] += size or 0
        saved = {path: size - (found[path]["resident_bytes"] or 0) + wider[path] for path, size in plain.items()}
    return replace(known, notes=(*known.notes, *made.notes), differences=tuple(differences), saved=saved)


_ITEM: Final = {
    **ITEM_BYTES, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e8m0fnu": 1, "uint8": 1, "int8": 1, "int16": 2,
    "int32": 4, "int64": 8, "bool": 1,
}  # fmt: skip
"""Bytes of an element by dtype, including the dtypes of quantised weights and of buffers."""
NOT_OF_RUN: Final = "stored and resident bytes have no dynamic source"
UNPACKED: Final = "stored and resident bytes are of the module as transformers builds it; the run unpacks the weights"
STANDING_IN: Final = (
    "stored and resident bytes are of stand-in modules that hold what the format's library writes; the run unpacks the "
    "weights"
)
"""Start of a note, after which the reason follows why transformers does not build the modules."""
LOADED: Final = "transformers converts these scales and biases to float32 as it loads them"
NARROWED: Final = "transformers loads these scales, powers of two in float32, in one byte (E8M0)"


class NotBuilt(Exception):
    """Raised for a quantised checkpoint whose module cannot be built; states the format and the reason."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name, self.why = name, why


@dataclass(frozen=True, slots=True)
class BuiltQuantised:
    """Module with the tensors of a quantised checkpoint."""

    model: nn.Module
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Dtype in the checkpoint of tensors that the module has in another dtype, by name."""
    loaded_otherwise: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of those of :attr:`dtypes` that a run holds in the dtype of the module, by the reason."""
    of_format: frozenset[str] = frozenset()
    """Names of the parameters of quantised modules, whose dtype does not follow that of the run."""
    notes: tuple[str, ...] = ()


_AS_IN_RUN: Final[Mapping[Dtype, Dtype]] = {}


def built_quantised(
    model: nn.Module, stored: Stored, scheme: Scheme, as_stored: Mapping[Dtype, Dtype] = _AS_IN_RUN
) -> BuiltQuantised:
    """Return the model on meta with the tensors of its quantised checkpoint, as transformers builds it.

    Which parts are quantised, and the shapes of their tensors, follow from the code of transformers and of the format's
    library, and for AWQ, whose linear layer is in another package, from packing a matrix. A format has no part in it.
    The dtype of scales in files, which only a producer decides, is that of :func:`~.format_runs.fp8_scale_dtype`.

    Args:
        model: the module that runs, which stays unchanged.
        as_stored: dtypes of unquantised parameters in the checkpoint, by their dtype in the model, if they differ.

    Raises:
        NotBuilt: it cannot be built, or would not hold all tensors of the checkpoint.
    """
    described = json.loads(stored.described) if stored.described else {}
    own = described.get("quantization_config") or (described.get("text_config") or {}).get("quantization_config")
    if isinstance(own, dict) and scheme.method == "fp8" and described.get("expert_dtype"):  # moved by V4's class
        own = {"expert_dtype": described["expert_dtype"], **own}
    build = _BUILDERS.get(scheme.method)
    if build is None or not isinstance(own, dict) or not hasattr(model, "get_input_embeddings"):
        raise NotBuilt(scheme.method, "no class for it can be built here")
    if scheme.cache == "modelopt":
        raise NotBuilt(scheme.method, "transformers has no scales of the cache")
    made: Any = on_meta(model)
    before = {name: dtype_name(t.dtype) for name, t in made.named_parameters()}
    usual: dict[str, str] = {name: as_stored.get(dtype, dtype) for name, dtype in before.items()}  # type: ignore[call-overload]
    try:
        with quiet():
            build(made, dict(own))
    except NotBuilt:
        raise
    except ImportError as error:
        why = f"no class for it can be built without its library, costproof[quantised]: {first_line(error)}"
        raise NotBuilt(scheme.method, why) from error
    except Exception as error:  # of transformers' code, which raises what it likes
        raise NotBuilt(scheme.method, first_line(error)) from error
    whole, powers = own.get("weight_block_size") is None, own.get("scale_fmt") == "ue8m0"
    model_type = str(attribute(attribute(model, "config"), "model_type", ""))
    scales = fp8_scale_dtype(model_type, in_blocks=not whole, powers=powers)
    dtypes: dict[str, str] = {}
    otherwise: dict[str, list[str]] = defaultdict(list)
    named = dict(made.named_parameters())
    quantised = {name.rpartition(".")[0] for name in named if name not in before}
    of_format = frozenset(name for name in named if name.rpartition(".")[0] in quantised)
    for name in of_format:
        in_files, own_dtype = usual.get(name, "float32"), named[name].dtype
        if name.endswith("_scale_inv"):
            experts = own.get("expert_dtype") == "fp4" and ".experts." in name
            in_files = ("float8_e8m0fnu" if powers else "float32") if experts else scales
        elif name.endswith(".activation_scale") and whole:
            in_files = scales
        elif own_dtype.itemsize != _ITEM["float32"]:  # packed weights
            continue
        if own_dtype.itemsize != _ITEM[in_files]:
            dtypes[name] = in_files
            otherwise[LOADED if own_dtype.itemsize > _ITEM[in_files] else NARROWED].append(name)
    return BuiltQuantised(made, dtypes, otherwise, of_format, (UNPACKED,))


def _built_fp8(model: Any, described: dict[str, Any]) -> None:
    """Replace linear layers and experts by those of transformers in E4M3, with a scale for each block."""
    from transformers.integrations.finegrained_fp8 import FP8Experts
    from transformers.quantizers.auto import AutoHfQuantizer

    if "weight_block_size" not in described:
        raise NotBuilt("fp8", "without weight_block_size transformers assumes blocks, but vLLM one scale a matrix")
    quantiser: Any = AutoHfQuantizer.from_config(described, pre_quantized=True)
    quantiser.preprocess_model(model, dtype=model.dtype)
    for experts in (module for module in model.modules() if isinstance(module, FP8Experts)):
        block, rows = experts.block_size, experts.intermediate_dim
        if experts.activation_scheme == "static":
            raise NotBuilt("fp8", "the class has one scale for the inputs of gate and up, where files have two")
        if quantiser.quantization_config.expert_dtype != "fp4" and experts.has_gate and block is None:
            raise NotBuilt("fp8", "the class has one scale for gate and up, where files have two")
        if quantiser.quantization_config.expert_dtype != "fp4" and experts.has_gate and rows % block[0]:
            raise NotBuilt("fp8", f"the class scales gate and up as one matrix, where {rows} rows are not whole blocks")


def _built_mxfp4(model: Any, described: dict[str, Any]) -> None:
    """Replace experts by those of transformers, and add the scales, which transformers creates only on loading."""
    import torch
    from transformers.integrations import mxfp4
    from transformers.quantizers.auto import AutoHfQuantizer

    quantiser: Any = AutoHfQuantizer.from_config(described, pre_quantized=True)
    config = quantiser.quantization_config
    kept = quantiser.get_modules_to_not_convert(model, config.modules_to_not_convert, model._keep_in_fp32_modules)
    kernels = "triton_kernels_hub"
    with (
        mock.patch("transformers.integrations.hub_kernels.get_kernel", return_value=None),
        mock.patch.object(mxfp4, kernels, getattr(mxfp4, kernels, None), create=True),
    ):
        mxfp4.replace_with_mxfp4_linear(model, quantization_config=config, modules_to_not_convert=kept)
    for module in model.modules():
        if isinstance(module, mxfp4.Mxfp4GptOssExperts):
            for name in ("gate_up_proj", "down_proj"):
                packed = getattr(module, name)
                # 16 bytes of two numbers each have a scale (convert_moe_packed_tensors).
                scales = packed.new_empty(packed.unflatten(-1, (-1, 16)).shape[:-1])
                module.register_parameter(f"{name}_scales", torch.nn.Parameter(scales, requires_grad=False))


_MOST_WEIGHTS: Final = 2**27
"""Maximum number of weights of a matrix that a library quantises on the CPU to show its tensors."""
_DESCRIPTION: Final = "weight_quant_state"
"""Part of the names of JSON tensors, which a loaded module does not keep."""
Quantise = Callable[[Any], Mapping[str, Any]]


def _replace_linear(model: Any, method: str, quantise: Mapping[str, Quantise]) -> None:
    """Replace linear layers by modules with the tensors that a library makes from zeros of the same shape.

    Args:
        quantise: functions that return the tensors of a layer of the same shape, by path of a layer.

    Raises:
        NotBuilt: experts are one tensor, which the library does not take, or a layer is too large.
    """
    import torch

    if any(path.endswith(".experts") and part._parameters for path, part in model.named_modules()):
        raise NotBuilt(method, "transformers has experts as one tensor, which the library does not quantise")
    seen: dict[tuple[object, ...], Mapping[str, Any]] = {}
    for path, of in quantise.items():
        linear = model.get_submodule(path)
        table = isinstance(linear, torch.nn.Embedding)
        rows, columns = linear.weight.shape if table else (linear.out_features, linear.in_features)
        if rows * columns > _MOST_WEIGHTS:
            raise NotBuilt(method, f"{path} has more than {_MOST_WEIGHTS:,} weights, which are quantised to see them")
        bias = getattr(linear, "bias", None)
        key = (type(linear), rows, columns, bias is None, getattr(linear, "quantization_scheme", None) and id(of))
        if key not in seen:
            kind = torch.nn.Embedding(rows, columns) if table else torch.nn.Linear(columns, rows, bias is not None)
            with torch.no_grad():
                kind.weight.zero_()
            seen[key] = of(kind.to(model.dtype).requires_grad_(False))
        tensors = {name: torch.empty_like(tensor, device="meta") for name, tensor in seen[key].items()}
        model.set_submodule(path, _holder(tensors))


def _holder(tensors: Mapping[str, Any]) -> nn.Module:
    """Return a module that has these tensors as buffers, with underscores for dots in their names."""
    from torch.nn import Module

    made = Module()
    for name, tensor in tensors.items():
        made.register_buffer(name.replace(".", "_"), tensor)
    return made


def _built_bitsandbytes(model: Any, described: dict[str, Any]) -> None:
    """Replace linear layers by those of bitsandbytes, as transformers does."""
    import bitsandbytes as bnb
    from transformers.quantizers.auto import AutoHfQuantizer

    quantiser: Any = AutoHfQuantizer.from_config(described, pre_quantized=True)
    quantiser.preprocess_model(model, dtype=model.dtype, device_map=None)
    config = quantiser.quantization_config

    def four(plain: Any) -> Mapping[str, Any]:
        settings = {
            "compress_statistics": config.bnb_4bit_use_double_quant, "quant_type": config.bnb_4bit_quant_type,
            "quant_storage": config.bnb_4bit_quant_storage,
        }  # fmt: skip
        made = bnb.nn.Linear4bit(plain.in_features, plain.out_features, plain.bias is not None, plain.weight.dtype)
        made.load_state_dict(plain.state_dict(), assign=True)
        made.weight = bnb.nn.Params4bit(plain.weight.data, requires_grad=False, module=made, **settings)
        return dict(made.to("cpu").state_dict())

    def eight(plain: Any) -> Mapping[str, Any]:
        made = bnb.nn.Linear8bitLt(
            plain.in_features, plain.out_features, plain.bias is not None, has_fp16_weights=False
        )
        made.load_state_dict(plain.state_dict(), assign=True)
        made.weight = bnb.nn.Int8Params(plain.weight.data, requires_grad=False, has_fp16_weights=False)
        return dict(made.to("cpu").state_dict())

    kinds = {bnb.nn.Linear4bit: four, bnb.nn.Linear8bitLt: eight}
    _replace_linear(model, "bitsandbytes", {p: kinds[type(m)] for p, m in model.named_modules() if type(m) in kinds})


def _built_compressed(model: Any, described: dict[str, Any]) -> None:
    """Replace the layers that compressed-tensors selects by modules with the tensors of its compressors."""
    from compressed_tensors.compressors.base import compress_module
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from compressed_tensors.quantization.lifecycle import initialize_module_for_quantization

    apply_quantization_config(model, QuantizationConfig.model_validate(described))

    def compressed(scheme: Any, plain: Any) -> Mapping[str, Any]:
        initialize_module_for_quantization(plain, scheme, force_zero_point=False)
        for name, parameter in plain.named_parameters():
            if name.endswith("scale"):
                parameter.data.fill_(1)
        compress_module(plain, described["format"])
        return dict(plain.state_dict())

    schemes = {path: module.quantization_scheme for path, module in model.named_modules()
               if hasattr(module, "quantization_scheme") and hasattr(module, "weight")}  # fmt: skip
    made = {id(scheme): partial(compressed, scheme) for scheme in schemes.values()}
    _replace_linear(model, "compressed-tensors", {path: made[id(scheme)] for path, scheme in schemes.items()})


def _built_torchao(model: Any, described: dict[str, Any]) -> None:
    """Replace the linear layers that transformers gives to torchao by modules with torchao's stored tensors."""
    from torch.nn import Sequential
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import quantize_
    from transformers.quantizers.auto import AutoHfQuantizer

    quantiser: Any = AutoHfQuantizer.from_config(described, pre_quantized=True)
    quantiser.preprocess_model(model, dtype=model.dtype)

    def quantised(plain: Any) -> Mapping[str, Any]:
        made = Sequential(plain)
        quantize_(made, quantiser.quantization_config.get_apply_tensor_subclass())
        tensors, _ = flatten_tensor_state_dict(made.state_dict())
        return {name.removeprefix("0."): tensor for name, tensor in tensors.items()}

    names = [name for name, _ in model.named_parameters() if quantiser.param_needs_quantization(model, name)]
    _replace_linear(model, "torchao", {name.rpartition(".")[0]: quantised for name in names})


def _built_awq(model: Any, described: dict[str, Any]) -> None:
    """Replace linear layers inside numbered layers (``layers.0``) by packed matrices, as AutoAWQ does.

    Raises:
        NotBuilt: transformers reads the list of other modules in another way than AutoAWQ, which wrote the checkpoint.
    """
    import torch
    from transformers.quantizers.quantizers_utils import should_convert_module

    kept = described.get("modules_to_not_convert") or ()
    bits, group = int(described.get("bits", 4)), int(described.get("group_size", 128))
    if any(path.endswith(".experts") and part._parameters for path, part in model.named_modules()):
        raise NotBuilt("awq", "transformers has experts as one tensor, for which AWQ has no class")
    for path, linear in list(model.named_modules()):
        named = any(name in path for name in kept)
        inside = any(part.isdigit() for part in path.split(".")) and not named
        rows = linear.out_features if inside and isinstance(linear, torch.nn.Linear) else 0
        if hasattr(linear, "out_features") and should_convert_module(path, list(kept)) is named:
            raise NotBuilt("awq", f"transformers reads modules_to_not_convert otherwise than AutoAWQ for {path}")
        if rows > 1:  # AutoAWQ leaves the gates of shared experts as they are
            matrix = torch.empty(linear.in_features, rows, dtype=torch.int32, device="meta")
            if matrix.shape[0] % max(group, 1):
                raise NotBuilt("awq", f"{matrix.shape[0]} columns of {path} are not whole groups of {group}")
            version = str(described.get("version") or "gemm").lower()
            bias = {"bias": matrix.new_empty(rows, dtype=torch.float16)} if linear.bias is not None else {}
            model.set_submodule(path, _holder(packed_awq(matrix, bits, group, version=version) | bias))


_BUILDERS: Final[Mapping[str, Callable[[Any, dict[str, Any]], None]]] = {
    "fp8": _built_fp8, "mxfp4": _built_mxfp4, "awq": _built_awq, "bitsandbytes": _built_bitsandbytes,
    "compressed-tensors": _built_compressed, "torchao": _built_torchao,
}  # fmt: skip
"""Function that replaces a model's modules by quantised ones, by quantisation method."""


def stand_in(model: nn.Module, scheme: Scheme, dtypes: Mapping[Dtype, Dtype], error: NotBuilt) -> BuiltQuantised:
    """Return the model on meta with the tensors of its quantised checkpoint, packed by the code of :mod:`.format_runs`.

    Which parts are quantised follows from the scheme's rules, and their tensors from packing the model's own. The
    static source has neither: it asks as a format's library does, and computes shapes from a layout.

    Args:
        model: the module that runs, which stays unchanged.
        dtypes: dtypes of unquantised tensors in the checkpoint, by their dtype in the model.
        error: why transformers does not build the modules.

    Raises:
        NotBuilt: a format has no code that packs it.
        UnknownFormat: the rules have no format for a module.
    """
    import torch
    from transformers.pytorch_utils import Conv1D

    if not hasattr(model, "get_input_embeddings") or scheme.stacked:
        raise error
    made: Any = on_meta(model)
    in_files = {getattr(torch, dtype): getattr(torch, stored) for dtype, stored in dtypes.items()}
    names, every = checkpoint_names(made), list(made.named_modules())
    head, table = (_called(made, f"get_{end}_embeddings") for end in ("output", "input"))
    shared = {id(p) for p in (table.parameters() if table is not None else ())}
    in_float32 = (attribute(made, f"_keep_in_fp32_modules{end}", None) or () for end in ("", "_strict"))
    wide = {f".{name}." for listed in in_float32 for name in listed}
    wider: dict[str, str] = {}
    owners: dict[int, bool] = {}
    """Whether a parameter is replaced, by its identity."""

    def as_stored(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return tensor.to(in_files.get(like.dtype, like.dtype))

    def pack(of: Format, weights: torch.Tensor, bias: torch.Tensor | None) -> dict[str, torch.Tensor]:
        try:
            return packed(of, as_stored(weights, weights), None if bias is None else as_stored(bias, weights))
        except NotPacked as why:
            raise NotBuilt(error.name, f"{error.why}; {why}") from why

    for path, module in every:
        tensors: dict[str, torch.Tensor] = {}
        own: Any = module._parameters
        weight = own.get("weight")
        if weight is not None and isinstance(module, torch.nn.Linear | torch.nn.Embedding | Conv1D):
            is_tied = module is head and id(weight) in owners
            matrix = weight.T if isinstance(module, Conv1D) else weight
            place = LinearModule(
                names.module(path), type(module).__name__, matrix.shape[1], module is head or id(weight) in shared,
                in_numbered_layer(path), path, tuple(kind.__name__ for kind in type(module).__mro__), matrix.shape[0],
                any(name in f".{path}." for name in wide), is_tied,
            )  # fmt: skip
            of = None if id(weight) in owners and not is_tied else scheme.format_of(place)
            if of is not None and not is_tied:
                tensors = pack(of, matrix, own.pop("bias", None))
            elif of is None and scheme.float32 and place.in_float32 and not is_tied:
                wider[f"{path}.weight"] = "float32"
            owners.setdefault(id(weight), of is not None)
            if owners[id(weight)]:
                del own["weight"]
        for name in [n for n, p in own.items() if p is not None and p.dim() == 3 and names.layers_of(n)]:
            _unstack(module, path, name, scheme, names, pack, tensors)
        if path.rpartition(".")[2] == "self_attn":
            one = next(module.parameters(), None)
            one = torch.empty(1, dtype=torch.bfloat16, device="meta") if one is None else one
            tensors |= cache_scales(scheme.cache, as_stored(one, one))
        for name, tensor in tensors.items():
            module.register_buffer(name.replace(".", "_"), tensor)
    return BuiltQuantised(made, wider, notes=(f"{STANDING_IN}: {error.name}: {error.why}",))


def _called(model: nn.Module, method: str) -> nn.Module | None:
    """Return what a method without arguments returns; ``None`` if the class leaves it to its subclasses."""
    with suppress(AttributeError, NotImplementedError):
        found: nn.Module | None = getattr(model, method)()
        return found
    return None


def _unstack(
    module: Any, path: str, name: str, scheme: Scheme, names: CheckpointNames,
    pack: Callable[[Format, Any, Any], dict[str, Any]], tensors: dict[str, Any],
) -> None:  # fmt: skip
    """Replace the stacked matrices of all experts by the tensors of each expert, if some of them are quantised.

    Args:
        module: module that has the stack.
        name: name of the parameter, [experts, rows, columns] or transposed; biases are ``NAME_bias``.
        pack: function that returns the tensors of a matrix in a format.
        tensors: quantised tensors of all experts, by name, to which those of the stack are added.
    """
    import torch

    stack, biases = module._parameters[name], module._parameters.get(f"{name}_bias")
    experts, layers, inside = stack.shape[0], names.layers_of(name), names.module(path)
    matrix = stack[0].T if attribute(module, "is_transposed", False) else stack[0]
    found: list[tuple[str, Any, Any, Counter[Format | None]]] = []
    for i, layer in enumerate(layers):
        part = matrix.chunk(len(layers))[i]
        bias = None if biases is None else biases[0].chunk(len(layers))[i]
        places = (
            LinearModule(f"{inside}.{j}.{layer}", "Expert", part.shape[1], own_path=f"{path}.{j}.{layer}",
                         rows=part.shape[0])
            for j in range(experts if scheme.names_experts else 1)
        )  # fmt: skip
        formats = Counter(map(scheme.format_of, places))
        found.append((layer, part, bias, formats if scheme.names_experts else Counter(dict.fromkeys(formats, experts))))
    if all({*formats} == {None} for *_, formats in found):
        return
    del module._parameters[name]
    module._parameters.pop(f"{name}_bias", None)
    for layer, part, bias, formats in found:
        for i, (of, count) in enumerate(formats.items()):
            plain = {"weight": part} | ({} if bias is None else {"bias": bias})
            for end, tensor in (plain if of is None else pack(of, part, bias)).items():
                every = tensor.new_empty(count, *tensor.shape)
                if of is None:
                    module.register_parameter(f"{layer}_{i}_{end}", torch.nn.Parameter(every, requires_grad=False))
                else:
                    tensors[f"{layer}_{i}_{end}"] = every


def _hold(found: dict[str, Costs], name: str, size: int | None) -> None:
    """Add a tensor's bytes to the resident bytes of the module that owns the tensor."""
    costs = found.setdefault(name.rpartition(".")[0], dict.fromkeys(STORAGE, 0))
    before = costs["resident_bytes"]
    costs["resident_bytes"] = None if before is None or size is None else before + size


def _known(found: Mapping[str, Costs], scheme: Scheme) -> ModuleStorage:
    """Return the metrics that are known for every module, without zeros."""
    unknown = {metric for costs in found.values() for metric, cost in costs.items() if cost is None}
    metrics = tuple(metric for metric in STORAGE if metric not in unknown)
    modules = {
        path: own
        for path, costs in found.items()
        if (own := {metric: costs[metric] for metric in metrics if costs[metric] != 0})
    }
    return ModuleStorage(modules, metrics, _notes(scheme) if unknown else ())


def _notes(scheme: Scheme) -> tuple[str, ...]:
    undetermined: Iterable[str] = (text for rule in scheme.rules for text in rule.format.undetermined())
    return tuple(f"{NOT_KNOWN} of {text}" for text in dict.fromkeys(undetermined))


_MOST_MARKED: Final = 2**26
"""Maximum bytes of memory in which the bytes of tensors with gaps are marked one by one."""


def resident_bytes(buffers: Mapping[str, torch.Tensor]) -> dict[str, int | None]:
    """Return the bytes of memory that the buffers of a running module occupy, by name.

    Memory that several buffers share counts for the first of them. The static source counts the buffers of a program
    with code of its own, so that a mistake in either shows.

    Returns:
        ``None`` for a buffer that does not say where its elements are: a sparse one, or a tensor subclass.
    """
    import torch

    found: dict[str, int | None] = {}
    memory: dict[int, list[tuple[int, int, str]]] = {}
    for name, buffer in buffers.items():
        plain = type(buffer) in (torch.Tensor, torch.nn.Parameter) and buffer.layout is torch.strided
        if not plain or (buffer.numel() > 0 and (buffer.is_quantized or buffer.is_conj() or buffer.is_neg())):
            found[name] = None
            continue
        found[name] = 0
        if buffer.numel() > 0:
            size = buffer.element_size()
            first = int(buffer.storage_offset()) * size
            steps = zip(buffer.shape, buffer.stride(), strict=True)
            length = size * (1 + sum((n - 1) * step for n, step in steps))
            memory.setdefault(buffer.untyped_storage()._cdata, []).append((first, first + length, name))
    order = {name: i for i, name in enumerate(buffers)}
    for pieces in memory.values():
        together: list[str] = []
        start = end = 0
        for first, last, name in (*sorted(pieces), (_BEYOND, _BEYOND, "")):
            if together and first >= end:
                together.sort(key=order.__getitem__)
                found[together[0]] = _occupied([buffers[n] for n in together], start, end)
                together = []
            start, end = (start, max(end, last)) if together else (first, last)
            together.append(name)
    return found


_BEYOND: Final = 2**63


def _occupied(tensors: list[torch.Tensor], start: int, end: int) -> int | None:
    """Return the number of bytes in [start, end) of a memory block that these tensors occupy."""
    import torch

    # Along a dimension of step 0 all elements are one.
    tensors = [t[tuple(slice(None) if step else 0 for step in t.stride())] for t in tensors]
    if any(t.is_contiguous() and t.nbytes == end - start for t in tensors):
        return end - start
    if end - start > _MOST_MARKED:
        return None
    marks = torch.zeros(end - start, dtype=torch.bool)
    for tensor in tensors:
        size = tensor.element_size()
        shape, strides = (*tensor.shape, size), (*(step * size for step in tensor.stride()), 1)
        marks.as_strided(shape, strides, int(tensor.storage_offset()) * size - start).fill_(True)
    return int(marks.sum())
