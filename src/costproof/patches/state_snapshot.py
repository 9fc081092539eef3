"""Record non-tensor state of a model and of its Python modules, and remove tensors that a run leaves there.

An export leaves fake tensors behind, and tensors of one run would enter the next without a producer. Code stores them
in global variables, in classes, in lists and dicts of these, in functions (closures, defaults, attributes), and in
objects of its own that a module has. Other changes that a run makes there remain.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, MutableSequence
from contextlib import ExitStack
from functools import partial
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.attributes import has_attribute

if TYPE_CHECKING:
    from torch import nn

_DICTS: Final = frozenset({dict, OrderedDict, defaultdict})
_LISTS: Final = frozenset({list, deque})
_OURS: Final = __name__.partition(".")[0] + "."
_EMPTY: Final = object()
"""Content of an empty closure cell."""


class StateSnapshot:
    """Snapshot of a model's non-tensor state before a run, which an exit stack restores."""

    def __init__(self, undo: ExitStack, code: frozenset[str]) -> None:
        """Create an empty snapshot.

        Args:
            undo: exit stack that restores the state when it is closed.
            code: names of the Python modules whose functions and objects are searched.
        """
        self._undo, self._code = undo, code
        self._seen: dict[int, Any] = {}

    def variables(self, owner: Any) -> None:
        """Record the attributes of a Python module, class or object, and the values in them."""
        names = dict(vars(owner))
        self._undo.callback(_restore, names, vars(owner), partial(setattr, owner), partial(delattr, owner))
        for name, held in names.items():
            if not name.startswith("__"):
                self._value(held)

    def module(self, model: nn.Module) -> None:
        """Record non-tensor attributes and functions of all submodules; callers restore parameters and buffers."""
        from torch.nn import Module

        own = vars(Module())
        for part in model.modules():
            for name, held in vars(part).items():
                for value in held.values() if name in own and type(held) in _DICTS else (held,):
                    self._value(value, own_function=True)

    def _value(self, held: Any, *, own_function: bool = False) -> None:
        """Record the content of a container, of a function, or of an object whose class is in a searched Python module.

        Args:
            own_function: whether a function belongs to the model, whatever module defines it.
        """
        kind = type(held)  # not isinstance, to which lazy values of other packages answer by loading themselves
        inner: Callable[[Any], None]
        if kind in (staticmethod, classmethod):
            self._value(held.__func__)
            return
        if kind in _DICTS:
            inner = self._dict
        elif kind in _LISTS:
            inner = self._list
        elif kind is FunctionType and (own_function or held.__module__ in self._code):
            inner = self._function
        elif kind is partial and own_function:
            inner = self._partial
        elif (
            kind.__module__ in self._code and has_attribute(held, "__dict__") and not hasattr(held, "named_parameters")
        ):
            inner = self.variables
        else:
            return
        if id(held) not in self._seen:
            self._seen[id(held)] = held
            inner(held)

    def _dict(self, held: Any) -> None:
        before = dict(held)
        self._undo.callback(_restore, before, held, held.__setitem__, held.__delitem__)
        for value in before.values():
            self._value(value)

    def _list(self, held: MutableSequence[Any]) -> None:
        before = list(held)
        self._undo.callback(_restore_list, before, held)
        for value in before:
            self._value(value)

    def _function(self, function: FunctionType) -> None:
        ours = (function.__module__ or "").startswith(_OURS)  # our tracers collect tensors
        for cell in function.__closure__ or ():
            content = _cell_content(cell)
            if not ours:
                self._undo.callback(_restore_cell, cell, content)
            if not ours or type(content) in (FunctionType, partial):
                self._value(content, own_function=True)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), vars(function)):
            self._value(value)

    def _partial(self, held: partial[Any]) -> None:
        for value in (held.func, *held.args, *held.keywords.values()):
            self._value(value, own_function=True)


def _restore(
    before: Mapping[Any, Any], held: Mapping[Any, Any], put: Callable[[Any, Any], None], drop: Callable[[Any], None]
) -> None:
    for key, value in list(held.items()):
        if value is not before.get(key) and _has_tensor(value):
            if key in before:
                put(key, before[key])
            else:
                drop(key)


def _restore_list(before: list[Any], held: MutableSequence[Any]) -> None:
    """Restore a list if the run put a tensor into it."""
    known = {id(value) for value in before}
    if any(id(value) not in known and _has_tensor(value) for value in held):
        held.clear()
        held.extend(before)


def _restore_cell(cell: CellType, before: Any) -> None:
    now = _cell_content(cell)
    if now is before or not _has_tensor(now):
        return
    if before is _EMPTY:
        del cell.cell_contents
    else:
        cell.cell_contents = before


def _cell_content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _has_tensor(value: Any) -> bool:
    import torch
    from torch.utils._pytree import tree_leaves

    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value))
