"""The pictures in docs, made anew: small PNGs of pages in a real browser, and what the program draws of the same run.

    python -m benchmarks.pictures CAPTURE

The capture is one of DeepSeek-OCR at its default, made with ``--peaks``. Needs chromium (``make browser``).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.browsing import browser, opened

import costproof
from costproof.ledger.capture import Capture, read_capture
from costproof.ledger.node import CostNode
from costproof.reports.outputs import variants

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DOCS: Final = Path(__file__).parents[1] / "docs"
ROW: Final = "#sam/sam.layer.attention.qkv"
WIDTH: Final = 1280
_NARROW: Final = 1000
_COLOURS: Final = 96
_OPEN: Final = "document.querySelectorAll('.sift details')[1].open = true"
_MEMORY: Final = "document.getElementById('memory').scrollIntoView()"


def main() -> None:
    """Write the pictures, and say how large they are."""
    capture = read_capture(Path(sys.argv[1]))
    with browser() as chromium:
        for name, text, height, fragment, act in _pages(capture):
            size = _picture(chromium, text, DOCS / f"{name}.png", height, fragment, act)
            print(f"docs/{name}.png: {size:,} bytes")
    for name, png in _drawn(replace(capture, peaks=())):
        print(f"docs/pictures/{name}.png: {_small(png, DOCS / 'pictures' / f'{name}.png'):,} bytes")


def _pages(capture: Capture) -> Iterator[tuple[str, str, int, str, str]]:
    """Name, page, height, where it is opened, and what is done to it."""
    yield "page", costproof.render(replace(capture, peaks=()), "html"), 1500, ROW, ""
    yield "wrong", costproof.render(halved(capture), "html"), 620, "", ""
    yield "memory", costproof.render(capture, "html"), 820, "", _MEMORY
    diff = costproof.diff("deepseek-ocr@gundam:2x2", "deepseek-ocr@gundam:3x3,text.topk=8")
    yield "diff", variants("diff")["html"].text(diff), 900, "", ""
    claims = costproof.check(DOCS / "examples" / "published-table.yaml", "deepseek-ocr")
    yield "claims", variants("claims")["html"].text(claims), 820, "", _OPEN


def _drawn(capture: Capture) -> Iterator[tuple[str, bytes]]:
    """Name and PNG. The others of docs/pictures are of runs of their own; docs/plots.md has their commands."""
    yield "slide", bytes(costproof.graph(capture, "png", slide=True))  # type: ignore[arg-type]
    yield "shares", costproof.plot(capture, "png")["shares.png"]
    yield "roofline", costproof.plot(costproof.roofline(capture, on="h100-sxm"), "png")["roofline.png"]
    clip = costproof.operators("deepseek-ocr", "clip", preset="base")
    yield "operators", bytes(costproof.operator_graph(clip, "png"))  # type: ignore[arg-type]


def halved(capture: Capture) -> Capture:
    """The capture with half of the formula of a linear layer: a multiply-accumulate taken for one operation."""

    def wrong(n: CostNode) -> CostNode:
        if not n.module.endswith("mlp.lin1") or "flops" not in n.exprs:
            return n
        costs = {**n.costs, "flops": (n.costs["flops"] or 0) // 2}
        return replace(n, costs=costs, exprs={**n.exprs, "flops": f"({n.exprs['flops']})/2"})

    ledgers = (replace(x, nodes=tuple(map(wrong, x.nodes))) if x.source == "analytic" else x for x in capture.ledgers)
    return replace(capture, ledgers=tuple(ledgers), peaks=())


def _picture(chromium: Browser, text: str, to: Path, height: int, fragment: str, act: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(text, encoding="utf-8", newline="\n")
        with opened(chromium, file, fragment=fragment, width=WIDTH) as page:
            page.set_viewport_size({"width": WIDTH, "height": height})
            if act:
                page.evaluate(act)
            else:
                page.evaluate("scrollTo(0, 0)")
            shot = page.screenshot()
    return _small(shot, to)


def _small(png: bytes, to: Path) -> int:
    """Write a picture with few colours; how large the file is."""
    from PIL import Image

    shown = Image.open(BytesIO(png)).convert("RGB")
    if shown.width > WIDTH:  # two dots a pixel
        shown = shown.resize((_NARROW, _NARROW * shown.height // shown.width), Image.Resampling.LANCZOS)
    shown.quantize(_COLOURS).save(to, optimize=True)
    return to.stat().st_size


if __name__ == "__main__":
    main()
