"""What goes in and out of a module: every tensor in nested values with its place, the rest by kind."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

from costproof.ledger.attributes import attribute
from costproof.ledger.callgraph import Plain, PlainAt, TensorAt, ValueAt
from costproof.tracers.operands import dtype_name

MAX_VALUES: Final = 1_000
"""Values that are kept of one call."""
MAX_PLAIN: Final = 16
"""Longest list of plain values that is written out."""
MAX_TEXT: Final = 80
MAX_DEPTH: Final = 12


def taken(args: tuple[Any, ...], kwargs: Mapping[str, Any], call: int = 1) -> tuple[ValueAt, ...]:
    """Everything in the arguments of a call: ``args[0]``, ``kwargs.mask``, …"""
    walk = _Walk(call)
    walk.items(args, "args")
    walk.mapping(kwargs, "kwargs")
    return walk.result("args")


def given(output: Any, call: int = 1) -> tuple[ValueAt, ...]:
    """Everything in the result of a call: ``output``, ``output[0]``, ``output.logits``, …"""
    walk = _Walk(call)
    walk.value(output, "output")
    return walk.result("output")


class _Walk:
    """One pass over nested values. A tensor that comes again is named by its first place."""

    def __init__(self, call: int) -> None:
        import torch

        self.tensor = torch.Tensor
        self.named = (torch.dtype, torch.device)
        self.call = call
        self.found: list[ValueAt] = []
        self.places: dict[int, str] = {}
        self.open: list[int] = []
        self.left_out = 0

    def result(self, root: str) -> tuple[ValueAt, ...]:
        """What was found."""
        if self.left_out:
            self.found.append(PlainAt("left out", self.left_out, root, self.call))
        return tuple(self.found)

    def value(self, value: Any, place: str) -> None:
        """Note a value and what is inside it."""
        if isinstance(value, self.tensor):
            self._tensor(value, place)
        elif value is None or isinstance(value, bool | int | float | str):
            self._plain(type(value).__name__, _small(value), place)
        elif isinstance(value, self.named):
            self._plain(type(value).__name__, dtype_name(value), place)
        elif id(value) in self.open or len(self.open) >= MAX_DEPTH:
            self._plain(type(value).__name__, None, place)
        else:
            self.open.append(id(value))
            self._container(value, place)
            self.open.pop()

    def items(self, values: Iterable[Any], place: str) -> None:
        """Note the items of a sequence."""
        for i, item in enumerate(values):
            self.value(item, f"{place}[{i}]")

    def mapping(self, values: Mapping[Any, Any], place: str) -> None:
        """Note the values of a mapping."""
        for key, item in values.items():
            shown = str(key)
            self.value(item, f"{place}.{shown}" if shown.isidentifier() else f"{place}[{shown[:MAX_TEXT]!r}]")

    def _container(self, value: Any, place: str) -> None:
        if isinstance(value, Mapping):
            self.mapping(value, place)
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            self.mapping(dict(zip(value._fields, value, strict=True)), place)
        elif isinstance(value, list | tuple):
            if len(value) > MAX_PLAIN and all(v is None or isinstance(v, bool | int | float | str) for v in value):
                self._plain(f"{type(value).__name__}[{len(value)}]", None, place)
            else:
                self.items(value, place)
        elif dataclasses.is_dataclass(value):
            self.mapping({f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}, place)
        else:
            self._object(value, place)

    def _object(self, value: Any, place: str) -> None:
        """A cache shows its tensors; any other object is its type's name."""
        self._plain(type(value).__name__, None, place)
        for where, tensor in self._held(value, place):
            self._tensor(tensor, where, "cache")

    def _held(self, cache: Any, place: str) -> Iterator[tuple[str, Any]]:
        """Tensors of a cache of layers, and of one that keeps two lists (transformers before 4.54)."""
        layers = getattr(cache, "layers", None)
        if isinstance(layers, list | tuple):
            for i, layer in enumerate(layers):
                for name, tensor in sorted(attribute(layer, "__dict__", {}).items()):
                    if isinstance(tensor, self.tensor) and not name.startswith("_"):
                        yield f"{place}.layers[{i}].{name}", tensor
            return
        for name in ("key_cache", "value_cache"):
            tensors = getattr(cache, name, None)
            if isinstance(tensors, list | tuple):
                for i, tensor in enumerate(tensors):
                    if isinstance(tensor, self.tensor):
                        yield f"{place}.{name}[{i}]", tensor

    def _tensor(self, tensor: Any, place: str, kind: Literal["tensor", "cache"] = "tensor") -> None:
        first = self.places.setdefault(id(tensor), place)
        if first != place:
            self._plain("same tensor", first, place)
        elif self._room():
            dtype = dtype_name(tensor.dtype)
            self.found.append(TensorAt(tuple(int(s) for s in tensor.shape), dtype, place, self.call, kind))

    def _plain(self, kind: str, value: Plain, place: str) -> None:
        if self._room():
            self.found.append(PlainAt(kind, value, place, self.call))

    def _room(self) -> bool:
        room = len(self.found) < MAX_VALUES
        self.left_out += not room
        return room


def _small(value: Plain) -> Plain:
    """The value, if JSON can hold it and a reader would want to see it."""
    if isinstance(value, str):
        return str(value) if len(value) <= MAX_TEXT else None
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if abs(value) < 2**63 else None
    return value
