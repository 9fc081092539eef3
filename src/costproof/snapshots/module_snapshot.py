"""Restore a module after a run; importing this module imports torch.

Runs share the parameters of the caller's module, because memory may not suffice for a copy. Tensors are copied before
an operator writes to them; small modules are copied completely.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import Any, Final
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from costproof.ledger.errors import Incomplete
from costproof.snapshots.module_state import ModuleState
from costproof.snapshots.process_state import Modes, ProcessState

_UNTOLD = ("batch_norm",)
"""Parts of the names of operators that write to arguments without declaring it in their schema."""
_HANDED_OUT = ("numpy", "__dlpack__")
"""Tensor methods that give other code access to the tensor's memory."""
_OF_STORAGES = ("resize_", "copy_", "fill_", "__setitem__")
"""Storage methods that write to memory without a call of the dispatcher."""


class Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that reports each write to a tensor to a module's snapshot before it happens."""

    supports_higher_order_operators = True

    def __init__(self, state: ModuleState) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._state = state

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in _written(func, args, kwargs):
            self._state.about_to_write(value)
        return func(*args, **kwargs)


@contextmanager
def watching(state: ModuleState) -> Iterator[None]:
    """Save the memory of a tensor to the snapshot before code in the block writes to it.

    A call that hands out a pointer (``data_ptr``, a storage) counts as a write, since later writes through the pointer
    cannot be observed.
    """

    def before(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            state.about_to_write(owner)
            return original(owner, *args, **kwargs)

        return call

    with ExitStack() as undo:
        for kind, names in ((torch.Tensor, _HANDED_OUT), (torch.UntypedStorage, _OF_STORAGES)):
            for name in names:
                undo.enter_context(mock.patch.object(kind, name, before(getattr(kind, name))))
        undo.enter_context(Writes(state))
        yield


class Before:
    """Snapshot of everything that a count restores: dispatch modes, process state, module; needs the global lock."""

    def __init__(self) -> None:
        self.modes = Modes()
        self._process: ProcessState | None = None
        self._module: ModuleState | None = None
        self._outer = sys.exception()
        self._differences: list[str] = []
        self._done = False

    def save(self, module: nn.Module, arguments: dict[str, Any]) -> ModuleState:
        """Take the snapshot of the process, a module and its arguments; no mode may be active."""
        with suppress(ImportError):  # before it is looked at what TorchLens changes
            import_module("torchlens.backends.torch.wrappers")
        kinds = dict.fromkeys(kind for part in module.modules() for kind in type(part).__mro__ if kind is not object)
        places = (sys.modules.get(kind.__module__) for kind in kinds)
        self._process = ProcessState((*kinds, *(place for place in places if place is not None)))
        self._module = ModuleState(module, arguments, bits=True)
        torch.clear_autocast_cache()
        return self._module

    def put_back(self) -> None:
        """Restore everything that can be restored; called twice, since an interrupt may hit the first call."""
        if not self._done:
            self.modes.lift()
            if self._module is not None:
                self._module.put_back()
            if self._process is not None:
                torch.clear_autocast_cache()  # it may hold casts of weights that a forward had changed
                self._process.put_back(thoroughly=sys.exception() is not self._outer)
                self._differences = [*self._module.differences(), *self._process.differences()] if self._module else []
            self.modes.put_back()
            self._done = True

    def put_back_in_fork(self) -> None:
        """Restore the state in a process that another thread forked, which has its own dispatch modes."""
        if self._module is not None:
            self._module.put_back()
        if self._process is not None:
            self._process.put_back_in_fork()

    def check(self) -> None:
        """Check that all state has been restored.

        Raises:
            Changed: something could not be restored; a pending interrupt gets the message as a note instead.
        """
        if not self._differences:
            return
        changed = Changed(self._differences)
        error = sys.exception()
        if error is self._outer or isinstance(error, Exception):
            raise changed
        if error is not None:
            error.add_note(str(changed))


class Changed(Incomplete):
    """Raised if a count changed a module or the process and could not restore it."""

    def __init__(self, differences: Sequence[str]) -> None:
        more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        super().__init__(
            "the module is not as it was before it was counted",
            where="; ".join(differences[:_SHOWN]) + more,
            fix="load its weights again, and count a copy of it (copy.deepcopy), or a call that does not change it",
        )


_SHOWN: Final = 5
"""Maximum number of differences that an error lists."""


@contextmanager
def unwritten(module: nn.Module) -> Iterator[None]:
    """Restore a module's tensors after the block, as far as its writes to them were observed."""
    state = ModuleState(module, bits=False)
    try:
        with watching(state):
            yield
    finally:
        state.put_back_tensors()


@contextmanager
def evaluated(module: nn.Module) -> Iterator[None]:
    """Put a module and its submodules into evaluation mode for the block, without calling ``train``."""
    modes = {part: part.training for part in module.modules()}
    try:
        for part in modes:
            part.training = False
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the tensors that an operator call writes to."""
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
