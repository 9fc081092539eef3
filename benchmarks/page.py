"""The page of a capture in a browser: its size, when it is painted first, how long a filter takes.

    python -m benchmarks.page CAPTURE|PAGE.html...

A capture of DeepSeek-OCR at its default and one of DeepSeek-V3, 671 G parameters in 61 layers, are what docs quote. The
time to write a page is that of a process that has compared the capture already, as ``costproof report`` has. Of a page,
such as one that memray or pyinstrument has written, size and first paint are measured in the same way. Needs chromium
(``make browser``).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING

from tests.support.browsing import browser, opened

from costproof.ledger.capture import read_capture
from costproof.reports.report import Report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_TIMES = 8
_FILTER = """words => {
  const field = document.querySelector('input[type=search]'), begin = performance.now();
  field.value = words;
  field.dispatchEvent(new Event('input'));
  document.getElementById('tree').getBoundingClientRect();  // laid out, not only built
  return performance.now() - begin;
}"""
_PAINTED = """() => new Promise(done => new PerformanceObserver(list => {
  const found = list.getEntriesByName('first-contentful-paint')[0];
  if (found) done(found.startTime);
}).observe({ type: 'paint', buffered: true }))"""
_OPEN = "[...document.querySelectorAll('#tools button')].find(b => b.textContent === 'Open all').click()"


def main() -> None:
    """Print one line for each capture."""
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        for path in map(Path, sys.argv[1:]):
            if path.suffix == ".html":
                painted = [_painted(chromium, path) for _ in range(_TIMES)]
                print(f"{path.name}: {path.stat().st_size:,} bytes, {_first(painted)}")
                continue
            report = Report(read_capture(path))
            for part in (report.static, report.figures, report.discrepancy):
                assert part
            begin, spent = perf_counter(), process_time()
            text = report.render("html")
            wall, cpu = perf_counter() - begin, process_time() - spent
            file = Path(folder) / "page.html"
            file.write_text(text, encoding="utf-8", newline="\n")
            painted, filtered = [_painted(chromium, file) for _ in range(_TIMES)], []
            for _ in range(_TIMES):
                with opened(chromium, file) as page:
                    page.evaluate(_OPEN)
                    filtered += [page.evaluate(_FILTER, words) for words in ("a", "attn", "q_proj linear", "")]
            print(
                f"{path.name}: {len(text.encode()):,} bytes, written in {wall:.2f} s ({cpu:.2f} s of a processor), "
                f"{_first(painted)}, "
                f"filter {statistics.median(filtered):.0f} ms (most {max(filtered):.0f} of {len(filtered)}), "
                f"load {os.getloadavg()[0]:.1f}"
            )


def _painted(chromium: Browser, file: Path) -> float:
    """Milliseconds until something of a page is seen, offline; what it asks of a network and says is its own affair."""
    context = chromium.new_context(offline=True)
    try:
        page = context.new_page()
        page.goto(file.resolve().as_uri(), wait_until="commit")
        return float(page.evaluate(_PAINTED))
    finally:
        context.close()


def _first(painted: list[float]) -> str:
    return f"first paint {statistics.median(painted):.0f} ms (most {max(painted):.0f})"


if __name__ == "__main__":
    main()
