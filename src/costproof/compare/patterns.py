"""Merge module paths that differ only in numbers into patterns (``layers.[0,1,3-4].attn``), and match patterns."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, groupby, product
from math import prod
from typing import Final

from costproof.ledger.errors import BadInput

ROOT: Final = "(root)"
"""The pattern for the root of the model, whose path is empty."""

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_RANGES = re.compile(r"\[(\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)\]")
_MOST_NUMBERS: Final = 1_000


Mask = tuple[str, ...]
"""The texts between the numbers of a path, as a tuple because names may contain any placeholder character."""


@lru_cache(maxsize=16384)
def template(path: str) -> tuple[Mask, tuple[int, ...]]:
    """Split a path into the texts around its numbers, and its numbers."""
    return tuple(_NUMBER.split(path)), tuple(int(m.group()) for m in _NUMBER.finditer(path))


def patterns(paths: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Merge paths into patterns; return each pattern with the paths that it matches.

    Paths that differ only in numbers are merged. If numbers vary at several positions without forming a full grid,
    paths are split by the first position, so that a pattern never matches a path that was not given.
    """
    by_template: dict[Mask, list[tuple[int, ...]]] = {}
    for path in paths:
        mask, numbers = template(path)
        by_template.setdefault(mask, []).append(numbers)
    found = []
    for mask, tuples in by_template.items():
        for grid in _grids(sorted(set(tuples))):
            inside = tuple(_fill(mask, numbers) for numbers in product(*grid))
            found.append((_fill(mask, [_ranges(axis) for axis in grid]), inside))
    return found


def expand(pattern: str) -> tuple[str, ...]:
    """Return the paths that a pattern made by :func:`patterns` matches."""
    axes = [chain.from_iterable(_spans(match.group(1))) for match in _RANGES.finditer(pattern)]
    mask = tuple(_RANGES.split(pattern)[::2])  # texts and ranges alternate
    return tuple(_fill(mask, numbers) for numbers in product(*axes))


def _spans(ranges: str) -> list[range]:
    """Parse ``0,3-4`` into ranges of consecutive numbers."""
    bounds = ([int(n) for n in part.split("-")] for part in ranges.split(","))
    return [range(b[0], b[-1] + 1) for b in bounds]


def matches(path: str, pattern: str) -> bool:
    """Return whether a path matches a pattern, written by hand or made by :func:`patterns`.

    ``*``, ``?`` and ``[ab]`` have the meaning of shell globs, ``[0-3,12]`` matches these numbers, and ``(root)`` the
    empty path.

    Raises:
        BadInput: the pattern names too many numbers.
    """
    return path == "" if pattern == ROOT else _compiled(pattern).fullmatch(path) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    pieces = _RANGES.split(pattern)
    # Texts and ranges alternate.
    return re.compile(
        "".join(_choice(p, pattern) if i % 2 else fnmatch.translate(p)[:-2] for i, p in enumerate(pieces))
    )


def _choice(ranges: str, pattern: str) -> str:
    spans = _spans(ranges)
    if sum(map(len, spans)) > _MOST_NUMBERS:
        raise BadInput(
            "a pattern names too many modules", where=pattern[:200], expected=f"at most {_MOST_NUMBERS} numbers"
        )
    return "(?:" + "|".join(map(str, chain.from_iterable(spans))) + ")"


def _fill(mask: Mask, parts: Sequence[object]) -> str:
    return mask[0] + "".join(f"{part}{piece}" for part, piece in zip(parts, mask[1:], strict=True))


def _grids(tuples: Sequence[tuple[int, ...]]) -> list[tuple[tuple[int, ...], ...]]:
    axes = tuple(tuple(sorted(set(axis))) for axis in zip(*tuples, strict=True))
    if prod(map(len, axes)) == len(tuples):
        return [axes]
    split = next(i for i, axis in enumerate(axes) if len(axis) > 1)
    return [grid for value in axes[split] for grid in _grids([t for t in tuples if t[split] == value])]


def _ranges(axis: Sequence[int]) -> str:
    if len(axis) == 1:
        return str(axis[0])
    # In a run of consecutive numbers, number minus position is constant.
    neighbours = groupby(enumerate(axis), key=lambda placed: placed[1] - placed[0])
    runs = [[number for _, number in run] for _, run in neighbours]
    shown = [f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs]
    return "[" + ",".join(shown) + "]"
