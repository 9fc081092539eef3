"""Random values against a generator of one number after another in plain integers, written from the description."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

import pytest
import torch
from torch import nn

from costproof.ledger.progress import silent
from costproof.weights.random_values import (
    BLOCK,
    _passes,
    fill_normal,
    fill_random,
    random_integers,
    random_normal,
)

WORD = 2**32


def lowbias32(x: int) -> int:
    """Return the 32-bit hash of C. Wellons (hash-prospector)."""
    x = (x ^ x >> 16) * 0x7FEB352D % WORD
    x = (x ^ x >> 15) * 0x846CA68B % WORD
    return x ^ (x >> 16)


def words(seed: int, name: str, index: int) -> tuple[int, int]:
    """Return both words of an index."""
    block, position = divmod(index, 65536)
    key: int
    multiplier: int
    key, multiplier = struct.unpack("<II", hashlib.blake2b(f"{seed}:{name}:{block}".encode(), digest_size=8).digest())
    u = (lowbias32(position + 1) ^ key) * (multiplier | 1) % WORD
    u ^= u >> 15
    return u, u * 0x2C1B3C6D % WORD


def number(seed: int, name: str, index: int) -> int:
    """Return the integer from which a normal number is made."""
    (u_low, u_high), (v_low, v_high) = (struct.unpack("<hh", struct.pack("<I", w)) for w in words(seed, name, index))
    low: int = (u_low >> 2) - (v_low >> 2)
    high: int = (u_high >> 2) - (v_high >> 2)
    return (low + high) * 2**16 + low % 2**16


def test_the_hash_is_the_published_one() -> None:
    # The inverse that hash-prospector gives for it.
    def inverse(x: int) -> int:
        x = (x ^ x >> 16) * 0x43021123 % WORD
        x = (x ^ x >> 15 ^ x >> 30) * 0x1D69E2A5 % WORD
        return x ^ x >> 16

    assert all(inverse(lowbias32(x)) == x for x in (1, 2, 65536, 0xDEADBEEF))


def test_numbers_one_by_one() -> None:
    found = random_normal((3 * BLOCK + 5,), 7, "layer.weight", "cpu", torch.float64)
    unit = 2**16 * float(Fraction(2**28 - 1, 3)) ** 0.5
    for index in (0, 1, 2, BLOCK - 1, BLOCK, 2 * BLOCK + 3, 3 * BLOCK + 4):
        assert found[index].item() == number(7, "layer.weight", index) * (1 / unit), index
    ids = random_integers(129_280, (2, BLOCK), 7, "input_ids").view(-1)
    for index in (0, 1, BLOCK - 1, BLOCK, 2 * BLOCK - 1):
        assert ids[index] == words(7, "input_ids", index)[0] % 2**31 % 129_280


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_same_bits_on_any_number_of_threads_and_for_any_layout(dtype: torch.dtype) -> None:
    shape = (700, 3001)  # 2 million numbers: 32 blocks and a part of one
    with threads(1):
        one = random_normal(shape, 0, "w", "cpu", dtype)
    with threads(4):
        four = random_normal(shape, 0, "w", "cpu", dtype)
    transposed = torch.empty(shape[::-1], dtype=dtype).t()
    fill_normal([("w", transposed)], 0, 1.0)
    assert torch.equal(one, four)
    assert torch.equal(one, transposed)
    assert not torch.equal(one, random_normal(shape, 0, "v", "cpu", dtype))
    assert not torch.equal(one, random_normal(shape, 1, "w", "cpu", dtype))
    # A smaller tensor is a part of a larger one.
    assert torch.equal(one.view(-1)[: BLOCK + 3], random_normal((BLOCK + 3,), 0, "w", "cpu", dtype))


def test_inference_tensors_on_several_threads() -> None:
    one = random_normal((40 * BLOCK,), 0, "w", "cpu", torch.bfloat16)
    with threads(2), torch.inference_mode():
        two = random_normal((40 * BLOCK,), 0, "w", "cpu", torch.bfloat16)
        assert torch.get_num_threads() == 2
    assert two.is_inference()
    assert torch.equal(one, two)


def test_narrow_dtypes_round_the_wide_one() -> None:
    wide = random_normal((BLOCK,), 0, "w", "cpu", torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(random_normal((BLOCK,), 0, "w", "cpu", dtype), wide.to(dtype))


def test_rows_of_several_blocks_are_the_blocks_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one = random_normal((5 * BLOCK + 9,), 0, "w", "cpu", torch.bfloat16)
    monkeypatch.setattr("costproof.weights.random_values._ROWS", {"cpu": 3})
    assert torch.equal(one, random_normal((5 * BLOCK + 9,), 0, "w", "cpu", torch.bfloat16))


def test_they_are_normal_and_independent() -> None:
    blocks = random_normal((256, BLOCK), 0, "w", "cpu", torch.float32)
    count = blocks.numel()
    # Standard errors of the first four moments of normal numbers; four uniform ones have 2.7 in place of 3.
    assert abs(blocks.mean().item()) < 5 / count**0.5
    assert abs(blocks.square().mean().item() - 1) < 5 * (2 / count) ** 0.5
    assert abs(blocks.pow(3).mean().item()) < 5 * (15 / count) ** 0.5
    assert abs(blocks.pow(4).mean().item() - 2.7) < 5 * (96 / count) ** 0.5
    assert blocks.abs().max() < 3.47  # (4 * 8192) / 9459
    # No block resembles another, and no number its neighbours: 32,640 pairs, of which one exceeds 4.2 by chance.
    pairs = (blocks @ blocks.t()).fill_diagonal_(0) / BLOCK**0.5
    assert pairs.abs().max() < 5.5
    for lag in (1, 2, 3, 4, 8, 64, 1024):
        assert abs((blocks[:, lag:] * blocks[:, :-lag]).mean().item()) < 5 / count**0.5, lag


def test_generators_of_torch_are_left_alone_and_progress_ends_at_the_total() -> None:
    first, norm = nn.Linear(64, 1100), nn.LayerNorm(1100)
    model = nn.Sequential(first, norm, nn.Linear(1100, 1500, bias=False))
    said: list[tuple[str, int, int]] = []
    before = torch.get_rng_state()
    notes = fill_random(model, 0, lambda *step: said.append(step))
    assert torch.equal(torch.get_rng_state(), before)
    total = 64 * 1100 + 1100 * 1500
    assert said[0] == ("random weights", 0, total)
    assert said[-1] == ("random weights", total, total)
    assert [done for _, done, _ in said] == sorted(done for _, done, _ in said)
    assert notes == ("random weights, seed 0: norms 1, biases 0, all others normal with standard deviation 0.02",)
    assert (norm.weight == 1).all()
    assert (norm.bias == 0).all()
    assert (first.bias == 0).all()
    assert 0.0195 < first.weight.std().item() < 0.0205


def test_many_tensors_on_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [3 * BLOCK, 1, 5 * BLOCK + 1, 11 * BLOCK, 9 * BLOCK, BLOCK - 1]
    monkeypatch.setattr("costproof.weights.random_values._ROWS", {"cpu": 3})
    for count in (1, 2):
        with threads(count):
            many = [(str(i), torch.empty(numbers)) for i, numbers in enumerate(shapes)]
            fill_normal(many, 0, 1.0)
        for name, tensor in many:
            assert torch.equal(tensor, random_normal(tensor.shape, 0, name, "cpu", torch.float32)), (count, name)


def test_a_pass_has_one_dtype() -> None:
    # Blocks of several tensors in one pass, whose intermediate values are of one dtype.
    dtypes = [torch.float32, torch.float32, torch.float64, torch.bfloat16]
    tensors = [(str(i), torch.empty(BLOCK + 1, dtype=dtype)) for i, dtype in enumerate(dtypes)]
    flat = [(name, tensor.view(-1)) for name, tensor in tensors]
    found = [[(row.into.dtype, row.key) for row in batch] for batch in _passes(flat, 0)]
    assert [len(batch) for batch in found] == [4, 2, 2]
    assert all(len({dtype for dtype, _ in batch}) == 1 for batch in found)
    assert [key for batch in found for _, key in batch] == [f"0:{i}:{b}" for i in range(4) for b in range(2)]


def test_nothing_to_fill() -> None:
    fill_normal([], 0, 1.0, silent)
    fill_normal([("w", torch.empty(0, 4))], 0, 1.0, silent)
