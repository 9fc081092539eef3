"""What a view shows, and the numbers that its nodes carry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costproof.ledger.callgraph import Event
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.metrics import TRAFFIC
from costproof.ledger.node import CostNode, Ledger, UnknownOp
from costproof.ledger.workload import Invocation, TensorSpec
from costproof.reports.graph.picture import GraphView
from costproof.reports.graph.view import GraphChoice, graph_view
from tests.reports.drawing import callgraph, captured
from tests.support.toy import toy

# Two blocks of norm -> linear -> norm -> linear with 10 and 20 parameters in the linears, then a head.
_BLOCKS = {f"net.b.{i}": "Block" for i in range(2)}
_INSIDE = ("n1", "l1", "n2", "l2")
GRAPH = callgraph(
    {
        "net": "Stack",
        **_BLOCKS,
        **{f"{b}.{n}": "Norm" if n[0] == "n" else "Linear" for b in _BLOCKS for n in _INSIDE},
        "head": "Linear",
    },
    (("net", tuple((b, tuple(f"{b}.{n}" for n in _INSIDE)) for b in _BLOCKS)), "head"),
    (
        "net->head",
        "net.b.0->net.b.1",
        *(f"{b}.{x}->{b}.{y}" for b in _BLOCKS for x, y in (("n1", "l1"), ("l1", "n2"), ("n2", "l2"))),
    ),
    settings={f"{b}.{n}": {"out_features": k} for b in _BLOCKS for n, k in (("l1", 1), ("l2", 2))},
    shapes={"net.b.0": ((1, 4), (1, 8)), "net.b.1": ((9, 9), (9, 9))},
)


def _capture(**changes: object) -> Capture:
    rows = [(f"{b}.{n}", p, f) for b in _BLOCKS for n, p, f in (("l1", 10, 100), ("l2", 20, 200), ("n1", 1, 0))]
    nodes = [CostNode("sam", "", m, "", {"params": p}) for m, p, _ in rows]
    nodes += [CostNode("sam", "global", m, "linear", {"flops": f}) for m, _, f in rows if f]
    nodes += [
        CostNode("decode", "", "head", "", {"params": 5}),
        CostNode("decode", "s", "head", "linear", {"flops": 7}),
    ]
    ledger = Ledger("dynamic", tuple(nodes), ("params", "flops"), ("sam", "decode"))
    made = replace(captured(GRAPH), ledgers=(ledger,))
    return replace(made, **changes)  # type: ignore[arg-type]


def _patterns(view: GraphView) -> list[str]:
    return [n.pattern for n in view.nodes]


def _flow(view: GraphView) -> list[str]:
    name = {n.id: n.pattern.rpartition(".")[2] for n in view.nodes}
    return [f"{name[e.source]} -> {name[e.target]}" for e in view.flow]


def test_numbers_of_a_family_are_sums_over_all_inside() -> None:
    nodes = {n.pattern: n for n in graph_view(_capture()).nodes}
    # 2 blocks x (10 + 20 + 1) parameters, 2 x (100 + 200) FLOPs; the head has 5 and 7 more
    assert (nodes["net.b.[0-1]"].params, nodes["net.b.[0-1]"].flops) == (62, 600)
    assert (nodes["net"].params, nodes["(root)"].params, nodes["(root)"].flops) == (62, 67, 607)
    assert (nodes["net.b.[0-1].l2"].params, nodes["net.b.[0-1].l2"].calls) == (40, 2)
    assert nodes["net.b.[0-1]"].inputs == ("[1, 4] float32",)


def test_bytes_moved_are_those_of_all_five_ways() -> None:
    weights, read, written, kept, grown = TRAFFIC
    moving = [
        CostNode("sam", "global", "net.b.0.l1", "", {weights: 40, read: 16, written: 8}),
        CostNode("sam", "global", "net.b.1.l1", "", {weights: 40, read: 16, written: 8}),
        CostNode("decode", "s", "head", "", {kept: 500, grown: 3}),
    ]
    ledger = Ledger("static", tuple(moving), TRAFFIC, ("sam", "decode"))
    made = _capture()
    nodes = {n.pattern: n for n in graph_view(replace(made, ledgers=(*made.ledgers, ledger))).nodes}
    # 2 layers x (40 + 16 + 8); the head 500 + 3 more.
    assert [nodes[p].moved for p in ("net.b.[0-1].l1", "net.b.[0-1]", "head", "(root)")] == [128, 128, 503, 631]
    assert nodes["net.b.[0-1].l1"].figures == "2 calls · 20 params · 200 FLOP (32.9 %) · 128 B moved"
    assert (nodes["net.b.[0-1].l2"].moved, nodes["net.b.[0-1].l2"].traffic) == (0, [])
    # A source that lacks one of the ways does not know the sum.
    part = replace(ledger, metrics=TRAFFIC[:4])
    assert {n.moved for n in graph_view(replace(made, ledgers=(*made.ledgers, part))).nodes} == {None}
    odd = replace(ledger, unknown_ops=(UnknownOp("odd", "sam", "net.b.0.l1", 1, None, "no rule"),))
    found = {n.pattern: n.moved for n in graph_view(replace(made, ledgers=(odd,))).nodes}
    assert (found["net.b.[0-1].l1"], found["(root)"], found["head"]) == (None, None, 503)
    assert nodes["net.b.[0-1]"].outputs == ("[1, 8] float32",)


def test_depth_cuts_and_says_so() -> None:
    view = graph_view(_capture(), GraphChoice(depth=2))
    assert _patterns(view) == ["(root)", "net", "head", "net.b.[0-1]"]
    assert view.nodes[-1].hidden == 4
    assert view.notes == ("4 families of modules lie deeper than depth 2 and are left out",)
    assert graph_view(_capture(), GraphChoice(depth=3)).notes == ()


def test_a_stage_shows_its_modules_and_its_costs_alone() -> None:
    view = graph_view(_capture(), GraphChoice(stage="decode"))
    assert [(n.pattern, n.params, n.flops) for n in view.nodes] == [("head", 5, 7)]


def test_a_prefix_starts_anew() -> None:
    view = graph_view(_capture(), GraphChoice(prefix="net.b.1"))
    assert _patterns(view) == ["net.b.1", *(f"net.b.1.{n}" for n in _INSIDE)]
    assert (view.nodes[0].depth, view.nodes[0].calls, view.nodes[0].params) == (0, 1, 31)
    assert _flow(view) == ["n1 -> l1", "l1 -> n2", "n2 -> l2"]


def test_heavy_leaves_out_norms_and_keeps_the_way_of_the_data() -> None:
    view = graph_view(_capture(), GraphChoice(heavy=True))
    assert _patterns(view) == ["(root)", "net", "head", "net.b.[0-1]", "net.b.[0-1].l1", "net.b.[0-1].l2"]
    assert _flow(view) == ["net -> head", "l1 -> l2"]
    assert _flow(graph_view(_capture())) == ["net -> head", "n1 -> l1", "l1 -> n2", "n2 -> l2"]


def test_unknown_is_not_zero() -> None:
    ledger = _capture().ledgers[0]
    odd = UnknownOp("odd", "sam", "net.b.0.l1", 1, None, "no rule")
    nodes = {n.pattern: n for n in graph_view(_capture(ledgers=(replace(ledger, unknown_ops=(odd,)),))).nodes}
    assert (nodes["net.b.[0-1]"].flops, nodes["(root)"].flops, nodes["head"].flops) == (None, None, 7)
    without = graph_view(_capture(ledgers=(replace(ledger, metrics=("flops",)),)))
    assert {n.params for n in without.nodes} == {None}


def test_ids_do_not_depend_on_what_is_shown() -> None:
    whole = {n.pattern: n.id for n in graph_view(_capture()).nodes}
    for choice in (GraphChoice(depth=1), GraphChoice(heavy=True), GraphChoice(stage="decode")):
        assert all(whole[n.pattern] == n.id for n in graph_view(_capture(), choice).nodes)


def test_images_and_crops_of_the_events_are_checked() -> None:
    mark = Event(0, "mark", "vision_inputs", {"images": 1, "crops": (3,)})
    calls = (
        Invocation("sam", "global", 1, {}, (TensorSpec((1, 3, 64, 64), "bfloat16"),)),
        Invocation("sam", "crops", 1, {}, (TensorSpec((3, 3, 32, 32), "bfloat16"),)),
    )
    good = _capture(callgraph=replace(GRAPH, events=(mark, *GRAPH.events)), invocations=calls)
    assert graph_view(good).notes == ()
    bad = replace(
        good, callgraph=replace(GRAPH, events=(replace(mark, data={"images": 1, "crops": (4,)}), *GRAPH.events))
    )
    assert graph_view(bad).notes == ("contradiction: sam was counted for 3 crops, the events tell of 4",)


def test_a_link_holds_the_path_of_the_module() -> None:
    view = graph_view(_capture(), GraphChoice(link="https://x.y/{class}#{path}"))
    assert {n.pattern: n.link for n in view.nodes}["net.b.[0-1]"] == "https://x.y/Block#net.b.0"


@pytest.mark.parametrize(
    ("choice", "what"),
    [
        (GraphChoice(depth=-1), "a depth cannot be negative"),
        (GraphChoice(stage="samm"), "no such stage"),
        (GraphChoice(prefix="net.c"), "no such module"),
        (GraphChoice(stage="clip"), "no module is left to show"),
        (GraphChoice(link="javascript:alert(1)"), "this address cannot be linked to"),
        (GraphChoice(link="https://a b"), "this address cannot be linked to"),
        (GraphChoice(link=" data:text/html,x"), "this address cannot be linked to"),
    ],
)
def test_what_cannot_be_shown_is_refused(choice: GraphChoice, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        graph_view(_capture(), choice)


def test_a_capture_without_a_run_has_no_graph() -> None:
    with pytest.raises(Incomplete, match="no callgraph"):
        graph_view(replace(toy(), callgraph=None))


EXPERTS = callgraph(
    {
        "moe": "MoE",
        "moe.list": "ModuleList",
        **{f"moe.list.{i}": "Expert" for i in range(4)},
        **{f"moe.list.{i}.up": "Linear" for i in range(4)},
    },
    (("moe", tuple((f"moe.list.{i}", (f"moe.list.{i}.up",)) for i in range(3))),),
)
"""Three of four experts ran. The list that holds them never runs, and their costs are on it."""


def _experts(**changes: object) -> Capture:
    nodes = (
        CostNode("decode", "", "moe.list", "", {"params": 40}),
        CostNode("decode", "s", "moe.list", "linear", {"flops": 300}),
        *(CostNode("decode", "s", f"moe.list.{i}", "", {"calls": 128}) for i in range(3)),
        CostNode("decode", "s", "moe", "", {"calls": 128}),
    )
    ledger = Ledger("dynamic", nodes, ("params", "flops", "calls"), ("sam", "decode"))
    return replace(toy(), callgraph=EXPERTS, ledgers=(ledger,), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("heavy", [False, True])
def test_a_list_gives_what_it_bears_to_all_that_it_holds(heavy: bool) -> None:
    nodes = {n.pattern: n for n in graph_view(_experts(), GraphChoice(heavy=heavy)).nodes}
    family = nodes["moe.list.[0-3]"]
    assert (family.params, family.flops, len(family.instances), family.not_executed) == (40, 300, 4, 1)
    assert (nodes["moe"].params, nodes["moe"].flops) == (40, 300)


def test_nobody_knows_which_part_of_a_list_one_module_has() -> None:
    alone = graph_view(_experts(), GraphChoice(prefix="moe.list.1")).nodes
    assert [(n.pattern, n.params, n.flops) for n in alone] == [
        ("moe.list.1", None, None), ("moe.list.1.up", None, None),
    ]  # fmt: skip


def test_calls_are_those_of_the_workload_as_the_costs_are() -> None:
    """One step was traced, the costs are of 128: so are the calls, as far as a source has them."""
    events = (*EXPERTS.events, Event(99, "mark", "decode_step", {"step": 1}))
    made = _experts(workload=replace(toy().workload, new_tokens=128))
    view = graph_view(replace(made, callgraph=replace(EXPERTS, events=events)))
    calls = {n.pattern: n.calls for n in view.nodes}
    assert (calls["moe"], calls["moe.list.[0-3]"], calls["(root)"]) == (128, 3 * 128, 1)
    assert view.notes[0].startswith("there is no data flow")
    assert view.notes[1] == "counts beside arrows are of 1 traced decode steps, all others of 128"
