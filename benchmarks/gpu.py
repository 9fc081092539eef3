"""What a device settles, in one command: ``make gpu-check``, or ``python -m benchmarks.gpu``, which writes docs/gpu.md.

On a GPU: every preset of DeepSeek-OCR in bfloat16 with each attention kernel, whole. Three sources are compared on a
real run; each stage is timed beside its roof and its operators alone; the bytes that a run asks of the allocator stand
beside the peaks of liveness. Without one the same on the processor at few layers, and the page says what was not run.

Exit 1 where sources differ, a time is below its floor, the replay of a stage is farther off than the goal at the median
of its rows, or a run holds less than liveness says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields
from fractions import Fraction
from functools import partial
from pathlib import Path
from statistics import correlation
from typing import Any, Final, Literal

import torch

import costproof
from benchmarks.peaks import ATTENTION, HEAD, rows
from benchmarks.requested import Requested, requested
from costproof.compare.verdict import verdict_sentence
from costproof.estimate.measured import MeasuredStage, Measurement, TimeSplit, median_error
from costproof.ledger.environment import environment
from costproof.ledger.errors import CostproofError
from costproof.reports.escape import table
from costproof.tracers.device_benchmark import device_title
from costproof.views.numbers import exact

PAGE: Final = Path("docs/gpu.md")
TARGET: Final = "deepseek-ocr"
PRESETS: Final = ("tiny", "small", "base", "large", "gundam", "gundam-m")
SOME: Final = ("tiny", "small", "gundam")
"""Of a processor."""
GOAL: Final = {"cuda": Fraction(1, 10), "cpu": Fraction(1, 5)}
"""The median error of the replay of each stage, at most."""
RANKED: Final = 0.99
ASKED: Final = (
    "preset", "attention", "stage", "graph", "program asked for", "more", "eager", "module asked for", "more",
    "alive, by blocks of 512", "program allocated", "more",
)  # fmt: skip
COUNTED: Final = ("preset", "attention", "verdict")
ALIGNED: Final = "lllrrrrrrrrr"
SPLIT: Final = tuple(f.name for f in fields(TimeSplit))
TIMED: Final = (
    "preset", "attention", "run", "stage", "at the floor", "at the roof", "replay", "measured", "measured / roof",
    "replay off", "of peak", *SPLIT,
)  # fmt: skip
TIMES_ALIGNED: Final = "llll" + "r" * (len(TIMED) - 4)


@dataclass
class Page:
    """What was run, and what came out."""

    lines: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """What was not run, and why."""

    def say(self, *lines: str) -> None:
        """Add to the page, and show."""
        self.lines += lines
        print("\n".join(lines), flush=True)

    def part(self, what: str, run: Callable[[], None]) -> None:
        """One part; an error of ours, or of the device, ends it and no other. It stands at the end of the page."""
        try:
            run()
        except (CostproofError, RuntimeError) as error:
            self.wrong.append(f"{what} ended in an error: {' '.join(str(error).split())}")
            print(self.wrong[-1], file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Asked:
    """What this machine can do."""

    run: Literal["cpu", "cuda"]
    presets: Sequence[str]
    kernels: Sequence[str]
    dtype: str
    layers: int | None
    times: int

    def each(self, page: Page, what: str, run: Callable[[str, str], None]) -> None:
        """A part of the page for every preset with every kernel."""
        for preset in self.presets:
            for attention in self.kernels:
                page.part(f"{what} of {preset}, {attention}", partial(run, preset, attention))

    def choices(self, preset: str, attention: str) -> dict[str, Any]:
        """Those of a run."""
        every: dict[str, Any] = {"preset": preset, "attention": attention, "dtype": self.dtype, "run": self.run}
        return every if self.layers is None else every | {"layers": self.layers}


def counts(page: Page, asked: Asked) -> None:
    """Three sources on a real run."""
    page.say("", "## Counts", "", *table(COUNTED, "lll", []))

    def count(preset: str, attention: str) -> None:
        report = costproof.report(TARGET, **asked.choices(preset, attention))
        verdict = report.discrepancy.verdict
        page.say(*table(COUNTED, "lll", [(preset, attention, verdict_sentence(report.discrepancy))])[2:])
        if verdict not in ("exact", "explained"):
            page.wrong.append(f"counts of {preset}, {attention}: {verdict}")

    asked.each(page, "counts", count)


def times(page: Page, asked: Asked) -> None:
    """Each stage of each forward beside its bounds."""
    page.say(
        "", "## Times", "",
        "Milliseconds; at the roof of the device as it was measured before, between and after the runs, by its highest "
        "rates. The last columns add up to what was measured ([the parts](roofline.md#measured-times)).",
        "",
    )  # fmt: skip
    page.say(*table(TIMED, TIMES_ALIGNED, []))
    all_rows: list[MeasuredStage] = []

    def measure(preset: str, attention: str) -> None:
        found = costproof.measure(TARGET, profile=asked.times, **asked.choices(preset, attention))
        page.say(*table(TIMED, TIMES_ALIGNED, list(_timed(found, preset, attention)))[2:])
        page.wrong += [f"{preset}, {attention}, {wrong}" for wrong in found.wrong]
        page.wrong += [f"{preset}, {attention}, {o.operator}, alone: {o.why}" for o in found.operators if o.why]
        all_rows.extend(found.rows)

    asked.each(page, "times", measure)
    if len(all_rows) < 2:
        page.wrong.append("too few times for a median and a rank")
        return
    off, rank = median_error(all_rows), rank_correlation(all_rows)
    page.say(
        "",
        f"The replay of operators is off by {float(off):.1%} at the median of {len(all_rows)} rows (goal: "
        f"{float(GOAL[asked.run]):.0%}), and its rank correlation with the measured times is {rank:.4f} (goal: "
        f"{RANKED}).",
        "",
    )
    page.wrong += too_far_off(all_rows, GOAL[asked.run])
    if rank < RANKED:
        page.wrong.append(f"the rank correlation is {rank:.4f}")


def too_far_off(found: Sequence[MeasuredStage], goal: Fraction) -> list[str]:
    """The stages whose replay is farther off than the goal, at the median of their rows."""
    stages = {
        stage: median_error([r for r in found if r.stage == stage]) for stage in dict.fromkeys(r.stage for r in found)
    }
    return [f"the replay of {stage} is off by {float(off):.1%}" for stage, off in stages.items() if off > goal]


def _timed(found: Measurement, preset: str, attention: str) -> Iterator[tuple[str, ...]]:
    for row in found.rows:
        stage = f"{row.stage}@{row.invocation}" if row.invocation else row.stage
        bounds = (_ms(b.seconds and Fraction(b.seconds) * 10**9) for b in (row.floor, row.roof))
        peak = "" if row.of_peak is None else f"{float(Fraction(row.of_peak)):.1%}"
        spent = _ms(None if row.measured is None else row.measured.median)
        off = "unknown" if row.error is None else f"{float(row.error):.1%}"
        roof = Fraction(row.roof.seconds or 0) * 10**9
        ratio = f"{float(row.measured.median / roof):.2f}" if row.measured and roof else "unknown"
        parts = [None] * len(SPLIT) if row.split is None else astuple(row.split)
        yield (preset, attention, row.run, stage, *bounds, _ms(row.replay), spent, ratio, off, peak, *map(_ms, parts))


def _ms(nanoseconds: Fraction | int | str | None) -> str:
    return "unknown" if nanoseconds is None else f"{float(Fraction(nanoseconds)) / 1e6:,.3f}"


def rank_correlation(found: Sequence[MeasuredStage]) -> float:
    """Spearman's, of the replay with the median of the measured times."""
    known = [(r.replay, r.measured.median) for r in found if r.replay is not None and r.measured is not None]
    return correlation(*(ranks(values) for values in zip(*known, strict=True)))


def ranks(values: Sequence[int]) -> list[float]:
    """Of equal values the mean of their places, from 0."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]


def peaks(page: Page, asked: Asked) -> None:
    """On a GPU what a run asks for; on the processor every tensor, by the allocator's own events."""
    if asked.run == "cpu":
        found = list(rows("llama"))
        differ = sum(not good for good, _ in found)
        page.say("", "## Peaks", "", *table(HEAD, "llllrrrrrlrl", [cells for _, cells in found]), "")
        if differ:
            page.wrong.append(f"{differ} peaks differ from those of a run")
        return
    page.say(
        "", "## Peaks", "",
        "Bytes. Asked for: the peak of what tensors and kernels asked of the allocator, inputs included, parameters "
        "not. Kernels of a GPU hold what those of a processor do not, such as the sums of fused attention.",
        "",
    )  # fmt: skip
    page.say(*table(ASKED, ALIGNED, []))

    def peak(preset: str, attention: str) -> None:
        for one in requested(TARGET, asked.choices(preset, attention)):
            page.say(*table(ASKED, ALIGNED, [(preset, attention, *held(one))])[2:])
            page.wrong += [f"peaks of {preset}, {attention}, {wrong}" for wrong in too_little(one)]

    asked.each(page, "peaks", peak)


def too_little(one: Requested) -> list[str]:
    """Where a run held less than liveness says; it may hold more, by what kernels take for themselves."""
    pairs = (
        ("the program asked for", one.program, one.graph),
        ("the module asked for", one.module, one.eager),
        ("the program allocated", one.allocated, one.rounded),
    )
    return [
        f"{one.stage}: {what} {ran:,} bytes, of which {known:,} are alive at once"
        for what, ran, known in pairs if known is not None and ran < known
    ]  # fmt: skip


def held(one: Requested) -> tuple[str, ...]:
    """The cells of one call."""

    def more(known: int | None, ran: int) -> str:
        return exact(None if known is None else ran - known)

    return (
        one.stage, exact(one.graph), exact(one.program), more(one.graph, one.program),
        exact(one.eager), exact(one.module), more(one.eager, one.module),
        exact(one.rounded), exact(one.allocated), more(one.rounded, one.allocated),
    )  # fmt: skip


def here(small: bool) -> tuple[Asked, list[str]]:
    """What can be run here, and what cannot."""
    if torch.cuda.is_available() and not small:
        from costproof.patches.flash_attention import FLASH, compiled

        kernels = [*ATTENTION, *([FLASH] if compiled() else [])]
        left = [] if FLASH in kernels else [f"{FLASH}: flash-attn with its kernels is not installed"]
        return Asked("cuda", PRESETS, kernels, "bfloat16", None, 20), left
    why = "asked for few layers" if small else "torch finds no CUDA device"
    left = [
        f"everything on a GPU: {why}",
        "whole models: 2 decoder layers, 3 of SAM, 2 of CLIP instead",
        "eager attention: counts and times are of sdpa",
        "peaks of DeepSeek-OCR: those here are of a Llama; `python -m benchmarks.peaks` has the others",
        f"presets {', '.join(p for p in PRESETS if p not in SOME)}",
        "bfloat16, FlashAttention",
        "bytes asked of a GPU's allocator beside liveness",
    ]
    return Asked("cpu", SOME, ATTENTION[:1], "float32", 2, 5), left


def main() -> int:
    """Run all parts and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument(
        "--small", action="store_true", help="on the processor at few layers, even where there is a GPU"
    )
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    options = parser.parse_args()
    asked, left = here(options.small)
    versions = environment()
    page = Page(left=left)
    page.say(
        "# What a device settles", "",
        "Made by `make gpu-check`; not to be edited. The same command on another machine writes its page.", "",
        f"{device_title(asked.run)}; "
        + ", ".join(f"{p} {versions[p]}" for p in ("python", "torch", "transformers", "torchlens"))
        + f"; {asked.dtype}, "
        + ("all layers" if asked.layers is None else f"cut to {asked.layers} decoder layers"),
    )  # fmt: skip
    counts(page, asked)
    times(page, asked)
    page.part("peaks", partial(peaks, page, asked))
    page.say("", "## Not run", "", *(f"- {what}" for what in page.left or ["nothing was left out"]))
    if page.wrong:
        page.say("", "## Not as it should be", "", *(f"- {what}" for what in page.wrong))
    options.output.write_text("\n".join(page.lines) + "\n", encoding="utf-8")
    return 1 if page.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
