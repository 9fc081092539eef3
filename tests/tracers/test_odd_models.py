"""The callgraph of ten odd shapes, drawn by hand from their code before anything traced it.

(root)
├─ twice ── fc, fc                          1  shared, called twice: fc feeds fc
├─ one ── core                              2  core hangs under both arms; its path is the first
├─ other ── core (of one)
├─ recursive ─┬─ recursive ─┬─ recursive ── fc
│             │             └─ fc           3  three calls, two of them by itself
│             └─ fc
├─ out_of_order ── steps.2, .0, .1          4  each step feeds the later ones over x; .3 never runs
├─ nested ── table.rows.0 ── 0, 1           5  the dictionary and the list are never called
├─ split ── fc                              6  gives a dataclass
├─ catching ─┬─ bad ── fc                   7  bad raises after fc: its result reaches nobody
│            └─ good
├─ functional                               8  linear and softmax of its own
├─ compiled                                 9  one module, with its wrapper
└─ tied ── enter, exit                     10  exit.weight is enter.weight

data: twice → one, other → recursive → out_of_order → nested → split → (cat) → catching → functional
      → compiled → tied
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from costproof.ledger.callgraph import CallGraph, PlainAt, TensorAt
from costproof.opgraph.costed import cost_graph, data_edges
from costproof.tracers.callgraph import call_graph
from costproof.tracers.dynamic import compare_tracers
from costproof.tracers.hooks import trace_hooks
from costproof.tracers.torchlens_trace import trace_graph
from tests.tracers.odd_models import odd, odd_run

CALLS = {
    "(root)": 1,
    "twice": 1, "twice.fc": 2,
    "one": 1, "one.core": 2, "other": 1,
    "recursive": 3, "recursive.fc": 3,
    "out_of_order": 1, "out_of_order.steps.0": 1, "out_of_order.steps.1": 1, "out_of_order.steps.2": 1,
    "nested": 1, "nested.table.rows.0": 1, "nested.table.rows.0.0": 1, "nested.table.rows.0.1": 1,
    "split": 1, "split.fc": 1,
    "catching": 1, "catching.bad": 1, "catching.bad.fc": 1, "catching.good": 1,
    "functional": 1, "compiled": 1,
    "tied": 1, "tied.enter": 1, "tied.exit": 1,
}  # fmt: skip
EDGES = {
    "(root)->twice": 1, "(root)->one": 1, "(root)->other": 1, "(root)->recursive": 1, "(root)->out_of_order": 1,
    "(root)->nested": 1, "(root)->split": 1, "(root)->catching": 1, "(root)->functional": 1, "(root)->compiled": 1,
    "(root)->tied": 1,
    "twice->twice.fc": 2,
    "one->one.core": 1, "other->one.core": 1,
    "recursive->recursive": 2, "recursive->recursive.fc": 3,
    "out_of_order->out_of_order.steps.0": 1, "out_of_order->out_of_order.steps.1": 1,
    "out_of_order->out_of_order.steps.2": 1,
    "nested->nested.table.rows.0": 1,
    "nested.table.rows.0->nested.table.rows.0.0": 1, "nested.table.rows.0->nested.table.rows.0.1": 1,
    "split->split.fc": 1,
    "catching->catching.bad": 1, "catching.bad->catching.bad.fc": 1, "catching->catching.good": 1,
    "tied->tied.enter": 1, "tied->tied.exit": 1,
}  # fmt: skip
DATA = {
    "twice->one": 1, "twice->other": 1, "one->recursive": 1, "other->recursive": 1, "recursive->out_of_order": 1,
    "out_of_order->nested": 1, "nested->split": 1, "split->catching": 1, "catching->functional": 1,
    "functional->compiled": 1, "compiled->tied": 1,
    "twice.fc->twice.fc": 1,
    "recursive->recursive.fc": 2,
    "out_of_order.steps.2->out_of_order.steps.0": 1, "out_of_order.steps.0->out_of_order.steps.1": 1,
    "out_of_order.steps.2->out_of_order.steps.1": 1,
    "nested.table.rows.0.0->nested.table.rows.0.1": 1,
    "tied.enter->tied.exit": 1,
}  # fmt: skip
OPERATORS = {
    "(root)": {"__add__": 1, "cat": 1},
    "twice": {"relu": 1}, "twice.fc": {"linear": 2},
    "one": {"__add__": 1}, "other": {"__add__": 1}, "one.core": {"linear": 2},
    "recursive.fc": {"linear": 3},
    "out_of_order": {"__add__": 3},
    "out_of_order.steps.0": {"linear": 1}, "out_of_order.steps.1": {"linear": 1}, "out_of_order.steps.2": {"linear": 1},
    "nested.table.rows.0.0": {"linear": 1}, "nested.table.rows.0.1": {"gelu": 1},
    "split": {"chunk": 1}, "split.fc": {"linear": 1},
    "catching.bad.fc": {"linear": 1}, "catching.good": {"linear": 1},
    "functional": {"linear": 1, "softmax": 1},
    "compiled": {"linear": 1},
    "tied.enter": {"linear": 1}, "tied.exit": {"linear": 1},
}  # fmt: skip


@pytest.fixture(scope="module", params=["meta", "cpu"])
def graph(request: pytest.FixtureRequest) -> CallGraph:
    run = odd_run(odd(request.param), request.param)
    traced, hooked = trace_graph(run), trace_hooks(run)
    operators: dict[str, Counter[str]] = {}
    for op in traced.graph.ops:
        operators.setdefault(op.module, Counter())[op.name] += 1
    assert compare_tracers(traced, hooked)[2] == [], "TorchLens and hooks disagree"
    return call_graph((hooked,), operators, data_edges(cost_graph(traced.graph)))


def test_calls_and_edges_are_those_of_the_drawing(graph: CallGraph) -> None:
    assert graph.call_counts == CALLS
    assert graph.edges == EDGES


def test_data_flows_as_drawn(graph: CallGraph) -> None:
    assert graph.data_edges == DATA


def test_operators_belong_to_the_innermost_module(graph: CallGraph) -> None:
    assert graph.op_call_counts == OPERATORS


def test_containers_are_children_that_are_never_called(graph: CallGraph) -> None:
    assert graph.module_children["nested"] == ("nested.table",)
    assert graph.module_children["nested.table"] == ("nested.table.rows",)
    assert graph.module_types["nested.table.rows"] == "ModuleList"
    assert graph.module_children["out_of_order.steps"] == tuple(f"out_of_order.steps.{i}" for i in range(4))
    assert not {"nested.table", "nested.table.rows", "out_of_order.steps.3"} & graph.call_counts.keys()


def test_what_is_shared_has_one_name(graph: CallGraph) -> None:
    assert graph.module_aliases == {"other.core": "one.core"}
    assert graph.module_children["other"] == ("one.core",)
    assert graph.tied_parameters == {"tied.exit.weight": "tied.enter.weight"}
    assert graph.module_types["compiled"] == "Linear"
    assert not [path for path in graph.module_types if "_orig_mod" in path]


def test_a_module_that_raises_leaves_and_says_so(graph: CallGraph) -> None:
    inside = [(e.event, e.name, e.data) for e in graph.events if e.name.startswith("catching")]
    assert inside == [
        ("enter", "catching", {"call": 1}),
        ("enter", "catching.bad", {"call": 1}),
        ("enter", "catching.bad.fc", {"call": 1}),
        ("exit", "catching.bad.fc", {"call": 1}),
        ("exit", "catching.bad", {"call": 1, "raised": "ValueError"}),
        ("enter", "catching.good", {"call": 1}),
        ("exit", "catching.good", {"call": 1}),
        ("exit", "catching", {"call": 1}),
    ]
    assert "catching.bad" not in graph.output_metadata


def test_recursion_nests_in_the_events(graph: CallGraph) -> None:
    inside = [(e.event, e.data["call"]) for e in graph.events if e.name == "recursive"]
    assert inside == [("enter", 1), ("enter", 2), ("enter", 3), ("exit", 3), ("exit", 2), ("exit", 1)]
    assert [v for v in graph.input_metadata["recursive"] if isinstance(v, PlainAt)] == []


def test_a_dataclass_shows_its_fields(graph: CallGraph) -> None:
    assert graph.output_metadata["split"] == (
        TensorAt((2, 5, 2), "float32", "output.left"),
        TensorAt((2, 5, 2), "float32", "output.right"),
        PlainAt("int", 2, "output.count"),
    )


def test_compiled_code_runs_compiled_again_after_the_trace() -> None:
    model = odd("cpu")
    x = torch.ones(2, 5, 4)
    with torch.no_grad():
        before = model(x)
        trace_hooks(odd_run(model, "cpu"))
        assert torch.equal(model(x), before)
