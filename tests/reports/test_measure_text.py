"""Texts of measured and predicted times, on the two clocks of a GPU, with planted times."""

from __future__ import annotations

from typing import Any

import pytest

from costproof import api
from costproof.compare.patterns import patterns
from costproof.estimate.arithmetic import Arithmetic
from costproof.estimate.clocks import Forward, StageKey, VariantTime
from costproof.estimate.measured import (
    ClockBorder,
    EagerCalls,
    MeasuredOperator,
    Measurement,
    OperatorWork,
    StageVariants,
    TimePlace,
    part_times,
    stage_times,
)
from costproof.estimate.roofline import BottleneckThreshold, Roof, ThresholdPoint
from costproof.ledger.node import CostNode
from costproof.ledger.profile import EnqueuedCall, Timing
from costproof.ledger.run import RunOptions
from costproof.reports.outputs import variants
from tests.conftest import Golden
from tests.estimate.test_measured import kind_of
from tests.support.toy import toy

SAM, PREFILL = ("sam", "global"), ("prefill", "prompt")
PEAK, WIDTH = 100 * 10**12, 10**12
US = 1_000
NO_GRAPH = VariantTime(None, "CUDA graphs record the kernels of a GPU")


def call(operator: str, module: str, host: tuple[int, int, int], device: int, *, waits: bool = False) -> EnqueuedCall:
    """In microseconds."""
    python, dispatch, launch = (part * US for part in host)
    return EnqueuedCall(operator, module, python, dispatch, launch, int(device > 0), device * US, waits)


FORWARD: Forward = [
    (
        SAM,
        [
            call("mm", "sam.fc", (9, 4, 3), 5),
            call("view", "sam.fc", (2, 2, 0), 0),
            call("copy", "sam.out", (5, 4, 3), 2),
        ],
    ),
    (
        PREFILL,
        [
            call("mm", "fc", (9, 4, 3), 250),
            call("item", "head", (5, 4, 3), 2, waits=True),
            call("add", "head", (5, 4, 3), 3),
        ],
    ),
]
NODES = (
    CostNode(*SAM, "sam.fc", "linear", {"flops": 300 * 10**6, "weight_read_bytes": 10**6, "input_bytes": 10**5}),
    CostNode(*PREFILL, "fc", "linear", {"flops": 20 * 10**9, "weight_read_bytes": 10**6, "input_bytes": 10**6}),
)


def measured(*, ran: bool = True, device: str = "cuda", clocks: bool = True, formulas: bool = True) -> Measurement:
    """Two stages of a page: the host binds sam, the device the prefill."""
    gpu = device == "cuda"
    of, toy_capture, arithmetic = Roof(PEAK, WIDTH, "bfloat16", "bfloat16"), toy(), Arithmetic("bfloat16")
    medians = {SAM: (40, 38, 45), PREFILL: (290, 288, 300)}
    times: dict[TimePlace, Timing | None] = {
        ("page", *stage): Timing(tuple(one * US for one in runs)) if ran else None for stage, runs in medians.items()
    }
    works: dict[TimePlace, list[OperatorWork]] = {
        ("page", *stage): [OperatorWork(c.module, kind_of(c.operator, ""), 1, c.device or US) for c in calls]
        for stage, calls in FORWARD
    }
    forwards: dict[str, Forward] = {"page": FORWARD if gpu else on_host(FORWARD)} if clocks else {}
    graph = {("page", *SAM): VariantTime(Timing((9 * US,)), "", 6 * US, 2 * US, US)}
    graph["page", *PREFILL] = VariantTime(None, "item in head waits for the device")
    compiled = {("page", *SAM): VariantTime(Timing((12 * US,)))}
    forms = StageVariants(graph, compiled) if gpu else StageVariants(dict.fromkeys(times, NO_GRAPH), {})
    rows = stage_times(
        {"page": NODES}, times, works, of, arithmetic, eager=EagerCalls(forwards, kind_of, 4 * US, on_host=not gpu),
        variants=forms if ran else None,
    )  # fmt: skip
    points = tuple(ThresholdPoint(at, f"{at * 7}/1000000", "39/1000000") for at in (5, 6))
    border = BottleneckThreshold(
        "sam", "batch", "is bound by the device", "device clock", "host clock", "s", "from", 6, points
    )
    operators = tuple(
        MeasuredOperator("page", stage[0], c.operator, ((64, 64),), 1, Timing((c.device or US,)))
        for stage, calls in FORWARD
        for c in calls
    )
    spent: dict[TimePlace, int | None] = {("page", "sam", "sam.fc"): 6 * US, ("page", "prefill", "fc"): 250 * US}
    return Measurement(
        toy_capture.conventions, toy_capture.target, toy_capture.workload, toy_capture.environment,
        RunOptions("cuda" if gpu else "cpu", profile=3), api.machine("h100-sxm"), "bfloat16", PEAK, WIDTH,
        "CUDA events" if gpu else "perf_counter", 2, rows, operators,
        part_times({"page": NODES}, spent, patterns, of, arithmetic),
        (ClockBorder("page", "global", border),) if gpu and formulas else (),
    )  # fmt: skip


def on_host(forward: Forward) -> list[tuple[StageKey, list[EnqueuedCall]]]:
    """The same calls on a processor."""
    return [
        (stage, [EnqueuedCall(c.operator, c.module, c.python, c.device or US, 0, 0, 0, False) for c in calls])
        for stage, calls in forward
    ]


MADE: dict[str, dict[str, Any]] = {
    "cuda": {},
    "cuda-predicted": {"ran": False},
    "cpu": {"device": "cpu"},
    "no-clocks": {"clocks": False, "formulas": False},
    "no-clocks-predicted": {"clocks": False, "ran": False},
}


@pytest.mark.parametrize("kind", ["text", "md"])
@pytest.mark.parametrize("name", MADE)
def test_measured_times_for_people(name: str, kind: str, golden: Golden) -> None:
    golden(
        f"reports/measured-{name}.{'txt' if kind == 'text' else kind}",
        variants("measure")[kind].text(measured(**MADE[name])),
    )
