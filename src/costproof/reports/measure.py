"""Report measured times with their bounds, by stage, part and operator, and the profile of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, fields, replace
from fractions import Fraction
from typing import Final, TypeVar

from costproof.estimate.clocks import VariantTime
from costproof.estimate.measured import MeasuredOperator, MeasuredPart, MeasuredStage, Measurement, TimeSplit
from costproof.ledger.errors import Absent
from costproof.ledger.plural import plural
from costproof.ledger.profile import Measured, Profile, Timing
from costproof.ledger.workload import counted_line
from costproof.reports.document import (
    Block,
    Code,
    Details,
    Document,
    DocumentSection,
    Form,
    Items,
    Prose,
    Strong,
    Table,
    subject_lines,
)
from costproof.reports.roofline import border_sentences
from costproof.views.describe import versions_line
from costproof.views.numbers import decimal, duration, human, share

T = TypeVar("T")
SAYS: Final = (
    "Measured = the sum of the other columns, to the last digit; columns that are 0 throughout are left out. Floor: "
    "the products at the peak, or inputs, weights, cache and results once at the bandwidth. Traffic: the time at the "
    "roof of the modules, one after another, beyond that."
)
ON_HOST: Final = (
    "Time of the operators, each in isolation, beyond the roof: dispatch, as long as the fastest of them for every "
    "call; of the rest shapes, of products; movement, of copies, views and look-ups; experts, of all operators in "
    "modules of experts; other. Python: host time between operators."
)
ON_DEVICE: Final = (
    "Device-bound, time of the kernels beyond the roof: shapes, of products; movement, of copies and look-ups; "
    "experts, of all kernels in modules of experts; other. Host-bound, the device is idle: in Python of modules, in "
    "dispatch (dispatcher and allocator), in launches, and after a synchronisation, until the next work arrives."
)
REST: Final = "Residual: the fastest run minus all of these. Jitter: the median minus the fastest run."
NO_CLOCKS: Final = "The host time between operators was not measured: it is in the residual."
PREDICTS: Final = (
    "A prediction: the model did not run. Each distinct operator ran in isolation, on tensors of the form that a run "
    "gives it; experts get their rows by uniform routing. Predicted: from the time of all operators, one after "
    "another, to that with the host time between them, by both clocks. The columns of the split add up to the latter."
)
NO_COSTS: Final = (
    "The host time between the operators is not known, for the device file has none (costproof machine --measure "
    "writes it): the columns of the split add up to the operators alone."
)
ONE_CLOCK: Final = (
    "One clock: on a processor operators run inside their calls, nothing waits, and the time of a run is the sum of "
    "all host times."
)
TWO_CLOCKS: Final = (
    "Two clocks: the host enqueues the work, and the device runs it in order, as soon as it has arrived. Host clock: "
    "Python, dispatch and launches without any waiting. Device clock: all kernels. Both clocks: the time between the "
    "CUDA events at the boundaries of the stage, predicted by the recurrence over its calls. The clock that takes "
    "longer by itself binds."
)
BORDERS: Final = (
    "Where the device begins to bind, if the host clock stays as it is and the device clock grows as the time of the "
    "stage at the roof:"
)
NO_BORDER: Final = "From which size on the device binds is not known: no formulas describe this target."
FORMS: Final = (
    "The same stages as CUDA graphs, where the host enqueues one replay, and under torch.compile. A graph is predicted "
    "to take its kernels, as they are in the eager run, the gaps between them, and one replay."
)
STAGES: Final = (
    "Forward", "Stage", "FLOPs", "Bytes", "Floor", "At the roof", "Operators alone", "Predicted", "Measured",
    "Fastest to slowest", "Measured / roof", "Of the peak", "Of the bandwidth",
)  # fmt: skip
UNRUN: Final = (*STAGES[:9], "Alone / roof")
CLOCKS: Final = (
    "Forward", "Stage", "Calls", "Launches", "Host clock", "Device clock", "Both clocks", "Measured", "Off by",
    "Host-bound", "Binds",
)  # fmt: skip
VARIANTS: Final = ("Forward", "Stage", "Eager", "Predicted", "CUDA graph", "Kernels, gaps, replay", "Compiled")
SPLIT: Final = tuple(f.name for f in fields(TimeSplit))
ALWAYS: Final = frozenset({"floor", "traffic", "shapes", "other", "residual", "jitter"})
"""Components of a time whose columns are shown even if all values are zero."""
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
_PROFILE_ROWS: Final = 15


def document(found: Measurement, form: Form) -> Document:
    """Return the report: measured or predicted times with their bounds, by stage, part of the model, and operator."""
    md, ran = form == "md", not found.predicted
    counted = counted_line(found.target, found.workload)
    parted = MODEL if ran else MODEL[:-2]
    failed = [o for o in found.operators if o.why]
    stages = Table(STAGES if ran else UNRUN, "llr", [_code_cells(_stage(r), 2) for r in found.rows])
    whole_parts = sum(p.replay or 0 for p in found.parts)
    parts = Table(parted, "lllr", [_code_cells(_part(p, whole_parts)[: len(parted)], 3) for p in found.parts],
                  most=MAX_PARTS, noun="part")  # fmt: skip
    whole = sum(o.spent or 0 for o in found.operators)
    operators = Table(OPERATORS, "llllr", [_code_cells(_operator(o, whole), 4) for o in found.operators],
                      most=MAX_OPERATORS, noun="operator")  # fmt: skip
    clocks, variants = _clocks(found), _variants(found)
    if not md:
        says = [*_says(found), *([_accuracy(found), HOOKED] if ran else [])]
        wrong: list[Block] = [f"WRONG: {line}" for line in _wrong(found)]
        wrong += [f"NOT MADE: {o.run} {o.stage} {o.operator} {_shapes(o)}: {o.why}" for o in failed]
        body: list[Block] = [stages, _split(found), *says, *clocks, *variants, parts, operators, *wrong]
        return Document(found.name, body, "", _roof(found), [counted])
    body = [_roof(found)]
    marked: list[Prose] = [Strong(line) for line in _wrong(found)]
    for o in failed:
        named = (Code(o.run), " ", Code(o.stage), " ", Code(f"{o.operator} {_shapes(o)}"))
        marked.append((*named, Strong(f" could not be made: {o.why}")))
    body += [Items(tuple(marked))] if marked else []
    body += [stages, DocumentSection("Where the time goes", [" ".join(_says(found)), _split(found)])]
    body += [DocumentSection("Host and device", clocks)] if clocks else []
    body += [DocumentSection("Graphs and compiled code", variants)] if variants else []
    body += [DocumentSection("Parts of the model", [*([HOOKED] if ran else []), parts])]
    body += [DocumentSection("Operators", [*([_accuracy(found)] if ran else []), operators])]
    return Document(f"{'Measured' if ran else 'Predicted'}: {found.name}", body, about=[counted])


def _says(found: Measurement) -> list[str]:
    """Return the paragraphs that explain the columns of the table of stage times."""
    known = all(row.clocks is not None for row in found.rows)
    if found.predicted:
        return [PREDICTS] if known or found.device.module_call is not None else [PREDICTS, NO_COSTS]
    said = [SAYS, ON_DEVICE if _on_device(found) else ON_HOST, REST]
    return said if known else [*said, NO_CLOCKS]


def _on_device(found: Measurement) -> bool:
    return found.options.device == "cuda"


def _split(found: Measurement) -> Table:
    """Return the table of the components that add up to each time; components that are zero in all rows are omitted."""
    rows = [{} if row.split is None else asdict(row.split) for row in found.rows]
    names = [name for name in SPLIT if any(part not in (None, "0") for part in (row.get(name) for row in rows))]
    names = [name for name in SPLIT if name in names or name in ALWAYS]
    if found.predicted:
        names = [name for name in names if name not in ("residual", "jitter")]
    table = []
    for row, parts in zip(found.rows, rows, strict=True):
        predicted = row.replay if row.predicted is None else row.predicted
        whole = predicted if row.measured is None else row.measured.median
        table.append(_code_cells((*_place(row), _time(whole), *(_signed(parts.get(name)) for name in names)), 2))
    return Table(("Forward", "Stage", "Predicted" if found.predicted else "Measured", *map(str.capitalize, names)),
                 "llr", table)  # fmt: skip


def _clocks(found: Measurement) -> list[Block]:
    """Return the host and device time of each stage, and where the device becomes the slower one; empty if unknown."""
    rows = [row for row in found.rows if row.clocks is not None]
    if not rows:
        return []
    if not _on_device(found):
        return [ONE_CLOCK]
    body: list[Block] = [TWO_CLOCKS, Table(CLOCKS, "llr", [_code_cells(_clock_cells(row), 2) for row in rows], keys=2)]
    if not found.borders:
        return [*body, NO_BORDER]
    lines = []
    for b in found.borders:
        named = replace(b.border, stage=" ".join((b.run, _stage_name(b.border.stage, b.invocation))))
        lines.append(border_sentences(named))
    return [*body, BORDERS, Items(tuple(map("; ".join, lines)))]


def _clock_cells(row: MeasuredStage) -> tuple[str, ...]:
    clocks, measured = row.clocks, None if row.measured is None else row.measured.median
    assert clocks is not None
    return (
        *_place(row), f"{clocks.calls:,}", f"{clocks.launches:,}", _time(clocks.host), _time(clocks.device),
        _time(row.predicted), "did not run" if measured is None else _time(measured),
        "" if measured is None else _percent(None if row.error is None else str(row.error)),
        share(clocks.host_bound, clocks.both), clocks.binds,
    )  # fmt: skip


def _variants(found: Measurement) -> list[Block]:
    """Return the times as CUDA graphs and compiled, or why they are missing; empty if neither was requested."""
    rows = [row for row in found.rows if row.graph is not None or row.compiled is not None]
    table = []
    lacking: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        eager = None if row.measured is None else row.measured.median
        graph = "" if row.graph is None or row.graph.time is None else _time(row.graph.predicted)
        forms = _variant(row.graph), graph, _variant(row.compiled)
        table.append(_code_cells((*_place(row), _time(eager), _time(row.predicted), *forms), 2))
        for form, variant in (("as a CUDA graph", row.graph), ("compiled", row.compiled)):
            if variant is not None and variant.why:
                lacking.setdefault((form, variant.why), []).append(" ".join(_place(row)))
    reasons = []
    for (form, why), places in lacking.items():
        what = "No stage ran" if len(places) == len(found.rows) else f"{', '.join(places)} did not run"
        reasons.append(f"{what} {form}: {why}")
    ran = any(v is not None and v.time is not None for row in rows for v in (row.graph, row.compiled))
    body: list[Block] = [FORMS, Table(VARIANTS, "llr", table, keys=2)] if ran else []
    return [*body, Items(tuple(reasons))] if reasons else body


def _variant(form: VariantTime | None) -> str:
    return "" if form is None else "no" if form.time is None else format_nanoseconds(form.time.median)


def _wrong(found: Measurement) -> list[str]:
    """Return warnings on measured times below a bound, which are impossible, with possible remedies."""
    floor = "the floor is too high for a run that leaves out products of the bound; docs/roofline.md lists them"
    again = "the device file says what was reached once: measure it again while nothing else runs"
    measured = found.device.origin == "measured"
    return [*found.wrong, *([floor] if found.wrong else []), *([again] if found.wrong and measured else [])]


def _code_cells(row: tuple[str, ...], words: int) -> tuple[str, ...]:
    """Return a row whose first ``words`` cells are typeset as code."""
    return (*(Code(cell) if cell else "" for cell in row[:words]), *row[words:])


def _roof(found: Measurement) -> str:
    peak, width = human(found.peak_flops, "FLOP/s", places=3), human(found.bandwidth, "B/s", places=3)
    seen = ", measured" if found.device.origin == "measured" else ""
    times = plural(found.options.profile, "call") + " of each operator"
    times = times if found.predicted else plural(found.options.profile, "run")
    return (
        f"{found.device.title}{seen}: {peak} ({found.dtype}, dense), {width}. "
        f"{times} by {found.clock}, {plural(found.threads, 'thread')}; medians"
    )


def _accuracy(found: Measurement) -> str:
    error = decimal(100 * found.median_error, 1)
    known = all(row.predicted is not None for row in found.rows)
    what = "The predicted times are" if known else "As a prediction, the operators alone are"
    return f"{what} {error} % off the measured time in the median over the rows."


def _place(row: MeasuredStage) -> tuple[str, str]:
    return row.run, _stage_name(row.stage, row.invocation)


def _stage_name(stage: str, invocation: str) -> str:
    return f"{stage}[{invocation}]" if invocation else stage or "outside the stages"


def _stage(row: MeasuredStage) -> tuple[str, ...]:
    roof = None if row.roof.seconds is None else Fraction(row.roof.seconds) * _NANO
    begin = (
        *_place(row), human(row.roof.flops, "FLOP"), human(row.roof.bytes, "B"), duration(row.floor.seconds),
        duration(row.roof.seconds), _time(row.replay),
    )  # fmt: skip
    if row.measured is None:
        interval = f"{_time(row.device_alone)} to {_time(row.predicted)}"
        return (*begin, interval, "did not run", _times(row.replay, roof))
    spent, runs = row.measured.median, row.measured.runs
    span = f"{format_nanoseconds(min(runs))} to {format_nanoseconds(max(runs))}"
    return (
        *begin, _time(row.predicted), format_nanoseconds(spent), span, _times(spent, roof), _percent(row.of_peak),
        _percent(row.of_bandwidth),
    )  # fmt: skip


def _time(nanoseconds: int | None) -> str:
    return "?" if nanoseconds is None else format_nanoseconds(nanoseconds)


def _times(spent: int | None, roof: Fraction | None) -> str:
    return f"{decimal(Fraction(spent) / roof, 2)} x" if roof and spent is not None else ""


def _percent(rate: str | None) -> str:
    return "?" if rate is None else share(Fraction(rate), 1)


def _signed(nanoseconds: str | None) -> str:
    if nanoseconds is None:
        return "?"
    value = Fraction(nanoseconds) / _NANO
    return f"-{duration(str(-value))}" if value < 0 else duration(str(value))


def _operator(o: MeasuredOperator, whole: int) -> tuple[str, ...]:
    alone = None if o.alone is None else o.alone.median
    part = "" if o.spent is None else share(o.spent, whole)
    return o.run, o.stage, o.operator, _shapes(o), f"{o.calls:,}", _time(alone), _time(o.spent), part


def _shapes(o: MeasuredOperator) -> str:
    return " ".join("x".join(map(str, s)) or "number" for s in o.shapes)


def _part(p: MeasuredPart, whole: int) -> tuple[str, ...]:
    roof = None if p.roof.seconds is None else Fraction(p.roof.seconds) * _NANO
    ran = None if p.measured is None else p.measured.median
    return (
        p.run, p.stage, p.part, human(p.roof.flops, "FLOP"), human(p.roof.bytes, "B"), duration(p.roof.seconds),
        _time(p.replay), "" if p.replay is None else share(p.replay, whole), _times(p.replay, roof),
        _percent(p.of_peak), _time(ran), _times(ran, roof),
    )  # fmt: skip


def profile_document(profile: Profile, form: Form) -> Document:
    """Return the report of a profile: times with their spread, and rates as exact FLOPs per median time."""
    measured = profile.measured
    how = f"{plural(profile.run.profile, 'run')} after {measured.warm_up} to warm up; stages by {measured.clock}"
    measured_on = f"Measured on {measured.device} with {plural(measured.threads, 'thread')}, {how}."
    body: list[Block] = [
        "Measured times are not counts: they differ from run to run, and the profiler adds its own to the modules.",
        f"Weights: {profile.run.weights}.",
    ]
    if measured.peak_bytes is not None:
        body.append(f"Most memory that the GPU's allocator held: {human(measured.peak_bytes, 'B')}.")
    body += [
        DocumentSection("Stages", [_profile_stages(profile)]),
        DocumentSection("Modules", [_profile_modules(measured)]),
    ]
    body += [DocumentSection("Operators", [_profile_operators(measured)])]
    body += [Details("Versions", [versions_line(profile.environment)])]
    about = subject_lines(profile.target, profile.workload, form)
    return Document(f"Time: {profile.target.title}", body, "", measured_on, about)


def require_profile(found: T | None) -> T:
    """Return the measurements of a run; raise if the run was not measured.

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


def format_nanoseconds(nanoseconds: int) -> str:
    """Format a time as ``1.234 s``, ``12.3 ms``, ``45 µs``, rounded half up in integers."""
    if nanoseconds >= 999_950_000:
        milliseconds = (nanoseconds + 500_000) // 10**6
        return f"{milliseconds // 1000}.{milliseconds % 1000:03d} s"
    if nanoseconds >= 999_500:
        tenths = (nanoseconds + 50_000) // 10**5
        return f"{tenths // 10}.{tenths % 10} ms"
    return f"{(nanoseconds + 500) // 1000} µs"


def _span(time: Timing) -> str:
    return f"{format_nanoseconds(min(time.runs))} to {format_nanoseconds(max(time.runs))}"


def _profile_stages(profile: Profile) -> Table:
    rows = []
    for stage in profile.measured.stages:
        flops = profile.flops.get(f"{stage.run}/{stage.stage}/{stage.invocation}")
        spent = stage.time.median
        rate = human(flops * 10**9 // spent, "FLOP/s") if flops and spent else ""
        name = f"{stage.stage}[{stage.invocation}]" if stage.invocation else stage.stage
        work = human(flops, "FLOP") if flops is not None else ""
        rows.append((Code(stage.run), Code(name), format_nanoseconds(spent), _span(stage.time), work, rate))
    return Table(("forward", "stage", "median", "runs", "work", "rate"), "llrrrr", rows)


def _profile_modules(measured: Measured) -> Table:
    whole = sum(m.cpu_self.median for m in measured.modules)
    heavy = sorted(measured.modules, key=lambda m: (-(m.device or m.cpu_self).median, m.module))
    rows = []
    for m in heavy:
        spent = m.cpu_self.median
        device = format_nanoseconds(m.device.median) if m.device else "—"
        rows.append(
            (Code(m.module), f"{m.calls:,}", format_nanoseconds(spent), _span(m.cpu_self), share(spent, whole), device)
        )
    head = ("module", "calls", "own CPU time", "runs", "share", "GPU, with children")
    return Table(head, "lrrrrr", rows, most=_PROFILE_ROWS, noun="module", rest="profile.json")


def _profile_operators(measured: Measured) -> Table:
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
    for name in heavy:
        on_device = format_nanoseconds(device[name]) if device[name] else "—"
        rows.append((Code(name), f"{calls[name]:,}", format_nanoseconds(cpu[name]), share(cpu[name], whole), on_device))
    head = ("operator", "calls", "own CPU time", "share", "own GPU time")
    return Table(head, "lrrrr", rows, most=_PROFILE_ROWS, noun="operator", rest="profile.json")
