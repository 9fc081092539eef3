"""The module around a model: no cache, tensors out. Needs torch to load."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn


class Forward(nn.Module):
    """Calls a model and returns its floating-point tensors; adds no operators."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.options = without_cache(part)


def without_cache(part: nn.Module) -> dict[str, bool]:
    """The argument that keeps a model from making a cache, if it has one."""
    return {"use_cache": False} if "use_cache" in inspect.signature(part.forward).parameters else {}


def around(part: nn.Module, names: tuple[str, ...]) -> Forward:
    """A :class:`Forward` whose signature has the given arguments: an export maps its symbols to their names."""

    def forward(self: Forward, **args: torch.Tensor) -> list[torch.Tensor]:
        return tensors(self.part(**args, **self.options))

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    given = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in names]
    forward.__signature__ = inspect.Signature([own, *given])  # type: ignore[attr-defined]
    made: Forward = type("Forward", (Forward,), {"forward": forward})(part)
    return made


def tensors(value: Any) -> list[torch.Tensor]:
    """Floating-point tensors of a nested result, in order."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [t for v in value for t in tensors(v)]
    return []
