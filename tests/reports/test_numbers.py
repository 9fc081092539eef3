"""Numbers as text: rounding is checked against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costproof.reports.numbers import bounded, exact, human, plural, share

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
    assert bounded(None, 864, "FLOP") == "≥ 864 FLOP"
    assert bounded(5, 864, "FLOP") == "5 FLOP"
    assert bounded(None, None) == "?"


def test_share() -> None:
    assert share(1, 3) == "33.3 %"
    assert share(2, 3) == "66.7 %"
    assert share(1, 0) == ""
    assert share(None, 3) == ""


def test_plural() -> None:
    assert plural(1, "finding") == "1 finding"
    assert plural(1200, "finding") == "1,200 findings"
