"""Report whether a run fits into memory, by kind of bytes and with limits of settings; report checkpoint sizes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Final

from costproof.estimate.memory import Fits, HeldKind, MemoryLimit, MeshTried, RankMemory, StageMemory
from costproof.ledger.errors import Recount, check_recounts
from costproof.ledger.plural import plural
from costproof.ledger.workload import KV_BLOCK, KV_DTYPE, TargetInfo, cache_counted, counted_line, quantised_clause
from costproof.reports.document import (
    Block,
    Code,
    Document,
    DocumentSection,
    Form,
    Items,
    Note,
    Number,
    Prose,
    Table,
    plain_text,
)
from costproof.reports.static import ranks_text
from costproof.storage.checkpoint import StoredCheckpoint
from costproof.views.describe import note_lines
from costproof.views.numbers import exact, human

HEAD: Final = ("Held", "Bytes", "")
STAGES: Final = ("Stage", "Added to the cache", "Activations, at most")
LIVE_STAGES: Final = ("Stage", "Added to the cache", "Live peak")
MOST_REFUSED: Final = 8
"""Most refused meshes that are named in one row."""
TRIED: Final = ("Mesh", "Weights and buffers of a rank", "Verdict")
RANKS: Final = ("Ranks", "Weights", "Cache", "At most", "Verdict")
PEAKS: Final = ("Peak, arguments apart", "Peaks of all its calls")
ACTIVATIONS: Final = (
    "The bound of activations keeps every tensor that crosses the border of a module, in one call of each stage, and "
    "beside it all that the operators of one layer of each kind take and make."
)
LIVE: Final = (
    "a formula of the tensors that a stage holds at once, its cache included. Each is released "
    "after its last reader, as an exported graph does; a module that Python runs holds some of them longer."
)
OF_GRAPH: Final = (
    "the tensors that the exported graph of a stage holds at once, its cache included. Each is "
    "released after its last reader; a module that Python runs holds some of them longer."
)
AT_PEAK: Final = (
    "That a kernel has the largest matrix unpacked at the live peak is assumed, so the sum is an upper bound."
)
UNBOUNDED: Final = "Only formulas bound activations, and here are none: a capture with --peaks says what is held."
PEAKS_AT_ONCE: Final = "the peaks of all stages at once"
WITH_PEAKS: Final = (
    "A peak is what a stage as written holds at once, temporaries and its cache among it, by a run on a CPU. "
    "A run holds the weights and the largest peak at least, arguments of the stage apart, and at most the weights and "
    "all peaks."
)
SOME_PEAKS: Final = "Some peaks are not known: the largest of the others is held for certain, and bounds nothing."
OF_MAIN: Final = "Batches, lengths and limits are those of a run without the cache and activations of {}."
RUNTIME: Final = "What a runtime takes for itself is in none of these numbers."
RESERVED: Final = (
    "What a runtime takes for itself is not counted: --reserve leaves room for it, as much as the caller says."
)
_HELD: Final[dict[HeldKind, str]] = {
    "weights and cache": "weights, buffers and cache",
    "weights and live peak": "weights, buffers and the live peak",
    "weights and graph peak": "weights, buffers and the largest graph peak, arguments apart,",
    "weights, cache and bound": "weights, buffers, cache and the bound of activations",
}
SHEET: Final = (
    "The memory is that of the device file; a device may report some percent more or less: --memory SIZE takes that."
)


def document(found: Fits, form: Form) -> Document:
    """Return the report of whether a model fits into a memory.

    It has the verdict, the bytes held by weights, cache and activations and by each stage, the source of each bound,
    and the largest batch and length that fit.
    """
    head, stages = _head(found), _stages(found)
    says: list[Prose] = list(_scope_sentences(found))
    body: list[Block] = [Table(HEAD, "lrr", _held_rows(found))]
    if stages:
        body.append(Table(_labelled(found, *head), "lr", [(Code(s), *cells) for s, *cells in stages]))
    if found.tried:
        body.append(Table(TRIED, "lrl", [*_tried_rows(found.tried)]))
    if len(found.ranks) > 1:
        rows = [_rank_row(x, found.workload.mesh.world) for x in found.ranks]
        body.append(Table(_labelled(found, *RANKS), "lrrrl", rows))
    solved = [limit_sentences(x, found) for x in found.limits]
    if form == "text":
        lines = tuple(line for said, sides in solved for line in (said, *([f"    {sides}"] if sides else ())))
        limits = DocumentSection("Limits, solved and evaluated on both sides:", [Items(lines)])
    else:
        says = [" ".join(map(plain_text, says))]
        limits = DocumentSection("Limits", [Items(tuple(map("; ".join, solved)))])
    if lines := _plain_lines(found):
        body.append(Items(lines))
    body += [*says, *([limits] if solved else [])]
    about = [_counted(found), *note_lines(found.notes)]
    return Document(found.name, body, "", fit_sentence(found), about)


def fit_sentence(found: Fits) -> str:
    """Return the verdict of a memory estimate with its reason."""
    room = f"{exact(found.memory_bytes)} B"
    peaked = found.live_bytes is None and found.peaks_bytes is not None
    if not found.is_known:
        reason = quantised_clause(_as_counted(found), found.workload)
        return f"Not known whether it fits into {room}: {reason}."
    if found.verdict == "does not fit":
        alone = found.certain_bytes is not None and found.certain_bytes > found.memory_bytes
        if not alone and found.live_bytes is not None:
            return _all_held(found, f"Does not fit into {room}: weights, buffers and the live peak are more.")
        most = "cache" if alone else "the largest peak"
        parts = "weights, attributes" if found.attributes_bytes else "weights"
        return f"Does not fit into {room}: {parts} and {most} alone are more."
    if found.verdict == "fits":
        most = PEAKS_AT_ONCE if peaked else "the most that activations take"
        more = f", without the cache and activations of {_further(found)}" if found.next_token_modules else ""
        return f"Fits into {room} with {most if found.live_bytes is None else 'the live peak'}{more}."
    if found.buffers_bytes is None and found.certain_bytes is not None:
        return f"Not known whether it fits into {room}: weights and cache do, and nothing says what the buffers take."
    if found.most_bytes is None and found.certain_bytes is not None:
        return f"Not known whether it fits into {room}: weights and cache do, and nothing bounds the activations."
    if found.most_bytes is None:
        return f"Not known whether it fits into {room}: not all of it is counted."
    if found.blocked_live_bytes is not None:
        return f"Not known whether it fits into {room}: not if the blocks of the cache are added to the live peak."
    if found.live_bytes is not None:
        why = "a kernel unpacks the largest matrix" if found.is_live_exact else "it computes with a cache of its dtype"
        return f"Not known whether it fits into {room}: not if {why}."
    more = PEAKS_AT_ONCE if peaked else "the most that activations take"
    return f"Not known whether it fits into {room}: weights and cache do, and not {more}."


def _as_counted(found: Fits) -> TargetInfo:
    """Return the target's description without the weight format that the memory estimate already includes."""
    left = {part: text for part, text in found.target.quantised.items() if part != "weights" or not found.stored_format}
    return replace(found.target, quantised=left)


def _counted(found: Fits) -> str:
    stored = f"; weights as stored: {found.stored_format}" if found.stored_format else ""
    return f"{counted_line(_as_counted(found), found.workload)}{stored}"


def _transient(found: Fits) -> str:
    """Return the name of the weights that are in memory only while modules run."""
    if found.workload.mesh.fsdp > 1:
        return "gathered parameters and their buffers, at most"
    return "the largest matrix, unpacked"


def _held_rows(found: Fits) -> list[tuple[str, ...]]:
    peaks = (
        ("largest peak of a stage, arguments apart", found.peak_bytes),
        ("weights, buffers and largest peak", found.eager_least_bytes),
        ("weights, buffers and all peaks", found.eager_most_bytes),
    )
    bounds = (("activations, at most", found.activations_bytes),)
    blocks = (
        (f"cache in blocks of {found.workload.inputs.get(KV_BLOCK)} tokens", found.held_cache_bytes),
        ("waste, in these blocks", found.cache_waste_bytes),
    )
    blocked_peak = (("live peak, its cache in blocks, at most", found.blocked_live_bytes),)
    named = (
        (_weights_label(found), found.held_weights),
        *(((f"of these, {_further(found)}", found.next_token_bytes),) if found.next_token_modules else ()),
        ("buffers", found.buffers_bytes),
        *((("tensors that are attributes", found.attributes_bytes),) if found.attributes_bytes else ()),
        ("cache when the run ends", found.cache_bytes),
        *(blocks if found.held_cache_bytes is not None else ()),
        ("weights, buffers and cache", found.certain_bytes),
        *(bounds if found.live_bytes is None else ((f"live peak, cache included{_at_most(found)}", found.live_bytes),)),
        *(blocked_peak if found.blocked_live_bytes is not None else ()),
        *(() if found.unpacked_bytes is None else ((_transient(found), found.unpacked_bytes),)),
        *(
            (("all of these", found.bound_bytes),)
            if found.live_bytes is None
            else ((f"weights, buffers and live peak{'' if found.is_most_exact else ', at most'}", found.most_bytes),)
        ),
        *(() if found.peak_bytes is None else peaks),
        *((("left to the runtime, by --reserve", found.reserve_bytes),) if found.reserve_bytes else ()),
        ("memory" if not found.reserve_bytes else "memory without that", found.memory_bytes),
    )
    return [(*_labelled(found, _all_held(found, name)), exact(value), human(value, "B")) for name, value in named]


def _weights_label(found: Fits) -> str:
    return f"weights, stored as {found.stored_format}" if found.stored_format else "weights"


def _further(found: Fits) -> str:
    return plural(found.next_token_modules, "MTP module")


def _further_line(found: Fits) -> str:
    """Return a line with the MTP modules of all ranks, and the copies by which they exceed one device."""
    metric = "resident_bytes"
    every = sum(len(row.ranks) * row.stages[""][metric] for row in found.next_token_ranks)
    copies = [d for d in found.next_token_copies if d.metric == metric]
    more = sum(d.amount for d in copies)
    named = ", ".join(f"{d.what} {human(d.amount, 'B')}" for d in copies)
    of = f"{_further(found)} on all ranks: {human(every, 'B')}, those of one device {human(every - more, 'B')}"
    return f"{of} and copies: {named}." if copies else f"{of}."


def _at_most(found: Fits) -> str:
    return "" if found.is_live_exact else ", at most"


def _all_held(found: Fits, text: str) -> str:
    """Add the word attributes to a text about the bytes in memory, if some tensors are plain attributes."""
    return text.replace("weights, buffers", "weights, buffers, attributes") if found.attributes_bytes else text


def _labelled(found: Fits, *names: str) -> tuple[str, ...]:
    """Return names of bytes, extended by the dtype assumed for a cache whose format is unknown."""
    more = f", as if the cache were {found.workload.dtype}" if _unknown_cache(found) else ""
    return tuple(f"{name}{more}" if re.search("cache|live peak", name, re.IGNORECASE) else name for name in names)


def _unknown_cache(found: Fits) -> bool:
    return "cache" in cache_counted(found.target, found.workload).quantised


def _head(found: Fits) -> tuple[str, ...]:
    first = STAGES if found.live_bytes is None else (*LIVE_STAGES[:-1], LIVE_STAGES[-1] + _at_most(found))
    return first if found.peak_bytes is None else (*first, *PEAKS)


def _scope_sentences(found: Fits) -> list[str]:
    bounded = ACTIVATIONS if found.activations_bytes is not None else UNBOUNDED
    if found.live_bytes is not None:
        earned = "exact"
        if not found.is_live_exact:
            cache = f"the cache in {found.workload.dtype}, not in {found.workload.inputs[KV_DTYPE]}"
            earned = f"an upper bound, since it has {cache}"
        bounded = f"The live peak is {earned}: {LIVE if found.live_source == 'formula' else OF_GRAPH}"
        bounded += f" {AT_PEAK}" if found.unpacked_bytes and found.workload.mesh.fsdp == 1 else ""
    elif found.peak_bytes is not None:
        bounded = WITH_PEAKS if found.peaks_bytes is not None else f"{SOME_PEAKS} {bounded}"
    memory = None if found.device is None else found.device.memory
    sheet = memory is not None and memory.value == found.memory_bytes
    without = OF_MAIN.format(_further(found)) if found.next_token_modules else ""
    taken = RESERVED if found.reserve_bytes else RUNTIME
    return [bounded, *([without] if without else []), taken, *([SHEET] if sheet else [])]


def _stages(found: Fits) -> list[tuple[str, ...]]:
    """Return the table rows of the stages; empty for a single stage, whose bytes equal the total."""
    return (
        []
        if len(found.stages) == 1
        else [
            (s.id, exact(s.cache_bytes), exact(s.activations_bytes) if found.live_bytes is None else _live(found, s))
            + (() if found.peak_bytes is None else (exact(s.peak_bytes), exact(s.peaks_bytes)))
            for s in found.stages
        ]
    )


def _live(found: Fits, stage: StageMemory) -> str:
    """Return the live peak of a stage; one that runs inside the graph of another stage is part of the other's."""
    own = stage.live_bytes is not None or found.live_source == "formula"
    return exact(stage.live_bytes) if own else "in another stage's"


def _plain_lines(found: Fits) -> tuple[str, ...]:
    """Return lines that answer common questions: cache bytes per token, the largest batch, the longest text."""
    lines = [_copies(found)] if found.count is not None and found.verdict == "fits" else []
    lines += [] if found.rank is None else [_rank_line(found)]
    lines += [_further_line(found)] if found.next_token_ranks else []
    if found.token_bytes and not _unknown_cache(found):
        lines.append(f"One more token of text takes {exact(found.token_bytes)} B of cache in each sequence.")
    by_cache, by_peak, by_bound = (
        {x.setting: x for x in found.limits if x.held == held}
        for held in ("weights and cache", "weights and live peak", "weights, cache and bound")
    )
    for setting, what in (
        ("batch", "The largest batch at this length"),
        ("text_tokens", "The longest text in this batch"),
    ):
        for limit in (of[setting] for of in (by_cache, by_peak, by_bound) if setting in of):
            held = [p.at for p in limit.points if p.bytes <= found.memory_bytes]
            if held and limit.outcome in ("from", "refused"):
                stated = (_most(limit) or "").partition(", the most")[0]
                check_recounts([Recount("", what, "fits", stated == exact(max(held)), True)])
        if setting in by_peak and (most := _most(by_peak[setting])) is not None:
            alone = _most(by_cache[setting]) if setting in by_cache else None
            if found.is_most_exact:
                further = f" (by the cache alone {alone})." if alone not in (None, most) else "."
            else:
                most, further = f"at least {most}", f", and by the cache alone {alone or 'not known'}."
            lines.append(f"{what}: {most}{further}")
        elif found.rank is not None and setting in by_bound and (most := _most(by_bound[setting])) is not None:
            alone = _most(by_cache[setting]) if setting in by_cache else None
            lines.append(f"{what}: at least {most}, and by the cache alone {alone or 'not known'}.")
    less_held = found.last_logits_bytes is not None and found.last_logits_bytes < (found.live_bytes or 0)
    if less_held and not _unknown_cache(found):
        less = exact(found.last_logits_bytes)
        most = "" if found.is_live_exact else "at most "
        lines.append(f"Logits of all positions decide the live peak: with --logits last it is {most}{less} B.")
    check_recounts(_word_recounts(found, " ".join(lines)))
    known = {exact(number) for number in _integers(asdict(found))}
    for size in re.findall(r"([\d,]+) B\b", " ".join(lines)):
        check_recounts([Recount("", f"{size} B in a line of the report", "is in the JSON", size in known, True)])
    return tuple(lines)


def _word_recounts(found: Fits, lines: str) -> Iterator[Recount]:
    """Yield checks of the numbers in words, read back: devices that runs have, bytes of the modules of all ranks."""
    if of := re.search(
        r"The ([\d,]+) devices hold ([\d,]+) such runs? of ([\d,]+) ranks?; ([\d,]+|none) of them", lines
    ):
        devices, copies, ranks, idle = (0 if n == "none" else int(n.replace(",", "")) for n in of.groups())
        yield Recount("", "devices of all such runs, and idle ones", "number", copies * ranks + idle, found.count or 0)
        yield Recount("", "idle devices for which a run has no room", "are", devices == found.count, idle < ranks)
    if of := re.search(r"on all ranks: ([\d.,]+ \w+), those of one device ([\d.,]+ \w+)( and copies)?", lines):
        by_rank = {rank: row.stages[""]["resident_bytes"] for row in found.next_token_ranks for rank in row.ranks}
        whole = sum(by_rank.values())
        for copy in found.next_token_copies:
            whole -= copy.amount if copy.metric == "resident_bytes" else 0
        for what, printed, again in (("all ranks", of[1], sum(by_rank.values())), ("one device", of[2], whole)):
            yield Recount("", f"MTP modules of {what}", "bytes are printed", printed == human(again, "B"), True)


def _integers(data: object) -> Iterator[int]:
    """Yield the integers in nested data."""
    if isinstance(data, int):
        yield data
    for value in data.values() if isinstance(data, dict) else data if isinstance(data, list | tuple) else ():
        yield from _integers(value)


def _tried_rows(tried: Iterable[MeshTried]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each mesh, and one for all that are refused for the same reason."""
    alike: dict[str, list[MeshTried]] = {}
    for x in tried:
        why, _, _ = x.why.rpartition("; got ")
        alike.setdefault(f"cannot be: {why or x.why}" if x.verdict is None else f"{x.tp}, {x.ep}", []).append(x)
    for why, same in alike.items():
        meshes = [f"tp {x.tp}" + (f", ep {x.ep}" if x.ep > 1 else "") for x in same]
        more = len(meshes) - MOST_REFUSED
        shown = "; ".join(meshes[:MOST_REFUSED]) + (f"; {more} more" if more > 0 else "")
        weights = same[0].weights_bytes
        yield (shown, "" if weights is None else exact(weights), same[0].verdict or why)


def _copies(found: Fits) -> str:
    """Return a sentence on the devices besides those of the mesh that was found."""
    copies, idle = divmod(found.count or 0, found.workload.mesh.world)
    ranks = plural(found.workload.mesh.world, "rank")
    rest = f"{idle or 'none'} of them {'are' if idle > 1 else 'is'} idle"
    return f"The {found.count} devices hold {plural(copies, 'such run')} of {ranks}; {rest}."


def _rank_row(x: RankMemory, world: int) -> tuple[str, ...]:
    return (ranks_text(x.ranks, world), *map(exact, (x.weights_bytes, x.cache_bytes, x.most_bytes)), x.verdict)


def _holders(ranks: tuple[int, ...], world: int) -> str:
    return f"rank {ranks[0]} holds" if len(ranks) == 1 else f"ranks {ranks_text(ranks, world)} hold"


def _rank_line(found: Fits) -> str:
    """Return a sentence that names the ranks with the most bytes and the rank that was counted."""
    world, counted = found.workload.mesh.world, f"these bytes and limits are of rank {found.rank}"
    if len(found.ranks) > 1 and found.held_weights is not None:
        hold = _holders(found.ranks[0].ranks, world)
        return f"Of {world} ranks, {hold} the most: these bytes are of rank {found.rank}, limits the least of all."
    if not found.binding_ranks:
        return f"Which of {world} ranks hold the most is not known: {counted}."
    if len(found.binding_ranks) == world:
        return f"All {world} ranks hold the same weights and cache: {counted}."
    hold = _holders(found.binding_ranks, world)
    deciding = f"of {world} ranks, {hold} the most weights and cache, which decides"
    if found.rank in found.binding_ranks:
        return f"O{deciding[1:]}; {counted}."
    return f"T{counted[1:]}, which holds less: {deciding}; rank={found.binding_ranks[0]} counts one of them."


def _most(x: MemoryLimit) -> str | None:
    """Return a sentence with the largest value of a setting that fits; ``None`` if it was not solved."""
    if x.outcome == "from" and x.at is not None:
        return next((exact(p.at) for p in x.points if p.at < x.at), "none")
    if x.outcome == "refused" and x.at is not None:
        return next(
            (f"{exact(p.at)}, the most that is accepted" for p in x.points if p.at < x.at), "any that is accepted"
        )
    return "any" if x.outcome == "never" else None


def limit_sentences(x: MemoryLimit, found: Fits) -> tuple[str, str]:
    """Return two sentences on a solved limit: the setting value, and the bytes just below and at the limit."""
    name, room = x.setting.replace("_", "-"), found.memory_bytes
    held = _all_held(found, _HELD[x.held])
    sides = "; ".join(
        f"at {name} {exact(p.at)}: {exact(p.bytes)} {'>' if p.bytes > room else '≤'} {exact(room)} B" for p in x.points
    )
    certain = x.held != "weights and live peak" or found.is_most_exact
    if x.outcome == "from":
        return f"{held} {'do' if certain else 'may'} not fit from {name} {exact(x.at)} on", sides
    if x.outcome == "never":
        return f"{held} fit at every {name}", sides
    if x.outcome == "refused":
        return (
            f"{held} {'would' if certain else 'might'} not fit from {name} {exact(x.at)} on, which is refused: {x.why}",
            sides,
        )
    return f"from which {name} on {held} do not fit is not solved: {x.why}", sides


STORED_TOTALS: Final = ("Of the checkpoint", "Number")
STORED_PARTS: Final = ("Tensor", "Dtype", "Shape", "Tensors", "Bytes")
STORED_DIFFERENCES: Final = ("Tensor", "By the layout", "In the headers", "Bytes", "Cause")
STORED_SECTIONS: Final = ("Of the file, besides tensors", "Bytes")
MOST_STORED: Final = 20
STORED_MEANING: Final = (
    "Stored bytes are the payload of the files, without headers. Elements are those that headers add up to, scales and "
    "packed words among them; parameters are those of the model before it was quantised."
)


def stored_document(found: StoredCheckpoint, form: Form) -> Document:
    """Return the report of a checkpoint's tensors; plain text lists only the largest parts."""
    rows = [(Code(p.name), p.dtype, str(list(p.shape)), exact(p.tensors), _number(p.bytes)) for p in found.parts]
    most = None if form == "html" else MOST_STORED
    body: list[Block] = [
        Table(STORED_TOTALS, "lr", list(_stored_totals(found))),
        Table(STORED_PARTS, "lllrr", rows, most=most, noun="smaller part", rest="-f json"),
    ]
    if found.headers is not None and found.headers.differences:
        different = [(Code(d.name), d.expected or "none", d.got or "none", _number(d.bytes), d.cause or "not known")
                     for d in found.headers.differences]  # fmt: skip
        body.append(Table(STORED_DIFFERENCES, "lllrl", different, most=most, noun="smaller difference", rest="-f json"))
    if found.headers is not None and found.headers.sections:
        sections = sorted(found.headers.sections, key=lambda section: -section.bytes)
        inside = [(section.name, _number(section.bytes)) for section in sections if section.bytes]
        body.append(Table(STORED_SECTIONS, "lr", inside, most=most, noun="smaller section", rest="-f json"))
    said = [f"Assumed: {text}." for text in found.assumed]
    said += [f"Beside these, of unknown size: {text}." for text in found.undetermined]
    said += [f"Left out: {text}." for text in found.left_out]
    if said:
        body.append(Items(tuple(said)))
    body.append(Note(STORED_MEANING))
    return Document(f"Stored: {found.target}", body, "", stored_sentence(found))


def _number(value: int) -> Number:
    return Number(value, exact(value))


def _stored_totals(found: StoredCheckpoint) -> Iterator[tuple[str, Number]]:
    yield "stored bytes", _number(found.totals.bytes)
    yield "stored elements", _number(found.totals.elements)
    for dtype, elements in found.totals.by_dtype:
        yield f"elements in {dtype}", _number(elements)
    yield "parameters", _number(found.params)
    if found.headers is not None:
        yield "bytes by the headers", _number(found.headers.bytes)
        if found.headers.sections:
            yield "bytes of the file", _number(found.headers.bytes + sum(s.bytes for s in found.headers.sections))


def stored_sentence(found: StoredCheckpoint) -> str:
    """Return the size of a checkpoint in one sentence, with the comparison to file headers if they were read."""
    how = ", ".join(found.formats) or "not quantised"
    size = f"{exact(found.totals.bytes)} B ({human(found.totals.bytes, 'B')}), {how}"
    if found.headers is None:
        return f"Stored: {size}{' and more of unknown size' if found.undetermined else ''}."
    if not found.headers.unnamed:
        tensors = plural(found.headers.tensors, "tensor")
        files = plural(found.headers.files, "file")
        named = sum(difference.bytes for difference in found.headers.differences)
        more = found.headers.bytes - found.totals.bytes - named
        rest = f", and {exact(more)} B in tensors whose size no key determines" if more else ""
        if found.headers.differences:
            causes = plural(len({difference.cause for difference in found.headers.differences}), "known cause")
            by_cause = Counter[str]()
            for difference in found.headers.differences:
                by_cause[difference.cause] += difference.bytes
            check_recounts([Recount("checkpoint", "all causes", "bytes that are printed", named, by_cause.total())])
            return f"Explained: {tensors} in {files} differ from the layout by {named:+,} B of {causes}: {size}{rest}."
        return f"Exact: {tensors} in {files} are those of the layout, {size}{rest}."
    delta = found.headers.bytes - found.totals.bytes
    return f"Differs: the headers state {exact(found.headers.bytes)} B, {delta:+,} beside the layout's {size}."
