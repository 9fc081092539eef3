"""Modules that ``torch.fx`` or ``torch.export`` wrote: counted as if their code had been written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import costproof
from costproof.ledger.capture import Capture
from costproof.snapshots.described import fingerprint

X = torch.ones(4, 16)


class Scores(nn.Module):
    """One product of 2 x 4 x 16 x 16 FLOPs twice, and one of 2 x 4 x 16 x 4 on the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) @ self.a(x).T  # type: ignore[no-any-return]


class Outer(nn.Module):
    """The inner module twice under two names, and one product of 2 x 4 x 4 x 4 FLOPs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = self.again = inner
        self.o = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o(self.inner(x)) + self.again(x)  # type: ignore[no-any-return]


def traced() -> nn.Module:
    return torch.fx.symbolic_trace(Scores())


def exported() -> nn.Module:
    return torch.export.export(Scores().eval(), (X,)).module()


def work(capture: Capture, source: str) -> dict[str, int | None]:
    """FLOPs by module."""
    found: dict[str, int | None] = {}
    for node in capture.ledger(source).nodes:
        if (flops := node.costs.get("flops")) is not None and flops:
            found[node.module] = (found.get(node.module) or 0) + flops
    return found


FLOPS = {"": 2 * 4 * 16 * 4, "a": 2 * 2 * 4 * 16 * 16}


@pytest.mark.parametrize("made", [traced, exported])
def test_work_of_the_root(made: Callable[[], nn.Module]) -> None:
    report = costproof.count(made(), X)
    assert report.verdict == "exact"
    # An exported program has no modules left but those that hold its parameters.
    expected = FLOPS if made is traced else {"": sum(FLOPS.values())}
    assert [work(report.capture, source) for source in ("static", "dynamic")] == [expected] * 2


@pytest.mark.parametrize("made", [traced, exported])
def test_work_inside_another_module_is_on_its_own_path(made: Callable[[], nn.Module]) -> None:
    module = Outer(made())
    report = costproof.count(module, X)
    assert report.verdict == "exact"
    inner = {"inner": FLOPS[""], "inner.a": FLOPS["a"]} if made is traced else {"inner": sum(FLOPS.values())}
    expected = {"o": 2 * 4 * 4 * 4, **{path: 2 * flops for path, flops in inner.items()}}
    assert [work(report.capture, source) for source in ("static", "dynamic")] == [expected] * 2
    assert isinstance(module.inner, torch.fx.GraphModule), "the user's module is as it was"
    assert module(X).shape == (4, 4)


def test_a_factory_of_an_exported_program_that_runs_with_numbers(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import torch\n"
        "def make():\n"
        "    x = torch.ones(4, 16)\n"
        "    return torch.export.export(torch.nn.Linear(16, 16).eval(), (x,)).module(), (x,)\n"
    )
    capture = costproof.capture(f"{tmp_path}/program.py:make", run="cpu", sources=["dynamic"])
    assert capture.ledger("dynamic").stage_total("forward", "flops") == 2 * 4 * 16 * 16


def test_two_graphs_of_the_same_modules_have_two_names() -> None:
    class Other(Scores):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) @ x

    first, second = (torch.fx.symbolic_trace(kind()) for kind in (Scores, Other))
    second.__class__.__name__ = first.__class__.__name__
    assert fingerprint(first, {}) != fingerprint(second, {})
