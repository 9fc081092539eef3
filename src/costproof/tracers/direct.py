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

    What is put on the modules and their classes is taken off again, however the block ends.
    """
    import torch

    announced: set[int] = set()
    """Modules whose ``__call__`` has begun and whose ``forward`` has not."""

    def announce(module: nn.Module, args: Any) -> None:
        announced.add(_key(module))

    with ExitStack() as undo:
        modules = [m for m in model.modules() if m is not model and not isinstance(m, torch.jit.ScriptModule)]
        led = {_key(m) for m in modules if "forward" not in vars(m)}
        for cls in dict.fromkeys(type(m) for m in modules):
            _lead(cls, undo, led, announced)
        for module in modules:
            undo.callback(module.register_forward_pre_hook(announce).remove)
            if "forward" in vars(module):
                _lead_own(module, undo, announced)
        yield


def _key(module: nn.Module) -> int:
    """The same for a module and for the stand-in that an export makes of it, which shares its attributes."""
    return id(vars(module))


def _lead(cls: type[nn.Module], undo: ExitStack, led: set[int], announced: set[int]) -> None:
    """Put a ``forward`` of ours on a class: bound to whom it is called on, so that a stand-in stays one."""
    original = cls.forward

    @functools.wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        key = _key(self)
        # A class that calls the forward of the class above it is in its own call already.
        if key not in led or type(self).forward is not forward:
            return original(self, *args, **kwargs)
        if key in announced:
            announced.discard(key)
            return original(self, *args, **kwargs)
        return self(*args, **kwargs)

    if "forward" in vars(cls):
        undo.callback(setattr, cls, "forward", vars(cls)["forward"])
    else:
        undo.callback(delattr, cls, "forward")
    cls.forward = forward


def _lead_own(module: nn.Module, undo: ExitStack, announced: set[int]) -> None:
    """The same for one module whose ``forward`` is its own, and not that of its class."""
    original, own = module.forward, vars(module)

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if _key(module) in announced:
            announced.discard(_key(module))
            return original(*args, **kwargs)
        return module(*args, **kwargs)

    undo.callback(own.update, forward=original)
    own["forward"] = forward
