"""Headers of checkpoints: what safetensors writes, GGUF tables by hand, and files that contradict themselves."""

from __future__ import annotations

import json
import os
import struct
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from costproof.ledger.errors import BadInput, CostproofError, Incomplete
from costproof.storage.checkpoint import compare_headers
from costproof.storage.headers import HeaderTensor, gguf_sections, read_checkpoint, read_header
from costproof.storage.tensors import StoredTensor


def header(tensors: dict[str, Any]) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


def test_what_safetensors_writes_is_read_without_its_data(tmp_path: Path) -> None:
    state = {
        "a.weight": torch.zeros(3, 5, dtype=torch.float8_e4m3fn), "a.scale": torch.zeros((), dtype=torch.float32),
        "b": torch.zeros(0, 4, dtype=torch.bfloat16), "c": torch.zeros(7, dtype=torch.int64),
    }  # fmt: skip
    file = tmp_path / "model.safetensors"
    save_file(state, file)
    found = {t.name: (t.dtype, t.shape, t.bytes) for t in read_header(file)}
    assert found == {
        "a.weight": ("F8_E4M3", (3, 5), 15), "a.scale": ("F32", (), 4), "b": ("BF16", (0, 4), 0),
        "c": ("I64", (7,), 56),
    }  # fmt: skip
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    file.write_bytes(whole[: 8 + length])
    assert {t.name for t in read_header(file)} == {*state}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"GGUF", b"\x10\0\0\0\0\0\0\0{", b"\xff" * 16, header({}) [:-1] + b"]", b"version https://git-lfs",
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}),  # eight bytes
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}),  # a hole before it
        header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [1]}}),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),  # two in one place
    ],
)  # fmt: skip
def test_what_is_no_header_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(BadInput):
        read_header(file)


def test_a_dtype_without_a_known_size_is_incomplete(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(header({"a": {"dtype": "F3", "shape": [8], "data_offsets": [0, 3]}}))
    with pytest.raises(Incomplete, match="size"):
        read_header(file)


def gguf(tensors: dict[str, tuple[tuple[int, ...], int]], version: int = 3) -> bytes:
    """A GGUF file with three keys of metadata and a table of tensors; dimensions are written innermost first."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), 3)
    out += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    out += text("llama.block_count") + struct.pack("<II", 4, 32)
    out += text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc")
    start = 0
    for name, (shape, kind) in tensors.items():
        out += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape[::-1])
        out += struct.pack("<IQ", kind, start)
        weights, size = {0: (1, 4), 2: (32, 18), 12: (256, 144), 14: (256, 210)}.get(kind, (1, 1))
        start += -(-(prod(shape) // weights * size) // 32) * 32
    return out


def test_blocks_of_gguf(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    # Q4_K: 256 weights in 144 bytes; Q6_K: 210; Q4_0: 32 in 18; F32.
    file.write_bytes(gguf({"q4k": ((3, 512), 12), "q6k": ((2, 256), 14), "q4_0": ((5, 64), 2), "norm": ((7,), 0)}))
    assert {t.name: (t.dtype, t.shape, t.bytes) for t in read_header(file)} == {
        "q4k": ("Q4_K", (3, 512), 3 * 2 * 144), "q6k": ("Q6_K", (2, 256), 2 * 210),
        "q4_0": ("Q4_0", (5, 64), 5 * 2 * 18), "norm": ("F32", (7,), 28),
    }  # fmt: skip
    for wrong in (gguf({"a": ((2, 100), 12)}), gguf({"a": ((2, 256), 12)}, version=9)):
        file.write_bytes(wrong)
        with pytest.raises(BadInput):
            read_header(file)
    file.write_bytes(gguf({"a": ((2, 256), 99)}))
    with pytest.raises(Incomplete):
        read_header(file)
    whole = gguf({"a": ((2, 256), 12)})
    # Of two tensors in 2 x 144 bytes each, the second begins at byte 288.
    file.write_bytes(gguf({"a": ((2, 256), 12), "b": ((2, 256), 12)})[:-8] + struct.pack("<Q", 256))
    with pytest.raises(BadInput, match="begin"):
        read_header(file)
    file.write_bytes(whole + bytes(-len(whole) % 32 + 288 + 1))
    with pytest.raises(BadInput, match="outside"):
        gguf_sections(file)
    for length in range(4, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(CostproofError):
            read_header(file)


def test_a_llama_of_q4_0_has_the_published_size() -> None:
    """Llama-2-7B Q4_0: 3,825,807,040 bytes are tensors and 741,056 of a header; the output alone is Q6_K."""
    hidden, inner, layers, vocabulary = 4096, 11008, 32, 32000
    matrices = vocabulary * hidden + layers * (4 * hidden * hidden + 3 * hidden * inner)
    norms = (2 * layers + 1) * hidden
    output = vocabulary * hidden
    assert matrices // 32 * 18 + output // 256 * 210 + 4 * norms + 741_056 == 3_825_807_040


def test_shards_of_an_index_are_all_read(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "two.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert {f: [t.name for t in found] for f, found in read_checkpoint(tmp_path).items()} == {
        "one.safetensors": ["a"], "two.safetensors": ["b"],
    }  # fmt: skip
    save_file({"a": torch.zeros(2)}, tmp_path / "two.safetensors")
    with pytest.raises(BadInput, match="two shards"):
        read_checkpoint(tmp_path)
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(BadInput, match="missing"):
        read_checkpoint(tmp_path)


def test_differences_are_named_with_their_bytes() -> None:
    expected = [
        StoredTensor("layers.0.up.weight", "BF16", (4, 8)), StoredTensor("layers.1.up.weight", "BF16", (4, 8)),
        StoredTensor("layers.0.experts.*.gate.weight", "BF16", (2, 2), count=2),
    ]  # fmt: skip
    there = [
        HeaderTensor("layers.0.up.weight", "BF16", (4, 8), 64), HeaderTensor("layers.1.up.weight", "F32", (4, 8), 128),
        HeaderTensor("layers.0.experts.0.gate.weight", "BF16", (2, 2), 8),
        HeaderTensor("layers.0.experts.1.gate.weight", "BF16", (2, 2), 8),
        HeaderTensor("layers.0.rotary.inv_freq", "F32", (3,), 12),
    ]  # fmt: skip
    found = compare_headers(expected, {"model.safetensors": there})
    assert (found.tensors, found.bytes) == (5, 64 + 128 + 16 + 12)
    assert [(d.name, d.expected, d.got, d.bytes) for d in found.differences] == [
        ("layers.*.up.weight", "1 x BF16 [4, 8]", "1 x F32 [4, 8]", 64),
        ("layers.*.rotary.inv_freq", "", "1 x F32 [3]", 12),
    ]
    assert sum(d.bytes for d in found.differences) == found.bytes - sum(t.bytes for t in expected)


def test_bounds_of_headers(tmp_path: Path) -> None:
    """As docs/limits.md states them; a FIFO would never end."""
    file = tmp_path / "model.safetensors"
    for length in (2**25 + 1, 2**63):
        file.write_bytes(length.to_bytes(8, "little") + b"{}")
        with pytest.raises(BadInput, match="header of"):
            read_header(file)
    file.write_bytes(header({"a": {"dtype": "F32", "shape": [10**400], "data_offsets": [0, 4]}}))
    with pytest.raises(BadInput):
        read_header(file)
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**21 + 1, 0))
    with pytest.raises(BadInput, match="tensors"):
        read_header(file)
    file.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**24 + 1))
    with pytest.raises(BadInput, match="text of"):
        read_header(file)
    os.mkfifo(tmp_path / "fifo.safetensors")
    with pytest.raises(BadInput, match="regular"):
        read_header(tmp_path / "fifo.safetensors")
