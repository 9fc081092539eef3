"""The page in a real browser: from a file, offline, with a mouse, a keyboard, a screen reader, on paper, on a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import costproof
from costproof.ledger.capture import Capture
from costproof.ledger.node import CostNode
from costproof.reports.outputs import variants
from tests.conftest import Golden
from tests.reports.test_html import EVIL, even, page, renamed, scaled
from tests.reports.test_html_diff import doubled
from tests.support.browsing import WIDEN, browser, opened
from tests.support.toy import hostile, incomplete, toy, wrong

diff_page = variants("diff")["html"].text

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CASES: dict[str, Callable[[], Capture]] = {"toy": toy, "wrong": wrong, "incomplete": incomplete, "hostile": hostile}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Capture], Path]:
    def write(capture: Capture) -> Path:
        file = tmp_path / "report.html"
        file.write_text(page(capture), encoding="utf-8", newline="\n")
        return file

    return write


Written = Callable[[Capture], Path]


def rows(shown: Page) -> list[str]:
    """The first cell of each row of the tree."""
    return [text.strip("▸▾\u00a0 \n") for text in shown.locator("#tree tbody td:first-child").all_inner_texts()]


def test_from_the_verdict_to_the_formula(chromium: Browser, written: Written) -> None:
    with opened(chromium, written(even(toy()))) as shown:
        assert "Exact" in shown.locator("#verdict").inner_text()
        assert rows(shown) == ["sam", "clip", "decode"]
        tree = shown.locator("#tree")
        tree.get_by_role("row", name="sam").first.locator(".twist").click()
        assert rows(shown) == ["sam", "sam.layers.[0-1].lin", "clip", "decode"]
        tree.get_by_role("row", name="sam.layers").first.click()
        detail = shown.locator("#detail")
        said = detail.inner_text()
        # By hand: H = 64, n = 1, h = 4: 64^2 * 1 * 4^2 / 128 = 512, two layers 1,024.
        assert "512 FLOP each, × 2 = 1,024 FLOP" in said
        assert "= 64" in said
        assert "2k FLOP" in (detail.locator("details pre").text_content() or "")
        assert detail.locator("math mfrac").count() == 2
        assert detail.locator("math").first.evaluate("m => m.getBoundingClientRect().height") > 20
        assert shown.evaluate("location.hash") == "#sam/sam.layers.%5B0-1%5D.lin"
        detail.get_by_text("In the callgraph").click()
        assert shown.locator(".graph .chosen").count() == 1
        shown.keyboard.press("Enter")  # the box leads back
        assert "lin" in shown.locator("#detail h3").inner_text()


def test_a_link_opens_its_row(chromium: Browser, written: Written) -> None:
    layers = "sam.layers.[0-1].lin"
    fragments = {"#decode/text.attn": "text.attn", "#at/text.attn": "text.attn", "#clip/": "clip"}
    for fragment, row in {**fragments, "#sam/sam.layers.1.lin": layers}.items():
        with opened(chromium, written(even(toy())), fragment=fragment) as shown:
            assert shown.locator("#detail h3").inner_text() == row, fragment


def test_filter_sort_status_and_metric(chromium: Browser, written: Written) -> None:
    with opened(chromium, written(even(wrong()))) as shown:
        search = shown.get_by_label("Filter modules")
        search.fill("layers lin")
        assert rows(shown) == ["sam", "sam.layers.[0-1].lin"]
        search.fill("")
        shown.get_by_label("Status").select_option("open")
        assert rows(shown) == ["sam", "sam.layers.[0-1].lin"]
        shown.get_by_label("Status").select_option("")
        shown.get_by_role("button", name="FLOPs").click()
        assert rows(shown) == ["sam", "decode", "clip"]
        assert shown.locator('th[aria-sort="descending"]').inner_text().startswith("FLOPs")
        shown.get_by_text("parameters", exact=True).first.click()
        # By hand: sam 40, decode 36, clip 7.
        cells = shown.locator("#tree tbody td:nth-child(4)").all_inner_texts()
        assert cells == ["40", "36", "7"]


def test_numbers_beyond_floats_are_shown_whole(chromium: Browser, written: Written) -> None:
    """864 * (2**60 + 1), by hand 996124179980315788128; and 2**53 + 1 = 9007199254740993 in sam: 1792 = 2**8 * 7."""
    with opened(chromium, written(scaled(toy(), 2**60 + 1))) as shown:
        shown.get_by_label("all digits").check()
        assert "996,124,179,980,315,788,128" in shown.locator("#tree").inner_text()


def test_what_is_unknown_is_not_zero(chromium: Browser, written: Written) -> None:
    def unknown(node: CostNode) -> CostNode:
        if node.stage != "decode" or "flops" not in node.costs:
            return node
        return replace(node, costs={**node.costs, "flops": None}, exprs={})

    made = even(toy())
    ledgers = tuple(replace(x, nodes=tuple(map(unknown, x.nodes))) for x in made.ledgers)
    with opened(chromium, written(replace(made, ledgers=ledgers)), fragment="#decode/text.attn") as shown:
        cells = shown.locator("#tree tbody td:nth-child(4)").all_inner_texts()
        assert dict(zip(rows(shown), cells, strict=True))["text.attn"] == "?"
        assert dict(zip(rows(shown), cells, strict=True))["decode"] == "?"
        numbers, operators = (shown.locator("#detail table").nth(i).inner_text() for i in (0, 1))
        assert "FLOPs\t?\t?" in numbers
        assert "\n?\t" in operators.replace("attention\t", "\n")
        shown.get_by_label("flat, own cost").check()
        assert "decode: text.attn" in rows(shown)


# What is wrong and what is missing add elements to the page of the toy; each is in one scheme.
@pytest.mark.parametrize(
    ("case", "scheme"),
    [
        pytest.param("toy", "light", marks=pytest.mark.thorough), ("wrong", "dark"), ("incomplete", "light"),
        pytest.param("hostile", "dark", marks=pytest.mark.thorough),
    ],
)  # fmt: skip
def test_no_rule_of_accessibility_is_broken(case: str, scheme: str, chromium: Browser, written: Written) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with opened(chromium, written(CASES[case]()), fragment="#sam/sam.layers.0.lin", scheme=scheme) as shown:
        shown.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
        found = Axe().run(shown).response["violations"]
        assert [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found] == []


def test_what_a_screen_reader_is_told(chromium: Browser, written: Written, golden: Golden) -> None:
    with opened(chromium, written(even(toy())), fragment="#sam/sam.layers.0.lin") as shown:
        golden("reports/toy.page.aria.yaml", shown.locator("body").aria_snapshot() + "\n")


def test_a_planted_script_does_not_run(chromium: Browser, written: Written) -> None:
    file = written(even(toy()))
    planted = "<script>document.title = 'planted'</script><img src=x onerror=\"document.title = 'planted'\">"
    file.write_text(file.read_text(encoding="utf-8").replace("<footer>", f"{planted}<footer>"), encoding="utf-8")
    with opened(chromium, file, blocked=2) as shown:
        assert shown.title() == "toy: exact"
        assert rows(shown) == ["sam", "clip", "decode"]


def test_a_hostile_name_does_nothing(chromium: Browser, written: Written) -> None:
    with opened(chromium, written(renamed(toy(), "text.attn", EVIL)), fragment="#decode/") as shown:
        shown.get_by_role("button", name="Open all").click()
        shown.get_by_role("row", name="onerror").last.click()
        heading = shown.locator("#detail h3").filter(has_text="onerror")
        heading.wait_for()  # shown when the browser has told of the new address
        assert EVIL in heading.inner_text().replace("\n", "")
        assert shown.locator("img").count() == 0


def test_light_and_dark(chromium: Browser, written: Written) -> None:
    with opened(chromium, written(even(toy())), scheme="dark") as shown:
        paper = "getComputedStyle(document.body).backgroundColor"
        assert shown.evaluate(paper) == "rgb(20, 24, 29)"
        shown.get_by_role("button", name="Light").click()
        assert shown.evaluate(paper) == "rgb(255, 255, 255)"


def test_on_paper(chromium: Browser, written: Written) -> None:
    with opened(chromium, written(even(toy())), scheme="dark") as shown:
        shown.emulate_media(media="print", color_scheme="dark")
        assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not shown.get_by_role("button", name="Copy CSV").is_visible()
        assert shown.pdf()[:4] == b"%PDF"


def test_on_a_phone(chromium: Browser, written: Written) -> None:
    with opened(chromium, written(even(wrong())), fragment="#sam/sam.layers.0.lin", width=360) as shown:
        assert shown.evaluate("document.documentElement.scrollWidth") == 360
        shown.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
        shown.evaluate(WIDEN)
        assert shown.evaluate("document.documentElement.scrollWidth") == 360


def test_copies_are_tables(chromium: Browser, written: Written) -> None:
    with opened(chromium, written(even(toy()))) as shown:
        shown.get_by_role("button", name="Copy CSV").click()
        shown.get_by_role("button", name="Copied").wait_for()
        said = shown.evaluate("navigator.clipboard.readText()")
        head, first, *_ = said.splitlines()
        assert head == '"Stage","Module","Modules","Class","FLOPs","Status"'
        assert first == '"sam","","1","","1792","exact"'
        shown.get_by_role("button", name="Copy Markdown").click()
        shown.get_by_role("button", name="Copied").nth(0).wait_for()
        shown.get_by_role("button", name="Copied").nth(0).click()
        shown.get_by_role("button", name="Copy CSV").wait_for()
        shown.get_by_role("button", name="Copy Markdown").wait_for()  # pressed twice, it has its own name again


def test_without_scripts_the_tables_are_there(chromium: Browser, written: Written) -> None:
    context = chromium.new_context(java_script_enabled=False, offline=True)
    try:
        shown = context.new_page()
        shown.goto(written(even(toy())).as_uri())
        said = shown.locator("body").inner_text()
        assert "1,792" in said
        assert "key/value cache bytes" in said
    finally:
        context.close()


def test_a_diff(chromium: Browser, tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    file = tmp_path / "diff.html"
    file.write_text(diff_page(doubled(10**12)), encoding="utf-8", newline="\n")
    with opened(chromium, file, width=360) as shown:
        assert shown.locator(".metric:visible").count() == 1
        assert "+1,792,000,000,000,000" in shown.locator(".metric:visible").inner_text()
        shown.get_by_text("parameters", exact=True).first.click()
        assert shown.locator(".metric:visible").get_attribute("data-metric") == "params"
        assert shown.evaluate("document.documentElement.scrollWidth") == 360
        shown.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
        shown.evaluate(WIDEN)
        assert shown.evaluate("document.documentElement.scrollWidth") == 360
        found = Axe().run(shown).response["violations"]
        assert [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found] == []


def test_a_change_has_no_colour_of_success(chromium: Browser, tmp_path: Path) -> None:
    """Twice the cost is neither right nor wrong: its bar has the colour of plain text."""
    file = tmp_path / "diff.html"
    file.write_text(diff_page(doubled()), encoding="utf-8")
    colour = "(name) => getComputedStyle(document.querySelector(name)).borderLeftColor"
    with opened(chromium, file) as shown:
        shown.evaluate("document.body.insertAdjacentHTML('beforeend', '<p class=\"verdict exact\" id=\"right\"></p>')")
        bar, right = shown.evaluate(colour, "#verdict"), shown.evaluate(colour, "#right")
        assert bar == "rgb(85, 96, 108)"
        assert bar != right


def test_shares_are_rounded_as_everywhere(chromium: Browser, written: Written) -> None:
    """100 + 156 of 256 + 896 FLOP is 22.22 %, and the rest 77.78 %: cut, it would be 77.7."""
    capture = toy()
    ledgers = []
    for ledger in capture.ledgers:
        nodes = tuple(
            replace(n, costs={**n.costs, "flops": {"global": 100, "crops": 156}[n.invocation]}, exprs={})
            if n.module == "sam.layers.0.lin" and n.kind else replace(n, exprs={})
            for n in ledger.nodes
        )  # fmt: skip
        ledgers.append(replace(ledger, nodes=nodes))
    with opened(chromium, written(replace(capture, ledgers=tuple(ledgers)))) as shown:
        shown.get_by_role("button", name="Open all").click()
        text = shown.locator("#tree").inner_text()
    assert "22.2 %" in text
    assert "77.8 %" in text
    assert "77.7 %" not in text


def test_what_a_rank_sends_is_a_metric_of_the_page(chromium: Browser, written: Written) -> None:
    """Of 8 tokens of 4,096 x 2 bytes, 5 all-reduces of two layers send 2 x 7 / 8; 16,032 logits of each go to 7."""
    run: dict[str, Any] = {"layers": 2, "text_tokens": 8, "new_tokens": 0, "sources": ("analytic",)}
    sent = 5 * 8 * 4096 * 2 * 2 * 7 // 8 + 7 * 8 * 16_032 * 2
    assert sent == 2_369_024
    with opened(chromium, written(costproof.capture("llama-3.1-8b", tp=8, **run))) as shown:
        for name, title, value, short in (
            ("comm_bytes", "bytes sent", f"{sent:,}", "2.37 MB"),
            ("messages", "collectives", "6", "6"),
        ):
            chip = shown.locator(f".chips label:has(input[value={name}])")
            assert (chip.locator("span").inner_text(), chip.locator("b").inner_text()) == (title, short)
            chip.click()
            table = shown.locator(f".metric[data-metric={name}]")
            assert table.is_visible()
            assert value in table.inner_text()
            assert title in shown.locator("#tree thead").inner_text()
            assert rows(shown)[0] == "prefill"
        assert shown.locator(".chips input[value=comm_payload_bytes]").count() == 1
    with opened(chromium, written(costproof.capture("llama-3.1-8b", **run))) as shown:
        assert shown.locator(".chips input[value=comm_bytes]").count() == 0
