"""Parts that are run by ``forward`` are seen, and the model is left as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from costproof.models.target import ExportJob, Run, SymbolicSize
from costproof.tracers.direct import through_call
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

    def broken() -> None:
        with through_call(model):
            assert "forward" in vars(model.part)
            raise error

    with pytest.raises(error):
        broken()
    assert not any("forward" in vars(m) or m._forward_pre_hooks for m in model.modules())
