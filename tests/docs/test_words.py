"""Words that the texts of costproof do without, and what they say instead; names that mean one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
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
    r"behind (a|its|the) (past|cache|prefix)|modules? for further tokens": "after cached tokens; MTP module",
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


def test_a_class_name_is_defined_once() -> None:
    found = defaultdict(list)
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_tests_import_scripts_of_benchmarks_only_to_test_them() -> None:
    """Independent counts and planted mistakes are in tests/oracles; what ``make gpu-check`` ships is in benchmarks."""
    tested = {
        "gpu",
        "gpu_page",
        "gpu_steps",
        "gpu_summary",
        "flash_kernels",
        "requested",
        "review",
        "same_numbers",
        "allocations",
        "peaks",
        "real_jobs",
        "checkpoints",
    }
    imports = re.compile(r"^\s*from benchmarks(?:\.(\w+))? import (\w+)", flags=re.MULTILINE)
    found = {
        module or name for path in (ROOT / "tests").rglob("*.py") for module, name in imports.findall(path.read_text())
    }
    assert found <= tested
