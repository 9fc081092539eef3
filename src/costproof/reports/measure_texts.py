"""Measured times beside their bounds, for the console and for people who read Markdown."""

from __future__ import annotations

from dataclasses import astuple, fields
from fractions import Fraction
from typing import Final

from costproof.estimate.measured import Measurement, OperatorRow, PartRow, Row, Split
from costproof.ledger.plural import plural
from costproof.ledger.workload import counted_line
from costproof.reports.escape import code, markdown, table
from costproof.reports.profile_md import seconds
from costproof.reports.roofline_words import decimal, duration
from costproof.reports.screen import aligned, filled
from costproof.views.numbers import human, share

SAYS: Final = (
    "Measured = the sum of the other columns, to the last digit. Floor: the products at the peak, or inputs, weights, "
    "cache and results once at the bandwidth. Traffic: what its modules take beyond that at the roof. What operators "
    "take, each made alone, beyond the roof: dispatch, as long as the fastest of them for every call; of the rest "
    "shapes, of products; movement, of copies, views and look-ups; experts, of all in modules of experts; other. "
    "Residual: the fastest run less all operators: launch and Python between them, less what caches save. Jitter: the "
    "median less the fastest run."
)
PREDICTS: Final = (
    "A prediction: the model did not run. Each distinct operator was made alone, on tensors of the form that a run "
    "gives it, and the times of all its calls are added up; experts get their rows by uniform routing. The other "
    "columns sum to that, and mean what they mean of a measured time. Not in it is what lies between the operators: "
    "launch and Python, and what caches save."
)
STAGES: Final = (
    "Forward", "Stage", "FLOPs", "Bytes", "Floor", "At the roof", "Operators alone", "Measured", "Fastest to slowest",
    "Measured / roof", "Of the peak", "Of the bandwidth",
)  # fmt: skip
UNRUN: Final = (*STAGES[:8], "Alone / roof")
SPLIT: Final = tuple(f.name.capitalize() for f in fields(Split))
PARTS: Final = ("Forward", "Stage", "Measured", *SPLIT)
UNRUN_PARTS: Final = ("Forward", "Stage", "Operators alone", *SPLIT[:-2])
OPERATORS: Final = ("Forward", "Stage", "Operator", "Shapes", "Calls", "Alone", "All calls", "Share")
MODEL: Final = (
    "Forward", "Stage", "Part", "FLOPs", "Bytes", "At the roof", "Operators alone", "Share", "Alone / roof",
    "Of the peak", "Measured", "Measured / roof",
)  # fmt: skip
HOOKED: Final = (
    "Measured, of a part: its modules themselves, without those in them, in runs in which each module has a hook. What "
    "hooks take is in it: a few microseconds for each call, and so the parts add up to more than the stage."
)
MAX_OPERATORS: Final = 15
MAX_PARTS: Final = 25
_NANO: Final = 10**9


def measure_text(found: Measurement, width: int | None = None) -> str:
    """For the console."""
    heads, parts = _heads(found)
    lines = [
        found.name,
        counted_line(found.target, found.workload),
        _roof(found),
        "",
        *aligned(heads, [_stage(r) for r in found.rows], 2, width),
        "",
    ]
    lines += [*aligned(parts, [_parts(r) for r in found.rows], 2, width), "", *_says(found)]
    lines += [*aligned(_parted(found), _model(found), 3, width), *_more(len(found.parts), MAX_PARTS, "part"), ""]
    lines += [*aligned(OPERATORS, _operators(found), 4, width), *_more(len(found.operators), MAX_OPERATORS, "operator")]
    lines += [f"WRONG: {wrong}" for wrong in _wrong(found)]
    lines += [f"NOT MADE: {o.run} {o.stage} {o.operator} {_shapes(o)}: {o.why}" for o in found.operators if o.why]
    return filled(lines, width)


def measure_md(found: Measurement) -> str:
    """For people."""
    heads, parts = _heads(found)
    what = "Predicted" if found.predicted else "Measured"
    counted = markdown(counted_line(found.target, found.workload))
    lines = [f"# {what}: {markdown(found.name)}", "", counted, "", markdown(_roof(found)), ""]
    wrong = [f"- **{markdown(wrong)}**" for wrong in _wrong(found)]
    wrong += [
        f"- **{code(o.run)} {code(o.stage)} {code(f'{o.operator} {_shapes(o)}')} could not be made: {markdown(o.why)}**"
        for o in found.operators if o.why
    ]  # fmt: skip
    lines += [*wrong, ""] if wrong else []
    stages = [_coded(_stage(r), 2) for r in found.rows]
    lines += [*table(heads, "ll" + "r" * (len(heads) - 2), stages), "", "## Where the time goes", ""]
    lines += [SAYS if not found.predicted else PREDICTS, ""]
    split = [_coded(_parts(r), 2) for r in found.rows]
    lines += [*table(parts, "ll" + "r" * (len(parts) - 2), split), "", "## Parts of the model", ""]
    lines += [] if found.predicted else [HOOKED, ""]
    lines += [*table(_parted(found), "lll" + "r" * (len(_parted(found)) - 3), [_coded(r, 3) for r in _model(found)])]
    lines += [*_more(len(found.parts), MAX_PARTS, "part"), "", "## Operators", ""]
    lines += [] if found.predicted else [_replay(found), ""]
    lines += table(OPERATORS, "llllrrrr", [_coded(r, 4) for r in _operators(found)])
    return "\n".join([*lines, *_more(len(found.operators), MAX_OPERATORS, "operator")]) + "\n"


def _wrong(found: Measurement) -> list[str]:
    """What cannot be, and what to do where the file was measured."""
    again = "the device file says what was reached once: measure it again while nothing else runs"
    floor = (
        "the floor is too high for a run that leaves out products which it takes; docs/roofline.md says which these are"
    )
    return [
        *found.wrong,
        *([floor] if found.wrong else []),
        *([again] if found.wrong and found.device.origin == "measured" else []),
    ]


def _heads(found: Measurement) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (UNRUN, UNRUN_PARTS) if found.predicted else (STAGES, PARTS)


def _parted(found: Measurement) -> tuple[str, ...]:
    return MODEL[:-2] if found.predicted else MODEL


def _says(found: Measurement) -> list[str]:
    return [PREDICTS, ""] if found.predicted else [SAYS, "", _replay(found), HOOKED, ""]


def _coded(row: tuple[str, ...], words: int) -> tuple[str, ...]:
    return (*(code(cell) if cell else "" for cell in row[:words]), *row[words:])


def _roof(found: Measurement) -> str:
    peak, width = human(found.peak_flops, "FLOP/s", places=3), human(found.bandwidth, "B/s", places=3)
    seen = ", measured" if found.device.origin == "measured" else ""
    times = plural(found.options.profile, "call") + " of each operator"
    times = times if found.predicted else plural(found.options.profile, "run")
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
    roof = None if row.roof.seconds is None else Fraction(row.roof.seconds) * _NANO
    begin = (
        *_place(row), human(row.roof.flops, "FLOP"), human(row.roof.bytes, "B"), duration(row.floor.seconds),
        duration(row.roof.seconds), _time(row.replay),
    )  # fmt: skip
    if row.measured is None:
        return (*begin, "did not run", _times(row.replay, roof))
    spent, runs = row.measured.median, row.measured.runs
    span = f"{seconds(min(runs))} to {seconds(max(runs))}"
    return (
        *begin, seconds(spent), span, _times(spent, roof), _percent(row.of_peak), _percent(row.of_bandwidth)
    )  # fmt: skip


def _time(nanoseconds: int | None) -> str:
    return "?" if nanoseconds is None else seconds(nanoseconds)


def _times(spent: int | None, roof: Fraction | None) -> str:
    return f"{decimal(Fraction(spent) / roof, 2)} x" if roof and spent is not None else ""


def _percent(rate: str | None) -> str:
    return "?" if rate is None else share(Fraction(rate), 1)


def _parts(row: Row) -> tuple[str, ...]:
    whole, count = (row.replay, len(SPLIT) - 2) if row.measured is None else (row.measured.median, len(SPLIT))
    parts = (None,) * len(SPLIT) if row.split is None else astuple(row.split)
    return (*_place(row), _time(whole), *map(_signed, parts[:count]))


def _signed(nanoseconds: str | None) -> str:
    if nanoseconds is None:
        return "?"
    value = Fraction(nanoseconds) / _NANO
    return f"-{duration(str(-value))}" if value < 0 else duration(str(value))


def _operators(found: Measurement) -> list[tuple[str, ...]]:
    whole = sum(o.spent or 0 for o in found.operators)
    return [_operator(o, whole) for o in found.operators[:MAX_OPERATORS]]


def _operator(o: OperatorRow, whole: int) -> tuple[str, ...]:
    alone = None if o.alone is None else o.alone.median
    part = "" if o.spent is None else share(o.spent, whole)
    return o.run, o.stage, o.operator, _shapes(o), f"{o.calls:,}", _time(alone), _time(o.spent), part


def _shapes(o: OperatorRow) -> str:
    return " ".join("x".join(map(str, s)) or "number" for s in o.shapes)


def _model(found: Measurement) -> list[tuple[str, ...]]:
    whole = sum(p.replay or 0 for p in found.parts)
    return [_part(p, whole)[: len(_parted(found))] for p in found.parts[:MAX_PARTS]]


def _part(p: PartRow, whole: int) -> tuple[str, ...]:
    roof = None if p.roof.seconds is None else Fraction(p.roof.seconds) * _NANO
    ran = None if p.measured is None else p.measured.median
    return (
        p.run, p.stage, p.part, human(p.roof.flops, "FLOP"), human(p.roof.bytes, "B"), duration(p.roof.seconds),
        _time(p.replay), "" if p.replay is None else share(p.replay, whole), _times(p.replay, roof),
        _percent(p.of_peak), _time(ran), _times(ran, roof),
    )  # fmt: skip


def _more(count: int, shown: int, what: str) -> list[str]:
    return ["", f"and {plural(count - shown, f'more {what}')}; -f json has them"] if count > shown else []
