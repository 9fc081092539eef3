"""One name for every module, parameter and buffer of a model, whoever tells about it.

A shared module hangs at several paths, a tied parameter has several names, and ``torch.compile`` puts
a wrapper around a module. The name is the first path that ``named_modules`` gives, without wrappers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import nn

COMPILED: Final = "OptimizedModule"
"""The class of the wrapper that ``torch.compile`` puts around a module."""

_WRAPPED: Final = "_orig_mod"
R = TypeVar("R")


class Paths:
    """The names of a model's modules and parameters; the root's path is empty."""

    def __init__(self, model: nn.Module) -> None:
        self.by_id: dict[int, str] = {}
        """``id`` of a module -> its path; wrappers of ``torch.compile`` have none."""
        self.modules: dict[str, nn.Module] = {}
        """Path -> module, in the order of the model."""
        self.aliases: dict[str, str] = {}
        """Other paths of shared modules -> their path."""
        self.parameters: dict[str, nn.Parameter] = {}
        """Name -> parameter, each once."""
        self.tied: dict[str, str] = {}
        """Other names of tied parameters -> their name; parameters of shared modules are not told again."""
        self.buffers: dict[str, torch.Tensor] = {}
        """Every name -> buffer; buffers of shared modules are not told again."""
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
        """The path of the module that is at ``path``."""
        path = unwrapped(path)
        return self.aliases.get(path, path)

    def parameter(self, name: str) -> str:
        """The name of the parameter that is called ``name``."""
        owner, _, leaf = name.rpartition(".")
        path = self.module(owner)
        name = f"{path}.{leaf}" if path else leaf
        return self.tied.get(name, name)

    def class_names(self) -> dict[str, str]:
        """Path of every module -> the name of its class."""
        return {path: type(module).__name__ for path, module in self.modules.items()}

    def children(self, path: str) -> Iterator[str]:
        """Paths of a module's children, in its order, each once."""
        seen: set[str] = set()
        for child in self.modules[path].children():
            while _is_wrapper(child):
                child = next(child.children())
            name = self.by_id[id(child)]
            if name not in seen:
                seen.add(name)
                yield name


def settled(model: nn.Module, watch: Callable[[], R], again: Callable[[], object] = lambda: None) -> R:
    """What ``watch`` says of a model; asked once more if the model put other modules in place of its own meanwhile.

    Nobody watches modules that are made while the model runs: their work would be that of the module around.

    Args:
        again: comes before it is asked once more.
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
    """The path without wrappers of ``torch.compile``."""
    return ".".join(part for part in path.split(".") if part != _WRAPPED) if _WRAPPED in path else path


_MOST_MARKED: Final = 2**26
"""Bytes of memory in which tensors with gaps are looked up one by one."""


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
    """Return the bytes between two places of one memory in which tensors have elements; views with steps leave gaps."""
    import torch

    if any(t.nbytes >= end - start for t in tensors):
        return end - start
    if len({id(t) for t in tensors}) == 1:
        return int(tensors[0].nbytes)
    if end - start > _MOST_MARKED:
        return None
    marks = torch.zeros(end - start, dtype=torch.bool)
    for tensor in tensors:
        size = tensor.element_size()
        shape, strides = (*tensor.shape, size), (*(step * size for step in tensor.stride()), 1)
        marks.as_strided(shape, strides, int(tensor.storage_offset()) * size - start).fill_(True)
    return int(marks.sum())
