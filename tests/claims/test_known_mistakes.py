"""The list of known mistakes in docs/claims.md is the table that the search uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from costproof.claims.catalogue import mistakes_markdown
from costproof.models.registry import mistakes_of

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
BEGIN, END = "<!-- known mistakes: ", "<!-- end of known mistakes -->"
TARGETS = ("deepseek-ocr", "deepseek-v3", "qwen2-5-vl", "qwen3-vl-vision")


def test_the_list_is_current(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    marker, listed = rest.split("\n", 1)
    listed, after = listed.split(END)
    current = f"\n{mistakes_markdown({name: mistakes_of(name) for name in TARGETS})}\n"
    if request.config.getoption("--update-goldens"):
        PAGE.write_text(f"{before}{BEGIN}{marker}\n{current}{END}{after}", encoding="utf-8")
    else:
        assert listed == current, "run pytest --update-goldens tests/claims/test_known_mistakes.py"


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_adds_rows(name: str) -> None:
    assert mistakes_of(name).table
