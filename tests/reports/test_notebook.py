"""Results in a notebook: the numbers of their pages, no script, no identifiers, no style beyond the cell."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costproof import compare, explain
from costproof.ledger.notebook import NotebookRepr
from costproof.reports.counters import document
from costproof.reports.html.printer import HtmlPrinter
from costproof.reports.outputs import variants
from tests.reports.pages import certificate, claims, counters, hostile_pages
from tests.reports.test_gate_texts import over
from tests.reports.test_html import EVIL, read_tags, renamed
from tests.reports.test_html_diff import doubled
from tests.support.browsing import browser, opened
from tests.support.toy import incomplete, toy, wrong

CELLS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    # By hand (see the toy): sam 1,792 FLOP, decode 864, together 2,656; half of sam's is 896.
    "report": (lambda: compare(wrong()), ("Unexplained: of 29 quantities", "2 open findings", "896 1,792 1,792")),
    "diff": (doubled, ("1,792 3,584 +1,792", "2,656 5,312 +2,656", "What did it")),
    "ledger": (lambda: toy().ledger("static"), ("Ledger of static", "sam 40 80 0 4 1,792", "total 83 166 0 7 2,656")),
    "unknown": (lambda: incomplete().ledger("static"), ("without a cost rule: aten.mystery in decode",)),
    "explanation": (lambda: explain(toy(), "sam"), ("512 1,024", "each output element is a dot product of length k")),
    "claims": (claims, ("refuted: 3 claims", "9007199254740993", "residual 0")),
    "counters": (counters, ("3 tools, 2 explained, 1 failed.", "3.85 kFLOP")),
    "certificate": (lambda: certificate(wrong=True), ("Refuted", "missing in the formula: 3*N")),
    "gate": (over, ("Over the limit in 3 of 5 checks", "an allowance of 9 ran out")),
}
HOST = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>notebook</title>
<h1>Title</h1><p>Text <a href="#x">link</a> <code>code</code></p><table><tr><th>a</th><td class="n">1</td></tr></table>
<details open><summary>more</summary>x</details><button>go</button><main id="x">%s</main></html>"""
STYLES = """() => [...document.querySelectorAll('html, body, body *')].filter(e => !e.closest('.costproof'))
  .map(e => { const s = getComputedStyle(e);
    return [e.tagName, s.color, s.backgroundColor, s.font, s.margin, s.padding, s.border, s.boxSizing, s.cursor,
      s.colorScheme].join() })"""


def cell(name: str) -> str:
    value = CELLS[name][0]()
    assert isinstance(value, NotebookRepr)
    return value._repr_html_() or ""


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_has_the_numbers_and_nothing_that_acts(name: str) -> None:
    text = cell(name)
    assert text == cell(name)
    tags = read_tags(text)
    assert {"script", "iframe", "a", "link", "img", "form"}.isdisjoint(t for t, _ in tags)
    assert not [
        a for _, attributes in tags for a in attributes if a.startswith("on") or a in ("id", "href", "src", "style")
    ]
    said = re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL))
    for part in CELLS[name][1]:
        assert part.lower() in said.lower()


@pytest.mark.parametrize("name", ["claims", "certificate", "gate", "counters", "report"])
def test_names_are_data(name: str) -> None:
    bad = compare(renamed(wrong(), "sam.layers.0.lin", EVIL)) if name == "report" else hostile_pages()[name]
    known = {t for other in CELLS for t, _ in read_tags(cell(other))}
    assert {t for t, _ in read_tags(bad._repr_html_() or "")} <= known


@pytest.mark.parametrize("name", ["report", "diff"])
def test_text_is_text_in_a_notebook_too(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where rich sees Jupyter, it shows in the cell what is to be written, and writes nothing."""
    value = CELLS[name][0]()
    text = variants("diff")["text"].text if name == "diff" else repr
    known = text(value)
    assert len(known.splitlines()) > 5
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert text(value) == known
    assert capsys.readouterr().out == ""


def test_a_long_table_is_cut() -> None:
    """1,007 claims: 100 in the cell."""
    from dataclasses import replace

    found = claims()
    many = replace(found, judgements=tuple(replace(found.judgements[0], id=f"c{i}") for i in range(1_007)))
    text = many._repr_html_() or ""
    assert text.count("<tbody data-status=") == 100
    assert "907 more are in the JSON." in text


def test_figures_of_counters_are_cut_too() -> None:
    found = counters()
    whole, cut = ("".join(HtmlPrinter(most).cell(document(found, "cell"))) for most in (100, 2))
    figures = whole.count("<tbody data-status=")
    assert figures > 2
    assert cut.count("<tbody data-status=") == 2
    assert f"{figures - 2} more are in the JSON." in cut


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.thorough), "dark"])
def test_the_style_stays_inside(scheme: str, tmp_path: Path) -> None:
    """Everything outside looks as it does without the cells; inside, the style is that of pages."""
    from axe_playwright_python.sync_playwright import Axe

    file = tmp_path / "notebook.html"
    with browser() as chromium:
        seen = []
        for inside in ("", "".join(map(cell, CELLS))):
            file.write_text(HOST % inside, encoding="utf-8")
            with opened(chromium, file, scheme=scheme) as page:
                seen.append(page.evaluate(STYLES))
                if inside:
                    verdict = page.locator(".costproof .verdict").first
                    assert verdict.evaluate("e => getComputedStyle(e).borderLeftWidth") == "5px"
                    assert verdict.evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(245, 247, 249)"
                    found = Axe().run(page, context=".costproof").response["violations"]
                    assert [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found] == []
        assert seen[0] == seen[1]


JUPYTER = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>lab</title><style>
.jp-RenderedHTMLCommon code { background-color: black; color: red; }
.jp-RenderedHTMLCommon :not(pre) > code { background-color: black; padding: 1px 5px; }
.jp-RenderedHTMLCommon h3 { font-size: 30px; font-weight: 400; }
.jp-RenderedHTMLCommon table { border: none; color: red; font-size: 7px; table-layout: fixed; margin-left: auto; }
.jp-RenderedHTMLCommon td, .jp-RenderedHTMLCommon th, .jp-RenderedHTMLCommon tr {
  vertical-align: middle; padding: 0.5em; line-height: normal; white-space: normal; max-width: none; border: none; }
:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon td, :not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon th,
:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon tr { text-align: right; }
.jp-RenderedHTMLCommon th { font-weight: bold; }
.jp-RenderedHTMLCommon tbody tr:nth-child(odd) { background: black; }
.jp-RenderedHTMLCommon tbody tr:nth-child(even) { background: black; }
.jp-RenderedHTMLCommon p { text-align: left; margin: 0; margin-bottom: 1em; }
</style><h1>Title</h1><main class="%s jp-OutputArea-output">%s</main></html>"""
"""A cell as JupyterLab 4.6 frames it, with its rules for what is in one; of a theme that is dark, colours that show."""
INSIDE = """() => [...document.querySelectorAll('.costproof :is(table, thead, tr, th, td, code, p, h3)')].map(e => {
  const s = getComputedStyle(e);
  return [e.tagName, e.className, s.color, s.backgroundColor, s.fontFamily, s.fontSize, s.fontWeight, s.lineHeight,
    s.margin, s.padding, s.border, s.whiteSpace, s.textAlign.replace('start', 'left'), s.verticalAlign, s.tableLayout
  ].join() })"""


def test_inside_jupyter_a_cell_looks_as_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "lab.html"
    with browser() as chromium:
        seen = []
        for frame in ("elsewhere", "jp-RenderedHTMLCommon"):
            file.write_text(JUPYTER % (frame, "".join(map(cell, CELLS))), encoding="utf-8")
            with opened(chromium, file) as page:
                seen.append(page.evaluate(INSIDE))
                assert page.locator(".costproof td").first.evaluate("e => getComputedStyle(e).textAlign") == "left"
        assert [pair for pair in zip(*seen, strict=True) if pair[0] != pair[1]] == []
        file.write_text(file.read_text(encoding="utf-8").replace("<h1>", '<body data-jp-theme-light="false"><h1>'))
        with opened(chromium, file) as page:  # the browser is told of no theme
            paper = page.locator(".costproof").first.evaluate("e => getComputedStyle(e).backgroundColor")
            assert paper == "rgb(20, 24, 29)"
