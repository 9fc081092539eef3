"""A run under the roof of a device as a part of a page: the picture, stages and the largest parts."""

from __future__ import annotations

from collections.abc import Iterable

from costproof.estimate.roofline import Roofline
from costproof.reports.html.document import Html, h, joined, table
from costproof.reports.html.parts import folded
from costproof.reports.roofline_svg import roofline_svg
from costproof.reports.roofline_words import BOUND, MODULES, PARTS, STAGES, floor, parts, roof, stages, waiting


def roof_part(found: Roofline | None) -> Html | None:
    """The section; ``None`` where no device was named."""
    if found is None:
        return None
    drawn = h("div", Html(roofline_svg(found)), class_="roof", role="img", aria_label=f"Roofline. {waiting(found)}")
    return h(
        "section",
        h("h2", f"Time at the roof: {found.device.title}"),
        h("p", f"{roof(found)}. {waiting(found)}"),
        _notes((BOUND, MODULES, floor(found))),
        drawn,
        table(STAGES, stages(found)),
        folded("Largest parts", table(PARTS, parts(found), align="llrrrrrl")),
        id="roof",
    )


def _notes(said: Iterable[str]) -> Html:
    return joined(*(h("p", line, class_="note") for line in said))
