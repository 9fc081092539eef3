"""A roofline in words and in the rows of its tables, for every output that people read."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from costproof.estimate.arithmetic import CONVOLUTION, FUSED, OTHER, dtypes
from costproof.estimate.roofline import Border, BorderPoint, Bound, PartBound, Rational, Roofline, StageBound
from costproof.estimate.routing import TouchedExperts
from costproof.ledger.plural import plural
from costproof.views.numbers import exact, human, share

BOUND: Final = "A bound by the device's own figures, not a prediction: what runs takes longer."
MODULES: Final = (
    "module by module, each with its traffic at the module boundary; unfused, operator by operator, each on its own."
)
FLOOR: Final = (
    "the products that no implementation of the same result leaves out, each at the peak of the dtype that it is "
    "multiplied in, and once a call what crosses the border of the stage: inputs, weights, of experts {experts}, the "
    "cache, and results."
)
LEFT_OUT: Final = (
    "FLOPs, and the time Full, have all scores of S_q x S_k, as the convention counts them; the other times leave out "
    "those that a causal mask or a window hides, or that a mask given as numbers may hide."
)
LATENTS: Final = {
    "expanded": "Latent attention: the run expands all latents in every step (Full); absorbed by queries and sums, the "
    "expansion is less work, which the other times take.",
    "absorbed": "Latent attention: in steps the run absorbs the expansion of the latents, which is the less work of "
    "the two; expanded: decoding=expanded.",
}
BOUND_ROUTING: Final = "min(E, tokens x k) (a routing that touches fewer may be faster)"
ROUTING: Final = {
    "uniform": "as uniform routing has it on average (one that touches fewer may be faster)",
    "given": "as the given routing has it",
}
MAX_PARTS: Final = 15
STAGES: Final = (
    "Stage", "FLOPs", "Bytes", "FLOP/B", "Compute", "Memory", "At the roof", "Bound by", "Floor", "Full", "Unfused",
)  # fmt: skip
PARTS: Final = ("Stage", "Part", "FLOPs", "Bytes", "FLOP/B", "At the roof", "Share", "Bound by")
_PLACES: Final = 3
_UNITS: Final = ((Fraction(1), "s"), (Fraction(1, 10**3), "ms"), (Fraction(1, 10**6), "µs"), (Fraction(1, 10**9), "ns"))


def decimal(value: Fraction, places: int) -> str:
    """A number that is not negative with so many digits behind the point, rounded half up."""
    scale = 10**places
    whole, part = divmod((2 * value.numerator * scale + value.denominator) // (2 * value.denominator), scale)
    return f"{whole:,}" + (f".{part:0{places}d}" if places else "")


def duration(seconds: str | None, places: int = _PLACES) -> str:
    """``4.481 ms``; ``?`` for unknown."""
    if seconds is None:
        return "?"
    value = Fraction(seconds)
    unit, name = next(((u, n) for u, n in _UNITS if value >= u), _UNITS[-1])
    return f"{decimal(value / unit, places)} {name}" if value else "0 s"


def ratio(value: str | None) -> str:
    """An intensity: ``295.2``; empty where no byte moves."""
    return "" if value is None else decimal(Fraction(value), 1)


def percent(part: str | None, whole: str | None) -> str:
    """``49.8 %``; empty where there is nothing to divide."""
    return "" if part is None or whole is None else share(Fraction(part), Fraction(whole))


def roof(found: Roofline) -> str:
    """The figures that everything here is made of."""
    ridge = decimal(Fraction(found.peak_flops, found.bandwidth), 1)
    peak, width = human(found.peak_flops, "FLOP/s", places=3), human(found.bandwidth, "B/s", places=3)
    seen = ", measured" if found.device.origin == "measured" else ""
    return f"{found.device.title}{seen}: {peak} ({found.dtype}, dense), {width}; they meet at {ridge} FLOP/B"


def instead(found: Roofline) -> list[str]:
    """Say which other peaks there are, and why that of another dtype is taken; empty where there is nothing to say."""
    said = []
    if found.dtype != found.math:
        said.append(
            f"No source gives a dense peak of {found.math}: that of {found.dtype}, at least as high, bounds it."
        )
    if found.peaks:
        others = ", ".join(f"{human(peak, 'FLOP/s', places=3)} ({dtype})" for dtype, peak in found.peaks.items())
        said.append(f"Products in another dtype have its peak: {others}.")
    if CONVOLUTION in found.peaks and found.math != CONVOLUTION:
        said.append(
            "Convolutions and recurrent layers of float32 run in TF32 by default (torch.backends.cudnn.allow_tf32)."
        )
    if FUSED in found.peaks:
        said.append("Fused attention in float32 takes three products in TF32 for one.")
    run = (found.run.modules.least, found.run.floor.least, None if found.run.full is None else found.run.full.least)
    free = [dtype for dtype in dtypes(run) if dtype not in found.peaks and dtype != found.math]
    if free:
        named = ", ".join("no known dtype" if dtype == OTHER else dtype for dtype in free)
        said.append(f"No source gives a dense peak for products in {named}: they take no time here.")
    return said


def modules(found: Roofline) -> str:
    """What the time at the roof holds, and whether it is a bound."""
    return (
        f"At the roof: nothing is faster that runs {MODULES}"
        if _earned(found)
        else f"At the roof{_by(found)} {MODULES}"
    )


def floor(found: Roofline) -> str:
    """What the floor holds, and whether it is a bound."""
    what = FLOOR.format(experts=ROUTING.get(found.routing, BOUND_ROUTING))
    if found.target.quantised:
        return f"No bound of the quantised checkpoint, whose bytes are not known. Floor: {what}"
    if _earned(found):
        return f"Floor: nothing is faster that computes the same result, whatever it fuses: {what}"
    return f"Floor{_by(found)} {what}"


def left_out(found: Roofline) -> list[str]:
    """What of the headline is not in the times, and which way of latent attention."""
    said = [LEFT_OUT] if found.run.full is not None else []
    return [*said, LATENTS[found.conventions.mla]] if found.conventions.mla in LATENTS else said


def _earned(found: Roofline) -> bool:
    """Whether the times are bounds: the counts say what may be left out, and rates are not those reached once."""
    return found.kept and found.device.origin == "published"


def _by(found: Roofline) -> str:
    if _earned(found):
        return ""
    if not found.kept:
        return (
            ", by the full convention: the counts do not say which products another implementation leaves out, and one "
            "that leaves them out is faster:"
        )
    return ", at rates that were measured, and may be higher:"


def experts(found: Roofline) -> list[str]:
    """Experts that the layers of each part touch in a call."""
    groups: dict[tuple[str, str], list[TouchedExperts]] = {}
    for one in found.experts:
        groups.setdefault((one.stage, one.part), []).append(one)
    return [_experts(*place, layers) for place, layers in groups.items()]


def _experts(stage: str, part: str, layers: list[TouchedExperts]) -> str:
    first, many = layers[0], plural(len(layers), "layer")
    said = list(dict.fromkeys(x.touched for x in layers))
    shown = said[0] if len(said) == 1 else f"{min(said, key=Fraction)} to {max(said, key=Fraction)}"
    of = f"of {first.experts} experts, {first.top_k} for each of {exact(first.tokens)} tokens a call"
    return f"{stage} {part}, {many}: {shown} {of}; {human(sum(x.bytes for x in layers), 'B')} read."


def stages(found: Roofline) -> list[tuple[str, ...]]:
    """Rows of :data:`STAGES`; the whole run is the last, unless it is one stage."""
    return [_stage(s) for s in (*found.stages, *([found.run] if len(found.stages) != 1 else []))]


def _stage(stage: StageBound) -> tuple[str, ...]:
    b = stage.modules
    return (
        stage.id or "whole run", *_work(b), duration(b.compute_s), duration(b.memory_s), duration(b.seconds),
        b.bound or "?", duration(stage.floor.seconds),
        *(duration(other.seconds) if other else "" for other in (stage.full, stage.unfused)),
    )  # fmt: skip


def _work(b: Bound) -> tuple[str, str, str]:
    return human(b.flops, "FLOP"), human(b.bytes, "B"), ratio(b.intensity)


def largest(found: Roofline) -> list[PartBound]:
    """The parts that take longest; unknown ones first."""

    def size(part: PartBound) -> tuple[bool, Fraction]:
        return part.at_roof.seconds is not None, -Fraction(part.at_roof.seconds or 0)

    return sorted(found.parts, key=size)[:MAX_PARTS]


def parts(found: Roofline) -> list[tuple[str, ...]]:
    """Rows of :data:`PARTS`."""
    return [
        (
            p.stage, p.part, *_work(p.at_roof), duration(p.at_roof.seconds),
            percent(p.at_roof.seconds, found.run.modules.seconds), p.at_roof.bound or "?",
        )
        for p in largest(found)
    ]  # fmt: skip


def waiting(found: Roofline) -> str:
    """How much of the time waits for memory."""
    whole, compute = found.run.modules.seconds, found.run.compute_bound_s
    if whole is None or compute is None:
        unknown = sorted({p.part for p in found.parts if p.at_roof.seconds is None})
        return f"Not known: {', '.join(unknown)}."
    memory = str(Fraction(whole) - Fraction(compute))
    return f"Of {duration(whole)} at the roof, {percent(memory, whole)} are spent in parts that wait for memory."


def border(b: Border) -> tuple[str, str]:
    """One border: a sentence, and both sides as they were evaluated."""
    name = b.setting.replace("_", "-")
    sides = f"{b.left} against {b.right}, " + "; ".join(_point(b, p, name) for p in b.points)
    if b.outcome == "from":
        return f"{b.stage} {b.question} from {name} {exact(b.at)} on", sides
    if b.outcome == "never":
        return f"{b.stage} {b.question} at no {name}", sides
    if b.outcome == "refused":
        return f"{b.stage} {b.question} from {name} {exact(b.at)} on, which the model does not take: {b.why}", sides
    return f"{b.stage} {b.question} from some {name} on or never, which is not solved: {b.why}", sides


def _point(b: Border, point: BorderPoint, name: str) -> str:
    left, right = Fraction(point.left), Fraction(point.right)
    sign = ">" if left > right else "≤"
    shown = _apart(point.left, point.right) if b.unit == "s" else (exact(int(left)), f"{exact(int(right))} {b.unit}")
    return f"at {name} {exact(point.at)}: {shown[0]} {sign} {shown[1]}"


def _apart(left: Rational, right: Rational) -> tuple[str, str]:
    """Two times, with as many digits as it takes to see that one is longer."""
    places = _PLACES
    while Fraction(left) != Fraction(right) and duration(left, places) == duration(right, places):
        places += 1
    return duration(left, places), duration(right, places)
