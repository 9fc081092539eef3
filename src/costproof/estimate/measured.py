"""Compare measured times with their bounds, and split each stage's time into components that sum to it.

With correct counts and device figures no time is below its lower bound, for a stage or a part of the model. If one is,
that is a finding, and the possible causes are named, first the convention of the bound: an implementation may skip
products that no count here knows of. For routed experts the bound that is compared with a time has the weights of as
many experts as one token passes, since a call may touch no more.

If a forward never ran, nothing is measured; its parts then add up to the replay, which predicts it.

A time in nanoseconds is split as

    measured = floor + traffic + shapes + other + movement + experts      the work: device-bound on a GPU
             + python + dispatch + launch + synchronisation               host-bound
             + residual + jitter

*Floor*: the products at their peak, or the compulsory traffic of the stage at the bandwidth, whichever takes longer.
*Traffic*: what the roofline bounds of the modules, one after another, take beyond it. The next four are the time of the
operators beyond these bounds: *shapes* is the time of products (whose shapes do not reach the peak), *movement* that of
copies, casts, views and look-ups, *experts* that of all operators in modules of routed experts, and *other* the
remainder. The bound of a module is subtracted from the first of products, experts, other and movement that it has.

On a GPU the time of an operator is that of its kernels in the run, and the device is idle while it waits for the host
(:mod:`costproof.estimate.clocks`): that time is *python* of modules, *dispatch* (dispatcher and allocator), *launch*,
or *synchronisation*, by what the host did then.

On a processor one clock suffices, and nothing is launched. The time of an operator is that in isolation
(:mod:`costproof.tracers.replay`). *Dispatch*: every call takes at least as long as the fastest operator of the stage,
which is the dispatcher. *Python*: host time between the operators.

*Residual*: the fastest run minus all of these. *Jitter*: the median minus the fastest run. If the calls of a run are
not known on both clocks, the time of the operators in isolation is all that is predicted: python, launch and
synchronisation are unknown then, and in the residual.

All but the floor, jitter and the host-bound parts may be negative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from costproof.estimate.arithmetic import Arithmetic
from costproof.estimate.clocks import HOST_TIMES, Forward, HostTime, StageClocks, VariantTime, stage_clocks
from costproof.estimate.hardware import Device
from costproof.estimate.roofline import LASTING, BottleneckThreshold, Rational, Roof, WorkBound
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK
from costproof.ledger.metrics import FLOOR, TRAFFIC, Conventions
from costproof.ledger.node import CostNode, exact_sum, total
from costproof.ledger.profile import Timing
from costproof.ledger.run import RunOptions
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import TargetInfo, Workload

WorkKind = Literal["products", "experts", "other", "movement"]
WORK_KINDS: Final[tuple[WorkKind, ...]] = ("products", "experts", "other", "movement")
"""Kinds of work, in the order in which the bound of a module is subtracted from their times."""
_PRODUCTS: Final = frozenset({"matmul", "conv", "attention", "experts"})
_MOVEMENT: Final = frozenset({"movement", "lookup"})


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Components of a time in nanoseconds, which sum to the measured median, or to the prediction if nothing ran."""

    floor: Rational
    traffic: Rational
    shapes: Rational
    other: Rational
    movement: Rational
    experts: Rational
    python: Rational | None
    """Nanoseconds of Python code between operators; ``None`` if unknown."""
    dispatch: Rational | None
    """Nanoseconds in the dispatcher and allocator; ``None`` on a GPU without host and device times."""
    launch: Rational | None
    """Nanoseconds in which the host enqueues work; ``None`` without host and device times, 0 on a processor."""
    synchronisation: Rational | None
    """Nanoseconds of device idle time after a synchronisation; ``None`` and 0 as for :attr:`launch`."""
    residual: Rational | None
    """Nanoseconds that no other component explains; ``None`` if nothing ran."""
    jitter: Rational | None
    """Nanoseconds from the fastest run to the median; ``None`` if nothing ran."""


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """A distinct operator call in a module, timed in isolation."""

    module: str
    kind: WorkKind
    calls: int
    alone: int | None
    """Nanoseconds of one call in isolation; ``None`` if the call could not be timed."""

    @property
    def spent(self) -> int | None:
        """Return the total nanoseconds of all calls."""
        return None if self.alone is None else self.calls * self.alone


def work_kind(subject: str, in_experts: bool) -> WorkKind:
    """Return the kind of work of an operator, under which its time is reported.

    Args:
        subject: the subject of its rule, see :func:`costproof.opgraph.rules.registry.subject_of`.
        in_experts: whether it runs in a module of routed experts.
    """
    if in_experts:
        return "experts"
    return "products" if subject in _PRODUCTS else "movement" if subject in _MOVEMENT else "other"


@dataclass(frozen=True, slots=True)
class EagerCalls:
    """The operator calls of an eager run in order, measured or predicted, with host and device times."""

    forwards: Mapping[str, Forward]
    """Operator calls of each forward, by run; a run without measured or predicted calls is absent."""
    kind_of: Callable[[str, str], WorkKind]
    """Function that returns the kind of an operator in a module, see :func:`work_kind`."""
    latency: int = 0
    """Launch latency in nanoseconds; 0 on a processor."""
    on_host: bool = True
    """Whether operators do their work inside the call, as on a processor."""


def split_time(
    floor: Fraction,
    roofs: Mapping[str, Fraction],
    works: Iterable[OperatorWork],
    time: Timing | None,
    clocks: StageClocks | None = None,
    *,
    on_host: bool = True,
) -> TimeSplit | None:
    """Split a time into components; return ``None`` if the time of any operator call is unknown.

    Args:
        floor: nanoseconds of the lower bound of the stage.
        roofs: nanoseconds of the roofline bound of each module.
        works: its operators, with the times of their kernels, or in isolation.
        time: ``None`` if nothing ran.
        clocks: host and device clock of the stage; ``None`` if unknown.
        on_host: whether operators run inside their calls, as on a processor.
    """
    least: int | None = None
    done = list(works)
    for work in done:
        if work.alone is None:
            return None
        least = work.alone if least is None else min(least, work.alone)
    least = (least or 0) if on_host else 0
    beyond: Counter[WorkKind] = Counter()
    there: dict[str, set[WorkKind]] = {}
    for work in done:
        beyond[work.kind] += work.calls * ((work.alone or 0) - least)
        there.setdefault(work.module, set()).add(work.kind)
    parts: dict[WorkKind, Fraction] = {kind: Fraction(beyond[kind]) for kind in WORK_KINDS}
    for module, roof in roofs.items():
        parts[next((kind for kind in WORK_KINDS if kind in there.get(module, ())), "other")] -= roof
    host: dict[HostTime, int | None] = {kind: None if clocks is None else getattr(clocks, kind) for kind in HOST_TIMES}
    if on_host:  # the host time inside the calls is the work
        host["dispatch"] = least * sum(work.calls for work in done)
    known = sum(parts.values()) + sum(roofs.values()) + sum(spent or 0 for spent in host.values())
    fastest = None if time is None else min(time.runs)

    def exact(value: Fraction | int | None) -> Rational | None:
        return None if value is None else str(value)

    return TimeSplit(
        str(floor), str(sum(roofs.values()) - floor),
        str(parts["products"]), str(parts["other"]), str(parts["movement"]), str(parts["experts"]),
        exact(host["python"]), exact(host["dispatch"]), exact(host["launch"]), exact(host["synchronisation"]),
        exact(None if fastest is None else fastest - known),
        exact(None if time is None or fastest is None else time.median - fastest),
    )  # fmt: skip


_NANO: Final = 10**9
CONVENTION: Final = "the convention of the floor"
ALONE: Final = "operators alone"
NO_EXPERTS: Final[Mapping[str, int]] = {}
TimePlace = tuple[str, str, str]
"""(run, stage, invocation), or (run, stage, module)."""
PartPatterns = Callable[[Iterable[str]], Iterable[tuple[str, Sequence[str]]]]
NOT_RUN: Final[Mapping[TimePlace, Sequence[int]]] = {}


@dataclass(frozen=True, slots=True)
class MeasuredStage:
    """Time of one stage in one forward, with bounds and predictions."""

    run: str
    """Name of the forward: ``page``, ``prompt`` or ``step@P``."""
    stage: str
    invocation: str
    floor: WorkBound
    """Bound with minimum products, the weights read once, and the cache read and written once."""
    roof: WorkBound
    """Sum of the roofline bounds of the modules, which run one after another."""
    replay: int | None
    """Nanoseconds of all operators, each timed in isolation; ``None`` if any could not be timed."""
    predicted: int | None
    """Nanoseconds that both clocks predict: on a GPU by the recurrence, on a processor the operators in isolation and
    the Python between them. ``None`` if the clocks are unknown.
    """
    measured: Timing | None
    """Measured time of the stage; ``None`` if nothing ran."""
    split: TimeSplit | None
    """Components of the time; ``None`` if FLOPs, bytes or times of operators are unknown."""
    of_peak: Rational | None
    """FLOPs / time / peak rate: model FLOPs utilisation (MFU)."""
    of_bandwidth: Rational | None
    """Bytes at module boundaries / time / bandwidth; above 1 if hardware caches serve them."""
    wrong: str = ""
    """Reason why the time is impossible, with the suspect (device file, counts or clock); empty if it is possible."""
    clocks: StageClocks | None = None
    """Host and device time in the eager run; ``None`` if the calls were neither measured nor predicted."""
    graph: VariantTime | None = None
    """Time of the stage as a CUDA graph; ``None`` if not requested."""
    compiled: VariantTime | None = None
    """Time of the stage under ``torch.compile``; ``None`` if not requested."""

    @property
    def error(self) -> Fraction | None:
        """Return the absolute relative error of the prediction; ``None`` without a prediction or a measured median.

        The prediction is that of the operators in isolation if the clocks are unknown.
        """
        predicted = self.replay if self.predicted is None else self.predicted
        if predicted is None or self.measured is None:
            return None
        return abs(Fraction(predicted - self.measured.median, max(1, self.measured.median)))

    @property
    def device_alone(self) -> int | None:
        """Return the device time in ns: of all kernels, or, if none was recorded, of the operators timed alone."""
        return self.replay if self.clocks is None or not self.clocks.launches else self.clocks.device


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    """Time of a model part in one forward; modules whose paths differ only in numbers form one part."""

    run: str
    stage: str
    part: str
    """Pattern of module paths."""
    roof: WorkBound
    """Sum of the roofline bounds of the part's modules, which run one after another."""
    replay: int | None
    """Nanoseconds of all operators, each timed in isolation; ``None`` if any could not be timed."""
    of_peak: Rational | None
    """FLOPs / :attr:`replay` / peak rate."""
    wrong: str = ""
    """Reason why the time is impossible, with the suspect; empty if it is possible."""
    measured: Timing | None = None
    """Time of the modules, from runs with a hook on every module; ``None`` if nothing ran."""


@dataclass(frozen=True, slots=True)
class MeasuredOperator:
    """Time of a distinct operator call, timed in isolation."""

    run: str
    stage: str
    operator: str
    shapes: tuple[tuple[int, ...], ...]
    calls: int
    alone: Timing | None
    """Nanoseconds of one call; ``None`` if the call could not be timed."""
    why: str = ""
    """Reason why the call could not be timed."""

    @property
    def spent(self) -> int | None:
        """Return the total nanoseconds of all calls."""
        return None if self.alone is None else self.calls * self.alone.median


@dataclass(frozen=True, slots=True)
class ClockBorder:
    """Setting value from which a stage is device-bound instead of host-bound.

    It is assumed that the host clock stays as it is, since the same operators are called (a loop over routed experts
    may call more), and that the device clock is proportional to max(FLOP / peak, bytes at the module boundary /
    bandwidth) of the stage, by its formulas.
    """

    run: str
    """Name of the forward whose host and device times are compared."""
    invocation: str
    border: BottleneckThreshold


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measured times of a run with their bounds, or times of its operators if the run was only predicted."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    options: RunOptions
    device: Device
    dtype: str
    """Dtype whose peak rate is used."""
    peak_flops: int
    bandwidth: int
    clock: str
    threads: int
    rows: tuple[MeasuredStage, ...]
    operators: tuple[MeasuredOperator, ...]
    """Distinct operator calls, longest total time first."""
    parts: tuple[MeasuredPart, ...] = ()
    """Model parts, longest time first."""
    borders: tuple[ClockBorder, ...] = ()
    """Setting values from which stages are device-bound; empty on a processor or without formulas."""

    @property
    def name(self) -> str:
        """Return ``TARGET at WORKLOAD on DEVICE``."""
        return f"{self.target.title} at {self.workload.name} on {self.device.name}"

    @property
    def predicted(self) -> bool:
        """Return whether only isolated operators ran, so that the times of stages are predictions."""
        return all(row.measured is None for row in self.rows)

    @property
    def median_error(self) -> Fraction:
        """Return the median of the relative errors of the predictions."""
        return median_error(self.rows)

    @property
    def wrong(self) -> tuple[str, ...]:
        """Return a text for each stage or part whose time is below its bound: ``page sam: ran at ...``."""
        places = [(f"{row.run} {row.stage}", row.wrong) for row in self.rows]
        places += [(f"{part.run} {part.stage} {part.part}", part.wrong) for part in self.parts]
        return tuple(f"{place} {wrong}" for place, wrong in places if wrong)

    @property
    def exit_code(self) -> int:
        """Return 1 if a time is impossible, 3 if an operator has no known cost or could not be timed, else 0."""
        if self.wrong:
            return EXIT_FINDINGS
        return EXIT_INCOMPLETE if any(row.split is None for row in self.rows) else EXIT_OK


def median_error(found: Iterable[MeasuredStage]) -> Fraction:
    """Return the median relative error of predictions (the larger of two middle values); 0 without predictions."""
    errors = sorted(row.error for row in found if row.error is not None)
    return errors[len(errors) // 2] if errors else Fraction(0)


@dataclass(frozen=True, slots=True)
class StageVariants:
    """Times of stages as CUDA graphs or compiled; stages that were not run in a form have no entry."""

    graph: Mapping[TimePlace, VariantTime]
    compiled: Mapping[TimePlace, VariantTime]


MEASUREMENT: Final = FileKind(name="costproof/measured", version=(4, 2), type=Measurement)


def stage_times(
    forwards: Mapping[str, Iterable[CostNode]],
    times: Mapping[TimePlace, Timing | None],
    works: Mapping[TimePlace, Sequence[OperatorWork]],
    of: Roof,
    arithmetic: Arithmetic,
    routed: Mapping[str, int] = NO_EXPERTS,
    eager: EagerCalls | None = None,
    variants: StageVariants | None = None,
) -> tuple[MeasuredStage, ...]:
    """Return the times of every stage that was timed or whose operators were timed in isolation.

    Args:
        forwards: run -> the costs of that forward.
        times: ``None`` for a stage that did not run.
        works: its operators, each timed in isolation.
        of: the roofline of the device.
        arithmetic: the dtypes of the operators.
        routed: module of routed experts -> bytes of the weights that one of its calls reads at least.
        eager: the calls of the run on both clocks; ``None`` if they were not measured.
        variants: times as CUDA graphs and compiled; ``None`` if they were not measured.
    """
    nodes: dict[TimePlace, list[CostNode]] = {}
    for run, costs in forwards.items():
        for node in costs:
            nodes.setdefault((run, node.stage, node.invocation), []).append(node)
    on_host = eager is None or eager.on_host
    clocks: dict[TimePlace, StageClocks] = {}
    kernels: dict[TimePlace, list[OperatorWork]] = {}
    if eager is not None:
        for run, forward in eager.forwards.items():
            clocks |= {(run, *stage): found for stage, found in stage_clocks(forward, eager.latency).items()}
            for stage, calls in () if on_host else forward:
                kernels.setdefault((run, *stage), []).extend(
                    OperatorWork(c.module, eager.kind_of(c.operator, c.module), 1, c.device)
                    for c in calls
                    if c.operator
                )

    def row(place: TimePlace, time: Timing | None) -> MeasuredStage:
        own, alone, both = nodes.get(place, []), works.get(place, ()), clocks.get(place)
        roofs = _roofs(own, of, arithmetic)
        roof = of.one_after_another(roofs.values())
        moved = total(own, FLOOR) or exact_sum(total(own, metric) for metric in LASTING)
        floor = of.work(arithmetic.of_nodes(own), moved)
        replay = exact_sum(work.spent for work in alone)
        predicted = None if both is None else both.both
        if both is not None and on_host:  # the host time inside the calls is the work, which is known better
            predicted = exact_sum((replay, both.python))
        split = None
        if floor.seconds is not None and roof.seconds is not None:
            known = {module: Fraction(b.seconds or 0) * _NANO for module, b in roofs.items()}
            work = alone if on_host or both is None else kernels[place]
            split = split_time(Fraction(floor.seconds) * _NANO, known, work, time, both, on_host=on_host)
        spent = None if time is None else time.median
        shares = _share(roof.flops, spent, of.flops), _share(roof.bytes, spent, of.bandwidth)
        certain = of.bound(floor.flops, exact_sum((floor.bytes, -_spared_bytes(own, routed))), floor.least)
        wrong = _impossibility(certain, None if time is None else min(time.runs), replay)
        graph = None if variants is None else variants.graph.get(place)
        compiled = None if variants is None else variants.compiled.get(place)
        for name, form in (("as a CUDA graph", graph), ("compiled", compiled)):
            if not wrong and form is not None and form.time is not None:
                # Replays of one stage find its weights in the caches: only products are certain.
                wrong = _impossibility(of.bound(floor.flops, 0, floor.least), min(form.time.runs), form=name)
        return MeasuredStage(*place, floor, roof, replay, predicted, time, split, *shares, wrong, both, graph, compiled)

    return tuple(row(place, time) for place, time in times.items())


def _spared_bytes(nodes: Iterable[CostNode], routed: Mapping[str, int]) -> int:
    """Return the counted bytes of expert weights that some routings do not read."""
    here = [node for node in nodes if node.module in routed]
    counted = sum(node.cost("weight_read_bytes") or 0 for node in here)
    return max(0, counted - sum((node.cost("calls") or 0) * routed[node.module] for node in here))


def _share(work: int | None, nanoseconds: int | None, best: int) -> Rational | None:
    """Return an achieved rate (work per nanosecond) as a fraction of the peak rate."""
    return None if work is None or nanoseconds is None else str(Fraction(work * _NANO, max(1, nanoseconds) * best))


def _roofs(nodes: Iterable[CostNode], of: Roof, arithmetic: Arithmetic) -> dict[str, WorkBound]:
    """Return the roofline bound of each module, by module."""
    modules: dict[str, list[CostNode]] = {}
    for node in nodes:
        modules.setdefault(node.module, []).append(node)
    return {
        module: of.work(arithmetic.of_nodes(m), exact_sum(total(m, metric) for metric in TRAFFIC))
        for module, m in modules.items()
    }


def part_times(
    forwards: Mapping[str, Iterable[CostNode]],
    spent: Mapping[TimePlace, int | None],
    parts: PartPatterns,
    of: Roof,
    arithmetic: Arithmetic,
    routed: Mapping[str, int] = NO_EXPERTS,
    times: Mapping[TimePlace, Sequence[int]] = NOT_RUN,
) -> tuple[MeasuredPart, ...]:
    """Return the times of every model part in each stage and forward, unknown ones first, then the longest.

    Args:
        forwards: run -> the costs of that forward.
        spent: (run, stage, module) -> nanoseconds of its operators, each timed in isolation.
        parts: groups module paths into parts, with their names.
        of: the roofline of the device.
        arithmetic: the dtypes of the operators.
        routed: as for :func:`stage_times`.
        times: (run, stage, module) -> nanoseconds of the module, in each of several runs.
    """
    nodes: dict[TimePlace, list[CostNode]] = {place: [] for place in spent}
    for run, costs in forwards.items():
        for node in costs:
            nodes.setdefault((run, node.stage, node.module), []).append(node)
    found = []
    for run, stage in dict.fromkeys(place[:2] for place in nodes):
        for part, modules in parts(module for *here, module in nodes if here == [run, stage]):
            own = [n for module in modules for n in nodes[run, stage, module]]
            roof = of.one_after_another(_roofs(own, of, arithmetic).values())
            alone = exact_sum(spent.get((run, stage, module), 0) for module in modules)
            # Activations may come from the caches; weights do not, for these are emptied before each call.
            weights = total(own, "weight_read_bytes")
            least = of.bound(roof.flops, None if weights is None else weights - _spared_bytes(own, routed), roof.least)
            # Experts with a module each are counted together: their operators are those of other parts.
            apart = not alone or any(n.owner == "experts" for n in own)
            wrong = "" if apart else _impossibility(least, alone, form=ALONE)
            ran = [times[run, stage, module] for module in modules if (run, stage, module) in times]
            measured = Timing(tuple(map(sum, zip(*ran, strict=True)))) if ran else None
            if not wrong and not apart and measured is not None:
                # Small weights stay in the caches from run to run: only products are certain.
                wrong = _impossibility(of.bound(roof.flops, 0, roof.least), min(measured.runs))
            of_peak = _share(roof.flops, alone, of.flops)
            found.append(MeasuredPart(run, stage, part, roof, alone, of_peak, wrong, measured))
    return tuple(sorted(found, key=lambda row: (row.replay is not None, -(row.replay or 0))))


def _impossibility(floor: WorkBound, spent: int | None, replay: int | None = None, *, form: str = "") -> str:
    """Return the reason why a measured time is impossible; empty if it is possible.

    Args:
        floor: the bound.
        spent: the time.
        replay: time of the same work in isolation, which separates errors of the stage clock from other causes.
        form: what the time is of, unless it is that of an eager run: ``operators alone``.
    """
    if spent is None or floor.seconds is None or spent >= (least := Fraction(floor.seconds) * _NANO):
        return ""
    what, figure = ("FLOPs", "peak") if floor.bound == "compute" else ("bytes", "bandwidth")
    ratio = Fraction(least, max(1, spent))
    ran = f"ran at {ratio.numerator * 100 // ratio.denominator} % of the {figure} in the device file"
    if replay is None:
        return f"{form and f'{form}, '}{ran}: {CONVENTION}, the file, the {what}, or the clock"
    if replay < least:
        return f"{ran}, its operators alone too: {CONVENTION}, the file, or the {what}"
    return f"{ran}, its operators alone did not: the clock"
