"""Printed numbers: ``571.92 G`` is every integer that rounds, or is cut off, to these digits."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil, floor
from typing import Final

from costproof.claims.types import Amount
from costproof.ledger.errors import BadInput

_NUMBER: Final = re.compile(r"([0-9][0-9_,]{0,40})(?:\.([0-9]{1,20}))?(?:[eE]([+-]?[0-9]{1,2}))?\s*([kKMGTPBb]?)")
_UNITS: Final = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "B": 9, "b": 9, "T": 12, "P": 15}
_MOST: Final = 36


def is_number(text: str) -> bool:
    """Whether a text is a printed number rather than a formula."""
    return _NUMBER.fullmatch(text.strip()) is not None


def amount(text: str, *, where: str) -> Amount:
    """The integers that a printed number stands for.

    Without decimals, exponent and unit it is exact. Otherwise the last digit is rounded: half a unit
    of it to either side, both ends included, because programs round halves either way.

    Raises:
        BadInput: the text is not a number, or a number without any integer.
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise BadInput("not a number", where=where, expected="digits such as 5719225, 571.92 G, 1.5e9", got=text[:60])
    whole, decimals, exponent, unit = match.groups()
    shift = _UNITS[unit] + int(exponent or 0)
    if abs(shift) > _MOST:
        raise BadInput("a claim is out of range", where=where, expected=f"at most 10 to the {_MOST}", got=text[:60])
    digits = whole.replace("_", "").replace(",", "") + (decimals or "")
    last = Fraction(10) ** (shift - len(decimals or ""))
    value = int(digits) * last
    if not decimals and not exponent and not unit:
        return Amount(text.strip(), int(value), int(value))
    low, high = (ceil(value - last / 2), floor(value + last / 2)) if last > 1 else (ceil(value), floor(value))
    if low > high:
        raise BadInput(
            "not an integer", where=where, expected="a count", got=text[:60],
            fix="write the number as it was printed, with its prefix: 571.92G",
        )  # fmt: skip
    return Amount(text.strip(), max(low, 0), high)
