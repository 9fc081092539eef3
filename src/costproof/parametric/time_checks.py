"""Count a second time, by separate code, the time bounds that a roofline reports.

Bounds of links have a single source, and no graph gives a bubble, the mean of routed experts, or what overlaps. Here
bytes that must cross a cut are counted, a pipeline is run step by step, and times are summed over the parts of the
model. A difference is a defect of costproof.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, product
from math import ceil, comb, floor
from os import PathLike
from pathlib import Path
from typing import Any, Final

import sympy

from costproof.algebra.evaluation import SymbolValues, evaluate
from costproof.algebra.symbols import parse
from costproof.estimate.arithmetic import CONVOLUTION, FUSED, Arithmetic
from costproof.estimate.hardware import Device
from costproof.estimate.links import CollectiveBound, Devices, LinkBounds, LinkRates, StageLinks
from costproof.estimate.roofline import BottleneckThreshold, PartBound, Roof, StageBound, UnpackingTime, WorkBound
from costproof.estimate.routing import RoutedRank, TouchedExperts
from costproof.ledger.attributes import attribute
from costproof.ledger.baseline import Folded
from costproof.ledger.errors import Bug, Recount
from costproof.ledger.files import read_json
from costproof.ledger.mesh import DISPATCH, RANK, Collectives, Mesh, Schedule
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
    UNPACKING,
)
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import FLOAT_BYTES, Workload
from costproof.models.native import stored_formulas
from costproof.models.target import WithFormulas, WithStorage, sharded
from costproof.parametric.access_checks import batch_of
from costproof.parametric.rank_checks import EXCHANGED, expert_choices
from costproof.parametric.targets import evaluate_formulas
from costproof.weights.library_reading import products_stated
from costproof.weights.stored import Stored

# --- Parts of the model one after another ---------------------------------------------------------------------------


def clock_recounts(
    of: Roof,
    counts: Folded,
    run: StageBound,
    stages: Sequence[StageBound],
    parts: Sequence[PartBound],
    arithmetic: Arithmetic,
    *,
    routed: bool = False,
) -> Iterator[Recount]:
    """Yield second counts of the times of stages and run as sums over parts, and checks of the order of bounds.

    Args:
        arithmetic: the dtypes in which operators multiply.
        routed: whether the experts that the counts read are those of a routing, which the floor then has too.
    """
    for stage in stages:
        yield from _work_recounts(counts, stage, parts, routed)
        yield from _whole_recounts(counts, stage, of, arithmetic)
        flops = [p.at_roof.flops for p in parts if p.stage == stage.id]
        if None not in flops and (every := counts.total("flops", stage.id)) is not None:
            yield Recount(stage.id, "all parts", "flops", sum(n or 0 for n in flops), every)
    moved = [counts.total(FLOOR, stage.id) for stage in stages] if FLOOR in counts.metrics else [None]
    if run.full is not None and all(moved):
        unread = (kinds.values() for of_parts in counts.rows.values() for kinds in of_parts.values())
        every_byte = sum(map(int, filter(None, moved))) - sum(c.get(UNPACKED) or 0 for rows in unread for c in rows)
        yield Recount("", "all FLOPs and compulsory bytes", "bytes", run.full.bytes or 0, every_byte)
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
        kept = [p.at_roof.kept for p in parts if stage.id in ("", p.stage)]
        for name, of_all in (("modules", stage.modules), ("floor", stage.floor)):
            if None not in kept and of_all.kept is not None:
                yield Recount(stage.id, f"{name}, all parts", "kept FLOPs", of_all.kept, sum(n or 0 for n in kept))
            if of_all.intensity is not None and of_all.bytes:
                again = Fraction(of_all.intensity) * of_all.bytes
                yield Recount(stage.id, name, "flops", of_all.flops or 0, again)
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
    """Yield second counts of a stage's minimum bytes and FLOPs; empty if some counts are unknown.

    A call reads the experts of one token for certain: of their bytes, as they are held, active / all parameters.
    """
    held = counts.rows.get(stage.id, {}).values()
    needed = {*_SIDES, "params", "params_active", "weight_bytes"}
    if any(n is None and metric in needed for kinds in held for costs in kinds.values() for metric, n in costs.items()):
        return
    known = [[Counter({m: n or 0 for m, n in costs.items()}) for costs in kinds.values()] for kinds in held]
    rows, of_parts = [*chain(*known)], [Counter[str]() for _ in known]
    for whole, costs in zip(of_parts, known, strict=True):
        for one in costs:
            whole.update(one)  # padding may be stored, so that less than nothing is saved: + would drop that
    moved = (sum(c[metric] for metric in TRAFFIC) - c[SPARED] - c[UNPACKED] for c in of_parts)
    yield Recount(stage.id, "all parts", "bytes", stage.modules.bytes or 0, sum(max(0, size) for size in moved))
    mine = [p.at_roof for p in parts if p.stage == stage.id]
    if stage.modules.kept is not None and KEPT_FLOPS in counts.metrics:
        kept = sum(c[KEPT_FLOPS] for c in rows)
        yield Recount(stage.id, "all operators", "kept FLOPs", stage.modules.kept, kept)
    if stage.unfused is not None:
        size = sum(max(0, c[UNFUSED] - c[UNPACKED]) for c in of_parts)
        yield Recount(stage.id, "all parts, unfused", "bytes", stage.unfused.bytes or 0, size)
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


def arithmetic_recounts(
    counts: Folded, run: str, math: str | None, device: Device, found: tuple[Arithmetic, str]
) -> Iterator[Recount]:
    """Yield a second choice of the dtype of most products, and of the dtype whose peak bounds them.

    Args:
        run: the dtype of the run.
        math: the dtype of products that the user names.
        found: the arithmetic, and the dtype of most products.
    """
    arithmetic, dtype = found
    flops: Counter[str] = Counter({run: 0})
    for kinds in counts.rows.values():
        for costs in (costs for of in kinds.values() for costs in of.values()):
            other = {one: costs.get(f"{one}_flops") or 0 for one in ARITHMETIC if counts.bounds}
            flops.update(other)
            flops[run] += (costs.get("flops") or 0) - sum(other.values())
    unpacked = set[str]()
    for one in ("float8", "float4"):
        if math is None and flops[one] and device.bounding_peak(one) is None:
            unpacked.add(one)
            flops[run] += flops.pop(one)
    most = [one for one, n in flops.items() if n == max(flops.values())]
    main = run if {run, "int8", "other"}.intersection(most) else most[0]
    chosen = math or main
    instead = None if math is None else {main: math}
    yield Recount("", "dtypes of formats without a peak", "are unpacked", arithmetic.unpacked == unpacked, True)
    yield Recount("", f"most products are in {dtype}", "is the largest sum of FLOPs", dtype == chosen, True)
    yield Recount("", "the peak instead of another", "is that of the setting", arithmetic.instead == instead, True)


def _named_again(arithmetic: Arithmetic, dtype: str, kind: str) -> str:
    """Return again the dtype whose peak bounds the products of an operator kind."""
    if dtype in arithmetic.unpacked:
        dtype = arithmetic.run
    if arithmetic.instead is not None:
        return arithmetic.instead.get(dtype, dtype)
    if dtype == "float32" and (
        "conv" in kind or {"lstm", "gru", "rnn_tanh", "rnn_relu"}.intersection(kind.split(".")[-2:])
    ):
        return CONVOLUTION  # torch lets these multiply in TF32
    return FUSED if dtype == "float32" and "attention" in kind else dtype


def _whole_recounts(counts: Folded, stage: StageBound, of: Roof, arithmetic: Arithmetic) -> Iterator[Recount]:
    """Yield the time of all headline FLOPs, each at the peak of its dtype, and of compulsory bytes; none is spared."""
    rates, compute, moved = {**of.peaks, of.math: of.flops}, Fraction(0), 0
    for kinds in counts.rows.get(stage.id, {}).values():
        for kind, costs in kinds.items():
            if any(n is None for n in costs.values()):
                return
            moved += (costs.get(FLOOR) or 0) - (costs.get(UNPACKED) or 0)
            others = {dtype: costs.get(f"{dtype}_flops") or 0 for dtype in ARITHMETIC if counts.bounds}
            rest = (costs.get("flops") or 0) - sum(others.values())
            if rest < 0:
                return
            for dtype, flops in (*others.items(), (arithmetic.run, rest)):
                if (rate := rates.get(_named_again(arithmetic, dtype, kind))) is not None:
                    compute += Fraction(flops, rate)
    if FLOOR in counts.metrics:
        found = stage.floor if stage.full is None else stage.full
        again = max(compute, Fraction(max(0, moved), of.bandwidth))
        yield Recount(stage.id, "all FLOPs and compulsory bytes", "seconds", Fraction(found.seconds or 0), again)
        more = again != Fraction(stage.floor.seconds or 0)
        yield Recount(stage.id, "all FLOPs and compulsory bytes", "are another bound", stage.full is not None, more)
        if stage.full is not None:
            yield Recount(stage.id, "all FLOPs", "compute_s", Fraction(stage.full.compute_s or 0), compute)


def stored_work_recounts(model: WithFormulas, run: Workload, counts: Folded) -> Iterator[Recount]:
    """Yield what reading stored weights saves, and the products in the dtype of a format, module by module.

    A module reads the same part of its weights as they are stored as it would read of plain ones. Look-ups in a table,
    biases of experts, and modules in several formats are left out.
    """
    if not run.mesh.one or not isinstance(model, WithStorage):
        return
    config = model.info().symbols
    calls = {(call.stage, call.id): {**config, **call.symbols} for call in model.invocations(run)}
    sizes = {**config, **next(iter(calls.values()))}
    nodes, held = stored_formulas(model, run).nodes, dict[str, tuple[int, int]]()
    for n in nodes:
        if "resident_bytes" in n.exprs and n.module not in held:
            own = {m: evaluate(n.exprs.get(m, "0"), sizes) for m in ("weight_bytes", "resident_bytes", "buffer_bytes")}
            held[n.module] = own["weight_bytes"], own["resident_bytes"] - own["buffer_bytes"]
    model_type = str(attribute(attribute(model, "config", None), "model_type", ""))
    formats = {rule.format.products for rule in model.stored.scheme(model_type).rules}
    if (stated := products_stated(model.stored.described)) is not None:
        yield Recount("checkpoint", "quantised weights", f"products in {sorted(formats)}", formats == stated, True)
    if not run.rows:
        yield from _unpacking_recounts(nodes, calls, model.stored, model_type)
    flops: Counter[str] = Counter()
    for n in nodes:
        if (values := calls.get((n.stage, n.invocation))) is None:
            continue
        whole, stored = held.get(n.module, (0, 0))
        if "flops" in n.exprs and whole not in (0, stored) and len(formats) == 1:
            flops[n.stage] += evaluate(n.exprs["flops"], values)
        if "weight_read_bytes" not in n.exprs or not whole or n.role.endswith("embedding"):
            continue
        read, saved = (evaluate(n.exprs.get(m, "0"), values) for m in ("weight_read_bytes", UNPACKED))
        some = parse(n.exprs["weight_read_bytes"]).replace(lambda e: e.func == sympy.Min, lambda _: sympy.S.Zero)
        if saved != read and some in (0, parse(n.exprs["weight_read_bytes"])):
            yield Recount(n.stage, n.module, UNPACKED, saved, Fraction(read * (whole - stored), whole))
    if len(formats) == 1 and (dtype := max(formats)):
        for stage, parts in counts.rows.items():
            rows = [costs.get(f"{dtype}_flops") for kinds in parts.values() for costs in kinds.values()]
            found = sum(n or 0 for n in rows)
            yield Recount(stage, "products of quantised weights", f"{dtype}_flops", found, flops[stage])


def _unpacking_recounts(
    nodes: Iterable[CostNode], calls: Mapping[tuple[str, str], SymbolValues], stored: Stored, model_type: str
) -> Iterator[Recount]:
    """Yield second counts of unpacking the linear layers of a decoder, from the weights that their FLOPs multiply.

    Each call multiplies a weight by its scale; MLX and gemv_fast of AWQ add an offset, and nested maxima of
    bitsandbytes take a product and a sum for each block of 64. Layers of latents, which steps absorb, are left out.
    """
    each = {"gptq": 1, "awq": 1, "bitsandbytes": 1, "mlx": 2}.get(stored.scheme(model_type).method)
    each = 2 if each and re.search(r'"version": *"gemv_fast"', stored.described, re.IGNORECASE) else each
    in_eight_bits = "load_in_" in stored.described and not re.search(r'"_?load_in_4bit": *true', stored.described)
    if each is None or in_eight_bits:  # whose products take inputs of eight bits, so that nothing is unpacked
        return
    blocks = 2 if re.search(r'"bnb_4bit_use_double_quant": *(true|1)', stored.described) else 0
    flops: Counter[tuple[str, str, str]] = Counter()
    for n in nodes:
        if "flops" in n.exprs and (values := calls.get((n.stage, n.invocation))) is not None:
            flops[n.stage, n.invocation, n.module] += evaluate(n.exprs["flops"], values)
    for n in nodes:
        values = calls.get((n.stage, n.invocation))
        linear = re.fullmatch(r"text\.layer\.(attention\.(q|k|v|out)|mlp\.\w+)", n.role) is not None
        if values is None or UNPACKING not in n.exprs or not linear:
            continue
        many = values.get("N", 1)
        multiplied = 2 * values["B"] * values.get("S", 1) * many
        weights, left = divmod(flops[n.stage, n.invocation, n.module], multiplied)
        if weights and not left:
            again = many * (each * weights + blocks * -(-weights // 64))
            yield Recount(n.stage, n.module, UNPACKING, evaluate(n.exprs[UNPACKING], values), again)


def device_recounts(
    device: Device, of: Roof, unpacking: Iterable[UnpackingTime], counts: Folded, *, known: bool
) -> Iterator[Recount]:
    """Yield second counts of the peaks that bound matrix products, and of the work of unpacking weights.

    Args:
        known: whether that work is the one of the counts: not of another routing, nor of another dtype of products.
    """
    peaks: dict[str, int] = {}
    for p in device.peaks:
        if p.sparsity == "dense":
            peaks[p.dtype] = max(p.flops, peaks.get(p.dtype, 0))
    used = {**of.peaks, of.math: of.flops}
    if device.bandwidth is not None:
        yield Recount("device", "memory", "bandwidth", of.bandwidth, device.bandwidth.value)
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
        rows = [costs for kinds in counts.rows.get(own.stage, {}).values() for costs in kinds.values()]
        work = [costs.get(UNPACKING, 0) for costs in rows]
        again = sum(n or 0 for n in work) if known and None not in work else 0
        yield Recount(own.stage, "unpacking, all operators", "flops", own.flops or 0, again)
        if own.seconds is not None:
            yield Recount(own.stage, "unpacking", "flops", own.flops or 0, Fraction(own.seconds) * max(vector))


def _above(stage: str, where: str, metric: str, least: int | str | None, most: int | str | None) -> Iterator[Recount]:
    """Yield a check, if both numbers are known, that ``least`` does not exceed ``most``."""
    if least is not None and most is not None:
        yield Recount(stage, where, metric, max(Fraction(0), Fraction(least) - Fraction(most)), 0)


def _clocks(work: WorkBound, of: Roof) -> tuple[Fraction, Fraction] | None:
    """Return (compute time, memory time) of a part of the model in seconds; ``None`` if unknown."""
    if work.flops is None or work.bytes is None:
        return None
    rates = {**of.peaks, of.math: of.flops}
    products = {of.math: work.flops} if work.least is None else work.least
    return sum((Fraction(n, rates[x]) for x, n in products.items() if x in rates), Fraction(0)), Fraction(
        work.bytes, of.bandwidth
    )


def unpacked_recounts(run: StageBound, device: Device) -> Iterator[Recount]:
    """Yield checks that products in dtypes of formats have a peak, since others take no time in the bound."""
    for dtype in ("float8", "float4"):
        if device.bounding_peak(dtype) is None:
            yield Recount(
                "", f"products in {dtype}, without a peak", "flops", (run.modules.least or {}).get(dtype, 0), 0
            )


def sent_recounts(counts: Folded, found: int | None) -> Iterator[Recount]:
    """Yield a second count of the bytes that a rank sends, summed operator by operator."""
    rows = (costs for parts in counts.rows.values() for kinds in parts.values() for costs in kinds.values())
    if found is not None:
        yield Recount("", "the counted rank", "comm_bytes", found, sum(costs.get("comm_bytes") or 0 for costs in rows))


def overlap_recounts(
    of: Roof, parts: Sequence[PartBound], sent: Sequence[CollectiveBound], found: Iterable[StageLinks]
) -> Iterator[Recount]:
    """Yield second counts of a rank's time bounds with communication, as sums over model parts and collectives.

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
    arithmetic: Arithmetic, devices: Devices, *, every: bool = True, uniform: bool = False,
) -> Iterator[Recount]:  # fmt: skip
    """Yield checks that each rank has one row of times, slowest first, computed part by part from its own formulas.

    Args:
        found: the bounds.
        model: target whose formulas give the times; ``None``: only the counted rank is known.
        workload: the run, with that rank.
        run: time bounds of the whole run of that rank.
        of, arithmetic, devices: the roofline, and the devices with their links.
        every: whether all ranks are known.
        uniform: whether their experts read the weights of uniform routing, in the mean.
    """
    rows, world = {r: row for row in found.ranks for r in row.ranks}, workload.mesh.world
    yield Recount("", "ranks with times", "number", sum(len(row.ranks) for row in found.ranks), world if every else 1)
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
        for rank in sorted({row.ranks[0], row.ranks[-1]}) if (devices.node_size or world) < world else row.ranks[-1:]:
            of_row = replace(workload, inputs={**workload.inputs, RANK: rank})
            known = None if model is None else _times_of_rank(model, of_row, of, arithmetic, devices, uniform)
            for metric, time_again in (known or {}).items():
                if (time := getattr(row, metric)) is not None:
                    yield Recount("", f"rank {rank}, by its formulas", metric, Fraction(time), time_again)


def _times_of_rank(
    model: WithFormulas, run: Workload, of: Roof, arithmetic: Arithmetic, devices: Devices, uniform: bool
) -> dict[str, Fraction] | None:
    """Return the time of a rank's modules and of its collectives: the sum, and the longer of both; ``None`` if unknown.

    Routed experts have the mean of the rows of all ranks that share them, each cost of a part rounded down.
    """
    ranks, shared = sharded(model), ranks_of_experts(run)
    sums: defaultdict[tuple[str, str], defaultdict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    touched: Counter[tuple[str, str]] = Counter()
    if uniform:
        config = model.info().symbols
        calls = {(call.stage, call.id): {**config, **call.symbols} for call in model.invocations(run)}
        alike: defaultdict[tuple[str, ...], list[CostNode]] = defaultdict(list)
        for n in _reading(stored_formulas(model, run).nodes, calls):
            alike[n.stage, n.role, n.invocation, n.exprs["weight_read_bytes"]].append(n)
        for (stage, role, call, _), (n, *more) in alike.items():
            read = _bytes_read(n, calls[stage, call], _touched_again(n, calls, run))
            touched[stage, role] += read * (1 + len(more))
    for n in evaluate_formulas(model, run).nodes:
        costs = {m: n.cost(m) or 0 for m in (*_SIDES, "comm_bytes") if m in n.costs or m in n.exprs}
        sums[n.stage, n.role][n.kind].update(costs)
    waits = roofed = Fraction(0)
    for (stage, role), kinds in sums.items():
        compute, moved = Fraction(0), 0
        if (stage, role) in touched and (all_read := kinds[""]["weight_read_bytes"]):
            kinds[""].update({"weight_read_bytes": touched[stage, role] - all_read})
            kinds[""].update({UNPACKED: kinds[""][UNPACKED] * touched[stage, role] // all_read - kinds[""][UNPACKED]})
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
                if kind == "all_to_all" and DISPATCH in run.inputs:
                    waits += seconds_to_leave(cost["comm_bytes"], group, run.rank, devices)
                else:
                    waits += cost["comm_payload_bytes"] * least_seconds(kind, group, devices)
        roofed += max(compute, Fraction(max(0, moved), of.bandwidth))
    return {"roof_s": roofed, "exposed_s": roofed + waits, "overlapped_s": max(roofed, waits)}


# --- Routed experts that ranks share ---------------------------------------------------------------------------------

_OF_EXPERTS: Final = frozenset(
    ("calls", "params", "weight_bytes", "weight_read_bytes", "unpacked_bytes", "buffer_bytes", *STORAGE, *EXCHANGED)
)
"""Metrics of routed experts that do not depend on the number of tokens that each expert receives."""


def ranks_of_experts(run: Workload) -> int:
    """Return the number of ranks that share the tokens of routed experts; 1 if the run gives the tokens of each."""
    return 1 if DISPATCH in run.inputs else len(run.mesh.group("ep", run.rank))


def mean_recounts(whole: Folded, mean: Folded, run: Workload) -> Iterator[Recount]:
    """Yield checks that the mean counts of all ranks sum to the tokens of routed experts, with weights unchanged."""
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
    ledger: Ledger, sizes: Mapping[tuple[str, str], Mapping[str, int]], found: Sequence[TouchedExperts],
    before: Folded, after: Folded, routing: str | PathLike[str], run: Workload,
) -> Iterator[Recount]:  # fmt: skip
    """Yield second counts of the expert bytes that layers read; for uniform routing, by counting sets of experts.

    Args:
        before, after: the counts without and with the routing.
        routing: ``uniform``, or the file of a given one: stage -> calls -> layers -> tokens -> experts.
        run: the run of the counted rank.
    """
    data = None if routing == "uniform" else read_json(Path(routing), what="routing")
    for stage in dict.fromkeys(one.stage for one in found):
        mine = [one for one in found if one.stage == stage]
        read = sum(before.rows[stage][part][""]["weight_read_bytes"] or 0 for part in {one.part for one in mine})
        more = sum(one.bytes for one in mine) - read
        for metric in ("weight_read_bytes", UNFUSED, FLOOR):
            if (was := before.total(metric, stage)) is not None and metric in before.metrics:
                yield Recount(stage, "experts of the routing", metric, (after.total(metric, stage) or 0) - was, more)
        for part in dict.fromkeys(one.part for one in mine):
            kinds, now = before.rows[stage][part][""], after.rows[stage][part][""]
            if (spared := kinds.get(UNPACKED)) and (all_read := kinds["weight_read_bytes"]):
                again = Fraction(spared, all_read) * sum(one.bytes for one in mine if one.part == part)
                yield Recount(stage, "experts of the routing", UNPACKED, now[UNPACKED] or 0, floor(again))
    reads, known = _reading(ledger.nodes, sizes), dict[tuple[object, ...], int]()
    for one in found:
        node = [n for n in reads if n.stage == one.stage][one.layer]
        values = sizes[node.stage, node.invocation]
        experts, top_k, held, tokens = _choosing(node, sizes, run)
        for metric, size, own in (
            ("experts", one.experts, held), ("topk", one.top_k, top_k), ("tokens", one.tokens, tokens)
        ):  # fmt: skip
            yield Recount(one.stage, f"experts of layer {one.layer}", metric, size, own)
        many = values.get("N", 1) if data is None else len(data[one.stage])
        yield Recount(one.stage, f"experts of layer {one.layer}", "calls", one.calls, many)
        key = node.stage, node.invocation, node.exprs["weight_read_bytes"], one.touched
        if data is not None:
            again = Fraction(0)
            for chosen in (call[one.layer] for call in data[one.stage]):
                again += Fraction(len({*chain.from_iterable(chosen)}), len(data[one.stage]))
            yield Recount(one.stage, f"experts of layer {one.layer}", "touched", Fraction(one.touched), again)
        elif key not in known:  # layers of equal texts are equal
            rest = one.experts - sympy.sympify(one.touched, rational=True)
            every = Fraction(int(rest.p), int(rest.q))  # not by its text, which Python limits to 4,300 digits
            again = Fraction(experts - top_k, experts) ** tokens * held
            yield Recount(one.stage, f"experts of layer {one.layer}", "touched", every, again)
        if key not in known:
            mean = _touched_again(node, sizes, run) if data is None else Fraction(one.touched)
            known[key] = _bytes_read(node, values, mean)
        yield Recount(one.stage, f"experts of layer {one.layer}", "bytes", one.bytes, known[key])


def _reading(nodes: Iterable[CostNode], sizes: Collection[tuple[str, str]]) -> list[CostNode]:
    """Return the nodes of routed experts that read weights in calls of the run."""
    return [
        n for n in nodes
        if n.role.split(".")[-1] == "experts" and not n.kind and "weight_read_bytes" in n.exprs
        and (n.stage, n.invocation) in sizes
    ]  # fmt: skip


def _choosing(
    node: CostNode, sizes: Mapping[tuple[str, str], Mapping[str, int]], run: Workload
) -> tuple[int, int, int, int]:
    """Return the experts of a layer, those of a token, those of the rank, and the tokens that choose in a call.

    The tokens are those of each batch that ranks of the ``ep`` group have, once.
    """
    values, tower, mesh = sizes[node.stage, node.invocation], node.role.partition(".")[0], run.mesh
    experts, top_k = values[f"{tower}_experts"], values[f"{tower}_topk"]
    tokens = values["B"] * values.get("S", 1)
    if mesh.ep > mesh.tp:
        first = run.rank // mesh.ep * mesh.ep
        batches = {r // mesh.tp: batch_of(run.batch, mesh.dp, r // mesh.tp) for r in range(first, first + mesh.ep)}
        tokens = sum(batches.values()) * values.get("S", 1)
    return experts, top_k, len(range(0, experts, mesh.ep)), tokens


def _touched_again(node: CostNode, sizes: Mapping[tuple[str, str], Mapping[str, int]], run: Workload) -> Fraction:
    """Return the mean number of the rank's experts that uniform routing reads, by counting sets of experts."""
    experts, top_k, held, tokens = _choosing(node, sizes, run)
    left_out = Fraction(comb(experts - 1, top_k), comb(experts, top_k))
    return held * (1 - left_out**tokens)


def _bytes_read(node: CostNode, values: Mapping[str, int], touched: Fraction) -> int:
    """Return the weight bytes of all calls of a layer that read so many experts on average, rounded up."""
    held = sympy.Symbol("touched")
    line = parse(node.exprs["weight_read_bytes"]).replace(lambda e: e.func == sympy.Min, lambda _: held)
    numbers = {s: values[s.name] for s in line.free_symbols - {held}}
    none, one = (int(line.xreplace({**numbers, held: n})) for n in (0, 1))
    return ceil(none + (one - none) * touched)


def load_recounts(
    before: Folded, after: Folded, experts: Sequence[TouchedExperts], loads: Sequence[RoutedRank], run: Workload,
    symbols: Mapping[str, int], routing: str,
) -> Iterator[Recount]:  # fmt: skip
    """Yield second counts of the routed experts of a rank under a given routing, token after token of its file.

    Args:
        before, after: counts of the rank without and with the routing.
        experts, loads: of the rank.
        run: with all tokens of a prompt.
        symbols: numbers of the configuration.
        routing: the file.
    """
    mesh, every, item = run.mesh, symbols["text_experts"], FLOAT_BYTES[run.dtype]
    place = run.rank % (mesh.world // mesh.pp)
    first = place // mesh.ep * mesh.ep
    own = {e for e in range(every) if e // (every // mesh.ep) == place - first}
    for load in loads:
        calls, mine = expert_choices(run, load.stage, routing), [t for t in experts if t.stage == load.stage]
        here, reached, pairs = set(range(first, first + mesh.ep)), Fraction(0), 0
        for layer, one in ((one.layer, one) for one in mine):
            touched = [{e for rank, row in call[layer] if rank in here for e in row} & own for call in calls]
            each = Fraction(sum(map(len, touched)), len(calls))
            yield Recount(
                load.stage, f"experts of layer {layer}, rank {run.rank}", "touched", Fraction(one.touched), each
            )
            of_tokens = sum(rank in here for rank, _ in calls[0][layer])
            for metric, size, again in (
                ("experts", one.experts, len(own)), ("topk", one.top_k, len(calls[0][layer][0][1])),
                ("tokens", one.tokens, of_tokens), ("calls", one.calls, len(calls)),
            ):  # fmt: skip
                yield Recount(load.stage, f"experts of layer {layer}, rank {run.rank}", metric, size, again)
            params = before.rows[load.stage][one.part][""]["params"] or 0
            if not params % (len(own) * 3 * symbols["text_hidden"] * symbols["text_moe"]):  # experts without biases
                read = sum(map(len, touched)) * 3 * symbols["text_hidden"] * symbols["text_moe"] * item
                yield Recount(load.stage, f"experts of layer {layer}, rank {run.rank}", "bytes", one.bytes, read)
            reached += each
            pairs += sum(e in own for call in calls for rank, row in call[layer] if rank in here for e in row)
        yield from _sent_again(
            load, [[call[t.layer] for t in mine] for call in calls], run, symbols["text_hidden"], len(own)
        )
        yield Recount(load.stage, f"rank {run.rank}", "pairs", load.pairs, pairs)
        yield Recount(load.stage, f"rank {run.rank}", "touched", Fraction(load.touched), reached / len(mine))
        parts = {t.part for t in mine}
        reads = sum(before.rows[load.stage][part][""]["weight_read_bytes"] or 0 for part in parts)
        now = sum(after.rows[load.stage][part][""]["weight_read_bytes"] or 0 for part in parts)
        yield Recount(load.stage, f"rank {run.rank}", "weight_read_bytes", load.read_bytes, now)
        yield Recount(load.stage, f"rank {run.rank}", "bytes above the bound", max(0, now - reads), 0)
        kinds = [kinds for part in parts for kinds in [after.rows[load.stage][part]] if "expert_gemm" in kinds]
        if kinds:
            products = sum(of["expert_gemm"]["flops"] or 0 for of in kinds)
            yield Recount(load.stage, f"rank {run.rank}", "expert_flops", load.expert_flops, products)


_HEADER: Final = 16
"""Bytes that DeepEP's low-latency kernels send before the hidden state of each copy of a token: four int32."""


def _sent_again(
    load: RoutedRank, calls: Sequence[Sequence[Sequence[tuple[int, list[int]]]]], run: Workload, hidden: int, held: int
) -> Iterator[Recount]:
    """Yield second counts of the bytes that a rank sends, token after token of its layers.

    Its tokens leave for experts elsewhere, pair by pair or once a rank; results of others' tokens return likewise.

    Args:
        calls: call -> layer of the rank -> (rank that sends the token, its experts).
        hidden: width of the decoder.
        held: experts of a rank.
    """
    mesh, place, each = run.mesh, run.rank % (run.mesh.world // run.mesh.pp), hidden * FLOAT_BYTES[run.dtype]
    first = place // mesh.ep * mesh.ep
    left, returned, by_rank = 0, 0, 0
    for rank, row in chain.from_iterable(chain.from_iterable(calls)):
        if first <= rank < first + mesh.ep:
            others = [e // held + first for e in row]
            left += sum(n != rank for n in others) if rank == place else 0
            returned += others.count(place) if rank != place else 0
            by_rank += len({*others} - {rank}) if rank == place else place in others
    forms = {"all-to-all": (left + returned) * each, "by-rank": by_rank * each}
    forms["low-latency"] = forms["all-to-all"] + left * _HEADER
    exchanges = DISPATCH in run.inputs
    wanted = {*forms} if mesh.ep > mesh.tp and mesh.pp == 1 else {"all-to-all"} if exchanges else set[str]()
    yield Recount(load.stage, f"rank {run.rank}", "methods of dispatch", wanted <= {*load.sent}, True)
    for name, again in forms.items():
        if name in load.sent:
            yield Recount(load.stage, f"rank {run.rank}, {name}", "bytes sent", load.sent[name], again)


def all_load_recounts(loads: Sequence[RoutedRank], run: Workload, routing: str) -> Iterator[Recount]:
    """Yield checks that the experts of all ranks together process each pair of a routing once."""
    for stage in dict.fromkeys(load.stage for load in loads):
        rows = [row for call in expert_choices(run, stage, routing) for layer in call for _, row in layer]
        mine = [load for load in loads if load.stage == stage]
        yield Recount(stage, "all ranks", "pairs", sum(load.pairs for load in mine), sum(map(len, rows)))
        yield Recount(stage, "all ranks", "number", len({load.rank for load in mine}), run.mesh.world)


# --- Borders ---------------------------------------------------------------------------------------------------------

_SIDES: Final = (
    "flops", KEPT_FLOPS, SKIPPABLE, SPARED, SPARED_AT_FLOOR, UNPACKED, FLOOR, "comm_payload_bytes",
    *(f"{dtype}_flops" for dtype in ARITHMETIC), *TRAFFIC,
)  # fmt: skip


def border_recounts(
    model: WithFormulas, workload: Workload, borders: Iterable[BottleneckThreshold], of: Roof, arithmetic: Arithmetic,
    devices: Devices,
) -> Iterator[Recount]:  # fmt: skip
    """Yield second counts of both sides of each bottleneck change, evaluated node by node at its setting value.

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
    """Return the value of each side of the bottleneck changes in a run, by (stage, side); ``None`` if unknown."""
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
    """Return the seconds of products that no implementation skips; ``None`` for an operator with several dtypes."""
    rates = {**of.peaks, of.math: of.flops}
    others = [dtype for dtype in ARITHMETIC if cost[f"{dtype}_flops"]]
    if len(others) > 1 or (others and not cost["flops"] == cost[KEPT_FLOPS] == cost[f"{others[0]}_flops"]):
        return None
    rate = rates.get(_named_again(arithmetic, [*others, arithmetic.run][0], kind))
    return (cost[KEPT_FLOPS] - cost[SKIPPABLE]) / rate if rate else Fraction(0)


# --- Pipelines -------------------------------------------------------------------------------------------------------

_MOST_STEPS: Final = 20_000
"""Maximum number of simulated steps of a pipeline schedule; a longer one is run with fewer microbatches."""


def schedule_recounts(of: Schedule, mesh: Mesh, rank: int, said: int) -> Iterator[Recount]:
    """Yield second counts of the idle share and sends of all pipeline stages, by simulating the schedule.

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
    """Simulate a forward and a backward pass; return the number of steps, and the forward sends of each stage.

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
    """Yield second counts of the least time of collectives, by the bytes that must enter a rank and a node.

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
        if c.kind == "all_to_all" and DISPATCH in workload.inputs:
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
    """Return the least seconds of a collective per byte of payload.

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
    """Return the ranks of a group in each node."""
    size = devices.node
    if size is None and devices.device.node is not None:
        size = devices.device.node.value
    nodes: dict[int, list[int]] = {}
    for r in group:
        nodes.setdefault(r // size if size else 0, []).append(r)
    return nodes.values()


def seconds_to_leave(sent: int, group: Sequence[int], rank: int, devices: Devices) -> Fraction:
    """Return the least seconds in which bytes leave a rank over all links to other ranks of a group."""
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
    """Return the fraction of a collective's payload that must enter, or leave, some ranks of a group."""
    outside, n = [r for r in group if r not in inside], len(group)
    if kind in ("all_reduce", "send"):  # one sum of all that the others have, or the tensor
        return Fraction(1 if outside else 0)
    if kind == "all_to_all":  # a chunk from each one outside to each one inside
        return Fraction(sum(1 for _ in product(outside, inside)), n)
    return Fraction(len(outside), n)
