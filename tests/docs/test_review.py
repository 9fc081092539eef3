"""The page of reviews is what the program makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.review import page

import costproof
from costproof.ledger.capture import read_capture

ROOT = Path(__file__).resolve().parents[2]


def test_the_library_update_is_two_captures_and_decode_is_by_hand() -> None:
    base, head = (
        read_capture(ROOT / "docs/examples/review" / f"deepseek-v3-transformers-{version}.json")
        for version in ("4.57", "5.23")
    )
    # 512 positions expanded from the latent of 512 to 16 heads of 128 + 128, in 3 layers; 32 rotary angles fewer.
    expanded = 3 * 2 * 512 * 512 * 16 * (128 + 128)
    delta = {s.id: s.totals["flops"].delta for s in costproof.diff(base, head).stages}
    assert delta == {"prefill": -2 * 32 * 512, "decode": expanded - 2 * 32}


def test_the_page_is_made_by_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    made = page()
    assert made == (ROOT / "docs" / "review.md").read_text(), "python -m benchmarks.review > docs/review.md"
