"""The values that decide whether two piecewise formulas are one, held against all values up to a bound."""

from __future__ import annotations

import pytest
import sympy

from costproof.algebra.evaluation import compile_expression
from costproof.algebra.piecewise import NotDecided, deciding, opaque
from costproof.algebra.symbols import parse

BOUND = 3_000


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Min(8, 2*B)", "Min(8, B + 2)"),
        ("Min(8, 2*B)", "Min(8, B**2)"),
        ("Min(8, 2*B)", "2*Min(4, B)"),
        ("B", "Min(B, 2000)"),
        ("B", "B + Max(0, 1 - (B - 777)**2)"),
        ("B", "B + Min(1, floor(B/50))*Max(0, 1 - floor(B/100))"),
        ("ceiling(B/16)", "floor((B + 15)/16)"),
        ("ceiling(ceiling(B/4)/7)", "ceiling(B/28)"),
        ("ceiling(B/4)", "floor(B/4) + 1"),
        ("Max(B, Min(5, 2*B))", "Max(B, 5)"),
        ("B + Max(0, (B - 10)*(B - 20)*(B - 30))", "B + Max(0, B*(B - 10)*(B - 60) + 1100*B - 6000)"),
        ("B + Max(0, 9 - (floor(B/7) - 300)**2)", "B"),
    ],
)
@pytest.mark.parametrize(("first", "step"), [(1, 1), (64, 64), (3, 5)])
def test_equal_at_these_values_is_equal_everywhere(one: str, other: str, first: int, step: int) -> None:
    a, b = parse(one), parse(other)
    values = deciding((a, b), "B", first, step)
    run = compile_expression(a).run, compile_expression(b).run
    agree = all(run[0]({"B": v}) == run[1]({"B": v}) for v in values)
    assert agree == all(run[0]({"B": v}) == run[1]({"B": v}) for v in range(first, first + step * BOUND, step))


def test_what_is_not_decided() -> None:
    for source in (
        "Min(8, B*S)",
        "floor(B/100003)",
        "Min(B, 1/B)",
        "floor(B**2/3)",
        "floor(Min(B, 5)/2)",
        "1/B + Min(B, 9)",
    ):
        with pytest.raises(NotDecided):
            deciding((parse(source),), "B")


def test_breaks_that_are_known() -> None:
    assert (
        set(range(64, 640, 64)) >= set(deciding((parse("H**2"),), "H", 64, 64, (320,))) >= {64, 128, 192, 320, 384, 448}
    )


def test_equal_pieces_have_one_name() -> None:
    names: dict[str, sympy.Symbol] = {}
    found = [opaque(parse(s), names) for s in ("Min(8, 2*B*S)", "2*Min(4, S*B)", "Min(8, B*S)")]
    assert found[0] == found[1] != found[2]
