"""The pages of claims, counters, proofs and gates: the same frame, tables that can be searched, names as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from costproof.reports.outputs import variants
from costproof.views.explanation import explain
from tests.conftest import Golden
from tests.reports.pages import BIG, PAGES, claims, hostile_pages
from tests.reports.test_html import check_policy, read_tags
from tests.support.browsing import WIDEN, browser, opened
from tests.support.toy import toy

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def written(about: str) -> str:
    return variants(about)["html"].text(PAGES[about][0]())


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


def shown(page: Page) -> list[str]:
    """The first cell of each row that is shown."""
    return page.locator(
        ".sift > .wide > table > tbody:not([hidden]) > tr:first-child > td:first-child"
    ).all_inner_texts()


def cells(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))


@pytest.mark.parametrize("about", PAGES)
def test_the_policy_is_that_of_every_page_and_the_bytes_are_the_same(about: str) -> None:
    check_policy(written(about))
    assert written(about) == written(about)


@pytest.mark.parametrize("about", PAGES)
def test_names_are_data(about: str) -> None:
    tags = [t for t, _ in read_tags(variants(about)["html"].text(hostile_pages()[about]))]
    assert set(tags) <= {t for t, _ in read_tags(written(about))} | {"section", "ul", "li", "details", "summary"}
    assert tags.count("script") == 2


def test_claims_with_their_causes() -> None:
    """By hand: 1792 - 896 = 896; 2**53 + 1 = 9007199254740993, less 864 is 9007199254740129."""
    text = cells(written("claims"))
    assert "refuted: 3 claims, 1 right, 1 explained, 1 refuted." in text
    assert "macs ≈ explained flops 896 1,792 -896 mac; residual 0" in text
    assert "truth 1,792 mac a multiply-accumulate is 1 -896 sam/sam.layers.0.lin reaches 896" in text
    assert "Unexplained rest: +9,007,199,254,740,129. Of 7 sets" in text


def test_a_certificate_begins_with_what_refutes_it() -> None:
    text = written("certificate")
    assert 0 < text.index("Counterexamples") < text.index("Claims")
    assert "missing in the formula: 3*N" in cells(text)
    # H**2*n/8 typeset: a fraction of H squared times n over 8.
    assert "<mfrac><mrow><msup><mrow><mi>H</mi></mrow><mrow><mn>2</mn></mrow></msup><mo>·</mo><mi>n</mi></mrow>" in text
    assert "Counterexamples" not in variants("certificate")["html"].text(_proved())


def _proved() -> object:
    from tests.reports.pages import certificate

    return certificate()


def test_an_explanation_with_the_numbers_put_in(chromium: Browser, tmp_path: Path) -> None:
    """By hand (see the toy): a layer 512 with one view of 64, 384 with three of 32; both layers twice that."""
    file = tmp_path / "explain.html"
    file.write_text(variants("explain")["html"].text(explain(toy(), "sam", graph=toy())), encoding="utf-8")
    text = cells(file.read_text(encoding="utf-8"))
    assert "H = 64, n = 1, sam_hidden = 4 512 1,024 static: equal, aten.linear" in text
    assert "H = 32, n = 3, sam_hidden = 4 384 768 static: equal, aten.linear" in text
    assert "= 1,024 FLOP" in text
    assert "Derivation: Linear layer Each output element is a dot product" in text
    with opened(chromium, file) as page:
        assert page.locator(".equation math mfrac").count() == 2
        page.get_by_role("button", name="Copy CSV").first.click()
        page.get_by_role("button", name="Copied").wait_for()
        assert (
            page.evaluate("navigator.clipboard.readText()")
            .splitlines()[1]
            .startswith(
                '"sam.layers.[0-1].lin","2","linear, linear","H**2*n*sam_hidden**2/128","512","1024","static: equal'
            )
        )


def test_every_figure_of_every_counter_stands_in_one_table() -> None:
    """By hand, in test_counters: half counts 901 MACs of 2,056 FLOP, twice 3,848."""
    text = written("counters")
    assert '<data value="901" title="901">901</data>' in text
    assert '<data value="3848" title="3,848">3.85 kFLOP</data>' in text
    assert "broken" in text[: text.index("Figures")]  # what failed comes first
    assert "ValueError: no |rule|" in text


@pytest.mark.parametrize("about", PAGES)
def test_search_status_sort_and_rules_of_accessibility(about: str, chromium: Browser, tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    file = tmp_path / "page.html"
    file.write_text(written(about), encoding="utf-8", newline="\n")
    with opened(chromium, file, width=360, scheme="dark" if about == "gate" else "light") as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        every = shown(page)
        assert page.locator(".said").inner_text().startswith(f"{len(every)} of {len(every)} ")
        page.get_by_role("searchbox").fill("no such words")
        assert shown(page) == []
        page.get_by_role("searchbox").fill("")
        assert shown(page) == every
        page.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
        page.evaluate(WIDEN)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        found = Axe().run(page).response["violations"]
        assert [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found] == []


def test_a_table_is_searched_filtered_sorted_and_copied(chromium: Browser, tmp_path: Path, golden: Golden) -> None:
    file = tmp_path / "page.html"
    file.write_text(written("claims"), encoding="utf-8", newline="\n")
    with opened(chromium, file) as page:
        golden("reports/claims.page.aria.yaml", page.locator("body").aria_snapshot() + "\n")
        page.get_by_label("Status").select_option("explained")
        assert shown(page) == ["macs"]
        page.get_by_label("Status").select_option("")
        page.get_by_label("Filter claims").fill("MAC sam")  # words of causes and evidence too
        assert shown(page) == ["macs"]
        page.get_by_label("Filter claims").fill("")
        page.get_by_role("button", name="claim − truth").click()
        assert shown(page) == ["dec", "enc", "macs"]  # 2**53 + 1 - 864, 0, -896
        page.get_by_role("button", name="claim − truth").click()
        assert shown(page) == ["macs", "enc", "dec"]
        assert page.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"
        page.get_by_role("button", name="claim − truth").click()
        assert shown(page) == ["enc", "macs", "dec"]
        page.get_by_role("button", name="Copy CSV").click()
        page.get_by_role("button", name="Copied").wait_for()
        last = page.evaluate("navigator.clipboard.readText()").splitlines()[-1]
        assert last == f'"dec","✗ refuted","flops","{BIG}","864","{BIG - 864}",""'


def test_rows_beyond_a_thousand_are_said(chromium: Browser, tmp_path: Path) -> None:
    from dataclasses import replace

    found = claims()
    many = tuple(replace(found.judgements[0], id=f"c{i}") for i in range(1_007))
    file = tmp_path / "page.html"
    file.write_text(variants("claims")["html"].text(replace(found, judgements=many)), encoding="utf-8")
    with opened(chromium, file) as page:
        bodies, said = page.locator(".sift > .wide > table > tbody"), page.locator(".said")
        assert bodies.count() == 100
        assert said.inner_text() == "100 of 1,000 claims shown; 900 more match. 7 more are in the JSON."
        page.get_by_role("button", name="Show 100 more").click()
        assert bodies.count() == 200
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert bodies.count() == 1_000
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert bodies.count() == 200
        page.get_by_role("button", name="Copy CSV").click()
        page.get_by_role("button", name="Copied").wait_for()
        assert len(page.evaluate("navigator.clipboard.readText()").splitlines()) == 1_001
        page.get_by_label("Filter claims").fill("c999")  # it was not in the document
        assert shown(page) == ["c999"]
        assert said.inner_text() == "1 of 1,000 claims shown. 7 more are in the JSON."
        assert not page.get_by_role("button", name="Show 100 more").is_visible()
    context = chromium.new_context(java_script_enabled=False, offline=True)
    try:
        page = context.new_page()
        page.goto(file.as_uri())
        assert page.locator(".sift > .wide > table > tbody").count() == 100
        assert "900 more need scripts." in page.locator("#claims").inner_text()
    finally:
        context.close()


# All three have the same table.
@pytest.mark.parametrize("about", ["claims", pytest.param("counters", marks=pytest.mark.thorough), "gate"])
def test_a_phone_shows_every_verdict(about: str, chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(written(about), encoding="utf-8")
    with opened(chromium, file, width=400) as page:
        frame = page.locator(".sift > .wide").first.bounding_box()
        assert frame is not None
        verdicts = page.locator(".sift > .wide > table > tbody > tr:first-child .status").all()
        assert len(verdicts) == page.locator(".sift > .wide > table > tbody").count()
        for verdict in verdicts:
            box = verdict.bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= frame["x"] + frame["width"] <= 400
