"""Generate random weights and inputs that are functions of seed, name and index, with the same bits on every device.

The generator is counter-based: a tensor can be filled in parts, in any order and by any number of threads. Index ``i``
of the tensor ``name`` belongs to block ``b = i // 32768``. The first eight bytes of ``blake2b(f"{seed}:{name}:{b}")``
are its key ``k`` and its multiplier ``m``, made odd. With ``h`` the 32-bit hash ``lowbias32`` (C. Wellons,
hash-prospector), an index has two words:

    u = mix(m * (h(i % 32768 + 1) ^ k)),  v = mix(c * u),  where mix(x) = x ^ (x >> 15), modulo 2**32.

Each word is two signed 16-bit integers, of which the upper 14 bits are taken. The sum of those of u minus the sum of
those of v is the random number: the sum of four uniform integers, which is close to normal and within 3.5 standard
deviations. It is the upper half of a 32-bit integer whose lower half are bits of the same words.

All of this is arithmetic on 32-bit integers, in passes over blocks that fit into a cache. Only the last steps are in
floating point: the conversion to float32 (float64 for tensors of that dtype), a product, and the rounding to the dtype.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Final

from costproof.ledger.progress import Progress, silent

if TYPE_CHECKING:
    import torch
    from torch import nn

SPREAD: Final = 0.02
"""Standard deviation of random weights, as in the initialization for training."""

BLOCK: Final = 2**15
"""Numbers that share a key. The scratch memory of a block fits into the L2 cache of a core."""
_ROWS: Final = {"cpu": 1, "cuda": 512}
"""Blocks of one pass: launching a kernel takes as long as 2**24 numbers."""
_PART: Final = {"cpu": 2**20, "cuda": 2**28}
"""Numbers of one task, between two reports of progress."""
_LOWBIAS: Final = ((16, 0x7FEB352D), (15, 0x846CA68B))
"""Shifts and multipliers of lowbias32, whose last step is a shift by 16."""
_SECOND: Final = 0x2C1B3C6D
"""Multiplier of the second word."""
_UNIT: Final = 2**16 * ((2**28 - 1) / 3) ** 0.5
"""Standard deviation of the sum of four uniform 14-bit integers, in the upper half of a word."""


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
    """Fill named tensors with normal numbers of mean 0; torch's generators are left alone.

    Args:
        spread: standard deviation.
    """
    total, done = sum(tensor.numel() for _, tensor in tensors), 0
    progress("random weights", done, total)
    parts = (part for name, tensor in tensors for part in _parts(tensor, f"{seed}:{name}", spread))
    with closing(_run(parts)) as finished:
        for numbers in finished:
            done += numbers
            progress("random weights", done, total)


def random_normal(
    shape: Sequence[int], seed: int, name: str, device: torch.device | str, dtype: torch.dtype
) -> torch.Tensor:
    """Return a tensor of standard normal numbers that depend on seed, name and index only."""
    import torch

    made = torch.empty(shape, device=device, dtype=dtype)
    fill_normal([(name, made)], seed, 1.0)
    return made


def random_integers(below: int, shape: Sequence[int], seed: int, name: str) -> torch.Tensor:
    """Return a tensor of int64 on the CPU with integers from 0 to ``below - 1``, uniform up to 1 in 2**31 / below."""
    import torch

    words = torch.empty(prod(shape), dtype=torch.int32)
    scratch = torch.empty(min(BLOCK, len(words)), dtype=torch.int32)
    for first in range(0, len(words), BLOCK):
        part = words[first : first + BLOCK]
        block = first // BLOCK
        keys = _keys(f"{seed}:{name}", range(block, block + 1), words.device)
        _hash_words(part, scratch[: len(part)], *keys)
    return (words.long() & 2**31 - 1).remainder_(below).view(tuple(shape))


@dataclass(frozen=True, slots=True)
class _Part:
    """Numbers ``first`` to ``last`` (exclusive) of a tensor, which begin and end at a block or with the tensor."""

    flat: torch.Tensor
    key: str
    spread: float
    first: int
    last: int

    def fill(self) -> int:
        """Write the numbers and return how many there are."""
        import torch

        device = self.flat.device
        rows = min(_ROWS.get(device.type, 1), -(-(self.last - self.first) // BLOCK))
        width = min(BLOCK, self.last - self.first)
        words, other, scratch = (torch.empty(rows, width, dtype=torch.int32, device=device) for _ in range(3))
        double = self.flat.dtype == torch.float64
        values = torch.empty_like(words, dtype=torch.float64) if double else other.view(torch.float32)
        for start in range(self.first, self.last, rows * BLOCK):
            stop = min(start + rows * BLOCK, self.last)
            some = slice(0, -(-(stop - start) // BLOCK))
            block = start // BLOCK
            keys = _keys(self.key, range(block, block + some.stop), device)
            _hash_words(words[some], scratch[some], *keys)
            _sum_lanes(words[some], other[some], scratch[some])
            values[some].copy_(words[some])
            values[some].mul_(self.spread / _UNIT)
            self.flat[start:stop].copy_(values.view(-1)[: stop - start])
        return self.last - self.first


def _parts(tensor: torch.Tensor, key: str, spread: float) -> Iterator[Callable[[], int]]:
    """Yield functions that fill the parts of a tensor."""
    import torch

    data = tensor.detach()
    if data.is_contiguous():
        flat, size = data.view(-1), _PART.get(data.device.type, 2**20)
        for first in range(0, len(flat), size):
            yield _Part(flat, key, spread, first, min(first + size, len(flat))).fill
        return

    def copied() -> int:
        made = torch.empty_like(data, memory_format=torch.contiguous_format)
        for part in _parts(made, key, spread):
            part()
        data.copy_(made)
        return data.numel()

    yield copied


def _run(parts: Iterator[Callable[[], int]]) -> Generator[int, None, None]:
    """Run functions on as many threads as torch uses, and yield their results as they come.

    An operator on one block is too small for torch to use several threads itself.
    """
    import torch

    threads = torch.get_num_threads()
    ahead = list(islice(parts, 2))
    if threads == 1 or len(ahead) < 2:
        for part in (*ahead, *parts):
            yield part()
        return
    with ThreadPoolExecutor(threads) as pool:
        running = {pool.submit(part) for part in (*ahead, *islice(parts, 2 * threads))}
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(part) for part in islice(parts, len(finished))}
            for each in finished:
                yield each.result()


def _hash_words(
    words: torch.Tensor, scratch: torch.Tensor, key: torch.Tensor | int, multiplier: torch.Tensor | int
) -> None:
    """Fill words [rows, n] or [n] with the first word of the first n indices of each block.

    Args:
        key: of the block, or [rows, 1].
        multiplier: of the block, or [rows, 1].
    """
    import torch

    positions = _position_hashes(words.device)[: words.shape[-1]].expand(words.shape)
    torch.bitwise_xor(positions, key, out=words)
    _xor_shifted(words.mul_(multiplier), scratch)


def _sum_lanes(words: torch.Tensor, other: torch.Tensor, scratch: torch.Tensor) -> None:
    """Replace each first word by the random number in its upper half."""
    import torch

    torch.mul(words, _SECOND, out=other)
    _xor_shifted(other, scratch)
    halves, others = words.view(torch.int16), other.view(torch.int16)
    halves.bitwise_right_shift_(2).sub_(others.bitwise_right_shift_(2))
    words.mul_(2**16 + 1)  # the upper half becomes the sum of both


def _xor_shifted(words: torch.Tensor, scratch: torch.Tensor) -> None:
    """Replace x by ``x ^ (x >> 15)``; the mask makes the arithmetic shift of signed integers a logical one."""
    import torch

    torch.bitwise_right_shift(words, 15, out=scratch)
    words.bitwise_xor_(scratch.bitwise_and_(2**17 - 1))


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


def _keys(key: str, blocks: range, device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | tuple[int, int]:
    """Return keys and multipliers of blocks as [blocks, 1], or as numbers for one block."""
    import torch

    digests = (hashlib.blake2b(f"{key}:{block}".encode(), digest_size=8).digest() for block in blocks)
    found = [struct.unpack("<ii", digest) for digest in digests]
    if len(found) == 1:
        return found[0][0], found[0][1] | 1
    both = torch.tensor(found, dtype=torch.int32).to(device)
    return both[:, :1], both[:, 1:] | 1
