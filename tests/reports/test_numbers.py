"""Numbers as text: rounding is checked against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costproof.ledger.plural import plural
from costproof.reports.measure import format_nanoseconds
from costproof.views.numbers import exact, human, human_or_bound, share

SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 FLOP"),
        (999, "999 FLOP"),
        (1000, "1.00 kFLOP"),
        (1004, "1.00 kFLOP"),
        (1005, "1.01 kFLOP"),  # half up
        (999_994, "999.99 kFLOP"),
        (999_995, "1.00 MFLOP"),  # never "1000.00 k"
        (571_922_513_920, "571.92 GFLOP"),
        (-1_500, "-1.50 kFLOP"),
        (2**63, "9.22 EFLOP"),
        (None, "?"),
    ],
)
def test_human(value: int | None, text: str) -> None:
    assert human(value, "FLOP") == text


@given(st.integers(1000, 10**21))
def test_human_is_the_nearest_two_digit_number(value: int) -> None:
    digits, suffix = human(value).split(" ")
    shown = Fraction(digits) * SCALE[suffix]
    assert abs(shown - value) <= Fraction(SCALE[suffix], 200)
    if suffix != "E":
        assert 1 <= Fraction(digits) < 1000


def test_exact_groups_digits_and_never_calls_unknown_zero() -> None:
    assert exact(571922513920) == "571,922,513,920"
    assert exact(0) == "0"
    assert exact(None) == "?"


def test_a_lower_bound_is_marked() -> None:
    assert human_or_bound(None, 864, "FLOP") == "≥ 864 FLOP"
    assert human_or_bound(5, 864, "FLOP") == "5 FLOP"
    assert human_or_bound(None, None) == "?"


def test_share() -> None:
    assert share(1, 3) == "33.3 %"
    assert share(2, 3) == "66.7 %"
    assert share(1, 0) == ""
    assert share(92_570, 100_000) == "92.6 %"
    assert share(9_255, 10_000) == "92.6 %"  # half up
    assert share(Fraction(1, 2), Fraction(2, 3)) == "75.0 %"


def test_no_share_of_something_is_nothing_and_none_of_less_than_all_is_all() -> None:
    assert [share(n, 10_000) for n in (0, 1, 4, 5)] == ["0.0 %", "below 0.1 %", "below 0.1 %", "0.1 %"]
    assert [share(n, 10_000) for n in (9_994, 9_995, 9_999, 10_000)] == [
        "99.9 %",
        "over 99.9 %",
        "over 99.9 %",
        "100.0 %",
    ]
    assert [share(n, 10_000) for n in (10_001, 10_005, 123_456_789)] == ["over 100.0 %", "100.1 %", "1,234,567.9 %"]


@given(st.integers(0, 10**20), st.integers(1, 10**20))
def test_a_share_is_the_nearest_tenth(part: int, whole: int) -> None:
    shown = share(part, whole)
    if not shown.startswith(("below", "over")):
        assert abs(Fraction(shown.removesuffix(" %").replace(",", "")) - Fraction(100 * part, whole)) <= Fraction(1, 20)


def test_times_are_rounded_half_up() -> None:
    nanoseconds = (1_499, 1_500, 999_499, 999_500, 12_349_999, 12_350_000, 999_949_999, 999_950_000, 1_234_500_000)
    assert [format_nanoseconds(n) for n in nanoseconds] == [
        "1 µs", "2 µs", "999 µs", "1.0 ms", "12.3 ms", "12.4 ms", "999.9 ms", "1.000 s", "1.235 s",
    ]  # fmt: skip
    assert share(None, 3) == ""


def test_plural() -> None:
    assert plural(1, "finding") == "1 finding"
    assert plural(1200, "finding") == "1,200 findings"
