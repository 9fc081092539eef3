"""Measured times beside their bounds, by hand."""

from __future__ import annotations

from dataclasses import astuple, replace
from fractions import Fraction
from random import Random

import pytest

from costproof.compare.patterns import patterns
from costproof.estimate.arithmetic import Arithmetic
from costproof.estimate.clocks import Forward, VariantTime, stage_clocks
from costproof.estimate.measured import (
    EagerCalls,
    MeasuredStage,
    OperatorWork,
    StageVariants,
    TimePlace,
    TimeSplit,
    WorkKind,
    median_error,
    part_times,
    stage_times,
)
from costproof.estimate.roofline import Roof
from costproof.ledger.node import CostNode
from costproof.ledger.profile import EnqueuedCall, Timing
from tests.estimate.test_clocks import random_forward

ROOF = Roof(8, 2, math="bfloat16")
"""8 FLOP and 2 bytes a second: they meet at 4 FLOP per byte."""
BFLOAT = Arithmetic("bfloat16")
SUSPECTS = "the convention of the floor, the file"
S = 10**9
MEMORY = f"ran at 111 % of the bandwidth in the device file, its operators alone too: {SUSPECTS}, or the bytes"
PLACE = ("page", "sam", "global")


def node(module: str, **costs: int | None) -> CostNode:
    return CostNode("sam", "global", module, "linear", costs)


BUSY = node("a", flops=80, weight_read_bytes=4, input_bytes=2, output_bytes=2)
"""10 s of products, 4 s of bytes."""
WAITING = node("b", flops=8, weight_read_bytes=10, input_bytes=4, output_bytes=2, kv_read_bytes=4)
"""1 s of products, 10 s of bytes."""


def one(*nodes: CostNode, measured: tuple[int, ...], replay: int | None = 0) -> MeasuredStage:
    time = Timing(measured) if measured else None
    (row,) = stage_times(
        {"page": nodes}, {PLACE: time}, {PLACE: [OperatorWork("a", "products", 1, replay)]}, ROOF, BFLOAT
    )
    return row


def parts(split: TimeSplit | None) -> list[Fraction]:
    """In seconds."""
    assert split is not None
    return [Fraction(part or 0) / S for part in astuple(split)]


def test_the_parts_by_hand() -> None:
    row = one(BUSY, WAITING, measured=(31 * S, 30 * S, 60 * S), replay=26 * S)
    # Products 88 / 8 = 11 s; weights and cache 18 / 2 = 9 s. The modules: 10 s, then 10 s.
    assert (row.floor.seconds, row.floor.bound, row.roof.seconds) == ("11", "compute", "20")
    # One operator of 26 s is the fastest there is: it is dispatch, less 20 s at the roof. Runs took 30 s at least.
    # Floor, traffic, shapes, other (module b has no operator), movement, experts, Python, dispatch, launch,
    # synchronisation, residual, jitter.
    assert parts(row.split) == [11, 9, -10, -10, 0, 0, 0, 26, 0, 0, 4, 1]
    assert sum(parts(row.split)) == 31
    assert (row.of_peak, row.of_bandwidth) == (str(Fraction(88, 31 * 8)), str(Fraction(28, 31 * 2)))
    assert row.error == Fraction(5, 31)
    assert row.wrong == ""


def test_parts_add_up_where_some_are_negative() -> None:
    row = one(BUSY, WAITING, measured=(12 * S,), replay=15 * S)
    assert parts(row.split) == [11, 9, -10, -10, 0, 0, 0, 15, 0, 0, 12 - 15, 0]
    assert sum(parts(row.split)) == 12
    assert row.wrong == ""


@pytest.mark.parametrize(
    ("nodes", "replay", "wrong"),
    [
        (
            (BUSY,),
            9,
            f"ran at 111 % of the peak in the device file, its operators alone too: {SUSPECTS}, or the FLOPs",
        ),
        ((BUSY,), 10, "ran at 111 % of the peak in the device file, its operators alone did not: the clock"),
        (
            (node("a", flops=8, weight_read_bytes=12, kv_read_bytes=8),),
            8,
            MEMORY,
        ),
    ],
)
def test_what_is_faster_than_it_can_be(nodes: tuple[CostNode, ...], replay: int, wrong: str) -> None:
    assert one(*nodes, measured=(9 * S, 30 * S, 31 * S), replay=replay * S).wrong == wrong
    assert one(*nodes, measured=(10 * S, 30 * S, 31 * S), replay=replay * S).wrong == ""


def test_what_is_not_known_stays_so() -> None:
    row = one(BUSY, node("b", flops=None, weight_read_bytes=1), measured=(S,), replay=S)
    assert (row.split, row.of_peak, row.wrong, row.floor.seconds) == (None, None, "", None)


def test_what_never_ran_is_predicted_by_its_operators() -> None:
    row = one(BUSY, WAITING, measured=(), replay=26 * S)
    assert (row.measured, row.error, row.of_peak, row.of_bandwidth, row.wrong) == (None, None, None, None, "")
    assert row.split is not None
    assert (row.split.residual, row.split.jitter) == (None, None)
    # As above: a floor of 11 s, 20 s at the roof.
    assert sum(parts(row.split)) == 26
    assert median_error([row]) == 0
    assert one(BUSY, measured=(), replay=1).wrong == ""  # nothing that was measured can be wrong


def test_one_operator_that_is_not_known_makes_the_replay_unknown() -> None:
    row = one(BUSY, WAITING, measured=(31 * S,), replay=None)
    assert (row.split, row.error, row.of_peak) == (None, None, str(Fraction(88, 31 * 8)))
    wrong = one(BUSY, measured=(9 * S,), replay=None).wrong
    assert wrong == f"ran at 111 % of the peak in the device file: {SUSPECTS}, the FLOPs, or the clock"
    spent: dict[TimePlace, int | None] = {("page", "sam", "a"): 3, ("page", "sam", "b"): None}
    found = part_times({"page": (BUSY, WAITING)}, spent, patterns, ROOF, BFLOAT)
    assert [(p.part, p.replay, p.of_peak is None) for p in found] == [("b", None, True), ("a", 3, False)]


def test_a_forward_that_costs_nothing_known_is_timed_too() -> None:
    (row,) = stage_times({}, {PLACE: Timing((5,))}, {}, ROOF, BFLOAT)
    assert (row.floor.seconds, row.replay, row.split and row.split.residual) == ("0", 0, "5")


def test_parts_of_the_model_are_modules_that_differ_in_numbers() -> None:
    def at(module: str, flops: int | None) -> CostNode:
        return node(module, flops=flops, input_bytes=2)

    nodes = (at("layers.0.up", 80), at("layers.1.up", 40), at("head", 8), at("norm", None))
    spent: dict[TimePlace, int | None] = {
        ("page", "sam", m): t for m, t in (("layers.0.up", 7), ("layers.1.up", 5), ("", 2), ("head", 3))
    }
    found = part_times({"page": nodes}, spent, patterns, ROOF, BFLOAT)
    # 80 / 8 + 40 / 8 = 15 s of products; the head's 2 bytes take as long as its 8 FLOPs; the root has no node.
    assert [(p.part, p.replay, p.roof.seconds, p.roof.flops) for p in found] == [
        ("layers.[0-1].up", 12, "15", 120), ("head", 3, "1", 8), ("", 2, "0", 0), ("norm", 0, None, None),
    ]  # fmt: skip
    # 120 FLOP in 12 ns, 8 in 3 ns, of 8 FLOP/s
    assert [p.of_peak for p in found] == [str(120 * S // 12 // 8), str(Fraction(8 * S, 3 * 8)), "0", None]


def test_every_part_of_a_time_by_hand() -> None:
    # At the roof a 10 s, b 10 s, m (moves 8 bytes) 4 s, e (4 bytes) 2 s. Floor: 88 FLOP 11 s; 30 bytes lasting, 15 s.
    nodes = (BUSY, WAITING, node("m", input_bytes=4, output_bytes=4), node("e", weight_read_bytes=4))
    works = [
        OperatorWork("a", "products", 2, 8 * S), OperatorWork("a", "other", 1, 2 * S),
        OperatorWork("b", "other", 3, 5 * S), OperatorWork("m", "movement", 4, 1 * S),
        OperatorWork("e", "experts", 1, 5 * S),
    ]  # fmt: skip
    time = Timing((41 * S, 40 * S, 50 * S))
    (row,) = stage_times({"page": nodes}, {PLACE: time}, {PLACE: works}, ROOF, BFLOAT)
    assert row.replay == (16 + 2 + 15 + 4 + 5) * S
    # 11 calls, the fastest 1 s: 11 s of dispatch. Shapes 2 x 7 - 10; other 1 + 3 x 4 - 10; movement 0 - 4; experts
    # 4 - 2; the fastest run is 2 s shorter than its operators.
    assert parts(row.split) == [11, 15, 4, 3, -4, 2, 0, 11, 0, 0, 40 - 42, 1]
    assert sum(parts(row.split)) == 41


def test_a_part_beyond_the_peak_is_wrong() -> None:
    spent: dict[TimePlace, int | None] = {("page", "sam", "a"): 5 * S, ("page", "sam", "b"): 4 * S}
    a, b = part_times({"page": (BUSY, WAITING)}, spent, patterns, ROOF, BFLOAT)
    # 80 FLOP take 10 s at the peak; 10 bytes of weights 5 s. Activations and the cache may come from the caches.
    assert (
        a.wrong == f"operators alone, ran at 200 % of the peak in the device file: {SUSPECTS}, the FLOPs, or the clock"
    )
    assert b.wrong == (
        f"operators alone, ran at 125 % of the bandwidth in the device file: {SUSPECTS}, the bytes, or the clock"
    )
    spent = {("page", "sam", "a"): 10 * S, ("page", "sam", "b"): 5 * S}
    assert [p.wrong for p in part_times({"page": (BUSY, WAITING)}, spent, patterns, ROOF, BFLOAT)] == ["", ""]


def test_a_part_is_measured_run_by_run_over_its_modules() -> None:
    nodes = tuple(node(f"layers.{i}.up", flops=40, weight_read_bytes=200) for i in (0, 1))
    spent: dict[TimePlace, int | None] = {("page", "sam", n.module): 100 * S for n in nodes}
    times = {("page", "sam", n.module): runs for n, runs in zip(nodes, ((5 * S, 9 * S), (6 * S, 4 * S)), strict=True)}
    (part,) = part_times({"page": nodes}, spent, patterns, ROOF, BFLOAT, times=times)
    # 5 + 6 in the first run, 9 + 4 in the second. 80 FLOP take 10 s, so both can be; that the 400 bytes take 200 s
    # accuses nobody: weights may stay in the caches from run to run.
    assert (part.measured, part.wrong) == (Timing((11 * S, 13 * S)), "")
    fast = dict.fromkeys(times, (4 * S, 9 * S))
    (part,) = part_times({"page": nodes}, spent, patterns, ROOF, BFLOAT, times=fast)
    assert part.wrong == f"ran at 125 % of the peak in the device file: {SUSPECTS}, the FLOPs, or the clock"
    (part,) = part_times({"page": nodes}, spent, patterns, ROOF, BFLOAT)
    assert part.measured is None


def test_a_routing_may_touch_fewer_experts_than_are_counted() -> None:
    # 40 bytes of experts counted, 20 s; one token passes 10 bytes of them, so 5 s are possible, and no less.
    expert = node("x", weight_read_bytes=40, calls=1)
    works = {PLACE: [OperatorWork("x", "experts", 1, 4 * S)]}

    def wrong(seconds: int) -> str:
        times = {PLACE: Timing((seconds * S,))}
        return stage_times({"page": (expert,)}, times, works, ROOF, BFLOAT, {"x": 10})[0].wrong

    assert wrong(5) == ""
    assert (
        wrong(4)
        == f"ran at 125 % of the bandwidth in the device file, its operators alone too: {SUSPECTS}, or the bytes"
    )
    spent: dict[TimePlace, int | None] = {("page", "sam", "x"): 5 * S}
    assert part_times({"page": (expert,)}, spent, patterns, ROOF, BFLOAT, {"x": 10})[0].wrong == ""


def kind_of(operator: str, module: str) -> WorkKind:
    return "products" if operator == "mm" else "movement" if operator == "copy" else "other"


def called(operator: str, module: str, host: tuple[int, int, int], device: int, *, waits: bool = False) -> EnqueuedCall:
    """In seconds."""
    python, dispatch, launch = (part * S for part in host)
    return EnqueuedCall(operator, module, python, dispatch, launch, int(device > 0), device * S, waits)


FORWARD: Forward = [
    (
        PLACE[1:],
        [
            called("mm", "a", (3, 2, 1), 12),  # enqueued at 6, runs to 18
            called("view", "a", (3, 2, 0), 0),  # at 11
            called("mm", "b", (3, 2, 1), 11),  # at 17, runs 18 to 29
            called("copy", "b", (5, 4, 5), 2, waits=True),  # at 31, runs to 33
            called("add", "b", (1, 2, 3), 1),  # at 39, runs to 40
        ],
    )
]
"""Idle: 6 until the first, 29 to 31 in a launch, 33 to 39: 14 in all."""


def two_clocks(*measured: int, latency: int = 0, replay: int | None = 99, forward: Forward = FORWARD) -> MeasuredStage:
    time = Timing(tuple(s * S for s in measured)) if measured else None
    alone = [OperatorWork("a", "products", 1, None if replay is None else replay * S)]
    eager = EagerCalls({PLACE[0]: forward}, kind_of, latency * S, on_host=False)
    (row,) = stage_times({"page": (BUSY, WAITING)}, {PLACE: time}, {PLACE: alone}, ROOF, BFLOAT, eager=eager)
    return row


def test_a_time_on_a_device_is_split_by_both_clocks() -> None:
    row = two_clocks(43, 42, 50)
    assert row.predicted == 40 * S
    assert row.clocks is not None
    assert (row.clocks.host, row.clocks.device, row.clocks.binds) == ((6 + 5 + 6 + 14 + 6) * S, 26 * S, "host")
    # Floor 11 and traffic 9 as above; each module has 10 at the roof. Shapes 12 + 11 - 20, movement 2, other 1: 26 of
    # kernels. Idle: Python 3 + 1, dispatch 2 + 2, launches 1 + 2 + 3. The fastest run took 42, the median 43.
    assert parts(row.split) == [11, 9, 3, 1, 2, 0, 4, 4, 6, 0, 42 - 40, 1]
    assert sum(parts(row.split)) == 43
    assert row.error == Fraction(3, 43)
    # The operators in isolation are another measurement: nothing of the split is theirs.
    assert (row.replay, two_clocks(43, 42, 50, replay=None).split) == (99 * S, row.split)


def test_the_latency_behind_a_synchronisation_is_a_part() -> None:
    row = two_clocks(43, latency=4)
    # The copy arrives at 35 and ends at 37, when the host goes on; the addition arrives at 47: 4 later than before.
    assert row.predicted == 44 * S
    assert parts(row.split) == [11, 9, 3, 1, 2, 0, 4, 4, 6, 4, 43 - 44, 0]


def test_what_never_ran_on_a_device_is_predicted_by_both_clocks() -> None:
    row = two_clocks()
    assert (row.device_alone, row.predicted, row.measured, row.error) == (26 * S, 40 * S, None, None)
    assert parts(row.split) == [11, 9, 3, 1, 2, 0, 4, 4, 6, 0, 0, 0]
    assert row.split is not None
    assert (row.split.residual, row.split.jitter) == (None, None)


def test_without_clocks_on_a_device_the_host_is_not_known() -> None:
    eager = EagerCalls({}, kind_of, on_host=False)
    alone = [OperatorWork("a", "products", 2, 13 * S)]
    (row,) = stage_times({"page": (BUSY, WAITING)}, {PLACE: None}, {PLACE: alone}, ROOF, BFLOAT, eager=eager)
    assert row.split is not None
    assert (row.clocks, row.predicted, row.device_alone) == (None, None, 26 * S)
    assert (row.split.python, row.split.dispatch, row.split.launch, row.split.synchronisation) == (None,) * 4
    # The shortest kernel is no dispatcher.
    assert parts(row.split) == [11, 9, 26 - 10, -10, 0, 0, 0, 0, 0, 0, 0, 0]


def test_on_a_processor_the_python_between_operators_is_a_part() -> None:
    calls = [EnqueuedCall("mm", "a", 2 * S, 9 * S, 0, 0, 0, False), EnqueuedCall("", "", S, 0, 0, 0, 0, False)]
    eager, works = EagerCalls({"page": [(PLACE[1:], calls)]}, kind_of), [OperatorWork("a", "products", 2, 4 * S)]
    times = {PLACE: Timing((13 * S, 12 * S))}
    (row,) = stage_times({"page": (BUSY,)}, times, {PLACE: works}, ROOF, BFLOAT, eager=eager)
    # 8 in isolation, all of it dispatch, and 3 of Python; 10 at the roof.
    assert (row.replay, row.predicted, row.device_alone) == (8 * S, 11 * S, 8 * S)
    assert parts(row.split) == [10, 0, -10, 0, 0, 0, 3, 8, 0, 0, 12 - 11, Fraction(1, 2)]


def test_other_forms_of_a_stage_are_beside_it() -> None:
    graph = VariantTime(Timing((30 * S,)), "", 26 * S, 2 * S, S)
    compiled = VariantTime(None, "it branches on values")
    variants = StageVariants({PLACE: graph}, {PLACE: compiled})

    def made(variants: StageVariants | None, *nodes: CostNode) -> MeasuredStage:
        time = {PLACE: Timing((43 * S,))}
        (row,) = stage_times({"page": nodes or (BUSY, WAITING)}, time, {}, ROOF, BFLOAT, variants=variants)
        return row

    assert (made(variants).graph, made(variants).compiled, made(variants).wrong) == (graph, compiled, "")
    assert (made(None).graph, made(None).compiled) == (None, None)
    # 88 FLOP take 11 s at the peak.
    fast = StageVariants({PLACE: VariantTime(Timing((10 * S, 40 * S)))}, {})
    peak = f"ran at 110 % of the peak in the device file: {SUSPECTS}, the FLOPs, or the clock"
    assert made(fast).wrong == f"as a CUDA graph, {peak}"
    assert made(StageVariants({}, {PLACE: VariantTime(Timing((10 * S,)))})).wrong == f"compiled, {peak}"
    # Weights may stay in the caches from replay to replay: 14 bytes need not take 7 s.
    assert made(StageVariants({PLACE: VariantTime(Timing((2 * S,)))}, {}), WAITING).wrong == ""


def test_python_before_a_boundary_is_no_work() -> None:
    calls = [called("copy", "m", (3, 2, 1), 9), called("", "m", (5, 0, 0), 0)]
    eager = EagerCalls({"page": [(PLACE[1:], calls)]}, kind_of, on_host=False)
    nodes = (node("m", input_bytes=4, output_bytes=4),)
    (row,) = stage_times({"page": nodes}, {PLACE: None}, {}, ROOF, BFLOAT, eager=eager)
    # 8 bytes take 4 s at the roof, of the 9 s that the copy takes; nothing is left to other operators.
    assert parts(row.split) == [0, 4, 0, 0, 5, 0, 3, 2, 1, 0, 0, 0]


def test_the_parts_add_up_whatever_ran() -> None:
    source = Random(7)
    for _ in range(60):
        forward, latency = random_forward(source), source.randrange(9)
        places: list[TimePlace] = [("page", *stage) for stage in dict.fromkeys(stage for stage, _ in forward)]
        runs = [tuple(source.randrange(1, 400) for _ in range(3)) for _ in places]
        times = {
            place: Timing(spent) if source.random() < 0.8 else None for place, spent in zip(places, runs, strict=True)
        }
        nodes = [replace(BUSY, stage=place[1], invocation=place[2], module="m") for place in places]
        eager = EagerCalls({"page": forward}, kind_of, latency, on_host=False)
        rows = stage_times({"page": nodes}, times, {}, ROOF, BFLOAT, eager=eager)
        both = stage_clocks(forward, latency)
        for row in rows:
            assert row.split is not None
            whole = both[row.stage, row.invocation].both if row.measured is None else row.measured.median
            assert sum(parts(row.split)) * S == whole
            host = (row.split.python, row.split.dispatch, row.split.launch, row.split.synchronisation)
            assert sum(Fraction(part or 0) for part in host) == both[row.stage, row.invocation].host_bound
