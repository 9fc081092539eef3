"""The tree of modules in a real browser: by the keyboard alone, and what a filter puts into the document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from costproof.ledger.capture import Capture
from costproof.ledger.node import CostNode
from tests.reports.test_html import even, page
from tests.reports.test_html_browser import rows
from tests.support.browsing import browser, opened
from tests.support.toy import toy

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LINES = """() => {
  window.lines = () => [...document.querySelectorAll('#tree tbody tr')];
  window.called = (tr) => tr.querySelector('.name > :last-child').textContent;
  window.filter = (words) => {
    const field = document.querySelector('input[type=search]'), before = lines();
    field.value = words;
    field.dispatchEvent(new Event('input'));
    return lines().map((tr) => [called(tr), before.includes(tr)]);
  };
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


def written(folder: Path, capture: Capture) -> Path:
    file = folder / "report.html"
    file.write_text(page(capture), encoding="utf-8", newline="\n")
    return file


def wide(capture: Capture, many: int) -> Capture:
    """So many parameters of sam beside each other, of which no two cost the same: none folds."""
    node = next(n for n in capture.by_source["analytic"].nodes if n.stage == "clip")

    def more(nodes: tuple[CostNode, ...]) -> tuple[CostNode, ...]:
        return (*nodes, *(replace(node, module=f"clip.m{i}", costs={"params": i + 1}, exprs={}) for i in range(many)))

    return replace(capture, callgraph=None, ledgers=tuple(replace(x, nodes=more(x.nodes)) for x in capture.ledgers))


def deeper(capture: Capture) -> Capture:
    """Both layers of sam in one row; one level further down, two parts of text.attn."""

    def more(nodes: tuple[CostNode, ...]) -> tuple[CostNode, ...]:
        part = CostNode("decode", "", "text.attn.q", "", {"params": 1}, {}, "", ())
        return (*nodes, part, replace(part, module="text.attn.k", costs={"params": 2}))

    return replace(even(capture), ledgers=tuple(replace(x, nodes=more(x.nodes)) for x in capture.ledgers))


def test_keys_alone_are_enough(chromium: Browser, tmp_path: Path) -> None:
    with opened(chromium, written(tmp_path, even(toy()))) as shown:
        shown.locator('#tree tr[tabindex="0"]').focus()
        focused = "document.activeElement.querySelector('td').textContent"
        for way in ("ArrowRight sam", "ArrowRight lin", "ArrowLeft sam", "End decode", "ArrowUp clip", "Home sam"):
            key, at = way.split()
            shown.keyboard.press(key)
            assert at in shown.evaluate(focused), key
        assert shown.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        shown.keyboard.press("Enter")
        assert shown.locator("#detail h3").inner_text() == "sam"


def test_the_left_arrow_closes_a_row_and_leads_to_the_one_above(chromium: Browser, tmp_path: Path) -> None:
    """On decode, text.attn and two parts of it: from the second part, so that the row above is not the one before."""
    focused = "document.activeElement.querySelector('.name > :last-child').textContent"
    with opened(chromium, written(tmp_path, deeper(toy()))) as shown:
        shown.get_by_role("button", name="Open all").click()
        others = ["sam", "sam.layers.[0-1].lin", "clip", "clip.patch", "decode"]
        assert rows(shown) == [*others, "text.attn", "q", "k"]
        last = shown.locator("#tree tbody tr").last
        last.focus()
        for at, left in (
            ("text.attn", ["text.attn", "q", "k"]),
            ("text.attn", ["text.attn"]),
            ("decode", ["text.attn"]),
            ("decode", []),
            ("decode", []),
        ):
            shown.keyboard.press("ArrowLeft")
            assert (shown.evaluate(focused), rows(shown)) == (at, [*others, *left])
        shown.get_by_label("Filter modules").fill("attn")  # which holds all above what it finds open
        last.focus()
        for at in ("text.attn", "decode", "decode"):
            shown.keyboard.press("ArrowLeft")
            assert (shown.evaluate(focused), rows(shown)) == (at, ["decode", "text.attn", "q", "k"])


def test_what_is_not_in_the_document_is_said(chromium: Browser, tmp_path: Path) -> None:
    with opened(chromium, written(tmp_path, wide(toy(), 1200))) as shown:
        shown.get_by_role("button", name="Open all").click()
        shown.locator("#tree tbody tr").nth(999).wait_for()
        assert len(rows(shown)) == 1000
        # By hand: three stages; both layers of sam in one row; clip and in it 1,201; text.attn: 3 + 1 + 1 + 1201 + 1.
        assert shown.locator(".said").inner_text().startswith("1,000 of 1,207 rows shown; 207 more match")


def test_a_filter_makes_one_screen_of_rows_at_once_and_none_twice(chromium: Browser, tmp_path: Path) -> None:
    """What a filter costs is what it puts into the document: at most 40 rows of any number, and none that is there."""
    with opened(chromium, written(tmp_path, wide(toy(), 1200))) as shown:
        shown.evaluate(LINES)
        shown.get_by_role("button", name="Open all").click()
        shown.locator("#tree tbody tr").nth(999).wait_for()
        every = shown.evaluate("lines().map(called)")
        # By hand: the stage and its module, and of m0 to m1199 these.
        found = ["clip", "clip", "m77", *(f"m77{i}" for i in range(10))]
        assert shown.evaluate("filter('clip.m77')") == [[name, True] for name in found]
        assert shown.evaluate("filter('nothing')") == []
        assert shown.evaluate("filter('')") == [[name, False] for name in every[:40]]
        shown.locator("#tree tbody tr").nth(999).wait_for()
        shown.evaluate("filter('m88')")  # which stay while others are put in before and between them
        shown.evaluate("filter('')")
        shown.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert shown.evaluate("lines().map(called)") == every
        # To a row that is not there yet.
        shown.evaluate("filter('nothing')")
        shown.evaluate("""() => {
          filter('');
          lines()[0].dispatchEvent(new KeyboardEvent('keydown', { key: 'End', bubbles: true }));
        }""")
        assert shown.evaluate("called(document.activeElement)") == every[-1]
