"""How a difference is split: by hand, against orders of the keys by brute force, and what adds up to what."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from random import Random

import pytest

from costproof.compare.diff.attribution import MOST_KEYS, Point, Term, attribute, largest_remainder
from costproof.ledger.errors import BadInput

OLD = {"rows": 3, "columns": 5}
NEW = {"rows": 4, "columns": 7}


def area(changed: frozenset[str]) -> dict[str, int | None]:
    rows, columns = (NEW[k] if k in changed else OLD[k] for k in ("rows", "columns"))
    return {"area": rows * columns, "rows": rows}


def test_a_product_by_hand() -> None:
    """3 x 5 = 15 -> 4 x 7 = 28: rows alone 1 x 5, columns alone 3 x 2, jointly 1 x 2; half of 2 to each."""
    found = attribute(("rows", "columns"), area)
    assert found.splits["area"].terms == (
        Term(("rows",), 5),
        Term(("columns",), 6),
        Term(("rows", "columns"), 2),
    )
    assert found.splits["area"].shares == {"rows": 6, "columns": 7}
    assert found.splits["rows"].terms == (Term(("rows",), 1),)
    assert found.splits["rows"].shares == {"rows": 1}


def test_an_odd_joint_term_goes_to_the_first() -> None:
    """1 x 1 -> 2 x 2: 1 and 1 alone, 1 jointly; the halves are equal, so the first key gets the unit."""
    found = attribute(("a", "b"), lambda changed: {"f": 2 ** len(changed)})
    assert found.splits["f"].terms == (Term(("a",), 1), Term(("b",), 1), Term(("a", "b"), 1))
    assert found.splits["f"].shares == {"a": 2, "b": 1}


def made_up(keys: tuple[str, ...], seed: int) -> Point[str]:
    """A cost without any structure: another number for every set of keys."""
    return lambda changed: {"f": Random(f"{seed} {sorted(changed)}").randrange(-(10**30), 10**30) if keys else 0}


@pytest.mark.parametrize("seed", range(6))
def test_shares_are_the_mean_over_all_orders(seed: int) -> None:
    """The Shapley value by its other definition: what a key adds, over every order in which keys may change."""
    keys = ("a", "b", "c", "d", "e")[: 2 + seed % 4]
    point = made_up(keys, seed)
    orders = list(permutations(keys))
    means = dict.fromkeys(keys, Fraction(0))
    for order in orders:
        for i, key in enumerate(order):
            after, before = (point(frozenset(order[:n]))["f"] or 0 for n in (i + 1, i))
            means[key] += Fraction(after - before, len(orders))
    found = attribute(keys, point).splits["f"]
    assert all(abs(found.shares.get(k, 0) - means[k]) < 1 for k in keys)
    delta = (point(frozenset(keys))["f"] or 0) - (point(frozenset())["f"] or 0)
    assert sum(found.shares.values()) == sum(t.amount for t in found.terms) == delta


@pytest.mark.parametrize("seed", range(4))
def test_without_a_key_exactly_its_terms_are_gone(seed: int) -> None:
    keys = ("a", "b", "c", "d")
    point = made_up(keys, seed)
    whole = attribute(keys, point).splits["f"].terms
    for key in keys:
        rest = attribute(tuple(k for k in keys if k != key), point).splits["f"].terms
        assert rest == tuple(t for t in whole if key not in t.keys)


def test_keys_that_only_make_sense_together_are_one() -> None:
    """Width 6 with 3 heads -> width 8 with 4 heads: neither 8 / 3 nor 6 / 4 is a model."""

    def point(changed: frozenset[str]) -> dict[str, int | None]:
        width, heads, depth = 8 if "width" in changed else 6, 4 if "heads" in changed else 3, 2 + ("depth" in changed)
        if width % heads:
            raise BadInput("the heads do not divide the width", where="$.heads", got=heads)
        return {"f": depth * width}

    found = attribute(("width", "depth", "heads"), point)
    assert [(p.name, p.keys) for p in found.players] == [("width + heads", ("width", "heads")), ("depth", ("depth",))]
    assert found.players[0].why == "the heads do not divide the width; in $.heads; got 3"
    # 2 x 6 = 12 -> 3 x 8 = 24: width with heads alone 2 x 2, depth alone 6, jointly 2
    assert found.splits["f"].terms == (
        Term(("width + heads",), 4),
        Term(("depth",), 6),
        Term(("width + heads", "depth"), 2),
    )


def test_many_keys_go_by_section() -> None:
    """f = (sum of section a's keys) x (sum of section b's): 15 keys, of which each changes 1 to 2."""
    keys = (*(f"a.{i}" for i in range(8)), *(f"b.{i}" for i in range(7)))
    assert len(keys) > MOST_KEYS

    def point(changed: frozenset[str]) -> dict[str, int | None]:
        one = 8 + sum(k.startswith("a") for k in changed)
        return {"f": one * (7 + len(changed) - (one - 8))}

    found = attribute(keys, point)
    terms = {t.keys: t.amount for t in found.splits["f"].terms}
    # 8 x 7 = 56 -> 16 x 14 = 224. A key of a adds 7, a key of b adds 8, the sections jointly 8 x 7.
    alone = {k: 7 if k.startswith("a") else 8 for k in keys}
    assert terms == {("a.*", "b.*"): 56} | {(k,): amount for k, amount in alone.items()}
    assert sum(terms.values()) == 224 - 56
    assert found.splits["f"].shares == alone | {"a.*": 28, "b.*": 28}


@pytest.mark.parametrize("count", [13, 30])
def test_many_keys_of_one_section_add_up(count: int) -> None:
    keys = tuple(f"k{i}" for i in range(count))

    def point(changed: frozenset[str]) -> dict[str, int | None]:
        product = 1
        for i, key in enumerate(keys):
            product *= i + 2 if key in changed else i + 1
        return {"f": product}

    found = attribute(keys, point, most=5).splits["f"]
    delta = (point(frozenset(keys))["f"] or 0) - (point(frozenset())["f"] or 0)
    assert sum(found.shares.values()) == sum(t.amount for t in found.terms) == delta


def test_what_is_unknown_at_one_point_is_not_split() -> None:
    found = attribute(("a", "b"), lambda changed: {"f": None if changed == {"a"} else 1, "g": len(changed)})
    assert set(found.splits) == {"g"}


def test_largest_remainder_by_hand() -> None:
    """10/3, 10/3 and 1/3 are 3, 3, 0 and one missing, to the first of equals; the same below 0: -4, -4, -1 miss 2."""
    assert largest_remainder([10, 10, 1], 3) == [4, 3, 0]
    assert largest_remainder([-10, -10, -1], 3) == [-3, -3, -1]
