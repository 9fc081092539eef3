"""Report the ranks of a run on several devices: their costs, their collectives, and what they hold copies of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from costproof.ledger.mesh import Parallel
from costproof.ledger.metrics import EVERY_METRIC, Metric
from costproof.ledger.plural import plural
from costproof.reports.document import Block, Cell, Code, DocumentSection, Note, Number, Table
from costproof.views.numbers import exact, human
from costproof.views.quantities import UNITS

HELD: Final[tuple[Metric, ...]] = ("params", "weight_bytes")
DONE: Final[tuple[Metric, ...]] = ("flops", "kv_cache_bytes", "comm_bytes", "comm_payload_bytes", "messages")
RING: Final = (
    "A rank sends 2 (n - 1) chunks of an all-reduce over n ranks, and n - 1 of the others: the ring algorithm. A chunk"
    " has ceil(elements / n) elements. The payload is the full tensor, whatever the algorithm."
)
SUMS: Final = "All ranks together have what one device has for the same batch, and these copies; nothing is left over."


def section(found: Parallel | None) -> DocumentSection | None:
    """Return the section on ranks, collectives and copies; ``None`` for a run on one device."""
    if found is None:
        return None
    body: list[Block] = [
        Note(f"By the formulas, split as in {found.plan}. Other sections are of rank {found.rank}."),
        Table(("Stage", "Of each rank", "Smallest", "Ranks", "Largest", "Ranks"), "llrlrl", rank_rows(found)),
    ]
    if found.collectives:
        rows = collective_rows(found)
        head = ("Stage", "Call", "Module", "Collective", "Group", "Dtype", "Times", "Payload", "Sent")
        body += [Table(head, "llllllr", rows, title=f"Collectives of rank {found.rank}"), Note(RING)]
    if found.duplicates:
        body += [Table(("Copies", "Stage", "Of", "Amount"), "lllr", copy_rows(found), title="Copies"), Note(SUMS)]
    return DocumentSection(f"Ranks: {plural(found.mesh.world, 'device')}, {found.mesh.text}", body, id="ranks")


def rank_rows(found: Parallel) -> list[tuple[Cell, ...]]:
    """Return a row for each cost: the smallest and the largest of a rank, and which ranks have it."""
    stages, world = tuple(found.ranks[0].stages), found.mesh.world
    rows: list[tuple[Cell, ...]] = []
    for stage, metric in (*((stages[0], m) for m in HELD), *((s, m) for s in stages for m in DONE)):
        (least, with_least), (most, with_most) = found.extremes(stage, metric)
        if most:
            name = "" if metric in HELD else stage
            title = EVERY_METRIC[metric].title
            rows.append((name, title, _amount(least, metric), ranks_text(with_least, world), _amount(most, metric),
                         ranks_text(with_most, world)))  # fmt: skip
    return rows


def collective_rows(found: Parallel) -> list[tuple[Cell, ...]]:
    """Return a row for equal collectives of the counted rank."""
    return [
        (c.stage, c.invocation, Code(c.module), Code(c.kind), f"{c.group}, {plural(len(c.ranks), 'rank')}", c.dtype,
         exact(c.count), _amount(c.bytes, "comm_payload_bytes"), _amount(c.sent_bytes, "comm_bytes"))
        for c in found.collectives
    ]  # fmt: skip


def copy_rows(found: Parallel) -> list[tuple[Cell, ...]]:
    """Return a row for each kind of copy."""
    return [
        (d.what, d.stage, EVERY_METRIC[d.metric].title, _amount(d.amount, d.metric))
        for d in found.duplicates
    ]  # fmt: skip


def lines(found: Parallel) -> Iterator[str]:
    """Yield short lines for the summary on a terminal."""
    for stage in found.ranks[0].stages:
        sent = {c.kind: 0 for c in found.collectives if c.stage == stage}
        for c in found.collectives:
            if c.stage == stage:
                sent[c.kind] += c.count
        _, (most, who) = found.extremes(stage, "comm_bytes")
        kinds = ", ".join(f"{count} {kind}" for kind, count in sent.items()) or "no collectives"
        yield f"{stage}: {kinds}; a rank sends {human(most, 'B')}{_only(who, found)}"
    (least, _), (most, who) = found.extremes(next(iter(found.ranks[0].stages)), "weight_bytes")
    at_most = f"{human(least, 'B')} to " if least != most else ""
    yield f"weights of a rank: {at_most}{human(most, 'B')}{_only(who, found)}"
    held = sum(d.bytes for d in found.duplicates if not d.stage and d.metric == "weight_bytes")
    whole = found.one_device.get("", {}).get("weight_bytes", 0)
    yield f"weights of all ranks: {human(whole, 'B')} of one device and {human(held, 'B')} of copies"


def _only(who: Iterable[int], found: Parallel) -> str:
    named = ranks_text(tuple(who), found.mesh.world)
    return "" if named == "all" else f" (rank {named})"


def _amount(value: int, metric: Metric) -> Number:
    unit = UNITS.get(EVERY_METRIC[metric].unit, "")
    return Number(value, exact(value) + (f" {unit}" if unit else ""))


def ranks_text(ranks: tuple[int, ...], world: int) -> str:
    """Return some of ``world`` ranks as text, with runs of neighbours joined: ``0 to 3, 7``."""
    if len(ranks) == world:
        return "all"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs)
