"""Save, restore and compare the state of a module, bit for bit; importing this module imports torch."""

from __future__ import annotations

import ctypes
import os
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import MemberDescriptorType
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch._C import DisableTorchFunction
from torch.autograd import grad_mode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from costproof.saved_settings import is_code

MOST_KEPT: Final = 256 * 1024**2
"""Limit on the bytes of a module that are copied before it is counted, starting with the smallest tensors."""
MOST_SUMMED: Final = 16 * 1024**3
"""Limit on the further bytes of a module whose checksums are compared."""
_PIECE: Final = 1024**2
"""Bytes covered by one checksum."""
_FEW: Final = 64 * _PIECE
"""Number of bytes up to which one thread computes all checksums."""
_WEIGHTS: Final = np.random.default_rng(0).integers(2**64, size=1024, dtype=np.uint64) | np.uint64(1)
"""Odd factors by which :func:`_sum` multiplies the words of a row."""


class Bits:
    """Snapshot of the memory of one storage."""

    def __init__(self, storage: torch.UntypedStorage, name: str) -> None:
        self.name = name
        self._storage, self._address, self._size = storage, storage.data_ptr(), storage.nbytes()
        self._kept: Any = None
        self._sums: list[bytes] | None = None

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return self._size

    def keep(self) -> None:
        """Copy the memory, unless a copy exists."""
        if self._kept is None:
            self._kept = _read(self._storage)

    def sum(self) -> None:
        """Store checksums of the memory, which can detect a change but not undo it."""
        self._sums = _sums(self._storage)

    def put_back(self) -> None:
        """Restore the copied memory if it has changed."""
        if self._kept is None:
            return
        if self._storage.nbytes() != self._size:
            self._storage.resize_(self._size)
        if not _equal(self._storage, self._kept):
            if self._storage.device.type == "cpu":
                _bytes(self._storage)[:] = self._kept
            else:
                self._storage.copy_(self._kept)

    def differences(self) -> Iterable[str]:
        """Yield a phrase for each difference from the snapshot."""
        if self._storage.nbytes() != self._size:
            yield f"{self.name}: memory of {self._size:,} bytes -> {self._storage.nbytes():,}"
            return
        if self._storage.data_ptr() != self._address:
            yield f"{self.name}: memory at another address"
        if self._kept is not None:
            if not _equal(self._storage, self._kept):
                yield f"{self.name}: bits"
        elif self._sums is not None and (now := _sums(self._storage)) != self._sums:
            pieces = sum(map(bytes.__ne__, now, self._sums))
            yield f"{self.name}: bits, in {pieces} of {len(now)} MiB"


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a tensor; ``None`` if it is on meta, sparse, or otherwise unreadable."""
    with suppress(Exception):
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            return storage if storage.device.type != "meta" and storage.nbytes() and storage.data_ptr() else None
    return None


def _bytes(storage: torch.UntypedStorage) -> Any:
    """Return the memory of a CPU storage as an array that shares it."""
    memory: Any = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    return np.frombuffer(memory, np.uint8)


def _read(storage: torch.UntypedStorage) -> Any:
    return _bytes(storage).copy() if storage.device.type == "cpu" else storage.clone()  # type: ignore[no-untyped-call]


def _equal(storage: torch.UntypedStorage, kept: Any) -> bool:
    if storage.device.type == "cpu":
        return _same(_bytes(storage), kept)
    return _same(_bytes(storage.cpu()), _bytes(kept.cpu()))  # type: ignore[no-untyped-call]


def _same(now: Any, before: Any) -> bool:
    """Return whether two byte arrays are equal, compared as 64-bit words for speed."""
    if len(now) != len(before):
        return False
    whole = len(now) - len(now) % 8
    words = np.array_equal(now[:whole].view(np.uint64), before[:whole].view(np.uint64))
    return words and np.array_equal(now[whole:], before[whole:])


def _sums(storage: torch.UntypedStorage) -> list[bytes]:
    here = storage if storage.device.type == "cpu" else storage.cpu()  # type: ignore[no-untyped-call]
    array = _bytes(here)
    pieces = [array[i : i + _PIECE] for i in range(0, len(array), _PIECE)]
    if len(array) <= _FEW:
        return [_sum(piece) for piece in pieces]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        return list(threads.map(_sum, pieces, chunksize=16))


def _sum(piece: Any) -> bytes:
    """Return a checksum, a multilinear hash that is twice as fast as CRC-32 and no weaker.

    It is a multilinear hash modulo 2**64 of each row of words. As the weights are odd, a change of one word always
    shows, and a change of several hides with probability 2**-32 at most if it reaches the lower half of a word. The
    signs of float64 are in the upper half, and the products of an even number of them add up to nothing: so the upper
    halves are hashed again, as the lower halves of words.
    """
    if len(piece) % _WEIGHTS.nbytes:
        return zlib.crc32(piece).to_bytes(4, "big")
    rows = piece.view(np.uint64).reshape(-1, len(_WEIGHTS))
    return b"".join(np.einsum("ij,j->i", words, _WEIGHTS).tobytes() for words in (rows, rows >> np.uint64(32)))


_ABSENT: Final = object()
_PLAIN: Final = frozenset({int, float, str, bytes, bool, complex, type(None)})
"""Classes of values without references to other objects."""
_FLATTENED: Final = ("_parameters", "_buffers", "_modules")
"""Attributes of a module whose dict entries are saved as attributes of the module."""
_LIBRARIES: Final = frozenset({"builtins", "torch", "typing"})
_COMPRESSED: Final = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_coo: ("_indices", "_values"),
}
"""Methods that return the inner tensors of a sparse tensor, by layout."""


class ModuleState:
    """Snapshot of the state of a module and of the arguments of its call."""

    def __init__(self, module: nn.Module, arguments: dict[str, Any] | None = None, *, bits: bool) -> None:
        """Take the snapshot.

        Args:
            arguments: arguments of the module's call, whose state is saved too.
            bits: whether the memory of all tensors is saved, not only of those passed to :meth:`about_to_write`.
        """
        self._held: list[_Held | _Contents | _OfClass] = []
        self._set: list[_Held | _Contents] = []
        """Attributes of the saved tensors."""
        self._tensors: list[_Tensor] = []
        self._bits: dict[int, Bits] = {}
        self._seen: dict[int, Any] = {}
        kinds = {kind for part in module.modules() for kind in type(part).__mro__}
        self._code = {kind.__module__ for kind in kinds if kind.__module__.partition(".")[0] not in _LIBRARIES}
        with DisableTorchFunction():
            for kind in kinds:
                if kind.__module__ in self._code:
                    self._class(kind)
            self._value(module, "")
            for name, value in (arguments or {}).items():
                self._value(value, name)
        if bits:
            self._save_bits()

    def about_to_write(self, tensor: torch.Tensor | torch.UntypedStorage) -> None:
        """Save the memory of a tensor or storage that the module uses, before it is written."""
        storage = tensor if isinstance(tensor, torch.UntypedStorage) else storage_of(tensor)
        if storage is not None and (found := self._bits.get(storage._cdata)) is not None:
            found.keep()

    def put_back(self) -> None:
        """Restore all state that can be restored; may be called again."""
        for held in self._held:
            held.put_back()
        self.put_back_tensors()

    def put_back_tensors(self) -> None:
        """Restore only the tensors and their attributes."""
        with DisableTorchFunction(), torch.no_grad():
            for held in self._set:
                held.put_back()
            for tensor in self._tensors:
                tensor.put_back()
            for bits in self._bits.values():
                bits.put_back()
            for tensor in self._tensors:
                tensor.put_back_version()

    def differences(self) -> list[str]:
        """Return a phrase for each difference: ``0.weight: dtype torch.float32 -> torch.float16``."""
        with DisableTorchFunction():
            found = [line for held in (*self._held, *self._set) for line in held.differences()]
            found += [line for tensor in self._tensors for line in tensor.differences()]
            return found + [line for bits in self._bits.values() for line in bits.differences()]

    def _save_bits(self) -> None:
        kept = summed = 0
        for bits in sorted(self._bits.values(), key=lambda b: b.size):
            if (kept := kept + bits.size) <= MOST_KEPT:
                bits.keep()
            elif (summed := summed + bits.size) <= MOST_SUMMED:
                bits.sum()

    def _value(self, value: Any, name: str) -> None:
        """Save an object: a tensor, a module, a container, or an instance of a class from the module's code."""
        if isinstance(value, torch.Tensor):
            self._tensor(value, name)
        elif id(value) not in self._seen:
            if isinstance(value, nn.Module):
                self._object(value, name)
            elif isinstance(value, dict | list | set | deque):
                self._container(value, name)
            elif isinstance(value, tuple | frozenset):
                self._seen[id(value)] = value
                for i, each in enumerate(value):
                    self._value(each, f"{name}[{i}]")
            elif type(value).__module__ in self._code and not isinstance(value, type):
                self._object(value, name)

    def _object(self, value: Any, name: str) -> None:
        self._seen[id(value)] = value
        what = f"{name or type(value).__name__}: class"
        self._held.append(_Held(what, type(value), lambda: type(value), partial(_set_class, value)))
        for kind in type(value).__mro__:
            for slot, place in vars(kind).items():
                if isinstance(place, MemberDescriptorType) and slot not in ("__dict__", "__weakref__"):
                    self._slot(value, place, _joined(name, slot))
        with suppress(Exception):  # a class may have none, or one of its own that fails
            self._container(object.__getattribute__(value, "__dict__"), name, attributes=True)

    def _class(self, kind: type) -> None:
        held = _OfClass(kind)
        self._held.append(held)
        for name, value in held.before.items():
            self._value(value, f"{kind.__name__}.{name}")

    def _slot(self, value: Any, place: Any, name: str) -> None:
        held = _get(place, value)
        self._held.append(_Held(name, held, lambda: _get(place, value), lambda v: _set(place, value, v)))
        if held is not _ABSENT:
            self._value(held, name)

    def _container(self, value: Any, name: str, *, attributes: bool = False, of_tensor: bool = False) -> None:
        self._seen[id(value)] = value
        (self._set if of_tensor else self._held).append(_Contents(name, value))
        if isinstance(value, dict):
            for key, each in list(value.items()):
                if type(each) in _PLAIN:
                    continue
                inside = _joined(name, str(key)) if attributes else f"{name}[{key!r}]"
                if attributes and key in _FLATTENED and isinstance(each, dict):
                    self._container(each, name, attributes=True)
                else:
                    self._value(each, inside)
        else:
            for i, each in enumerate(list(value)):
                if type(each) not in _PLAIN:
                    self._value(each, f"{name}[{i}]")

    def _tensor(self, tensor: torch.Tensor, name: str) -> None:
        if id(tensor) in self._seen:
            return
        self._seen[id(tensor)] = tensor
        self._tensors.append(_Tensor(tensor, name))
        storage = storage_of(tensor)
        if storage is not None:
            self._bits.setdefault(storage._cdata, Bits(storage, name))
        self._container(vars(tensor), name, attributes=True, of_tensor=True)
        for inner, part in _parts(tensor):
            self._tensor(part, _joined(name, inner))
        if tensor.is_leaf and (gradient := tensor.grad) is not None:
            self._tensor(gradient, _joined(name, "grad"))
        for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if isinstance(held := getattr(tensor, hooks, None), dict):
                self._container(held, _joined(name, hooks), of_tensor=True)


class _Held:
    """Reference to an object that must stay the same object."""

    def __init__(self, name: str, before: Any, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self._name, self._before, self._get, self._put = name, before, get, put

    def put_back(self) -> None:
        if self._get() is not self._before:
            with suppress(Exception):
                self._put(self._before)

    def differences(self) -> Iterator[str]:
        if (now := self._get()) is not self._before:
            yield f"{self._name} {_text(self._before)} -> {_text(now)}"


class _OfClass:
    """Attributes of a class that contain data: counters, caches, tables."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self.before = self._read()

    def put_back(self) -> None:
        for name, before in self._changed():
            with suppress(Exception):  # its metaclass may refuse
                if before is _ABSENT:
                    delattr(self._kind, name)
                else:
                    setattr(self._kind, name, before)

    def differences(self) -> Iterator[str]:
        for name, before in self._changed():
            now = vars(self._kind).get(name, _ABSENT)
            yield f"{self._kind.__name__}.{name} {_text(before)} -> {_text(now)}"

    def _changed(self) -> list[tuple[str, Any]]:
        now = self._read()
        names = {**self.before, **now}
        pairs = ((name, self.before.get(name, _ABSENT)) for name in names)
        return [(name, before) for name, before in pairs if now.get(name, _ABSENT) is not before]

    def _read(self) -> dict[str, Any]:
        found = dict(vars(self._kind))  # Python keeps notes of its own under names with two underscores
        return {name: value for name, value in found.items() if not name.startswith("__") and not is_code(value)}


class _Contents:
    """Contents of a container, in order."""

    def __init__(self, name: str, container: Any) -> None:
        self._name, self._container = name, container
        self._before = list(container.items() if isinstance(container, dict) else container)

    def put_back(self) -> None:
        if not self._same():
            # The methods of the built-in class: a class derived from it may refuse to be changed.
            match self._container:
                case OrderedDict():
                    OrderedDict.clear(self._container)
                    for key, value in self._before:
                        OrderedDict.__setitem__(self._container, key, value)
                case dict():
                    dict.clear(self._container)
                    dict.update(self._container, self._before)
                case list():
                    list.__setitem__(self._container, slice(None), self._before)
                case set():
                    set.clear(self._container)
                    set.update(self._container, self._before)
                case deque():
                    deque.clear(self._container)
                    deque.extend(self._container, self._before)

    def differences(self) -> Iterator[str]:
        if not self._same():
            yield f"{self._name}: what it holds"

    def _same(self) -> bool:
        now = list(self._container.items() if isinstance(self._container, dict) else self._container)
        if len(now) != len(self._before):
            return False
        if isinstance(self._container, dict):
            return all(k is n and v is w for (k, v), (n, w) in zip(now, self._before, strict=True))
        if isinstance(self._container, set):
            return set(map(id, now)) == set(map(id, self._before))
        return all(v is w for v, w in zip(now, self._before, strict=True))


class _Tensor:
    """Properties of a tensor object: class, layout, gradient, hooks and others."""

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        self._tensor, self._name = tensor, name
        self._before = dict(_facts(tensor))
        self._alias: torch.Tensor | None = None
        """Tensor with the same memory and layout; assigning it to the tensor's ``data`` restores both."""
        with suppress(Exception), torch.no_grad():  # a class of its own need not have one
            self._alias = tensor.detach()
        self._version: Any = None
        if not tensor.is_inference():
            self._version = grad_mode._unsafe_preserve_version_counter(tensor)

    def put_back(self) -> None:
        now = dict(_facts(self._tensor))
        if now["class"] is not self._before["class"]:
            _set_class(self._tensor, self._before["class"])
        if any(now[fact] != self._before[fact] for fact in _OF_DATA) and self._alias is not None:
            with suppress(Exception):
                self._tensor.data = self._alias
        if now["requires_grad"] != self._before["requires_grad"]:
            with suppress(Exception):
                self._tensor.requires_grad_(self._before["requires_grad"])
        for fact, attribute in _ATTRIBUTES.items():
            if now[fact] is not self._before[fact]:
                with suppress(Exception):
                    setattr(self._tensor, attribute, self._before[fact])

    def put_back_version(self) -> None:
        if self._version is not None and self._tensor._version != self._before["version"]:
            self._version.__exit__(None, None, None)

    def differences(self) -> Iterator[str]:
        now = dict(_facts(self._tensor))
        for fact, before in self._before.items():
            if now[fact] is not before and (fact in _ATTRIBUTES or now[fact] != before):
                yield f"{self._name}: {fact} {_text(before)} -> {_text(now[fact])}"


_OF_DATA: Final = ("storage", "dtype", "device", "shape", "stride", "offset", "layout")
_ATTRIBUTES: Final = {
    "gradient": "grad",
    "hooks": "_backward_hooks",
    "hooks behind the gradient": "_post_accumulate_grad_hooks",
}
"""Attribute of a tensor, compared by identity, by name of the property."""


def _facts(tensor: torch.Tensor) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of each property of a tensor, except the numbers in its memory."""
    readers: dict[str, Callable[[], Any]] = {
        "class": lambda: type(tensor),
        "storage": lambda: tensor.untyped_storage()._cdata,
        "dtype": lambda: tensor.dtype,
        "device": lambda: tensor.device,
        "shape": lambda: tuple(tensor.shape),
        "stride": lambda: tensor.stride() if tensor.layout == torch.strided else None,
        "offset": lambda: tensor.storage_offset(),
        "layout": lambda: tensor.layout,
        "requires_grad": lambda: tensor.requires_grad,
        "leaf": lambda: tensor.is_leaf,
        "gradient": lambda: tensor.grad if tensor.is_leaf else None,
        "hooks": lambda: tensor._backward_hooks,
        "hooks behind the gradient": lambda: tensor._post_accumulate_grad_hooks,
        "shared": lambda: tensor.untyped_storage().is_shared(),
        "version": lambda: tensor._version,
        "parts": lambda: [(name, part.untyped_storage()._cdata) for name, part in _parts(tensor)],
    }
    for fact, read in readers.items():
        found = None
        with suppress(Exception):
            found = read()
        yield fact, found


def _parts(tensor: torch.Tensor) -> Iterable[tuple[str, torch.Tensor]]:
    """Return the inner tensors of a wrapper subclass, which has no memory itself."""
    found: list[tuple[str, torch.Tensor]] = []
    with suppress(Exception):
        whole: Any = tensor
        if is_traceable_wrapper_subclass(whole):
            found = [(name, getattr(whole, name)) for name in whole.__tensor_flatten__()[0]]
        else:
            methods = _COMPRESSED.get(tensor.layout, ("values",) if tensor.is_nested else ())
            found = [(name, getattr(tensor.detach(), name)()) for name in methods]
    return found


def _joined(name: str, inside: str) -> str:
    return f"{name}.{inside}" if name else inside


def _get(place: Any, value: Any) -> Any:
    try:
        return place.__get__(value)
    except AttributeError:
        return _ABSENT


def _set(place: Any, value: Any, held: Any) -> None:
    if held is _ABSENT:
        place.__delete__(value)
    else:
        place.__set__(value, held)


def _set_class(value: Any, kind: type) -> None:
    with suppress(TypeError):
        value.__class__ = kind


def _text(value: Any) -> str:
    """Return a short text of a value; for a tensor the text states its shape."""
    if value is _ABSENT:
        return "nothing"
    if isinstance(value, torch.Tensor):
        return f"tensor {tuple(value.shape)}"
    return (value.__name__ if isinstance(value, type) else str(value))[:80]
