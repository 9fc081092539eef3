"""Operators keep the order in which they run, from either source up to the costs: liveness will be read off it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from costproof.models.specs import ExportJob, SymbolicSize
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.graph import Graph
from costproof.opgraph.rules.names import canonical
from costproof.tracers.exported import export_graph
from costproof.tracers.torchlens_trace import trace_forward


class Branches(nn.Module):
    """Two branches of operators that nothing orders but the code, written in turns, and a value used late."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        late = x.exp()
        left = x * self.scale
        right = x.neg()
        left = left.relu()
        right = right.mm(right.t())
        left = left.sigmoid()
        return right.sum() + left + late


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(canonical(str(func)))
        return func(*args, **(kwargs or {}))


RAN = ["exp", "mul", "neg", "relu", "t", "mm", "sigmoid", "sum", "add", "add"]


def names(graph: Graph) -> list[str]:
    return [canonical(op.name) for op in cost_graph(graph).graph.ops]


def test_the_order_of_a_run_is_that_of_both_sources() -> None:
    model, x = Branches(), torch.ones(3, 4)
    with torch.no_grad(), Dispatched() as run:
        model(x)
    assert run.names == RAN
    meta = {"x": torch.empty(3, 4, device="meta")}
    job = ExportJob("b", "s", ("once",), model.to("meta"), {"": ""}, meta, [SymbolicSize(("x",), 0, "n")])
    assert names(export_graph(job).graph) == RAN
    assert names(trace_forward(model, meta, "branches").graph) == RAN


def test_costs_stand_in_the_same_order() -> None:
    """Of those that compute: [3, 4] elements by 1, and a product of [3, 4] and [4, 3]."""
    meta = {"x": torch.empty(3, 4, device="meta")}
    found = cost_graph(trace_forward(Branches().to("meta"), meta, "branches").graph)
    flops = [(canonical(op.name), cost.flops) for op, cost in zip(found.graph.ops, found.costs, strict=True)]  # type: ignore[union-attr]
    assert [f for f in flops if f[1]] == [("mm", 2 * 3 * 3 * 4)]
    assert [name for name, _ in flops] == RAN
