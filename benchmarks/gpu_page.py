"""The page of ``make gpu-check``: tables as rows come, and the goals that they are judged by.

``python -m benchmarks.gpu_page PAGE`` takes what was run on a GPU from another page into docs/gpu.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from statistics import correlation
from typing import Any, Final

from costproof.estimate.measured import TimeSplit
from costproof.ledger.writing import write_named
from costproof.reports.escape import markdown, table

PAGE: Final = Path("docs/gpu.md")
KINDS: Final = {"cuda": "On a GPU", "cpu": "On a processor"}
GOALS: Final = {
    "cuda": {"eager": Fraction(1, 5), "graph": Fraction(1, 10)},
    "cpu": {"eager": Fraction(1, 5)},
}
"""The median error of the predicted time of each stage, at most, by the form that it runs in."""
RANKED: Final = 0.99
"""The rank correlation of predicted and measured times on a processor, at least."""


@dataclass(frozen=True)
class Table:
    """A table of a part."""

    name: str
    head: tuple[str, ...]
    align: str
    prose: str = ""


SPLIT: Final = tuple(f.name for f in fields(TimeSplit))
_TIMED: Final = tuple(
    f"{form}, {column}"
    for form in ("eager", "graph", "compiled")
    for column in ("predicted", "measured", "off", "of peak")
)
TABLES: Final = {
    "machine": (Table("rates", ("figure", "measured", "by"), "lrl"),),
    "counts": (Table("counts", ("model", "preset", "attention", "layers", "verdict"), "lllll"),),
    "peaks": (
        Table(
            "peaks",
            (
                "model", "preset", "layers", "stage", "graph", "program asked for", "more", "eager",
                "module asked for", "more", "alive, by blocks of 512", "program allocated", "more", "of which",
            ),
            "llllrrrrrrrrrl",
            "Bytes. Asked for: the peak of what tensors and kernels asked of the allocator, inputs included, "
            "parameters not. Of which: the parts of the gap, by operator; a workspace is what one asks for besides its "
            "results.",
        ),
        Table(
            "allocations",
            (
                "model", "stage", "part", "attention", "graph", "run of the program", "eager", "run of the module",
                "gap", "largest part of the gap", "residual", "workspaces at the allocator's peak, program",
            ),
            "llllrrrrrlrl",
        ),
    ),
    "times": (
        Table(
            "times",
            ("model", "attention", "layers", "run", "stage", "floor", "roof", *_TIMED),
            "lllll" + "r" * 14,
            "Milliseconds: the floor and the roof of the device as it was measured; for each form in which the stage "
            "runs what was predicted, what was measured (the median, or why there is none), how far they are apart, "
            "and the share of the peak (MFU).",
        ),
        Table(
            "clocks",
            (
                "model", "attention", "layers", "run", "stage", "operators", "launches", "host by itself",
                "device by itself", "both", "clock that binds",
            ),
            "lllll" + "r" * 5 + "l",
            "The two clocks of the eager run.",
        ),
        Table(
            "predictions",
            (
                "model", "attention", "layers", "run", "stage", "device by itself", "both clocks", "measured",
                "in between",
            ),
            "lllll" + "rrrl",
            "Predicted without running the model, from its operators and the host times of the machine.",
        ),
        Table(
            "split",
            ("model", "attention", "layers", "run", "stage", *SPLIT),
            "lllll" + "r" * len(SPLIT),
            "The eager times, in parts that add up ([the parts](roofline.md#measured-times)).",
        ),
    ),
    "weights": (Table("weights", ("how", "numbers", "seconds", "numbers a second"), "lrrr"),),
}  # fmt: skip


@dataclass
class Page:
    """What was run, and what came out."""

    kind: str
    path: Path
    rows: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)
    figures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    spent: list[tuple[str, ...]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """What was not run, and why."""
    budget: str = ""

    def take(self, part: str, message: Mapping[str, Any]) -> None:
        """Add a message of a step, and show it."""
        kind, value = message["kind"], message["value"]
        if kind == "row":
            self.rows.setdefault(message["table"], []).append(tuple(markdown(str(cell)) for cell in value))
            print("| " + " | ".join(map(str, value)) + " |", flush=True)
        elif kind == "text":
            self.texts.setdefault(part, []).append(value)
            print(value, flush=True)
        elif kind == "figure":
            more = {k: v for k, v in message.items() if k not in ("kind", "value")}
            self.figures.setdefault(value, []).append(more)
        elif kind == "wrong":
            self.wrong.append(value)
            print(f"wrong: {value}", flush=True)

    def failed(self, what: str, why: str) -> None:
        """Note a step that ended otherwise than by itself."""
        self.wrong.append(f"{what} ended in an error: {' '.join(why.split())}")
        print(self.wrong[-1], flush=True)

    def section(self) -> list[str]:
        """The part of the page for this kind of device."""
        lines = [f"## {KINDS[self.kind]}", "", self.budget, "", "### Goals", ""]
        lines += table(("goal", "wanted", "found", "met"), "llrl", list(goals(self.kind, self.figures)))
        for title, tables in TABLES.items():
            if not self.texts.get(title) and not any(one.name in self.rows for one in tables):
                continue
            lines += ["", f"### {title.capitalize()}"]
            for text in self.texts.get(title, ()):
                lines += ["", markdown(text)]
            for one in tables:
                if rows := self.rows.get(one.name):
                    lines += ["", *([one.prose, ""] if one.prose else []), *table(one.head, one.align, rows)]
        lines += ["", "### Time of each step", "", *table(("part", "step", "seconds"), "llr", self.spent)]
        lines += ["", "### Not run", "", *(f"- {markdown(what)}" for what in self.left or ["nothing was left out"])]
        if self.wrong:
            lines += ["", "### Not as it should be", "", *(f"- {markdown(what)}" for what in self.wrong)]
        return lines

    def write(self) -> None:
        """Replace the part of the page for this kind of device, and keep the other."""
        replace_section(self.path, KINDS[self.kind], self.section())


def replace_section(path: Path, title: str, lines: Sequence[str]) -> None:
    """Write a page with one part replaced, and the other kept."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    both = {**dict(sections(before)), title: lines}
    page = [
        "# What a device settles", "",
        "Made by `make gpu-check`; not to be edited. Each run replaces the part of its kind of device.",
    ]  # fmt: skip
    for name in KINDS.values():
        page += ["", *both.get(name, [f"## {name}", "", "Not run."])]
    write_named(path, "\n".join(page) + "\n")


def sections(page: str) -> Iterator[tuple[str, list[str]]]:
    """The parts of a page by title, without blank lines at their ends."""
    for text in f"\n{page}".split("\n## ")[1:]:
        lines = f"## {text}".rstrip().splitlines()
        if lines[0].removeprefix("## ") in KINDS.values():
            yield lines[0].removeprefix("## "), lines


def goals(kind: str, figures: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[tuple[str, str, str, str]]:
    """The rows of the goals: what, wanted, found, whether it is met."""

    def row(what: str, wanted: str, found: str, met: bool | None) -> tuple[str, str, str, str]:
        return what, wanted, found, "unknown" if met is None else "yes" if met else "NO"

    for name, what in (("counts", "counts exact or explained"), ("peaks", "peaks to the byte or by named workspaces")):
        found = figures.get(name, [])
        good = sum(f["good"] for f in found)
        yield row(what, "all", f"{good} of {len(found)}", good == len(found) if found else None)
    floor = figures.get("floor", [])
    below = sum(not f["good"] for f in floor)
    rows = sum(f.get("rows", 0) for f in floor)
    yield row("times below their floor", "0", f"{below} of {rows}", not below if floor else None)
    timed = figures.get("times", [])
    for form, goal in GOALS[kind].items():
        for stage, off in medians(timed, form).items():
            met = off <= goal
            yield row(f"{form}: {stage} predicted, off at the median", f"{float(goal):.0%}", f"{float(off):.1%}", met)
        if form not in {f["form"] for f in timed}:
            yield row(f"{form}: stages predicted", f"{float(goal):.0%}", "none measured", None)
    for drawn in figures.get("weights", []):
        yield row(drawn["what"], drawn["wanted"], drawn["found"], drawn["good"])
    if kind == "cpu" and (rank := rank_correlation(timed)) is not None:
        yield row("rank correlation of predicted and measured", str(RANKED), f"{rank:.4f}", rank >= RANKED)


def medians(timed: Sequence[Mapping[str, Any]], form: str) -> dict[str, Fraction]:
    """The median error of the predicted time of each stage, the larger middle one of an even number."""
    off: dict[str, list[Fraction]] = {}
    for f in timed:
        if f["form"] == form:
            error = abs(Fraction(f["predicted"] - f["measured"], max(1, f["measured"])))
            off.setdefault(f["stage"], []).append(error)
    return {stage: sorted(errors)[len(errors) // 2] for stage, errors in off.items()}


def rank_correlation(timed: Sequence[Mapping[str, Any]]) -> float | None:
    """Spearman's, of predicted and measured eager times; ``None`` where all are equal."""
    known = [(f["predicted"], f["measured"]) for f in timed if f["form"] == "eager"]
    if any(len(set(values)) < 2 for values in zip(*known, strict=True)) or not known:
        return None
    return correlation(*(ranks(values) for values in zip(*known, strict=True)))


def ranks(values: Sequence[int]) -> list[float]:
    """Of equal values the mean of their places, from 0."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]


if __name__ == "__main__":
    other = dict(sections(Path(sys.argv[1]).read_text(encoding="utf-8")))
    replace_section(PAGE, KINDS["cuda"], other[KINDS["cuda"]])
