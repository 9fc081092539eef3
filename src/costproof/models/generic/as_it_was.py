"""A module as it was before it ran: its tensors' bits, gradients and what is set on them. Needs torch to load.

Runs share the parameters of a module that somebody else owns, and memory is for one copy of them alone. What an
operator is about to write to is copied before; nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.autograd import grad_mode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_UNTOLD = ("batch_norm",)
"""In names of operators that write to arguments of which their schema does not say so."""
_HANDED_OUT = ("numpy", "__dlpack__")
"""Methods of a tensor after which others can write to its memory."""


class Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Copies the memory of some tensors before something writes to it, while it is entered; changes nothing itself."""

    supports_higher_order_operators = True

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        storages = (t.untyped_storage() for t in tensors if _has_memory(t))
        self._watched = {s._cdata: s for s in storages}
        self._before: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in _written(func, args, kwargs):
            self.keep(value)
        return func(*args, **kwargs)

    def keep(self, tensor: torch.Tensor) -> None:
        """Copy its memory, if it is watched and not copied yet."""
        key = tensor.untyped_storage()._cdata if _has_memory(tensor) else 0
        if key in self._watched and key not in self._before:
            self._before[key] = self._watched[key].clone()  # type: ignore[no-untyped-call]

    def put_back(self) -> None:
        """All that was written to as it was."""
        for key, before in self._before.items():
            storage = self._watched[key]
            if storage.nbytes() != before.nbytes():
                storage.resize_(before.nbytes())
            storage.copy_(before)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch for the time of the block, those too who hand a tensor's memory to NumPy."""

        def handed_out(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                self.keep(tensor)
                return original(tensor, *args, **kwargs)

            return call

        with ExitStack() as undo:
            for name in _HANDED_OUT:
                undo.enter_context(mock.patch.object(torch.Tensor, name, handed_out(getattr(torch.Tensor, name))))
            undo.enter_context(self)
            yield


@contextmanager
def as_it_was(module: nn.Module) -> Iterator[Writes]:
    """Put back what happens to a module's parameters and buffers during the block, however it ends.

    That is: another memory, whether it needs a gradient, the gradient, attributes; and the bits, as far as they were
    written while what is yielded was watching.
    """
    tensors = list(dict.fromkeys((*module.parameters(), *module.buffers())))
    gradients = [t.grad for t in tensors if t.is_leaf and t.grad is not None]
    with ExitStack() as undo:
        for tensor in (*tensors, *gradients):
            if not tensor.is_inference():
                undo.enter_context(grad_mode._unsafe_preserve_version_counter(tensor))
        writes = Writes([*tensors, *gradients])
        undo.callback(writes.put_back)
        for tensor in tensors:
            undo.callback(_put_back, tensor, tensor.detach(), tensor.requires_grad, tensor.is_leaf and tensor.grad)
            undo.callback(_put_back_attributes, tensor, dict(vars(tensor)))
        yield writes


@contextmanager
def unwritten(module: nn.Module) -> Iterator[None]:
    """Let a module run; afterwards its parameters and buffers are as they were."""
    with as_it_was(module) as writes, writes.watching():
        yield


@contextmanager
def evaluated(module: nn.Module) -> Iterator[None]:
    """A module and its parts in evaluation for the time of the block, without asking its ``train``."""
    modes = {part: part.training for part in module.modules()}
    try:
        for part in modes:
            part.training = False
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def _put_back(tensor: torch.Tensor, before: torch.Tensor, needs: bool, gradient: Any) -> None:
    if not _same_memory(tensor, before):
        tensor.data = before
    if tensor.requires_grad != needs:
        tensor.requires_grad_(needs)
    if gradient is not False and tensor.grad is not gradient:
        tensor.grad = gradient


def _put_back_attributes(tensor: torch.Tensor, before: dict[str, Any]) -> None:
    now = vars(tensor)
    if now.keys() != before.keys() or any(now[name] is not value for name, value in before.items()):
        now.clear()
        now.update(before)


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    with suppress(Exception):  # a tensor of a class of its own need not say
        same = one.untyped_storage()._cdata == other.untyped_storage()._cdata
        layouts = ((t.dtype, t.shape, t.stride(), t.storage_offset()) for t in (one, other))
        return same and next(layouts) == next(layouts)
    return True


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether it has bits in memory of its own, that can be copied."""
    if tensor.is_meta or tensor.layout != torch.strided or tensor.is_nested:
        return False
    with suppress(Exception):  # a tensor of a class of its own may have none
        return tensor.untyped_storage().nbytes() > 0
    return False


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that a call of an operator writes to."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return []
    everything = any(name in schema.name for name in _UNTOLD)
    if not everything and not schema.is_mutable:
        return []
    given = {a.name: value for a, value in zip(schema.arguments, args, strict=False)} | kwargs
    told = {a.name for a in schema.arguments if everything or (a.alias_info is not None and a.alias_info.is_write)}
    found = tree_leaves([value for name, value in given.items() if name in told])
    return [value for value in found if isinstance(value, torch.Tensor)]
