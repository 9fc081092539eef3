"""Count again, by separate code, the time bounds that a roofline reports.

Bounds of links have a single source, and no graph gives a bubble, the mean of routed experts, or what overlaps. Here
bytes that must cross a cut are counted, a pipeline is run step by step, and times are summed over the parts of the
model. A difference is a defect of costproof.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, product
from math import ceil, comb
from typing import Any, Final

import sympy

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import parse
from costproof.estimate.arithmetic import CONVOLUTION, FUSED, Arithmetic
from costproof.estimate.hardware import Device
from costproof.estimate.links import CollectiveBound, Devices, LinkBounds, LinkRates, StageLinks
from costproof.estimate.roofline import BottleneckThreshold, PartBound, Roof, StageBound, UnpackingTime, WorkBound
from costproof.estimate.routing import TouchedExperts
from costproof.ledger.baseline import Folded
from costproof.ledger.errors import Bug, Recount
from costproof.ledger.mesh import PAIRS, RANK, Collectives, Mesh, Schedule
from costproof.ledger.metrics import (
    ARITHMETIC,
    FLOOR,
    KEPT_FLOPS,
    SKIPPABLE,
    SPARED,
    SPARED_AT_FLOOR,
    STORAGE,
    TRAFFIC,
    UNFUSED,
    UNPACKED,
)
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.native import stored_formulas
from costproof.models.target import WithFormulas, sharded
from costproof.parametric.rank_checks import EXCHANGED
from costproof.parametric.targets import evaluate_formulas

# --- Parts of the model one after another ---------------------------------------------------------------------------


def clock_recounts(
    of: Roof,
    counts: Folded,
    run: StageBound,
    stages: Sequence[StageBound],
    parts: Sequence[PartBound],
    *,
    routed: bool = False,
) -> Iterator[Recount]:
    """Yield the times of stages and of the run as sums over parts, and bounds that are in the wrong order.

    Args:
        routed: whether the experts that the counts read are those of a routing, which the floor then has too.
    """
    for stage in stages:
        yield from _work_recounts(counts, stage, parts, routed)
        flops = [p.at_roof.flops for p in parts if p.stage == stage.id]
        if None not in flops and (every := counts.total("flops", stage.id)) is not None:
            yield Recount(stage.id, "all parts", "flops", sum(n or 0 for n in flops), every)
    for stage in (*stages, run):
        clocks = [_clocks(p.at_roof, of) for p in parts if stage.id in ("", p.stage)]
        where, known = "modules one after another", [c for c in clocks if c is not None]
        if len(known) == len(clocks):
            sums = (
                ("compute_s", stage.modules.compute_s, sum(compute for compute, _ in known)),
                ("memory_s", stage.modules.memory_s, sum(memory for _, memory in known)),
                ("seconds", stage.modules.seconds, sum(map(max, known))),
                ("compute_bound_s", stage.compute_bound_s, sum(c for c, memory in known if c >= memory)),
            )
            for metric, found, again in sums:
                yield Recount(stage.id, where, metric, Fraction(found or 0), Fraction(again))
        floor = stage.floor
        for name, bound in (("modules", stage.modules), ("unfused", stage.unfused), ("full", stage.full)):
            if bound is not None:
                yield from _above(stage.id, f"floor above {name}", "seconds", floor.seconds, bound.seconds)
        for metric, least, most in (
            ("bytes", floor.bytes, stage.modules.bytes),
            ("seconds", floor.compute_s, floor.seconds),
            ("seconds", floor.memory_s, floor.seconds),
        ):
            yield from _above(stage.id, "floor above what contains it", metric, least, most)


def _work_recounts(counts: Folded, stage: StageBound, parts: Sequence[PartBound], routed: bool) -> Iterator[Recount]:
    """Yield the bytes and the FLOPs that a stage has at least, from the counts; nothing if some are not known.

    A call reads the experts of one token for certain: of their bytes, as they are held, active / all parameters.
    """
    held = counts.rows.get(stage.id, {}).values()
    needed = {*_SIDES, "params", "params_active", "weight_bytes"}
    if any(n is None and metric in needed for kinds in held for costs in kinds.values() for metric, n in costs.items()):
        return
    known = [[Counter({m: n or 0 for m, n in costs.items()}) for costs in kinds.values()] for kinds in held]
    rows, of_parts = [*chain(*known)], [sum(costs, Counter[str]()) for costs in known]
    moved = (sum(c[metric] for metric in TRAFFIC) - c[SPARED] - c[UNPACKED] for c in of_parts)
    yield Recount(stage.id, "all parts", "bytes", stage.modules.bytes or 0, sum(max(0, size) for size in moved))
    mine = [p.at_roof for p in parts if p.stage == stage.id]
    if counts.bounds and KEPT_FLOPS in counts.metrics:
        least = sum(p.flops or 0 if p.least is None else sum(p.least.values()) for p in mine)
        again = sum(c[KEPT_FLOPS] - c[SKIPPABLE] for c in rows)
        yield Recount(stage.id, "all parts", "FLOPs that none skips", least, again)
    if not sum(c[FLOOR] for c in rows):
        return
    calls = min((c["calls"] for c in rows if c["calls"]), default=0)
    floor = sum(c[FLOOR] - c[SPARED_AT_FLOOR] - c[UNPACKED] for c in rows)
    for c in () if routed else rows:
        if c["params_active"] < c["params"] and c["weight_read_bytes"]:
            stored = c["resident_bytes"] - c["buffer_bytes"] if c[UNPACKED] else c["weight_bytes"]
            if c[UNPACKED] and not 0 < stored == c["stored_bytes"]:  # files have descriptions besides
                return
            read = min(c["weight_read_bytes"] - c[UNPACKED], stored * calls)
            floor -= max(0, read - int(Fraction(stored, c["params"]) * c["params_active"]) * calls)
    yield Recount(stage.id, "floor", "bytes", stage.floor.bytes or 0, max(0, floor))


def device_recounts(device: Device, of: Roof, unpacking: Iterable[UnpackingTime]) -> Iterator[Recount]:
    """Yield the peaks of a device that bound products, and the time of the vector work of quantised weights."""
    peaks: dict[str, int] = {}
    for p in device.peaks:
        if p.sparsity == "dense":
            peaks[p.dtype] = max(p.flops, peaks.get(p.dtype, 0))
    used = {**of.peaks, of.math: of.flops}
    tf32, single = peaks.get(CONVOLUTION, 0), used.get("float32", 0)
    for dtype in peaks.keys() & used.keys() - {CONVOLUTION, FUSED}:
        yield Recount("", dtype, "peak", used[dtype], peaks[dtype])
    if CONVOLUTION in of.peaks:
        yield Recount("", CONVOLUTION, "peak", of.peaks[CONVOLUTION], max(tf32, single))
    if FUSED in of.peaks:  # three products for one, rounded up
        rounded = 3 * of.peaks[FUSED] - max(tf32, 3 * single)
        yield Recount("", FUSED, "peak", rounded in (0, 1, 2), True)
    vector = [p.flops for p in device.peaks if p.unit == "vector" and p.sparsity == "dense"]
    for own in unpacking:
        if own.seconds is not None:
            yield Recount(own.stage, "unpacking", "flops", own.flops or 0, Fraction(own.seconds) * max(vector))


def _above(stage: str, where: str, metric: str, least: int | str | None, most: int | str | None) -> Iterator[Recount]:
    """Yield how far a number is above another that is at least as large, if both are known."""
    if least is not None and most is not None:
        yield Recount(stage, where, metric, max(Fraction(0), Fraction(least) - Fraction(most)), 0)


def _clocks(work: WorkBound, of: Roof) -> tuple[Fraction, Fraction] | None:
    """Return the compute time and the memory time of a part, in seconds; ``None`` if they are not known."""
    if work.flops is None or work.bytes is None:
        return None
    rates = {**of.peaks, of.math: of.flops}
    products = {of.math: work.flops} if work.least is None else work.least
    return sum((Fraction(n, rates[x]) for x, n in products.items() if x in rates), Fraction(0)), Fraction(
        work.bytes, of.bandwidth
    )


def unpacked_recounts(counts: Folded, run: StageBound, dtype: str) -> Iterator[Recount]:
    """Yield the products in a dtype without a peak, which take no time; most products must not be in it."""
    rows = [costs for parts in counts.rows.values() for kinds in parts.values() for costs in kinds.values()]
    ours, every = (sum(costs.get(metric) or 0 for costs in rows) for metric in (f"{dtype}_flops", "flops"))
    if 2 * ours > every:
        yield Recount("", f"products in {dtype}, without a peak", "flops", (run.modules.least or {}).get(dtype, 0), 0)


def sent_recounts(counts: Folded, found: int | None) -> Iterator[Recount]:
    """Yield the bytes that a rank sends, added up operator by operator."""
    rows = (costs for parts in counts.rows.values() for kinds in parts.values() for costs in kinds.values())
    if found is not None:
        yield Recount("", "the counted rank", "comm_bytes", found, sum(costs.get("comm_bytes") or 0 for costs in rows))


def overlap_recounts(
    of: Roof, parts: Sequence[PartBound], sent: Sequence[CollectiveBound], found: Iterable[StageLinks]
) -> Iterator[Recount]:
    """Yield the bounds of a rank with its communication, as sums over its parts and its collectives.

    Args:
        of: the roofline of the device.
        parts: all parts of the rank.
        sent: its collectives.
        found: its bounds, those of the run under the stage ````.
    """
    for links in found:
        clocks = [_clocks(p.at_roof, of) for p in parts if links.id in ("", p.stage)]
        waits = [(Fraction(c.seconds), c.sent_bytes) for c in sent if links.id in ("", c.stage)]
        waited = sum((seconds for seconds, _ in waits), Fraction(0))
        yield Recount(links.id, "collectives one after another", "seconds", Fraction(links.seconds), waited)
        yield Recount(links.id, "all collectives", "sent_bytes", links.sent_bytes, sum(n for _, n in waits))
        known = [c for c in clocks if c is not None]
        if len(known) < len(clocks) or links.exposed_s is None or links.overlapped_s is None:
            continue
        exposed = waited
        for compute, memory in known:
            exposed += compute if compute > memory else memory
        hidden = min(waited, exposed - waited)
        yield Recount(links.id, "collectives after the modules", "exposed_s", Fraction(links.exposed_s), exposed)
        overlapped = Fraction(links.overlapped_s)
        yield Recount(links.id, "the shorter clock hidden", "overlapped_s", overlapped, exposed - hidden)
        clocks_of = {"compute": sum(c for c, _ in known), "memory": sum(m for _, m in known), "links": waited}
        longest = Fraction(max(clocks_of.values()))
        yield Recount(links.id, "longest clock", "seconds", Fraction(clocks_of[links.bound or "links"]), longest)


def rank_recounts(
    found: LinkBounds, model: WithFormulas | None, workload: Workload, run: StageBound, of: Roof,
    arithmetic: Arithmetic, devices: Devices,
) -> Iterator[Recount]:  # fmt: skip
    """Yield the times of each rank, part by part from its own formulas, and whether each has one row.

    Args:
        found: the bounds.
        model: target whose formulas give the times; ``None``: only the counted rank is known.
        workload: the run, with that rank.
        run: time bounds of the whole run of that rank.
        of, arithmetic, devices: the roofline, and the devices with their links.
    """
    rows, world = {r: row for row in found.ranks for r in row.ranks}, workload.mesh.world
    yield Recount(
        "", "ranks with times", "number", sum(len(row.ranks) for row in found.ranks), 1 if model is None else world
    )
    times = [Fraction(row.overlapped_s or 0) for row in found.ranks]
    yield Recount("", "slowest rank", "overlapped_s", times[0], max(times))
    own, last = rows[workload.rank], found.stages[-1]
    for metric, time, again in (
        ("roof_s", own.roof_s, run.modules.seconds),
        ("exposed_s", own.exposed_s, last.exposed_s),
        ("overlapped_s", own.overlapped_s, last.overlapped_s),
    ):
        yield Recount("", f"rank {workload.rank}", metric, Fraction(time or 0), Fraction(again or 0))
    for row in found.ranks:
        of_row = replace(workload, inputs={**workload.inputs, RANK: row.ranks[-1]})
        known = None if model is None else _times_of_rank(model, of_row, of, arithmetic, devices)
        for metric, time_again in (known or {}).items():
            if (time := getattr(row, metric)) is not None:
                yield Recount("", f"rank {row.ranks[-1]}, by its formulas", metric, Fraction(time), time_again)


def _times_of_rank(
    model: WithFormulas, run: Workload, of: Roof, arithmetic: Arithmetic, devices: Devices
) -> dict[str, Fraction] | None:
    """Return the time of a rank's modules and of its collectives: the sum, and the longer of both; ``None`` if unknown.

    Routed experts have the mean of the rows of all ranks that share them, each cost of a part rounded down.
    """
    ranks, shared = sharded(model), ranks_of_experts(run)
    sums: defaultdict[tuple[str, str], defaultdict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for n in evaluate_formulas(model, run).nodes:
        costs = {m: n.cost(m) or 0 for m in (*_SIDES, "comm_bytes") if m in n.costs or m in n.exprs}
        sums[n.stage, n.role][n.kind].update(costs)
    waits = roofed = Fraction(0)
    for (_, role), kinds in sums.items():
        compute, moved = Fraction(0), 0
        for kind, cost in kinds.items():
            if shared > 1 and "experts" in role.split("."):
                cost.update({m: size // shared - size for m, size in cost.items() if m not in _OF_EXPERTS})
            least = _least_compute(
                defaultdict(Fraction, {m: Fraction(n) for m, n in cost.items()}), kind, of, arithmetic
            )
            if least is None:
                return None
            compute += least
            moved += sum(cost[metric] for metric in TRAFFIC) - cost[SPARED] - cost[UNPACKED]
            if cost["comm_payload_bytes"]:
                assert ranks is not None
                group = run.mesh.ranks_of(kind, ranks.shares(run).axis_of(role, kind), run.rank)
                if kind == "all_to_all" and PAIRS in run.inputs:
                    waits += seconds_to_leave(cost["comm_bytes"], group, run.rank, devices)
                else:
                    waits += cost["comm_payload_bytes"] * least_seconds(kind, group, devices)
        roofed += max(compute, Fraction(max(0, moved), of.bandwidth))
    return {"roof_s": roofed, "exposed_s": roofed + waits, "overlapped_s": max(roofed, waits)}


# --- Routed experts that ranks share ---------------------------------------------------------------------------------

_OF_EXPERTS: Final = frozenset(
    ("calls", "params", "weight_bytes", "weight_read_bytes", "unpacked_bytes", "buffer_bytes", *STORAGE, *EXCHANGED)
)
"""Metrics of routed experts that are those of their weights and calls, however many rows they get."""


def ranks_of_experts(run: Workload) -> int:
    """Return how many ranks share the rows of routed experts; 1 if the run says the rows of each."""
    return 1 if PAIRS in run.inputs else len(run.mesh.group("ep", run.rank))


def mean_recounts(whole: Folded, mean: Folded, run: Workload) -> Iterator[Recount]:
    """Yield, for routed experts, that all ranks together have the rows once, and weights and calls as they are."""
    ranks = ranks_of_experts(run)
    for stage, parts in whole.rows.items():
        for part, kinds in parts.items():
            outer = ".".join(part.split(".")[: part.split(".").index("experts") + 1]) if ".experts" in part else part
            routed = "expert_gemm" in parts.get(outer, {})
            for kind, costs in kinds.items():
                for metric, cost in costs.items():
                    shared = mean.rows[stage][part][kind].get(metric)
                    if cost is None or shared is None:
                        continue
                    fixed = (costs.get("weight_read_bytes") or 0) if metric == UNFUSED else 0
                    if not routed or metric in _OF_EXPERTS:
                        fixed = cost
                    again = fixed + (cost - fixed) // ranks
                    yield Recount(stage, f"{kind} of {part}, mean of the ranks", metric, shared, again)


def touched_recounts(
    ledger: Ledger, sizes: Mapping[tuple[str, str], Mapping[str, int]], found: Iterable[TouchedExperts]
) -> Iterator[Recount]:
    """Yield the bytes of the experts that layers touch, of a uniform routing from the sets that leave an expert out."""
    reads = [
        n for n in ledger.nodes if n.role.split(".")[-1] == "experts" and not n.kind and "weight_read_bytes" in n.exprs
    ]
    known: dict[tuple[object, ...], int] = {}
    touched = sympy.Symbol("touched")
    for one in found:
        node = [n for n in reads if n.stage == one.stage][one.layer]
        key = node.stage, node.invocation, node.exprs["weight_read_bytes"], one.touched
        if key not in known:
            left_out = Fraction(comb(one.experts - 1, one.top_k), comb(one.experts, one.top_k))
            mean = one.experts * (1 - left_out**one.tokens) if "*" in one.touched else Fraction(one.touched)
            line = parse(key[2]).replace(lambda e: e.func == sympy.Min, lambda _: touched)
            values = {s: sizes[node.stage, node.invocation][s.name] for s in line.free_symbols - {touched}}
            ends = [int(line.xreplace({**values, touched: n})) for n in (0, one.experts)]
            known[key] = ceil(ends[0] + (ends[1] - ends[0]) * mean / one.experts)
        yield Recount(one.stage, f"experts of layer {one.layer}", "bytes", one.bytes, known[key])


# --- Borders ---------------------------------------------------------------------------------------------------------

_SIDES: Final = (
    "flops", KEPT_FLOPS, SKIPPABLE, SPARED, SPARED_AT_FLOOR, UNPACKED, FLOOR, "comm_payload_bytes",
    *(f"{dtype}_flops" for dtype in ARITHMETIC), *TRAFFIC,
)  # fmt: skip


def border_recounts(
    model: WithFormulas, workload: Workload, borders: Iterable[BottleneckThreshold], of: Roof, arithmetic: Arithmetic,
    devices: Devices,
) -> Iterator[Recount]:  # fmt: skip
    """Yield both sides of each border at its value, node by node, where borders are solved from sums of formulas.

    Two clocks of which one depends on a setting have a border, found or not.
    """
    known: dict[tuple[str, int], Mapping[tuple[str, str], Fraction | None]] = {}
    asked = set()

    def at(setting: str, value: int) -> Mapping[tuple[str, str], Fraction | None]:
        if (setting, value) not in known:
            changed: dict[str, Any] = {setting: value}
            known[setting, value] = _sides(model, replace(workload, **changed), of, arithmetic, devices)
        return known[setting, value]

    for border in borders:
        point, key = border.points[-1], (border.setting, border.points[-1].at)
        at(*key)
        asked.add((border.stage, border.setting, border.left, border.right))
        for name, value in ((border.left, point.left), (border.right, point.right)):
            if (again := known[key].get((border.stage, name), Fraction(0))) is not None:
                where = f"{name} at {border.setting} {point.at}"
                yield Recount(border.stage, where, border.unit, Fraction(value), again)
    for setting, place in tuple(known):
        own = at(setting, getattr(workload, setting))
        depends = {side for side, amount in at(setting, place).items() if amount != own.get(side)}
        for left, right in _BORDERS[setting]:
            for stage, side in depends:
                if side == left and None not in (own.get((stage, left)), own.get((stage, right))):
                    found = (stage, setting, left, right) in asked
                    yield Recount(stage, f"{left} and {right} by {setting}", "are compared", found, True)


_LINKED: Final = (("links", "memory"), ("compute", "links"))
_BORDERS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "batch": (("compute", "memory"), ("compute", "weights once"), *_LINKED),
    "text_tokens": (*_LINKED, ("scores of attention", "MLPs"), ("keys and values of the past", "weights")),
}
"""Setting -> the sides that are compared along it."""


def _sides(
    model: WithFormulas, run: Workload, of: Roof, arithmetic: Arithmetic, devices: Devices
) -> Mapping[tuple[str, str], Fraction | None]:
    """Return (stage, side of a border) -> what it takes in a run, in the unit of the border; ``None`` if not known."""
    config, ranks, shared = model.info().symbols, sharded(model), ranks_of_experts(run)
    calls = {(call.stage, call.id): {**config, **call.symbols} for call in model.invocations(run)}
    alike = Counter(
        (n.stage, n.invocation, n.kind, n.role, tuple((m, n.exprs[m]) for m in _SIDES if m in n.exprs))
        for n in stored_formulas(model, run).nodes if (n.stage, n.invocation) in calls
    )  # fmt: skip
    found: dict[tuple[str, str], Fraction | None] = {}
    for (stage, call, kind, role, costs), many in alike.items():
        parts = role.split(".")
        cost: defaultdict[str, Fraction] = defaultdict(Fraction)
        for metric, expr in costs:
            rows = shared if "experts" in parts and metric not in _OF_EXPERTS else 1
            cost[metric] = Fraction(many * evaluate(expr, calls[stage, call]), rows)
        weights = cost["weight_read_bytes"] - cost[UNPACKED]
        sides = {
            "compute": _least_compute(cost, kind, of, arithmetic),
            "memory": (sum(cost[metric] for metric in TRAFFIC) - cost[UNPACKED]) / of.bandwidth,
            "weights once": weights / of.bandwidth,
            "weights": weights,
        }
        if kind == "attention":
            sides["scores of attention"] = cost[KEPT_FLOPS]
        if {"mlp", "experts"} & {*parts}:
            sides["MLPs"] = cost[KEPT_FLOPS]
        if cost["kv_read_bytes"]:
            sides["keys and values of the past"] = cost["kv_read_bytes"]
        if (payload := cost["comm_payload_bytes"]) and ranks is not None and devices.device.interconnect is not None:
            group = run.mesh.ranks_of(kind, ranks.shares(run).axis_of(role, kind), run.rank)
            if len(_nodes(group, devices)) == 1 or devices.device.network is not None:
                sides["links"] = payload * least_seconds(kind, group, devices)
        for name, amount in sides.items():
            before = found.get((stage, name), Fraction(0))
            found[stage, name] = None if before is None or amount is None else before + amount
    return found


def _least_compute(cost: Mapping[str, Fraction], kind: str, of: Roof, arithmetic: Arithmetic) -> Fraction | None:
    """Return the seconds of products that every implementation has; ``None`` for several dtypes in one operator."""
    rates = {**of.peaks, of.math: of.flops}
    others = [dtype for dtype in ARITHMETIC if cost[f"{dtype}_flops"]]
    if len(others) > 1 or (others and not cost["flops"] == cost[KEPT_FLOPS] == cost[f"{others[0]}_flops"]):
        return None
    rate = rates.get(arithmetic.named([*others, arithmetic.run][0], kind))
    return (cost[KEPT_FLOPS] - cost[SKIPPABLE]) / rate if rate else Fraction(0)


# --- Pipelines -------------------------------------------------------------------------------------------------------

_MOST_STEPS: Final = 20_000
"""Largest number of steps of a schedule that is run; a longer one is run with fewer microbatches."""


def schedule_recounts(of: Schedule, mesh: Mesh, rank: int, said: int) -> Iterator[Recount]:
    """Yield the idle share and the sends of all stages, from a run of the schedule in which each part takes a step.

    After p microbatches every stage is busy at each step until the last ones, so that p more add p v steps to a forward
    and no waiting: a long schedule is run with p to 2 p - 1 and with p more microbatches, and waits as long in both.

    Args:
        rank: the counted rank of the mesh.
        said: how often it is said to send.
    """
    p, m, v = of.stages, of.microbatches, of.parts
    runs = [m] if 2 * p * m * v <= _MOST_STEPS or m < 3 * p else [p + m % p, 2 * p + m % p]
    if 2 * p * runs[-1] * v > 4 * _MOST_STEPS:
        return
    for few in runs:
        steps, sent = run_schedule(of.order, p, few, v)
        waits, busy = steps - 2 * few * v, 2 * m * v
        yield Recount("", f"{of.order}, {few} of {m} microbatches", "idle", of.idle, Fraction(waits, waits + busy))
        for stage, sends in enumerate(sent):
            yield Recount("", f"{of.order}, stage {stage}", "sends", of.sends(stage), Fraction(sends * m, few))
            if stage == rank // (mesh.world // p):
                yield Recount("", f"{of.order}, rank {rank}", "sends", said, Fraction(sends * m, few))


def run_schedule(order: str, stages: int, microbatches: int, parts: int) -> tuple[int, list[int]]:
    """Run a forward and a backward pass and return its steps, and how often each stage sends in the forwards.

    A stage takes its work in the order of GPipe (Huang et al. 2019, figure 2c), of Megatron-LM's
    ``forward_backward_pipelining_without_interleaving``, or of ``..._with_interleaving``. The forward of part i of a
    microbatch needs that of part i - 1, its backward that of part i + 1.
    """
    last = stages * parts - 1
    work: list[list[tuple[bool, int, int]]] = []
    for stage in range(stages):
        turns = range(microbatches * parts)
        forward = [(False, turn // stages % parts * stages + stage, turn // (stages * parts) * stages + turn % stages)
                   for turn in turns] if parts > 1 else [(False, stage, turn) for turn in turns]  # fmt: skip
        backward = [(True, (parts - 1 - part // stages) * stages + stage, of) for _, part, of in forward]
        ahead = (stages - 1 - stage) * (2 if parts > 1 else 1) + (parts - 1) * stages
        ahead = len(forward) if order == "gpipe" else min(ahead, len(forward))
        mine = forward[:ahead]
        for i in range(len(forward)):
            mine += [*forward[ahead + i : ahead + i + 1], backward[i]]
        work.append(mine)
    done: dict[tuple[bool, int, int], int] = {}
    at, free, sent = [0] * stages, [0] * stages, [0] * stages
    moved = True
    while moved:
        moved = False
        for stage, mine in enumerate(work):
            while at[stage] < len(mine):
                back, part, of = mine[at[stage]]
                before = ((True, part + 1, of) if part < last else (False, part, of)) if back else (False, part - 1, of)
                if (back or part) and before not in done:
                    break
                free[stage] = done[mine[at[stage]]] = max(free[stage], done.get(before, 0)) + 1
                sent[stage] += not back and part < last
                at[stage], moved = at[stage] + 1, True
    if at != [len(mine) for mine in work]:
        raise Bug("the stages of a schedule wait for each other", where=f"{order}, {stages} stages")
    return max(free), sent


# --- Bounds of links -------------------------------------------------------------------------------------------------


def link_recounts(
    found: LinkBounds, collectives: Iterable[Collectives], devices: Devices, workload: Workload
) -> Iterator[Recount]:
    """Yield the least time of the collectives of a kind in a stage, by the bytes that must enter a rank, and a node.

    Of a given routing, parts are unequal: there the bytes that leave the counted rank decide.
    """
    sums: dict[tuple[str, str, str], list[Fraction]] = {}

    def add(side: int, stage: str, kind: str, amounts: Sequence[int | Fraction]) -> None:
        for of in (stage, ""):
            for metric, amount in zip(("seconds", *EXCHANGED), amounts, strict=True):
                sums.setdefault((of, kind, metric), [Fraction(0), Fraction(0)])[side] += amount

    for b in found.collectives:
        add(0, b.stage, b.kind, (Fraction(b.seconds), b.messages, b.payload_bytes, b.sent_bytes))
    every = tuple(collectives)
    for c in every:
        if c.kind == "all_to_all" and PAIRS in workload.inputs:
            seconds = seconds_to_leave(c.sent_bytes, c.ranks, workload.rank, devices)
        else:
            seconds = c.bytes * least_seconds(c.kind, c.ranks, devices)
        add(1, c.stage, c.kind, (seconds, c.count, c.bytes, c.sent_bytes))
    named = {(b.stage, b.kind, b.ranks, b.nodes) for b in found.collectives}
    spread = {(c.stage, c.kind, len(c.ranks), len(_nodes(c.ranks, devices))) for c in every}
    yield Recount("", "groups of ranks in nodes", "are those of the collectives", named == spread, True)
    figures = devices.device.figures()
    rates: dict[str, int | None] = {
        name: figure.value for name, figure in figures.items() if name in ("interconnect", "node", "network")
    }
    rates |= {} if devices.node is None else {"node": devices.node}
    rates |= {} if any(nodes > 1 for *_, nodes in spread) else {"network": None}
    for name in ("interconnect", "node", "network"):
        yield Recount("", f"links, {name}", "is that of the device", getattr(found, name) == rates.get(name), True)
    for (stage, kind, metric), (first, again) in sums.items():
        yield Recount(stage, f"links, {kind or 'all collectives'}", metric, first, again)
    for of in found.stages:
        waited = sum(times[1] for (stage, _, metric), times in sums.items() if (stage, metric) == (of.id, "seconds"))
        yield Recount(of.id, "links, sum of the collectives", "seconds", Fraction(of.seconds), Fraction(waited))


def least_seconds(kind: str, group: Sequence[int], devices: Devices) -> Fraction:
    """Return the least seconds of a collective for each byte of its payload.

    A rank has its link and, in a group over several nodes, its part of the network; a node has the network of its ranks
    of the group. Of uneven parts the largest node is taken. What must enter needs as long as it needs at that rate.
    """
    n = len(group)
    if n == 1:
        return Fraction(0)
    link, network = devices.device.interconnect, devices.device.network
    assert link is not None
    parts = sorted(_nodes(group, devices), key=len)
    one = [group[-1]]
    if len(parts) == 1:
        return _entering(kind, group, one) / link.value
    assert network is not None
    at_rank = _entering(kind, group, one) / (link.value + network.value)
    within = one if kind == "send" else parts[-1]
    return max(at_rank, _entering(kind, group, within) / (len(within) * network.value))


def rate_recounts(
    found: LinkRates | None, on: str | os.PathLike[str] | Device, devices: Devices, mesh: Mesh
) -> Iterator[Recount]:
    """Yield whether devices are those of their name, and whether all rates that a run takes are known."""
    if not isinstance(on, Device):
        count, node = devices.count, devices.node
        sizes = [] if count is None else [count] if node is None else [count // node, node]
        said = [int(size) for size in os.fspath(on).replace(" ", "").split("x")[: len(sizes)] if size.isdecimal()]
        yield Recount("", "numbers of devices", "are those of the name", said == sizes, True)
    nodes, link, network = _nodes(range(mesh.world), devices), devices.device.interconnect, devices.device.network
    known = link is not None and (len(nodes) == 1 or network is not None)
    yield Recount("", "rates of the links", "are known", found is not None, known)


def _nodes(group: Sequence[int], devices: Devices) -> Collection[list[int]]:
    """Return the ranks of a group that are in one node, for each node."""
    size = devices.node
    if size is None and devices.device.node is not None:
        size = devices.device.node.value
    nodes: dict[int, list[int]] = {}
    for r in group:
        nodes.setdefault(r // size if size else 0, []).append(r)
    return nodes.values()


def seconds_to_leave(sent: int, group: Sequence[int], rank: int, devices: Devices) -> Fraction:
    """Return the least seconds in which bytes leave a rank through all that connects it to others of a group."""
    link, network, rate = devices.device.interconnect, devices.device.network, 0
    nodes = _nodes(group, devices)
    if any(rank in node and len(node) > 1 for node in nodes):
        assert link is not None
        rate += link.value
    if any(rank not in node for node in nodes):
        assert network is not None
        rate += network.value
    return Fraction(sent, rate)


def _entering(kind: str, group: Sequence[int], inside: Sequence[int]) -> Fraction:
    """Return the part of the payload that must enter some ranks of a group, or leave them."""
    outside, n = [r for r in group if r not in inside], len(group)
    if kind in ("all_reduce", "send"):  # one sum of all that the others have, or the tensor
        return Fraction(1 if outside else 0)
    if kind == "all_to_all":  # a chunk from each one outside to each one inside
        return Fraction(sum(1 for _ in product(outside, inside)), n)
    return Fraction(len(outside), n)
