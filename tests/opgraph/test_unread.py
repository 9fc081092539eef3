"""Which modules a graph leaves unused."""

from __future__ import annotations

import pytest

from costproof.opgraph.tally import unread_modules


@pytest.mark.parametrize(
    ("read", "unread"),
    [
        (("a.one.weight", "a.two.weight", "a.mask", "b.weight"), ()),
        (("a.one.weight", "b.weight"), ("a.two",)),  # a lone parameter of a module at work is not a module
        (("b.weight",), ("a",)),
        ((), ("a", "b")),
    ],
)
def test_the_outermost_modules_of_which_nothing_was_read(read: tuple[str, ...], unread: tuple[str, ...]) -> None:
    assert unread_modules(("a.one.weight", "a.two.weight", "a.mask", "b.weight"), read) == unread
