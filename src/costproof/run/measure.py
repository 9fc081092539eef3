"""Implement ``costproof.measure`` and ``machine --measure``: time stages and operators, and a machine's rates."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from costproof.compare.patterns import patterns
from costproof.estimate.arithmetic import Arithmetic, FormulaSum, MetricTerm
from costproof.estimate.clocks import Forward, VariantTime
from costproof.estimate.hardware import Device, machine
from costproof.estimate.measured import (
    ClockBorder,
    EagerCalls,
    MeasuredOperator,
    MeasuredStage,
    Measurement,
    OperatorWork,
    StageVariants,
    TimePlace,
    WorkKind,
    part_times,
    stage_times,
    work_kind,
)
from costproof.estimate.roofline import BottleneckThreshold, Roof, ThresholdPoint, roof
from costproof.ledger.environment import environment, require
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import TRAFFIC
from costproof.ledger.node import CostNode, Ledger, exact_sum
from costproof.ledger.profile import EnqueuedCall, Timing
from costproof.ledger.progress import Progress, silent
from costproof.ledger.run import RANDOM
from costproof.ledger.workload import Workload
from costproof.models.target import Runnable, Target, WithKeys, options_of, require_device
from costproof.opgraph.rules.files import versions_in_force
from costproof.opgraph.rules.registry import subject_of
from costproof.parametric.run_family import SettingCurve, Threshold
from costproof.run.count_lock import count_lock
from costproof.run.operands import baseline_by_formulas
from costproof.run.prepare import prepare
from costproof.run.request import RunRequest, request

if TYPE_CHECKING:
    from costproof.tracers.replay import ReplayedCall

TIMES: Final = 5
"""Default number of timed runs."""
WAYS: Final = ("eager", "graph", "compiled")
"""Forms in which a stage can be timed: eager, as a CUDA graph, and under ``torch.compile``."""


def measure(
    target: str | RunRequest,
    *,
    on: str | os.PathLike[str] | Device | None = None,
    math: str | None = None,
    predict: bool = False,
    ways: Collection[str] = ("eager", "graph"),
    progress: Progress = silent,
    **choices: Any,
) -> Measurement:
    """Run a target, time its stages and operators, and compare the times with the roofline bound of a device.

    Args:
        target: the target.
        on: the device that it runs on, as for :func:`~costproof.run.roofline.roofline`. By default this machine is
            measured before the runs, after each kind of run and after each run's operators, and the highest rates are
            used.
        math: the dtype whose peak bounds the products (default: that of the run).
        predict: run nothing but the distinct operators, each by itself on tensors made for it; no stage is measured,
            and the model need not fit in memory.
        ways: forms in which each stage is timed, of :data:`WAYS`; eager is always among them.
        progress: called with the steps.
        choices: as for :func:`~costproof.run.report.report`; ``run`` defaults to ``cpu``, ``profile`` is the number of
            timed runs.

    Raises:
        BadInput: the target cannot run, or the device has no peak of the dtype; or weights are given with ``predict``.
        Incomplete: torch is missing, the device is not available, a source failed, or an operator that does not run
            needs concrete values.
    """
    if unknown := sorted({*ways} - {*WAYS}):
        raise BadInput("there is no such variant of a stage", where="ways", expected=", ".join(WAYS), got=unknown[0])
    asked = request(target, **{**choices, "sources": ("dynamic",)})
    if asked.run.device == "meta":
        asked = request(asked, run="cpu")
    with count_lock(asked.rules):
        return _measure(asked, on, math, predict, ways, progress)


def _measure(
    asked: RunRequest,
    on: str | os.PathLike[str] | Device | None,
    math: str | None,
    predict: bool,
    ways: Collection[str],
    progress: Progress,
) -> Measurement:
    count = asked.run.profile or TIMES
    where: Literal["cpu", "cuda"] = "cuda" if asked.run.device == "cuda" else "cpu"
    if predict and asked.run.weights != RANDOM:
        raise BadInput(
            "weights have no effect on a prediction", where="--weights", expected="no --weights with --predict"
        )
    require("trace", "measuring a run")
    require_device(where)
    # Only the dynamic source counts: results of the profiler's passes would be discarded.
    prepared = prepare(request(asked, profile=0, run="meta" if predict else where))
    model, workload = prepared.target, prepared.workload
    if not isinstance(model, Runnable):
        raise BadInput("this target has no dynamic source, so it cannot be measured", where=model.name)
    from costproof.models.decoding.ranks import refuse_values

    refuse_values(workload, options_of(model))  # before this machine is measured
    dtype = math or workload.dtype
    arithmetic = Arithmetic(workload.dtype, True, None if math is None else {workload.dtype: math})
    again = partial(_device, on, where, dtype, progress)
    device = again(None)
    roof(device, dtype)  # refused before anything runs
    from costproof.tracers.dynamic import build_runs, dynamic_ledger
    from costproof.tracers.eager_calls import measure_calls
    from costproof.tracers.replay import predict_operators, replay_operators
    from costproof.tracers.stage_variants import time_compiled, time_graphs
    from costproof.tracers.timing import clock_of, time_modules, time_stage_clocks

    ready = build_runs(model, workload, progress)
    counted = dynamic_ledger(model, workload, progress, ready=ready)
    forwards, routed, runs = counted.forwards, _routed_experts(counted.ledger), ready[1]
    clock, threads = clock_of(where)
    times: dict[TimePlace, Timing | None]
    inside: dict[TimePlace, tuple[int, ...]] = {}
    other: dict[str, dict[TimePlace, VariantTime]] = {}
    calls: Mapping[str, Forward]
    if predict:
        alone_in = predict_operators(runs, where, count, progress)
        times = {(run, *call.stage): None for run, replayed in alone_in.items() for call in replayed}
        predicted = {run: _predicted_forward(replayed, device) for run, replayed in alone_in.items()}
        calls = {run: forward for run, forward in predicted.items() if forward}
    else:
        stages, host = time_stage_clocks(runs, count, progress)
        times = {(s.run, s.stage, s.invocation): s.time for s in stages}
        device = again(device)
        inside = time_modules(runs, count, progress)
        calls = eager_forwards = measure_calls(runs, host, progress)
        if "graph" in ways:
            known = _graph_times(device) if where == "cuda" else None
            other["graph"] = _variants(time_graphs(runs, eager_forwards, count, progress), eager_forwards, known)
        if "compiled" in ways:
            other["compiled"] = _variants(time_compiled(runs, eager_forwards, count, progress), eager_forwards, None)
        alone_in = {}
        for one in runs:
            device = again(device)
            alone_in[one.id] = replay_operators(one, count, progress)
    device = again(device)
    of = roof(device, dtype)

    def kind_of(operator: str, module: str) -> WorkKind:
        return work_kind(subject_of(operator), any(_inside(module, experts) for experts in routed))

    works: dict[TimePlace, list[OperatorWork]] = {}
    modules: dict[TimePlace, int | None] = {}
    operators = Counter[MeasuredOperator]()
    for run, replayed in alone_in.items():
        for c in replayed:
            operators[MeasuredOperator(run, c.stage[0], c.operator, c.shapes, 0, c.alone, c.why)] += c.calls
            alone_for = None if c.alone is None else c.alone.median
            spent = None if alone_for is None else c.calls * alone_for
            work = OperatorWork(c.module, kind_of(c.operator, c.module), c.calls, alone_for)
            works.setdefault((run, *c.stage), []).append(work)
            place = (run, c.stage[0], c.module)
            modules[place] = exact_sum((modules.get(place, 0), spent))
    of_operators = [replace(row, calls=number) for row, number in operators.items()]
    of_operators.sort(key=lambda o: (o.alone is not None, -(o.spent or 0), o.run, o.stage, o.operator, o.shapes))
    latency = 0 if where == "cpu" else _launch_latency(device)
    eager = EagerCalls(calls, kind_of, latency, on_host=where == "cpu")
    variants = StageVariants(other.get("graph", {}), other.get("compiled", {}))
    rows = stage_times(forwards, times, works, of, arithmetic, routed, eager, variants)
    return Measurement(
        model.conventions(workload), model.info(), workload, environment() | versions_in_force(),
        replace(options_of(model).public(), device=where, profile=count),
        device, of.dtype, of.flops, of.bandwidth, clock, threads,
        rows, tuple(of_operators), part_times(forwards, modules, patterns, of, arithmetic, routed, inside),
        clock_borders(rows, model, workload, of),
    )  # fmt: skip


def _predicted_forward(calls: Iterable[ReplayedCall], device: Device) -> Forward:
    """Predict the operator calls of a forward that was not run from isolated times and the device's host times.

    In a forward the host takes longer for an operator than in isolation, as the device file says. The first call with
    some shapes takes longer still, and the Python before it by the same factor: their code is not in the caches.

    It is empty if one of the operators could not be made, or the time of a module call is unknown.
    """
    if device.module_call is None:
        return ()
    slower = Fraction(1)
    if device.operator_in_run is not None and device.operator_alone is not None:
        slower = max(slower, Fraction(device.operator_in_run.value, device.operator_alone.value))
    known = ((position, modules, call) for call in calls for position, modules in call.order)
    pieces: list[tuple[tuple[str, str], list[EnqueuedCall]]] = []
    seen = set[tuple[str, tuple[tuple[int, ...], ...]]]()
    for _, modules, call in sorted(known, key=lambda one: one[0]):
        if call.enqueue is None or call.first is None:
            return ()
        hot = call.enqueue.dispatch + call.enqueue.launch
        factor = slower
        if (call.operator, call.shapes) not in seen and hot:
            factor *= max(Fraction(1), Fraction(call.first.dispatch + call.first.launch, hot))
        seen.add((call.operator, call.shapes))
        if not pieces or pieces[-1][0] != call.stage:
            pieces.append((call.stage, []))
        pieces[-1][1].append(
            replace(
                call.enqueue,
                python=round(factor / slower * modules * device.module_call.value),
                dispatch=round(factor * call.enqueue.dispatch),
                launch=round(factor * call.enqueue.launch),
            )
        )
    return pieces


def _launch_latency(device: Device) -> int:
    """Return the nanoseconds from a kernel launch to the kernel's start, from the device file or measured here."""
    from costproof.tracers.eager_calls import launch_latency

    return device.launch_latency.value if device.launch_latency else launch_latency() or 0


def _graph_times(device: Device) -> tuple[int, int] | None:
    """Return (gap after each kernel, time of one replay) of a CUDA graph in ns, by the device file or measured."""
    from costproof.tracers.host_costs import measure_graph

    if device.graph_gap is not None and device.graph_replay is not None:
        return device.graph_gap.value, device.graph_replay.value
    measured = measure_graph()
    return None if measured is None else (measured.gap, measured.replay)


def _variants(
    found: Mapping[TimePlace, Timing | str], eager: Mapping[str, Forward], graph: tuple[int, int] | None
) -> dict[TimePlace, VariantTime]:
    """Return the times of stages as CUDA graphs or compiled, next to predictions from the eager run's kernels.

    Args:
        found: the time of each stage, or why it has none.
        eager: the calls of the eager runs.
        graph: nanoseconds of the gap after each kernel and of one replay; ``None`` if they are unknown, or the form
            has other kernels than the eager run.
    """
    kernels, launches = Counter[TimePlace](), Counter[TimePlace]()
    for run, forward in eager.items():
        for stage, calls in forward:
            kernels[run, *stage] += sum(call.kernels or 0 for call in calls)
            launches[run, *stage] += sum(call.launches for call in calls)

    def variant(place: TimePlace, time: Timing | str) -> VariantTime:
        if isinstance(time, str):
            return VariantTime(None, time)
        if graph is None or not launches[place]:  # the profiler saw none
            return VariantTime(time)
        gap, replay = graph
        return VariantTime(time, "", kernels[place], replay, gap * launches[place])

    return {place: variant(place, time) for place, time in found.items()}


def _routed_experts(ledger: Ledger) -> dict[str, int]:
    """Return the expert weight bytes that every call reads at least, those of a single token, by module."""
    found = {}
    for node in ledger.nodes:
        whole, active, held = (node.cost(m) for m in ("params", "params_active", "weight_bytes"))
        if whole and active is not None and held is not None and active < whole:
            found[node.module] = held * active // whole
    return found


def _inside(module: str, outer: str) -> bool:
    return module == outer or module.startswith(f"{outer}.")


def _device(
    on: str | os.PathLike[str] | Device | None,
    run: Literal["cpu", "cuda"],
    dtype: str,
    progress: Progress,
    before: Device | None,
) -> Device:
    """Return the device that the caller names, or measure this machine and merge the rates with those of ``before``."""
    if on is not None:
        return on if isinstance(on, Device) else machine(on)
    found = measure_machine(run, dtypes=None if before is None else (dtype,), progress=progress)
    return found if before is None else before.or_faster(found)


def measure_machine(
    run: Literal["cpu", "cuda"] = "cpu",
    *,
    name: str = "here",
    dtypes: Iterable[str] | None = None,
    progress: Progress = silent,
) -> Device:
    """Measure this machine: peak FLOP/s per dtype, bandwidth of a large copy and read, and memory size.

    A roofline bound on such a device is based on observed rates, not on those that the maker promises.

    Args:
        run: the kind of device.
        name: name of the result.
        dtypes: torch dtypes to measure (default: float32, bfloat16, float16 and float64, and the host times). On a GPU
            with TF32 products of float32 are measured without it and with it.
        progress: called with the steps.

    Raises:
        Incomplete: torch is missing, or the device is not available.
    """
    require("trace", "measuring a machine")
    from costproof.tracers.device_benchmark import DTYPES, measure_device

    with count_lock():
        found = measure_device(run, name, DTYPES if dtypes is None else tuple(dtypes), progress)
        if dtypes is not None:
            return found
        from costproof.tracers.host_costs import measure_host

        figures: dict[str, Any] = {**measure_host(run, next(iter(found.sources)), progress)}
        return replace(found, **figures)


_SETTINGS: Final = ("batch", "text_tokens")
_NANO: Final = 10**9


def clock_borders(
    rows: Iterable[MeasuredStage], target: Target, workload: Workload, of: Roof
) -> tuple[ClockBorder, ...]:
    """Return the setting values at which the limit changes from host to device, for the first call of each stage.

    See :class:`~costproof.estimate.measured.ClockBorder` for the assumptions.

    Args:
        rows: the stages, with their clocks.
        target, workload: the run.
        of: the roofline of the device.
    """
    first: dict[tuple[str, str], MeasuredStage] = {}
    for row in rows:
        if row.clocks is not None and row.clocks.device:
            first.setdefault((row.stage, row.invocation), row)
    if not first or not isinstance(target, WithKeys) or workload.rows:
        return ()
    side = baseline_by_formulas(target, workload)
    curves = [SettingCurve(side, target, setting) for setting in _SETTINGS]
    return tuple(border for row in first.values() for along in curves for border in _borders(row, along, of))


def _borders(row: MeasuredStage, along: SettingCurve, of: Roof) -> Iterator[ClockBorder]:
    """Yield the value of a setting at which a stage changes between host-bound and device-bound.

    With D and H the two clocks at the own value s of the setting, and T(x) = max(FLOP / peak, bytes / bandwidth), the
    device binds where D T(x) / T(s) > H. That is where it holds for one of the two sides of the maximum: two sums of
    formulas are compared with a constant, and the smaller solution is the border.
    """
    assert row.clocks is not None

    def here(node: CostNode) -> bool:
        return (node.stage, node.invocation) == (row.stage, row.invocation)

    device, host = row.clocks.device, row.clocks.host
    flops: FormulaSum = (MetricTerm("flops", here, of.bandwidth * device),)
    moved: FormulaSum = tuple(MetricTerm(metric, here, of.flops * device) for metric in TRAFFIC)

    def scaled(at: int) -> int:
        return max(along.value(at, flops), along.value(at, moved))

    own = scaled(along.own) // device
    if not own or not any(along.depends(side) for side in (flops, moved)):
        return
    found = earlier(*(along.first(side, (), host * own) for side in (flops, moved)))
    points = tuple(
        ThresholdPoint(at, str(Fraction(scaled(at), own * _NANO)), str(Fraction(host, _NANO)))
        for at in found.places(along.own)
    )
    border = BottleneckThreshold(
        row.stage, along.setting, "is bound by the device", "device clock", "host clock", "s",
        found.outcome, found.at, points, found.why,
    )  # fmt: skip
    yield ClockBorder(row.run, row.invocation, border)


def earlier(one: Threshold, other: Threshold) -> Threshold:
    """Return the threshold with the smaller value; an unsolved one if either is not solved."""
    for outcome in ("not solved", "from", "refused"):
        found = [each for each in (one, other) if each.outcome == outcome]
        if found:
            return min(found, key=lambda each: each.at or 0)
    return one
