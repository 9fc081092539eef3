"""Odd little models whose families a person drew first, from the rules alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costproof.ledger.callgraph import CallGraph, ConstructorValue, Event
from costproof.reports.graph.grouping import group
from costproof.reports.graph.view import contradictions
from tests.reports.drawing import callgraph, drawn, fed

SINGLE = (callgraph({}, ()), ["Net @ (root) x1"])

CHAIN = (
    callgraph(
        {"layers": "ModuleList", "layers.0": "Block", "layers.1": "Block", "layers.2": "Block", "head": "Linear"},
        ("layers.0", "layers.1", "layers.2", "head"),
        ("layers.0->layers.1", "layers.1->layers.2", "layers.2->head"),
    ),
    ["Net @ (root) x1", "  for 3 Block @ layers.[0-2] x3", "  Linear @ head x1"],
)

# x + f0(x), then + f1, then + f2: every block feeds all later ones through the caller's additions.
RESIDUAL = (
    callgraph(
        {"f": "ModuleList", "f.0": "Linear", "f.1": "Linear", "f.2": "Linear"},
        ("f.0", "f.1", "f.2"),
        ("f.0->f.1", "f.0->f.2", "f.1->f.2"),
    ),
    ["Net @ (root) x1", "  for 3 Linear @ f.[0-2] x3"],
)

# w w g w w g, and g feeds the next w: two chains that run into each other.
ALTERNATING = (
    callgraph(
        {f"b.{i}": "Block" for i in range(6)},
        tuple(f"b.{i}" for i in range(6)),
        tuple(f"b.{i}->b.{i + 1}" for i in range(5)),
        settings={f"b.{i}": {"window_size": 0 if i in (2, 5) else 14} for i in range(6)},
    ),
    ["Net @ (root) x1", "  for 4 Block @ b.[0-1,3-4] x4", "  for 2 Block @ b.[2,5] x2"],
)

# The first layer has a dense mlp, the others experts: alike in class and name, not in what is inside.
DENSE_FIRST = (
    callgraph(
        {
            **{f"layers.{i}": "Layer" for i in range(3)},
            "layers.0.mlp": "MLP",
            "layers.1.mlp": "MoE",
            "layers.2.mlp": "MoE",
        },
        tuple((f"layers.{i}", (f"layers.{i}.mlp",)) for i in range(3)),
        ("layers.0->layers.1", "layers.1->layers.2"),
        settings={f"layers.{i}": {"layer_idx": i} for i in range(3)},
    ),
    [
        "Net @ (root) x1",
        "  Layer @ layers.0 x1",
        "    MLP @ layers.0.mlp x1",
        "  for 2 Layer @ layers.[1-2] x2",
        "    MoE @ layers.[1-2].mlp x2",
    ],
)

# Two layers of four experts; tokens reached 0, 2 in the first and 1, 2 in the second. Expert 3 never ran.
_EXPERTS = {f"layers.{i}.experts.{e}": "Expert" for i in range(2) for e in range(4)}
SKIPPED = (
    callgraph(
        {
            "layers": "ModuleList",
            **{f"layers.{i}": "MoE" for i in range(2)},
            **{f"layers.{i}.experts": "ModuleList" for i in range(2)},
            **_EXPERTS,
            **{f"{path}.up": "Linear" for path in _EXPERTS},
        },
        tuple(
            (f"layers.{i}", tuple((f"layers.{i}.experts.{e}", (f"layers.{i}.experts.{e}.up",)) for e in ran))
            for i, ran in ((0, (0, 2)), (1, (1, 2)))
        ),
        ("layers.0->layers.1",),
    ),
    [
        "Net @ (root) x1",
        "  for 2 MoE @ layers.[0-1] x2",
        "    parfor 4 Expert @ layers.[0-1].experts.[0-3] x4 (4 not executed)",
        "      Linear @ layers.[0-1].experts.[0-3].up x4 (4 not executed)",
    ],
)

# The list is stored 0, 1, 2 and runs 2, 0, 1.
OUT_OF_ORDER = (
    callgraph({f"l.{i}": "Block" for i in range(3)}, ("l.2", "l.0", "l.1"), ("l.2->l.0", "l.0->l.1")),
    ["Net @ (root) x1", "  for 3 Block @ l.[0-2] x3"],
)

# One tower for the global view and for the crops, then both go into the head.
TWICE = (
    callgraph(
        {"tower": "Tower", "tower.conv": "Conv2d", "head": "Linear"},
        (("tower", ("tower.conv",)), ("tower", ("tower.conv",)), "head"),
        ("tower->head", "tower->head"),
    ),
    ["Net @ (root) x1", "  parfor 2 Tower @ tower x2", "    Conv2d @ tower.conv x2", "  Linear @ head x1"],
)

# The shared module hangs under a; b calls it too, twice.
TWO_PARENTS = (
    callgraph(
        {"a": "A", "b": "B", "a.shared": "Linear"},
        (("a", ("a.shared",)), ("b", ("a.shared", "a.shared"))),
        ("a->b",),
    ),
    ["Net @ (root) x1", "  A @ a x1", "    parfor 1-2 Linear @ a.shared x3", "  B @ b x1", "    ^ a.shared"],
)

RECURSION = (
    callgraph({"r": "R", "r.leaf": "Linear"}, (("r", (("r", (("r", ("r.leaf",)),)),)),)),
    ["Net @ (root) x1", "  R @ r x3", "    ^ r", "    Linear @ r.leaf x1"],
)

NESTED = (
    callgraph(
        {
            "stages": "ModuleList",
            **{f"stages.{s}": "ModuleList" for s in range(2)},
            **{f"stages.{s}.{b}": "Block" for s in range(2) for b in range(2)},
        },
        ("stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1"),
        ("stages.0.0->stages.0.1", "stages.0.1->stages.1.0", "stages.1.0->stages.1.1"),
    ),
    ["Net @ (root) x1", "  for 4 Block @ stages.[0-1].[0-1] x4"],
)

TWO_CHAINS = (
    callgraph(
        {f"chains.{c}.{i}": "Block" for c in range(2) for i in range(3)},
        tuple(f"chains.{c}.{i}" for i in range(3) for c in range(2)),
        tuple(f"chains.{c}.{i}->chains.{c}.{i + 1}" for c in range(2) for i in range(2)),
    ),
    ["Net @ (root) x1", "  for 3 Block @ chains.0.[0-2] x3", "  for 3 Block @ chains.1.[0-2] x3"],
)

# q, k and v are three of a kind; o is of the same kind and reads all of them.
PARALLEL = (
    callgraph(
        {"attn": "Attention", **{f"attn.{n}": "Linear" for n in "qkvo"}},
        (("attn", ("attn.q", "attn.k", "attn.v", "attn.o")),),
        ("attn.q->attn.o", "attn.k->attn.o", "attn.v->attn.o"),
    ),
    [
        "Net @ (root) x1",
        "  Attention @ attn x1",
        "    parfor 3 Linear @ attn.{q,k,v} x3",
        "    Linear @ attn.o x1",
    ],
)

# norm1 feeds norm2 only through the attention: two steps of a block, no series.
NORMS = (
    callgraph(
        {"norm1": "Norm", "attn": "Attention", "norm2": "Norm", "mlp": "MLP"},
        ("norm1", "attn", "norm2", "mlp"),
        ("norm1->attn", "attn->norm2", "norm2->mlp"),
    ),
    ["Net @ (root) x1", "  Norm @ norm1 x1", "  Attention @ attn x1", "  Norm @ norm2 x1", "  MLP @ mlp x1"],
)

NAMED_SERIES = (
    callgraph(dict.fromkeys(("first", "second", "last"), "Block"), ("first", "second", "last"),
              ("first->second", "second->last")),
    ["Net @ (root) x1", "  for 3 Block @ {first,second,last} x3"],
)  # fmt: skip

# One block, then two side by side, then one that joins them.
DIAMOND = (
    callgraph(
        {f"b.{i}": "Block" for i in range(4)},
        ("b.0", "b.1", "b.2", "b.3"),
        ("b.0->b.1", "b.0->b.2", "b.1->b.3", "b.2->b.3"),
    ),
    ["Net @ (root) x1", "  Block @ b.0 x1", "  parfor 2 Block @ b.[1-2] x2", "  Block @ b.3 x1"],
)

# A subtree that is loaded and never called, beside one that is.
NEVER = (
    callgraph(
        {"used": "Linear", "spare": "Tower", "spare.conv": "Conv2d", "spare.list": "ModuleList"},
        ("used",),
    ),
    ["Net @ (root) x1", "  Linear @ used x1", "  Tower @ spare x0 (1 not executed)"],
)

# The experts hang in a bank that itself is never called: the mixture calls them, so the skipped one is its too.
BANK = (
    callgraph(
        {"moe": "MoE", "bank": "Bank", "bank.spare": "Linear", **{f"bank.e.{i}": "Expert" for i in range(3)}},
        (("moe", ("bank.e.0", "bank.e.2")),),
    ),
    [
        "Net @ (root) x1",
        "  MoE @ moe x1",
        "    parfor 3 Expert @ bank.e.[0-2] x2 (1 not executed)",
        "  Linear @ bank.spare x0 (1 not executed)",
    ],
)

# Both callers use s.1, only the first uses s.0: no family, or a count of calls would belong to the wrong caller.
HALF_SHARED = (
    callgraph(
        {"a": "A", "b": "B", "s.0": "Linear", "s.1": "Linear"},
        (("a", ("s.0", "s.1")), ("b", ("s.1",))),
        ("s.0->s.1", "a->b"),
    ),
    ["Net @ (root) x1", "  A @ a x1", "    Linear @ s.0 x1", "    Linear @ s.1 x2", "  B @ b x1", "    ^ s.1"],
)

CASES = {
    "single": SINGLE, "chain": CHAIN, "residual": RESIDUAL, "alternating": ALTERNATING, "dense-first": DENSE_FIRST,
    "skipped experts": SKIPPED, "out of order": OUT_OF_ORDER, "twice": TWICE, "two parents": TWO_PARENTS,
    "recursion": RECURSION, "nested lists": NESTED, "two chains": TWO_CHAINS, "parallel": PARALLEL, "norms": NORMS,
    "named series": NAMED_SERIES, "diamond": DIAMOND, "never called": NEVER, "bank": BANK,
    "half shared": HALF_SHARED,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_families(case: str) -> None:
    graph, expected = CASES[case]
    assert drawn(group(graph)) == expected


@pytest.mark.parametrize("case", CASES)
def test_every_module_that_ran_is_in_one_family_and_counts_add_up(case: str) -> None:
    graph, _ = CASES[case]
    grouped = group(graph)
    members = [p for f in grouped.nodes for p in f.instances]
    assert len(members) == len(set(members))
    assert {p for p in members if p in graph.call_counts} == set(graph.call_counts)
    entered = [e.name for e in graph.events if e.event == "enter"]
    for family in grouped.nodes:
        assert family.calls == sum(1 for name in entered if name in family.instances)
    assert contradictions(graph) == []


def test_alternating_blocks_feed_each_other() -> None:
    assert fed(group(ALTERNATING[0])) == ["b.[0-1,3-4] -> b.[2,5]", "b.[2,5] -> b.[0-1,3-4]"]


def test_a_series_keeps_the_order_of_its_data() -> None:
    assert group(OUT_OF_ORDER[0]).nodes[1].instances == ("l.2", "l.0", "l.1")


def test_the_names_of_a_list_do_not_make_it_a_series() -> None:
    apart = replace(CHAIN[0], data_edges={"layers.0->head": 1, "layers.1->head": 1, "layers.2->head": 1})
    assert drawn(group(apart))[1] == "  parfor 3 Block @ layers.[0-2] x3"


def test_without_data_flow_shapes_decide() -> None:
    def listed(out: int) -> CallGraph:
        types = {f"l.{i}": "Block" for i in range(3)} | {"norm1": "Norm", "norm2": "Norm"}
        shapes = {f"l.{i}": ((1, 4), (1, out)) for i in range(3)}
        return callgraph(types, ("norm1", "l.0", "l.1", "l.2", "norm2"), shapes=shapes)

    fits, differs = group(listed(4)), group(listed(5))
    assert drawn(fits)[2] == "  for 3 Block @ l.[0-2] x3"
    assert drawn(differs)[2] == "  parfor 3 Block @ l.[0-2] x3"
    assert [line for line in drawn(fits) if "Norm" in line] == ["  Norm @ norm1 x1", "  Norm @ norm2 x1"]


def test_without_events_calls_are_shared_out_evenly() -> None:
    assert drawn(group(replace(TWICE[0], events=())))[1:3] == ["  Linear @ head x1", "  parfor 2 Tower @ tower x2"]


def test_modules_that_differ_in_a_rate_are_alike() -> None:
    graph = CHAIN[0]
    rates: dict[str, dict[str, ConstructorValue]] = {f"layers.{i}": {"drop_path": i / 10, "width": 8} for i in range(3)}
    assert drawn(group(replace(graph, constructor_params=rates)))[1] == "  for 3 Block @ layers.[0-2] x3"
    widths: dict[str, dict[str, ConstructorValue]] = {f"layers.{i}": {"width": 8 * 2**i} for i in range(3)}
    assert len(group(replace(graph, constructor_params=widths)).nodes) == 5


def test_contradictions_are_told() -> None:
    graph = TWICE[0]
    wrong = replace(graph, call_counts={**graph.call_counts, "tower": 3})
    assert contradictions(wrong) == ["tower is called 3 times by the counts, 2 by the events"]
    lost = replace(graph, edges={**graph.edges, "(root)->tower": 1})
    assert contradictions(lost) == ["(root) calls tower 1 time by the edges, 2 by the events"]


def test_events_that_were_cut_off_are_no_contradiction() -> None:
    graph = TWICE[0]
    assert contradictions(replace(graph, events=graph.events[:4])) == []
    marked = (*graph.events[:2], Event(2, "mark", "left_out", {"events": 6}))
    assert contradictions(replace(graph, events=marked)) == []


def test_a_call_that_raised_is_closed_by_its_caller() -> None:
    graph = TWICE[0]
    open_ended = tuple(e for e in graph.events if not (e.event == "exit" and e.name == "tower.conv"))
    assert drawn(group(replace(graph, events=open_ended))) == TWICE[1]


def test_modules_that_only_call_each_other_are_shown() -> None:
    graph = CallGraph({"a": 2, "b": 2}, {"a->b": 2, "b->a": 2}, {}, {}, {"a": "A", "b": "B"})
    assert drawn(group(graph)) == ["A @ a x2", "  B @ b x2", "    ^ a"]
