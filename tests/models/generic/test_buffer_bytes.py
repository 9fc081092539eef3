"""Bytes of registered buffers, and of what operators read of them, by hand: from the graph and from the run."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import costproof
from costproof.ledger.node import Ledger
from costproof.opgraph import tally
from costproof.snapshots.copies import held_bytes
from costproof.tracers.storage import resident_bytes


def ledgers(module: nn.Module, *inputs: torch.Tensor) -> tuple[Ledger, Ledger]:
    report = costproof.count(module, *inputs)
    assert report.discrepancy.verdict == "exact"
    return report.capture.ledger("static"), report.capture.ledger("dynamic")


NEMOTRON_H = {
    "model_type": "nemotron_h", "hidden_size": 64, "layers_block_type": ["moe", "attention"], "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32, "n_group": 1, "topk_group": 1,
    "max_position_embeddings": 256, "dtype": "bfloat16",
}  # fmt: skip


def test_a_buffer_that_stays_in_float32(tmp_path: Path) -> None:
    """A router of 8 experts: 8 x 64 weights in two bytes, 8 corrections in four, as they are loaded and stored."""
    (tmp_path / "config.json").write_text(json.dumps(NEMOTRON_H), encoding="utf-8")
    report = costproof.report(f"hf:{tmp_path}", seq_len=8, new_tokens=0)
    assert report.discrepancy.verdict == "exact"
    for source in ("static", "dynamic"):
        (gate,) = (
            {metric: n.cost(metric) for metric in ("weight_bytes", "buffer_bytes", "stored_bytes", "resident_bytes")}
            for n in report.capture.ledger(source).nodes
            if n.module.endswith(".gate") and not n.invocation
        )
        held = 8 * 64 * 2 + 8 * 4
        assert gate == {
            "weight_bytes": 8 * 64 * 2, "buffer_bytes": 8 * 4, "stored_bytes": held, "resident_bytes": held,
        }  # fmt: skip


class Every(nn.Module):
    """Buffers of every kind, of which forward reads one."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(100))  # 400
        self.register_buffer("head", self.table[:10])  # a view of it
        self.register_buffer("again", self.table)  # the same
        self.register_buffer("two", torch.zeros(30)[4:9])  # 5 of 30 elements are registered: 20
        self.register_buffer("one", torch.zeros(1).expand(50))  # one element lies in memory: 4
        self.register_buffer("even", torch.zeros(20)[::2])  # 10 elements: 40
        self.register_buffer("kept", torch.zeros(3, dtype=torch.int64), persistent=False)  # 24
        self.register_buffer("mask", torch.zeros(7, dtype=torch.bool))  # 7
        self.register_buffer("nothing", None)
        self.register_buffer("empty", torch.zeros(0))
        self.plain = torch.zeros(1000)
        self.part = nn.Linear(4, 4, bias=False)
        self.part.register_buffer("scale", torch.ones((), dtype=torch.float16))  # 2
        self.part.register_buffer("tied", self.table)  # counts where it comes first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.part(x) * self.table[:4]
        return scaled


RARE = {
    "complex32": 4, "complex128": 16, "uint16": 2, "uint32": 4, "uint64": 8, "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1,
}  # fmt: skip
"""Bytes of an element, of dtypes that few models have; two numbers of 4 bits are one of float4."""


class Rare(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 5)
        for name in RARE:
            if hasattr(torch, name):  # float4 is of torch 2.8
                self.register_buffer(f"of_{name}", torch.empty(6, dtype=getattr(torch, name)))


def test_buffers_of_rare_dtypes() -> None:
    own = 6 * sum(RARE[name] for name in RARE if hasattr(torch, name))
    with torch.device("meta"):
        module, x = Rare(), torch.ones(3, 4)
    for ledger in ledgers(module, x):
        assert ledger.total("buffer_bytes") == own
        assert ledger.total("flops") == 2 * 3 * 4 * 5
        stored = "stored_bytes" in ledger.metrics
    assert not stored or ledger.source == "dynamic"  # no header has complex numbers of 32 or 128 bits


def test_buffers_of_every_kind() -> None:
    for ledger in ledgers(Every(), torch.ones(3, 4)):
        own = {n.module: n.cost("buffer_bytes") for n in ledger.nodes if n.cost("buffer_bytes") != 0}
        assert own == {"": 400 + 20 + 4 + 40 + 24 + 7, "part": 2}
        assert ledger.total("buffer_bytes") == 497


def test_the_bytes_that_buffers_of_a_run_occupy() -> None:
    every = dict(Every().named_buffers(remove_duplicate=False))
    assert {name: size for name, size in resident_bytes(every).items() if size != 0} == {
        "table": 400, "two": 20, "one": 4, "even": 40, "kept": 24, "mask": 7, "part.scale": 2,
    }  # fmt: skip
    memory = torch.zeros(24, dtype=torch.uint8)
    # Bytes 0 to 12 as three floats, 8 to 16 as bytes; then every second and every fourth of the last eight.
    views = {
        "first": memory[8:16],
        "floats": memory[:12].view(torch.float32),
        "half": memory[16::2],
        "some": memory[16::4],
    }
    assert resident_bytes(views) == {"first": 16, "floats": 0, "half": 4, "some": 0}
    assert resident_bytes({"some": memory[::4], "other": memory[1::2]}) == {"some": 6 + 12, "other": 0}
    odd = {"sparse": torch.eye(4).to_sparse(), "conj": torch.zeros(2, dtype=torch.complex64).conj()}
    assert resident_bytes(odd) == {"sparse": None, "conj": None}


def brute_force(views: dict[str, torch.Tensor]) -> int:
    """Bytes of one memory in which some view has an element, each element visited."""
    seen: set[int] = set()
    for view in views.values():
        size = view.element_size()
        for index in product(*map(range, view.shape)):
            at = view.storage_offset() + sum(i * step for i, step in zip(index, view.stride(), strict=True))
            seen.update(range(at * size, at * size + size))
    return len(seen)


@settings(max_examples=150)
@given(st.data())
def test_overlapping_views_of_one_memory_count_each_byte_once(data: st.DataObject) -> None:
    memory, views = torch.zeros(96, dtype=torch.uint8), {}
    for i in range(data.draw(st.integers(1, 4))):
        dtype = data.draw(st.sampled_from([torch.uint8, torch.float32, torch.bfloat16]))
        room = 96 // dtype.itemsize
        shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        strides = data.draw(st.lists(st.integers(0, 5), min_size=len(shape), max_size=len(shape)))
        reach = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if reach < room:
            offset = data.draw(st.integers(0, room - 1 - reach))
            views[str(i)] = memory.view(dtype).as_strided(shape, strides, offset)
    for found in (held_bytes(views), resident_bytes(views)):
        assert sum(size or 0 for size in found.values()) == brute_force(views)
    assert held_bytes(views) == resident_bytes(views)


def test_a_mistake_in_the_bytes_of_a_program_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_bytes, "__code__", (lambda tensors: dict.fromkeys(tensors, 8)).__code__)
    report = costproof.count(Packed(), torch.ones(5, 16))
    assert report.discrepancy.verdict == "unexplained"
    assert [x.total("buffer_bytes") for x in report.capture.ledgers] == [16, 24 * 16 + 24 * 4]


def test_batch_norm_in_a_module_that_hangs_at_two_places() -> None:
    """Per channel a mean and a variance in float32, and a count of batches in int64."""
    norm = nn.BatchNorm2d(6)
    for ledger in ledgers(nn.Sequential(norm, nn.ReLU(), norm), torch.ones(2, 6, 3, 3)):
        assert ledger.total("buffer_bytes") == 2 * 6 * 4 + 8
        assert ledger.total("params") == 2 * 6


def test_what_is_not_known() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("adjacency", torch.eye(4).to_sparse())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x)

    report = costproof.count(Sparse(), torch.ones(4, 4))
    assert {x.total("buffer_bytes") for x in report.capture.ledgers} == {None}


class Packed(nn.Module):
    """A linear layer of int8 weights, 24 x 16, with a scale for every output, as deployed models hold them."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(24, 16, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype)) * self.scale


def test_packed_weights_are_read() -> None:
    for ledger in ledgers(Packed(), torch.ones(5, 16)):
        assert ledger.total("buffer_bytes") == 24 * 16 + 24 * 4
        # In float32 come 5 x 16 and go 5 x 24; 24 x 16 bytes and 24 scales are read between.
        assert ledger.total("floor_bytes") == 4 * (5 * 16 + 5 * 24) + 24 * 16 + 24 * 4


class Quantised(nn.Module):
    """Four bits a weight, eight of them in an int32, as AWQ and GPTQ lay them out."""

    qweight: torch.Tensor
    qzeros: torch.Tensor
    scales: torch.Tensor
    shifts: torch.Tensor

    def __init__(self, width: int, out: int, group: int) -> None:
        super().__init__()
        self.sizes = width, out, group
        self.register_buffer("qweight", torch.zeros(width // 8, out, dtype=torch.int32))
        self.register_buffer("qzeros", torch.zeros(width // group, out // 8, dtype=torch.int32))
        self.register_buffer("scales", torch.ones(width // group, out, dtype=torch.float16))
        self.register_buffer("shifts", torch.arange(0, 32, 4, dtype=torch.int32), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width, out, group = self.sizes
        w = ((self.qweight[:, None, :] >> self.shifts[None, :, None]) & 15).reshape(width, out)
        zeros = ((self.qzeros[:, :, None] >> self.shifts) & 15).reshape(-1, 1, out)
        w = (w.reshape(-1, group, out) - zeros).to(x.dtype) * self.scales[:, None, :]
        return x @ w.reshape(width, out)


def test_four_bits_in_integers_are_read_once() -> None:
    width, out, group = 64, 32, 16
    held = 4 * width // 8 * out + 4 * width // group * out // 8 + 2 * width // group * out + 4 * 8
    for ledger in ledgers(Quantised(width, out, group), torch.ones(3, width, dtype=torch.float16)):
        assert ledger.total("buffer_bytes") == held
        assert ledger.total("floor_bytes") == 2 * 3 * (width + out) + held


class LooksUp(nn.Module):
    """Rows of an int8 table, by indices that are a buffer too, which are no numbers."""

    table: torch.Tensor
    places: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(1000, 8, dtype=torch.int8))
        self.register_buffer("places", torch.arange(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table[self.places].to(x.dtype)


def test_look_ups_read_rows() -> None:
    for ledger in ledgers(LooksUp(), torch.ones(6, 8)):
        assert ledger.total("buffer_bytes") == 1000 * 8 + 6 * 8
        assert ledger.total("floor_bytes") == 4 * 2 * 6 * 8 + 6 * 8


@pytest.mark.parametrize("masked", [True, False])
def test_masks_and_indices_are_no_numbers(masked: bool) -> None:
    class Indexed(nn.Module):
        held: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", torch.ones(8, dtype=torch.uint8) if masked else torch.arange(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(self.held > 0, 0.0) if masked else x.scatter(0, self.held, x)

    for ledger in ledgers(Indexed(), torch.ones(8)):
        assert ledger.total("floor_bytes") == 2 * 8 * 4


@pytest.mark.parametrize(
    ("place", "value", "metric"),
    [
        ("costproof.opgraph.tally.ITEM_BYTES", {"float32": 2}, "weight_bytes"),
        # In one module alone: others memoize their products.
        ("costproof.opgraph.tally.math", SimpleNamespace(prod=lambda shape: 7), "params"),
    ],
)
def test_a_run_counts_its_parameters_apart_from_an_export(
    place: str, value: object, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, value)
    found = costproof.count(nn.Linear(4, 2), torch.zeros(1, 4)).discrepancy
    assert metric in {f.metric for f in found.select(level="total", status="unexplained")}


def test_buffers_that_both_lose_differ_from_what_is_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = tally.parameter_nodes
    monkeypatch.setattr(tally, "parameter_nodes", lambda parameters, buffers, *more: nodes(parameters, {}, *more))
    found = costproof.count(nn.BatchNorm1d(4).eval(), torch.zeros(2, 4)).discrepancy
    assert "static#resident_bytes" in {f.id for f in found.findings}


class Halves(nn.Module):
    """A product of 128 x 64 with 64 x 128 numbers of 4 bits, two an element, with a scale for each 16."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(x, y.t(), scale, other, out_dtype=torch.bfloat16)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="of torch 2.8")
def test_products_of_pairs_of_numbers() -> None:
    with torch.device("meta"):
        x, y = (torch.empty(128, 32, dtype=torch.float4_e2m1fn_x2) for _ in range(2))
        scales = [torch.empty(128 * 4, dtype=torch.float8_e8m0fnu) for _ in range(2)]
    for ledger in ledgers(Halves(), x, y, *scales):
        assert ledger.total("flops") == 2 * 128 * 64 * 128


class Running(nn.Linear):
    """A mean that the forward updates and then subtracts."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(x.mean(0))
        return super().forward(x - self.mean)


def test_a_buffer_that_is_written_and_read_is_one_input() -> None:
    for ledger in ledgers(Running(), torch.ones(3, 4)):
        assert ledger.total("input_bytes") == 4 * (3 * 4 + 4)  # x, and the mean once
