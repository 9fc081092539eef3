"""Values of the inputs are a part of the workload where a run follows them, and only there."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch

import costproof
from costproof.compare.gate.judge import judge
from costproof.compare.gate.policy import policy_from_text
from costproof.ledger.baseline import Baseline, fold_capture
from costproof.ledger.errors import Incomplete
from costproof.snapshots.described import arguments

POLICY = policy_from_text("costproof_policy: 1\nlimits:\n  - {metric: flops, increase: 1 G}\n", where="policy.yaml")
FOLLOWS = {
    "a mask": ("x[ids > 3]", "torch.tensor([{}] * 12)"),
    "an item": ("x[: int(ids[0])]", "torch.tensor([{}] * 12)"),
    "a list": ("x[: ids.tolist()[0]]", "torch.tensor([{}] * 12)"),
    "an array": ("x[: int(ids.numpy()[0])]", "torch.tensor([{}] * 12)"),
    "a branch": ("x[:6] if ids.sum() > 50 else x", "torch.tensor([{}.0] * 12)"),
    "nonzero": ("x[ids.nonzero()[:, 0]]", "torch.tensor([{0}] * {0} + [0] * (12 - {0}))"),
    "masked_select": ("x.masked_select(ids > 4).view(-1, 8)", "torch.tensor([[{}]] * 12)"),
    "unique": ("x[ids.unique()]", "torch.arange(12) % {}"),
}
"""An expression that follows values of its inputs, and the input, by a number."""


def written(folder: Path, rows: str, ids: str, width: int = 8) -> str:
    file = folder / f"{len(list(folder.iterdir()))}" / "model.py"  # a module is made once for each file
    file.parent.mkdir()
    file.write_text(
        "import torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def forward(self, x, ids):\n"
        f"        return super().forward({rows})\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        f"    return Net(8, {width}), (torch.ones(12, 8), {ids})\n"
    )
    return f"{file}:make"


def counted(target: str, **options: Any) -> Baseline:
    return fold_capture(costproof.capture(target, sources=["dynamic"], **options))


def refused(base: Baseline, head: Baseline) -> str:
    found = judge(base, head, POLICY, date(2026, 1, 1))
    assert found.exit_code == (3 if found.incomplete else 0)
    return " ".join(found.incomplete)


@pytest.mark.parametrize("case", FOLLOWS)
def test_other_values_that_a_run_follows_are_other_work(tmp_path: Path, case: str) -> None:
    rows, ids = FOLLOWS[case]
    base, head = (counted(written(tmp_path, rows, ids.format(n)), run="cpu") for n in (5, 3))
    assert "inputs.ids: " in refused(base, head)


def test_values_that_a_run_on_shapes_drops_are_told_where_it_follows_them(tmp_path: Path) -> None:
    """Four times the 12 rows, then twice as many of twice the width: as many FLOPs."""
    base = counted(written(tmp_path, "x.repeat(int(ids), 1)", "torch.tensor(4)"))
    head = counted(written(tmp_path, "x.repeat(int(ids), 1)", "torch.tensor(2)", width=16))
    assert {side.sources["dynamic"].total("flops") for side in (base, head)} == {4 * 12 * 2 * 8 * 8}
    assert "inputs.ids: int64[] 4 → int64[] 2" in refused(base, head)


DECIDED = """
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


class Rows(nn.Linear):
    def __init__(self, device):
        super().__init__(8, 8, bias=False, device=device)
        self.register_buffer("kept", torch.arange(12, device=device) < 7)
        self.gate = nn.Parameter(torch.arange(12.0, device=device))

    def forward(self, x, ids, mask):
        return super().forward(ROWS)


def make():
    return Rows("DEVICE"), (torch.ones(12, 3, 8), torch.tensor(IDS), torch.arange(12) < 5)
"""


def decided(folder: Path, rows: str, ids: str, device: str = "cpu") -> str:
    folder.mkdir(exist_ok=True)
    text = DECIDED.replace("ROWS", rows).replace("IDS", ids).replace("DEVICE", device)
    (folder / "model.py").write_text(text)
    return f"{folder / 'model.py'}:make"


@pytest.mark.parametrize(("device", "rows"), [("cpu", 5 + 4 + 7 + 2), ("meta", 5 + 4 + 12 + 0)])
@pytest.mark.usefixtures("one_process")
def test_a_module_of_a_file_takes_the_way_that_its_own_values_decide(tmp_path: Path, device: str, rows: int) -> None:
    """A mask, a number, a buffer, and a parameter of which 10 and 11 are above 9; on meta these two are ones."""
    each = "torch.cat([x[mask], x[: int(ids)], x[self.kept], x[self.gate > 9]])"
    found = costproof.capture(decided(tmp_path, each, "4", device), sources=["static", "dynamic"])
    for source in ("static", "dynamic"):
        ledger = found.ledger(source)
        assert ledger.stage_total("forward", "flops") == rows * 3 * 2 * 8 * 8
        assert any("with the numbers that it was given, because: " in note for note in ledger.notes)


def test_lengths_of_sequences_are_followed(tmp_path: Path) -> None:
    """torch tags no operator of a packed sequence: 3 + 2 + 1 rows of 8 by 8, then 3 + 3 + 3 ones."""
    rows = "pack_padded_sequence(x[:3], ids, batch_first=True).data"
    found = [counted(decided(tmp_path / ids, rows, ids)) for ids in ("[3, 2, 1]", "[3, 3, 3]")]
    assert [side.sources["dynamic"].total("flops") for side in found] == [6 * 2 * 8 * 8, 9 * 2 * 8 * 8]
    assert "inputs.ids: int64[3] [3, 2, 1] → int64[3] [3, 3, 3]" in refused(*found)


def test_a_model_that_fails_on_its_own_values_says_so(tmp_path: Path) -> None:
    target = decided(tmp_path, "x[self.kept] + x[self.gate > 9]", "0")
    with pytest.raises(Incomplete, match=r"size of tensor a \(7\) must match the size of tensor b \(2\)"):
        costproof.capture(target, sources=["dynamic"])


@pytest.mark.parametrize("run", ["cpu", "meta"])
def test_random_inputs_drawn_after_the_weights_are_the_same_work(tmp_path: Path, run: str) -> None:
    """Integers as rows of a table and a mask without a size of its own; a wider layer draws other ones."""
    rows = "x[ids].masked_fill((ids > 3)[:, None], 0)"
    base, head = (
        counted(written(tmp_path, rows, "torch.randint(0, 8, (6,))", width), **({"run": run} if run == "cpu" else {}))
        for width in (8, 16)
    )
    assert base.workload.arguments == {"x": "float32[12,8]", "ids": "int64[6]"}
    assert not refused(base, head)


@pytest.mark.parametrize("change", [lambda t: t.flip(0), lambda t: t + 1, lambda t: t.double(), torch.logical_not])
def test_each_value_is_in_the_hash(change: object) -> None:
    one = torch.arange(100.0)
    other = change(one)  # type: ignore[operator]
    assert arguments({"x": one}) == arguments({"x": one.clone()})
    assert arguments({"x": one}) != arguments({"x": other})
