"""Patterns name exactly the paths that they were made of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from costproof.compare.patterns import expand, patterns


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


numbers = st.integers(0, 5)


@given(st.sets(st.tuples(st.sampled_from(["a", "b"]), numbers, numbers), min_size=1))
def test_expand_undoes_patterns(tuples: set[tuple[str, int, int]]) -> None:
    paths = {f"{name}.{i}.mlp.{j}.w" for name, i, j in tuples}
    merged = patterns(paths)
    assert sorted(p for pattern, _ in merged for p in expand(pattern)) == sorted(paths)
    assert all(expand(pattern) == inside for pattern, inside in merged)
