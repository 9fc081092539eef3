"""``profile.md``: measured times for people, with their runs and their spread."""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeVar

from costproof.ledger.plural import plural
from costproof.ledger.profile import Measured, Profile, Timing
from costproof.reports.escape import code, details, head, markdown, table
from costproof.views.absent import Absent
from costproof.views.describe import versions_line
from costproof.views.numbers import human, share

T = TypeVar("T")
ROWS: Final = 15


def profile_md(profile: Profile) -> str:
    """The page. Rates divide exact FLOPs by the median of measured times."""
    measured = profile.measured
    how = f"{plural(profile.run.profile, 'run')} after {measured.warm_up} to warm up; stages by {measured.clock}"
    measured_on = f"Measured on {measured.device} with {plural(measured.threads, 'thread')}, {how}."
    lines = [
        *head(f"Time: {markdown(profile.target.title)}", measured_on, profile.target, profile.workload),
        "Measured times are not counts: they differ from run to run, and the profiler adds its own to the modules.",
        "",
        f"Weights: {markdown(profile.run.weights)}.",
    ]
    if measured.peak_bytes is not None:
        lines.append(f"Most memory that the GPU's allocator held: {human(measured.peak_bytes, 'B')}.")
    lines += ["", "## Stages", "", *_stages(profile), ""]
    lines += ["## Modules", "", *_modules(measured), ""]
    lines += ["## Operators", "", *_operators(measured), ""]
    lines += details("Versions", [markdown(versions_line(profile.environment))])
    return "\n".join(lines).rstrip() + "\n"


def recorded(found: T | None) -> T:
    """What was measured of a run.

    Raises:
        Absent: nothing was.
    """
    if not found:
        raise Absent(
            "the run was not measured",
            expected="a run with a profile",
            fix="costproof report TARGET --run cpu --profile 3",
        )
    return found


def seconds(nanoseconds: int) -> str:
    """``1.234 s``, ``12.3 ms``, ``45 µs``, rounded half up in integers."""
    if nanoseconds >= 999_950_000:
        milliseconds = (nanoseconds + 500_000) // 10**6
        return f"{milliseconds // 1000}.{milliseconds % 1000:03d} s"
    if nanoseconds >= 999_500:
        tenths = (nanoseconds + 50_000) // 10**5
        return f"{tenths // 10}.{tenths % 10} ms"
    return f"{(nanoseconds + 500) // 1000} µs"


def _span(time: Timing) -> str:
    return f"{seconds(min(time.runs))} to {seconds(max(time.runs))}"


def _stages(profile: Profile) -> list[str]:
    rows = []
    for stage in profile.measured.stages:
        flops = profile.flops.get(f"{stage.run}/{stage.stage}/{stage.invocation}")
        spent = stage.time.median
        rate = human(flops * 10**9 // spent, "FLOP/s") if flops and spent else ""
        name = f"{stage.stage}[{stage.invocation}]" if stage.invocation else stage.stage
        work = human(flops, "FLOP") if flops is not None else ""
        rows.append((code(stage.run), code(name), seconds(spent), _span(stage.time), work, rate))
    return table(("forward", "stage", "median", "runs", "work", "rate"), "llrrrr", rows)


def _modules(measured: Measured) -> list[str]:
    whole = sum(m.cpu_self.median for m in measured.modules)
    heavy = sorted(measured.modules, key=lambda m: (-(m.device or m.cpu_self).median, m.module))
    rows = []
    for m in heavy[:ROWS]:
        spent = m.cpu_self.median
        device = seconds(m.device.median) if m.device else "—"
        rows.append((code(m.module), f"{m.calls:,}", seconds(spent), _span(m.cpu_self), share(spent, whole), device))
    found = table(("module", "calls", "own CPU time", "runs", "share", "GPU, with children"), "lrrrrr", rows)
    return [*found, *_left_out(len(heavy), "module")]


def _operators(measured: Measured) -> list[str]:
    cpu: Counter[str] = Counter()
    device: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for op in measured.operators:
        cpu[op.operator] += op.cpu_self.median
        device[op.operator] += op.device_self.median if op.device_self else 0
        calls[op.operator] += op.calls
    whole = sum(cpu.values())
    heavy = sorted(cpu, key=lambda name: (-device[name], -cpu[name], name))
    rows = []
    for name in heavy[:ROWS]:
        on_device = seconds(device[name]) if device[name] else "—"
        rows.append((code(name), f"{calls[name]:,}", seconds(cpu[name]), share(cpu[name], whole), on_device))
    found = table(("operator", "calls", "own CPU time", "share", "own GPU time"), "lrrrr", rows)
    return [*found, *_left_out(len(heavy), "operator")]


def _left_out(count: int, what: str) -> list[str]:
    return ["", f"{plural(count - ROWS, f'more {what}')} in profile.json."] if count > ROWS else []
