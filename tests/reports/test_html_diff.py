"""The page of a diff: both sides with their exact numbers, what did it, nothing but text of names."""

from __future__ import annotations

import re
from dataclasses import replace

from costproof.compare.diff.diff import diff
from costproof.compare.diff.types import Diff
from costproof.reports.outputs import variants
from tests.reports.test_diff_texts import side
from tests.reports.test_html import EVIL, read_tags, scaled
from tests.support.toy import toy

diff_page = variants("diff")["html"].text


def doubled(times: int = 1) -> Diff:
    """The toy with its FLOPs so many times, and the same with twice as many everywhere."""
    from costproof.ledger.baseline import fold_capture

    return diff(fold_capture(scaled(toy(), times)), fold_capture(scaled(toy(), 2 * times)))


def test_both_sides_and_the_difference_stand_beside_each_other() -> None:
    """By hand: sam 1,792 -> 3,584, decode 864 -> 1,728, together 2,656 -> 5,312."""
    text = re.sub(r"<[^>]*>", " ", diff_page(doubled()))
    for numbers in ("1,792 3,584 +1,792", "864 1,728 +864", "2,656 5,312 +2,656"):
        assert numbers in re.sub(r"\s+", " ", text)


def test_bars_of_both_sides_have_one_scale() -> None:
    """The base is half of the head: sam 1,792 and 3,584 of 5,312 are 33.7 % and 67.4 %, rounded down."""
    text = diff_page(doubled())
    flops = text[text.index('data-metric="flops"') :]
    assert re.findall(r'width="([\d.]+%)" height="100%" class="s0"', flops)[:2] == ["33.7%", "67.4%"]


def test_nothing_changed() -> None:
    text = diff_page(diff(side(5), side(5)))
    assert "No cost changed" in text
    assert "all 5 rows are the same" in text


def test_rows_beyond_a_thousand_are_counted() -> None:
    text = diff_page(diff(side(7_500), side(7_500, 2)))
    assert text.count("6,500 more are in the JSON.") == 2  # once for eyes, once for the script
    assert text.count("<tbody data-status=") == 1_000


def test_names_are_data() -> None:
    found = doubled()
    evil = replace(found, base=replace(found.base, target=EVIL, workload=EVIL), rows=tuple(
        replace(r, part=EVIL, stage=EVIL) for r in found.rows
    ))  # fmt: skip
    text = diff_page(evil)
    tags = [t for t, _ in read_tags(text)]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert diff_page(evil) == text
