"""A model of one stage has each sum once, and counts of one are in the singular."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import costproof
from costproof.compare.diff.diff import diff
from costproof.ledger.baseline import Baseline, Folded, fold_capture
from costproof.ledger.capture import Capture
from costproof.ledger.plural import plural, verb
from costproof.reports.gate import gate_sentence
from costproof.reports.html.capture_page import capture_page
from costproof.reports.html.notebook import cell
from costproof.reports.outputs import variants
from costproof.reports.report import Report
from tests.reports.test_gate_texts import over
from tests.support.toy import toy

static_md = variants("static")["md"].text
discrepancy_md = variants("discrepancy")["md"].text

diff_md = variants("diff")["md"].text
diff_text = variants("diff")["text"].text

SRC = Path(costproof.__file__).parent


def sam() -> Capture:
    """The toy's first stage alone: 1,792 FLOPs, by hand in ``toy``, of 40 parameters."""
    of = toy()
    ledgers = [replace(x, stages=("sam",), nodes=tuple(n for n in x.nodes if n.stage == "sam")) for x in of.ledgers]
    called = tuple(i for i in of.invocations if i.stage == "sam")
    return replace(
        of, target=replace(of.target, stages=("sam",)), ledgers=tuple(ledgers), invocations=called,
        callgraph=None, trace_check=None,
    )  # fmt: skip


def baseline(flops: int | None) -> Baseline:
    """One stage with one row."""
    made = fold_capture(sam())
    rows = {"sam": {"sam.layer": {"linear": {"flops": flops}}}}
    return replace(made, sources={"analytic": Folded(("flops",), ("sam",), rows)})


def test_reports_have_each_sum_once() -> None:
    found = Report(sam())
    overview, exact = static_md(found).split("<details>")[:2]
    assert "| sam | 100.0 % |" in overview
    assert "total" not in overview
    assert "| FLOPs | 1,792 |\n" in exact
    assert "total" not in discrepancy_md(found).split("<details>")[0]
    page = re.sub(r"<script.*", "", capture_page(found), flags=re.S)
    assert "<b>total</b>" not in page
    assert "total" in static_md(Report(toy())).split("<details>")[0]
    assert "<b>total</b>" in capture_page(Report(toy()))
    assert "total" not in cell(sam().ledgers[0])


def test_a_diff_has_each_sum_once() -> None:
    found = diff(baseline(100), baseline(150))
    (row,) = (line.split() for line in diff_text(found).splitlines() if line.startswith(" sam ") and "150" in line)
    assert row == ["sam", "FLOPs", "100", "FLOP", "150", "FLOP", "+50", "FLOP", "+50.0", "%"]
    assert not re.search(r"^ total ", diff_text(found), re.M)
    assert "total" not in diff_md(found)
    assert "<b>total</b>" not in variants("diff")["html"].text(found)


def test_fits_has_each_sum_once() -> None:
    """A model of one stage has no rows of stages, and a bound has no row where the live peak is known."""
    found = costproof.fits("bert-base@sentence", on="l4")
    assert len(found.stages) == 1
    for kind in ("text", "md"):
        text = variants("fits")[kind].text(found)
        assert text.count(f"{found.live_bytes:,}") == 1
        assert f"{found.activations_bytes:,}" not in text
        assert "?" not in text


def test_counts_of_one() -> None:
    assert [plural(n, "check") for n in (0, 1, 2, 1000)] == ["0 checks", "1 check", "2 checks", "1,000 checks"]
    assert plural(2, "family", "families") == "2 families"
    assert (verb(1), verb(2), verb(0, "differs", "differ")) == ("is", "are", "differ")
    first = next(c for c in over().checks if c.status == "over")
    found = replace(over(), checks=(first,), incomplete=("a reason",), verdict="over")
    assert " 1 of 1 check; " in gate_sentence(found)


def test_there_is_one_helper() -> None:
    """A suffix that is chosen in place is another helper."""
    chosen = re.compile(r"""['"]s['"] (if|\*) |else ['"]s['"]""")
    found = [str(p.relative_to(SRC)) for p in SRC.rglob("*.py") if chosen.search(p.read_text(encoding="utf-8"))]
    assert found == []
