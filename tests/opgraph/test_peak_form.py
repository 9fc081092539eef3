"""The graph peak in symbols, of lists of events that are written by hand."""

from __future__ import annotations

import pytest

from costproof.algebra.symbols import parse, sym, text
from costproof.ledger.errors import Incomplete
from costproof.opgraph.liveness import MOST, MemoryEvent, peak_form


def form(events: str, **sizes: str) -> str:
    """``"a b -a"``: a is made, b is made, a is given back."""
    numbers = {name: i for i, name in enumerate(sizes)}
    made = [MemoryEvent(numbers[one.removeprefix("-")], made=not one.startswith("-")) for one in events.split()]
    return text(peak_form(made, [parse(size) for size in sizes.values()]))


def test_one_moment_is_highest_at_all_sizes() -> None:
    # 8*S, then 8*S + 4*B, then 4*B + 2: the second is more than the others, as S and B are 1 or more.
    assert form("a b -a c", a="8*S", b="4*B", c="2") == "4*B + 8*S"


def test_moments_that_are_highest_somewhere_are_all_told() -> None:
    # 6*S, and 2*S**2: the first up to S = 3.
    assert form("a -a b", a="6*S", b="2*S**2") == "Max(6*S, 2*S**2)"


def test_what_is_less_from_one_on_is_left_out() -> None:
    # 9*B*S - (4*B*S + 5*B) = 5*B*(S - 1), never negative; term by term it would be.
    assert form("a -a b c", a="9*B*S", b="4*B*S", c="5*B") == "9*B*S"
    assert form("a -a b c", a="9*B*S", b="4*B*S", c="6*B") == "Max(9*B*S, 4*B*S + 6*B)"


def test_what_rounds_stays() -> None:
    # A ceiling is 1 or more, a floor may be 0.
    assert form("a -a b", a="3*ceiling(S/4)", b="2") == "3*ceiling(S/4)"
    assert form("a -a b", a="3*floor(S/4)", b="2") == "Max(2, 3*floor(S/4))"
    both = parse(form("a -a b", a="3*ceiling(S/4)", b="3*floor(S/4)"))
    assert both.subs(sym("S"), 5) == 6


def test_nothing_is_made() -> None:
    assert form("") == "0"


def test_too_many_moments_are_no_form() -> None:
    names = [f"x{i}" for i in range(MOST + 1)]
    sizes = {name: f"y{i}" for i, name in enumerate(names)}
    with pytest.raises(Incomplete, match="too many moments of the graph"):
        form(" ".join(f"{name} -{name}" for name in names), **sizes)
    events = [MemoryEvent(i, made) for i in range(len(names)) for made in (True, False)]
    every = [parse(size) for size in sizes.values()]
    assert {*peak_form(events, every, MOST + 1).args} == {*every}
