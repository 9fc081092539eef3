"""Implement ``costproof.roofline``: bound the time of a run on a device, and find where the bottleneck changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from math import lcm, prod
from typing import Final, Literal

from costproof.estimate.arithmetic import (
    Arithmetic,
    FormulaSum,
    MetricTerm,
    arithmetic_of,
    depends_on_context,
)
from costproof.estimate.hardware import Device
from costproof.estimate.links import (
    CollectiveBound,
    Devices,
    LinkBounds,
    LinkRates,
    RankTimes,
    collective_bounds,
    devices_in,
    link_rates,
    mean_terms,
    scaled,
    with_links,
)
from costproof.estimate.roofline import (
    BottleneckThreshold,
    PartBound,
    Roof,
    Roofline,
    StageBound,
    ThresholdPoint,
    bounds,
    choose_source,
    device_arithmetic,
    peaks_of,
    roof,
    unpacking_time,
)
from costproof.estimate.routing import RoutedRank, Routing, TouchedExperts, no_formulas_error
from costproof.ledger.baseline import Baseline, Folded
from costproof.ledger.errors import check_recounts
from costproof.ledger.mesh import DISPATCH, PAIRS, RANK, Schedule
from costproof.ledger.metrics import ARITHMETIC, KEPT_FLOPS, SKIPPABLE, TRAFFIC, UNPACKED, UNPACKING
from costproof.ledger.node import CostNode
from costproof.ledger.plural import plural
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import Workload
from costproof.models.target import WithKeys, sharded
from costproof.opgraph.rules.files import Files
from costproof.parametric.run_family import EQUAL_BATCHES, SettingCurve
from costproof.parametric.targets import count_ranks, evaluate_formulas
from costproof.parametric.time_checks import (
    arithmetic_recounts,
    border_recounts,
    clock_recounts,
    device_recounts,
    link_recounts,
    overlap_recounts,
    rank_recounts,
    rate_recounts,
    schedule_recounts,
    sent_recounts,
    stored_work_recounts,
    unpacked_recounts,
)
from costproof.run.operand_files import OperandInput, check_whole
from costproof.run.operands import (
    GivenRouting,
    LayerRouting,
    Operand,
    baseline_by_formulas,
    check_counted,
    is_without_formulas,
    mean_counts,
    on_devices,
    read_operand,
    read_routed,
)

ATTENTION: Final = "attention"
"""Operator kind of the matrix products of attention in formulas."""
MIXING: Final = frozenset({"mlp", "experts"})
"""Components of a role that mark a module of dense or routed MLPs."""


def roofline(
    target: OperandInput,
    *,
    on: str | os.PathLike[str] | Device,
    config: str | os.PathLike[str] | None = None,
    math: str | None = None,
    source: str | None = None,
    routing: str | os.PathLike[str] = "bound",
    microbatches: int | None = None,
    schedule: str | None = None,
    rules: Files = (),
    trust_remote_code: bool = False,
    progress: Progress = silent,
) -> Roofline:
    """Return lower bounds of the time that a run takes on a device; torch is not needed.

    Args:
        target: a target with settings, ``"llama-3.1-8b@chat,batch=4"``, or any operand of
            :func:`~costproof.run.diff.diff`.
        on: a device: its exact name, a file that describes one, or a :class:`~costproof.estimate.hardware.Device`.
            ``8xh100-sxm`` are eight, on which the run has tp 8 unless it names a mesh.
        config: a configuration file, for a target.
        math: the dtype whose peak bounds most products (default: the dtype that they are multiplied in).
        source: whose counts to use (default: the first of ``analytic``, ``static``, ``dynamic`` that has them).
        routing: how many routed experts a call reads: ``"bound"``, min(E, T k); ``"uniform"``, the mean of uniform
            routing, on ranks that share the experts also of their rows; or a JSON file with the choice of every
            token, as :func:`~costproof.estimate.routing.given_experts` reads it.
        microbatches: how many of the workload's batches pass the stages of a pipeline one after another.
        schedule: their order: ``gpipe``, ``1f1b`` (default), or ``interleaved:V`` with V parts of the model a stage.
        rules: Python files with operator rules, which are executed, if a graph is counted.
        trust_remote_code: whether the code of a snapshot that is a target may run.
        progress: is told how far exports of a target without formulas are.

    Raises:
        BadInput: there is no such target, device or source, the device has no peak that bounds the dtype, or the
            routing does not match the run.
        Incomplete: no source counts FLOPs and bytes.
    """
    devices = devices_in(on)
    device = devices.device
    check_counted(rules, trust_remote_code, target)
    if routing != "bound" and is_without_formulas(target, config, trust_remote_code=trust_remote_code):
        raise no_formulas_error()
    reads = partial(read_operand, config=config, rules=rules, trust_remote_code=trust_remote_code, progress=progress)
    read, given = read_routed(target, routing, reads)
    read = on_devices(read, target, devices.count or 1, reads)
    side = read.baseline
    check_whole(side)
    mesh = side.workload.mesh
    devices.check(mesh)
    name, folded = choose_source(side, source)
    run_dtype, notes, shared = side.workload.dtype, side.notes, _sharing(side.workload)
    loads: tuple[RoutedRank, ...] = ()
    experts: tuple[TouchedExperts, ...] = ()
    kind: Routing = "given" if given else "bound"
    every: GivenRouting | LayerRouting | None = None
    if given:
        every = GivenRouting(read.target, given, devices.node_size)
        loads, notes = every.loads(side.workload), (*notes, _OF_FILE)
    elif routing != "bound":
        kind = "uniform" if routing == "uniform" else "given"
        every = LayerRouting(read.target, routing)
        notes = (*notes, _UNIFORM) if shared > 1 else notes
    elif shared > 1:
        folded, notes = mean_counts(folded, side.workload), (*notes, _MEAN)
    if every is not None:
        counted_of = every.of_rank(side.workload, folded)
        folded, experts = counted_of.folded, counted_of.experts
    arithmetic, dtype, said = device_arithmetic(device, folded, run_dtype, math, side.target.quantised)
    check_recounts(arithmetic_recounts(folded, run_dtype, math, device, (arithmetic, dtype)))
    notes += said + ((_GATHERED,) if mesh.fsdp > 1 else ()) + ((EQUAL_BATCHES,) if mesh.batches > 1 else ())
    if microbatches is not None or schedule is not None:
        notes = (*notes, _bubble(side, schedule or "1f1b", 1 if microbatches is None else microbatches))
    of = roof(device, dtype)
    batch = None if read.target is None else SettingCurve(side, read.target, "batch")
    run, stages, parts = bounds(folded, of, arithmetic, routed=kind != "bound")
    check_recounts(clock_recounts(of, folded, run, stages, parts, arithmetic, routed=kind != "bound"))
    if math is None:
        check_recounts(unpacked_recounts(run, device))
    links = None
    if not mesh.one:
        (rates, why), sent = link_rates(devices, mesh), folded.total("comm_bytes")
        check_recounts((*rate_recounts(rates, on, devices, mesh), *sent_recounts(folded, sent)))
        unsent = "" if rates is not None else f": {'unknown' if sent is None else f'{sent:,}'} B in {mesh.text}"
        notes = (*notes, *([f"{why}{unsent}"] if why else ()))
        if rates is not None and sent is not None:
            bounded = _Ranks(read, of, arithmetic, rates, devices, every)
            links = bounded.links(folded, run, stages, parts)
            if name == "analytic" and (of_ranks := sharded(read.target)) is not None:
                counted = count_ranks(of_ranks, side.workload, evaluate_formulas(of_ranks, side.workload))
                check_recounts(link_recounts(links, counted.collectives, devices, side.workload))
    solved: Iterable[BottleneckThreshold] = ()
    # The rows, and the pairs of a given routing, say all lengths.
    if batch is not None and read.target is not None and not side.workload.rows and PAIRS not in side.workload.inputs:
        length = SettingCurve(side, read.target, "text_tokens")
        found = _borders(batch, length, of, arithmetic, {} if links is None else links.rates(), shared)
        called = {stage.id for stage in stages}  # formulas of an uneven batch have stages that are never called
        solved = [border for border in found if border.stage in called]
        check_recounts(border_recounts(read.target, side.workload, solved, of, arithmetic, devices))
    # Formulas give a bound: if a stage reads other experts, its weight bytes are unknown.
    other = {t.stage for t in experts}
    borders = tuple(b for b in solved if b.stage not in other or b.unit == "FLOP")
    header = (side.conventions, side.target, side.workload, side.environment)
    # A run multiplies in its own dtype.
    known = {"resident_bytes", UNPACKED} <= {*folded.metrics}
    stored = "weights" in side.target.quantised and name != "dynamic" and known
    if stored and read.target is not None and not other:
        check_recounts(stored_work_recounts(read.target, side.workload, folded))
    # Another routing reads other experts, ranks share them unevenly, and another arithmetic needs other work.
    has_work = (
        not other
        and shared == 1
        and arithmetic.instead is None
        and not arithmetic.unpacked
        and UNPACKING in folded.metrics
    )
    works = ((s.id, folded.total(UNPACKING, s.id) if has_work else None) for s in stages)
    unpacking = tuple(unpacking_time(device, *work) for work in works) if stored else ()
    same = (arithmetic, dtype) == arithmetic_of(folded, run_dtype, math)
    plain = same and has_work and math is None and mesh.ep == 1
    check_recounts(device_recounts(device, of, unpacking, folded, known=plain))
    return Roofline(
        *header, device, of.dtype, of.flops, of.bandwidth, name, run, stages, parts, borders, kind, experts, dtype,
        peaks_of(of, run), folded.bounds and not read.runs_all, notes,
        stored, links, unpacking, loads,
    )  # fmt: skip


_GroupRates = Mapping[tuple[str, str, str], Fraction]
"""Seconds per payload byte, by (stage, part of the model, kind of collective)."""
_GATHERED: Final = (
    "gathered parameters are read from the memory of the rank, as fully_shard puts them there; all times, the floor "
    "too, are those of such a run: one that multiplies by parameters as they arrive reads less"
)
_MEAN: Final = (
    "routed experts have the mean of the ranks that share them, tokens of all their batches x k / ep rows, which the "
    "slowest rank has at least"
)
_UNIFORM: Final = (
    "uniform routing in the mean: of the T tokens of all batches of its ep group each rank has T k / ep rows and reads "
    "(E / ep) (1 - (1 - k / E)^T) experts; the mean time of a rank is at least that of these means, and the slowest "
    "rank takes as long or longer"
)
_OF_FILE: Final = (
    "routed experts have the rows, and read the weights, that the given routing sends to each rank; its tokens are "
    "those of the whole batch, rank by rank, of ranks along tp slice by slice"
)


def _sharing(workload: Workload) -> int:
    """Return the number of ranks over which expert rows are averaged; 1 if the workload gives each rank's rows."""
    return 1 if DISPATCH in workload.inputs else workload.mesh.ep


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The ranks of a run, each with its time bounds."""

    read: Operand
    of: Roof
    arithmetic: Arithmetic
    rates: LinkRates
    devices: Devices
    routing: GivenRouting | LayerRouting | None

    def axis_of(self, part: str, kind: str) -> str:
        """Return the mesh axis over which a part of the model runs a kind of collective."""
        workload, target = self.read.baseline.workload, sharded(self.read.target)
        return "tp" if target is None else target.shares(workload).axis_of(part, kind)

    def links(
        self, folded: Folded, run: StageBound, stages: tuple[StageBound, ...], parts: tuple[PartBound, ...]
    ) -> LinkBounds:
        """Return time bounds with communication, for the counted rank and, if there are formulas, every rank."""
        workload = self.read.baseline.workload
        sent = tuple(collective_bounds(folded, self.rates, workload, self.axis_of))
        check_recounts(overlap_recounts(self.of, parts, sent, own := [with_links(s, sent) for s in (*stages, run)]))
        times = [RankTimes((workload.rank,), run.modules.seconds, own[-1].exposed_s, own[-1].overlapped_s)]
        uniform = isinstance(self.routing, LayerRouting) and self.routing.routing == "uniform"
        # A file of the tokens of one rank does not say what others choose.
        target = self.read.target if uniform or not isinstance(self.routing, LayerRouting) else None
        if target is not None and (of_ranks := sharded(target)) is not None:
            counted = count_ranks(of_ranks, workload, evaluate_formulas(of_ranks, workload))
            groups = [row.ranks for row in counted.ranks]
            if isinstance(self.routing, GivenRouting):  # whose ranks have tokens of their own
                groups = [(rank,) for ranks in groups for rank in ranks]
            times = [t for ranks in groups for t in self._times(target, ranks, (folded, run, parts))]
        times.sort(key=lambda t: (-Fraction(t.overlapped_s or 0), -Fraction(t.exposed_s or 0), t.ranks))
        rates, spread = self.rates, any(c.nodes > 1 for c in sent)
        figures = (rates.node, rates.interconnect, rates.network if spread else None)
        found = LinkBounds(workload.mesh.world, *figures, sent, tuple(own), tuple(times))
        known = target if sharded(target) and not isinstance(self.routing, GivenRouting) else None
        of_run = (known, workload, run, self.of, self.arithmetic, self.devices)
        check_recounts(rank_recounts(found, *of_run, every=sharded(target) is not None, uniform=uniform))
        return found

    def _times(
        self, target: WithKeys, ranks: tuple[int, ...], known: tuple[Folded, StageBound, tuple[PartBound, ...]]
    ) -> Iterator[RankTimes]:
        """Yield the times of ranks with equal costs, whose links may differ; those of the counted one are ``known``."""
        workload, (folded, run, parts) = self.read.baseline.workload, known
        every = [replace(workload, inputs={**workload.inputs, RANK: rank}) for rank in ranks]
        if workload.rank not in ranks:
            routed = self.routing is not None
            if self.routing is not None:
                folded = self.routing.of_rank(every[0]).folded
            else:
                folded = mean_counts(baseline_by_formulas(target, every[0]).sources["analytic"], every[0])
            run, stages, parts = bounds(folded, self.of, self.arithmetic, routed=routed)
            check_recounts(clock_recounts(self.of, folded, run, stages, parts, self.arithmetic, routed=routed))
        equal, axis_of = dict[tuple[CollectiveBound, ...], list[int]](), cache(self.axis_of)
        for other in every:
            sent = tuple(collective_bounds(folded, self.rates, other, axis_of))
            equal.setdefault(sent, []).append(other.rank)
        for sent, same in equal.items():
            check_recounts(overlap_recounts(self.of, parts, sent, [found := with_links(run, sent)]))
            yield RankTimes((*same,), run.modules.seconds, found.exposed_s, found.overlapped_s)


def _bubble(side: Baseline, schedule: str, microbatches: int) -> str:
    """Return a sentence on the idle share of each pipeline stage, and on how often the rank sends hidden states."""
    mesh, rank = side.workload.mesh, side.workload.rank
    of = Schedule.of(schedule, mesh.pp, microbatches, side.target.symbols.get("text_layers"))
    sent = of.sends(mesh.coordinates(rank).pp)
    check_recounts(schedule_recounts(of, mesh, rank, sent))
    sends = plural(sent, "time")
    apart = "; layers are counted as contiguous stages have them" if of.parts > 1 else ""
    return (
        f"{plural(microbatches, 'microbatch', 'microbatches')} of this batch by {schedule} in {mesh.pp} stages: if all "
        f"stages take equally long, each waits {of.idle} of a pass, which no time here includes; the rank sends hidden "
        f"states {sends} in the forwards{apart}"
    )


def _borders(
    batch: SettingCurve, length: SettingCurve, of: Roof, arithmetic: Arithmetic, exchange: _GroupRates, shared: int
) -> Iterator[BottleneckThreshold]:
    """Yield the setting values at which the bottleneck of a stage changes, for all stages.

    Args:
        shared: ranks over which rows of routed experts are averaged.
    """
    border = partial(_border, shared=shared)
    ledger = batch.regime(batch.own).ledger
    assert ledger is not None
    peaks = {**of.peaks, of.math: of.flops}
    for stage in ledger.stages:
        kinds = {n.kind for n in ledger.nodes if n.stage == stage and "flops" in n.exprs}
        rates = {kind: peaks[arithmetic.named(arithmetic.run, kind)] for kind in kinds}
        others = {
            (kind, dtype): peaks.get(arithmetic.named(dtype, kind))
            for dtype in ARITHMETIC
            for kind in {n.kind for n in ledger.nodes if n.stage == stage and f"{dtype}_flops" in n.exprs}
        }
        every = prod({*rates.values(), *(rate for rate in others.values() if rate is not None)})
        flops: list[MetricTerm] = []
        for kind, rate in sorted(rates.items()):
            factor = of.bandwidth * every // rate
            flops += [
                MetricTerm(KEPT_FLOPS, _of_kind(stage, kind), factor),
                MetricTerm(SKIPPABLE, _of_kind(stage, kind), -factor),
            ]
            for dtype in (name for where, name in others if where == kind):
                other = others[kind, dtype]
                more = (0 if other is None else of.bandwidth * every // other) - factor
                flops += [
                    MetricTerm(f"{dtype}_flops", _of_kind(stage, kind), more),
                    MetricTerm(SKIPPABLE, _in_dtype(stage, kind, dtype), -more),  # skipped at the rate of this dtype
                ]
        unpacked = _sum(UNPACKED, stage, factor=-every)
        moved = (*unpacked, *(term for metric in TRAFFIC for term in _sum(metric, stage, factor=every)))
        unit = every * of.bandwidth
        yield from border(batch, stage, "is bound by compute", ("compute", "memory"), (tuple(flops), moved), "s", unit)
        if sent := {(part, kind): rate for (where, part, kind), rate in exchange.items() if where == stage}:
            yield from _link_borders((batch, length), stage, (tuple(flops), moved), unit, sent, shared)
        weights = (*unpacked, *_sum("weight_read_bytes", stage, factor=every))
        asked = "computes longer than it reads weights"
        yield from border(batch, stage, asked, ("compute", "weights once"), (tuple(flops), weights), "s", unit)
        here = [node for node in ledger.nodes if node.stage == stage]
        if any(node.kind == ATTENTION for node in here) and any(_mixes(node) for node in here):
            scores = (MetricTerm(KEPT_FLOPS, _where(stage, lambda node: node.kind == ATTENTION)),)
            mlp = (MetricTerm(KEPT_FLOPS, _where(stage, _mixes)),)
            asked = "spends more FLOPs on scores than on MLPs"
            yield from border(length, stage, asked, ("scores of attention", "MLPs"), (scores, mlp), "FLOP")
        if any(depends_on_context(s) or "cp_tokens" in s for s in (n.exprs.get("kv_read_bytes", "0") for n in here)):
            sides = (
                _sum("kv_read_bytes", stage),
                (*_sum(UNPACKED, stage, factor=-1), *_sum("weight_read_bytes", stage)),
            )
            asked = "reads more of its past than of its weights"
            yield from border(length, stage, asked, ("keys and values of the past", "weights"), sides, "B")


def _link_borders(
    along: tuple[SettingCurve, SettingCurve],
    stage: str,
    clocks: tuple[FormulaSum, FormulaSum],
    unit: int,
    rates: Mapping[tuple[str, str], Fraction],
    shared: int,
) -> Iterator[BottleneckThreshold]:
    """Yield the setting values at which collectives start to exceed memory time, or products to exceed collectives.

    Args:
        clocks: products and memory traffic, in units of 1 / ``unit`` seconds.
    """
    compute, moved = clocks
    every = lcm(*(rate.denominator for rate in rates.values()))
    sent = tuple(
        MetricTerm("comm_payload_bytes", partial(_is_sent, stage, *place), unit * int(rate * every))
        for place, rate in rates.items()
    )
    for curve in along:
        for asked, names, sides in (
            ("waits longer for its links than for its memory", ("links", "memory"), (sent, scaled(moved, every))),
            ("computes longer than it waits for its links", ("compute", "links"), (scaled(compute, every), sent)),
        ):
            yield from _border(curve, stage, asked, names, sides, "s", unit * every, shared=shared)


def _is_sent(stage: str, role: str, kind: str, node: CostNode) -> bool:
    return (node.stage, node.role, node.kind) == (stage, role, kind)


def _sum(metric: str, stage: str, *, factor: int = 1) -> FormulaSum:
    return (MetricTerm(metric, _where(stage), factor),)


def _of_kind(stage: str, kind: str) -> Callable[[CostNode], bool]:
    """Return a predicate for cost nodes of this stage and operator kind."""
    return lambda node: node.stage == stage and node.kind == kind


def _in_dtype(stage: str, kind: str, dtype: str) -> Callable[[CostNode], bool]:
    """Return a predicate for cost nodes of this stage and kind with products in a dtype other than the run's."""
    return lambda node: node.stage == stage and node.kind == kind and f"{dtype}_flops" in node.exprs


def _where(stage: str, also: Callable[[CostNode], bool] = lambda node: True) -> Callable[[CostNode], bool]:
    """Return a predicate for cost nodes of this stage that satisfy ``also``."""
    return lambda node: node.stage == stage and also(node)


def _mixes(node: CostNode) -> bool:
    return bool(MIXING & set(node.role.split(".")))


def _border(
    along: SettingCurve,
    stage: str,
    question: str,
    names: tuple[str, str],
    sides: tuple[FormulaSum, FormulaSum],
    unit: Literal["s", "FLOP", "B"],
    over: int = 1,
    *,
    shared: int = 1,
) -> Iterator[BottleneckThreshold]:
    """Yield the setting value at which two sums of formulas cross, unless neither depends on the setting.

    Args:
        along: the formulas along the setting.
        stage, question, names, unit: as the threshold describes them.
        sides: the two sums.
        over: divisor of both sides where they are shown.
        shared: ranks over which rows of routed experts are averaged.
    """
    if shared > 1:
        ledger = along.regime(along.own).ledger
        assert ledger is not None
        sides, over = (mean_terms(sides[0], ledger, shared), mean_terms(sides[1], ledger, shared)), over * shared
    left, right = sides
    if not along.depends(left) and not along.depends(right):
        return
    found = along.first(left, right)
    points = [
        ThresholdPoint(at, *(str(Fraction(along.value(at, terms), over)) for terms in sides))
        for at in found.places(along.own)
    ]
    yield BottleneckThreshold(
        stage, along.setting, question, *names, unit, found.outcome, found.at, tuple(points), found.why
    )
