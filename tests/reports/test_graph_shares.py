"""Shares on the picture of a callgraph, experts, slides and PNGs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from costproof.ledger.environment import installed
from costproof.ledger.node import CostNode, Ledger
from costproof.reports.graph.picture import Edge, GraphView
from costproof.reports.graph.svg import slide, svg
from costproof.reports.graph.view import GraphChoice, graph_view
from costproof.reports.outputs import variants
from tests.reports.drawing import callgraph, captured
from tests.reports.test_graph_view import _capture
from tests.reports.test_graph_writers import _node, _view
from tests.support.running import costproof
from tests.support.running import files as files_in
from tests.support.toy import toy
from tests.support.written import write_capture


def test_shares_are_of_all_that_is_drawn() -> None:
    nodes = {n.pattern: n for n in graph_view(_capture()).nodes}
    # 607 FLOPs: 2 blocks of 100 + 200, and 7 of the head. 600 / 607 = 98.8 %, 400 / 607 = 65.9 %, 7 / 607 = 1.2 %
    assert [nodes[p].share for p in ("net", "net.b.[0-1].l2", "head")] == ["98.8 %", "65.9 %", "1.2 %"]
    assert nodes["(root)"].share == ""
    stage = {n.pattern: n for n in graph_view(_capture(), GraphChoice(stage="sam")).nodes}
    assert stage["net.b.[0-1].l1"].share == "33.3 %"


def test_a_share_that_is_not_known_or_tiny_is_not_written() -> None:
    assert _node(0, flops=None, whole=10).share == ""
    assert _node(0, flops=5, whole=None).share == ""
    assert _node(0, flops=1, whole=2000).share == ""
    assert _node(0, flops=3, whole=1000).share == "0.3 %"


def test_the_bar_is_as_long_as_the_share() -> None:
    view = replace(_view(1), nodes=(_node(0, flops=3, whole=4),))
    boxes = re.findall(r'<rect class="(box|share)" .*? width="(\d+)"', svg(view))
    (_, box), (_, bar) = boxes
    assert int(bar) == (int(box) - 16) * 3 // 4


def test_experts_are_those_of_the_configuration() -> None:
    graph = callgraph({"mlp": "Moe", "mlp.experts": "Experts"}, (("mlp", ("mlp.experts",)),))
    exprs = {"params": "3*E*w*h + E*h", "params_active": "3*k*w*h + k*h"}
    node = CostNode("sam", "", "mlp.experts", "", {"params": 1}, exprs, role="text.layer.experts")
    made = replace(captured(graph), ledgers=(Ledger("analytic", (node,), ("params",), ("sam",)),))
    # 60 and 8 share a divisor: neither may be cancelled.
    sized = replace(made, target=replace(made.target, symbols={"E": 60, "k": 8, "w": 2, "h": 3}))
    shown = {n.pattern: n.experts for n in graph_view(sized).nodes}
    assert shown == {"(root)": "", "mlp": "60 experts, top 8", "mlp.experts": "60 experts, top 8"}
    assert all("60 experts, top 8" in output.text(graph_view(sized)) for output in variants("graph").values())
    # Nothing is said where a size is not known.
    lacking = replace(made, target=replace(made.target, symbols={"E": 60}))
    assert {n.experts for n in graph_view(lacking).nodes} == {""}


@pytest.mark.parametrize(("branches", "least"), [(3, 8), (1, 4), (60, 4)])
def test_a_slide_is_readable_and_in_its_frame(branches: int, least: int) -> None:
    nodes = tuple(_node(i, flops=1000 - i, whole=2000, depth=0) for i in range(60))
    tree = tuple(Edge(f"n{(i - 1) // branches}", f"n{i}", 1) for i in range(1, 60))
    drawn = slide(GraphView("many", nodes, tree, (), about=("a model " * 40,)))
    root = ElementTree.fromstring(drawn)
    width, height = map(int, root.attrib["viewBox"].split()[2:])
    assert (root.get("width"), root.get("height")) == ("1280", "720")
    assert abs(width / height - 16 / 9) < 0.01
    # The smallest letters of a box have 10 pixels before they are enlarged.
    assert 10 * 1280 / width >= 12
    space = "{http://www.w3.org/2000/svg}"
    shown = [g for g in root.iter(f"{space}g") if (g.get("class") or "").startswith("node")]
    assert least <= len(shown) < 60
    assert f"{60 - len(shown)} families are left out" in drawn
    for rect in root.iter(f"{space}rect"):
        assert int(rect.get("x", 0)) + int(rect.attrib["width"]) <= width
        assert int(rect.get("y", 0)) + int(rect.attrib["height"]) <= height


def test_a_slide_has_the_heaviest_first() -> None:
    drawn = slide(graph_view(_capture()))
    shown = re.findall(r'<text class="class"[^>]*>(?:<tspan[^>]*>[^<]*</tspan>  )?([^<]*)</text>', drawn)
    # What has all of the work is left out, and what has none.
    assert shown == ["net", "head", "b.[0-1]", "l1", "l2"]


@pytest.mark.skipif(installed("matplotlib") is None, reason="matplotlib is not installed: the extra [plot]")
def test_the_command_draws_slides_and_pngs(tmp_path: Path) -> None:
    write_capture(tmp_path / "c.json", toy())
    done = costproof("graph", "c.json", "-f", "svg,png", "--slide", "-o", "g", cwd=tmp_path)
    assert (done.code, files_in(tmp_path / "g")) == (0, ["callgraph.png", "callgraph.svg"])
    assert (tmp_path / "g" / "callgraph.png").read_bytes().startswith(b"\x89PNG")
    refused = costproof("graph", "c.json", "-f", "dot", "--slide", cwd=tmp_path)
    assert (refused.code, "expected: svg or png" in refused.stderr) == (2, True)
