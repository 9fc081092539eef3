"""Report the time bounds of a run on several devices, including communication."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from costproof.estimate.links import LinkBounds, RankTimes, StageLinks
from costproof.ledger.errors import Recount, check_recounts
from costproof.reports.document import Block, Code, Items, Table
from costproof.reports.static import ranks_text
from costproof.views.numbers import duration, exact, human

STAGES: Final = ("Stage", "Sent", "Links", "Exposed", "Overlapped", "Bound by")
COLLECTIVES: Final = ("Stage", "Part", "Collective", "Ranks", "Nodes", "Messages", "Payload", "Sent", "Links")
COLUMNS: Final = ("sent", "links_s", "exposed_s", "overlapped_s", "bound_with_links")
MEANING: Final = (
    "Links: what must pass through the links of a rank at least, without latency; a ring sends up to twice as much in "
    "an all-reduce (Sent). Exposed: nothing is faster that does no work during a collective: modules at the roof, then "
    "the collectives. Overlapped: nothing is faster that runs module by module, however it hides collectives behind "
    "work: the longer of the two. Both hold under the conditions of the roof, such as the experts that are read."
)
_SLOWEST: Final = " in the mean; the slowest of them takes as long or longer"


def link_blocks(found: LinkBounds, *, text: bool, title: str = "", means: bool = False) -> list[Block]:
    """Return tables of the time bounds by stage and of the collectives, and sentences on the ranks.

    Args:
        means: whether the times of a rank are those of its mean rows of routed experts.
    """
    times = [(Code(s.id or "whole run"), *_cells(s)) for s in _shown(found)]
    stages = Table(STAGES, "lrrrrl", times, keys=1, title=title)
    sent = [(Code(s), Code(p), *rest) for s, p, *rest in collective_rows(found)]
    collectives = Table(COLLECTIVES, "lllrrrrrr", sent)
    said = (f"{devices_sentence(found)} {MEANING}", ranks_sentence(found, means=means))
    lines: list[Block] = [*said] if text else [Items(said)]
    return [stages, *lines, collectives]


def devices_sentence(found: LinkBounds) -> str:
    """Return a sentence on the devices and the bandwidths between them."""
    inside = f"{human(found.interconnect, 'B/s')} from each to the others"
    if found.node is None or found.node >= found.count:
        return f"{found.count} devices in one node: {inside}, in one direction."
    outside = "none sent to other nodes" if found.network is None else f"{human(found.network, 'B/s')} to other nodes"
    return f"{found.count} devices in nodes of {found.node}: {inside} of its node, {outside}, in one direction."


def ranks_sentence(found: LinkBounds, *, means: bool) -> str:
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


def collective_rows(found: LinkBounds) -> list[tuple[str, ...]]:
    """Return the rows of the table :data:`COLLECTIVES`, slowest first."""
    return [
        (c.stage, c.part, c.kind, exact(c.ranks), exact(c.nodes), exact(c.messages), human(c.payload_bytes, "B"),
         human(c.sent_bytes, "B"), duration(c.seconds))
        for c in sorted(found.collectives, key=lambda c: -Fraction(c.seconds))
    ]  # fmt: skip


def link_cells(found: LinkBounds | None, stage: str) -> dict[str, object]:
    """Return the values of :data:`COLUMNS` by column, for a stage or the whole run; empty on one device."""
    here = () if found is None else (s for s in found.stages if s.id == stage)
    return {
        name: value
        for s in here
        for name, value in zip(COLUMNS, (s.sent_bytes, s.seconds, s.exposed_s, s.overlapped_s, s.bound), strict=True)
    }
