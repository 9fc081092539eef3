"""Measured times beside their bounds, for the console and for people who read Markdown."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from costproof.estimate.measured import Measurement, OperatorRow, PartRow, Row
from costproof.reports.escape import code, markdown, table, visible
from costproof.reports.numbers import aligned, human, plural, share
from costproof.reports.profile_md import seconds
from costproof.reports.roofline_words import decimal, duration

SAYS: Final = (
    "Measured = floor + traffic + shapes + between, to the last digit. Floor: the products at the peak, or inputs, "
    "weights, cache and results once at the bandwidth. Traffic: what its modules take beyond that at the roof. "
    "Shapes: what its operators, each made alone, take beyond the roof. Between: the rest, from dispatch and Python to "
    "what caches save."
)
STAGES: Final = (
    "Forward", "Stage", "FLOPs", "Bytes", "Floor", "At the roof", "Operators alone", "Measured", "Fastest to slowest",
    "Measured / roof", "Of the peak", "Of the bandwidth",
)  # fmt: skip
PARTS: Final = ("Forward", "Stage", "Measured", "Floor", "Traffic", "Shapes", "Between")
OPERATORS: Final = ("Forward", "Stage", "Operator", "Shapes", "Calls", "Alone", "All calls", "Share")
MODEL: Final = (
    "Forward", "Stage", "Part", "FLOPs", "Bytes", "At the roof", "Operators alone", "Share", "Alone / roof",
    "Of the peak",
)  # fmt: skip
MAX_OPERATORS: Final = 15
MAX_PARTS: Final = 25
_NANO: Final = 10**9


def measure_text(found: Measurement) -> str:
    """For the console."""
    lines = [found.name, _roof(found), "", *aligned(STAGES, [_stage(r) for r in found.rows], left=2), ""]
    lines += [*aligned(PARTS, [_parts(r) for r in found.rows], left=2), "", SAYS, "", _replay(found), ""]
    lines += [*aligned(MODEL, _model(found), left=3), *_more(len(found.parts), MAX_PARTS, "part"), ""]
    lines += [*aligned(OPERATORS, _operators(found), left=4), *_more(len(found.operators), MAX_OPERATORS, "operator")]
    lines += [f"WRONG: {row.run} {row.stage} {row.wrong}" for row in found.rows if row.wrong]
    return "\n".join(visible(line) for line in lines) + "\n"


def measure_md(found: Measurement) -> str:
    """For people."""
    lines = [f"# Measured: {markdown(found.name)}", "", markdown(_roof(found)), ""]
    lines += [f"**{code(row.run)} {code(row.stage)} {markdown(row.wrong)}**" for row in found.rows if row.wrong]
    lines += [*table(STAGES, "ll" + "r" * 10, [_coded(_stage(r), 2) for r in found.rows]), ""]
    lines += ["## Where the time goes", "", SAYS, ""]
    lines += [*table(PARTS, "llrrrrr", [_coded(_parts(r), 2) for r in found.rows]), "", "## Parts of the model", ""]
    lines += [*table(MODEL, "lll" + "r" * 7, [_coded(r, 3) for r in _model(found)])]
    lines += [*_more(len(found.parts), MAX_PARTS, "part"), "", "## Operators", ""]
    lines += [_replay(found), "", *table(OPERATORS, "llllrrrr", [_coded(r, 4) for r in _operators(found)])]
    return "\n".join([*lines, *_more(len(found.operators), MAX_OPERATORS, "operator")]) + "\n"


def _coded(row: tuple[str, ...], words: int) -> tuple[str, ...]:
    return (*(code(cell) if cell else "" for cell in row[:words]), *row[words:])


def _roof(found: Measurement) -> str:
    peak, width = human(found.peak_flops, "FLOP/s", places=3), human(found.bandwidth, "B/s", places=3)
    seen = ", measured" if found.device.origin == "measured" else ""
    times = plural(found.options.profile, "run")
    return (
        f"{found.device.title}{seen}: {peak} ({found.dtype}, dense), {width}. "
        f"{times} by {found.clock}, {plural(found.threads, 'thread')}; medians"
    )


def _replay(found: Measurement) -> str:
    error = decimal(100 * found.median_error, 1)
    return f"As a prediction, the operators alone are {error} % off the measured time in the median over the rows."


def _place(row: Row) -> tuple[str, str]:
    return row.run, f"{row.stage}[{row.invocation}]" if row.invocation else row.stage or "outside the stages"


def _stage(row: Row) -> tuple[str, ...]:
    spent = row.measured.median
    roof = None if row.roof.seconds is None else Fraction(row.roof.seconds) * _NANO
    return (
        *_place(row), human(row.roof.flops, "FLOP"), human(row.roof.bytes, "B"), duration(row.floor.seconds),
        duration(row.roof.seconds), seconds(row.replay), seconds(spent),
        f"{seconds(min(row.measured.runs))} to {seconds(max(row.measured.runs))}",
        f"{decimal(Fraction(spent) / roof, 2)} x" if roof else "",
        _percent(row.of_peak), _percent(row.of_bandwidth),
    )  # fmt: skip


def _percent(rate: str | None) -> str:
    return "?" if rate is None else f"{decimal(100 * Fraction(rate), 1)} %"


def _parts(row: Row) -> tuple[str, ...]:
    split = row.split
    parts = (
        ("?",) * 4 if split is None else tuple(map(_signed, (split.floor, split.traffic, split.shapes, split.between)))
    )
    return (*_place(row), seconds(row.measured.median), *parts)


def _signed(nanoseconds: str) -> str:
    value = Fraction(nanoseconds) / _NANO
    return f"-{duration(str(-value))}" if value < 0 else duration(str(value))


def _operators(found: Measurement) -> list[tuple[str, ...]]:
    whole = sum(o.calls * o.alone.median for o in found.operators)
    return [_operator(o, whole) for o in found.operators[:MAX_OPERATORS]]


def _operator(o: OperatorRow, whole: int) -> tuple[str, ...]:
    shapes = " ".join("x".join(map(str, s)) or "number" for s in o.shapes)
    spent = o.calls * o.alone.median
    return (
        o.run, o.stage, o.operator, shapes, f"{o.calls:,}", seconds(o.alone.median), seconds(spent), share(spent, whole)
    )  # fmt: skip


def _model(found: Measurement) -> list[tuple[str, ...]]:
    whole = sum(p.replay for p in found.parts)
    return [_part(p, whole) for p in found.parts[:MAX_PARTS]]


def _part(p: PartRow, whole: int) -> tuple[str, ...]:
    roof = None if p.roof.seconds is None else Fraction(p.roof.seconds) * _NANO
    return (
        p.run, p.stage, p.part, human(p.roof.flops, "FLOP"), human(p.roof.bytes, "B"), duration(p.roof.seconds),
        seconds(p.replay), share(p.replay, whole), f"{decimal(p.replay / roof, 2)} x" if roof else "",
        _percent(p.of_peak),
    )  # fmt: skip


def _more(count: int, shown: int, what: str) -> list[str]:
    return ["", f"and {plural(count - shown, f'more {what}')}; -f json has them"] if count > shown else []
