"""Give every module, parameter and buffer one name, find masks and lengths among inputs, and split operator arguments.

A shared module has several paths, a tied parameter has several names, and ``torch.compile`` wraps a module. The name is
the first path in ``named_modules``, without wrappers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from costproof.ledger.metrics import ARITHMETIC
from costproof.models.specs import BUFFER
from costproof.opgraph.graph import AUTOCAST, CausalMask, Graph, Value
from costproof.opgraph.mask_rows import MOST_ELEMENTS, Array

if TYPE_CHECKING:
    import torch
    from torch import nn

COMPILED: Final = "OptimizedModule"
"""Class name of the wrapper of ``torch.compile``."""

_WRAPPED: Final = "_orig_mod"
R = TypeVar("R")


class Paths:
    """Canonical names of a model's modules and parameters; the root's path is empty."""

    def __init__(self, model: nn.Module) -> None:
        self.by_id: dict[int, str] = {}
        """Path of each module, by ``id`` of the module; wrappers of ``torch.compile`` are left out."""
        self.modules: dict[str, nn.Module] = {}
        """Modules by path, in the order of the model."""
        self.aliases: dict[str, str] = {}
        """Canonical path of a shared module, by each of its other paths."""
        self.parameters: dict[str, nn.Parameter] = {}
        """Parameters by name, each once."""
        self.tied: dict[str, str] = {}
        """Canonical name of a tied parameter, by each of its other names, except names by aliases of modules."""
        self.buffers: dict[str, torch.Tensor] = {}
        """Buffers by name, each under all its names except names by aliases of modules."""
        for full, module in model.named_modules(remove_duplicate=False):
            if _is_wrapper(module):
                continue
            path = unwrapped(full)
            first = self.by_id.setdefault(id(module), path)
            if first == path:
                self.modules.setdefault(path, module)
            else:
                self.aliases[path] = first
        names: dict[int, str] = {}
        for path, module in self.modules.items():
            for leaf, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                name = f"{path}.{leaf}" if path else leaf
                first = names.setdefault(id(parameter), name)
                if first == name:
                    self.parameters[name] = parameter
                else:
                    self.tied[name] = first
            for leaf, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
                self.buffers[f"{path}.{leaf}" if path else leaf] = buffer

    def module(self, path: str) -> str:
        """Return the canonical path of the module at ``path``, which may be an alias."""
        path = unwrapped(path)
        return self.aliases.get(path, path)

    def parameter(self, name: str) -> str:
        """Return the canonical name of the parameter ``name``, which may be an alias."""
        owner, _, leaf = name.rpartition(".")
        path = self.module(owner)
        name = f"{path}.{leaf}" if path else leaf
        return self.tied.get(name, name)

    def class_names(self) -> dict[str, str]:
        """Return the class name of every module, by path."""
        return {path: type(module).__name__ for path, module in self.modules.items()}

    def children(self, path: str) -> Iterator[str]:
        """Yield the paths of a module's children in order, each once."""
        seen: set[str] = set()
        for child in self.modules[path].children():
            while _is_wrapper(child):
                child = next(child.children())
            name = self.by_id[id(child)]
            if name not in seen:
                seen.add(name)
                yield name


def repeat_if_modules_replaced(
    model: nn.Module, watch: Callable[[], R], again: Callable[[], object] = lambda: None
) -> R:
    """Call ``watch``, and call it again if the model replaced some of its modules during the first call.

    Modules that are created while the model runs are not watched: their work would belong to the enclosing module.

    Args:
        again: called before the second call.
    """
    before = list(model.modules())
    found = watch()
    if list(model.modules()) == before:
        return found
    again()
    return watch()


def _is_wrapper(module: nn.Module) -> bool:
    return type(module).__name__ == COMPILED and list(module._modules) == [_WRAPPED]


def unwrapped(path: str) -> str:
    """Return a module path without wrappers of ``torch.compile``."""
    return ".".join(part for part in path.split(".") if part != _WRAPPED) if _WRAPPED in path else path


Operands = tuple[tuple[Value, ...], dict[str, Any], dict[str, Value]]
"""The fields of an :class:`.OpCall`: tensors in order, other arguments by name, tensors by name."""


def split_arguments(
    schema: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors_in: Callable[[Any], list[Value]],
    plain: Callable[[Any], Any],
) -> Operands:
    """Split a call's arguments in the order of the operator's schema; without a schema they are named by position.

    For a list of tensors with holes (``x[:, i]`` has ``[None, i]``), the attribute lists which items are tensors.

    Args:
        tensors_in: returns the tensors that an argument is or contains.
        plain: returns what is kept of an argument without tensors.
    """
    order = [str(i) for i in range(len(args))] if schema is None else [a.name for a in schema.arguments]
    given = {**dict(zip(order, args, strict=False)), **kwargs}
    tensors: list[Value] = []
    attrs: dict[str, Any] = {}
    names: dict[str, Value] = {}
    for name in sorted(given, key=order.index) if schema is not None else given:
        argument = given[name]
        found = tensors_in(argument)
        tensors += found
        if not found:
            attrs[name] = plain(argument)
        elif isinstance(argument, list | tuple) and any(a is None for a in argument):
            attrs[name] = [a is not None for a in argument]
        elif not isinstance(argument, list | tuple):
            names[name] = found[0]
    return tuple(tensors), attrs, names


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype without the package: ``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def plain_value(value: Any) -> Any:
    """Return an argument without tensors as plain data, with dtypes as names."""
    if isinstance(value, list | tuple):
        return [plain_value(v) for v in value]
    return dtype_name(value) if type(value).__module__ == "torch" else value


def mark_autocast(graph: Graph, dtypes: Collection[str]) -> Graph:
    """Mark every operator of a graph with the narrowest dtype of regions that torch disabled.

    Without its device, nothing tells which operators such a region has, and a bound of time assumes the fastest
    arithmetic.
    """
    if not (narrowest := narrowest_dtype(dtypes)):
        return graph
    return replace(graph, ops=tuple(replace(op, attrs={**op.attrs, AUTOCAST: narrowest}) for op in graph.ops))


def narrowest_dtype(dtypes: Iterable[str]) -> str:
    """Return the last of the dtypes in :data:`ARITHMETIC`, one that is not in it before all; empty without dtypes."""
    known = len(ARITHMETIC)
    return max(dtypes, key=lambda dtype: ARITHMETIC.index(dtype) if dtype in ARITHMETIC else known, default="")


Contents = dict[str, CausalMask | Callable[[], Array]]
"""Content of an input, or a function that returns the input's values, by path of the input."""


def mask_inputs(
    arguments: Mapping[str, Any],
    masks: Mapping[str, CausalMask],
    prefix: str = "",
    known: Mapping[str, Any] | None = None,
) -> Contents:
    """Return the contents of mask inputs by argument path: the declared ones, and the values of small tensors.

    Args:
        arguments: arguments of the call.
        masks: declared contents of tensors without values, by path.
        prefix: text that a tracer writes before a path.
        known: arguments with values for tensors of the same shape that have none in the call, and what the model holds.
    """
    found: Contents = {prefix + place: content for place, content in masks.items()}
    values = dict(tensors_by_place(known or {}))
    buffers = {place: tensor for place, tensor in values.items() if place.startswith(BUFFER)}
    for place, given in (*tensors_by_place(arguments), *buffers.items()):
        own = values.get(place)
        tensor = own if given.is_meta and own is not None and own.shape == given.shape else given
        if not tensor.is_meta and 0 < tensor.numel() <= MOST_ELEMENTS:
            found[place if place in buffers else prefix + place] = partial(_values, tensor)
    return found


def _values(tensor: torch.Tensor) -> Array:
    plain = tensor.detach().cpu()
    values: Array = (plain.double() if plain.is_floating_point() else plain).numpy()
    return values


def tensors_by_place(arguments: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield path and tensor of each dense tensor among the arguments, including those in mappings and tuples."""
    import torch

    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            yield f"{before}{name}", value
        elif isinstance(value, Mapping | tuple):
            parts = value if isinstance(value, Mapping) else {str(i): part for i, part in enumerate(value)}
            yield from tensors_by_place(parts, f"{before}{name}.")
