"""Sums modulo 2^64 and in float64 together, against Python's integers, where they are most likely to go wrong."""

from __future__ import annotations

import random
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
import pytest

from costproof.algebra.symbols import parse
from costproof.ledger.errors import BadInput
from costproof.parametric.exact_arrays import ExactEvaluator, Int128Array, PointBatch
from costproof.parametric.polynomial import AtomTable, Polynomial, Quotient, as_quotient

NAMES = ("x", "y", "z")


def compiled(text: str) -> tuple[AtomTable, Quotient]:
    atoms = AtomTable()
    symbols: dict[str, Polynomial] = {n: atoms.from_size(("var", n)) for n in NAMES}
    return atoms, as_quotient(atoms.from_formula(parse(text), symbols))


def column(text: str, values: dict[str, Any]) -> tuple[list[int], type]:
    atoms, cost = compiled(text)
    arrays = {n: np.array(v, np.int64) for n, v in values.items()}
    found = PointBatch(atoms.found, arrays, arrays["x"].shape).column(cost)
    kind: Any = Int128Array if isinstance(found, Int128Array) else found.dtype.type
    return (found.python() if isinstance(found, Int128Array) else found).tolist(), kind


def near(bits: int) -> list[int]:
    """Sizes of which products come near a power of two, from both sides."""
    return [2**bits - 1, 2**bits, 2**bits + 1]


def test_the_last_number_that_int64_holds_and_the_first_that_it_does_not() -> None:
    # 7 * 73 * 127 * 337 * 92737 * 649657 = 2^63 - 1, split into two factors
    one, other = 7 * 73 * 127 * 337, (2**63 - 1) // (7 * 73 * 127 * 337)
    assert one * other == 2**63 - 1
    assert column("x*y", {"x": [one], "y": [other], "z": [1]}) == ([2**63 - 1], np.int64)
    assert column("x*y + z", {"x": [one], "y": [other], "z": [1]}) == ([2**63], Int128Array)
    assert column("x*y + z", {"x": [2**32], "y": [2**32], "z": [2]}) == ([2**64 + 2], Int128Array)
    assert column("-x*y*4 - z", {"x": [2**32], "y": [2**32], "z": [2]}) == ([-(2**66) - 2], Int128Array)


@pytest.mark.parametrize(
    "text",
    [
        "x*y*z",
        "x**2*y + 3*x*y*z + 7*z",
        "12345678901*x*y + 98765432109*x**2",
        "x*y*z*2**20 - x*y",  # most of it is one term
        "x*y*36893488147419103231 + z",  # a coefficient of 65 bits
        "x*y*(y - 1)/2 + x*y*(y - 1)*(2*y - 1)/6",  # sums over steps: a denominator of 6
        "x*(x - 1)*(x + 1)*y*z/6 - 5*x*(x - 1)*y**3/2",
        "ceiling(x/14)*ceiling(y/14)*196*z",
        "floor((x + 1)/y)*z*z*x*y",
        "Min(64, x*6)*y*z*x + Max(y, z)*x*y",
        "x*x*y/x*z",
        "(x*y + x*z)/(y + z)*y*y",
    ],
)
def test_adversarial_values(text: str) -> None:
    rng = random.Random(text)
    edges = [v for bits in (1, 15, 16, 20, 21, 31, 32) for v in near(bits)]
    values = {n: [_drawn(rng, edges) for _ in range(300)] for n in NAMES}
    assert column(text, values)[0] == exactly(text, values)
    # Sizes of which the sums need 128 bits, and no more.
    middle = {n: [v % 2**21 + 1 for v in values[n]] for n in NAMES}
    found, kind = column(text, middle)
    assert found == exactly(text, middle)
    # What is divided by a size is not left to the low part; there are few others.
    assert kind is Int128Array or "/x" in text or "/(" in text
    # Small sizes alone, which need no second sum.
    small = {n: [v % 1000 + 1 for v in values[n]] for n in NAMES}
    assert column(text, small)[0] == exactly(text, small)


def _drawn(rng: random.Random, edges: list[int]) -> int:
    return rng.choice(edges) if rng.random() < 0.7 else rng.randrange(1, 2**33)


def exactly(text: str, values: dict[str, list[int]]) -> list[int]:
    """The same with Python's fractions, by Python's own reading of the text."""
    known = {"ceiling": ceil, "floor": floor, "Min": min, "Max": max, "__builtins__": {}}
    rows = zip(*(values[n] for n in NAMES), strict=True)
    found = [eval(text, known, dict(zip(NAMES, map(Fraction, row), strict=True))) for row in rows]
    assert all(n.denominator == 1 for n in found)
    return [int(n) for n in found]


def test_python_s_integers_take_over() -> None:
    values = {"x": [2**40], "y": [2**40], "z": [2**40 - 1]}
    assert column("x**2*y**2*z**2", values) == ([2**160 * (2**40 - 1) ** 2], np.object_)
    # A factor that float64 does not hold exactly.
    assert column("x*y + z", {"x": [2**53 + 1], "y": [2**53 + 1], "z": [1]}) == ([(2**53 + 1) ** 2 + 1], np.object_)


def test_what_depends_on_one_axis_is_computed_along_it_alone() -> None:
    atoms, cost = compiled("x**2*y + 3*z")
    x, y, z = np.arange(1, 4).reshape(3, 1, 1), np.arange(5, 7).reshape(1, 2, 1), np.arange(4).reshape(1, 1, 4) * 2**61
    found = PointBatch(atoms.found, {"x": x, "y": y, "z": z}, (3, 2, 4)).column(cost)
    assert isinstance(found, np.ndarray | Int128Array)
    made = found.python() if isinstance(found, Int128Array) else found
    want = [[[a * a * b + 3 * c * 2**61 for c in range(4)] for b in (5, 6)] for a in (1, 2, 3)]
    assert made.tolist() == want


def test_one_point() -> None:
    atoms, cost = compiled("ceiling(x/14)*y**9*z/2")
    assert ExactEvaluator(atoms.found, {"x": 15, "y": 2**40, "z": 3}).number(cost) == 2 * 2**360 * 3 // 2


def test_what_is_not_an_integer_is_refused() -> None:
    for size in (3, 2**45 + 1):
        with pytest.raises(BadInput, match="not an integer"):
            column("x*y*z/2", {"x": [size], "y": [size], "z": [1]})
    with pytest.raises(BadInput, match="not an integer"):
        column("x/y", {"x": [3], "y": [2], "z": [1]})


def test_the_smaller_of_two_quotients() -> None:
    # min(4/3, 2) * 3 = 4, min(9/3, 2) * 3 = 6
    assert column("Min(y/x, z)*x", {"x": [3, 3], "y": [4, 9], "z": [2, 2]})[0] == [4, 6]
    with pytest.raises(BadInput, match="not an integer"):
        column("Min(y/x, z)", {"x": [3], "y": [4], "z": [2]})
