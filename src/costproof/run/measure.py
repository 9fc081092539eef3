"""The verbs ``measure`` and ``machine --measure``: time stages and operators of a run, and the rates of a machine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from costproof.compare.patterns import patterns
from costproof.estimate.arithmetic import Arithmetic
from costproof.estimate.hardware import Device, machine
from costproof.estimate.measured import (
    MeasuredOperator,
    Measurement,
    OperatorWork,
    TimePlace,
    part_times,
    stage_times,
    work_kind,
)
from costproof.estimate.roofline import roof
from costproof.ledger.environment import environment, require
from costproof.ledger.errors import BadInput
from costproof.ledger.node import Ledger, exact_sum
from costproof.ledger.profile import Timing
from costproof.ledger.progress import Progress, silent
from costproof.ledger.run import RANDOM
from costproof.models.target import Runnable, options_of, require_device
from costproof.opgraph.rules.files import versions_in_force
from costproof.opgraph.rules.registry import subject_of
from costproof.run.clock_borders import clock_borders
from costproof.run.count_lock import count_lock
from costproof.run.prepare import prepare
from costproof.run.request import RunRequest, request

TIMES: Final = 5
"""Default number of timed runs."""


def measure(
    target: str | RunRequest,
    *,
    on: str | os.PathLike[str] | Device | None = None,
    math: str | None = None,
    predict: bool = False,
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
        progress: called with the steps.
        choices: as for :func:`~costproof.run.report.report`; ``run`` defaults to ``cpu``, ``profile`` is the number of
            timed runs.

    Raises:
        BadInput: the target cannot run, or the device has no peak of the dtype; or weights are given with ``predict``.
        Incomplete: torch is missing, the device is not available, a source failed, or an operator that does not run
            needs concrete values.
    """
    asked = request(target, **{**choices, "sources": ("dynamic",)})
    if asked.run.device == "meta":
        asked = request(asked, run="cpu")
    with count_lock(asked.rules):
        return _measure(asked, on, math, predict, progress)


def _measure(
    asked: RunRequest, on: str | os.PathLike[str] | Device | None, math: str | None, predict: bool, progress: Progress
) -> Measurement:
    count = asked.run.profile or TIMES
    where: Literal["cpu", "cuda"] = "cuda" if asked.run.device == "cuda" else "cpu"
    if predict and asked.run.weights != RANDOM:
        raise BadInput(
            "weights have no effect on a prediction", where="--weights", expected="no --weights with --predict"
        )
    require("trace", "measuring a run")
    require_device(where)
    # The dynamic source counts alone: the profiler's passes would be thrown away.
    prepared = prepare(request(asked, profile=0, run="meta" if predict else where))
    model, workload = prepared.target, prepared.workload
    if not isinstance(model, Runnable):
        raise BadInput("this target does not run as a whole", where=model.name, expected="a model that runs")
    dtype = math or workload.dtype
    arithmetic = Arithmetic(workload.dtype, True, None if math is None else {workload.dtype: math})
    again = partial(_device, on, where, dtype, progress)
    device = again(None)
    roof(device, dtype)  # refused before anything runs
    from costproof.tracers.dynamic import dynamic_ledger
    from costproof.tracers.replay import predict_operators, replay_operators
    from costproof.tracers.timing import clock_of, time_modules, time_stages

    counted = dynamic_ledger(model, workload, progress)
    forwards, routed = counted.forwards, _routed_experts(counted.ledger)
    runs = model.runs(model.build_run(workload, progress).model, workload)
    clock, threads = clock_of(where)
    times: dict[TimePlace, Timing | None]
    inside: dict[TimePlace, tuple[int, ...]] = {}
    if predict:
        alone_in = predict_operators(runs, where, count, progress)
        times = {(run, *call.stage): None for run, calls in alone_in.items() for call in calls}
    else:
        times = {(s.run, s.stage, s.invocation): s.time for s in time_stages(runs, count, progress)}
        device = again(device)
        inside = time_modules(runs, count, progress)
        alone_in = {}
        for one in runs:
            device = again(device)
            alone_in[one.id] = replay_operators(one, count, progress)
    device = again(device)
    of = roof(device, dtype)
    stages: dict[TimePlace, list[OperatorWork]] = {}
    modules: dict[TimePlace, int | None] = {}
    operators = Counter[MeasuredOperator]()
    for run, calls in alone_in.items():
        for c in calls:
            operators[MeasuredOperator(run, c.stage[0], c.operator, c.shapes, 0, c.alone, c.why)] += c.calls
            alone_for = None if c.alone is None else c.alone.median
            spent = None if alone_for is None else c.calls * alone_for
            kind = work_kind(subject_of(c.operator), any(_inside(c.module, experts) for experts in routed))
            stages.setdefault((run, *c.stage), []).append(OperatorWork(c.module, kind, c.calls, alone_for))
            place = (run, c.stage[0], c.module)
            modules[place] = exact_sum((modules.get(place, 0), spent))
    of_operators = [replace(row, calls=calls) for row, calls in operators.items()]
    of_operators.sort(key=lambda o: (o.alone is not None, -(o.spent or 0), o.run, o.stage, o.operator, o.shapes))
    rows = stage_times(forwards, times, stages, of, arithmetic, routed)
    return Measurement(
        model.conventions(workload), model.info(), workload, environment() | versions_in_force(),
        replace(options_of(model).public(), device=where, profile=count),
        device, of.dtype, of.flops, of.bandwidth, clock, threads,
        rows, tuple(of_operators), part_times(forwards, modules, patterns, of, arithmetic, routed, inside),
        clock_borders(rows, model, workload, of),
    )  # fmt: skip


def _routed_experts(ledger: Ledger) -> dict[str, int]:
    """Return module of routed experts -> bytes of the weights that one token passes, the least that a call reads."""
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
    """Return the given device, or measure this machine again, since its clock varies, and merge the results."""
    if on is not None:
        return on if isinstance(on, Device) else machine(on)
    progress("measure the machine", 0, 1)
    found = measure_machine(run, dtypes=None if before is None else (dtype,))
    progress("measure the machine", 1, 1)
    return found if before is None else before.or_faster(found)


def measure_machine(
    run: Literal["cpu", "cuda"] = "cpu", *, name: str = "here", dtypes: Iterable[str] | None = None
) -> Device:
    """Measure the peaks of this machine per dtype, its bandwidth by a large copy or read, and its memory.

    A roofline bound on such a device is based on observed rates, not on those that the maker promises.

    Args:
        run: the kind of device.
        name: name of the result.
        dtypes: torch dtypes to measure (default: float32, bfloat16, float16 and float64).

    Raises:
        Incomplete: torch is missing, or the device is not available.
    """
    require("trace", "measuring a machine")
    from costproof.tracers.device_benchmark import DTYPES, measure_device

    with count_lock():
        return measure_device(run, name, DTYPES if dtypes is None else tuple(dtypes))
