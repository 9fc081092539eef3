"""Hooks of a module's parts, run inside their ``forward``: what a hook computes belongs to the part that it is on.

An export counts it there. TorchLens watches ``forward``, and would count it on the module around.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def hooks_inside(model: nn.Module) -> Iterator[None]:
    """Hooks of all modules but the model itself run in their forwards for the time of the block."""
    import torch

    with ExitStack() as undo:
        for part in model.modules():
            hooked = part._forward_pre_hooks or part._forward_hooks
            if part is not model and hooked and not isinstance(part, torch.jit.ScriptModule):
                _lead_in(part, undo)
        yield


def _lead_in(part: nn.Module, undo: ExitStack) -> None:
    original, own = part.forward, vars(part)
    before = _silenced(part._forward_pre_hooks, undo)
    behind = _silenced(part._forward_hooks, undo)

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        for key, hook in before.items():
            if key in part._forward_pre_hooks_with_kwargs:
                args, kwargs = hook(part, args, kwargs) or (args, kwargs)
            elif key in part._forward_pre_hooks and (found := hook(part, args)) is not None:
                args = found if isinstance(found, tuple) else (found,)
        result = original(*args, **kwargs)
        for key, hook in behind.items():
            given = (args, kwargs) if key in part._forward_hooks_with_kwargs else (args,)
            if key in part._forward_hooks and (found := hook(part, *given, result)) is not None:
                result = found
        return result

    if "forward" in own:
        undo.callback(own.update, forward=original)
    else:
        undo.callback(own.pop, "forward", None)
    own["forward"] = forward


def _silenced(hooks: dict[int, Any], undo: ExitStack) -> dict[int, Any]:
    """The hooks, each with one in its place that does nothing: one that takes itself off meanwhile stays off."""
    found = dict(hooks)

    def back() -> None:
        hooks.update({key: hook for key, hook in found.items() if key in hooks})

    undo.callback(back)
    hooks.update(dict.fromkeys(found, _nothing))
    return found


def _nothing(*args: Any) -> None:
    """In place of a hook."""
