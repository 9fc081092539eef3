"""The operators of a stage as a picture: boxes, arrows and costs counted by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import costproof
from costproof.ledger.callgraph import OperatorLine, OperatorListing
from costproof.ledger.errors import BadInput
from costproof.reports.graph import operators
from costproof.reports.graph.operators import operator_view
from costproof.reports.graph.picture import GraphView
from tests.reports.test_html import check_policy
from tests.support.browsing import browser, opened
from tests.support.running import costproof as command
from tests.support.running import files

MODEL = Path(__file__).parents[2] / "docs" / "examples" / "my_model.py"


def line(
    label: str, module: str, reads: str, flops: int | None, *, works: bool = True, vector: int = 0
) -> OperatorLine:
    return OperatorLine(
        label, f"aten.{label.rstrip('0123456789')}", module, tuple(f"%{name}" for name in reads.split()),
        ("[2, 4] float32",), flops, vector, "" if flops is not None else "no rule", (f"%{label}",), works,
    )  # fmt: skip


def stack(*flops: int) -> OperatorListing:
    """An embedding; layers in a residual stream, each a view, a product and a sum of 8 elements; a head of 7 FLOP."""
    found, before = [line("emb", "emb", "ids", 0)], "emb"
    for i, work in enumerate(flops):
        place = f"m.layers.{i}"
        found += [
            line(f"view{i}", place, before, 0, works=False),
            line(f"mm{i}", f"{place}.lin", f"view{i}", work),
            line(f"add{i}", place, f"{before} mm{i}", 0, vector=8),
        ]
        before = f"add{i}"
    return OperatorListing("s", "c", "p", (*found, line("head", "head", before, 7)))


def boxes(view: GraphView) -> list[str]:
    return [f"{n.repetition} {n.class_name} {n.pattern} {n.flops}".strip() for n in view.nodes]


def arrows(view: GraphView) -> list[str]:
    name = {n.id: n.class_name.removeprefix("aten.") for n in view.nodes}
    return sorted(f"{name[e.source]} {name[e.target]} {e.count}" for e in view.calls)


def test_equal_layers_are_one_box_and_views_a_part_of_an_arrow() -> None:
    view = operator_view([stack(5, 5, 5)])
    assert boxes(view) == [
        "aten.emb emb 0",
        "× 3 aten.mm m.layers.[0-2].lin 15",
        "× 3 aten.add m.layers.[0-2] 0",
        "aten.head head 7",
    ]
    # The first layer reads the embedding, the two others the sum before them.
    assert arrows(view) == ["add add 2", "add head 1", "add mm 2", "emb add 1", "emb mm 1", "mm add 3"]
    assert [n.figures for n in view.nodes] == [
        "[2, 4] float32",
        "[2, 4] float32 · 15 FLOP (68.2 %)",
        "[2, 4] float32 · 24 FLOP vector",
        "[2, 4] float32 · 7 FLOP (31.8 %)",
    ]
    assert view.notes == (
        "s[c], export p: 11 operators, of which 3 that do no work (views, casts) are left out; 22 FLOP",
    )


def test_a_box_of_operators_has_their_bytes() -> None:
    one = stack(5, 5)
    lines = tuple(replace(x, bytes=96 if x.operator == "aten.mm" else 0) for x in one.lines)
    (box,) = [n for n in operator_view([replace(one, lines=lines)]).nodes if n.class_name == "aten.mm"]
    # Two products of 96 bytes each.
    assert (box.figures, "bytes moved: 192" in box.tooltip) == ("[2, 4] float32 · 10 FLOP (58.8 %) · 192 B moved", True)


def test_unrolled_every_operator_is_a_box() -> None:
    view = operator_view([stack(5, 5, 5)], unrolled=True)
    # 1 + 3 * 3 + 1 boxes; an arrow into each view and product, two into each sum, one into the head.
    assert (len(view.nodes), len(view.calls)) == (11, 13)
    assert all(e.count == 1 for e in view.calls)
    assert sum(n.flops or 0 for n in view.nodes) == 22


def test_layers_that_take_turns_are_folded_by_kind() -> None:
    view = operator_view([stack(5, 6, 5, 6)])
    assert boxes(view)[1:5] == [
        "× 2 aten.mm m.layers.[0,2].lin 10", "× 2 aten.add m.layers.[0,2] 0",
        "× 2 aten.mm m.layers.[1,3].lin 12", "× 2 aten.add m.layers.[1,3] 0",
    ]  # fmt: skip


def test_what_is_not_known_is_no_share() -> None:
    view = operator_view([OperatorListing("s", "c", "p", (line("mm", "m", "x", None), line("mm2", "m", "mm", 4)))])
    assert [n.figures for n in view.nodes] == ["[2, 4] float32 · ?", "[2, 4] float32 · 4 FLOP"]
    assert "no rule" in view.nodes[0].tooltip


def test_every_writer_draws_all_of_it() -> None:
    found = [stack(5, 5, 5)]
    svg, dot, mermaid = (str(costproof.operator_graph(found, kind)) for kind in ("svg", "dot", "mmd"))
    assert (svg.count('class="node'), svg.count('class="call"')) == (4, 6)
    # The label of an arrow says how often where that is not how often its box runs.
    assert sorted(re.findall(r'class="count"[^>]*>(.*?)<', svg)) == ["×1", "×1", "×2", "×2"]
    assert (dot.count(" -> "), "rankdir=TB" in dot) == (6, True)
    assert (mermaid.count("-->"), mermaid.startswith("flowchart TD")) == (6, True)
    tops = [int(y) for y in re.findall(r'class="class" x="\d+" y="(\d+)"', svg)]
    assert tops == sorted(tops)  # in the order of the program, from top to bottom


def test_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "MOST", 10)
    assert operator_view([stack(5, 5, 5)])
    with pytest.raises(BadInput, match="too many operators"):
        operator_view([stack(5, 5, 5)], unrolled=True)


def test_a_page_leads_from_box_to_row_and_back(tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    file = tmp_path / "operators.html"
    text = str(costproof.operator_graph([stack(5, 5, 2**53 + 1)], "html"))
    check_policy(text)
    file.write_text(text, encoding="utf-8", newline="\n")
    with browser() as chromium, opened(chromium, file, width=360) as shown:
        assert shown.evaluate("document.documentElement.scrollWidth") == 360
        shown.locator(".graph a").nth(1).focus()
        shown.keyboard.press("Enter")
        row = shown.locator("tbody tr:has(a:target)")
        # By hand: 5 FLOP in each of two layers; the third, another 2**53 + 1 = 9007199254740993, is a box of its own.
        assert row.inner_text().split("\t")[:3] == ["aten.mm", "2", "m.layers.[0-1].lin"]
        assert shown.locator('data[title="9,007,199,254,740,993"]').count() == 1
        row.locator("a").click()
        assert shown.locator(".graph g:target").get_attribute("id") == "n1"
        wide = "document.querySelector('.graph svg').getBoundingClientRect().width"
        before = shown.evaluate(wide)
        shown.get_by_role("button", name="Zoom in").click()
        assert shown.evaluate(wide) > before
        assert Axe().run(shown).response["violations"] == []


def test_the_command(tmp_path: Path) -> None:
    words = ("explain", f"{MODEL}:make", "forward", "--graph")
    done = command(*words, "-f", "svg,png", cwd=tmp_path)
    assert done.code == 2
    done = command(*words, "-f", "svg", "--unrolled", cwd=tmp_path)
    # Two linear layers and what is between: 2 * 3 * 16 * 32 + 2 * 3 * 32 * 8 = 4,608.
    assert (done.code, done.stdout.count('class="box"'), done.stdout.count('class="call"')) == (0, 3, 2)
    assert "3 operators; 4,608 FLOP" in done.stdout
    assert command(*words, "-o", "drawn.png", cwd=tmp_path).code == 0
    assert (tmp_path / "drawn.png").read_bytes()[:4] == b"\x89PNG"
    for wrong, said in ((("--unrolled",), "only a picture is unrolled"), (("-f", "md"), "leave out --capture")):
        done = command(*words, *wrong, cwd=tmp_path)
        assert (done.code, done.stdout) == (2, "")
        assert said in done.stderr
    done = command(*words[:-1], "-f", "svg", cwd=tmp_path)
    assert (done.code, "add --graph" in done.stderr) == (2, True)
    assert files(tmp_path) == ["drawn.png"]
