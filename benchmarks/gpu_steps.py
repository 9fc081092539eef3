"""The steps of ``make gpu-check``, in a process of their own: one that hangs or breaks the device ends with it.

The process reads steps as lines of JSON from its standard input and writes messages as lines of JSON: rows and texts
of the page, figures for the goals, findings, and the end of each step. All else that is printed goes to stderr.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Literal

import torch

import costproof
from benchmarks.gpu_summary import SPLIT, UNTRIED
from benchmarks.peaks import rows as processor_peaks
from benchmarks.requested import Requested, requested
from costproof.compare.verdict import verdict_sentence
from costproof.estimate.hardware import DEVICE, FIGURES, HOST_FIGURES, Device, read_device
from costproof.estimate.measured import MeasuredStage, Measurement
from costproof.ledger.environment import environment
from costproof.ledger.errors import first_line
from costproof.ledger.files import json_text
from costproof.ledger.metrics import STORAGE
from costproof.ledger.schema import to_data
from costproof.run.doctor import doctor
from costproof.tracers.device_benchmark import device_title
from costproof.views.numbers import exact, human
from costproof.weights.random_values import fill_normal

DTYPES: Final = {"cuda": None, "cpu": ("float32",)}
"""Dtypes whose peaks are measured; ``None`` for all, and for the times of the host."""
DRAWN: Final = {"cuda": 10**9, "cpu": 3 * 10**8}
"""Random numbers that are drawn in a second, at least."""
_DEVICE_FILE: Final = "device.json"
_seen: dict[tuple[str, ...], int] = {}
"""Model, attention, layers, run and stage -> the median of its measured times in nanoseconds."""
Emit = Callable[..., None]
"""Writes a message: ``emit("row", ["tiny", "exact"], table="counts")``."""


def shown(what: str, done: int, total: int) -> None:
    """Show on stderr where the time goes."""
    if done in (0, total):
        print(f"{time.monotonic():10.1f} s  {what} {done}/{total}", file=sys.stderr, flush=True)


def machine(emit: Emit, run: Literal["cpu", "cuda"], folder: str) -> None:
    """Versions and capabilities, and the rates of the device."""
    found, versions = doctor(), environment()
    emit("device", device_title(run))
    kept = ("python", "torch", "transformers", "torchlens")
    emit("text", f"{device_title(run)}; " + ", ".join(f"{p} {versions[p]}" for p in kept))
    states = {**found.sources, **{name: found.others[name] for name in ("flash", "cuda", "counters")}}
    emit("text", "; ".join(f"{name}: {state}" for name, state in states.items()))
    device = costproof.measure_machine(run, dtypes=DTYPES[run])
    Path(folder, _DEVICE_FILE).write_text(json_text(to_data(DEVICE, device)), encoding="utf-8")
    for peak in device.peaks:
        emit("row", [peak.dtype, human(peak.flops, "FLOP/s"), "; ".join(q.text for q in peak.quotes)], table="rates")
    for name, figure in device.figures().items():
        title, unit, _ = {**FIGURES, **HOST_FIGURES}[name]
        value = f"{exact(figure.value)} ns" if unit == "ns" else human(figure.value, unit)
        emit("row", [title, value, "; ".join(q.text for q in figure.quotes)], table="rates")


def _measured(folder: str) -> Device | None:
    path = Path(folder, _DEVICE_FILE)
    return read_device(path) if path.exists() else None


def counts(emit: Emit, target: str, choices: Mapping[str, Any]) -> None:
    """Three sources on a real run."""
    report = costproof.report(target, progress=shown, **choices)
    what = [target, str(choices.get("preset", "")), str(choices.get("attention", "sdpa")), _cut(choices)]
    found = report.discrepancy
    if (info := report.capture.target).quantised:
        # The run has the dtype that was asked for, whatever format the checkpoint of the model is in.
        run = replace(report.capture, target=replace(info, quantised={}))
        found = costproof.compare(replace(run, ledgers=tuple(of.without(STORAGE) for of in run.ledgers))).discrepancy
    verdict = found.verdict
    emit("row", [*what, _short(verdict_sentence(found))], table="counts")
    good = verdict in ("exact", "explained")
    emit("figure", "counts", good=good)
    if not good:
        emit("wrong", f"counts of {', '.join(filter(None, what))}: {verdict}")


def _short(sentence: str) -> str:
    """Return the sentence of a verdict without what it says of every model: ``Exact: all 482 quantities.``"""
    return re.sub(r"the sources agree to the integer on | \([\d,]+ from [^)]*\)", "", sentence)


def _cut(choices: Mapping[str, Any]) -> str:
    return str(choices["layers"]) if "layers" in choices else "all"


def peaks(emit: Emit, target: str, choices: Mapping[str, Any]) -> None:
    """What a run on a GPU asks of the allocator beside liveness."""
    what = [choices["preset"], choices["attention"]]
    for one in requested(target, choices):
        emit("row", [target, *what, _cut(choices), *held(one)], table="peaks")
        less = too_little(one)
        emit("figure", "peaks", good=not less and not any(one.unnamed))
        for wrong in less:
            emit("wrong", f"peaks of {', '.join(what)}, {wrong}")


def allocations(emit: Emit, case: str) -> None:
    """Every tensor of a run on the processor beside liveness, by the allocator's own events."""
    for good, cells in processor_peaks(case):
        emit("row", list(cells), table="allocations")
        emit("figure", "peaks", good=good)
        if not good:
            emit("wrong", f"peaks of {case}, {cells[1]}, {cells[3]} differ from those of a run")


def too_little(one: Requested) -> list[str]:
    """Where a run held less than liveness says and nothing explains it; it may hold more, by workspaces."""
    program, module = one.unnamed
    pairs = (
        ("the program asked for", one.program, one.graph, program),
        ("the module asked for", one.module, one.eager, module),
        ("the program allocated", one.allocated, one.rounded, not one.of_program),
    )
    return [
        f"{one.stage}: {what} {ran:,} bytes, of which {known:,} are alive at once"
        for what, ran, known, unnamed in pairs if known is not None and ran < known and unnamed
    ]  # fmt: skip


def held(one: Requested) -> tuple[str | int | None, ...]:
    """The cells of one call."""
    named = dict((*one.of_program, *one.of_module))
    return (
        one.stage, one.graph, one.program, one.eager, one.module, one.rounded, one.allocated,
        "; ".join(f"{name} {size}" for name, size in named.items()),
    )  # fmt: skip


def times(emit: Emit, target: str, choices: Mapping[str, Any], folder: str, ways: Sequence[str]) -> None:
    """Each stage of each forward beside its bounds: eager, as a CUDA graph, compiled."""
    # A processor shared with others varies: measured anew between the runs, while a GPU's rates are those of the file.
    on = _measured(folder) if choices["run"] == "cuda" else None
    found = costproof.measure(target, on=on, ways=ways, progress=shown, **choices)
    what = _what(target, choices)
    for row in found.rows:
        if row.measured is not None:
            _seen[(*what, row.run, _stage(row))] = row.measured.median
        for cells in timed(row):
            emit("row", [*what, *cells], table="times")
        split = [None] * len(SPLIT) if row.split is None else astuple(row.split)
        emit("row", [*what, *clocks(row), *map(ms, split)], table="parts")
    _findings(emit, found, ", ".join(what))


def predictions(emit: Emit, target: str, choices: Mapping[str, Any], folder: str) -> None:
    """Each stage predicted from operators and host times of the machine, beside what an earlier step measured."""
    found = costproof.measure(target, on=_measured(folder), predict=True, progress=shown, **choices)
    what = _what(target, choices)
    for row in found.rows:
        measured = _seen.get((*what, row.run, _stage(row)))
        cells = compared(row, "never run", row.predicted, measured, least=row.device_alone)
        emit("row", [*what, *cells], table="times")


def _what(target: str, choices: Mapping[str, Any]) -> tuple[str, str, str]:
    name = f"{target} {choices.get('preset', '')}".strip()
    return name, str(choices.get("attention", "sdpa")), _cut(choices)


def weights(emit: Emit, run: str, numbers: int) -> None:
    """How fast random weights are drawn on the device, and whether the processor draws the same."""
    few = [torch.empty(2**20, dtype=torch.bfloat16, device=device) for device in ("cpu", run)]
    for tensor in few:
        fill_normal([("few", tensor)], 0, 0.02)
    same = torch.equal(few[0], few[1].cpu())
    emit("figure", "weights", what="random weights: the same bits on the processor", wanted="yes",
         found="yes" if same else "no", good=same)  # fmt: skip
    for dtype in (torch.bfloat16, torch.float32):
        made = torch.empty(numbers, dtype=dtype, device=run)
        begin = time.perf_counter()
        fill_normal([("many", made)], 0, 0.02)
        if run == "cuda":
            torch.cuda.synchronize()
        spent = time.perf_counter() - begin
        name, rate, goal = str(dtype).removeprefix("torch."), round(numbers / spent), DRAWN[run]
        figure = f"random numbers a second, {name}, {torch.get_num_threads()} threads"
        emit("row", [figure, human(rate), f"{exact(numbers)} numbers in {spent:.3f} s"], table="rates")
        emit("figure", "weights", what=f"random weights: {name} numbers a second", wanted=f"{human(goal)}",
             found=human(rate), good=rate >= goal)  # fmt: skip
        del made


def _findings(emit: Emit, found: Measurement, what: str) -> None:
    for wrong in found.wrong:
        emit("wrong", f"{what}, {wrong}")
        emit("figure", "floor", good=False)
    emit("figure", "floor", good=True, rows=len(found.rows))
    for operator in found.operators:
        if operator.why:
            emit("wrong", f"{what}, {operator.operator}, alone: {operator.why}")


def timed(row: MeasuredStage) -> Iterator[list[str | None]]:
    """The cells of each form of a stage, after its model."""
    measured = None if row.measured is None else row.measured.median
    yield compared(row, "eager", row.replay if row.predicted is None else row.predicted, measured, "did not run")
    for form, variant in (("graph", row.graph), ("compiled", row.compiled)):
        if variant is None:
            yield compared(row, form, None, None, UNTRIED)
        else:
            ran = None if variant.time is None else variant.time.median
            yield compared(row, form, variant.predicted, ran, variant.why)


def compared(
    row: MeasuredStage, form: str, predicted: int | None, measured: int | None, why: str = "", least: int | None = None
) -> list[str | None]:
    """The cells of one form of a stage, after its model; ``why`` it was not measured."""
    bounds = [ms(b.seconds and Fraction(b.seconds) * 10**9) for b in (row.floor, row.roof)]
    off = share = None
    if predicted is not None and measured is not None:
        off = f"{float(abs(Fraction(predicted - measured, max(1, measured)))):.6f}"
    if measured and row.of_peak is not None and row.measured is not None:
        share = f"{float(Fraction(row.of_peak) * row.measured.median / measured):.6f}"
    waits = re.search(r"\((.* waits for the device)\)$", why)
    reason = "" if measured is not None else waits[1] if waits else why
    return [row.run, _stage(row), form, *bounds, ms(least), ms(predicted), ms(measured), off, share, reason]


def clocks(row: MeasuredStage) -> list[str | int | None]:
    """The cells of a stage after its model: what each clock takes by itself, and both."""
    known = row.clocks
    if known is None:
        return [row.run, _stage(row), *[None] * 6]
    times = (known.host, known.device, known.both)
    return [row.run, _stage(row), known.calls, known.launches, *map(ms, times), known.binds]


def _stage(row: MeasuredStage) -> str:
    return f"{row.stage}@{row.invocation}" if row.invocation else row.stage


def ms(nanoseconds: Fraction | int | str | None) -> str | None:
    """Return milliseconds to the nanosecond."""
    return None if nanoseconds is None else f"{float(Fraction(nanoseconds)) / 1e6:.6f}"


STEPS: Final[Mapping[str, Callable[..., None]]] = {
    "machine": machine,
    "counts": counts,
    "peaks": peaks,
    "allocations": allocations,
    "times": times,
    "predictions": predictions,
    "weights": weights,
}


def main() -> None:
    """Run steps until the input ends; one that breaks the device ends the process."""
    # What libraries print must not mix with the messages.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)

        def emit(kind: str, value: Any = None, **more: Any) -> None:
            print(json.dumps({"kind": kind, "value": value, **more}), file=out, flush=True)

        emit("ready")
        for line in sys.stdin:
            asked = json.loads(line)
            print(f"{time.monotonic():10.1f} s  {line.strip()}", file=sys.stderr, flush=True)
            importlib.invalidate_caches()  # kernels may have been built meanwhile
            try:
                STEPS[asked["run"]](emit, **asked["choices"])
            except Exception as error:  # a step may raise anything, and ends no other
                traceback.print_exc()
                emit("error", f"{type(error).__name__}: {first_line(error)}")
            if not _usable():
                emit("broken")
                return
            emit("end")


def _usable() -> bool:
    """Free what a step left; whether the device still works, which it does not after some errors."""
    gc.collect()
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    except Exception:
        traceback.print_exc()
        return False
    return True


if __name__ == "__main__":
    main()
