"""A claimed number at every length of prompt or context, as Markdown."""

from __future__ import annotations

from fractions import Fraction

from costproof.claims.explaining import CHANCE
from costproof.claims.types import Lengths, Place, Reading
from costproof.reports.escape import code, table

_LENGTH = {"S": "prompt length", "P": "context length"}


def lengths_md(lengths: Lengths) -> list[str]:
    """What the claim's stage costs just below and just above the claim, in each way to count it."""
    what = f"{_LENGTH[lengths.symbol]} {code(lengths.symbol)} from {lengths.start} up"
    fits = [r for r in lengths.readings if r.fits]
    if lengths.model:
        made = ", ".join(code(c) for c in lengths.model)
        head = f"With the model that the row's parameters describe ({made}), at every {what}: "
        if not fits:
            return [f"{head}nothing that would be printed as claimed, in {_ways(lengths)}."]
        return [f"{head}{_fitting(lengths, fits)}."]
    if fits:
        return [f"At every {what}: {_fitting(lengths, fits)}."]
    rows = [(_counted(r), _place(lengths.symbol, r.below), _place(lengths.symbol, r.above)) for r in lengths.readings]
    head = f"At no {what} does it cost what is claimed. The two lengths that enclose the claim, in {_ways(lengths)}:"
    return [head, "", *table(("counted with", "below the claim", "above the claim"), "lrr", rows)]


def _fitting(lengths: Lengths, fits: list[Reading]) -> str:
    found = ", ".join(f"{_counted(r)} at {_span(lengths.symbol, r)}" for r in fits)
    chance = f"{lengths.coincidences} would be expected to by chance"
    settles = ", which settles nothing" if Fraction(lengths.coincidences) > CHANCE else ""
    return f"{len(fits)} of {len(lengths.readings)} ways to count fit ({found}), where {chance}{settles}"


def _ways(lengths: Lengths) -> str:
    number = len(lengths.readings)
    return f"{number} ways to count" if number > 1 else "the one way to count"


def _counted(reading: Reading) -> str:
    return ", ".join(code(c) for c in reading.causes) or "our conventions"


def _span(symbol: str, reading: Reading) -> str:
    assert reading.fits is not None
    first, last = (p.length for p in reading.fits)
    return f"{symbol} = {first:,}" if first == last else f"{symbol} = {first:,} to {last:,}"


def _place(symbol: str, place: Place | None) -> str:
    return "none" if place is None else f"{symbol} = {place.length:,}: {place.number:,}"
