"""What counters need around a model: positional tensors, sizes of a run, tracing on meta. All of it is undone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from costproof.opgraph.graph import path_renamer
from costproof.tracers.counters.protocol import Row

PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers that are one product, and a bias."""


class Positional(nn.Module):
    """A module that takes keyword arguments and lists, as one of positional tensors alone."""

    def __init__(self, inner: nn.Module, shape: Sequence[tuple[str, int | None]]) -> None:
        """``shape``: names of the arguments, each with the length of its list, or ``None`` for a tensor."""
        super().__init__()
        self.inner = inner
        self.shape = tuple(shape)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """What the module returns."""
        given, kwargs = iter(tensors), {}
        for name, length in self.shape:
            kwargs[name] = next(given) if length is None else [next(given) for _ in range(length)]
        return self.inner(**kwargs)


def positional(module: nn.Module, args: Mapping[str, Any]) -> tuple[Positional, tuple[torch.Tensor, ...]]:
    """The module and its arguments in the form that every counter takes."""
    tensors: list[torch.Tensor] = []
    for value in args.values():
        tensors += value if isinstance(value, list) else [value]
    shape = [(name, len(value) if isinstance(value, list) else None) for name, value in args.items()]
    return Positional(module, shape).eval(), tuple(tensors)


def inner_path(path: str) -> str:
    """A path inside :class:`Positional` as one inside the model: ``Positional.inner.part.x`` -> ``part.x``."""
    parts = path.split(".")
    return ".".join(parts[parts.index("inner") + 1 :]) if "inner" in parts else ""


def paths_of(model: Positional) -> dict[int, str]:
    """id of each module -> its path inside the model."""
    return {id(module): inner_path(name) for name, module in model.named_modules()}


def below_every_parent(model: Positional, rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows, and those of a module with several parents again below each of the others.

    A tool that keeps one figure of a module, and adds up children below parents, counts it so often.
    """
    yield from rows
    own = paths_of(model)
    for path, module in _places(model):
        if path != own[id(module)]:
            yield from (
                Row(path, f">{r.kind.rpartition('>')[2]}", r.value) for r in rows if r.module == own[id(module)]
            )


def _places(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    yield inner_path(path), module
    for name, child in module.named_children():
        yield from _places(child, f"{path}.{name}" if path else name)


def bias_part(module: nn.Module, value: int) -> int:
    """The part of a layer's figure that stands for its bias, where a tool counts weights and biases alike."""
    if not isinstance(module, PRODUCTS) or module.bias is None:
        return 0
    return value * module.bias.numel() // (module.weight.numel() + module.bias.numel())


def renamed(path: str, prefix: Mapping[str, str]) -> str:
    """A path inside a cut as a path from the root of the model; scaffolding becomes the root."""
    outer = path_renamer(prefix)(path)
    if outer is None:
        return path if "" in prefix or path.startswith("[") else ""
    return outer
