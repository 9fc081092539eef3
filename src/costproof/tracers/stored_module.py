"""Derive the tensors that a checkpoint stores from the model that it fills, on the meta device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.attributes import attribute
from costproof.ledger.errors import BadInput, check_recounts
from costproof.snapshots.copies import held_bytes
from costproof.storage import gguf
from costproof.storage.checkpoint import ModelNames
from costproof.storage.formats import Format, LinearShape, cache_tensors
from costproof.storage.headers import HeaderTensor
from costproof.storage.scheme import (
    LinearModule,
    Rule,
    Scheme,
    UnknownFormat,
    in_numbered_layer,
    is_stored_in_float32,
)
from costproof.storage.tensors import DTYPE_BITS, StoredTensor, width_recounts
from costproof.weights.library_reading import LibraryReading
from costproof.weights.stored import NEXT_TOKEN

if TYPE_CHECKING:
    import torch
    from torch import nn

_DTYPES: Final = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "complex64": "C64", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "uint64": "U64", "uint32": "U32", "uint16": "U16",
}  # fmt: skip
"""Dtype name in a safetensors header, by torch dtype."""
_AS_IT_IS: Final[Mapping[str, str]] = {}
Reading = Scheme | LibraryReading
"""Reading of the quantisation settings: by our rules, or by the library's code for the static source."""
_IN_FLOAT32: Final = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")
"""Class attributes with the names of modules that are loaded in float32 whatever the dtype, and may be stored so."""


@dataclass(frozen=True, slots=True)
class FurtherModule:
    """Tensor names of a multi-token prediction module in the checkpoints of a model family.

    ``{n}`` is a number that counts on from the last layer, ``{i}`` counts from 0; all modules share a name without
    number.
    """

    layer: str
    projections: tuple[str, ...]
    """Names of the projection [h, 2 h] of the embedding and the hidden state, or of one [h, h] of each."""
    norms: tuple[str, ...]
    tables: tuple[str, ...] = ()
    """Names of copies of the embedding and of the output projection."""
    is_quantised: bool = True
    """Whether the projection is quantised unless rules exclude it."""
    key: str = NEXT_TOKEN
    """Configuration key with the number of modules."""
    usual: int = 0
    """Number of modules if the configuration does not have the key."""
    attention: str = "full_attention"
    """Kind of the layer that a module is like; of several, the last one."""
    is_dense: bool = False
    """Whether the MLP is that of a layer without experts."""
    post_norm: str = "post_attention_layernorm"
    listed: str = ""
    """Another name by which lists of unquantised modules have the layer."""
    without: tuple[str, ...] = ()
    """Parts of the names of tensors that a module lacks, although the layer it is like has them."""
    mlp: str = ""
    """Kind of the MLP of the layer that a module is like, instead of the kind of attention."""
    head: str = ""
    """Beginning of the names, in the checkpoint, of further tensors of the model that a module has copies of."""


_OF_DEEPSEEK: Final = FurtherModule(
    "model.layers.{n}.", ("model.layers.{n}.eh_proj",),
    ("model.layers.{n}.enorm", "model.layers.{n}.hnorm", "model.layers.{n}.shared_head.norm"),
    ("model.layers.{n}.embed_tokens", "model.layers.{n}.shared_head.head"), is_quantised=False,
)  # fmt: skip
_OF_QWEN: Final = FurtherModule(
    "mtp.layers.{i}.", ("mtp.fc",), ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"), usual=1
)
_OF_MIMO: Final = FurtherModule(
    "model.mtp_layers.{i}.", ("model.mtp_layers.{i}.input_proj",),
    tuple(f"model.mtp_layers.{{i}}.{name}" for name in ("token_layernorm", "hidden_layernorm", "final_layernorm")),
)  # fmt: skip
_OF_MIMO_2: Final = FurtherModule(
    "model.mtp.layers.{i}.", ("model.mtp.layers.{i}.eh_proj",),
    tuple(f"model.mtp.layers.{{i}}.{name}" for name in ("enorm", "hnorm", "final_layernorm")),
    is_quantised=False, usual=3, attention="sliding_attention", is_dense=True, post_norm="pre_mlp_layernorm",
    listed="model.decoder.",
)  # fmt: skip
_OF_DEEPSEEK_4: Final = FurtherModule(
    "mtp.{i}.", ("mtp.{i}.e_proj", "mtp.{i}.h_proj"), ("mtp.{i}.enorm", "mtp.{i}.hnorm", "mtp.{i}.norm"),
    without=("compressor", "indexer"), mlp="moe", head="hc_head",
)  # fmt: skip
FURTHER: Final[dict[str, FurtherModule]] = {
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe"), _OF_DEEPSEEK),
    "qwen3_next": _OF_QWEN,
    **dict.fromkeys(
        ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        replace(_OF_QWEN, key="mtp_num_hidden_layers", usual=0),
    ),
    "mimo": _OF_MIMO,
    "mimo_v2_flash": _OF_MIMO_2,
    "deepseek_v4": _OF_DEEPSEEK_4,
}
"""Multi-token prediction modules by model type; sources: DeepSeek-V3's report, vLLM ``glm4_moe_mtp.py``,
``qwen3_next_mtp.py`` and ``mimo_mtp.py``, SGLang ``mimo_v2_flash_nextn.py``, headers of DeepSeek-V4-Flash.
"""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Properties of a model, besides its tensors, on which the layout of its checkpoint depends."""

    model_type: str
    params: int
    """Number of elements of all parameters, each counted once."""
    next_token_modules: int
    """Number of multi-token prediction modules in the configuration, or the family's usual number."""
    next_token_key: str = NEXT_TOKEN
    """Configuration key with the number of multi-token prediction modules; empty if the configuration lacks it."""


def model_facts(model: nn.Module) -> ModelFacts:
    """Return the facts of a model on meta that determine its checkpoint's layout."""
    config = attribute(model, "config")
    model_type = str(attribute(config, "model_type", ""))
    family = FURTHER.get(model_type)
    key, usual = (family.key, family.usual) if family is not None else (NEXT_TOKEN, 0)
    inner = attribute(config, "get_text_config", lambda: config)()
    stated = attribute(inner, key, None)
    modules = stated if type(stated) is int else usual
    params = sum(p.numel() for p in model.parameters())
    return ModelFacts(model_type, params, modules, key if type(stated) is int else "")


def model_names(model: nn.Module) -> ModelNames:
    """Return the tensor names of a checkpoint that a class knows: parameters, tied and ignored ones, MTP prefixes."""
    names, seen = checkpoint_names(model), set[int]()
    parameters: set[str] = set()
    tied: dict[str, tuple[int, ...]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        name = names.parameter(path)
        parameters.add(name)
        if id(parameter) in seen:
            tied[name] = tuple(parameter.shape)
        seen.add(id(parameter))
    ignored = [str(pattern) for pattern in attribute(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    if any(path.endswith("position_ids") for path, _ in model.named_buffers()):
        ignored.append(r"(^|\.)position_ids$")  # as on loading in transformers
    modules = model_facts(model).next_token_modules
    layers = attribute(attribute(model, "config"), "num_hidden_layers", 0)
    further = [f"model.layers.{layers + i}." for i in range(modules)] if type(layers) is int else []
    return ModelNames(
        frozenset(parameters), tied, tuple(ignored), (*further, "mtp.", "model.mtp.", "model.mtp_layers.")
    )


def named_as_class(headers: Iterable[HeaderTensor], model: nn.Module) -> tuple[HeaderTensor, ...]:
    """Rename tensors of headers to the names that the model's class has in its checkpoints.

    As on loading in transformers, the prefix of the base model (``transformer.`` of GPT-2) is added where the file was
    saved from the base model, and removed where the model is one.
    """
    prefix, names = str(attribute(model, "base_model_prefix", "")), checkpoint_names(model)
    held = (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
    known = {names.parameter(path) for path, _ in held}
    tops = {name.partition(".")[0] for name in known}
    inside = {name.split(".")[1] for name in known if name.startswith(f"{prefix}.")}

    def renamed(name: str) -> str:
        top, _, rest = name.partition(".")
        if not prefix or top in tops:
            return name
        return f"{prefix}.{name}" if top in inside else rest if top == prefix and rest else name

    return tuple(replace(tensor, name=renamed(tensor.name)) for tensor in headers)


@dataclass(frozen=True, slots=True)
class StoredModule:
    """Tensors that a checkpoint stores for one module, without the module's children."""

    path: str
    quantised: tuple[StoredTensor, ...]
    """Tensors of quantised parameters, and scales of a quantised cache."""
    plain: tuple[StoredTensor, ...]
    """Unquantised parameters, and persistent buffers."""
    replaced: int
    """Number of parameters that are stored quantised."""
    undetermined: bool = False
    """Whether the module has a further tensor of unknown size."""
    matrices: tuple[StoredMatrix, ...] = ()
    """Matrices that the module multiplies by, if one is quantised; for a tied projection, the embedding's matrix."""
    cache_dtype: str = ""
    """Dtype in a header of the weights of an attention, whose quantised cache may have scales; empty for others."""


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """Matrices of one shape that a module multiplies by."""

    linear: LinearShape
    count: int
    format: Format | None
    """Storage format of the matrices; ``None``: not quantised."""
    kind: str
    """Module kind: ``Linear``, ``Embedding`` or ``Expert``, as in :class:`~costproof.storage.scheme.LinearModule`."""


def stored_tensors(model: nn.Module, scheme: Reading) -> Iterator[StoredTensor]:
    """Yield all tensors of :func:`stored_modules`."""
    for module in stored_modules(model, scheme):
        yield from module.quantised
        yield from module.plain


def stored_modules(model: nn.Module, scheme: Reading, dtypes: Mapping[str, str] = _AS_IT_IS) -> Iterator[StoredModule]:
    """Yield the tensors that a checkpoint with this quantisation scheme stores for each module.

    Tensors are parameters and persistent buffers. Names are those of the checkpoint, which transformers may change on
    loading. Stacks of experts are linear layers of each expert, unless the scheme stores stacks, or the checkpoint does
    and the scheme leaves them as they are. Unquantised tensors have the dtype of the module.

    Args:
        dtypes: dtypes of parameters in the checkpoint, by the dtype in the model, if they differ.

    Raises:
        UnknownFormat: the scheme has settings for a module that the model does not have.
    """
    from torch.nn import Embedding, Linear
    from transformers.pytorch_utils import Conv1D

    def as_stored(dtype: str) -> str:
        return dtypes.get(dtype, dtype)

    names = checkpoint_names(model)
    head, table = _embedding(model, "get_output_embeddings"), _embedding(model, "get_input_embeddings")
    shared = {id(p) for p in (table.parameters() if table is not None else ())}
    in_float32 = {str(n) for key in _IN_FLOAT32 for n in attribute(model, key, None) or ()}
    model_type = str(attribute(attribute(model, "config", None), "model_type", ""))
    seen: set[int] = set()
    held = held_bytes({**dict(model.named_parameters()), **dict(model.named_buffers())})
    if scheme.named:
        paths = {path for path, _ in model.named_modules()}
        missing = set(scheme.named) - paths - {names.module(path) for path in paths}
        if missing:
            raise UnknownFormat(scheme.method, f"settings for {min(missing)[:80]}, which the model does not have")
    for path, module in model.named_modules():
        own = {n: p for n, p in module.named_parameters(recurse=False) if id(p) not in seen}
        seen |= {id(p) for p in own.values()}
        quantised: list[StoredTensor] = []
        plain: list[StoredTensor] = []
        matrices: list[StoredMatrix] = []
        replaced, cached = 0, ""
        tied = isinstance(module, Linear) and module is head and "weight" not in own
        if isinstance(module, Linear | Embedding | Conv1D) and ("weight" in own or tied):
            rows, columns = module.weight.shape[:: -1 if isinstance(module, Conv1D) else 1]
            place = LinearModule(
                names.module(path), type(module).__name__, columns, module is head or id(module.weight) in shared,
                in_numbered_layer(path), path, tuple(c.__name__ for c in type(module).__mro__), rows,
                any(f".{name}." in f".{path}." for name in in_float32), tied,
            )  # fmt: skip
            of, kind = scheme.format_of(place), "Embedding" if isinstance(module, Embedding) else "Linear"
            if of is not None and tied:
                shape = LinearShape(rows, columns, False, as_stored(_dtype(module.weight)))
                matrices.append(StoredMatrix(shape, 1, of, kind))
            elif of is not None:
                bias = own.pop("bias", None)
                linear = LinearShape(place.rows, place.columns, bias is not None, as_stored(_dtype(own.pop("weight"))))
                quantised += _named(_packed(of, linear), place.path)
                replaced += linear.elements
                matrices.append(StoredMatrix(linear, 1, of, kind))
            elif scheme.float32 and place.in_float32 and not tied:
                plain.append(replace(_plain(f"{place.path}.weight".lstrip("."), own["weight"]), dtype="F32"))
        for name in [n for n, p in own.items() if p.dim() == 3 and names.layers_of(n)]:
            parts = list(_stack(path, name, module, own[name], own.get(f"{name}_bias"), scheme, names, as_stored))
            for linear, count, of, tensors in parts:
                (plain if of is None else quantised).extend(tensors)
                replaced += 0 if of is None else count * linear.elements
                matrices.append(StoredMatrix(linear, count, of, "Expert"))
            if parts:
                own.pop(name)
                own.pop(f"{name}_bias", None)
        in_place = {tensor.name.rpartition(".")[2] for tensor in plain}
        for name, parameter in own.items():
            if name not in in_place:
                stored = _plain(names.parameter(f"{path}.{name}".lstrip(".")), parameter)
                wide = is_stored_in_float32(model_type, f"{path}.{name}")
                plain.append(replace(stored, dtype="F32" if wide else as_stored(stored.dtype)))
                bits = DTYPE_BITS[plain[-1].dtype], DTYPE_BITS[as_stored(stored.dtype)]
                check_recounts(width_recounts(model_type, stored.name, *bits))
        persistent = set(module.state_dict(keep_vars=True)) - set(dict(module.named_parameters(recurse=False)))
        for name, buffer in module.named_buffers(recurse=False):
            if name in persistent and held.get(f"{path}.{name}".lstrip("."), 0) != 0:
                stored = replace(_plain(names.parameter(f"{path}.{name}".lstrip(".")), buffer), purpose="buffer")
                wide = name in in_float32 and buffer.is_floating_point()
                plain.append(replace(stored, dtype="F32") if wide else stored)
        if path.rpartition(".")[2] == "self_attn":
            one = next(module.parameters(), None)
            cached = as_stored(_dtype(one)) if one is not None else "BF16"
            quantised += _named(cache_tensors(scheme.cache, cached), names.module(path))
        found = tuple(matrices) if any(one.format for one in matrices) else ()
        if quantised or plain or found:
            undetermined = any(one.format.undetermined() for one in matrices if one.format is not None and not tied)
            yield StoredModule(path, tuple(quantised), tuple(plain), replaced, undetermined, found, cached)


def _embedding(model: nn.Module, method: str) -> nn.Module | None:
    """Return the embedding that ``get_input_embeddings`` or another method returns; ``None`` without an embedding."""
    try:
        found: nn.Module | None = attribute(model, method, lambda: None)()
    except NotImplementedError:
        return None
    return found


def tied_head(model: nn.Module) -> str:
    """Return name and shape of the output projection's weight if it is tied to the embedding; else an empty text."""
    head, table = _embedding(model, "get_output_embeddings"), _embedding(model, "get_input_embeddings")
    weight = attribute(head, "weight", None)
    if weight is None or weight is not attribute(table, "weight", None):
        return ""
    path = next((path for path, module in model.named_modules() if module is head), "")
    return f"{checkpoint_names(model).parameter(f'{path}.weight'.lstrip('.'))} {[*weight.shape]}"


def assumed_of_experts(model: nn.Module, tensors: Iterable[StoredTensor]) -> tuple[str, ...]:
    """Return a note if it is only assumed that quantised experts are stored as separate linear layers."""
    one_by_one = any(".*." in tensor.name and tensor.stands_for for tensor in tensors)
    if not one_by_one or checkpoint_names(model).stacks:
        return ()
    return ("experts are stored as linear layers of each, which neither a key nor the class says",)


def _dtype(tensor: torch.Tensor) -> str:
    own = str(tensor.dtype).removeprefix("torch.")
    if own not in _DTYPES:
        raise UnknownFormat(own, "no dtype of a header stands for it")
    return _DTYPES[own]


def _plain(name: str, tensor: torch.Tensor) -> StoredTensor:
    return StoredTensor(name, _dtype(tensor), tuple(tensor.shape))


def _named(tensors: Iterable[StoredTensor], path: str) -> list[StoredTensor]:
    """Prefix the names of tensors with the path of their module."""
    return [replace(tensor, name=f"{path}.{tensor.name}".lstrip(".")) for tensor in tensors]


def _packed(of: Format, linear: LinearShape) -> Iterator[StoredTensor]:
    """Yield the stored tensors of a quantised linear layer; the weight tensor states how many weights it represents."""
    for tensor in of.tensors(linear):
        yield replace(tensor, stands_for=linear.rows * linear.columns) if tensor.purpose == "weight" else tensor


def _stack(
    path: str,
    name: str,
    module: nn.Module,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scheme: Reading,
    names: CheckpointNames,
    as_stored: Callable[[str], str],
) -> Iterator[tuple[LinearShape, int, Format | None, list[StoredTensor]]]:
    """Yield the stored tensors of a parameter that stacks all experts' matrices, split into linear layers.

    No tensors are yielded for a stack that the checkpoint stores as a stack.

    Yields:
        The linear layer of an expert, the number of experts that have one, its format, and the tensors of all of them.
    """
    experts, rows, columns = weight.shape
    if _is_transposed(module):
        rows, columns = columns, rows
    dtype, layers = as_stored(_dtype(weight)), names.layers_of(name)
    stack = names.module(path)
    if scheme.stacked:
        of = scheme.format_of(LinearModule(f"{stack}.0.{layers[0]}", "Expert", columns, rows=rows))
        if of is not None:
            linear = LinearShape(rows, columns, bias is not None, dtype)
            yield linear, experts, of, [
                replace(
                    tensor, name=f"{stack}.{name}_{tensor.name}", shape=(experts, *tensor.shape),
                    stands_for=experts * tensor.stands_for,
                )
                for tensor in _packed(of, linear)
            ]  # fmt: skip
        return
    rows //= len(layers)
    found = {
        part: Counter(
            scheme.format_of(
                LinearModule(f"{stack}.{i}.{part}", "Expert", columns, own_path=f"{path}.{i}.{part}", rows=rows)
            )
            for i in range(experts)
        )
        for part in layers
    }
    if not names.is_split(name) and all(set(formats) == {None} for formats in found.values()):
        return
    for part, formats in found.items():
        for own, count in formats.items():
            linear = LinearShape(rows, columns, bias is not None, dtype)
            plain = (StoredTensor("weight", dtype, (rows, columns)), *linear.plain_bias)
            yield (
                linear,
                count,
                own,
                [
                    replace(tensor, name=f"{stack}.*.{part}.{tensor.name}", count=count)
                    for tensor in (plain if own is None else _packed(own, linear))
                ],
            )


def _is_transposed(module: nn.Module) -> bool:
    """Return whether a module stores stacked matrices as [columns, rows], by its attribute ``is_transposed``."""
    stated: Any = attribute(module, "is_transposed", None)
    return bool(stated)


def next_token_tensors(model: nn.Module, scheme: Reading, modules: int) -> Iterator[StoredTensor]:
    """Yield the tensors of multi-token prediction modules, as checkpoints store them.

    A module is a layer like the last one with full attention (MiMo-V2: with a window, and the MLP of a dense layer;
    DeepSeek-V4: with a window, so that it lacks the compressor), a projection [h, 2 h] of embedding and hidden state or
    two [h, h], three norms, and in some families copies of the embedding and of the output projection, or of the mix
    of hyper-connections before it. The class in transformers lacks these modules. Rules of the scheme see the names
    that the layer has in the module.

    Raises:
        BadInput: the checkpoint of this model is not known to have such modules, or not so many.
    """
    facts = model_facts(model)
    family = FURTHER.get(facts.model_type)
    if family is None:
        raise BadInput("the MTP modules of this model are not known", where="--mtp",
                       expected=" or ".join(FURTHER), got=facts.model_type)  # fmt: skip
    if modules > facts.next_token_modules:
        raise BadInput("the checkpoint does not have that many MTP modules", where="--mtp",
                       expected=f"at most {facts.next_token_modules} ({family.key})", got=modules)  # fmt: skip
    config, base = attribute(model, "config").get_text_config(), attribute(model, "model")
    layers = attribute(attribute(base, "language_model", base), "layers")
    kinds = list(attribute(config, "layer_types", None) or ())
    if family.mlp:
        kinds = list(attribute(config, "mlp_layer_types", None) or ())[: len(layers)]
    wanted = family.mlp or family.attention
    last = max((i for i, kind in enumerate(kinds) if kind == wanted), default=len(layers) - 1)
    dense = last
    if family.mlp and family.mlp not in kinds:
        raise BadInput("the layers that an MTP module is like are not in this model", where="--mtp",
                       expected=f"layers {family.mlp}", got=", ".join({*kinds}))  # fmt: skip
    if family.is_dense:
        like = list(attribute(config, "mlp_layer_types", None) or ())[: len(layers)]
        if family.attention not in kinds or "dense" not in like:
            raise BadInput("the layers that an MTP module is like are not in this model", where="--mtp",
                           expected=f"layers {family.attention} and dense", got=", ".join({*kinds, *like}))  # fmt: skip
        dense = max(i for i, kind in enumerate(like) if kind == "dense")
    names, paths = checkpoint_names(model), {id(module): path for path, module in model.named_modules()}
    copied, of_mlp = (f"{names.module(paths[id(layers[i])])}." for i in (last, dense))
    width = config.hidden_size
    dtype = _dtype(attribute(model, "get_input_embeddings")().weight)
    sizes = [tuple(attribute(model, f"get_{part}_embeddings")().weight.shape) for part in ("input", "output")]
    seen: set[str] = set()
    for i in range(modules):
        layer, *others = (name.format(n=len(layers) + i, i=i) for name in (family.layer, *family.norms))
        for start in dict.fromkeys((copied, of_mlp)):
            for tensor in stored_tensors(model, _renamed(scheme, start, layer, family.listed)):
                part = tensor.name.removeprefix(start)
                if not {*part.split(".")}.isdisjoint(family.without):
                    continue
                if tensor.name.startswith(start) and (of_mlp if part.startswith("mlp.") else copied) == start:
                    yield replace(tensor, name=layer + part.replace("post_attention_layernorm", family.post_norm))
        tensors = [StoredTensor(f"{name}.weight", dtype, (width,)) for name in others]
        columns = 2 * width // len(family.projections)
        for projection in (name.format(n=len(layers) + i, i=i) for name in family.projections):
            place = LinearModule(projection, columns=columns, rows=width, in_layers=in_numbered_layer(projection))
            of = scheme.format_of(place) if family.is_quantised else None
            if of is None:
                tensors.append(StoredTensor(f"{projection}.weight", dtype, (width, columns)))
            else:
                tensors += _named(_packed(of, LinearShape(width, columns, False, dtype)), projection)
        if family.head:
            every = stored_tensors(model, scheme)
            tensors += [replace(one, name=layer + one.name) for one in every if one.name.startswith(family.head)]
        for table, size in zip(family.tables, sizes, strict=False):
            tensors.append(StoredTensor(f"{table.format(n=len(layers) + i)}.weight", dtype, size))
        yield from (tensor for tensor in tensors if tensor.name not in seen)
        seen |= {tensor.name for tensor in tensors}


def _renamed(scheme: Reading, old: str, new: str, listed: str = "") -> Reading:
    """Return a scheme or reading that treats modules below one name as if they were below another.

    Args:
        listed: a further name by which lists may have them.
    """
    if isinstance(scheme, LibraryReading):
        return replace(scheme, prefix=(old, new), listed=listed)

    def moved(module: LinearModule) -> LinearModule:
        if not module.path.startswith(old):
            return module
        rest = module.path.removeprefix(old)
        return replace(module, path=new + rest, own_path=listed + rest if listed else "")

    rules = (Rule(rule.format, lambda m, rule=rule: rule.applies(moved(m))) for rule in scheme.rules)  # type: ignore[misc]
    return replace(scheme, rules=tuple(rules))


def gguf_layout(
    model: nn.Module, headers: Iterable[HeaderTensor]
) -> tuple[dict[str, str], list[StoredTensor], ModelNames]:
    """Return the tensors that a GGUF file has for a model, with the types that the file states.

    A tensor that the file lacks counts in float32. Keys and values of latent attention are one tensor or two, as in
    the file.

    Returns:
        Module paths by tensor name; the tensors; and names of further tensors.

    Raises:
        UnknownFormat: the names of the tensors of this model are not known.
    """
    facts, types = model_facts(model), {tensor.name: tensor.dtype for tensor in headers}
    if facts.model_type not in gguf.MODEL_TYPES:
        raise UnknownFormat("gguf", f"names of tensors are not known of {facts.model_type or type(model).__name__}")
    shapes = {path: tuple(p.shape) for path, p in model.named_parameters()}
    shapes |= {path: tuple(b.shape) for path, b in model.named_buffers() if path.endswith(gguf.CORRECTION)}
    transposed = any(map(_is_transposed, model.modules()))
    config = attribute(model, "config")
    try:
        found = list(gguf.gguf_tensors(facts.model_type, shapes, transposed=transposed))
        every = model.named_parameters(remove_duplicate=False)
        again = {path: tuple(p.shape) for path, p in every if path not in shapes}
        tied = {one.name: one.shape for one in gguf.gguf_tensors(facts.model_type, again)}
    except KeyError as error:
        raise UnknownFormat("gguf", f"no GGUF name is known for {error.args[0]} of {facts.model_type}") from error
    if any(name.endswith(".attn_k_b.weight") for name in types):
        widths = attribute(config, "qk_nope_head_dim", 0), attribute(config, "v_head_dim", 0)
        found = [part for one in found for part in gguf.split_latents(one, *widths)]
    tensors = [StoredTensor(one.name, types.get(one.name, "F32"), one.shape) for one in found]
    layers = attribute(config, "num_hidden_layers", 0)
    further = tuple(f"blk.{layers + i}." for i in range(facts.next_token_modules))
    modules = {one.name: one.module for one in found}
    return modules, tensors, ModelNames(frozenset(modules) | frozenset(tied), tied, (), further)


_STACKS: Final = {"gate_up_proj": ("gate_proj", "up_proj"), "up_proj": ("up_proj",), "down_proj": ("down_proj",)}
"""Names of an expert's linear layers in the checkpoint, by stacked parameter, unless transformers knows others."""
_EXPERT: Final = ".experts.*."


@dataclass(frozen=True, slots=True)
class CheckpointNames:
    """Mapping from a model's names to its checkpoint's names: the reverse of transformers' conversions on loading."""

    renamings: tuple[Any, ...] = ()
    """Reversed renamings, in the order in which they apply."""
    stacks: Mapping[str, tuple[str, ...]] | None = None
    """Names of an expert's linear layers by stacked parameter; ``None``: transformers states nothing about stacks."""
    in_files: tuple[tuple[str, str], ...] = ()
    """Patterns with replacements, by which names become those of published files, after the renamings."""

    def parameter(self, name: str) -> str:
        """Return the name of a parameter in the checkpoint."""
        for renaming in self.renamings:
            name, _ = renaming.rename_source_key(name)
        for pattern, named in self.in_files:
            name = re.sub(pattern, named, name)
        return name

    def module(self, path: str) -> str:
        """Return the checkpoint path of a module with a weight."""
        named, dot, last = self.parameter(f"{path}.weight").rpartition(".")
        return named if dot and last == "weight" else path

    def layers_of(self, stack: str) -> tuple[str, ...]:
        """Return the names of an expert's linear layers that a stacked parameter is split into.

        Empty if it is not a stack.
        """
        return (self.stacks or {}).get(stack) or _STACKS.get(stack, ())

    def is_split(self, stack: str) -> bool:
        """Return whether the checkpoint is known to store each expert's linear layers instead of the stack."""
        return stack in (self.stacks or {})


def checkpoint_names(model: nn.Module) -> CheckpointNames:
    """Return the mapping from a model's names to its checkpoint's; the identity for models outside transformers."""
    from transformers import PreTrainedModel
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    if not isinstance(model, PreTrainedModel):
        return CheckpointNames()
    transforms = get_model_conversion_mapping(model, add_legacy=False)
    renamings = [t.reverse_transform() for t in reversed(transforms) if not isinstance(t, WeightConverter)]
    stacks = {}
    for transform in transforms:
        sources, targets = list(attribute(transform, "source_patterns")), list(attribute(transform, "target_patterns"))
        if isinstance(transform, WeightConverter) and len(targets) == 1 and all(_EXPERT in f".{s}" for s in sources):
            layers = tuple(source.partition("experts.*.")[2].removesuffix(".weight") for source in sources)
            stacks[targets[0].rpartition(".")[2]] = layers
    in_files = _IN_FILES.get(str(attribute(model.config, "model_type", "")), ())
    return CheckpointNames(tuple(renamings), stacks or None, in_files)


_IN_FILES: Final = {
    "deepseek_v4": (
        (r"^model\.", ""), (r"^embed_tokens\.", "embed."), (r"^hc_head\.hc_", "hc_head_"),
        (r"(\.attn)\.norm\.", r"\1.kv_norm."),
    ),
}  # fmt: skip
"""Patterns and replacements of names that reversed conversions of transformers leave, or change wrongly, by model type.

Source: headers of DeepSeek-V4-Flash.
"""
