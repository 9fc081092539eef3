"""Parts that are run by ``forward`` are seen, and the model is left as it was."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from costproof.models.specs import ExportJob, Run, SymbolicSize
from costproof.patches.modules import forward_redirected
from costproof.tracers.exported import export_graph
from costproof.tracers.hooks import trace_hooks
from costproof.tracers.torchlens_trace import trace_graph
from tests.tracers.small import Wrapper


class Past(nn.Module):
    """Calls one part twice by ``forward`` and once as a module, and hands one part to the other."""

    def __init__(self) -> None:
        super().__init__()
        self.part: nn.Module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 4]."""
        result: torch.Tensor = self.part(self.part.forward(self.part.forward(x)))
        return result


def past() -> tuple[Past, Run]:
    with torch.device("meta"):
        model = Past().eval()
    return model, Run("past", model, {"x": torch.empty(2, 4, device="meta")}, lambda path, call: ("s", "i"))


def test_hooks_and_torchlens_count_the_same() -> None:
    model, run = past()
    counts = {"(root)": 1, "part": 3, "part.0": 3, "part.1": 3}
    assert trace_hooks(run).call_counts == counts
    calls = [c.module or "(root)" for c in trace_graph(run).graph.calls]
    assert {name: calls.count(name) for name in calls} == counts
    assert not any("forward" in vars(m) or m._forward_pre_hooks for m in model.modules())


def test_an_export_attributes_to_the_part() -> None:
    model, run = past()
    job = ExportJob("past", "s", ("i",), Wrapper(model), {"part": ""}, run.kwargs, [SymbolicSize(("x",), 0, "n")])
    graph = export_graph(job).graph
    assert {op.module for op in graph.ops} == {"part.0", "part.1"}
    assert {c.parent[0] for c in graph.calls if c.module == "part.0" and c.parent} == {"part"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_everything_is_taken_off_after_an_error(error: type[BaseException]) -> None:
    model, _ = past()
    before = nn.Sequential.forward

    def broken() -> None:
        with forward_redirected(model):
            assert nn.Sequential.forward is not before
            raise error

    with pytest.raises(error):
        broken()
    assert nn.Sequential.forward is before
    assert not any("forward" in vars(m) or m._forward_pre_hooks for m in model.modules())


class Block(nn.Module):
    """Two parts inside a part."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.shared = shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 4]."""
        result: torch.Tensor = self.shared(self.inner(x))
        return result


class Louder(Block):
    """Calls the forward of the class above it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 4]."""
        return super().forward(x) * 2


class Sharing(nn.Module):
    """Blocks, one of another class, with one part in common: an export then sees stand-ins of all modules."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([Block(shared), Louder(shared)])
        self.head = Past()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 4]."""
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(x)
        return result


def test_a_shared_part_leaves_the_others_their_names() -> None:
    with torch.device("meta"):
        model = Sharing().eval()
    forwards = {cls: cls.forward for cls in (Block, Louder, Past, nn.Sequential, nn.Linear)}
    run = Run("r", model, {"x": torch.empty(2, 4, device="meta")}, lambda path, call: ("s", "i"))
    job = ExportJob("e", "s", ("i",), Wrapper(model), {"part": ""}, run.kwargs, [SymbolicSize(("x",), 0, "n")])
    modules = [op.module for op in export_graph(job).graph.ops]
    # The head calls its part three times, two of them past its __call__.
    head = ["head.part.0", "head.part.1"] * 3
    assert modules == [
        "blocks.0.inner.0", "blocks.0.inner.1", "blocks.0.shared",
        "blocks.1.inner.0", "blocks.1.inner.1", "blocks.0.shared", "blocks.1", *head,
    ]  # fmt: skip
    assert [op.module for op in trace_graph(run).graph.ops] == modules
    assert trace_hooks(run).call_counts["blocks.0.shared"] == 2
    assert {cls: cls.forward for cls in forwards} == forwards
    assert "forward" not in vars(Past) or vars(Past)["forward"] is forwards[Past]


def test_a_forward_of_its_own_stays_in_place() -> None:
    model, run = past()
    own = functools.partial(model.part.forward)
    model.part.forward = own
    counts = {"(root)": 1, "part": 3, "part.0": 3, "part.1": 3}
    assert trace_hooks(run).call_counts == counts
    job = ExportJob("e", "s", ("i",), Wrapper(model), {"part": ""}, run.kwargs, [SymbolicSize(("x",), 0, "n")])
    assert [op.module for op in export_graph(job).graph.ops] == ["part.0", "part.1"] * 3
    assert model.part.forward is own
