"""Stages traced alone: their numbers, their sizes, their errors. That they add up is shown in test_static_dynamic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from costproof.ledger.errors import Incomplete
from costproof.ledger.workload import Workload
from costproof.models.families.deepseek_ocr import native
from costproof.models.pages.page import with_page
from costproof.models.specs import ExportJob
from costproof.opgraph.costed import cost_graph
from costproof.tracers.isolated import isolated_ledger, stage_nodes, trace_stage
from tests.tracers.small import PAGE, SmallTarget, Toy, Wrapper, counted, model, toy


def test_known_numbers() -> None:
    ledger = counted(isolated_ledger, PAGE)
    # S = 17 positions, width 80, vocabulary 96; four steps of one position each.
    heads = {n.invocation: n.costs["flops"] for n in ledger.nodes if n.module == "lm_head" and "flops" in n.costs}
    assert heads == {"prompt": 2 * 17 * 80 * 96, "steps": 4 * 2 * 80 * 96}
    # Two layers, keys and values of 5 heads of 16 in two bytes: 17 positions, then one in each of 4 steps.
    assert ledger.stage_total("prefill", "kv_cache_bytes") == 2 * 2 * 5 * 16 * 2 * 17
    assert ledger.stage_total("decode", "kv_cache_bytes") == 2 * 2 * 5 * 16 * 2 * 4
    # Two views, one call of the tower each.
    assert ledger.total("calls", lambda n: n.module == "model.vision_tower.sam_encoder") == 2
    assert ledger.total("params") == sum(p.numel() for p in model().parameters())


def test_every_invocation_is_run_at_its_own_size() -> None:
    runs = {r.id: r for r in native.READER.stage_runs(model(), replace(PAGE, batch=2, attention="eager"))}
    assert list(runs) == [
        "sam@global", "clip@global", "projector@global", "sam@crops", "clip@crops", "projector@crops",
        "glue", "prefill", "step@17", "step@18", "step@20",
    ]  # fmt: skip
    shapes = {name: {k: shape(v) for k, v in run.args.items()} for name, run in runs.items()}
    assert shapes["sam@global"] == {"x": (2, 3, 128, 128)}
    assert shapes["sam@crops"] == {"x": (4, 3, 64, 64)}
    assert shapes["projector@crops"] == {"features": (4, 64, 1, 1), "hidden": (4, 2, 64)}
    assert shapes["prefill"] == {"embeds": (2, 17, 80), "mask": (2, 1, 17, 17)}
    assert shapes["step@20"]["mask"] == (2, 1, 1, 21)
    assert shapes["step@20"]["keys"] == [(2, 5, 20, 16)] * 2
    assert [r.context for r in runs.values()][-4:] == [None, 17, 18, 20]


def shape(value: Any) -> Any:
    return [shape(v) for v in value] if isinstance(value, list) else tuple(value.shape)


@pytest.mark.thorough
def test_one_of_many_steps_says_nothing_about_a_bent_line() -> None:
    class Bent(SmallTarget):
        """The last step is traced at another context than it says."""

        def stage_runs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
            runs = native.READER.stage_runs(model, workload)
            last = runs[-1]
            assert last.context is not None
            return (*runs[:-1], replace(last, context=last.context + 1))

    ledger = isolated_ledger(Bent(), with_page(PAGE, None, new_tokens=4))
    assert ledger.stage_total("decode", "flops") is None
    assert any("not a straight line" in note for note in ledger.notes)


def stage_run(module: nn.Module, prefix: dict[str, str], own_calls: frozenset[str] = frozenset()) -> ExportJob:
    return ExportJob(
        "toy", "stage", ("once",), module, prefix, {"x": torch.empty(2, 5, 6, device="meta")}, own_calls=own_calls
    )


def test_paths_start_at_the_root_of_the_model() -> None:
    run = stage_run(Wrapper(toy()), {"part": "a.b"})
    traced = trace_stage(run)
    assert [(op.name, op.module, op.call) for op in traced.graph.ops] == [
        ("linear", "a.b.proj", 1),
        ("linear", "a.b.proj", 2),
        ("cat", "a.b", 1),
        ("__mul__", "a.b", 1),
    ]
    assert {v.name for op in traced.graph.ops for v in op.tensors if v.origin == "param"} == {
        "a.b.proj.weight", "a.b.proj.bias", "a.b.scale",
    }  # fmt: skip
    # The wrapper's own call is no call of the model, and nobody's parent.
    calls = {(c.module, c.call, c.parent) for c in traced.graph.calls}
    assert calls == {
        ("a.b", 1, None), ("a.b.proj", 1, ("a.b", 1)), ("a.b.proj", 2, ("a.b", 1)),
    }  # fmt: skip
    nodes, unknown = stage_nodes(run, traced, cost_graph(traced.graph))
    assert unknown == ()
    # Two calls on 10 rows of 6 by 6.
    assert {n.id: n.costs["flops"] for n in nodes if "flops" in n.costs} == {
        "stage[once]/a.b.proj:linear": 2 * 2 * 10 * 6 * 6
    }


def test_a_cut_vouches_for_its_own_calls_alone() -> None:
    run = stage_run(Wrapper(toy()), {"part": ""}, frozenset({"proj"}))
    traced = trace_stage(run)
    nodes, _ = stage_nodes(run, traced, cost_graph(traced.graph))
    assert {n.module: n.costs["calls"] for n in nodes if "calls" in n.costs} == {"proj": 2}


class Tied(nn.Module):
    """Looks up rows of a table that another part of the stage reads whole, and hands them to that part."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 6, device="meta")

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.table(ids) + x
        return result


# The 5 rows of 6 floats that there are, though 8 are looked up; 8 rows come in and 8 go out. Ids are no activations.
@pytest.mark.parametrize(("inside", "floor"), [
    ((), 5 * 6 * 4 + 2 * 8 * 6 * 4),
    (("t.table.weight",), 2 * 8 * 6 * 4),
    (("x",), 5 * 6 * 4 + 8 * 6 * 4),
    (("t.table.weight", "return.0"), 8 * 6 * 4),
    (("t.table.weight", "x", "return.0"), 0),
])  # fmt: skip
def test_bytes_between_two_parts_of_a_stage_are_not_in_the_floor(inside: tuple[str, ...], floor: int) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Tied()

        def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.part(ids, x)
            return result

    args = {"ids": torch.zeros(8, dtype=torch.int64, device="meta"), "x": torch.empty(8, 6, device="meta")}
    run = replace(stage_run(Holder(), {"part": "t"}), args=args, inside=frozenset(inside))
    traced = trace_stage(run)
    nodes, _ = stage_nodes(run, traced, cost_graph(traced.graph))
    assert sum(n.costs.get("floor_bytes") or 0 for n in nodes) == floor


class Computing(nn.Module):
    """A wrapper that does more than it may."""

    def __init__(self, part: Toy) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.part(x) * 2
        return result


def test_a_wrapper_that_computes_is_an_error() -> None:
    run = stage_run(Computing(toy()), {"part": ""})
    traced = trace_stage(run)
    with pytest.raises(Incomplete, match="outside all counted modules"):
        stage_nodes(run, traced, cost_graph(traced.graph))


def test_a_stage_that_cannot_run_is_named() -> None:
    run = replace(stage_run(Wrapper(toy()), {"part": ""}), args={"x": torch.empty(2, 5, 7, device="meta")})
    with pytest.raises(Incomplete) as error:
        trace_stage(run)
    assert error.value.where == "stage run toy"


def test_the_model_is_left_as_it_was() -> None:
    small = model()
    before = [(name, dict(vars(m)["_forward_hooks"]), "forward" in vars(m)) for name, m in small.named_modules()]
    isolated_ledger(SmallTarget(), with_page(PAGE, None, new_tokens=1))
    after = [(name, dict(vars(m)["_forward_hooks"]), "forward" in vars(m)) for name, m in small.named_modules()]
    assert after == before
