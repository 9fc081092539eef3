"""Generate random weights and inputs as functions of seed, name and index, with the same bits on every device.

The generator is counter-based: a tensor can be filled in parts, in any order and by any number of threads. Index ``i``
of the tensor ``name`` belongs to block ``b = i // 65536``. The first eight bytes of ``blake2b(f"{seed}:{name}:{b}")``
are its key ``k`` and its multiplier ``m``, made odd. With ``h`` the 32-bit hash ``lowbias32`` (C. Wellons,
hash-prospector), an index has two words, modulo 2**32:

    u = x ^ (x >> 15), where x = m * (h(i % 65536 + 1) ^ k),   and v = 0x2C1B3C6D * u.

Each word is two signed 16-bit integers, of which the upper 14 bits are taken. The sum of those of u minus the sum of
those of v is the random number: the sum of four uniform integers, which is close to normal and within 3.5 standard
deviations. It is the upper half of a 32-bit integer whose lower half are bits of the same words.

All of this is arithmetic on 32-bit integers, in passes over blocks that fit into a cache. Only the last steps are in
floating point: the conversion to float32 (float64 for tensors of that dtype), a product, and the rounding to the dtype.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import prod
from threading import local
from typing import TYPE_CHECKING, Final

from costproof.ledger.progress import Progress, silent

if TYPE_CHECKING:
    import torch
    from torch import nn

SPREAD: Final = 0.02
"""Standard deviation of random weights, as usual for initialization before training."""

BLOCK: Final = 2**16
"""Number of random numbers that share a key."""
_ROWS: Final = {"cpu": 16, "cuda": 256}
"""Number of blocks in one pass, by device type."""
_OFTEN: Final = {"cpu": 2**20, "cuda": 2**28}
"""Number of random numbers between two reports of progress, by device type."""
_LOWBIAS: Final = ((16, 0x7FEB352D), (15, 0x846CA68B))
"""Shifts and multipliers of the hash ``lowbias32``, whose last step is a shift by 16."""
_SECOND: Final = 0x2C1B3C6D
"""Multiplier from which the second word of an index is computed."""
_UNIT: Final = 2**16 * ((2**28 - 1) / 3) ** 0.5
"""Standard deviation of the sum of four uniform 14-bit integers in the upper half of a word."""


def fill_random(model: nn.Module, seed: int, progress: Progress = silent) -> tuple[str, ...]:
    """Fill norms with 1, biases with 0 and all other parameters with normal numbers; return a note that says so.

    The values of a parameter depend on the seed and its name only, so that a cut model has equal weights.
    """
    drawn: list[tuple[str, torch.Tensor]] = []
    for name, parameter in model.named_parameters():
        data = parameter.detach()
        if parameter.dim() == 1 and name.endswith(("weight", "bias")):
            data.fill_(int(name.endswith("weight")))
        else:
            drawn.append((name, data))
    fill_normal(drawn, seed, SPREAD, progress)
    return (f"random weights, seed {seed}: norms 1, biases 0, all others normal with standard deviation {SPREAD}",)


def fill_normal(
    tensors: Sequence[tuple[str, torch.Tensor]], seed: int, spread: float, progress: Progress = silent
) -> None:
    """Fill named tensors with normal numbers of mean 0, without using torch's generators.

    Args:
        spread: standard deviation.
    """

    total, done, said = sum(tensor.numel() for _, tensor in tensors), 0, 0
    progress("random weights", done, total)
    device = tensors[0][1].device.type if tensors else "cpu"
    staged: list[tuple[torch.Tensor, torch.Tensor]] = []
    flat: list[tuple[str, torch.Tensor]] = []
    for name, tensor in tensors:
        data = tensor.detach()
        if not data.is_contiguous():
            staged.append((data, data.contiguous()))
            data = staged[-1][1]
        flat.append((name, data.view(-1)))
    for numbers in _fill_all(list(_passes(flat, seed)), spread / _UNIT):
        done += numbers
        if done == total or done - said >= _OFTEN.get(device, 2**20):
            said = done
            progress("random weights", done, total)
    for data, made in staged:
        data.copy_(made)


def random_normal(
    shape: Sequence[int], seed: int, name: str, device: torch.device | str, dtype: torch.dtype
) -> torch.Tensor:
    """Return a tensor of standard normal numbers that depend only on seed, name and index."""
    import torch

    made = torch.empty(shape, device=device, dtype=dtype)
    fill_normal([(name, made)], seed, 1.0)
    return made


def random_integers(below: int, shape: Sequence[int], seed: int, name: str) -> torch.Tensor:
    """Return an int64 tensor on the CPU with integers from 0 to ``below - 1``, uniform up to 1 in 2**31 / below."""
    import torch

    words = torch.empty(prod(shape), dtype=torch.int32)
    scratch = torch.empty(min(BLOCK, len(words)), dtype=torch.int32)
    for first in range(0, len(words), BLOCK):
        part = words[first : first + BLOCK]
        _hash_words(part, scratch[: len(part)], *_keys([f"{seed}:{name}:{first // BLOCK}"], words.device))
    return (words.long() & 2**31 - 1).remainder_(below).view(tuple(shape))


@dataclass(frozen=True, slots=True)
class _Row:
    """A block of consecutive numbers in a tensor; the last block may be shorter."""

    key: str
    into: torch.Tensor
    """Flat view of the whole tensor."""
    first: int
    last: int
    """Index after the last number of the block."""


def _passes(tensors: Sequence[tuple[str, torch.Tensor]], seed: int) -> Iterator[list[_Row]]:
    """Yield groups of blocks, each to be filled in one pass; the tensors of a group share dtype and device."""
    rows: list[_Row] = []
    for name, flat in tensors:
        if rows and (rows[0].into.dtype, rows[0].into.device) != (flat.dtype, flat.device):
            yield rows
            rows = []
        for block, first in enumerate(range(0, len(flat), BLOCK)):
            rows.append(_Row(f"{seed}:{name}:{block}", flat, first, min(first + BLOCK, len(flat))))
            if len(rows) >= _ROWS.get(flat.device.type, 1):
                yield rows
                rows = []
    if rows:
        yield rows


def _fill_all(passes: Sequence[list[_Row]], scale: float) -> Iterator[int]:
    """Fill the blocks of all passes, and yield the number of values written by each pass.

    On a CPU each thread runs a separate pass. Threads that share an operator wait for each other at its end:
    beside other work on the machine that made this 15 times slower.
    """
    import torch

    memory, threads = local(), torch.get_num_threads()
    if threads == 1 or len(passes) < 2 or any(rows[0].into.device.type != "cpu" for rows in passes):
        for rows in passes:
            yield _fill(rows, memory, scale)
        return
    inference = torch.is_inference_mode_enabled()  # a mode of one thread

    def fill(rows: list[_Row]) -> int:
        with torch.inference_mode(inference):
            return _fill(rows, memory, scale)

    pool = ThreadPoolExecutor(min(threads, len(passes)), initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield from pool.map(fill, passes)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def _fill(rows: Sequence[_Row], memory: local, scale: float) -> int:
    """Fill the blocks of one pass with random numbers, and return how many.

    Args:
        memory: scratch memory of the thread, allocated in its first pass.
    """
    import torch

    width = max(row.last - row.first for row in rows)
    words, scratch = (of[: len(rows), :width] for of in _scratch(memory, rows[0].into.device))
    _hash_words(words, scratch, *_keys([row.key for row in rows], words.device))
    _sum_lanes(words, scratch)
    values = scratch.view(torch.float32)
    start = 0
    while start < len(rows):
        # Blocks that follow each other in a tensor are written at once.
        stop = start + 1
        while stop < len(rows) and rows[stop].into is rows[start].into:
            stop += 1
        first, last = rows[start].first, rows[stop - 1].last
        into, numbers = rows[start].into[first:last], words[start:stop].reshape(-1)[: last - first]
        if into.dtype in (torch.float32, torch.float64):
            into.copy_(numbers).mul_(scale)
        else:
            into.copy_(values[start:stop].reshape(-1)[: last - first].copy_(numbers).mul_(scale))
        start = stop
    return sum(row.last - row.first for row in rows)


def _scratch(memory: local, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two int32 scratch tensors [blocks of a pass, numbers of a block] on a device, one pair per thread."""
    import torch

    kept: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = memory.__dict__.setdefault("kept", {})
    if device not in kept:
        shape = (_ROWS.get(device.type, 1), BLOCK)
        words = torch.empty(shape, dtype=torch.int32, device=device)
        kept[device] = words, torch.empty_like(words)
    return kept[device]


def _hash_words(
    words: torch.Tensor, scratch: torch.Tensor, key: torch.Tensor | int, multiplier: torch.Tensor | int
) -> None:
    """Fill ``words`` [blocks, n] or [n] with the first hash of the first n indices of each block.

    Args:
        key: key of the block, or [blocks, 1].
        multiplier: multiplier of the block, or [blocks, 1].
    """
    import torch

    positions = _position_hashes(words.device)[: words.shape[-1]].expand(words.shape)
    torch.bitwise_xor(positions, key, out=words)
    torch.bitwise_right_shift(words.mul_(multiplier), 15, out=scratch)
    # The mask makes the arithmetic shift of signed integers a logical one.
    words.bitwise_xor_(scratch.bitwise_and_(2**17 - 1))


def _sum_lanes(words: torch.Tensor, scratch: torch.Tensor) -> None:
    """Replace each word by a random number in its upper half: the sum of four uniform integers."""
    import torch

    torch.mul(words, _SECOND, out=scratch)
    halves, others = words.view(torch.int16), scratch.view(torch.int16)
    halves.bitwise_right_shift_(2).sub_(others.bitwise_right_shift_(2))
    words.mul_(2**16 + 1)  # the upper half becomes the sum of both


@cache
def _position_hashes(device: torch.device) -> torch.Tensor:
    """Return ``lowbias32(position + 1)`` of all positions of a block, as int32."""
    import torch

    with torch.inference_mode(False):
        x = torch.arange(1, BLOCK + 1, dtype=torch.int64)
        for shift, multiplier in _LOWBIAS:
            x = (x ^ x >> shift) * multiplier & 2**32 - 1
        x ^= x >> 16
        return ((x + 2**31) % 2**32 - 2**31).to(torch.int32).to(device)


def _keys(keys: Sequence[str], device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | tuple[int, int]:
    """Return the keys and multipliers of blocks as tensors [blocks, 1], or as two numbers for one block."""
    import torch

    found = [struct.unpack("<ii", hashlib.blake2b(key.encode(), digest_size=8).digest()) for key in keys]
    if len(found) == 1:
        return found[0][0], found[0][1] | 1
    both = torch.tensor(found, dtype=torch.int32).to(device)
    return both[:, :1], both[:, 1:] | 1
