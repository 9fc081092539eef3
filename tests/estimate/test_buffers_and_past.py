"""What a run holds beside its weights: registered buffers, and a cache that it was given."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costproof import api
from costproof.estimate.memory import HeldKind, MemoryLimit
from costproof.ledger.baseline import BASELINE, fold_capture
from costproof.ledger.capture import CAPTURE, Capture
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.schema import to_data
from costproof.reports.fits import limit_sentences
from costproof.run.operand_files import baseline_at
from costproof.views.static_compute import STATIC_COMPUTE, static_compute
from tests.support.running import costproof
from tests.support.toy import toy

PACKED = """
import torch
from torch import nn

class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("qweight", torch.zeros(8, 64, dtype=torch.int32))
        self.register_buffer("scales", torch.ones(64, dtype=torch.float16))
        self.register_buffer("shifts", torch.arange(0, 32, 4, dtype=torch.int32), persistent=False)
        self.shared = self.scales
        self.bias = nn.Parameter(torch.zeros(64, dtype=torch.float16))

    def forward(self, x):
        w = ((self.qweight[:, None, :] >> self.shifts[None, :, None]) & 15).reshape(64, 64)
        return x @ (w.to(x.dtype) * self.scales) + self.bias

def make():
    return Packed(), (torch.zeros(2, 64, dtype=torch.float16),)
"""
BUFFERS = 4 * 8 * 64 + 2 * 64 + 4 * 8
PAST = """
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

def make():
    c = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=2, vocab_size=100, head_dim=16)
    past = DynamicCache(config=c)
    for layer in range(2):
        past.update(torch.zeros(1, 2, 24, 16), torch.zeros(1, 2, 24, 16), layer)
    ids = torch.zeros(1, 8, dtype=torch.long)
    return LlamaForCausalLM(c).eval(), {"input_ids": ids, "past_key_values": past, "use_cache": True}
"""


def held(folder: Path, target: str) -> dict[str, int]:
    done = costproof("fits", target, "--memory", "1GB", "-f", "json", cwd=folder)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_buffers_of_any_module_are_held(tmp_path: Path) -> None:
    (tmp_path / "packed.py").write_text(PACKED)
    found = held(tmp_path, "packed.py:make")
    assert (found["weights_bytes"], found["buffers_bytes"]) == (2 * 64, BUFFERS)
    assert costproof("fits", "packed.py:make", "--memory", f"{BUFFERS + 127}B", cwd=tmp_path).code == 1


def test_a_cache_that_a_run_was_given_is_held_whole(tmp_path: Path) -> None:
    (tmp_path / "past.py").write_text(PAST)
    # 2 layers of keys and values, 2 heads of 16 elements of 4 bytes: 24 positions were there, 8 are new.
    assert held(tmp_path, "past.py:make")["cache_bytes"] == 2 * 2 * 2 * 16 * 4 * (24 + 8)


@pytest.mark.parametrize(("target", "buffers"), [("llama-3.1-8b", 2 * 64 * 4), ("bert-base", 2 * 512 * 8)])
def test_buffers_that_formulas_say_are_held(tmp_path: Path, target: str, buffers: int) -> None:
    assert held(tmp_path, target)["buffers_bytes"] == buffers


def test_a_file_without_buffers_has_those_of_the_formulas(tmp_path: Path) -> None:
    costproof("report", "llama-3.2-1b", "--sources", "analytic", "-o", "out", cwd=tmp_path)
    assert held(tmp_path, "out/static_compute.json")["buffers_bytes"] == 2 * 32 * 4


ATTRIBUTES = """
import torch
from torch import nn

class Tables(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.tables, self.one = {"a": [torch.zeros(200_000)], "same": self.weight.data}, torch.zeros(100_000)[:4]
        self.pairs = torch.sparse_coo_tensor(torch.tensor([[0], [1]]), torch.ones(1), (100_000, 100_000))
        self.rows = torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), torch.ones(2), (2, 100_000))

    def forward(self, x):
        return super().forward(x) + self.tables["a"][0][0] + self.one

def make():
    return Tables(), (torch.ones(3, 4),)
"""
HELD = 4 * 300_000 + (2 * 8 + 4) + (3 * 8 + 2 * 8 + 2 * 4)
"""Of a slice, the memory behind it; of a parameter's memory, nothing again; of sparse tensors, indices and values."""


def test_tensors_that_are_attributes_are_held(tmp_path: Path) -> None:
    (tmp_path / "tables.py").write_text(ATTRIBUTES)
    found = held(tmp_path, "tables.py:make")
    assert (found["weights_bytes"], found["buffers_bytes"], found["attributes_bytes"]) == (4 * 20, 0, HELD)
    assert costproof("fits", "tables.py:make", "--memory", f"{HELD + 79}B", cwd=tmp_path).code == 1


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """A capture of the module with such tensors, which two tests change."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "tables.py").write_text(ATTRIBUTES)
    return api.capture(f"{folder / 'tables.py'}:make", sources=("static", "dynamic"))


def test_they_are_a_field_of_files(captured: Capture, tmp_path: Path) -> None:
    """Whatever a note says of them: no number is read from a text."""
    for ledger in captured.ledgers:
        assert ledger.attributes_bytes == HELD
        assert any(f"{HELD:,}" in note for note in ledger.notes)
    told = tuple(replace(x, notes=("7 B of something",), attributes_bytes=6) for x in captured.ledgers)
    other = replace(captured, ledgers=told)
    files = {
        "capture": to_data(CAPTURE, other),
        "baseline": to_data(BASELINE, fold_capture(other)),
        "static_compute": to_data(STATIC_COMPUTE, static_compute(other, "exact")),
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        found = api.fits(str(tmp_path / f"{name}.json"), memory="1GB")
        assert (found.attributes_bytes, found.certain_bytes) == (6, 4 * 20 + 6), name


def test_files_of_earlier_versions_do_not_count_as_having_none(captured: Capture, tmp_path: Path) -> None:
    """Captures before 4.4 and baselines before 3.2 have the bytes in a note, static_compute before 3.4 nowhere."""
    plain = replace(captured, ledgers=tuple(replace(x, attributes_bytes=0) for x in captured.ledgers))
    content = to_data(STATIC_COMPUTE, static_compute(plain, "exact"))
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    new.write_text(json.dumps({**content, "schema_version": "3.4"}))
    old.write_text(json.dumps({**content, "schema_version": "3.3"}))
    assert api.fits(str(new), memory="1GB").certain_bytes == 4 * 20
    for side in (plain, fold_capture(plain), str(old)):
        with pytest.raises(Incomplete, match="attributes are not known"):
            api.fits(side, memory="1GB")


@pytest.mark.parametrize("wrong", [None, -1, True, "1"])
def test_their_bytes_in_a_file_are_a_number(tmp_path: Path, wrong: object) -> None:
    content = to_data(STATIC_COMPUTE, static_compute(toy(), "exact"))
    (tmp_path / "s.json").write_text(json.dumps({**content, "attributes_bytes": wrong}))
    with pytest.raises(BadInput, match=r"\$\.attributes_bytes"):
        baseline_at(str(tmp_path / "s.json"))


@pytest.mark.parametrize("kind", ["weights and cache", "weights and live peak", "weights, cache and bound"])
def test_limits_name_them(kind: HeldKind) -> None:
    found = replace(api.fits("llama-3.2-1b", memory="80GB"), attributes_bytes=HELD)
    limit = MemoryLimit("batch", kind, "from", 3, ())
    assert limit_sentences(limit, found)[0].startswith("weights, buffers, attributes")
