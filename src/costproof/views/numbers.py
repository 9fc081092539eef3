"""Format exact integers for people, rounding in integers so that no count passes through a float."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

_SCALES: Final = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def exact(value: int | None) -> str:
    """Format an integer with all digits in groups of three: ``571,922,513,920``; ``?`` for None."""
    return "?" if value is None else f"{value:,}"


def human(value: int | None, unit: str = "", *, places: int = 2) -> str:
    """Format a number with decimal prefix and ``places`` digits, rounded half up: ``571.92 GFLOP``; ``?`` for None.

    Args:
        unit: ``FLOP``, ``B``; prefixes are powers of 1000 for bytes too.
    """
    if value is None:
        return "?"
    sign, size = ("-", -value) if value < 0 else ("", value)
    rank = next((i for i, (scale, _) in enumerate(_SCALES) if size >= scale), None)
    if rank is None:
        return f"{sign}{size} {unit}".rstrip()
    if rank > 0 and _scaled(size, rank, places) >= 1000 * 10**places:
        rank -= 1  # 999.999 M is 1.00 G, not 1000.00 M
    whole, part = divmod(_scaled(size, rank, places), 10**places)
    digits = f".{part:0{places}d}" if places else ""
    return f"{sign}{whole}{digits} {_SCALES[rank][1]}{unit}"


def _scaled(size: int, rank: int, places: int) -> int:
    scale = _SCALES[rank][0]
    steps: int = 10**places
    return (2 * size * steps + scale) // (2 * scale)


def human_or_bound(value: int | None, at_least: int | None, unit: str = "") -> str:
    """Format a number like :func:`human`; an unknown one as ``≥`` and its known summand."""
    if value is None and at_least is not None:
        return "≥ " + human(at_least, unit)
    return human(value, unit)


def share(part: int | Fraction | None, whole: int | Fraction | None) -> str:
    """Return a ratio as percentage with one digit, rounded half up: ``49.8 %``; empty if it cannot be computed.

    A part that is not nothing is never ``0.0 %``, and one that is not all is never ``100.0 %``.
    """
    if part is None or not whole:
        return ""
    tenths = (2000 * part + whole) // (2 * whole)
    if tenths == 0 and part:
        return "below 0.1 %"
    if tenths == 1000 and part != whole:
        return "over 99.9 %" if part < whole else "over 100.0 %"
    return f"{tenths // 10:,}.{tenths % 10} %"


def first_names(names: Sequence[str], most: int) -> str:
    """Join the first names and the number of the others: ``a, b and 3 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def truncate(text: str, most: int) -> str:
    """Return the text, truncated with an ellipsis if it is longer than ``most`` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


PLACES: Final = 3
_UNITS: Final = ((Fraction(1), "s"), (Fraction(1, 10**3), "ms"), (Fraction(1, 10**6), "µs"), (Fraction(1, 10**9), "ns"))


def decimal(value: Fraction, places: int) -> str:
    """Format a non-negative number with a fixed number of decimals, rounded half up."""
    scale = 10**places
    whole, part = divmod((2 * value.numerator * scale + value.denominator) // (2 * value.denominator), scale)
    return f"{whole:,}" + (f".{part:0{places}d}" if places else "")


def duration(seconds: str | None, places: int = PLACES) -> str:
    """Format seconds: ``4.481 ms``; ``?`` for None."""
    if seconds is None:
        return "?"
    value = Fraction(seconds)
    unit, name = next(((u, n) for u, n in _UNITS if value >= u), _UNITS[-1])
    return f"{decimal(value / unit, places)} {name}" if value else "0 s"
