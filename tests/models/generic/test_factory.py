"""A module of the user's own: what its file may import, and that nothing of it stays in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch import nn

from costproof.ledger.workload import counted_line
from costproof.models.generic.address import Factory
from costproof.models.registry import load_target

MINE = """
from beside_me import width
from torch import nn
MODEL = nn.Sequential(nn.Linear(width, 8), nn.Dropout(0.1))
MODEL[0].eval()
def make():
    import late_beside_me
    return MODEL
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a module, and two that it imports."""
    (tmp_path / "factory_of_mine.py").write_text(MINE)
    (tmp_path / "beside_me.py").write_text("width = 4")
    (tmp_path / "late_beside_me.py").write_text("")
    for name in ("factory_of_mine", "beside_me", "late_beside_me"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("in_file", [False, True])
def test_what_lies_beside_it_is_found_while_it_runs_and_not_afterwards(
    folder: Path, in_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_file:
        monkeypatch.chdir(folder)
    before = list(sys.path)
    place = str(folder / "factory_of_mine.py") if in_file else "factory_of_mine"
    made = Factory(place, "make", in_file).make(None, None).module
    assert isinstance(made, nn.Sequential)
    assert made[0].in_features == 4
    assert sys.path == before
    assert [m.training for m in made.modules()] == [True, False, True]


BARE = """
import torch
from torch import nn
class Causal(nn.Module):
    def forward(self, query, key):
        return nn.functional.scaled_dot_product_attention(query, key, key, is_causal=True)
class Table(Causal):
    def __init__(self): super().__init__(); self.weight = nn.Parameter(torch.ones(3))
def inputs(): return {name: torch.ones(1, 2, 5, 8, dtype=torch.bfloat16) for name in ("query", "key")}
def causal(): return Causal(), inputs()
def table(): return Table(), inputs()
"""


@pytest.mark.parametrize(("name", "dtype"), [("causal", "bfloat16"), ("table", "float32")])
def test_the_dtype_of_parameters_or_else_of_inputs_is_said(name: str, dtype: str, tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(BARE)
    target = load_target(f"{tmp_path / 'bare.py'}:{name}")
    workload = target.workload()
    assert workload.dtype == dtype
    assert counted_line(target.info(), workload).startswith(f"Counted: weights and cache {dtype}, ")
