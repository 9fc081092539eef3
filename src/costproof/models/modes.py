"""Modes of torch that the caller of this package has entered: taken off while it works, and put on again.

A dispatch mode changes, imitates or logs every operator, a function mode every function of torch, and a functorch
transform wraps every tensor. What saves the state of a module, counts it and puts it back must see none of them.
Needs torch to load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import _ops as ops
from torch import overrides
from torch._C import _functorch
from torch.utils import _python_dispatch as dispatch
from torch.utils._device import DeviceContext

_FLAGS: Final = (
    "_is_in_torch_dispatch_mode",
    "_is_in_non_infra_torch_dispatch_mode",
    "_is_in_any_mode_without_ignore_compile_internals",
)
"""What ``torch.compile`` asks about the modes of a thread; a version of torch may lack some."""


class Modes:
    """The modes of this thread at the time of creation."""

    def __init__(self) -> None:
        self._functions = overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        self._dispatch = dispatch._get_current_dispatch_mode_stack()
        self._before_dispatch = _popped(ops._len_torch_dispatch_stack_pre_dispatch, ops._pop_mode_from_pre_dispatch)
        self._transforms = _popped_transforms()
        self._flags = {name: getattr(dispatch, name) for name in _FLAGS if hasattr(dispatch, name)}
        self.put_back()

    def lift(self, *, default_device: bool = False) -> None:
        """Take off every mode, those too that an interrupted block left.

        Args:
            default_device: keep this one: torch implements it as a mode, and it is a setting that a model runs with.
        """
        _clear()
        for name in self._flags:
            setattr(dispatch, name, False)
        for mode in self._functions if default_device else ():
            if isinstance(mode, DeviceContext):
                overrides._push_mode(mode)  # type: ignore[no-untyped-call]

    def put_back(self) -> None:
        """Enter exactly the modes of before; may be called again."""
        _clear()
        for transform in self._transforms:
            _functorch.push_dynamic_layer_stack(transform)
        for mode in (*self._dispatch, *self._before_dispatch):
            dispatch._push_mode(mode)
        for mode in self._functions:
            overrides._push_mode(mode)  # type: ignore[no-untyped-call]
        for name, flag in self._flags.items():
            setattr(dispatch, name, flag)


def _clear() -> None:
    _popped(torch._C._len_torch_function_stack, overrides._pop_mode)
    _popped(ops._len_torch_dispatch_stack_pre_dispatch, ops._pop_mode_from_pre_dispatch)
    _popped(torch._C._len_torch_dispatch_stack, dispatch._pop_mode)
    _popped_transforms()


def _popped(length: Callable[[], int], pop: Callable[[], Any]) -> list[Any]:
    """Everything on a stack, outermost first; nothing is left there."""
    return [pop() for _ in range(length())][::-1]


def _popped_transforms() -> list[Any]:
    found: list[Any] = []
    while _functorch.peek_interpreter_stack() is not None:
        found.insert(0, _functorch.pop_dynamic_layer_stack())
    return found
