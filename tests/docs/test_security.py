"""SECURITY.md: whatever is promised names tests, and these are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
_, TABLE = PAGE.split("## Tests of each promise\n")
PROMISES = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize(("promise", "named"), PROMISES, ids=[p for p, _ in PROMISES])
def test_a_promise_has_tests(promise: str, named: str) -> None:
    files = re.findall(r"`([^`]+)`", named)
    assert any(f.startswith("tests/") for f in files), promise
    for file in files:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert "\ndef test_" in text or file.startswith("benchmarks/"), file


def test_there_are_promises() -> None:
    assert len(PROMISES) >= 13
