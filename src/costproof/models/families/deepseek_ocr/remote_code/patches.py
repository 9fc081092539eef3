"""Run-time patches around a run of the vendor's code: on entry, off on exit, whatever happens between.

No file is touched. Each patch says what it replaces; the list stands in the capture.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, slots=True)
class Patch:
    """One replacement."""

    name: str
    why: str
    target: object
    attribute: str
    replacement: Any
    needed: bool
    """Whether the code cannot run without it; the others only let a tracer see more, and must not change a bit."""


def patches_for(model: nn.Module) -> tuple[Patch, ...]:
    """What a run of this model needs where it is."""
    import torch

    found = []
    if next(model.parameters()).device.type != "cuda":
        why = "the code moves the image mask to CUDA; it stays where the model is"
        found.append(Patch("torch.Tensor.cuda", why, torch.Tensor, "cuda", _stays, needed=True))
    why = "TorchScript hides its operators from a tracer; the same function runs as Python"
    for module in _modules_of(model):
        for name, value in sorted(vars(module).items()):
            plain = getattr(value, "_torchdynamo_inline", None)
            if isinstance(value, torch.jit.ScriptFunction) and callable(plain):
                place = f"{module.__name__.split('.', 1)[-1]}.{name}"
                found.append(Patch(place, why, module, name, plain, needed=False))
    return tuple(found)


@contextmanager
def patched(patches: tuple[Patch, ...]) -> Iterator[None]:
    """Apply patches for the time of a run."""
    with ExitStack() as stack:
        stack.enter_context(quiet())
        for patch in patches:
            stack.enter_context(mock.patch.object(patch.target, patch.attribute, patch.replacement))
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' advice to the authors of the code off stderr; ``TRANSFORMERS_VERBOSITY`` brings it back."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    if "TRANSFORMERS_VERBOSITY" not in os.environ:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _modules_of(model: nn.Module) -> list[Any]:
    """The snapshot's own modules, those that define the classes of the model."""
    package = type(model).__module__.rpartition(".")[0]
    names = {type(m).__module__ for m in model.modules()}
    return [sys.modules[n] for n in sorted(names) if n.startswith(package + ".") and n in sys.modules]


def _stays(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return self
