"""Compute lower bounds, not predictions, of a run's time on a device, from the device's figures.

A piece of work takes at least as long as its products and its memory traffic:

    time >= max(FLOP / peak, bytes / bandwidth)

There are three models of reuse. *Unfused*: every operator by itself, if the source counts its bytes. *Modules*: every
module by itself, one after another, with its traffic at the module boundary as ``docs/conventions.md`` counts it.
*Floor*: the products of a stage that every implementation of the same result has, each at the peak of the dtype that it
is multiplied in, and its compulsory traffic, whatever is fused: each input, weight and result once a call, and the
cache read and written once. Scores that a causal mask or a window hides are in no bound; they are in the FLOPs, by
convention. Of routed experts the floor has those of one token a call, since all tokens may choose alike. If a source
does not count the compulsory traffic, activations are left out, and a table that two modules read counts twice. Vector
work is in no bound: other units compute it concurrently.

All numbers are rational; S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52 (2009).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Final, Literal

from costproof.estimate.arithmetic import (
    CONVOLUTION,
    FLOAT4,
    FUSED,
    Arithmetic,
    ByDtype,
    DtypeWork,
    arithmetic_of,
    dtypes,
)
from costproof.estimate.hardware import LARGEST_FIGURE, Device
from costproof.estimate.links import LinkBounds
from costproof.estimate.routing import RoutedRank, Routing, TouchedExperts
from costproof.ledger.baseline import Baseline, Folded
from costproof.ledger.errors import EXIT_INCOMPLETE, EXIT_OK, BadInput, Incomplete, Problems
from costproof.ledger.metrics import (
    ARITHMETIC,
    FLOOR,
    SPARED,
    SPARED_AT_FLOOR,
    TRAFFIC,
    UNFUSED,
    UNPACKED,
    Conventions,
    Metric,
)
from costproof.ledger.node import exact_sum
from costproof.ledger.run import ALL_SOURCES
from costproof.ledger.schema import FileKind, from_data
from costproof.ledger.workload import TargetInfo, Workload, cache_counted, weights_counted

Rational = str
"""An exact number in the text form of ``fractions.Fraction``: ``3/4``, ``12``."""
BoundSide = Literal["compute", "memory"]
ThresholdOutcome = Literal["from", "never", "refused", "not solved"]
LASTING: Final[tuple[Metric, ...]] = ("weight_read_bytes", "kv_read_bytes", "kv_cache_bytes")
"""Metrics of bytes that are in memory before or after a call, so that every implementation moves them."""
NEEDED: Final[tuple[Metric, ...]] = ("flops", *TRAFFIC)


@dataclass(frozen=True, slots=True)
class WorkBound:
    """Lower bounds of the time of some work; ``None`` means unknown."""

    flops: int | None
    """Headline FLOPs."""
    bytes: int | None
    compute_s: Rational | None
    """Seconds of the matrix products at peak rates."""
    memory_s: Rational | None
    """Seconds of the bytes moved at the device's bandwidth."""
    seconds: Rational | None
    """The larger of compute and memory time; for work that runs one after another, the sum of these maxima."""
    bound: BoundSide | None
    """The larger time, ``compute`` or ``memory``; ``compute`` if both are equal."""
    intensity: Rational | None
    """Operational intensity in FLOP per byte; ``None`` also if no bytes move."""
    least: ByDtype | None = None
    """FLOPs by dtype that every implementation needs, the basis of :attr:`compute_s`.

    ``None``: all of :attr:`flops`, in the dtype of the roofline.
    """
    kept: int | None = None
    """Headline FLOPs without those of masked scores; ``None`` if the source does not count them."""

    @property
    def taken(self) -> int | None:
        """Return the FLOPs from which :attr:`compute_s` is computed."""
        return self.flops if self.least is None else sum(self.least.values())


@dataclass(frozen=True, slots=True)
class PartBound:
    """Time bounds of a model part in a stage; equal layers form one part."""

    stage: str
    part: str
    at_roof: WorkBound


@dataclass(frozen=True, slots=True)
class StageBound:
    """Time bounds of a stage, or of the whole run."""

    id: str
    modules: WorkBound
    """Bound of the stage's modules, which run one after another."""
    compute_bound_s: Rational | None
    """Seconds of :attr:`modules` in compute-bound parts; all others are memory-bound."""
    floor: WorkBound
    """Bound of the products that every implementation needs and of the compulsory traffic."""
    unfused: WorkBound | None = None
    """Bound like :attr:`modules` with the bytes of every operator; ``None`` if the source does not count these."""
    full: WorkBound | None = None
    """Bound like :attr:`floor` with all headline FLOPs and counted experts; ``None`` if it is the same."""


@dataclass(frozen=True, slots=True)
class ThresholdPoint:
    """Values of two compared quantities at one value of a setting."""

    at: int
    left: Rational
    right: Rational


@dataclass(frozen=True, slots=True)
class BottleneckThreshold:
    """Setting value from which another resource limits the time, with all other settings unchanged."""

    stage: str
    setting: str
    question: str
    left: str
    right: str
    unit: Literal["s", "FLOP", "B"]
    outcome: ThresholdOutcome
    """``from``: from :attr:`at` on; ``refused``: the model rejects :attr:`at`; ``never``; ``not solved``."""
    at: int | None
    """First setting value at which the left quantity is larger."""
    points: tuple[ThresholdPoint, ...]
    """Values around the threshold: the last accepted one before, and :attr:`at` unless refused.

    Without either, the workload's own value.
    """
    why: str = ""
    """Reason for the outcomes ``refused`` and ``not solved``."""


@dataclass(frozen=True, slots=True)
class UnpackingTime:
    """Vector FLOPs of unpacking a stage's quantised weights; in no bound, since kernels may fuse or avoid them."""

    stage: str
    flops: int | None
    seconds: Rational | None
    """FLOPs / peak of the device's vector units, not a bound; ``None`` if no source gives that peak."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The time bounds of a run on a device."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    device: Device
    dtype: str
    """Dtype whose peak rate is used."""
    peak_flops: int
    bandwidth: int
    source: str
    """Name of the source that counted the run."""
    run: StageBound
    stages: tuple[StageBound, ...]
    parts: tuple[PartBound, ...]
    borders: tuple[BottleneckThreshold, ...]
    routing: Routing = "bound"
    """Experts that a call reads: ``bound`` for min(E, T k), ``uniform`` for the mean, ``given`` for a routing file."""
    experts: tuple[TouchedExperts, ...] = ()
    """Number of experts that each layer reads, unless :attr:`routing` is ``bound``."""
    math: str = ""
    """Requested dtype, or that of most products; :attr:`dtype` differs if another dtype's peak bounds it."""
    peaks: dict[str, int] = field(default_factory=dict)
    """FLOP per second by other dtype of products; products in a dtype without a peak take no time."""
    kept: bool = True
    """Whether avoidable work is counted separately, so that the floor excludes it.

    The counts then contain the products that other implementations skip, and the class runs no more experts than its
    configuration names; if not, the floor includes such work.
    """
    notes: tuple[str, ...] = ()
    """Notes of the sources on their counting and on work that they omitted."""
    stored: bool = False
    """Whether bytes and arithmetic of weights are those of the quantised checkpoint as stored."""
    links: LinkBounds | None = None
    """Time bounds including communication; ``None`` on one device, or if no bandwidth between devices is known."""
    unpacking: tuple[UnpackingTime, ...] = ()
    """Work of unpacking weights by stage, if the bounds are for quantised weights as stored."""
    routed_ranks: tuple[RoutedRank, ...] = ()
    """Routed experts of all ranks by stage, under a given routing on a mesh with ``ep``."""

    @property
    def name(self) -> str:
        """Return ``TARGET at WORKLOAD on DEVICE``, or on ``8 x DEVICE``."""
        ranks = self.workload.mesh.world
        many = f"{ranks} x " if ranks > 1 else ""
        return f"{self.target.title} at {self.workload.name} on {many}{self.device.name}"

    @property
    def exit_code(self) -> int:
        """Return 3 if a cost is unknown or the checkpoint is quantised, else 0."""
        return EXIT_INCOMPLETE if self.run.modules.seconds is None or self.as_counted.quantised else EXIT_OK

    @property
    def as_counted(self) -> TargetInfo:
        """Return the target description without the stored formats that the bounds already include."""
        found = cache_counted(self.target, self.workload)
        return weights_counted(found) if self.stored else found


ROOFLINE: Final = FileKind(name="costproof/roofline", version=(1, 9), type=Roofline)
_AGAIN: Final = "costproof roofline TARGET --on DEVICE -o roofline.json"
_EXACT: Final = re.compile(r"[0-9]{1,300}(/[0-9]{1,300})?")
_LARGEST: Final = 10**100
"""Upper limit of numbers in a file, above every cost that a capture may have."""


def roofline_in(data: object, where: str) -> Roofline:
    """Return the roofline stored in a file's data, after recomputing and checking its bounds.

    Raises:
        BadInput, Problems: it is not a roofline, is damaged, or contradicts itself.
    """
    found = from_data(data, ROOFLINE, where=where, make_again=_AGAIN)
    problems = list(_contradictions(found))[:20]
    if problems:
        raise Problems(f"the roofline {where} contradicts itself", problems, fix=_AGAIN)
    return found


_RATE: Final = f"1 to {LARGEST_FIGURE:,}, in FLOP or bytes a second"
_COST: Final = "at least 0, and at most 100 digits"


def _contradictions(found: Roofline) -> Iterator[BadInput]:
    for name, figure in (("peak_flops", found.peak_flops), ("bandwidth", found.bandwidth)):
        if not 0 < figure <= LARGEST_FIGURE:
            yield BadInput("a rate of the device is out of range", where=f"$.{name}", expected=_RATE, got=figure)
            return
    for dtype, peak in found.peaks.items():
        if not 0 < peak <= LARGEST_FIGURE:
            yield BadInput(
                "a peak of the device is out of range", where=f"$.peaks.{dtype[:80]}", expected=_RATE, got=peak
            )
            return
    of, stages = (
        Roof(found.peak_flops, found.bandwidth, found.dtype, found.math, found.peaks),
        {s.id for s in found.stages},
    )
    if len(stages) < len(found.stages):
        yield BadInput("a stage occurs twice", where="$.stages")
    for i, part in enumerate(found.parts):
        if part.stage not in stages:
            yield BadInput(
                "no such stage", where=f"$.parts[{i}].stage", expected="one of $.stages", got=part.stage[:80]
            )
        yield from _unlike(part.at_roof, of, f"$.parts[{i}].at_roof")
    for place, stage in (("$.run", found.run), *((f"$.stages[{i}]", s) for i, s in enumerate(found.stages))):
        for name, bound in (
            ("modules", stage.modules),
            ("floor", stage.floor),
            ("unfused", stage.unfused),
            ("full", stage.full),
        ):
            if bound is not None:
                yield from _unlike(bound, of, f"{place}.{name}", summed=True)
        yield from _inexact(stage.compute_bound_s, f"{place}.compute_bound_s")
    if found.unpacking and (not found.stored or len({own.stage for own in found.unpacking}) < len(found.unpacking)):
        yield BadInput("unpacking is that of stored weights, once a stage", where="$.unpacking")
    for i, own in enumerate(found.unpacking):
        if own != unpacking_time(found.device, own.stage, own.flops) or own.stage not in stages or (own.flops or 0) < 0:
            yield BadInput("the time of unpacking does not follow from its FLOPs and the device's vector peak",
                           where=f"$.unpacking[{i}]", got=str(own)[:80])  # fmt: skip
    for i, border in enumerate(found.borders):
        for j, point in enumerate(border.points):
            yield from _inexact(point.left, f"$.borders[{i}].points[{j}].left")
            yield from _inexact(point.right, f"$.borders[{i}].points[{j}].right")


def _unlike(bound: WorkBound, of: Roof, where: str, *, summed: bool = False) -> Iterator[BadInput]:
    """Yield an error for each number of a stored bound that differs from its recomputation.

    The seconds of a sum may be larger than those of its work.
    """
    if any(n is not None and not 0 <= n < _LARGEST for n in (bound.flops, bound.bytes)):
        yield BadInput("a cost is out of range", where=where, expected=_COST)
        return
    if bound.least is not None and not all(0 <= n < _LARGEST for n in bound.least.values()):
        yield BadInput("a cost is out of range", where=f"{where}.least", expected=_COST)
        return
    if bound.kept is not None and not 0 <= bound.kept <= (bound.flops or 0):
        yield BadInput("more FLOPs are kept than there are", where=f"{where}.kept", expected=f"0 to {bound.flops}",
                       got=str(bound.kept)[:80])  # fmt: skip
        return
    expected = of.bound(bound.flops, bound.bytes, bound.least, bound.kept)
    if summed:
        yield from _inexact(bound.seconds, f"{where}.seconds")
        expected = replace(expected, seconds=bound.seconds)
    if bound != expected:
        name = next(f.name for f in fields(WorkBound) if getattr(bound, f.name) != getattr(expected, f.name))
        right, got = (str(getattr(b, name))[:80] for b in (expected, bound))
        yield BadInput(
            "a bound does not follow from its FLOPs and bytes", where=f"{where}.{name}", expected=right, got=got
        )


def _inexact(value: Rational | None, where: str) -> Iterator[BadInput]:
    if value is not None and (not _EXACT.fullmatch(value) or not int(value.partition("/")[2] or 1)):
        yield BadInput("a time is not an exact fraction", where=where, expected="such as 3/4 or 12", got=value[:80])


@dataclass(frozen=True, slots=True)
class Roof:
    """The device figures from which time bounds follow: peak rates and bandwidth."""

    flops: int
    """Peak rate of the main dtype in FLOP per second."""
    bandwidth: int
    """Memory bandwidth in bytes per second."""
    dtype: str = ""
    """Dtype whose peak :attr:`flops` is."""
    math: str = ""
    """Dtype of the products that :attr:`flops` bounds."""
    peaks: Mapping[str, int] = field(default_factory=dict)
    """Peak rate by other dtype in FLOP per second; products in a dtype without a peak take no time."""

    def bound(
        self, flops: int | None, moved: int | None, least: ByDtype | None = None, kept: int | None = None
    ) -> WorkBound:
        """Return the time bound of work with these FLOPs and bytes.

        Args:
            flops: headline FLOPs.
            moved: bytes.
            least: FLOPs that every implementation has, by dtype; ``None``: all, in the dtype of the roofline.
            kept: FLOPs without those of scores that a mask hides.
        """
        if least == ({} if flops == 0 else {self.math: flops}):
            least = None
        compute = None if flops is None else self._compute(flops, least)
        memory = None if moved is None else Fraction(moved, self.bandwidth)
        whole = None if compute is None or memory is None else max(compute, memory)
        return _bound(flops, moved, compute, memory, whole, least, kept)

    def _compute(self, flops: int, least: ByDtype | None) -> Fraction:
        if least is None:
            return Fraction(flops, self.flops)
        peaks = {**self.peaks, self.math: self.flops}
        return sum((Fraction(n, peaks[dtype]) for dtype, n in least.items() if dtype in peaks), Fraction(0))

    def work(self, work: DtypeWork, moved: int | None) -> WorkBound:
        """Return the time bound of work with FLOPs by dtype, and bytes."""
        return self.bound(work.flops, moved, work.least, work.kept)

    def one_after_another(self, parts: Iterable[WorkBound]) -> WorkBound:
        """Return the time bound of work that runs strictly one after another, which is the sum of the bounds."""
        every = list(parts)
        least = Counter[str]()
        for p in every:
            least.update({self.math: p.flops or 0} if p.least is None else p.least)
        flops, moved = exact_sum(p.flops for p in every), exact_sum(p.bytes for p in every)
        whole = self.bound(flops, moved, {dtype: n for dtype, n in least.items() if n})
        return _bound(
            flops,
            moved,
            _read(whole.compute_s),
            _read(whole.memory_s),
            add_seconds(p.seconds for p in every),
            whole.least,
            exact_sum(p.kept for p in every),
        )


def roof(device: Device, dtype: str) -> Roof:
    """Return the roofline of a device, with the dense peak of each dtype or, if unknown, of a narrower one.

    torch runs float32 convolutions and recurrent layers in TF32 by default (``torch.backends.cudnn.allow_tf32``), and
    its fused attention computes a float32 product as three TF32 products, so that the faster of the two ways bounds
    them.

    Args:
        device: the device.
        dtype: the dtype of most products.

    Raises:
        BadInput: the device has no dense peak that bounds the dtype, or no bandwidth.
    """
    peak = device.bounding_peak(dtype)
    if peak is None:
        known = ", ".join(dict.fromkeys(p.dtype for p in device.peaks if p.sparsity == "dense"))
        raise BadInput(
            "the dense peak of this dtype is not known",
            where=f"{device.name}, {dtype}",
            expected=f"one of {known}" if known else "a dense peak; no source gives one, or those that do disagree",
            fix="--math DTYPE takes the peak of another; a file of your own may have it: costproof schema device",
        )
    if device.bandwidth is None:
        raise BadInput("the bandwidth of this device is not known", where=device.name,
                       fix="--on FILE.json with one: costproof schema device")  # fmt: skip
    found = {other: device.bounding_peak(other) for other in ARITHMETIC}
    peaks = {other: its.flops for other, its in found.items() if its is not None}
    own, tf32 = (0 if p is None else p.flops for p in (found["float32"], device.peak(CONVOLUTION)))
    if own or tf32:
        peaks[CONVOLUTION], peaks[FUSED] = max(own, tf32), max(own, -(-tf32 // 3))
    peaks.pop(dtype, None)
    return Roof(peak.flops, device.bandwidth.value, peak.dtype, dtype, peaks)


def device_arithmetic(
    device: Device, folded: Folded, run: str, math: str | None, quantised: Mapping[str, str]
) -> tuple[Arithmetic, str, tuple[str, ...]]:
    """Return the arithmetic of a run on a device, the dtype of most products, and notes on what kernels may do.

    Args:
        device: the device.
        folded: the counts.
        run: the dtype of the run.
        math: the dtype of most products, if the user names it.
        quantised: the formats of the target's weights and cache.
    """
    unknown = {dtype for dtype in ARITHMETIC if device.bounding_peak(dtype) is None}
    arithmetic, main = arithmetic_of(folded, run, math, unknown)
    notes = []
    if arithmetic.unpacked:
        lacking = " or ".join(sorted(arithmetic.unpacked))
        notes.append(f"{device.name} has no peak of {lacking}: weights are unpacked and multiplied in {run}")
    if math is None and "mxfp4" in quantised.get("weights", "") and device.peak(FLOAT4) is not None:
        notes.append(
            f"weights in mxfp4 are unpacked and multiplied in {run}; a kernel that quantises inputs to eight bits is "
            "bounded by --math float8"
        )
    return arithmetic, main, tuple(notes)


def unpacking_time(device: Device, stage: str, flops: int | None) -> UnpackingTime:
    """Return the vector FLOPs of unpacking a stage's weights, and their time at the device's vector peak."""
    peak = device.vector_peak
    return UnpackingTime(stage, flops, None if flops is None or peak is None else _write(Fraction(flops, peak.flops)))


def choose_source(side: Baseline, source: str | None = None, needed: Iterable[Metric] = NEEDED) -> tuple[str, Folded]:
    """Return the named source, or the first source with all needed metrics, and its counts.

    Raises:
        BadInput: there is no such source.
        Incomplete: no source has them.
    """
    wanted = tuple(needed)
    if source is not None and source not in side.sources:
        raise BadInput("no such source", where=source, expected="one of " + ", ".join(side.sources))
    names = [source] if source is not None else [s for s in ALL_SOURCES if s in side.sources]
    for name in names:
        if all(metric in side.sources[name].metrics for metric in wanted):
            return name, side.sources[name]
    raise Incomplete(
        "no source has the required metrics",
        where=side.name,
        expected=", ".join(wanted),
        got="; ".join(f"{n}: {', '.join(side.sources[n].metrics)}" for n in names) or "no source",
    )


def bounds(
    folded: Folded, of: Roof, arithmetic: Arithmetic, *, routed: bool = False
) -> tuple[StageBound, tuple[StageBound, ...], tuple[PartBound, ...]]:
    """Return the time bounds of the whole run, of its stages, and of their model parts.

    Args:
        folded: the counts.
        of: the roofline of the device.
        arithmetic: the dtypes of the operators.
        routed: whether the experts that the counts read are those of a routing, which the floor then has too.
    """

    def within(stage: str, moving: tuple[Metric, ...], spared: Metric = "") -> Iterator[tuple[str, WorkBound]]:
        for part, kinds in sorted(folded.rows.get(stage, {}).items()):
            moved = exact_sum(costs[m] for m in moving for costs in kinds.values() if m in costs)
            less = (spared, UNPACKED)
            moved = _without(moved, (costs.get(metric, 0) for metric in less for costs in kinds.values()))
            work = arithmetic.of_kinds(kinds)
            if (work.flops, moved) != (0, 0):
                yield part, of.work(work, moved)

    parts = [PartBound(stage, part, b) for stage in folded.stages for part, b in within(stage, TRAFFIC, SPARED)]
    unfused: dict[str, WorkBound] = {}
    if UNFUSED in folded.metrics:
        unfused = {s: of.one_after_another(b for _, b in within(s, (UNFUSED,))) for s in folded.stages}
    stages, full = [], []
    for stage in folded.stages:
        own = [p.at_roof for p in parts if p.stage == stage]
        work = arithmetic.of_stage(folded, stage)
        moved = folded.total(FLOOR, stage) or exact_sum(folded.total(metric, stage) for metric in LASTING)
        rows = [costs for kinds in folded.rows.get(stage, {}).values() for costs in kinds.values()]
        every = of.bound(work.flops, _without(moved, (costs.get(UNPACKED, 0) for costs in rows)), work.full, work.kept)
        spared = [costs.get(metric, 0) for metric in (SPARED_AT_FLOOR, UNPACKED) for costs in rows]
        floor = of.work(work, _without(moved, spared if routed else [*spared, _spared_experts(rows)]))
        full.append(every)
        other = None if every.seconds == floor.seconds else every
        modules = of.one_after_another(own)
        stages.append(StageBound(stage, modules, _waiting(own), floor, unfused.get(stage), other))
    run = StageBound(
        "",
        of.one_after_another(s.modules for s in stages),
        _write(add_seconds(s.compute_bound_s for s in stages)),
        of.one_after_another(s.floor for s in stages),
        of.one_after_another(unfused.values()) if unfused else None,
        of.one_after_another(full) if any(s.full for s in stages) else None,
    )
    return run, tuple(stages), tuple(parts)


def _spared_experts(rows: Sequence[Mapping[Metric, int | None]]) -> int | None:
    """Return the expert weight bytes read in a stage beyond the experts of one token per call."""
    calls = min((costs["calls"] or 0 for costs in rows if costs.get("calls")), default=0)
    spared = []
    for costs in rows:
        whole, active, held, read = (
            costs.get(m, 0) for m in ("params", "params_active", "weight_bytes", "weight_read_bytes")
        )
        if whole is None or active is None or held is None or read is None:
            spared.append(None if whole != active or read is None else 0)
        elif active < whole:
            # Of quantised experts, the bytes as they are stored.
            read -= costs.get(UNPACKED) or 0
            held = costs.get("stored_bytes") or held if UNPACKED in costs else held
            spared.append(max(0, min(read, held * calls) - held * active // whole * calls))
    return exact_sum(spared)


def _without(moved: int | None, spared: Iterable[int | None]) -> int | None:
    """Subtract the bytes that need not move from the bytes moved; 0 if the former are unknown."""
    gone = exact_sum(spared)
    return None if moved is None else 0 if gone is None else max(0, moved - gone)


def peaks_of(of: Roof, run: StageBound) -> dict[str, int]:
    """Return the peak rates besides the main one that some work of the run uses, by dtype."""
    used = dtypes((run.modules.least, run.floor.least, None if run.full is None else run.full.least))
    return {dtype: of.peaks[dtype] for dtype in sorted(used) if dtype in of.peaks}


def _waiting(parts: Iterable[WorkBound]) -> Rational | None:
    """Return the seconds spent in compute-bound parts."""
    return _write(add_seconds("0" if p.bound == "memory" else p.seconds for p in parts))


def _bound(
    flops: int | None,
    moved: int | None,
    compute: Fraction | None,
    memory: Fraction | None,
    seconds: Fraction | None,
    least: ByDtype | None,
    kept: int | None,
) -> WorkBound:
    longer: BoundSide | None = (
        None if compute is None or memory is None else "compute" if compute >= memory else "memory"
    )
    ratio = None if flops is None or not moved else Fraction(flops, moved)
    times = (_write(compute), _write(memory), _write(seconds))
    return WorkBound(flops, moved, *times, longer, _write(ratio), least, kept)


def add_seconds(values: Iterable[Rational | None]) -> Fraction | None:
    """Return the sum of times in seconds, or ``None`` if any is unknown."""
    whole = Fraction(0)
    for value in values:
        if value is None:
            return None
        whole += Fraction(value)
    return whole


def _read(value: Rational | None) -> Fraction | None:
    return None if value is None else Fraction(value)


def _write(value: Fraction | None) -> Rational | None:
    return None if value is None else str(value)
