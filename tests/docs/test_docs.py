"""Documentation that runs: examples in README and docs are executed, and what they name exists."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from costproof.estimate.hardware import registry
from costproof.models.registry import TARGETS
from costproof.opgraph.rules.registry import RULES
from costproof.reports.outputs import REGISTRY
from costproof.tracers.counters.protocol import COUNTERS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]

ELSEWHERE = ("vision-models.md",)
"""Pages whose examples need packages that other tests do not see; tests/support/vision_packages.py runs them."""


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in ELSEWHERE], ids=lambda p: p.name)
def test_examples_give_what_they_show(page: Path) -> None:
    # The closing fence would be taken for output.
    text = re.sub(r"^```\w*$", "", page.read_text(), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, page.name, page.name, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(examples)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def test_the_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make (\w+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_entry_point_groups_are_those_that_are_read() -> None:
    said = {g for page in PAGES for g in re.findall(r"\bgroup\s+`([\w.]+)`", page.read_text())}
    assert said == {r.group for r in (RULES, TARGETS, COUNTERS, REGISTRY, registry())}


def test_the_tests_that_security_names_exist() -> None:
    named = re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)`", (ROOT / "SECURITY.md").read_text())
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).is_file()] == []
