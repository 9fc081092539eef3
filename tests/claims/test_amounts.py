"""Printed numbers as intervals of integers."""

from __future__ import annotations

import pytest

from costproof.claims.amounts import amount, is_number
from costproof.ledger.errors import BadInput


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("17", 17, 17),
        ("5,719,225", 5_719_225, 5_719_225),
        ("1_000", 1_000, 1_000),
        # Two decimals of 10^9: the last digit is 10^7, half of it is 5 * 10^6.
        ("571.92 G", 571_915_000_000, 571_925_000_000),
        ("571.92G", 571_915_000_000, 571_925_000_000),
        ("95.57M", 95_565_000, 95_575_000),
        ("3B", 2_500_000_000, 3_500_000_000),
        ("1.5e3", 1_450, 1_550),
        ("2.50", 0, 0),
        ("0.4 k", 350, 450),
    ],
)
def test_interval(text: str, low: int, high: int) -> None:
    if text == "2.50":
        with pytest.raises(BadInput, match="not an integer"):
            amount(text, where="$")
        return
    found = amount(text, where="$")
    assert (found.low, found.high) == (low, high)


@pytest.mark.parametrize("text", ["", "S", "2*S", "-1", "1.2.3", "١", "1e999", "1 X", "0x10", "nan", "1e99"])
def test_no_number(text: str) -> None:
    with pytest.raises(BadInput):
        amount(text, where="$")


def test_a_formula_is_no_number() -> None:
    assert not is_number("2*B*S")
    assert is_number(" 571.92 G ")
