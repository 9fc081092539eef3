"""A roofline for the console, for people who read Markdown, and as a table for other programs."""

from __future__ import annotations

import csv
from io import StringIO
from typing import Final

from costproof.estimate.roofline import Bound, Roofline
from costproof.ledger.plural import plural
from costproof.ledger.workload import counted_line
from costproof.reports import roofline_words as words
from costproof.reports.escape import code, markdown, table
from costproof.reports.screen import aligned, filled

COLUMNS: Final = (
    "level", "stage", "part", "flops", "bytes", "intensity", "compute_s", "memory_s", "seconds", "bound",
)  # fmt: skip


def roofline_text(found: Roofline, width: int | None = None) -> str:
    """For the console."""
    lines = [found.name, counted_line(found.target, found.workload), words.roof(found)]
    lines += [*words.instead(found), words.BOUND, ""]
    lines += [*aligned(words.STAGES, words.stages(found), width=width), "", words.modules(found), words.floor(found)]
    lines += [*words.left_out(found), *words.experts(found), ""]
    lines += [*aligned(words.PARTS, words.parts(found), 2, width)]
    more = len(found.parts) - words.MAX_PARTS
    lines += ([f"and {plural(more, 'more part')}; -f csv and -f json have them"] if more > 0 else []) + [
        "",
        words.waiting(found),
    ]
    if found.borders:
        lines += ["", "Borders, solved and evaluated on both sides:"]
        lines += [line for says, sides in map(words.border, found.borders) for line in (f"  {says}", f"      {sides}")]
    return filled(lines, width)


def roofline_md(found: Roofline) -> str:
    """For people."""
    lines = [f"# Roofline: {markdown(found.name)}", "", markdown(counted_line(found.target, found.workload)), ""]
    lines += [markdown(words.roof(found)), ""]
    lines += [*map(markdown, words.instead(found)), words.BOUND, ""]
    stages = [(code(s), *rest) for s, *rest in words.stages(found)]
    lines += [*table(words.STAGES, "lrrrrrrlrrr", stages), "", words.modules(found), words.floor(found), ""]
    lines += [*words.left_out(found), ""] if words.left_out(found) else []
    lines += [f"- {markdown(line)}" for line in words.experts(found)] + ([""] if found.experts else [])
    parts = [(code(s), code(p), *rest) for s, p, *rest in words.parts(found)]
    lines += [
        "## Parts that take longest",
        "",
        *table(words.PARTS, "llrrrrrl", parts),
        "",
        markdown(words.waiting(found)),
    ]
    if found.borders:
        lines += ["", "## Borders", "", *(f"- {markdown('; '.join(words.border(b)))}" for b in found.borders)]
    return "\n".join(lines) + "\n"


def roofline_csv(found: Roofline) -> str:
    """Exact integers; seconds and intensities as rational numbers. An unknown number is empty."""
    out = StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()

    def add(level: str, stage: str, part: str, b: Bound) -> None:
        numbers = {name: getattr(b, name) for name in COLUMNS[3:]}
        writer.writerow({"level": level, "stage": stage, "part": part, **numbers})

    for level, every in (("run", (found.run,)), ("stage", found.stages)):
        for stage in every:
            add(level, stage.id, "", stage.modules)
            add(f"{level} floor", stage.id, "", stage.floor)
            if stage.full is not None:
                add(f"{level} full", stage.id, "", stage.full)
            if stage.unfused is not None:
                add(f"{level} unfused", stage.id, "", stage.unfused)
    for part in found.parts:
        add("part", part.stage, part.part, part.at_roof)
    return out.getvalue()
