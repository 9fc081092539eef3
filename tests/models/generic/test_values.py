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
from costproof.ledger.baseline import Baseline, baseline_of
from costproof.models.generic.described import arguments

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
    return baseline_of(costproof.capture(target, sources=["dynamic"], **options))


def refused(base: Baseline, head: Baseline) -> str:
    found = judge(base, head, POLICY, date(2026, 1, 1))
    assert found.exit_code == (3 if found.incomplete else 0)
    return " ".join(found.incomplete)


@pytest.mark.parametrize("case", FOLLOWS)
def test_other_values_that_a_run_follows_are_other_work(tmp_path: Path, case: str) -> None:
    rows, ids = FOLLOWS[case]
    base, head = (counted(written(tmp_path, rows, ids.format(n)), run="cpu") for n in (5, 3))
    assert "inputs.ids: " in refused(base, head)


def test_values_that_a_run_on_shapes_replaces_are_told_where_it_follows_them(tmp_path: Path) -> None:
    """A loop of 4 products, then one of 2 of twice the width: both runs have ones, so one round each."""
    base = counted(written(tmp_path, "x.repeat(int(ids), 1)", "torch.tensor(4)"))
    head = counted(written(tmp_path, "x.repeat(int(ids), 1)", "torch.tensor(2)", width=16))
    assert "inputs.ids: int64[] 4 → int64[] 2" in refused(base, head)


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
