"""DOT, SVG and Mermaid of small graphs as goldens; hostile names; the limits of Mermaid."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costproof.reports.graph.picture import MAX_EDGES, MAX_NODES, MAX_TEXT, Edge, GraphView, Node, mermaid
from costproof.reports.graph.svg import svg
from costproof.reports.graph.view import GraphChoice, graph_view
from costproof.reports.outputs import variants
from tests.conftest import Golden
from tests.reports.drawing import callgraph, captured
from tests.reports.test_graph_grouping import CASES

WRITERS = {kind: output.text for kind, output in variants("graph").items()}

HOSTILE = 'a"]; b<script>alert(1)</script>&amp;\\n`#quot;|\n\x1b\u202e{$$x$$}-->end\ud800\uffff'
NASTY = st.text(alphabet="ab\"'`[](){}<>&|;#\\/\n\r\x1b\u202e\ud800\uffff-=$%é", max_size=40)


def _node(number: int, **changes: object) -> Node:
    given: dict[str, object] = {
        "id": f"n{number}",
        "class_name": "Block",
        "pattern": f"b.{number}",
        "loops": (),
        "calls": 1,
        "instances": (f"b.{number}",),
        "not_executed": 0,
        "params": 10,
        "flops": number,
        "depth": min(number, 2),
    }
    return Node(**{**given, **changes})  # type: ignore[arg-type]


def _view(nodes: int, calls: int = 0, flow: int = 0) -> GraphView:
    def edges(count: int) -> tuple[Edge, ...]:
        return tuple(Edge(f"n{i % nodes}", f"n{(i * 7 + 1) % nodes}", 1) for i in range(count))

    return GraphView("many", tuple(_node(i) for i in range(nodes)), edges(calls), edges(flow))


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("case", ["alternating", "skipped experts", "two parents", "recursion"])
def test_goldens(case: str, kind: str, golden: Golden) -> None:
    view = graph_view(captured(CASES[case][0]), GraphChoice(link="#{path}"))
    golden(f"reports/graph/{case.replace(' ', '-')}.{kind}", WRITERS[kind](view))


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("case", CASES)
def test_same_input_same_bytes(case: str, kind: str) -> None:
    first, again = (WRITERS[kind](graph_view(captured(CASES[case][0]))) for _ in range(2))
    assert first == again


def _tooltips(text: str) -> list[str]:
    space = "{http://www.w3.org/2000/svg}"
    root = ElementTree.fromstring(text)
    return [
        g.findtext(f"{space}title") or "" for g in root.iter(f"{space}g") if (g.get("class") or "").startswith("node")
    ]


def test_tooltips_hold_parameters_and_shapes() -> None:
    node = _node(0, params=1234567, flops=None, inputs=("[1, 3] float32",), instances=("b.1", "b.0"), loops=("for 2",))
    tooltip = _tooltips(svg(GraphView("t", (node,), (), ())))[0]
    assert tooltip.split("\n") == [
        "Block @ b.0",
        "for 2",
        "1 call of 2 modules",
        "params: 1,234,567",
        "FLOP: ?",
        "bytes moved: ?",
        "in the order b.1, b.0",
        "in: [1, 3] float32",
    ]


def test_hostile_names_stay_text_everywhere() -> None:
    graph = callgraph({HOSTILE: HOSTILE, f"{HOSTILE}.x": "Y"}, ((HOSTILE, (f"{HOSTILE}.x",)),), root=HOSTILE)
    view = graph_view(captured(graph), GraphChoice(link="x?{path}&{class}"))
    for write in WRITERS.values():
        text = write(view)
        text.encode("utf-8")
        assert "<script" not in text
        assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)
    assert len(_tooltips(svg(view))) == 3


@settings(max_examples=150)
@given(NASTY, NASTY)
def test_any_name_stays_in_its_place(name: str, path: str) -> None:
    view = GraphView(name, (_node(0, class_name=name, pattern=path), _node(1)), (Edge("n0", "n1", 1),), (), (path,))
    assert len(_tooltips(svg(view))) == 2
    # A DOT string ends at the first quote that no backslash escapes.
    strings = r'"(?:[^"\\\n]|\\.)*"'
    bare = re.sub(strings, "S", WRITERS["dot"](view))
    assert [line.strip() for line in bare.splitlines()][4:7] == [
        "n0 [label=S, tooltip=S];",
        "n1 [label=S, tooltip=S];",
        "n0 -> n1;",
    ]
    lines = mermaid(view).splitlines()
    assert re.fullmatch(r'  n0\["(?:[A-Za-z0-9 _.,:/()\[\]{}@+×·…\-]|#\d+;|<br/>)*"\]', lines[1])
    assert lines[3] == "  n0 --> n1"


def test_mermaid_stays_within_the_limits_and_says_what_is_missing() -> None:
    small = mermaid(_view(100, 300, 100))
    assert "left out" not in small
    nodes = mermaid(_view(130))
    # 99 and the note; of those too deep the ones with the least FLOPs go: n2 … n32
    assert len(re.findall(r"^  \w+\[", nodes, re.M)) == MAX_NODES
    assert "left out here: 31 nodes" in nodes
    assert '  n32["' not in nodes
    assert '  n33["' in nodes
    arrows = mermaid(_view(100, 420, 50))
    assert len(re.findall(r"-->|-\.->", arrows)) == MAX_EDGES
    assert "left out here: 70 arrows" in arrows


def test_mermaid_stays_within_its_length() -> None:
    nodes = tuple(_node(i, class_name="<" * 200, pattern="&" * 200) for i in range(100))
    text = mermaid(GraphView("long", nodes, (), ()))
    assert MAX_TEXT // 2 < len(text) <= MAX_TEXT
    assert "left out here" in text
