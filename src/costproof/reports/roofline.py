"""Report a roofline: lower bounds of a run's time on a device, as text, page, picture and CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from html import escape
from io import StringIO
from math import ceil, log10
from math import floor as floor_of
from textwrap import wrap
from typing import Final
from urllib.parse import quote

from costproof.estimate.arithmetic import CONVOLUTION, FUSED, OTHER, dtypes
from costproof.estimate.links import LinkBounds, RankTimes, StageLinks
from costproof.estimate.roofline import (
    BottleneckThreshold,
    PartBound,
    Rational,
    Roofline,
    StageBound,
    ThresholdPoint,
    WorkBound,
)
from costproof.estimate.routing import EXPERTS, TouchedExperts
from costproof.ledger.errors import Recount, check_recounts
from costproof.ledger.plural import plural
from costproof.ledger.workload import counted_line
from costproof.reports.document import Block, Code, Details, Document, DocumentSection, Form, Items, Markup, Note, Table
from costproof.reports.escape import visible
from costproof.reports.html.document import Html, h, table
from costproof.reports.html.printer import shares, swatch
from costproof.reports.plots.figure import colour
from costproof.reports.static import ranks_text
from costproof.views.describe import note_lines
from costproof.views.numbers import PLACES, decimal, duration, exact, human, share

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
    "FLOPs, and the time Full, have all scores of S_q x S_k, as the convention counts them; Kept FLOPs and the other "
    "times leave out those that a causal mask or a window hides, the times also those that a mask given as numbers may "
    "hide."
)
LATENTS: Final = {
    "expanded": "Latent attention: the run expands all latents in every step (Full); absorbed by queries and sums, the "
    "expansion is less work, which Compute and Floor take; the other times have the bytes of the run.",
    "absorbed": "Latent attention: in steps the run absorbs the expansion of the latents, which is the less work of "
    "the two; expanded: decoding=expanded.",
}
BOUND_ROUTING: Final = "the k of one token (all tokens may choose alike; the other times have min(E, tokens x k))"
ROUTING: Final = {
    "uniform": "as uniform routing has it on average (one that touches fewer may be faster)",
    "given": "as the given routing has it",
}
UNPACKING: Final = (
    "Unpacking and scaling of quantised weights is in no time above, since kernels may fuse it or do it with fewer "
    "operations. {rate}:"
)
MAX_PARTS: Final = 15
STAGES: Final = (
    "Stage", "FLOPs", "Kept FLOPs", "Bytes", "FLOP/B", "Compute", "Memory", "At the roof", "Bound by", "Floor",
    "Full", "Unfused",
)  # fmt: skip
PARTS: Final = ("Stage", "Part", "FLOPs", "Kept FLOPs", "Bytes", "FLOP/B", "At the roof", "Share", "Bound by")
_LINKS: Final = "With communication"
_LINK_STAGES: Final = ("Stage", "Sent", "Links", "Exposed", "Overlapped", "Bound by")
_COLLECTIVES: Final = ("Stage", "Part", "Collective", "Ranks", "Nodes", "Messages", "Payload", "Sent", "Links")
_LINK_COLUMNS: Final = ("sent", "links_s", "exposed_s", "overlapped_s", "bound_with_links")
_MEANING: Final = (
    "Links: what must pass through the links of a rank at least, without latency; a ring sends up to twice as much in "
    "an all-reduce (Sent). Exposed: nothing is faster that does no work during a collective: modules at the roof, then "
    "the collectives. Overlapped: nothing is faster that runs module by module, however it hides collectives behind "
    "work: the longer of the two. Both hold under the conditions of the roof, such as the experts that are read."
)
_TIME: Final = "time"
_TITLE: Final = "time at the roof"
UNPACKING_COLUMNS: Final = ("unpacking_flops", "at_vector_peak_s")
"""CSV columns on unpacking quantised weights, if the bounds are for weights as stored."""
COLUMNS: Final = (
    "level", "stage", "part", "flops", "kept", "bytes", "intensity", "compute_s", "memory_s", "seconds", "bound",
    "counted",
)  # fmt: skip
_WIDTH: Final = 900
_HEIGHT: Final = 560
_LEFT: Final = 90
_RIGHT: Final = 30
_TOP: Final = 70
_BOTTOM: Final = 60
_NAMED: Final = 8
"""Maximum number of model parts that the plot labels."""
_LETTERS: Final = 140
"""Maximum number of letters in a line below the plot."""
_NAME: Final = (7, 16)
"""Width of a letter and height of a line in the plot's labels, in pixels."""
PixelScale = Callable[[Fraction], float]
"""Function that maps a value on an axis to a position in pixels."""


def document(found: Roofline, form: Form) -> Document:
    """Return the report: time bounds by stage and part, what they omit, and where the limiting resource changes."""
    text = form == "text"
    about = _counted_lines(found)
    by_stage = Table(STAGES, "lrrrrrrrlrrr", [(Code(s), *rest) for s, *rest in stage_rows(found)], keys=1)
    by_part = Table(
        PARTS, "llrrrrrrl", [(Code(s), Code(p), *rest) for s, p, *rest in part_rows(found)],
        most=MAX_PARTS, noun="part", rest="the CSV and the JSON",
    )  # fmt: skip
    solved = [border_sentences(b) for b in found.borders]
    if text:
        lines = tuple(line for both in solved for line in (both[0], f"    {both[1]}"))
        body: list[Block] = [*peak_notes(found), bound_note(found), by_stage]
        body += [
            module_bound_sentence(found),
            floor_sentence(found),
            *omission_notes(found),
            *unpacking_blocks(found),
            *expert_sentences(found),
            *routed_blocks(found),
            by_part,
            memory_share_sentence(found),
        ]
        body += link_sections(found, text=True)
        body += [DocumentSection("Borders, solved and evaluated on both sides:", [Items(lines)])] if solved else []
        return Document(found.name, body, "", device_line(found), about)
    body = [
        device_line(found),
        " ".join((*peak_notes(found), bound_note(found))),
        by_stage,
        " ".join((module_bound_sentence(found), floor_sentence(found))),
    ]
    body += [" ".join(omission_notes(found))] if omission_notes(found) else []
    body += unpacking_blocks(found)
    body += [Items(tuple(expert_sentences(found)))] if found.experts else []
    body += routed_blocks(found)
    body += [DocumentSection("Parts that take longest", [by_part, memory_share_sentence(found)])]
    body += link_sections(found, text=False)
    body += [DocumentSection("Borders", [Items(tuple(map("; ".join, solved)))])] if solved else []
    return Document(f"Roofline: {found.name}", body, about=about)


def link_sections(found: Roofline, *, text: bool) -> list[Block]:
    """Return the section on time bounds with communication; empty on one device."""
    if found.links is None:
        return []
    return [DocumentSection(_LINKS, _link_blocks(found.links, text=text, means=_of_means(found)))]


def section(found: Roofline | None) -> DocumentSection | None:
    """Return the roofline section of a page; ``None`` if no device was named."""
    if found is None:
        return None
    label = f"Roofline. {memory_share_sentence(found)}"
    drawn = h("div", Html(roofline_svg(found)), class_="roof", role="img", aria_label=label)
    longest = Table(PARTS, "llrrrrrrl", part_rows(found)[:MAX_PARTS])
    notes = (*peak_notes(found), bound_note(found), module_bound_sentence(found), floor_sentence(found))
    body: list[Block] = [
        f"{device_line(found)}. {memory_share_sentence(found)}",
        *map(Note, (*notes, *omission_notes(found))),
        Markup(drawn),
        Table(STAGES, "lr", stage_rows(found)),
        *unpacking_blocks(found),
        *([] if found.links is None else _link_blocks(found.links, text=False, title=_LINKS, means=_of_means(found))),
    ]
    return DocumentSection(
        f"Time at the roof: {found.device.title}", [*body, Details("Largest parts", [longest])], id="roof"
    )


def ratio(value: str | None) -> str:
    """Format an operational intensity in FLOP per byte: ``295.2``; empty if no bytes are moved."""
    return "" if value is None else decimal(Fraction(value), 1)


def percent(part: str | None, whole: str | None) -> str:
    """Return a part's share of the whole in percent: ``49.8 %``; empty if either is unknown or the whole is 0."""
    return "" if part is None or whole is None else share(Fraction(part), Fraction(whole))


def _ridge(found: Roofline) -> Fraction:
    return Fraction(found.peak_flops, found.bandwidth)


def device_line(found: Roofline) -> str:
    """Return a line with the device's peak FLOP/s, bandwidth and ridge point, which determine all times."""
    ridge = decimal(_ridge(found), 1)
    # Work at the ridge takes as long at the peak as at the bandwidth, within the rounding to a tenth.
    apart = Fraction(ridge.replace(",", "")) * found.bandwidth - found.peak_flops
    check_recounts([Recount("device", "ridge point", "peak over bandwidth", 20 * abs(apart) <= found.bandwidth, True)])
    peak, width = human(found.peak_flops, "FLOP/s", places=3), human(found.bandwidth, "B/s", places=3)
    seen = ", measured" if found.device.origin == "measured" else ""
    return f"{found.device.title}{seen}: {peak} ({found.dtype}, dense), {width}; they meet at {ridge} FLOP/B"


def peak_notes(found: Roofline) -> list[str]:
    """Return notes on peaks of the device in other dtypes, and on a dtype for which no source gives a peak."""
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


def bound_note(found: Roofline) -> str:
    """Return a note on whether the times bound the run, or assume unquantised storage of a checkpoint."""
    if not (unknown := found.as_counted.quantised):
        return BOUND
    return (
        f"No bound of the checkpoint: bytes, and times that follow from them, are as if its {' and '.join(unknown)} "
        f"were stored in {found.workload.dtype}."
    )


def module_bound_sentence(found: Roofline) -> str:
    """Return a sentence on the work that the roof time includes, and whether the time is a lower bound."""
    return (
        f"At the roof: nothing is faster{_if_routed(found)} that runs {MODULES}"
        if _is_bound(found)
        else f"At the roof{_not_bound_clause(found)} {MODULES}"
    )


def floor_sentence(found: Roofline) -> str:
    """Return a sentence on the bytes that the floor includes, and whether its time is a lower bound."""
    what = FLOOR.format(experts=ROUTING.get(found.routing, BOUND_ROUTING))
    if found.as_counted.quantised:
        return f"No bound of the quantised checkpoint, whose bytes are not known. Floor: {what}"
    if _is_bound(found):
        least = "" if found.routing == "bound" else _if_routed(found)
        return f"Floor: nothing is faster{least} that computes the same result, whatever it fuses: {what}"
    return f"Floor{_not_bound_clause(found)} {what}"


def omission_notes(found: Roofline) -> list[str]:
    """Return notes on FLOPs that the times exclude, and on the form of latent attention in decode steps."""
    said = [LEFT_OUT] if found.run.full is not None else []
    return [*said, LATENTS[found.conventions.mla]] if found.conventions.mla in LATENTS else said


def unpacking_blocks(found: Roofline) -> list[Block]:
    """Return the vector FLOPs of unpacking quantised weights, which no bound includes; empty without such weights."""
    peak = found.device.vector_peak
    rate = "No source gives a peak of this device's vector units, so that its time is unknown"
    if all(own.flops is None for own in found.unpacking):
        rate = "Its work is not known for this routing, arithmetic or format"
    elif peak is not None:
        rate = (
            f"Its FLOPs divided by the vector peak, {human(peak.flops, 'FLOP/s', places=3)} ({peak.dtype}, a fused "
            "multiply-add is 2), neither a bound nor a prediction"
        )
    rows = [(Code(own.stage), human(own.flops, "FLOP"), duration(own.seconds)) for own in found.unpacking]
    return (
        [UNPACKING.format(rate=rate), Table(("Stage", "Vector FLOPs", "At the vector peak"), "lrr", rows)]
        if rows
        else []
    )


def _if_routed(found: Roofline) -> str:
    """Return the condition on the experts read that limits the bound, if the routing is not given; else empty."""
    if _of_means(found):
        return " in the mean of uniform routing"
    routed = any(part.part.rpartition(".")[2] == EXPERTS for part in found.parts)
    return " with as many experts read" if routed and found.routing != "given" else ""


def _of_means(found: Roofline) -> bool:
    """Return whether ranks share the experts under uniform routing, so that rows and times of each are means."""
    return found.routing == "uniform" and found.workload.mesh.ep > 1


def _is_bound(found: Roofline) -> bool:
    """Return whether the times are lower bounds: bytes are known, avoidable work is excluded, peaks are published."""
    return found.kept and found.device.origin == "published" and not found.as_counted.quantised


def _not_bound_clause(found: Roofline) -> str:
    if _is_bound(found):
        return ""
    if found.as_counted.quantised:
        return f", no bound, with bytes as if stored in {found.workload.dtype}, in which the checkpoint is not:"
    if not found.kept:
        return (
            ", by the full convention: the counts do not say which products another implementation leaves out, and one "
            "that leaves them out is faster:"
        )
    return ", at rates that were measured, and may be higher:"


def expert_sentences(found: Roofline) -> list[str]:
    """Return sentences on the number of experts that a call reads, for each part with routed experts."""
    groups: dict[tuple[str, str], list[TouchedExperts]] = {}
    for one in found.experts:
        groups.setdefault((one.stage, one.part), []).append(one)
    of_rank = " of the rank" if found.workload.mesh.ep > 1 else ""
    return [_experts(*place, layers, of_rank) for place, layers in groups.items()]


ROUTED: Final = ("Stage", "Rank", "Pairs", "Touched a layer", "Weights read", "FLOPs of experts", "Sent")


def routed_blocks(found: Roofline) -> list[Block]:
    """Return the table of the loads of all ranks under a given routing, and sentences on the most and least loaded."""
    rows, said = [], []
    for stage in dict.fromkeys(load.stage for load in found.routed_ranks):
        loads = [load for load in found.routed_ranks if load.stage == stage]
        for x in loads:
            sent = ", ".join(f"{form} {human(size, 'B')}" for form, size in x.sent.items()) or "in one batch"
            read, work = human(x.read_bytes, "B"), human(x.expert_flops, "FLOP")
            rows.append((x.stage, str(x.rank), exact(x.pairs), f"{float(Fraction(x.touched)):.4g}", read, work, sent))
        most, least = (of(loads, key=lambda x: x.pairs) for of in (max, min))
        mean = Fraction(sum(x.pairs for x in loads), len(loads))
        said.append(
            f"{stage}: rank {most.rank} has the most pairs of a token and an expert, {exact(most.pairs)}, rank "
            f"{least.rank} the fewest, {exact(least.pairs)}; {float(mean):.6g} in the mean."
        )
    return [Table(ROUTED, "lrrrrrl", rows), Items(tuple(said))] if rows else []


def _experts(stage: str, part: str, layers: list[TouchedExperts], of_rank: str) -> str:
    first, many = layers[0], plural(len(layers), "layer")
    said = list(dict.fromkeys(x.touched for x in layers))
    shown = said[0] if len(said) == 1 else f"{min(said, key=Fraction)} to {max(said, key=Fraction)}"
    of = f"of {first.experts} experts{of_rank}, {first.top_k} for each of {exact(first.tokens)} tokens a call"
    return f"{stage} {part}, {many}: {shown} {of}; {human(sum(x.bytes for x in layers), 'B')} read."


def stage_rows(found: Roofline) -> list[tuple[str, ...]]:
    """Return the rows of the table :data:`STAGES`, with one for the whole run if there are several stages."""
    return [_stage(s) for s in (*found.stages, *([found.run] if len(found.stages) != 1 else []))]


def _stage(stage: StageBound) -> tuple[str, ...]:
    b = stage.modules
    return (
        stage.id or "whole run", *_work(b), duration(b.compute_s), duration(b.memory_s), duration(b.seconds),
        b.bound or "?", duration(stage.floor.seconds),
        *(duration(other.seconds) if other else "" for other in (stage.full, stage.unfused)),
    )  # fmt: skip


def _work(b: WorkBound) -> tuple[str, ...]:
    return human(b.flops, "FLOP"), human(b.kept, "FLOP"), human(b.bytes, "B"), ratio(b.intensity)


def longest_parts(found: Roofline) -> list[PartBound]:
    """Return the parts by roof time, longest first; parts with unknown times come before all others."""

    def size(part: PartBound) -> tuple[bool, Fraction]:
        return part.at_roof.seconds is not None, -Fraction(part.at_roof.seconds or 0)

    return sorted(found.parts, key=size)


def part_rows(found: Roofline) -> list[tuple[str, ...]]:
    """Return the rows of the table :data:`PARTS`."""
    return [
        (
            p.stage, p.part, *_work(p.at_roof), duration(p.at_roof.seconds),
            percent(p.at_roof.seconds, found.run.modules.seconds), p.at_roof.bound or "?",
        )
        for p in longest_parts(found)
    ]  # fmt: skip


def memory_share_sentence(found: Roofline) -> str:
    """Return a sentence on the share of the roof time that memory-bound parts take."""
    whole, compute = found.run.modules.seconds, found.run.compute_bound_s
    if whole is None or compute is None:
        unknown = sorted({p.part for p in found.parts if p.at_roof.seconds is None})
        return f"Not known: {', '.join(unknown)}."
    memory = str(Fraction(whole) - Fraction(compute))
    waits = sum((Fraction(p.at_roof.seconds or 0) for p in found.parts if p.at_roof.bound == "memory"), Fraction(0))
    check_recounts([Recount("", "parts that wait for memory", "seconds", Fraction(memory), waits)])
    return f"Of {duration(whole)} at the roof, {percent(memory, whole)} are spent in parts that wait for memory."


def border_sentences(b: BottleneckThreshold) -> tuple[str, str]:
    """Return two sentences on a solved bottleneck change: the setting value, and the times just around it."""
    name = b.setting.replace("_", "-")
    sides = f"{b.left} against {b.right}, " + "; ".join(_point(b, p, name) for p in b.points)
    if b.outcome == "from":
        return f"{b.stage} {b.question} from {name} {exact(b.at)} on", sides
    if b.outcome == "never":
        return f"{b.stage} {b.question} at no {name}", sides
    if b.outcome == "refused":
        return f"{b.stage} {b.question} from {name} {exact(b.at)} on, which is refused: {b.why}", sides
    return f"{b.stage} {b.question} from some {name} on or never, which is not solved: {b.why}", sides


def _point(b: BottleneckThreshold, point: ThresholdPoint, name: str) -> str:
    left, right = Fraction(point.left), Fraction(point.right)
    sign = ">" if left > right else "≤"
    shown = _apart(point.left, point.right) if b.unit == "s" else (exact(int(left)), f"{exact(int(right))} {b.unit}")
    return f"at {name} {exact(point.at)}: {shown[0]} {sign} {shown[1]}"


def _apart(left: Rational, right: Rational) -> tuple[str, str]:
    """Format two times with as many digits as needed to show that they differ."""
    places = PLACES
    while Fraction(left) != Fraction(right) and duration(left, places) == duration(right, places):
        places += 1
    return duration(left, places), duration(right, places)


def time_chip(found: Roofline) -> tuple[str, str, str]:
    """Return (name, title, total) of the roof time, for the metric buttons of a page."""
    return _TIME, _TITLE, duration(found.run.modules.seconds)


def time_metric(found: Roofline, order: Sequence[str]) -> Html:
    """Return the roof time of each stage, as a bar of shares and a table.

    Args:
        order: all stages, by which colours go.
    """
    run = found.run.modules.seconds
    rows = [
        (
            h("span", swatch(order.index(s.id)), h("a", s.id, href=f"#{quote(s.id)}/")) if s.id else h("b", "total"),
            percent(s.modules.seconds, run) if s.id else "",
            h("b", duration(s.modules.seconds)),
            *(duration(t) for t in (s.modules.compute_s, s.modules.memory_s)),
            s.modules.bound or "?",
        )
        for s in (*found.stages, *([found.run] if len(found.stages) != 1 else []))
    ]
    seconds = {s.id: s.modules.seconds for s in found.stages}
    known = [(name, Fraction(seconds[name] or 0) if name in seconds else None) for name in order]
    unknown = [name for name, value in seconds.items() if value is None]
    return h(
        "div",
        h("h3", _TITLE),
        h("p", f"On {found.device.title}. {bound_note(found)}", class_="note"),
        shares(known),
        table(("Stage", "Share", "At the roof", "Compute", "Memory", "Bound by"), rows, class_="cost"),
        h("p", f"Unknown, so not in the bar: {', '.join(unknown)}.", class_="note") if unknown else None,
        class_="metric",
        data_metric=_TIME,
    )


def _counted_lines(found: Roofline) -> list[str]:
    """Return lines with the conditions of the count and the notes of its sources."""
    stored = f"; weights as stored: {found.target.quantised['weights']}" if found.stored else ""
    if found.math != found.workload.dtype and found.stored:
        stored += f"; most products in {found.math}"
    return [counted_line(found.as_counted, found.workload) + stored, *note_lines(found.notes)]


def roofline_csv(found: Roofline) -> str:
    """Return the roofline as CSV: exact integers, seconds and intensities as fractions, unknown numbers empty.

    Each row has what the numbers leave out, with the notes of the sources.
    """
    out = StringIO()
    counted = "; ".join(_counted_lines(found))
    more = (*(() if found.links is None else _LINK_COLUMNS), *(UNPACKING_COLUMNS if found.unpacking else ()))
    columns = (*COLUMNS[:-1], *more, COLUMNS[-1])
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()

    def add(level: str, stage: str, part: str, b: WorkBound) -> None:
        numbers = {name: getattr(b, name) for name in COLUMNS[3:-1]}
        sent = _link_cells(found.links, stage) if level in ("run", "stage") else {}
        writer.writerow({"level": level, "stage": stage, "part": part, **numbers, **sent, "counted": counted})

    for level, every in (("run", (found.run,)), ("stage", found.stages)):
        for stage in every:
            add(level, stage.id, "", stage.modules)
            add(f"{level} floor", stage.id, "", stage.floor)
            if stage.full is not None:
                add(f"{level} full", stage.id, "", stage.full)
            if stage.unfused is not None:
                add(f"{level} unfused", stage.id, "", stage.unfused)
    for own in found.unpacking:
        vector = dict(zip(UNPACKING_COLUMNS, (own.flops, own.seconds), strict=True))
        writer.writerow({"level": "stage unpacking", "stage": own.stage, **vector, "counted": counted})
    for part in found.parts:
        add("part", part.stage, part.part, part.at_roof)
    return out.getvalue()


def roofline_svg(found: Roofline) -> str:
    """Return the roofline plot as SVG, without parts that have no FLOPs or move no bytes."""
    said = [line for text in _counted_lines(found) for line in wrap(text, _LETTERS)]
    height = _HEIGHT + _NAME[1] * len(said)
    ridge = _ridge(found)
    placed = [p for p in found.parts if p.at_roof.taken and p.at_roof.bytes and p.at_roof.seconds is not None]
    every = [Fraction(p.at_roof.taken or 0, p.at_roof.bytes or 1) for p in placed]
    low = floor_of(log10(min([*every, ridge / 10])))
    high = ceil(log10(max([*every, ridge * 10])))
    bottom = floor_of(log10(found.bandwidth * Fraction(10) ** low))
    top = ceil(log10(found.peak_flops * 2))

    def x(intensity: Fraction) -> float:
        return _LEFT + (log10(intensity) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(rate: Fraction) -> float:
        return _HEIGHT - _BOTTOM - (log10(rate) - bottom) / (top - bottom) * (_HEIGHT - _TOP - _BOTTOM)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        _text(_LEFT, 24, found.name, size=15),
        _text(_LEFT, 44, device_line(found)),
        _text(_LEFT, 60, "The area of a point is its share of the time at the roof. A bound, not a prediction."),
    ]
    for n in range(low, high + 1):
        at = x(Fraction(10) ** n)
        lines += [
            _line(at, _TOP, at, _HEIGHT - _BOTTOM, "#ddd"),
            _text(at, _HEIGHT - _BOTTOM + 18, f"{10**n:,}" if n >= 0 else f"1/{10**-n:,}", "middle"),
        ]
    for n in range(bottom, top + 1):
        at = y(Fraction(10) ** n)
        lines += [
            _line(_LEFT, at, _WIDTH - _RIGHT, at, "#ddd"),
            _text(_LEFT - 8, at + 4, human(10**n, "FLOP/s", places=0), "end"),
        ]
    lines.append(_text((_LEFT + _WIDTH) / 2, _HEIGHT - 14, "FLOP per byte", "middle"))
    lines += [_text(_NAME[0], _HEIGHT + _NAME[1] * i, text, size=11) for i, text in enumerate(said)]
    start = (x(Fraction(10) ** low), y(found.bandwidth * Fraction(10) ** low))
    corner, end = (x(ridge), y(Fraction(found.peak_flops))), (_WIDTH - _RIGHT, y(Fraction(found.peak_flops)))
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (start, corner, end))
    lines.append(f'<polyline points="{path}" fill="none" stroke="#222" stroke-width="2"/>')
    lines += list(_points(found, placed, x, y))
    return "\n".join([*lines, "</svg>", ""])


def _points(found: Roofline, placed: list[PartBound], x: PixelScale, y: PixelScale) -> Iterator[str]:
    colours = {s.id: colour(i) for i, s in enumerate(found.stages)}
    whole = Fraction(found.run.modules.seconds or 1) or Fraction(1)
    named = [p for p in longest_parts(found)[:MAX_PARTS] if p in placed][:_NAMED]
    used: list[tuple[float, float, float]] = []
    lines: list[str] = []
    names: list[str] = []
    for p in sorted(placed, key=lambda p: -Fraction(p.at_roof.seconds or 0)):
        b = p.at_roof
        seconds = Fraction(b.seconds or 0)
        at = x(Fraction(b.taken or 0, b.bytes or 1)), y(Fraction(b.taken or 0) / seconds)
        radius = 3 + 30 * float(seconds / whole) ** 0.5
        said = f"{p.stage} {p.part}: {human(b.flops, 'FLOP')}, {human(b.bytes, 'B')}, {duration(b.seconds)}, {b.bound}"
        yield (
            f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:.1f}" fill="{colours[p.stage]}" fill-opacity="0.55">'
            f"<title>{escape(visible(said))}</title></circle>"
        )
        if p in named:
            name = p.part if p.part.split(".")[0] == p.stage else f"{p.stage} {p.part}"
            width = float(_NAME[0] * len(name))
            # Below the roof, and so that no two lie on each other.
            left, low = min(at[0] + 12, _WIDTH - width), at[1] + radius + 14
            while any(left < a + w and a < left + width and abs(low - h) < _NAME[1] for a, w, h in used):
                low += _NAME[1]
            used.append((left, width, low))
            lines.append(_line(at[0], at[1], left - 2, low - 4, "#777"))
            size = f'width="{width:.1f}" height="{_NAME[1]}"'
            names.append(f'<rect x="{left - 1:.1f}" y="{low - 12:.1f}" {size} fill="#fff" fill-opacity="0.85"/>')
            names.append(_text(left, low, name))
    yield from (*lines, *names)
    for i, stage in enumerate(found.stages):
        at_y = _HEIGHT - _BOTTOM - 12 - 16 * (len(found.stages) - 1 - i)
        yield f'<circle cx="{_WIDTH - _RIGHT - 150}" cy="{at_y - 4}" r="5" fill="{colours[stage.id]}"/>'
        yield _text(_WIDTH - _RIGHT - 140, at_y, f"{stage.id}, {duration(stage.modules.seconds)}")


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    shown = escape(visible(text))
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{shown}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


_SLOWEST: Final = " in the mean; the slowest of them takes as long or longer"


def _link_blocks(found: LinkBounds, *, text: bool, title: str = "", means: bool = False) -> list[Block]:
    """Return tables of the time bounds by stage and of the collectives, and sentences on the ranks.

    Args:
        means: whether the times of a rank are those of its mean rows of routed experts.
    """
    times = [(Code(s.id or "whole run"), *_cells(s)) for s in _shown(found)]
    stages = Table(_LINK_STAGES, "lrrrrl", times, keys=1, title=title)
    sent = [(Code(s), Code(p), *rest) for s, p, *rest in _collective_rows(found)]
    collectives = Table(_COLLECTIVES, "lllrrrrrr", sent)
    said = (f"{_devices_sentence(found)} {_MEANING}", _ranks_sentence(found, means=means))
    lines: list[Block] = [*said] if text else [Items(said)]
    return [stages, *lines, collectives]


def _devices_sentence(found: LinkBounds) -> str:
    """Return a sentence on the devices and the bandwidths between them."""
    inside = f"{human(found.interconnect, 'B/s')} from each to the others"
    if found.node is None or found.node >= found.count:
        return f"{found.count} devices in one node: {inside}, in one direction."
    outside = "none sent to other nodes" if found.network is None else f"{human(found.network, 'B/s')} to other nodes"
    return f"{found.count} devices in nodes of {found.node}: {inside} of its node, {outside}, in one direction."


def _ranks_sentence(found: LinkBounds, *, means: bool) -> str:
    """Return a sentence on the slowest and the fastest ranks; of means, which of them is slowest differs by routing."""
    slowest, fastest = found.ranks[0], found.ranks[-1]
    longest, shortest = (Fraction(row.overlapped_s or 0) for row in (slowest, fastest))
    check_recounts([Recount("", "fastest rank", "is slower", shortest > longest, False)])
    if len(found.ranks) == 1 and len(slowest.ranks) == found.count:
        return f"All {found.count} ranks have these times{_SLOWEST if means else ''}."
    if sum(len(r.ranks) for r in found.ranks) < found.count:
        return f"Only rank {slowest.ranks[0]} is counted: which of {found.count} ranks is the slowest is not known."
    both = f"{_rank(slowest, found.count)}; fastest: {_rank(fastest, found.count)}{_SLOWEST if means else ''}"
    return f"Slowest, whole run: {both}."


def _rank(found: RankTimes, world: int) -> str:
    times = f"{duration(found.exposed_s)} exposed, {duration(found.overlapped_s)} overlapped"
    return f"{'ranks' if len(found.ranks) > 1 else 'rank'} {ranks_text(found.ranks, world)} ({times})"


def _shown(found: LinkBounds) -> tuple[StageLinks, ...]:
    return found.stages if len(found.stages) > 2 else found.stages[:1]


def _cells(s: StageLinks) -> tuple[str, ...]:
    times = (duration(s.seconds), duration(s.exposed_s), duration(s.overlapped_s))
    return (human(s.sent_bytes, "B"), *times, s.bound or "?")


def _collective_rows(found: LinkBounds) -> list[tuple[str, ...]]:
    """Return the rows of the table :data:`_COLLECTIVES`, slowest first."""
    return [
        (c.stage, c.part, c.kind, exact(c.ranks), exact(c.nodes), exact(c.messages), human(c.payload_bytes, "B"),
         human(c.sent_bytes, "B"), duration(c.seconds))
        for c in sorted(found.collectives, key=lambda c: -Fraction(c.seconds))
    ]  # fmt: skip


def _link_cells(found: LinkBounds | None, stage: str) -> dict[str, object]:
    """Return the values of :data:`_LINK_COLUMNS` by column, for a stage or the whole run; empty on one device."""
    here = () if found is None else (s for s in found.stages if s.id == stage)
    return {
        name: value
        for s in here
        for name, value in zip(
            _LINK_COLUMNS, (s.sent_bytes, s.seconds, s.exposed_s, s.overlapped_s, s.bound), strict=True
        )
    }
