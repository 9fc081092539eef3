"""Tensors that a run leaves behind in variables, taken back.

An export leaves such as only stand for tensors, and those of one run would enter the next without a producer. Code
keeps them in variables beside its classes, in classes, in lists and dicts in these, in what functions hold (closures,
defaults, attributes), and in objects of its own that a module has. What else a run changes there stays changed.
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
_NOTHING: Final = object()
"""What an empty cell holds."""


class PuttingBack:
    """What there is before a run, and what puts it back after it."""

    def __init__(self, undo: ExitStack, code: frozenset[str]) -> None:
        """Begin.

        Args:
            undo: puts back when it is closed.
            code: names of the Python modules whose functions and objects are looked into.
        """
        self._undo, self._code = undo, code
        self._seen: dict[int, Any] = {}

    def variables(self, owner: Any) -> None:
        """Those of a Python module, a class or an object, and what they hold."""
        names = dict(vars(owner))
        self._undo.callback(_put_back, names, vars(owner), partial(setattr, owner), partial(delattr, owner))
        for name, held in names.items():
            if not name.startswith("__"):
                self._value(held)

    def module(self, model: nn.Module) -> None:
        """What its modules hold beside tensors, which belong to whoever runs it, and the functions on it."""
        from torch.nn import Module

        own = vars(Module())
        for part in model.modules():
            for name, held in vars(part).items():
                for value in held.values() if name in own and type(held) in _DICTS else (held,):
                    self._value(value, whose=True)

    def _value(self, held: Any, *, whose: bool = False) -> None:
        """What it holds.

        Args:
            whose: whether a function is the model's own, wherever it was written.
        """
        kind = type(held)  # not isinstance, which lazy values of other packages answer by loading themselves
        inner: Callable[[Any], None]
        if kind in (staticmethod, classmethod):
            self._value(held.__func__)
            return
        if kind in _DICTS:
            inner = self._dict
        elif kind in _LISTS:
            inner = self._list
        elif kind is FunctionType and (whose or held.__module__ in self._code):
            inner = self._function
        elif kind is partial and whose:
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
        self._undo.callback(_put_back, before, held, held.__setitem__, held.__delitem__)
        for value in before.values():
            self._value(value)

    def _list(self, held: MutableSequence[Any]) -> None:
        before = list(held)
        self._undo.callback(_put_back_all, before, held)
        for value in before:
            self._value(value)

    def _function(self, function: FunctionType) -> None:
        ours = (function.__module__ or "").startswith(_OURS)  # whoever watches collects tensors
        for cell in function.__closure__ or ():
            content = _content(cell)
            if not ours:
                self._undo.callback(_put_back_cell, cell, content)
            if not ours or type(content) in (FunctionType, partial):
                self._value(content, whose=True)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), vars(function)):
            self._value(value)

    def _partial(self, held: partial[Any]) -> None:
        for value in (held.func, *held.args, *held.keywords.values()):
            self._value(value, whose=True)


def _put_back(
    before: Mapping[Any, Any], held: Mapping[Any, Any], put: Callable[[Any, Any], None], drop: Callable[[Any], None]
) -> None:
    for key, value in list(held.items()):
        if value is not before.get(key) and _has_tensor(value):
            if key in before:
                put(key, before[key])
            else:
                drop(key)


def _put_back_all(before: list[Any], held: MutableSequence[Any]) -> None:
    """The list as it was, if a tensor is new in it: what else came meanwhile has no place of its own."""
    known = {id(value) for value in before}
    if any(id(value) not in known and _has_tensor(value) for value in held):
        held.clear()
        held.extend(before)


def _put_back_cell(cell: CellType, before: Any) -> None:
    now = _content(cell)
    if now is before or not _has_tensor(now):
        return
    if before is _NOTHING:
        del cell.cell_contents
    else:
        cell.cell_contents = before


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _NOTHING


def _has_tensor(value: Any) -> bool:
    import torch
    from torch.utils._pytree import tree_leaves

    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value))
