"""The page of reviews is what the program makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.review import page

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_made_by_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    made = page()
    assert made == (ROOT / "docs" / "review.md").read_text(), "python -m benchmarks.review > docs/review.md"
