from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from costproof.ledger.errors import Incomplete
from costproof.ledger.workload import Dtype
from costproof.models.families.deepseek_ocr import native
from costproof.models.pages.page import with_page
from costproof.opgraph.account import account, locator
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.graph import ModuleCall
from costproof.tracers.torchlens_trace import trace_graph
from tests.support.opcalls import counted
from tests.tracers.small import PAGE, model, toy, toy_run


def test_every_operator_has_its_module_and_call() -> None:
    graph = trace_graph(toy_run(toy())).graph
    assert [(op.name, op.module, op.call) for op in graph.ops] == [
        ("linear", "proj", 1),
        ("linear", "proj", 2),
        ("cat", "", 1),
        ("__mul__", "", 1),
    ]
    assert sorted((c.module, c.call) for c in graph.calls) == [("", 1), ("proj", 1), ("proj", 2)]


def test_tensors_come_in_the_order_of_the_signature() -> None:
    first, second, cat, mul = trace_graph(toy_run(toy())).graph.ops
    assert [v.shape for v in first.tensors] == [(2, 5, 6), (6, 6), (6,)]
    assert [v.name for v in first.tensors[1:]] == ["proj.weight", "proj.bias"]
    assert first.tensors[0].origin == "input"
    assert second.tensors[0] == first.outputs[0]
    assert cat.tensors == (first.outputs[0], second.outputs[0])
    assert mul.tensors == (cat.outputs[0], first_param(mul.tensors))
    assert mul.outputs[0].shape == (2, 5, 12)


def first_param(tensors: tuple[object, ...]) -> object:
    return next(t for t in tensors if getattr(t, "origin", "") == "param")


def test_a_parameter_may_be_what_a_layer_works_on() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(9, 6), nn.LayerNorm(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = x @ self.norm(self.table.weight).T
            return result

    with torch.device("meta"):
        normed = Normed().eval()
    norm = next(op for op in trace_graph(toy_run(normed)).graph.ops if op.name == "layer_norm")
    assert [v.name for v in norm.tensors] == ["table.weight", "norm.weight", "norm.bias"]


def test_arguments_by_name_stand_where_their_places_are() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel, self.shift = nn.Parameter(torch.zeros(4, 6)), nn.Parameter(torch.zeros(4))
            self.other_way, self.window = nn.Parameter(torch.zeros(6, 4)), nn.Parameter(torch.zeros(7, 2, 3, 3))
            self.weight = nn.Parameter(torch.zeros(4, 6))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (
                F.linear(input=x, weight=self.kernel, bias=self.shift),
                F.conv2d(input=x, weight=self.window),
                torch.matmul(input=x, other=self.other_way),
                torch.addmm(input=self.shift, mat1=x[0], mat2=self.other_way),
                F.linear(weight=x[0], input=self.weight),
                torch.cat(tensors=[self.kernel, x[0]]),
            )

    with torch.device("meta"):
        named = Named().eval()
    ops = {op.label: op for op in trace_graph(toy_run(named)).graph.ops if op.name != "__getitem__"}
    found = [([v.shape for v in op.tensors], counted(op).flops) for op in ops.values()]
    assert found == [
        ([(2, 5, 6), (4, 6), (4,)], 2 * (2 * 5) * 6 * 4),
        ([(2, 5, 6), (7, 2, 3, 3)], 2 * (7 * 3 * 4) * (2 * 3 * 3)),  # windows of 3 by 3 fit into 5 by 6 3 * 4 times
        ([(2, 5, 6), (6, 4)], 2 * (2 * 5) * 6 * 4),
        ([(4,), (5, 6), (6, 4)], 2 * 5 * 6 * 4),
        ([(4, 6), (5, 6)], 2 * 4 * 6 * 5),
        ([(4, 6), (5, 6)], 0),
    ]
    assert {name: v.shape for name, v in next(iter(ops.values())).names.items()} == {
        "input": (2, 5, 6), "weight": (4, 6), "bias": (4,),
    }  # fmt: skip


def test_the_look_up_names_its_table() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.embed(x.argmax(-1))
            return result

    with torch.device("meta"):
        table = Table().eval()
    look_up = next(op for op in trace_graph(toy_run(table)).graph.ops if op.name == "embedding")
    assert look_up.names["weight"].name == "embed.weight"
    assert look_up.names["indices"].dtype == "int64"


def test_several_outputs_are_one_call() -> None:
    class Parts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, dim=-1)
            return a * b

    chunk, _ = trace_graph(toy_run(Parts())).graph.ops
    assert chunk.name == "chunk"
    assert [v.shape for v in chunk.outputs] == [(2, 5, 3), (2, 5, 3)]


def test_a_model_that_cannot_be_traced_is_incomplete() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("broken on purpose")

    with pytest.raises(Incomplete, match="TorchLens cannot trace") as error:
        trace_graph(toy_run(Broken()))
    assert "broken on purpose" in str(error.value)
    assert gc.isenabled()


def test_calls_are_placed_by_their_outermost_repeated_ancestor() -> None:
    calls = (
        ModuleCall("", 1, None, "Root"),
        ModuleCall("tower", 1, ("", 1), "Tower"),
        ModuleCall("tower.norm", 1, ("tower", 1), "Norm"),
        ModuleCall("tower.norm", 2, ("tower", 1), "Norm"),
        ModuleCall("tower", 2, ("", 1), "Tower"),
        ModuleCall("tower.norm", 3, ("tower", 2), "Norm"),
    )
    place = locator(lambda path, call: (path, f"call {call}"), calls)
    assert [place("tower.norm", i)[1] for i in (1, 2, 3)] == ["call 1", "call 1", "call 2"]
    assert place("", 1) == ("", "call 1")


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.thorough)])
def test_the_whole_page_has_the_flops_that_torch_counts(dtype: Dtype) -> None:
    """Batched experts, because torch's own counter drops grouped GEMMs."""
    from torch.utils.flop_counter import FlopCounterMode

    workload = replace(PAGE, experts="batched_mm", batch=2, dtype=dtype)
    small = model(dtype, "sdpa", "batched_mm")
    run = native.READER.shape_runs(small, workload)[0]
    traced = trace_graph(run)
    found = account(cost_graph(traced.graph), locator(run.locate, traced.graph.calls))
    assert traced.problems == ()
    assert found.unknown == ()
    with FlopCounterMode(display=False) as counter:
        small(**run.kwargs)
    assert sum(n.costs.get("flops") or 0 for n in found.nodes) == counter.get_total_flops()


@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("float16", "float32"))]
)
def test_grouped_experts_are_seen_in_every_dtype(dtype: Dtype) -> None:
    # One sparse layer, two grouped GEMMs; 7 tokens x top 3 = 21 rows.
    run = native.READER.shape_runs(model(dtype), replace(with_page(PAGE, None), dtype=dtype))[0]
    grouped = [op for op in trace_graph(run).graph.ops if "grouped_mm" in op.name]
    assert [op.outputs[0].shape for op in grouped] == [(21, 48), (21, 80)]
    assert {op.outputs[0].dtype for op in grouped} == {dtype}


class Gate(nn.Module):
    """A router that corrects its scores by a buffer and chooses experts from groups."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.empty(8, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x.sigmoid()
        corrected = scores + self.get_buffer("bias").unsqueeze(0)
        groups = corrected.view(-1, 4, 2).sum(dim=-1)
        best = torch.topk(groups, k=2, dim=-1, sorted=False)[1]
        chosen = torch.zeros_like(groups)
        chosen.scatter_(1, best, 1)
        mask = chosen.unsqueeze(-1).expand(-1, 4, 2).reshape(-1, 8)
        experts = torch.topk(corrected.masked_fill(~mask.bool(), 0.0), k=2, dim=-1, sorted=False)[1]
        return x + scores.gather(1, experts).sum(-1, keepdim=True)


def test_a_tensor_at_the_address_of_a_view_of_a_buffer_is_not_the_buffer() -> None:
    """Where a tensor comes to stand is chance: of 60 there was always one, while TorchLens asked once per address."""
    gates = nn.Sequential(*(Gate() for _ in range(60)))
    run = replace(toy_run(gates), kwargs={"input": torch.empty(3, 8, device="meta")})
    graph = trace_graph(run).graph
    assert sum(op.name == "zeros_like" for op in graph.ops) == 60
    assert {v.shape for op in graph.ops for v in op.tensors if v.origin == "buffer"} == {(8,)}


class OwnNorm(nn.LayerNorm):
    """A class whose parent class occurs in the same model."""


def test_a_trace_leaves_no_method_on_the_classes_of_a_model() -> None:
    with torch.device("meta"):
        layers = nn.Sequential(nn.LayerNorm(6), OwnNorm(6))
    trace_graph(replace(toy_run(layers), kwargs={"input": torch.empty(3, 6, device="meta")}))
    assert [cls for cls in (nn.LayerNorm, OwnNorm, nn.Sequential) if "__setattr__" in vars(cls)] == []
