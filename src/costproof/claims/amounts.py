"""Printed numbers: ``571.92 G`` is every integer that rounds, or is cut off, to these digits."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil, floor
from typing import Final

from costproof.claims.types import Amount
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import BYTES, Metric

_NUMBER: Final = re.compile(r"([0-9][0-9_,]{0,40})(?:\.([0-9]{1,20}))?(?:[eE]([+-]?[0-9]{1,2}))?\s*([A-Za-z]*)")
_POWER: Final = re.compile(r"(?<=[0-9])\s*[x×·]\s*10\s*(?:\^|\*\*)\s*(?=[+-]?[0-9])")
_PRODUCT: Final = re.compile(r"(?<=[0-9])(\.[0-9]+)\s*\*\s*10\s*(?:\^|\*\*)\s*(?=[+-]?[0-9])")
"""``8.03*10^9`` is printed; ``8*10**9`` is a formula, and exact."""
_APART: Final = re.compile(r"(?<=[0-9])\s+(?=[eE][+-]?[0-9])")
_UNITS: Final = {
    "": 0, "k": 3, "K": 3, "M": 6, "G": 9, "B": 9, "b": 9, "T": 12, "P": 15, "million": 6, "billion": 9, "trillion": 12,
}  # fmt: skip
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}
_SUFFIX: Final = re.compile(r"([kKMGTP]?i?)(?:(FLOPs?)|(MACs?)|(B|bytes?))", re.IGNORECASE)
_SPELLINGS: Final = "no unit, or k, M, G, T, P; with FLOPs for FLOPs; with B, or KiB, MiB, GiB, TiB, PiB, for bytes"
_MOST: Final = 36


def is_number(text: str) -> bool:
    """Whether a text is a printed number rather than a formula."""
    return _NUMBER.fullmatch(_plain(text)) is not None


def _plain(text: str) -> str:
    """A power of ten as programs write it: ``8.03e9`` for ``8.03 × 10^9``."""
    return _APART.sub("", _PRODUCT.sub(r"\1e", _POWER.sub("e", text.strip())))


def amount(text: str, *, where: str, metric: Metric | None = None) -> Amount:
    """The integers that a printed number stands for.

    Without decimals, exponent and unit it is exact. Otherwise the last digit is rounded: half a unit
    of it to either side, both ends included, because programs round halves either way. Zero is zero.

    Args:
        metric: what it counts, which decides the words that may follow the prefix: ``GFLOPs``, ``KiB``.

    Raises:
        BadInput: the text is not a number, a number without any integer, or its unit is not one of the metric's.
    """
    match = _NUMBER.fullmatch(_plain(text))
    if match is None:
        raise BadInput("not a number", where=where, expected="digits such as 5719225, 571.92 G, 1.5e9", got=text[:60])
    whole, decimals, exponent, word = match.groups()
    unit = _prefix(word, metric, where)
    shift = _UNITS.get(unit, 0) + int(exponent or 0)
    if abs(shift) > _MOST:
        raise BadInput("a claim is out of range", where=where, expected=f"at most 10 to the {_MOST}", got=text[:60])
    digits = whole.replace("_", "").replace(",", "") + (decimals or "")
    last = Fraction(10) ** (shift - len(decimals or "")) * 2 ** _BINARY.get(unit, 0)
    value = int(digits) * last
    if not decimals and not exponent and not unit:
        return Amount(text.strip(), int(value), int(value))
    low, high = (ceil(value - last / 2), floor(value + last / 2)) if last > 1 else (ceil(value), floor(value))
    if low > high:
        raise BadInput(
            "not an integer", where=where, expected="a count", got=text[:60],
            fix="write the number as it was printed, with its prefix: 571.92G",
        )  # fmt: skip
    # A zero that was printed says that there is nothing, whatever its unit would round away.
    return Amount(text.strip(), max(low, 0), high if value else 0)


def _prefix(word: str, metric: Metric | None, where: str) -> str:
    """The prefix of a unit: ``G`` of ``GFLOPs``, ``Ki`` of ``KiB``."""
    split = _SUFFIX.fullmatch(word)
    if split is None or (word in _UNITS and metric not in BYTES):
        if word in _UNITS or word in _BINARY:
            return word
        raise BadInput("not a unit", where=where, expected=_SPELLINGS, got=word[:40])
    prefix, flops, macs, _ = split.groups()
    if macs:
        fix = f"write {prefix or 'the number alone'} and conventions: {{unit: mac}}"
        raise BadInput("multiply-accumulates are a convention, not a unit", where=where, got=word, fix=fix)
    allowed = metric is None or (metric in BYTES) != bool(flops)
    if not allowed or prefix not in {*_UNITS, *_BINARY}:
        raise BadInput(f"not a unit of {metric or 'a number'}", where=where, expected=_SPELLINGS, got=word)
    return prefix
