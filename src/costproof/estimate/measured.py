"""A measured time beside its bounds: every stage of every forward that ran, split into parts that add up to it
(:mod:`costproof.estimate.measured`).

A count and a device file that are right allow no time below the floor, neither of a stage nor of a part of the model:
that is a finding, and what may be wrong is named, the convention of the floor first: an implementation may leave out
products that no count here knows of. Of routed experts the floor that is held against a time has the weights
of as many as one token passes: a call may touch no more.

Of a forward that never ran nothing is measured. Its parts then add up to the replay, which predicts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from costproof.estimate.arithmetic import Arithmetic
from costproof.estimate.hardware import Device
from costproof.estimate.roofline import LASTING, Rational, Roof, WorkBound
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK
from costproof.ledger.metrics import FLOOR, TRAFFIC, Conventions
from costproof.ledger.node import CostNode, exact_sum, total
from costproof.ledger.profile import Timing
from costproof.ledger.run import RunOptions
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import TargetInfo, Workload

WorkKind = Literal["products", "experts", "other", "movement"]
WORK_KINDS: Final[tuple[WorkKind, ...]] = ("products", "experts", "other", "movement")
"""In the order in which they take the time at the roof of their module."""
_PRODUCTS: Final = frozenset({"matmul", "conv", "attention", "experts"})
_MOVEMENT: Final = frozenset({"movement", "lookup"})


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Nanoseconds that add up to the measured median, or, where nothing ran, to the replay."""

    floor: Rational
    traffic: Rational
    shapes: Rational
    other: Rational
    dispatch: Rational
    movement: Rational
    experts: Rational
    residual: Rational | None
    """``None`` where nothing ran."""
    jitter: Rational | None
    """``None`` where nothing ran."""


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """A distinct call of a module, made alone."""

    module: str
    kind: WorkKind
    calls: int
    alone: int | None
    """Nanoseconds of one call; ``None`` if it could not be made."""

    @property
    def spent(self) -> int | None:
        """Nanoseconds of all calls."""
        return None if self.alone is None else self.calls * self.alone


def work_kind(subject: str, in_experts: bool) -> WorkKind:
    """What an operator is, by the subject of its rule (:func:`costproof.opgraph.rules.registry.subject_of`)."""
    if in_experts:
        return "experts"
    return "products" if subject in _PRODUCTS else "movement" if subject in _MOVEMENT else "other"


def split_time(
    floor: Fraction, roofs: Mapping[str, Fraction], works: Iterable[OperatorWork], time: Timing | None
) -> TimeSplit | None:
    """The parts; ``None`` if a call could not be made.

    Args:
        roofs: nanoseconds at the roof of each module.
        time: ``None`` where nothing ran.
    """
    least, replay = None, 0
    done = list(works)
    for work in done:
        if work.alone is None:
            return None
        replay += work.calls * work.alone
        least = work.alone if least is None else min(least, work.alone)
    dispatch = (least or 0) * sum(work.calls for work in done)
    beyond: Counter[WorkKind] = Counter()
    there: dict[str, set[WorkKind]] = {}
    for work in done:
        beyond[work.kind] += work.calls * ((work.alone or 0) - (least or 0))
        there.setdefault(work.module, set()).add(work.kind)
    parts: dict[WorkKind, Fraction] = {kind: Fraction(beyond[kind]) for kind in WORK_KINDS}
    for module, roof in roofs.items():
        parts[next((kind for kind in WORK_KINDS if kind in there.get(module, ())), "other")] -= roof
    fastest = None if time is None else min(time.runs)
    return TimeSplit(
        str(floor), str(sum(roofs.values()) - floor), str(parts["products"]), str(parts["other"]), str(dispatch),
        str(parts["movement"]), str(parts["experts"]),
        None if fastest is None else str(fastest - replay),
        None if time is None or fastest is None else str(time.median - fastest),
    )  # fmt: skip


_NANO: Final = 10**9
CONVENTION: Final = "the convention of the floor"
NO_EXPERTS: Final[Mapping[str, int]] = {}
TimePlace = tuple[str, str, str]
"""Run, stage, invocation; or run, stage, module."""
PartPatterns = Callable[[Iterable[str]], Iterable[tuple[str, Sequence[str]]]]
NOT_RUN: Final[Mapping[TimePlace, Sequence[int]]] = {}


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage in one forward."""

    run: str
    """``page``, ``prompt`` or ``step@P``."""
    stage: str
    invocation: str
    floor: WorkBound
    """The products that every implementation has, the weights once, and the cache read and written once."""
    roof: WorkBound
    """Its modules one after another."""
    replay: int | None
    """Nanoseconds of its operators, each made alone; ``None`` if one of them could not be made."""
    measured: Timing | None
    """``None`` where nothing ran."""
    split: TimeSplit | None
    """``None`` where FLOPs, bytes or the replay are not known."""
    of_peak: Rational | None
    """FLOPs over time over the peak: MFU."""
    of_bandwidth: Rational | None
    """Bytes at the module boundary over time over the bandwidth; more than 1 where caches serve them."""
    wrong: str = ""
    """What cannot be, and which of device file, counts and clock it accuses."""

    @property
    def error(self) -> Fraction | None:
        """Of the replay, as a prediction of the median: relative to it, without its sign; ``None`` without either."""
        if self.replay is None or self.measured is None:
            return None
        return abs(Fraction(self.replay - self.measured.median, max(1, self.measured.median)))


@dataclass(frozen=True, slots=True)
class PartTime:
    """A part of the model in one forward: modules that differ in numbers alone are one part."""

    run: str
    stage: str
    part: str
    """A pattern of module paths."""
    roof: WorkBound
    """Its modules one after another."""
    replay: int | None
    """Nanoseconds of its operators, each made alone; ``None`` if one of them could not be made."""
    of_peak: Rational | None
    """FLOPs over that time over the peak."""
    wrong: str = ""
    """What cannot be, and what it accuses."""
    measured: Timing | None = None
    """Of its modules themselves, in runs in which every module has a hook; ``None`` where nothing ran."""


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """A distinct call."""

    run: str
    stage: str
    operator: str
    shapes: tuple[tuple[int, ...], ...]
    calls: int
    alone: Timing | None
    """Nanoseconds of one call; ``None`` if it could not be made."""
    why: str = ""
    """It could not."""

    @property
    def spent(self) -> int | None:
        """Nanoseconds of all calls."""
        return None if self.alone is None else self.calls * self.alone.median


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of a run beside what bounds them, or of its operators alone where it never ran."""

    conventions: Conventions
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    options: RunOptions
    device: Device
    dtype: str
    """Whose peak the roof is."""
    peak_flops: int
    bandwidth: int
    clock: str
    threads: int
    rows: tuple[StageTime, ...]
    operators: tuple[OperatorTime, ...]
    """The longest first, all their calls together."""
    parts: tuple[PartTime, ...] = ()
    """The longest first."""

    @property
    def name(self) -> str:
        """``TARGET at WORKLOAD on DEVICE``."""
        return f"{self.target.title} at {self.workload.name} on {self.device.name}"

    @property
    def predicted(self) -> bool:
        """Whether nothing ran but operators alone."""
        return all(row.measured is None for row in self.rows)

    @property
    def median_error(self) -> Fraction:
        """Of the replay, over the rows."""
        return median_error(self.rows)

    @property
    def wrong(self) -> tuple[str, ...]:
        """What cannot be, of stages and of parts of the model: ``page sam: ran at ...``."""
        places = [(f"{row.run} {row.stage}", row.wrong) for row in self.rows]
        places += [(f"{part.run} {part.stage} {part.part}", part.wrong) for part in self.parts]
        return tuple(f"{place} {wrong}" for place, wrong in places if wrong)

    @property
    def exit_code(self) -> int:
        """1 if a time cannot be, 3 if something that runs has no known cost, or could not be made alone."""
        if self.wrong:
            return EXIT_FINDINGS
        return EXIT_INCOMPLETE if any(row.split is None for row in self.rows) else EXIT_OK


def median_error(found: Iterable[StageTime]) -> Fraction:
    """Of the replay, over some rows: of an even number the larger of the two in the middle; 0 of none."""
    errors = sorted(row.error for row in found if row.error is not None)
    return errors[len(errors) // 2] if errors else Fraction(0)


MEASUREMENT: Final = FileKind(name="costproof/measured", version=(3, 3), type=Measurement)


def stage_times(
    forwards: Mapping[str, Iterable[CostNode]],
    times: Mapping[TimePlace, Timing | None],
    works: Mapping[TimePlace, Sequence[OperatorWork]],
    of: Roof,
    arithmetic: Arithmetic,
    routed: Mapping[str, int] = NO_EXPERTS,
) -> tuple[StageTime, ...]:
    """Every stage that was timed, or whose operators were.

    Args:
        forwards: run -> what that forward alone costs.
        times: ``None`` for a stage that did not run.
        works: its operators, each made alone.
        routed: module of routed experts -> bytes of the weights that one of its calls reads at least.
    """
    nodes: dict[TimePlace, list[CostNode]] = {}
    for run, costs in forwards.items():
        for node in costs:
            nodes.setdefault((run, node.stage, node.invocation), []).append(node)
    return tuple(
        _row(place, nodes.get(place, []), time, works.get(place, ()), of, arithmetic, routed)
        for place, time in times.items()
    )


def _row(
    place: TimePlace,
    nodes: list[CostNode],
    time: Timing | None,
    works: Sequence[OperatorWork],
    of: Roof,
    arithmetic: Arithmetic,
    routed: Mapping[str, int],
) -> StageTime:
    roofs = _roofs(nodes, of, arithmetic)
    roof = of.one_after_another(roofs.values())
    moved = total(nodes, FLOOR) or exact_sum(total(nodes, metric) for metric in LASTING)
    floor = of.work(arithmetic.of_nodes(nodes), moved)
    spent = None if time is None else time.median
    replay = exact_sum(work.spent for work in works)
    of_peak, of_bandwidth = _share(roof.flops, spent, of.flops), _share(roof.bytes, spent, of.bandwidth)
    parts = None
    if floor.seconds is not None and roof.seconds is not None:
        known = {module: Fraction(b.seconds or 0) * _NANO for module, b in roofs.items()}
        parts = split_time(Fraction(floor.seconds) * _NANO, known, works, time)
    certain = of.bound(floor.flops, exact_sum((floor.bytes, -_spared(nodes, routed))), floor.least)
    fastest = None if time is None else min(time.runs)
    return StageTime(*place, floor, roof, replay, time, parts, of_peak, of_bandwidth, _wrong(certain, fastest, replay))


def _spared(nodes: Iterable[CostNode], routed: Mapping[str, int]) -> int:
    """Bytes of experts that are counted, and that a routing need not touch."""
    here = [node for node in nodes if node.module in routed]
    counted = sum(node.cost("weight_read_bytes") or 0 for node in here)
    return max(0, counted - sum((node.cost("calls") or 0) * routed[node.module] for node in here))


def _share(work: int | None, nanoseconds: int | None, best: int) -> Rational | None:
    """Of the best rate per second."""
    return None if work is None or nanoseconds is None else str(Fraction(work * _NANO, max(1, nanoseconds) * best))


def _roofs(nodes: Iterable[CostNode], of: Roof, arithmetic: Arithmetic) -> dict[str, WorkBound]:
    """Of each module."""
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
) -> tuple[PartTime, ...]:
    """Every part of each stage of each forward, the longest first, before it those whose time is not known.

    Args:
        forwards: run -> what that forward alone costs.
        spent: (run, stage, module) -> nanoseconds of its operators, each made alone.
        parts: of module paths, those that are one part, with its name.
        routed: as of :func:`stage_times`.
        times: (run, stage, module) -> nanoseconds of the module itself, in each of several runs.
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
            least = of.bound(roof.flops, None if weights is None else weights - _spared(own, routed), roof.least)
            # Experts with a module each are counted together: their operators are those of other parts.
            apart = not alone or any(n.owner == "experts" for n in own)
            wrong = "" if apart else _wrong(least, alone, operators=True)
            ran = [times[run, stage, module] for module in modules if (run, stage, module) in times]
            measured = Timing(tuple(map(sum, zip(*ran, strict=True)))) if ran else None
            if not wrong and not apart and measured is not None:
                # Small weights stay in the caches from run to run: only products are certain.
                wrong = _wrong(of.bound(roof.flops, 0, roof.least), min(measured.runs))
            of_peak = _share(roof.flops, alone, of.flops)
            found.append(PartTime(run, stage, part, roof, alone, of_peak, wrong, measured))
    return tuple(sorted(found, key=lambda row: (row.replay is not None, -(row.replay or 0))))


def _wrong(floor: WorkBound, spent: int | None, replay: int | None = None, *, operators: bool = False) -> str:
    """Why a time cannot be so short, if so.

    Args:
        replay: of the same work, which tells the clock of the stages from the other suspects.
        operators: whether the time is that of operators alone.
    """
    if spent is None or floor.seconds is None or spent >= (least := Fraction(floor.seconds) * _NANO):
        return ""
    what, figure = ("FLOPs", "peak") if floor.bound == "compute" else ("bytes", "bandwidth")
    ratio = Fraction(least, max(1, spent))
    ran = f"ran at {ratio.numerator * 100 // ratio.denominator} % of the {figure} in the device file"
    if operators or replay is None:
        suspects = f"{CONVENTION}, the file, the {what}, or the clock"
        return f"{'operators alone, ' if operators else ''}{ran}: {suspects}"
    if replay < least:
        return f"{ran}, its operators alone too: {CONVENTION}, the file, or the {what}"
    return f"{ran}, its operators alone did not: the clock"
