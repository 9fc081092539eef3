"""Yield the tensors of a checkpoint from the module that it fills, built on the meta device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.attributes import attribute
from costproof.ledger.errors import BadInput
from costproof.models.checkpoint_names import CheckpointNames, checkpoint_names
from costproof.storage.formats import Format, LinearShape
from costproof.storage.scheme import LinearModule, Scheme, UnknownFormat
from costproof.storage.tensors import StoredTensor

if TYPE_CHECKING:
    import torch
    from torch import nn

_DTYPES: Final = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "complex64": "C64", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
"""Name of a dtype of torch -> its name in a header."""
NEXT_TOKEN: Final = "num_nextn_predict_layers"
"""Key with the number of modules that predict one more token, each after the last layer in the checkpoint."""
_LAYERS: Final = ("layers", "h", "blocks", "block", "layer")
_IN_FLOAT32: Final = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")
"""Attributes of a class with the names of what it loads in float32 whatever its dtype, as its checkpoint has it."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Properties of a model, besides its tensors, on which the layout of its checkpoint depends."""

    model_type: str
    params: int
    """Elements of all parameters, each once."""
    next_token_modules: int
    """Modules for further tokens that the configuration names."""


def model_facts(model: nn.Module) -> ModelFacts:
    """Return the facts of a model on meta."""
    config = attribute(model, "config")
    modules = attribute(config, NEXT_TOKEN, 0)
    params = sum(p.numel() for p in model.parameters())
    return ModelFacts(str(attribute(config, "model_type", "")), params, modules if type(modules) is int else 0)


def stored_tensors(model: nn.Module, scheme: Scheme) -> Iterator[StoredTensor]:
    """Yield the tensors of a checkpoint of the model in a scheme: parameters and persistent buffers, each once.

    Names are those of the checkpoint, which transformers may change on loading. Stacks of experts are linear layers of
    each expert, unless the scheme stores stacks, or the checkpoint does and the scheme leaves them as they are. What
    the scheme does not quantise has the dtype of the module.

    Raises:
        UnknownFormat: the scheme has settings for a module that the model does not have.
    """
    from torch.nn import Embedding, Linear
    from transformers.pytorch_utils import Conv1D

    names = checkpoint_names(model)
    head = attribute(model, "get_output_embeddings", lambda: None)()
    table = attribute(model, "get_input_embeddings", lambda: None)()
    shared = {id(p) for p in (table.parameters() if table is not None else ())}
    in_float32 = {str(n) for key in _IN_FLOAT32 for n in attribute(model, key, None) or ()}
    seen: set[int] = set()
    if scheme.named:
        paths = {path for path, _ in model.named_modules()}
        missing = set(scheme.named) - paths - {names.module(path) for path in paths}
        if missing:
            raise UnknownFormat(scheme.method, f"settings for {min(missing)[:80]}, which the model does not have")
    for path, module in model.named_modules():
        own = {n: p for n, p in module.named_parameters(recurse=False) if id(p) not in seen}
        seen |= {id(p) for p in own.values()}
        if isinstance(module, Linear | Embedding | Conv1D) and "weight" in own:
            rows, columns = own["weight"].shape[:: -1 if isinstance(module, Conv1D) else 1]
            place = LinearModule(
                names.module(path), type(module).__name__, columns, module is head or id(own["weight"]) in shared,
                _in_layers(path), path, tuple(c.__name__ for c in type(module).__mro__), rows,
                not in_float32.isdisjoint(path.split(".")),
            )  # fmt: skip
            yield from _linear(place, own.pop("weight"), own.pop("bias", None), scheme)
        for name in [n for n, p in own.items() if p.dim() == 3 and names.layers_of(n)]:
            bias = own.get(f"{name}_bias")
            found = list(_stack(path, name, module, own[name], bias, scheme, names))
            if found:
                yield from found
                own.pop(name)
                own.pop(f"{name}_bias", None)
        for name, parameter in own.items():
            yield _plain(names.parameter(f"{path}.{name}".lstrip(".")), parameter)
        persistent = set(module.state_dict(keep_vars=True)) - set(dict(module.named_parameters(recurse=False)))
        for name, buffer in module.named_buffers(recurse=False):
            if name in persistent and id(buffer) not in seen:
                seen.add(id(buffer))
                stored = replace(_plain(names.parameter(f"{path}.{name}".lstrip(".")), buffer), purpose="buffer")
                yield replace(stored, dtype="F32") if name in in_float32 and buffer.is_floating_point() else stored
        if path.rpartition(".")[2] == "self_attn":
            for scale in scheme.cache_scales:
                yield replace(scale, name=f"{names.module(path)}.{scale.name}")


def assumed_of_experts(model: nn.Module, tensors: Iterable[StoredTensor]) -> tuple[str, ...]:
    """Return the assumption that quantised experts are stored one by one, unless transformers' loading states it."""
    one_by_one = any(".*." in tensor.name and tensor.stands_for for tensor in tensors)
    if not one_by_one or checkpoint_names(model).stacks:
        return ()
    return ("experts are stored as linear layers of each, which neither a key nor the class says",)


def _in_layers(path: str) -> bool:
    parts = path.split(".")
    return any(a in _LAYERS and b.isdigit() for a, b in pairwise(parts))


def _dtype(tensor: torch.Tensor) -> str:
    return _DTYPES[str(tensor.dtype).removeprefix("torch.")]


def _plain(name: str, tensor: torch.Tensor) -> StoredTensor:
    return StoredTensor(name, _dtype(tensor), tuple(tensor.shape))


def _linear(
    place: LinearModule, weight: torch.Tensor, bias: torch.Tensor | None, scheme: Scheme
) -> Iterator[StoredTensor]:
    of = scheme.format_of(place)
    if of is None:
        plain = _plain(f"{place.path}.weight".lstrip("."), weight)
        yield replace(plain, dtype="F32") if scheme.float32 and place.in_float32 else plain
        if bias is not None:
            yield _plain(f"{place.path}.bias".lstrip("."), bias)
        return
    for tensor in _packed(of, LinearShape(place.rows, place.columns, bias is not None, _dtype(weight))):
        yield replace(tensor, name=f"{place.path}.{tensor.name}".lstrip("."))


def _packed(of: Format, linear: LinearShape) -> Iterator[StoredTensor]:
    """Yield the tensors of a linear layer; the one with the weights states how many it holds."""
    for tensor in of.tensors(linear):
        yield replace(tensor, stands_for=linear.rows * linear.columns) if tensor.purpose == "weight" else tensor


def _stack(
    path: str,
    name: str,
    module: nn.Module,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    scheme: Scheme,
    names: CheckpointNames,
) -> Iterator[StoredTensor]:
    """Yield the tensors of a stack of matrices, each [rows, columns] or, if the class says so, [columns, rows].

    Nothing is yielded for a stack that the checkpoint has as it is.
    """
    experts, rows, columns = weight.shape
    if _is_transposed(module):
        rows, columns = columns, rows
    dtype, layers = _dtype(weight), names.layers_of(name)
    stack = names.module(path)
    if scheme.stacked:
        of = scheme.format_of(LinearModule(f"{stack}.0.{layers[0]}", "Expert", columns, rows=rows))
        for tensor in () if of is None else _packed(of, LinearShape(rows, columns, bias is not None, dtype)):
            shape = (experts, *tensor.shape)
            yield replace(
                tensor, name=f"{stack}.{name}_{tensor.name}", shape=shape, stands_for=experts * tensor.stands_for
            )
        return
    rows //= len(layers)
    found = {
        part: Counter(
            scheme.format_of(LinearModule(f"{stack}.{i}.{part}", "Expert", columns, rows=rows)) for i in range(experts)
        )
        for part in layers
    }
    if not names.is_split(name) and all(set(formats) == {None} for formats in found.values()):
        return
    for part, formats in found.items():
        for own, count in formats.items():
            linear = LinearShape(rows, columns, bias is not None, dtype)
            plain = (StoredTensor("weight", dtype, (rows, columns)), *linear.plain_bias)
            for tensor in plain if own is None else _packed(own, linear):
                yield replace(tensor, name=f"{stack}.*.{part}.{tensor.name}", count=count)


def _is_transposed(module: nn.Module) -> bool:
    """Return whether the matrices of a stack are [columns, rows], as transformers' expert classes state."""
    stated: Any = attribute(module, "is_transposed", None)
    return bool(stated)


_LIKE_DEEPSEEK: Final = ("deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe")
"""Model types whose module for one more token is built as DeepSeek-V3's."""


def next_token_tensors(model: nn.Module, scheme: Scheme, modules: int) -> Iterator[StoredTensor]:
    """Yield the tensors of the modules that predict one more token, as DeepSeek-V3's checkpoint has them.

    A module is a layer like the last one, a projection eh_proj [h, 2 h] of embedding and hidden state that is not
    quantised, three norms, and copies of the embedding and of the output projection. The class in transformers has
    none of it.

    Raises:
        BadInput: the checkpoint of this model is not known to have such modules, or not so many.
    """
    facts = model_facts(model)
    if facts.model_type not in _LIKE_DEEPSEEK:
        raise BadInput("the modules that predict further tokens are not known for this model", where="--mtp",
                       expected=" or ".join(_LIKE_DEEPSEEK), got=facts.model_type)  # fmt: skip
    if modules > facts.next_token_modules:
        raise BadInput("the checkpoint does not have that many modules for further tokens", where="--mtp",
                       expected=f"at most {facts.next_token_modules} ({NEXT_TOKEN})", got=modules)  # fmt: skip
    layers = attribute(attribute(model, "model"), "layers")
    number, width = len(layers), attribute(model, "config").hidden_size
    last = [t for t in stored_tensors(model, scheme) if f".layers.{number - 1}." in t.name]
    dtype = _dtype(attribute(model, "get_input_embeddings")().weight)
    table, head = (
        tuple(attribute(model, name)().weight.shape) for name in ("get_input_embeddings", "get_output_embeddings")
    )
    for i in range(number, number + modules):
        for tensor in last:
            yield replace(tensor, name=tensor.name.replace(f".layers.{number - 1}.", f".layers.{i}."))
        yield StoredTensor(f"model.layers.{i}.eh_proj.weight", dtype, (width, 2 * width))
        for name in ("enorm", "hnorm", "shared_head.norm"):
            yield StoredTensor(f"model.layers.{i}.{name}.weight", dtype, (width,))
        yield StoredTensor(f"model.layers.{i}.embed_tokens.weight", dtype, table)
        yield StoredTensor(f"model.layers.{i}.shared_head.head.weight", dtype, head)
