"""A model that has no room is told before any of it is allocated, with the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from costproof import api
from costproof.ledger.errors import Incomplete
from costproof.snapshots import copies
from costproof.weights import loading

LOOKS = """
import torch

class Looks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else self.b(x)

def made():
    with torch.device("meta"):
        return Looks(), (torch.ones(2, 4),)
"""


def test_a_tied_tensor_takes_memory_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False, dtype=torch.bfloat16), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("b", torch.zeros(5, dtype=torch.int64))
    assert loading.size_of(model) == 9 * 2 + 5 * 8


def test_a_model_without_room_is_told_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "free_bytes", lambda device: 10**6)
    monkeypatch.setattr(nn.Module, "to_empty", lambda *_, **__: pytest.fail("it was allocated"))
    with pytest.raises(Incomplete, match="does not fit") as refused:
        api.capture("llama-3.1-8b", seq_len=4, run="cpu", sources=("dynamic",))
    # The published total of parameters, two bytes each.
    assert refused.value.got is not None
    assert int(refused.value.got.replace(",", "")) >= 8_030_261_248 * 2
    assert "--layers N" in (refused.value.fix or "")


def test_one_that_needs_numbers_and_is_too_large_for_them_says_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "looks.py"
    file.write_text(LOOKS)
    monkeypatch.setattr(copies, "MOST_BYTES", 159)  # it has 2 * (16 + 4) elements of 4 bytes: 160
    with pytest.raises(Incomplete, match="meta is not enough") as refused:
        api.capture(f"{file}:made", sources=("dynamic",))
    assert "too large to be given numbers" in refused.value.what
    assert refused.value.got == "160"
    assert "--layers N" in (refused.value.fix or "")
    monkeypatch.setattr(copies, "MOST_BYTES", 160)
    assert api.capture(f"{file}:made", sources=("dynamic",)).ledger("dynamic").total("flops") == 2 * 2 * 4 * 4
