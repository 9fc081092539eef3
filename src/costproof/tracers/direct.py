"""Calls of a module's ``forward`` past its ``__call__``, led through ``__call__`` while a tracer watches.

Hooks, and the module stack of an export, hang on ``__call__``. Some code runs ``part.forward(x)``;
its part would be missing, and its work would stand on the caller. TorchLens watches ``forward`` itself
and needs none of this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def through_call(model: nn.Module) -> Iterator[None]:
    """Every ``forward`` of a submodule goes through ``__call__`` for the time of the block.

    What is put on the modules is taken off again, however the block ends.
    """
    import torch

    undo: list[Callable[[], None]] = []
    try:
        for module in model.modules():
            if module is not model and not isinstance(module, torch.jit.ScriptModule):
                undo.append(_lead(module))
        yield
    finally:
        for step in reversed(undo):
            step()


def _lead(module: nn.Module) -> Callable[[], None]:
    """Put a ``forward`` of ours on one module; gives what takes it off."""
    original = module.forward
    had = "forward" in vars(module)
    called = False

    def announce(module: nn.Module, args: Any) -> None:
        nonlocal called
        called = True

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal called
        if called:
            called = False
            return original(*args, **kwargs)
        return module(*args, **kwargs)

    handle = module.register_forward_pre_hook(announce)
    vars(module)["forward"] = forward

    def undo() -> None:
        handle.remove()
        if had:
            vars(module)["forward"] = original
        else:
            vars(module).pop("forward", None)

    return undo
