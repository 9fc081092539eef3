"""Peak memory and the roofline on the page of a capture, of numbers that can be worked out on paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import costproof as cp
from costproof.estimate.hardware import Device, DeviceFigure, DevicePeak
from costproof.ledger.capture import Capture
from costproof.ledger.peaks import CallPeaks, GapPart, LiveTensor, Peaks, by_stage
from costproof.opgraph.liveness import MemoryEvent, Timeline, peak_of
from costproof.reports.html.printer import HtmlPrinter
from costproof.reports.outputs import variants
from costproof.reports.peaks import section
from tests.conftest import Golden
from tests.reports.test_html import EVIL, check_policy, page, read_tags
from tests.support.browsing import WIDEN, browser, opened
from tests.support.running import costproof
from tests.support.toy import toy
from tests.support.written import write_capture

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TERA = 10**12
DEVICE_OF_ONE = Device(
    "one", "one of each", "measured", {}, (DevicePeak("bfloat16", TERA, "dense", "matrix", ()),), DeviceFigure(TERA, ())
)
"""10^12 FLOP and 10^12 bytes a second."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


def peaks_part(calls: tuple[CallPeaks, ...]) -> str:
    made = section(calls)
    return "" if made is None else HtmlPrinter().block(made)


def tensor(name: str, size: int, module: str = "sam") -> LiveTensor:
    return LiveTensor(name, (size,), "uint8", size, "" if name == "x" else f"aten.{name}.default", module)


def peaks(module: str = "sam.layers.0.lin") -> tuple[CallPeaks, ...]:
    """The graph holds 10, 110, 130, 30, 35, 15 bytes; the module keeps a (100) while c is made: 135 at most."""
    tensors = (tensor("x", 10), tensor("a", 100), tensor("b", 20, module), tensor("c", 5))
    x, a, b, c = (MemoryEvent(i, made=True) for i in range(4))
    a_gone, b_gone = (MemoryEvent(i, made=False) for i in (1, 2))
    graph = peak_of(Timeline(tensors, (x, a, b, a_gone, c, b_gone)))
    eager = peak_of(Timeline(tensors, (x, a, b, c, a_gone, b_gone)))
    gap = (GapPart("held", 100, tensors[1], ("f: a",)), GapPart("elsewhere", -95, None, where=module))
    return (CallPeaks("sam", "global", "sam@64", graph, eager, gap), CallPeaks("decode", "steps", "", None, None))


def with_traffic() -> Capture:
    """The toy, whose sources also know that nothing else moves."""
    ledgers = tuple(replace(x, metrics=(*x.metrics, "input_bytes", "kv_read_bytes")) for x in toy().ledgers)
    return replace(toy(), ledgers=ledgers, peaks=peaks())


def test_bars_are_as_high_as_what_is_alive() -> None:
    """200 high for 135 bytes: 135 -> 200, 130 -> 192, 110 -> 162, 35 -> 51, 30 -> 44, 15 -> 22, 10 -> 14."""
    part = peaks_part(peaks())
    assert part is not None
    eager, graph = re.findall(r'<g class="s[01]">(.*?)</g>', part)
    heights = [int(n) for n in re.findall(r'height="(\d+)"', graph)]
    assert heights == [14, 162, 192, 44, 51, 22]
    assert [int(n) for n in re.findall(r'height="(\d+)"', eager)] == [14, 162, 192, 200, 51, 22]
    # Six stretches of 200 of 1,200.
    assert re.findall(r'x="(\d+)"', graph) == ["0", "200", "400", "600", "800", "1000"]
    assert set(re.findall(r'width="(\d+)"', graph)) == {"200"}
    assert "<title>event 3: 130 bytes, in sam.layers.0.lin</title>" in graph


def test_what_is_alive_sums_to_the_peak() -> None:
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", peaks_part(peaks()) or ""))
    assert (
        "a 100 uint8 sam 100 b 20 uint8 sam.layers.0.lin 20 x 10 uint8 (input) 10 c 5 uint8 sam 5 together 135" in text
    )
    assert "sam 130 B, 130 135 B, 135" in text
    assert "decode not known not known" in text
    assert "held, and read no more a of sam, 100 f: a 100" in text


def test_many_tensors_are_said_together() -> None:
    """40 of 1 to 40 bytes: the 15 largest are 26 to 40; the others sum to 25 * 26 / 2 = 325, all to 820."""
    tensors = tuple(tensor(f"t{n}", n) for n in range(1, 41))
    found = peak_of(Timeline(tensors, tuple(MemoryEvent(i, made=True) for i in range(40))))
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", peaks_part((CallPeaks("sam", "a", "b", None, found),)) or ""))
    assert "25 smaller tensors 325 together 820" in text
    assert " t26 " in text
    assert " t25 " not in text


def test_without_peaks_and_without_a_device_nothing_is_said() -> None:
    assert 'id="memory"' not in page(toy())
    assert 'id="roof"' not in page(toy())
    assert 'data-metric="time"' not in page(toy())


def test_time_at_the_roof() -> None:
    """At 10^12 each: sam 1,792 FLOP against 160 + 448 bytes, so 1.792 ns; decode 864, 324 bytes; together 2.656 ns."""
    text = cp.render(with_traffic(), "html", on=DEVICE_OF_ONE)
    check_policy(text)
    said = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))
    assert "sam 1.79 kFLOP ? 608 B 2.9 1.792 ns 0.608 ns 1.792 ns compute" in said
    assert "whole run 2.66 kFLOP ? 932 B 2.8 2.656 ns 0.932 ns 2.656 ns compute" in said
    assert "one of each" in said
    # On the first screen: 1,792 of 2,656 is 67.47 %, 864 of 2,656 is 32.53 %.
    assert "time at the roof 2.656 ns" in said
    assert "sam 67.5 % 1.792 ns 1.792 ns 0.608 ns compute" in said
    assert "total 2.656 ns 2.656 ns 0.932 ns compute" in said
    bar = text.split('data-metric="time"')[1].split("</svg>")[0]
    assert re.findall(r'<rect x="([\d.]+%)" width="([\d.]+%)"', bar) == [("0.0%", "67.4%"), ("67.4%", "32.5%")]


def test_render_on_a_device(tmp_path: Path) -> None:
    write_capture(tmp_path / "toy.json", with_traffic())
    found = costproof("render", "toy.json", "-f", "html", "--on", "l4", cwd=tmp_path)
    assert (found.code, found.stdout) == (0, cp.render(with_traffic(), "html", on="l4"))
    other = costproof("render", "toy.json", "-f", "summary", "--on", "l4", cwd=tmp_path)
    assert other.code == 2
    assert "--on has no effect on this format" in other.stderr


def test_names_are_data() -> None:
    evil = replace(with_traffic(), peaks=peaks(EVIL))
    known = {t for t, _ in read_tags(cp.render(with_traffic(), "html", on=DEVICE_OF_ONE))}
    assert {t for t, _ in read_tags(cp.render(evil, "html", on=DEVICE_OF_ONE))} == known


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.thorough), "dark"])
def test_in_a_browser(scheme: str, tmp_path: Path, golden: Golden, chromium: Browser) -> None:
    from axe_playwright_python.sync_playwright import Axe

    file = tmp_path / "page.html"
    file.write_text(cp.render(with_traffic(), "html", on=DEVICE_OF_ONE), encoding="utf-8", newline="\n")
    with opened(chromium, file, scheme=scheme, width=360) as shown:
        assert shown.evaluate("document.documentElement.scrollWidth") == 360
        shown.get_by_text("time at the roof", exact=True).first.click()
        assert shown.locator(".metric:visible").get_attribute("data-metric") == "time"
        assert shown.locator("#tree th").nth(3).inner_text() == "FLOPs"  # modules have no time of their own here
        golden("reports/plots.page.aria.yaml", shown.locator("#memory").aria_snapshot() + "\n")
        shown.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
        shown.evaluate(WIDEN)
        assert shown.evaluate("document.documentElement.scrollWidth") == 360
        assert shown.locator("#memory svg[role=img]").evaluate("s => s.getBoundingClientRect().height") == 180
        found = Axe().run(shown).response["violations"]
        assert [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found] == []


def test_the_page_of_peaks_in_a_browser(tmp_path: Path, chromium: Browser) -> None:
    from axe_playwright_python.sync_playwright import Axe

    of, (call, other) = toy(), peaks()
    assert call.eager is not None
    far = "model." + "a_module_of_a_long_name." * 4 + "attn"  # wider than a phone, without a place to break
    calls = (replace(call, part=far, eager=replace(call.eager, module=far)), replace(other, part=far))
    found = Peaks(of.conventions, of.target, of.workload, of.environment, by_stage(calls), calls)
    file = tmp_path / "peaks.html"
    file.write_text(variants("peaks")["html"].text(found), encoding="utf-8", newline="\n")
    with opened(chromium, file, width=360) as shown:
        assert "The largest peak is 135 bytes" in shown.locator("#verdict").inner_text()
        shown.locator("details").evaluate_all("all => all.forEach(d => { d.open = true; })")
        shown.evaluate(WIDEN)
        assert shown.evaluate("document.documentElement.scrollWidth") == 360
        broken = Axe().run(shown).response["violations"]
        assert [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in broken] == []
