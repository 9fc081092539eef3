"""A run under the roof of a device as a part of a page: the picture, stages and the largest parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Final
from urllib.parse import quote

from costproof.estimate.roofline import Roofline
from costproof.reports.html.document import Html, h, joined, table
from costproof.reports.html.printer import folded, shares, swatch
from costproof.reports.roofline_svg import roofline_svg
from costproof.reports.roofline_words import (
    BOUND,
    PARTS,
    STAGES,
    duration,
    floor,
    instead,
    left_out,
    modules,
    parts,
    percent,
    roof,
    stages,
    waiting,
)

_TIME: Final = "time"
_TITLE: Final = "time at the roof"


def roof_part(found: Roofline | None) -> Html | None:
    """The section; ``None`` where no device was named."""
    if found is None:
        return None
    drawn = h("div", Html(roofline_svg(found)), class_="roof", role="img", aria_label=f"Roofline. {waiting(found)}")
    return h(
        "section",
        h("h2", f"Time at the roof: {found.device.title}"),
        h("p", f"{roof(found)}. {waiting(found)}"),
        _notes((*instead(found), BOUND, modules(found), floor(found), *left_out(found))),
        drawn,
        table(STAGES, stages(found)),
        folded("Largest parts", table(PARTS, parts(found), align="llrrrrrl")),
        id="roof",
    )


def time_chip(found: Roofline) -> tuple[str, str, str]:
    """Time among the metrics of the first screen: name, title, what the run comes to."""
    return _TIME, _TITLE, duration(found.run.modules.seconds)


def time_metric(found: Roofline, order: Sequence[str]) -> Html:
    """Time as the metrics of the first screen are shown: a bar of shares and a table.

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
        h("p", f"On {found.device.title}. {BOUND}", class_="note"),
        shares(known),
        table(("Stage", "Share", "At the roof", "Compute", "Memory", "Bound by"), rows, class_="cost"),
        h("p", f"Unknown, so not in the bar: {', '.join(unknown)}.", class_="note") if unknown else None,
        class_="metric",
        data_metric=_TIME,
    )


def _notes(said: Iterable[str]) -> Html:
    return joined(*(h("p", line, class_="note") for line in said))
