"""Each format on the toy model, as text goldens; what the texts must and must not hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from costproof import compare
from costproof.ledger.capture import Capture
from costproof.ledger.errors import Incomplete
from costproof.ledger.node import Ledger
from costproof.reports.report import Report
from costproof.reports.summary import summary_text
from tests.conftest import Golden
from tests.support.toy import hostile, incomplete, toy, wrong

FORMATS = (
    "capture-json",
    "static-json",
    "static-md",
    "discrepancy-json",
    "discrepancy-md",
    "discrepancy-short",
    "callgraph-json",
    "summary",
)
CASES: dict[str, Callable[[], Capture]] = {"toy": toy, "wrong": wrong, "incomplete": incomplete, "hostile": hostile}


SHOWN = {
    "toy": ("static-json", "static-md", "discrepancy-md", "callgraph-json", "summary"),
    "wrong": ("discrepancy-md", "discrepancy-short", "summary"),
    "incomplete": ("static-md", "discrepancy-md", "summary"),
    "hostile": ("summary",),
}
"""Texts that are kept as goldens: each shows something that no other shows. The other files have schemas and rules."""


@pytest.mark.parametrize(("case", "name"), [(case, name) for case, names in SHOWN.items() for name in names])
def test_format(case: str, name: str, golden: Golden) -> None:
    suffix = {"json": "json", "md": "md", "short": "md"}.get(name.rpartition("-")[2], "txt")
    golden(f"reports/{case}.{name}.{suffix}", compare(CASES[case]()).render(name))


@pytest.mark.parametrize("name", FORMATS)
def test_same_input_same_bytes(name: str) -> None:
    assert compare(toy()).render(name) == compare(toy()).render(name)


@pytest.mark.parametrize("name", [n for n in FORMATS if n.endswith("-md")])
@pytest.mark.parametrize("case", CASES)
def test_markdown_is_for_people(case: str, name: str) -> None:
    text = compare(CASES[case]()).render(name)
    lines = text.splitlines()
    assert lines[0].startswith("# ")
    assert lines[2].startswith("**") and lines[2].endswith("**")  # noqa: PT018  (one fact: the verdict comes first)
    first_table = text.split("\n\n")[3].splitlines()
    assert first_table[0].startswith("| ")
    assert len(first_table) - 2 <= 15
    assert text.count("<details>") == text.count("</details>") > 0
    assert re.search(r"^## Conventions", text, re.M)


@pytest.mark.parametrize("name", ["static-md", "discrepancy-md"])
def test_hostile_names_stay_in_their_cells(name: str) -> None:
    text = compare(hostile()).render(name)
    assert "<script" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    tables = [block for block in text.split("\n\n") if block.startswith("| ")]
    assert tables
    for block in tables:
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_a_stage_that_does_not_run_is_called_so() -> None:
    assert re.search(r"clip .*not-executed", summary_text(Report(toy())))


def test_the_summary_fits_a_narrow_terminal() -> None:
    table = summary_text(Report(toy()), width=64).split("\n\n")[1].splitlines()
    assert max(map(len, table)) <= 64
    assert "…" not in "".join(table)
    assert table[2].split() == ["sam", "40", "1.79", "k", "1.79", "k", "1.79", "k", "exact"]


def test_no_machine_in_any_text() -> None:
    texts = [compare(toy()).render(name) for name in FORMATS]
    home = str(Path.home())
    for text in texts:
        assert home not in text
        assert not re.search(r"20\d\d-\d\d-\d\d", text)


def test_a_capture_without_a_run_has_no_callgraph() -> None:
    with pytest.raises(Incomplete, match="no callgraph"):
        compare(replace(toy(), callgraph=None)).render("callgraph-json")


def test_a_report_reads_well_in_a_notebook() -> None:
    found = compare(toy())
    assert repr(found).startswith("toy, toy-v1:")
    assert found._repr_markdown_() == found.render("static-md")
    assert repr(toy()) == "Capture(toy at toy-v1: analytic, static, dynamic)"
    # 2 layers x (parameters + 2 calls x (FLOPs + the rest)) + 1 (clip) + 3 (decode)
    assert repr(toy().ledgers[0]) == "Ledger(analytic: 14 nodes, 3 stages)"


def test_the_short_comparison_fits_a_comment_whatever_the_names_are() -> None:
    """Findings of 400 modules with names of 5,000 characters that must be escaped: 15 rows, the largest first."""
    made = wrong()
    deep = "<|>&" * 1250

    def many(x: Ledger) -> Ledger:
        first = next(n for n in x.nodes if n.kind and n.invocation == "global")
        names = [f"{deep}{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(400)]
        flops = first.costs["flops"] or 0
        nodes = [replace(first, module=name, costs={"flops": flops * i}) for i, name in enumerate(names)]
        return replace(x, nodes=(*x.nodes, *nodes))

    made = replace(made, ledgers=tuple(map(many, made.ledgers)), target=replace(made.target, name=deep))
    found = compare(made)
    text = found.render("discrepancy-short")
    assert len(text) < 65_536
    open_ = [abs(f.residual or 0) for f in found.discrepancy.findings if f.status == "unexplained"]
    rows = [line for line in text.splitlines() if line.startswith("| ") and "unexplained" in line]
    assert 0 < len(rows) <= 15
    shown = [abs(int(line.split(" | ")[-2].replace(",", ""))) for line in rows]
    assert shown == sorted(shown, reverse=True)
    assert f"Left out here: {len(found.discrepancy.findings) - len(rows):,} comparisons" in text
    assert len(open_) > 15
