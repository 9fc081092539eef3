"""Implement ``costproof.graph`` and ``costproof.operators``: callgraphs and operators as lists and pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costproof.ledger.callgraph import OperatorListing
from costproof.ledger.environment import require
from costproof.ledger.errors import BadInput, did_you_mean
from costproof.ledger.progress import Progress, silent
from costproof.reports.graph import svg
from costproof.reports.graph.view import GraphChoice, graph_view
from costproof.reports.outputs import PICTURES, variants
from costproof.views.explanation import check_stage
from costproof.views.files import Drawable, read_drawable
from costproof.views.manifest import capture_file

if TYPE_CHECKING:
    from costproof.opgraph.rules.files import Files
    from costproof.run.request import RunRequest


def drawable(
    given: str | os.PathLike[str],
    progress: Progress = silent,
    *,
    rules: Files = (),
    trust_remote_code: bool = False,
) -> Drawable:
    """Return the callgraph that :func:`graph` draws, of a capture, a ``callgraph.json`` or a target traced now.

    A target (``"hf:opt,seq-len=8"``, ``"deepseek-ocr@gundam:2x2"``) runs on the meta device.

    Args:
        given: a capture or a folder of reports, a ``callgraph.json`` of any version, or a target.
        progress: called while a target runs.
        rules: for a target: Python files with operator rules, which are executed.
        trust_remote_code: for a target: whether the code of a snapshot may run.

    Raises:
        BadInput: it is none of these, or a file of a version that this costproof does not read.
        Incomplete: the target cannot run.
    """
    text = os.fspath(given)
    if rules != () or trust_remote_code:
        from costproof.run.operands import check_counted

        check_counted(rules, trust_remote_code, text)
    elif Path(text).exists():
        return read_drawable(capture_file(Path(text)))
    from costproof.models.registry import TARGETS  # drawing a file must not import the packages that targets need
    from costproof.run.operands import names_target, target_with_settings

    if not names_target(text):
        raise BadInput(
            "there is no such file or target",
            where=text[:120],
            expected="a capture, a folder of reports, callgraph.json, or TARGET@PRESET,NAME=VALUE",
            fix=did_you_mean(text.partition("@")[0].partition(",")[0], TARGETS.all()),
        )

    from costproof.run.count_lock import count_lock

    with count_lock(rules):
        target, workload = target_with_settings(text, trusted=trust_remote_code)
        require("trace", "running a target for its callgraph")
        from costproof.run.capture import count_sources  # loads the tracers
        from costproof.run.prepare import Prepared

        return count_sources(Prepared(target, workload, ("dynamic",)), progress).capture


def graph(
    capture: Drawable | str | os.PathLike[str],
    kind: str = "svg",
    *,
    depth: int | None = None,
    stage: str | None = None,
    prefix: str | None = None,
    heavy: bool = False,
    link: str | None = None,
    slide: bool = False,
    rules: Files = (),
    trust_remote_code: bool = False,
) -> str | bytes:
    """Draw the callgraph of a capture: modules grouped into families, and how they repeat.

    Args:
        capture: a capture, or a separate callgraph without costs, or a target.
        kind: ``"svg"``, ``"dot"`` or ``"mmd"``; or ``"png"``, which returns bytes.
        depth: calls below the outermost modules; ``None``: as many as fit on a page.
        stage: only modules that work in this stage, with its costs.
        prefix: only this module and its submodules.
        heavy: only modules with matmul-like work, and the modules that contain them.
        link: target of a click; ``{path}`` and ``{class}`` are filled in.
        slide: for SVG and PNG: 16:9 with as many modules as are readable on a slide, the heaviest first.
        rules, trust_remote_code: for a target, as for :func:`drawable`.

    Raises:
        BadInput: no such kind, stage or module, or a slide of another kind.
        Incomplete: the capture has no callgraph; or the extra [plot] is not installed, for a PNG.
    """
    known = variants("graph")
    if kind not in PICTURES:
        raise BadInput("no such kind of picture", where=kind, expected="one of " + ", ".join(PICTURES))
    if slide and kind not in ("svg", "png"):
        raise BadInput("a slide is drawn only as svg or png", where=f"--slide, {kind}", expected="svg or png")
    found = (
        drawable(capture, rules=rules, trust_remote_code=trust_remote_code)
        if isinstance(capture, str | os.PathLike)
        else capture
    )
    view = graph_view(found, GraphChoice(depth, stage, prefix, heavy, link))
    if kind != "png":
        return svg.slide(view) if slide else known[kind].text(view)
    from costproof.reports.plots.figure import png

    return png(svg.slide(view) if slide else svg.svg(view))


def operators(
    target: str | RunRequest, stage: str, *, module: str | None = None, **choices: Any
) -> tuple[OperatorListing, ...]:
    """Return the operators of an exported stage in order, each with its cost.

    Args:
        target: the target.
        stage: the stage.
        module: glob pattern of module paths (default: all).
        choices: choices of a run.

    Raises:
        BadInput: no such target or stage, it cannot be exported, or no operator runs in a matching module.
        Incomplete: torch is not installed, or a part cannot be exported.
    """
    from costproof.models.target import Exportable, lacking
    from costproof.run.count_lock import count_lock
    from costproof.run.prepare import prepare
    from costproof.run.request import request

    asked = request(target, **{**choices, "sources": ("static",)})
    with count_lock(asked.rules):
        prepared = prepare(asked)
        model = prepared.target
        check_stage(stage, model.info().stages)
        if not isinstance(model, Exportable):
            raise BadInput(
                "this target has no graph whose operators can be listed",
                where=model.name,
                got=lacking(model, ["static"])["static"],
            )
        require("trace", "the graph of a stage")
        from costproof.tracers.static import listings  # imports torch

        found = tuple(listings(model, prepared.workload, stage))
    if module is not None:
        kept = ((one, tuple(x for x in one.lines if fnmatchcase(x.module or "(root)", module))) for one in found)
        found = tuple(OperatorListing(one.stage, one.invocation, one.part, lines) for one, lines in kept if lines)
    if not found:
        raise BadInput(
            "no operator of this stage matches", where=f"{stage}, --module {module or '*'}",
            expected="a glob on paths of modules, (root) for the model itself", fix="a wider --module, such as '*mlp*'",
        )  # fmt: skip
    return found


def operator_graph(found: Sequence[OperatorListing], kind: str = "svg", *, unrolled: bool = False) -> str | bytes:
    """Draw operators as boxes with shapes and shares of the FLOPs, connected by data flow; equal layers are drawn once.

    Args:
        found: the result of :func:`operators`.
        kind: ``"svg"``, ``"dot"`` or ``"mmd"``; ``"html"``, a page with a table of them; or ``"png"``, which returns
            bytes.
        unrolled: draw every operator of every layer, including those without work, such as views.

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
        from costproof.reports.plots.figure import png

        return png(svg(view))
    return variants("graph")[kind].text(view)
