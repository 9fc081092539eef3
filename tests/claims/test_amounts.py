"""Printed numbers as intervals of integers."""

from __future__ import annotations

import pytest

from costproof.claims.amounts import amount, is_number
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import Metric


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
        # Three digits, the last of 10^7, however the power of ten is written.
        *(
            (text, 8_025_000_000, 8_035_000_000)
            for text in (
                "8.03e9",
                "8.03E+9",
                "8.03 e9",
                "8.03 G",
                "8.03B",
                "8.03 billion",
                "8.03 × 10^9",
                "8.03x10^9",
                "8.03·10**9",
                "8.03*10^9",
                "8.03 * 10**9",
            )
        ),
        ("8.03e9 ", 8_025_000_000, 8_035_000_000),
        ("2.50", 0, 0),
        ("0.4 k", 350, 450),
        # Nothing, whatever the unit would round away.
        ("0 P", 0, 0),
        ("0.00 G", 0, 0),
    ],
)
def test_interval(text: str, low: int, high: int) -> None:
    if text == "2.50":
        with pytest.raises(BadInput, match="not an integer"):
            amount(text, where="$")
        return
    found = amount(text, where="$")
    assert (found.low, found.high) == (low, high)


@pytest.mark.parametrize(
    ("text", "metric", "low", "high"),
    [
        ("571.92 GFLOPs", "flops", 571_915_000_000, 571_925_000_000),
        ("571.92 GFLOPS", "flops", 571_915_000_000, 571_925_000_000),
        ("17 flop", "flops", 17, 17),
        ("1.5 GB", "weight_bytes", 1_450_000_000, 1_550_000_000),
        # 2 x 1024, and half of the last digit, which is 1024, to either side.
        ("2 KiB", "weight_bytes", 1_536, 2_560),
        ("1.5 MiB", "weight_bytes", 1_520_436, 1_625_292),
        ("512 B", "weight_bytes", 512, 512),
        ("3 B", "params", 2_500_000_000, 3_500_000_000),
    ],
)
def test_units_as_people_write_them(text: str, metric: Metric, low: int, high: int) -> None:
    found = amount(text, where="$", metric=metric)
    assert is_number(text)
    assert (found.low, found.high) == (low, high)


@pytest.mark.parametrize(
    ("text", "metric", "said"),
    [
        ("12 GMACs", "flops", "conventions: {unit: mac}"),
        ("12 GB", "flops", "not a unit of flops"),
        ("12 GFLOPs", "weight_bytes", "not a unit of weight_bytes"),
        ("12 gigaflops", "flops", "with FLOPs for FLOPs"),
        ("12 gflops", "flops", "not a unit of flops"),
    ],
)
def test_other_units_are_answered_with_the_right_spelling(text: str, metric: Metric, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        amount(text, where="$", metric=metric)
    assert said in f"{caught.value} {caught.value.expected} {caught.value.fix}"


@pytest.mark.parametrize("text", ["", "S", "2*S", "-1", "1.2.3", "١", "1e999", "1 X", "0x10", "nan", "1e99"])
def test_no_number(text: str) -> None:
    with pytest.raises(BadInput):
        amount(text, where="$")


def test_a_formula_is_no_number() -> None:
    assert not is_number("2*B*S")
    assert is_number(" 571.92 G ")


def test_a_power_of_ten_without_decimals_is_a_formula_and_exact() -> None:
    assert not is_number("8*10**9")
