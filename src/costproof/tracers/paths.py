"""One name for every module, parameter and buffer of a model, whoever tells about it.

A shared module hangs at several paths, a tied parameter has several names, and ``torch.compile`` puts
a wrapper around a module. The name is the first path that ``named_modules`` gives, without wrappers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
