"""Yield the tensors of a checkpoint from the module that it fills, built on the meta device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.attributes import attribute
from costproof.ledger.errors import BadInput
from costproof.storage.formats.base import Format, LinearShape
from costproof.storage.scheme import LinearModule, Scheme
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
_STACKS: Final = {"gate_up_proj": ("gate_proj", "up_proj"), "up_proj": ("up_proj",), "down_proj": ("down_proj",)}
"""Parameter of a stack of experts -> the linear layers that an expert has for it in the checkpoint."""


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

    Stacks of experts are linear layers of each expert, unless the scheme stores stacks. What the scheme does not
    quantise has the dtype of the module.
    """
    from torch.nn import Embedding, Linear

    head = attribute(model, "get_output_embeddings", lambda: None)()
    table = attribute(model, "get_input_embeddings", lambda: None)()
    shared = {id(p) for p in (table.parameters() if table is not None else ())}
    in_float32 = {str(n) for key in _IN_FLOAT32 for n in attribute(model, key, None) or ()}
    seen: set[int] = set()
    for path, module in model.named_modules():
        own = {n: p for n, p in module.named_parameters(recurse=False) if id(p) not in seen}
        seen |= {id(p) for p in own.values()}
        stacks = {n: p for n, p in own.items() if p.dim() == 3 and n in _STACKS}
        if isinstance(module, Linear | Embedding) and "weight" in own:
            is_head = module is head or id(own["weight"]) in shared
            kind = "Embedding" if isinstance(module, Embedding) else type(module).__name__
            place = LinearModule(path, kind, own["weight"].shape[1], is_head, _in_layers(path))
            yield from _linear(place, own.pop("weight"), own.pop("bias", None), scheme)
        elif stacks and any(scheme.format_of(_expert(path, name, p.shape[-1])) for name, p in stacks.items()):
            for name, weight in stacks.items():
                bias = own.pop(f"{name}_bias", None)
                own.pop(name)
                yield from _stack(path, name, module, weight, bias, scheme)
        for name, parameter in own.items():
            yield _plain(f"{path}.{name}".lstrip("."), parameter)
        persistent = set(module.state_dict(keep_vars=True)) - set(dict(module.named_parameters(recurse=False)))
        for name, buffer in module.named_buffers(recurse=False):
            if name in persistent and id(buffer) not in seen:
                seen.add(id(buffer))
                stored = replace(_plain(f"{path}.{name}".lstrip("."), buffer), purpose="buffer")
                yield replace(stored, dtype="F32") if name in in_float32 and buffer.is_floating_point() else stored
        if path.rpartition(".")[2] == "self_attn":
            for scale in scheme.cache_scales:
                yield replace(scale, name=f"{path}.{scale.name}")


def _in_layers(path: str) -> bool:
    parts = path.split(".")
    return any(a in _LAYERS and b.isdigit() for a, b in pairwise(parts))


def _expert(path: str, name: str, columns: int) -> LinearModule:
    """Return the first linear layer of the first expert of a stack."""
    return LinearModule(f"{path}.0.{_STACKS[name][0]}", "Expert", columns)


def _dtype(tensor: torch.Tensor) -> str:
    return _DTYPES[str(tensor.dtype).removeprefix("torch.")]


def _plain(name: str, tensor: torch.Tensor) -> StoredTensor:
    return StoredTensor(name, _dtype(tensor), tuple(tensor.shape))


def _linear(
    place: LinearModule, weight: torch.Tensor, bias: torch.Tensor | None, scheme: Scheme
) -> Iterator[StoredTensor]:
    of = scheme.format_of(place)
    if of is None:
        yield _plain(f"{place.path}.weight", weight)
        if bias is not None:
            yield _plain(f"{place.path}.bias", bias)
        return
    rows, columns = weight.shape
    for tensor in _packed(of, LinearShape(rows, columns, bias is not None, _dtype(weight))):
        yield replace(tensor, name=f"{place.path}.{tensor.name}")


def _packed(of: Format, linear: LinearShape) -> Iterator[StoredTensor]:
    """Yield the tensors of a linear layer; the one with the weights states how many it holds."""
    for tensor in of.tensors(linear):
        yield replace(tensor, stands_for=linear.rows * linear.columns) if tensor.purpose == "weight" else tensor


def _stack(
    path: str, name: str, module: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None, scheme: Scheme
) -> Iterator[StoredTensor]:
    """Yield the tensors of a stack of matrices, each [rows, columns] or, if the class says so, [columns, rows]."""
    experts, rows, columns = weight.shape
    if _is_transposed(module):
        rows, columns = columns, rows
    names = _STACKS[name]
    of = scheme.format_of(_expert(path, name, columns))
    assert of is not None, path
    if scheme.stacked:
        for tensor in _packed(of, LinearShape(rows, columns, bias is not None, _dtype(weight))):
            stack = (experts, *tensor.shape)
            yield replace(
                tensor, name=f"{path}.{name}_{tensor.name}", shape=stack, stands_for=experts * tensor.stands_for
            )
        return
    for part in names:
        for tensor in _packed(of, LinearShape(rows // len(names), columns, bias is not None, _dtype(weight))):
            yield replace(tensor, name=f"{path}.*.{part}.{tensor.name}", count=experts)


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
