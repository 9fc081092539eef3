"""Calls of a module's ``forward`` past its ``__call__``, led through ``__call__`` while a tracer watches.

Hooks, and the module stack of an export, hang on ``__call__``. Some code runs ``part.forward(x)``;
its part would be missing, and its work would stand on the caller. TorchLens watches ``forward`` itself
and needs none of this.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def through_call(model: nn.Module) -> Iterator[None]:
    """Every ``forward`` of a submodule goes through ``__call__`` for the time of the block.

    What is put on the modules is taken off again, however the block ends.
    """
    import torch

    with ExitStack() as undo:
        for module in model.modules():
            if module is not model and not isinstance(module, torch.jit.ScriptModule):
                _lead(module, undo)
        yield


def _lead(module: nn.Module, undo: ExitStack) -> None:
    """Put a ``forward`` of ours on one module."""
    original, own = module.forward, vars(module)
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

    if "forward" in own:
        undo.callback(own.update, forward=original)
    else:
        undo.callback(own.pop, "forward", None)
    undo.callback(module.register_forward_pre_hook(announce).remove)
    own["forward"] = forward
