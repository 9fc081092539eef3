"""The page of ``make gpu-check``, and the rows beside it in CSV files, as they come.

``python -m benchmarks.gpu_page PAGE`` takes what was run on a GPU from another page and its files into docs/gpu.md.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Final

from benchmarks import gpu_summary as summary
from benchmarks.gpu_summary import SPLIT, Row, goals, grouped, table
from costproof.ledger.writing import write_texts
from costproof.reports.escape import markdown

PAGE: Final = Path("docs/gpu.md")
KINDS: Final = {"cuda": "On a GPU", "cpu": "On a processor"}
ON: Final = "on"
"""The column that names the kind of device of a row."""
_HEAD: Final = """\
How exact counts and peaks are on a real device, and how far predicted times are off. Made by `make gpu-check`; not to
be edited. Each run replaces the part of its kind of device, here and in the [files](#files).

An error is |predicted − measured| / measured: the median of a stage, the largest, and in parentheses of how many times.
The forms `eager` and `graph` are predicted from a recorded eager run ([two clocks](roofline.md#two-clocks)), `never
run` from operators alone ([predicted times](roofline.md#predicted-times))."""
_FILES: Final = f"`{ON}` names the kind of device, `cuda` or `cpu`; an empty cell is unknown, or does not apply."


@dataclass(frozen=True)
class Table:
    """The rows of one kind: the page has what they sum up to, and a CSV file beside it the rows."""

    title: str
    head: tuple[str, ...]
    summary: Callable[[Sequence[Row]], list[str]]
    columns: str
    """What the columns are."""


_MODEL: Final = ("model", "attention", "layers")
_STAGE: Final = (*_MODEL, "run", "stage")
TABLES: Final = {
    "times": Table(
        "Predicted times",
        (*_STAGE, "form", "floor", "roof", "least", "predicted", "measured", "off", "of peak", "why"),
        summary.times,
        "milliseconds (`measured` is the median of runs, `least` the lower end of a predicted interval), the error "
        "`off`, `of peak` (MFU), and `why` nothing was measured",
    ),
    "parts": Table(
        "Where the time goes", (*_STAGE, "operators", "launches", "host", "device", "both", "binds", *SPLIT),
        summary.parts,
        "the eager run: its two clocks by themselves and together in milliseconds, which binds, and the "
        "[parts](roofline.md#measured-times) of the measured time",
    ),
    "counts": Table("Counts", ("model", "preset", "attention", "layers", "verdict"), summary.counts, "verdicts"),
    "peaks": Table(
        "Peaks",
        (
            "model", "preset", "attention", "layers", "stage", "graph", "program", "eager", "module", "rounded",
            "allocated", "of which",
        ),
        summary.peaks,
        "bytes with inputs, without parameters: alive in the graph, asked for by the exported program; alive in eager, "
        "asked for by the module; the graph in blocks of 512, what the program was given; the gaps by operator",
    ),
    "allocations": Table(
        "Peaks",
        (
            "model", "stage", "part", "attention", "graph", "program", "eager", "module", "gap", "largest", "residual",
            "workspaces",
        ),
        summary.peaks,
        "the same of runs on a processor; the gap from eager to graph, its largest part and residual; workspaces at "
        "the program's peak",
    ),
    "rates": Table("Machine", ("figure", "measured", "by"), summary.rates, "what was measured, and how"),
    "steps": Table("Steps", ("part", "step", "seconds", "ended"), summary.steps, "seconds, and how a step ended"),
}  # fmt: skip


@dataclass
class Page:
    """What was run, and what came out."""

    kind: str
    path: Path
    rows: dict[str, list[Row]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    figures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """What was not run, and why."""
    budget: str = ""

    def take(self, message: Mapping[str, Any]) -> None:
        """Add a message of a step, and show it."""
        kind, value = message["kind"], message["value"]
        if kind == "row":
            self.add(message["table"], value)
            print("| " + " | ".join(map(str, value)) + " |", flush=True)
        elif kind == "text":
            self.texts.append(value)
            print(value, flush=True)
        elif kind == "figure":
            more = {k: v for k, v in message.items() if k not in ("kind", "value")}
            self.figures.setdefault(value, []).append(more)
        elif kind == "wrong":
            self.wrong.append(value)
            print(f"wrong: {value}", flush=True)

    def add(self, name: str, cells: Sequence[Any]) -> None:
        """Add a row of a table; ``None`` is unknown."""
        texts = ("" if cell is None else str(cell) for cell in cells)
        self.rows.setdefault(name, []).append(dict(zip(TABLES[name].head, texts, strict=True)))

    def failed(self, what: str, why: str) -> None:
        """Note a step that ended otherwise than by itself."""
        self.wrong.append(f"{what} ended in an error: {' '.join(why.split())}")
        print(self.wrong[-1], flush=True)

    def goals(self) -> list[tuple[str, str, str, str]]:
        """The goals: what, wanted, found, whether it is met."""
        return list(goals(self.kind, self.figures, self.rows.get("times", ())))

    def section(self) -> list[str]:
        """The part of the page for this kind of device."""
        lines = [f"## {KINDS[self.kind]}", ""]
        lines += [*(f"{markdown(text)}." for text in self.texts[:1]), self.budget, "", "### Goals", ""]
        lines += table(("goal", "wanted", "found", "met"), "llrl", self.goals())
        for name, one in TABLES.items():
            rows, texts = self.rows.get(name), self.texts[1:] if name == "rates" else []
            if rows or texts:
                lines += ["", f"### {one.title}", *(line for text in texts for line in ("", markdown(text)))]
            if rows:
                file = beside(self.path, name).name
                lines += ["", *one.summary(rows), "", f"Rows: [{file}]({file})"]
        lines += ["", "### Not run", "", *(f"- {markdown(what)}" for what in self.left or ["nothing was left out"])]
        if self.wrong:
            lines += ["", "### Not as it should be", "", *(f"- {markdown(what)}" for what in self.wrong)]
        return lines

    def write(self) -> None:
        """Replace the part of the page and the rows of this kind of device, and keep those of the other."""
        renew(self.path, self.kind, self.section(), self.rows)


def renew(path: Path, kind: str, lines: Sequence[str], rows: Mapping[str, Sequence[Row]]) -> None:
    """Write a page and its CSV files: what one kind of device gave is replaced, and the rest kept."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    both = {**dict(sections(before)), KINDS[kind]: lines}
    page = ["# What a device settles", "", _HEAD]
    for name in KINDS.values():
        page += ["", *both.get(name, [f"## {name}", "", "Not run."])]
    page += ["", "## Files", "", _FILES, ""]
    texts: dict[Path, str] = {}
    for name, one in TABLES.items():
        file = beside(path, name)
        page.append(f"- [{file.name}]({file.name}): {one.columns}.")
        every = {**read(file), kind: rows.get(name, ())}
        if any(every.values()) or file.exists():
            text = StringIO()
            writer = csv.DictWriter(text, [ON, *one.head], lineterminator="\n")
            writer.writeheader()
            writer.writerows({ON: on, **row} for on in KINDS for row in every.get(on, ()))
            texts[file] = text.getvalue()
    write_texts({**texts, path: "\n".join(page) + "\n"}, durable=False)


def beside(page: Path, name: str) -> Path:
    """The CSV file of a table."""
    return page.with_name(f"{page.stem}-{name}.csv")


def read(file: Path) -> dict[str, list[Row]]:
    """The rows of a CSV file by kind of device; none if there is no file."""
    if not file.exists():
        return {}
    with file.open(newline="", encoding="utf-8") as lines:
        found = grouped(csv.DictReader(lines), lambda row: row[ON])
    return {on: [{name: row[name] for name in row if name != ON} for row in rows] for on, rows in found.items()}


def sections(page: str) -> Iterator[tuple[str, list[str]]]:
    """The parts of a page by title, without blank lines at their ends."""
    for text in f"\n{page}".split("\n## ")[1:]:
        lines = f"## {text}".rstrip().splitlines()
        if lines[0].removeprefix("## ") in KINDS.values():
            yield lines[0].removeprefix("## "), lines


if __name__ == "__main__":
    other = Path(sys.argv[1])
    given = {name: read(beside(other, name)).get("cuda", []) for name in TABLES}
    renew(PAGE, "cuda", dict(sections(other.read_text(encoding="utf-8")))[KINDS["cuda"]], given)
