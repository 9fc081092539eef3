"""Patterns name exactly the paths that they were made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costproof.compare.patterns import expand, matches, patterns
from costproof.ledger.errors import BadInput


def test_ranges_and_gaps() -> None:
    paths = [f"blocks.{i}.attn" for i in (0, 1, 3, 4, 5, 9)]
    assert [p for p, _ in patterns(paths)] == ["blocks.[0-1,3-5,9].attn"]


def test_grid_of_two_positions() -> None:
    paths = [f"a.{i}.b.{j}" for i in (0, 1) for j in (2, 4)]
    assert [p for p, _ in patterns(paths)] == ["a.[0-1].b.[2,4]"]


def test_holes_in_a_grid_are_not_filled() -> None:
    assert [p for p, _ in patterns(["a.0.0", "a.0.1", "a.1.0"])] == ["a.0.[0-1]", "a.1.0"]


def test_numbers_inside_names_are_names() -> None:
    assert [p for p, _ in patterns(["conv1.x", "conv2.x", ""])] == ["conv1.x", "conv2.x", ""]


def test_braces_in_names_survive() -> None:
    assert [p for p, _ in patterns(["{x}.0", "{x}.1"])] == ["{x}.[0-1]"]


def test_a_name_may_hold_any_character() -> None:
    paths = ["a.\0", "a.5", "a.6", "\0", "x.\0.0", "x.\0.1"]
    found = patterns(paths)
    assert [p for p, _ in found] == ["a.\0", "a.[5-6]", "\0", "x.\0.[0-1]"]
    assert [p for _, inside in found for p in inside] == paths
    assert expand("x.\0.[0-1]") == ("x.\0.0", "x.\0.1")


numbers = st.integers(0, 5)


@given(st.sets(st.tuples(st.sampled_from(["a", "b"]), numbers, numbers), min_size=1))
def test_expand_undoes_patterns(tuples: set[tuple[str, int, int]]) -> None:
    paths = {f"{name}.{i}.mlp.{j}.w" for name, i, j in tuples}
    merged = patterns(paths)
    assert sorted(p for pattern, _ in merged for p in expand(pattern)) == sorted(paths)
    assert all(expand(pattern) == inside for pattern, inside in merged)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("layers.[0-23].q", "layers.0.q", True),
        ("layers.[0-23].q", "layers.17.q", True),
        ("layers.[0-23].q", "layers.23.q", True),
        ("layers.[0-23].q", "layers.24.q", False),
        ("layers.[0,2-3].q", "layers.1.q", False),
        ("*.layers.[1-2].*", "a.b.layers.2.x.y", True),
        ("*.layers.[1-2].*", "a.b.layers.21.x", False),
        ("head.[ab]", "head.b", True),
        ("h.?", "h.10", False),
        ("a.b", "aXb", False),
        ("(root)", "", True),
        ("(root)", "a", False),
        ("*", "", True),
    ],
)
def test_matches(pattern: str, path: str, expected: bool) -> None:
    assert matches(path, pattern) is expected


def test_what_patterns_writes_matches_what_it_was_given_and_nothing_else() -> None:
    paths = [f"l.{i}.x" for i in (0, 1, 2, 7, 9, 10)]
    ((pattern, inside),) = patterns(paths)
    assert inside == tuple(paths)
    assert [p for p in (f"l.{i}.x" for i in range(30)) if matches(p, pattern)] == paths


def test_a_pattern_of_too_many_numbers_is_refused() -> None:
    assert matches("l.5", "l.[0-999]")
    for pattern in ("l.[0-1000]", "l.[0-999999999]"):
        with pytest.raises(BadInput, match="too many"):
            matches("l.5", pattern)
