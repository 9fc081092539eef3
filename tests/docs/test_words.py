"""Words that the texts of costproof do without, and what they say instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXTS = sorted(
    [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "benchmarks").glob("*.py"),
        *(ROOT / "docs").glob("*.md"),
        *ROOT.glob("*.md"),
    ]
)
WORDS = {
    "perceptron": "MLP",
    "unruled": "operator without a cost rule",
    r"(other people|somebody else)'s": "published (numbers), third-party (counters)",
    r"(take|takes|taken|taking) apart": "break down, explain",
    # "There is no such stage" is English; "this is no stage" is not.
    r"(?<!there )\b(is|are|was|were) no (?!longer\b)\w+": "is not a …",
    "spelling": "variant",
    r"mend(s|ed|ing)?": "fix",
}
"""What is not written -> what is."""


@pytest.mark.parametrize("words", WORDS)
def test_words_that_are_not_written(words: str) -> None:
    pattern = re.compile(rf"\b(?:{words})\b", flags=re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}, say: {WORDS[words]}"
        for path in TEXTS
        for match in pattern.finditer(re.sub(r"\s+", " ", path.read_text()))
    ]
    assert not found, "\n".join(found)
