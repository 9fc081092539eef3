"""Changes of the bits in memory are found, whether they are kept or have checksums alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from costproof.snapshots import module_state
from costproof.snapshots.module_state import Bits

NUMBERS = 2 * 131072 + 3
"""Of float64: two pieces of 1 MiB, and a rest that is no whole row."""


def flipped(t: torch.Tensor, place: int, bit: int) -> None:
    """Flip a bit of one number."""
    t.view(torch.int64)[place] ^= 1 << bit if bit < 63 else -(1 << 63)


def swapped(t: torch.Tensor, one: int, other: int, count: int) -> None:
    """Swap two runs of numbers."""
    held = t[one : one + count].clone()
    t[one : one + count] = t[other : other + count]
    t[other : other + count] = held


CHANGES: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    **{f"bit {bit}": (partial(flipped, place=777, bit=bit), "1 of 3") for bit in (0, 7, 31, 32, 62, 63)},
    "last": (lambda t: flipped(t, NUMBERS - 1, 63), "1 of 3"),
    "signs of all": (lambda t: t.neg_(), "3 of 3"),
    "signs of two": (lambda t: t[2:4].neg_(), "1 of 3"),
    "signs of a block": (lambda t: t[: 2 * 1024].view(2, 1024)[:, 6:8].neg_(), "1 of 3"),
    "upper halves": (lambda t: t.view(torch.int64).add_(1 << 40), "3 of 3"),
    "signs of bfloat16": (lambda t: t.view(torch.bfloat16)[3::4].neg_(), "3 of 3"),
    "neighbours": (lambda t: swapped(t, 10, 11, 1), "1 of 3"),
    "rows": (lambda t: swapped(t, 0, 1024, 1024), "1 of 3"),
    "pieces": (lambda t: swapped(t, 0, 131072, 131072), "2 of 3"),
    "zeroed": (lambda t: t.zero_(), "3 of 3"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("few", [64, 0], ids=["one thread", "threads"])
def test_a_change_is_found_by_checksums(change: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_state, "_FEW", few * 1024**2)
    tensor = torch.randn(NUMBERS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    held = Bits(tensor.untyped_storage(), "weight")
    held.sum()
    assert not list(held.differences())
    write, pieces = CHANGES[change]
    write(tensor)
    assert list(held.differences()) == [f"weight: bits, in {pieces} MiB"]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000])
def test_every_byte_is_compared_and_put_back(size: int) -> None:
    tensor = torch.arange(size, dtype=torch.uint8)
    before = tensor.clone()
    held = Bits(tensor.untyped_storage(), "weight")
    held.keep()
    for place in {0, size // 2, size - 1}:
        tensor[place] += 1
        assert list(held.differences()) == ["weight: bits"]
        held.put_back()
        assert torch.equal(tensor, before)
        assert not list(held.differences())
