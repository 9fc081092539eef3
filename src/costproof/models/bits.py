"""The bits in the memory of tensors: kept, compared, put back. Needs torch to load.

They are read where they lie, past every operator of torch, so that nothing that watches operators takes part.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import numpy as np
import torch

MOST_KEPT: Final = 256 * 1024**2
"""Bytes up to which all memory of a module is copied before it is counted, the smallest tensors first."""
MOST_SUMMED: Final = 16 * 1024**3
"""Bytes up to which the rest has its checksums compared."""
_PIECE: Final = 1024**2
"""Bytes that have one checksum."""
_FEW: Final = 64 * _PIECE
"""Bytes that one thread reads."""
_WEIGHTS: Final = np.random.default_rng(0).integers(2**64, size=1024, dtype=np.uint64) | np.uint64(1)
"""Of the words of a row, for :func:`_sum`."""


class Bits:
    """The memory of one storage."""

    def __init__(self, storage: torch.UntypedStorage, name: str) -> None:
        self.name = name
        self._storage, self._address, self._size = storage, storage.data_ptr(), storage.nbytes()
        self._kept: Any = None
        self._sums: list[bytes] | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    def keep(self) -> None:
        """Copy the bits, unless that was done before."""
        if self._kept is None:
            self._kept = _read(self._storage)

    def sum(self) -> None:
        """Note checksums, with which a change is found but not put back."""
        self._sums = _sums(self._storage)

    def put_back(self) -> None:
        """Write what was kept, if it differs."""
        if self._kept is None:
            return
        if self._storage.nbytes() != self._size:
            self._storage.resize_(self._size)
        if not _equal(self._storage, self._kept):
            _write(self._storage, self._kept)

    def differences(self) -> Iterable[str]:
        """What is not as it was."""
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
    """The memory of a tensor; ``None`` if it has none that can be read: on meta, sparse, of a class of its own."""
    with suppress(Exception):
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            return storage if storage.device.type != "meta" and storage.nbytes() and storage.data_ptr() else None
    return None


def _bytes(storage: torch.UntypedStorage) -> Any:
    """The memory of a storage on the CPU as an array, not copied."""
    memory: Any = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    return np.frombuffer(memory, np.uint8)


def _read(storage: torch.UntypedStorage) -> Any:
    return _bytes(storage).copy() if storage.device.type == "cpu" else storage.clone()  # type: ignore[no-untyped-call]


def _write(storage: torch.UntypedStorage, kept: Any) -> None:
    if storage.device.type == "cpu":
        _bytes(storage)[:] = kept
    else:
        storage.copy_(kept)


def _equal(storage: torch.UntypedStorage, kept: Any) -> bool:
    if storage.device.type == "cpu":
        return _same(_bytes(storage), kept)
    return _same(_bytes(storage.cpu()), _bytes(kept.cpu()))  # type: ignore[no-untyped-call]


def _same(now: Any, before: Any) -> bool:
    """Compare two arrays of bytes, as words: NumPy makes a truth value of every element."""
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
    """Return a checksum, twice as quickly as CRC-32 and no weaker.

    It is a multilinear hash modulo 2**64 of each row of words. As the weights are odd, a change of one word always
    shows, and a change of several hides with probability 2**-32 at most if it reaches the lower half of a word. The
    signs of float64 are in the upper half, and the products of an even number of them add up to nothing: so the upper
    halves are hashed again, as the lower halves of words.
    """
    if len(piece) % _WEIGHTS.nbytes:
        return zlib.crc32(piece).to_bytes(4, "big")
    rows = piece.view(np.uint64).reshape(-1, len(_WEIGHTS))
    return b"".join(np.einsum("ij,j->i", words, _WEIGHTS).tobytes() for words in (rows, rows >> np.uint64(32)))
