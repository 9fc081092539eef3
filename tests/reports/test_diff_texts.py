"""What people read of a diff: short enough for a comment, whole sections or none, names made harmless."""

from __future__ import annotations

import csv
from dataclasses import replace
from io import StringIO

import pytest

from costproof.compare.diff.attribution import Player, Term
from costproof.compare.diff.diff import diff
from costproof.compare.diff.types import Change, Changes, Diff, Quantity
from costproof.ledger.baseline import Baseline, Folded, RowTree, fold_capture
from costproof.ledger.workload import counted_line
from costproof.reports.diff import attribute_changes, diff_csv, diff_sentence, percent
from costproof.reports.escape import markdown
from costproof.reports.markdown import BUDGET
from costproof.reports.outputs import variants
from costproof.views.frames import DIFF_COLUMNS, frame
from tests.conftest import Golden
from tests.support.toy import HOSTILE, toy

diff_md = variants("diff")["md"].text
diff_text = variants("diff")["text"].text

STAGES = ("sam", "clip", "projector", "prefill", "decode")


def side(parts: int, factor: int = 1, name: str = "part") -> Baseline:
    """``parts`` parts over five stages, each with FLOPs of twelve digits."""
    rows: RowTree = {stage: {} for stage in STAGES}
    for i in range(parts):
        costs: dict[str, int | None] = {"flops": (10**11 + i) * factor}
        rows[STAGES[i % 5]][f"{name}.layer.block{i}.attention"] = {"linear": costs}
    made = fold_capture(toy())
    return replace(made, sources={"analytic": Folded(("flops",), STAGES, rows)})


def sections(text: str) -> list[str]:
    return [
        line.removeprefix("<summary>").removesuffix("</summary>") for line in text.splitlines() if "<summary>" in line
    ]


def test_terms_that_are_not_shown_are_counted() -> None:
    found = diff(side(1), side(1, 2))
    terms = tuple(Term((f"key{i}",), 2 * 10**9) for i in range(50))  # 50 x 2 x 10^9 = 10^11
    totals = {"flops": replace(found.totals["flops"], terms=terms)}
    text = diff_md(replace(found, totals=totals, stages=()))
    assert "<summary>FLOPs: 50 terms, which add up exactly</summary>" in text
    assert "| total | +20,000,000,000 | 10 more terms, in the JSON |" in text


def test_nothing_changed_is_one_line() -> None:
    text = diff_md(diff(side(500), side(500)))
    counted = markdown(counted_line(toy().target, toy().workload))
    assert text == f"✅ No cost changed: all 500 rows of toy at toy-v1 are the same (analytic). {counted}\n"


@pytest.mark.parametrize("rows", [1, 500, 5_000])
def test_a_comment_has_room_for_it(rows: int) -> None:
    found = diff(side(rows), side(rows, 2))
    text = diff_md(found)
    assert len(found.rows) == rows
    assert len(text.encode()) < BUDGET
    assert text == diff_md(diff(side(rows), side(rows, 2)))
    assert text.count("<details>") == text.count("</details>")
    assert "All sums that changed" in sections(text), "the overview says that they are below"
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in tables}) > 1
    assert all(line.endswith("|") for line in tables)
    left = [line for line in text.splitlines() if line.startswith("Left out")]
    assert bool(left) == (rows == 5_000)
    if left:
        assert all(f"{stage}: 1,000 rows changed" in left[0] for stage in STAGES)
        assert not any("rows changed" in title for title in sections(text))


def test_500_rows_are_all_there() -> None:
    text = diff_md(diff(side(500), side(500, 2)))
    assert text.count(":linear") == 500


def test_the_rows_that_are_shown_are_whole_stages() -> None:
    text = diff_md(diff(side(700), side(700, 2)))
    shown = [stage for stage in STAGES if f"{stage}: 140 rows changed" in sections(text)]
    assert 0 < len(shown) < 5
    assert text.count(":linear") == 140 * len(shown)


def small() -> Diff:
    """Two keys, one of which is two that only make sense together."""
    found = diff(fold_capture(toy()), fold_capture(toy()))
    names = ("text.hidden + text.heads", "text.topk")
    terms = (Term(names[:1], 240), Term(names[1:], 60), Term(names, 140))
    flops = Quantity(2656, 3096, 440, terms, {names[0]: 310, names[1]: 130})
    one, *others = found.stages
    return replace(
        found,
        config=Changes((Change("text.hidden", 1280, 1536), Change("text.heads", 10, 12), Change("text.topk", 6, 8))),
        players=(
            Player(names[0], ("text.hidden", "text.heads"), "the heads do not divide the width"),
            Player(names[1], names[1:]),
        ),
        totals={**found.totals, "flops": flops},
        stages=(replace(one, change="changed", totals={**one.totals, "flops": flops}), *others),
        rows=diff(side(1), side(1, 2)).rows,
    )


def test_what_did_it_in_words() -> None:
    """310 of 2,656 are 11.67 %: 240 alone and half of 140; 130 are 4.89 %: 60 and the other half."""
    parts = "+60 FLOP alone and +70 FLOP together with"
    assert list(attribute_changes(small())) == [
        (
            "text.hidden 1280 → 1536, text.heads 10 → 12",
            "add 310 FLOP (+11.7 %; all in sam), of which +240 FLOP alone and +70 FLOP together with text.topk",
        ),
        (
            "text.topk 6 → 8",
            f"adds 130 FLOP (+4.9 %; all in sam), of which {parts} text.hidden + text.heads",
        ),
    ]


@pytest.mark.parametrize(("share", "words"), [(64, "(+4.9 %)"), (65, "(+4.9 %; +65 FLOP in sam)")])
def test_the_stage_that_has_half_of_it_is_named(share: int, words: str) -> None:
    found = small()
    one, *others = found.stages
    flops = replace(one.totals["flops"], shares={"text.topk": share})
    less = replace(found, stages=(replace(one, totals={"flops": flops}), *others))
    assert dict(attribute_changes(less))["text.topk 6 → 8"].startswith(f"adds 130 FLOP {words}, of which")


def test_a_small_change(golden: Golden) -> None:
    golden("reports/diff.md", diff_md(small()))
    golden("reports/diff.txt", diff_text(small(), 100))


def test_names_are_harmless() -> None:
    made = side(3, 2, HOSTILE)
    head = replace(made, target=replace(made.target, name=HOSTILE, config={HOSTILE: HOSTILE}))
    text = diff_md(diff(side(3), head))
    assert "<script>" not in text
    assert "`c<" not in text
    assert "`a|b" not in text
    assert "\x1b" not in diff_text(diff(side(3), head))


def test_names_without_end_fit_too() -> None:
    long = 100_000 * "é"
    made = side(3, 2)
    target = replace(made.target, name=long, config={long: long, f"{long}2": 1})
    rows = {long: made.sources["analytic"].rows["sam"]}
    folded = Folded(("flops",), (long,), rows)
    workload = replace(made.workload, name=long, what=long)
    head = replace(made, target=target, workload=workload, sources={"analytic": folded}, environment={"torch": "1"})
    assert len(diff_md(diff(side(3), head)).encode()) < BUDGET


def test_what_is_incomplete_is_said_first() -> None:
    head = side(3)
    rows: RowTree = {
        **head.sources["analytic"].rows,
        "sam": {"part.layer.block0.attention": {"linear": {"flops": None}}},
    }
    folded = replace(head.sources["analytic"], rows=rows)
    found = diff(side(3), replace(head, sources={"analytic": folded}))
    assert diff_sentence(found).startswith(
        "Incomplete: the analytic source does not know flops of sam/part.layer.block0"
    )
    assert "unknown" in diff_md(found)


def test_the_table_is_a_table() -> None:
    rows = list(csv.DictReader(StringIO(diff_csv(diff(side(5), side(5, 2))))))
    assert tuple(rows[0]) == DIFF_COLUMNS
    assert [r["delta"] for r in rows if r["level"] == "total"] == [str(5 * 10**11 + 10)]
    assert sum(int(r["delta"]) for r in rows if r["level"] == "row") == 5 * 10**11 + 10


def test_a_frame_has_the_same_rows() -> None:
    table = frame(diff(side(5), side(5, 2)))
    assert list(table.columns) == list(DIFF_COLUMNS)
    assert table["delta"][table["level"] == "row"].sum() == 5 * 10**11 + 10


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (1, 3, "+33.3 %"), (-1, 3, "-33.3 %"), (1, 10_000, "below 0.1 %"), (0, 5, "0.0 %"), (5, 0, ""), (None, 5, ""),
        (3, 1, "+300.0 %"),
    ],
)  # fmt: skip
def test_percent(part: int | None, whole: int, shown: str) -> None:
    assert percent(part, whole) == shown
