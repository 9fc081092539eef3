"""Tables by module: every row by hand, each sum once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import costproof
from costproof.ledger.node import CostNode
from costproof.reports.report import Report
from tests.support.toy import toy, wrong


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def counted() -> Report:
    """Three blocks and a head on five rows."""
    return costproof.count(nn.Sequential(Block(), Block(), Block(), nn.Linear(4, 1)), torch.zeros(5, 4))


def cells(line: str) -> list[str]:
    return [c for c in line.split("  ") if c.strip()]


def test_a_row_for_each_module_with_all_inside_it(counted: Report) -> None:
    lines = [[c.strip() for c in cells(line)] for line in counted.render("modules").splitlines()]
    rows = {line[0]: line[1:] for line in lines if len(line) > 4}
    # A block: 4 x 8 + 8 + 8 x 4 = 72 parameters, 2 x 5 x (4 x 8 + 8 x 4) = 640 FLOP; the head 5 and 2 x 5 x 4 = 40.
    assert rows["[0-2]"] == ["Block", "3", "216", "1.92 kFLOP", "98.0 %", "exact"]  # 1920 / 1960
    assert rows["up"] == ["Linear", "3", "120", "960 FLOP", "49.0 %", "exact"]
    assert rows["down"] == ["Linear", "3", "96", "960 FLOP", "49.0 %", "exact"]
    assert rows["3"] == ["Linear", "5", "40 FLOP", "2.0 %", "exact"]
    assert rows["forward"] == ["221", "1.96 kFLOP", "100.0 %", "exact"]


def test_a_model_of_one_stage_has_each_sum_once_and_its_modules(counted: Report) -> None:
    text = counted.render("summary")
    assert text.count("1,960") == 2  # once for each source
    assert "total" not in text
    assert "[0-2]   Block   3" in text
    assert "total" in Report(toy()).render("summary")
    assert "Module" not in Report(toy()).render("summary")


def test_sources_that_differ_are_both_named() -> None:
    text = Report(wrong()).render("modules")
    assert "unexplained" in text
    assert "analytic" in text


def test_a_frame_of_modules_has_the_flops_of_each_source(counted: Report) -> None:
    table = counted.modules().set_index("module")
    assert list(table["flops_static"].loc[["(root)", "0", "1.up", "3"]]) == [1960, 640, 320, 40]
    assert list(table["flops_dynamic"]) == list(table["flops_static"])
    assert list(table["params_static"].loc[["(root)", "0", "0.up", "3"]]) == [221, 72, 40, 5]


def test_what_is_unknown_is_unknown_above_it(counted: Report) -> None:
    static = counted.capture.by_source["static"]
    nodes = tuple(replace(n, costs={**n.costs, "flops": None}) if _up(n) else n for n in static.nodes)
    ledgers = (replace(static, nodes=nodes), *(x for x in counted.capture.ledgers if x.source != "static"))
    table = Report(replace(counted.capture, ledgers=ledgers)).modules().set_index("module")
    assert list(table["flops_static"].loc[["(root)", "1", "1.up"]].isna()) == [True, True, True]
    assert list(table["flops_static"].loc[["0", "1.down", "3"]]) == [640, 320, 40]


def _up(node: CostNode) -> bool:
    return node.module == "1.up" and "flops" in node.costs
