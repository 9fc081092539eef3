"""The verb ``explain`` with a graph: the operators of a stage, each with its cost, as a list and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from costproof.ledger.callgraph import OperatorListing
from costproof.ledger.environment import require
from costproof.ledger.errors import BadInput
from costproof.models.serving import lacking
from costproof.models.target import Exportable
from costproof.reports.outputs import PICTURES, variants
from costproof.run.count_lock import count_lock
from costproof.run.prepare import prepare
from costproof.run.request import RunRequest, request
from costproof.views.explanation import check_stage


def operators(
    target: str | RunRequest, stage: str, *, module: str | None = None, **choices: Any
) -> tuple[OperatorListing, ...]:
    """The operators of a stage as it is exported, in order, each with its cost.

    Args:
        module: glob on module paths; all unless given.
        choices: those of a run.

    Raises:
        BadInput: no such target or stage, it cannot be exported, or no operator runs in such a module.
        Incomplete: torch is not installed, or a part cannot be exported.
    """
    asked = request(target, **{**choices, "sources": ("static",)})
    with count_lock(asked.rules):
        prepared = prepare(asked)
        model = prepared.target
        check_stage(stage, model.info().stages)
        if not isinstance(model, Exportable):
            raise BadInput("no graph to list", where=model.name, got=lacking(model, ["static"])["static"])
        require("trace", "the graph of a stage")
        from costproof.tracers.static import listings  # imports torch

        found = tuple(listings(model, prepared.workload, stage))
    if module is not None:
        kept = ((one, tuple(x for x in one.lines if fnmatchcase(x.module or "(root)", module))) for one in found)
        found = tuple(OperatorListing(one.stage, one.invocation, one.part, lines) for one, lines in kept if lines)
    if not found:
        raise BadInput("no operator to list", where=f"{stage}, --module {module or '*'}", fix="ask for less")
    return found


def operator_graph(found: Sequence[OperatorListing], kind: str = "svg", *, unrolled: bool = False) -> str | bytes:
    """Operators as a picture: boxes with shapes and shares of the FLOPs, arrows of data; equal layers are drawn once.

    Args:
        found: what :func:`operators` returns.
        kind: ``"svg"``, ``"dot"`` or ``"mmd"``; ``"html"``, a page with a table of them; or ``"png"``, which is bytes.
        unrolled: every operator of every layer, also those that do no work, such as views.

    Raises:
        BadInput: no such kind, or more operators than can be drawn.
        Incomplete: the extra [plot] is not installed, for a PNG.
    """
    from costproof.reports.graph.operators import operator_view

    known = (*PICTURES, "html")
    if kind not in known:
        raise BadInput("no such kind of picture", where=kind, expected="one of " + ", ".join(known))
    view = operator_view(found, unrolled=unrolled)
    if kind == "html":
        from costproof.reports.graph.operators import operators_page
        from costproof.reports.html.printer import HtmlPrinter

        return HtmlPrinter().document(operators_page(view))
    if kind == "png":
        from costproof.reports.graph.svg import svg
        from costproof.reports.plots.raster import png

        return png(svg(view))
    return variants("graph")[kind].text(view)
