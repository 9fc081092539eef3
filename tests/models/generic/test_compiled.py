"""A compiled module is counted as it was written, and the report says what torch.compile makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import costproof
from costproof.ledger.errors import BadInput
from costproof.models.generic.live_module import graphs, is_compiled
from costproof.reports.report import Report


class Broken(nn.Module):
    """Looks at a number in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if y.sum() > 0:
            y = y + 1
        found: torch.Tensor = self.second(y)
        return found


def notes(report: Report) -> list[str]:
    """Of all sources."""
    return [note for ledger in report.capture.ledgers for note in ledger.notes]


def test_one_graph() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    found = costproof.count(torch.compile(module), torch.zeros(2, 4))
    assert "torch.compile makes 1 graph of this call, without a break" in notes(found)
    assert found.capture.ledger("static").total("flops") == 2 * 2 * 4 * 4


def test_a_branch_on_a_number_breaks_the_graph() -> None:
    found = costproof.count(torch.compile(Broken()), torch.ones(2, 4))
    (said,) = {n for n in notes(found) if "torch.compile" in n}
    assert said.startswith("torch.compile makes 2 graphs of this call, 1 break: ")
    line = Broken.forward.__code__.co_firstlineno + 2
    assert said.endswith(f"(line {line} of test_compiled.py)")
    assert found.capture.ledger("dynamic").total("flops") == 2 * 2 * 2 * 4 * 4


def test_a_part_that_is_compiled_and_one_that_is_not() -> None:
    module = Broken()
    assert not is_compiled(module)
    assert not [n for n in notes(costproof.count(module, torch.ones(2, 4))) if "torch.compile" in n]
    module.first.compile()
    assert is_compiled(module)


def test_a_call_that_cannot_be_compiled_says_so() -> None:
    with torch.device("meta"):
        said = graphs(Broken(), {"x": torch.ones(2, 4)})
    assert said.startswith("torch.compile: the graphs of this call are not known: RuntimeError: ")


@pytest.mark.parametrize("times", [1, 2])
def test_what_was_compiled_stays_compiled(times: int) -> None:
    made: list[Any] = []

    def backend(graph: torch.fx.GraphModule, example: Any) -> Any:
        made.append(graph)
        return graph.forward

    module = torch.compile(nn.Linear(5, 3), backend=backend)
    module(torch.ones(2, 5))
    for _ in range(times):
        found = costproof.count(module, torch.ones(2, 5))
        assert "torch.compile makes 1 graph of this call, without a break" in notes(found), (
            "though it was called before"
        )
    module(torch.ones(2, 5))
    assert len(made) == 1


WRAPPED = """
import torch
from torch import nn

def inside():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU())

def compiled():
    return torch.compile(inside()), torch.zeros(2, 4)

def parallel():
    return nn.DataParallel(inside()), {"input": torch.zeros(2, 4)}

def scripted():
    return torch.jit.script(inside()), torch.zeros(2, 4)
"""


@pytest.mark.usefixtures("one_process")
def test_a_factory_may_wrap_its_module(tmp_path: Path) -> None:
    file = tmp_path / "wrapped.py"
    file.write_text(WRAPPED, encoding="utf-8")
    for name in ("compiled", "parallel"):
        found = costproof.report(f"{file}:{name}")
        assert [ledger.total("flops") for ledger in found.capture.ledgers] == [2 * 2 * 4 * 6] * 2
    with pytest.raises(BadInput, match="forward does not declare its arguments") as caught:
        costproof.report(f"{file}:scripted")
    assert "before torch.jit" in str(caught.value)
