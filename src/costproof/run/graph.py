"""The verb: the callgraph of a capture, or of a target that is run for it, as a picture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from costproof.ledger.environment import require
from costproof.ledger.errors import BadInput, did_you_mean
from costproof.ledger.progress import Progress, silent
from costproof.reports.graph import svg
from costproof.reports.graph.choice import Choice
from costproof.reports.graph.view import graph_view
from costproof.reports.outputs import PICTURES, variants
from costproof.views.callgraph_file import Drawable, read_drawable
from costproof.views.manifest import capture_file

if TYPE_CHECKING:
    from costproof.opgraph.rules.files import Files


def drawable(
    given: str | os.PathLike[str],
    progress: Progress = silent,
    *,
    rules: Files = (),
    trust_remote_code: bool = False,
) -> Drawable:
    """What :func:`graph` draws: a capture or a folder of reports, a ``callgraph.json``, old ones too, or a target.

    A target (``"hf:opt,seq-len=8"``, ``"deepseek-ocr@gundam:2x2"``) is run, on shapes without numbers.

    Args:
        given: one of these.
        progress: called while a target is run.
        rules: Python files with operator rules, which are run, for a target.
        trust_remote_code: whether the code of a snapshot may run, which is a target.

    Raises:
        BadInput: it is none of these, or a file of a version that this costproof does not read.
        Incomplete: the target cannot be run.
    """
    text = os.fspath(given)
    if rules != () or trust_remote_code:
        from costproof.run.operands import check_counted

        check_counted(rules, trust_remote_code, text)
    elif Path(text).exists():
        return read_drawable(capture_file(Path(text)))
    from costproof.models.registry import TARGETS  # a file is drawn without what targets need
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
        from costproof.run.capture import count  # loads the tracers
        from costproof.run.prepare import Prepared

        return count(Prepared(target, workload, ("dynamic",)), progress).capture


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
    """The callgraph of a capture as a picture: modules in families, and how they repeat.

    Args:
        capture: or a callgraph that was written apart, which has no numbers beside its calls; or a target.
        kind: ``"svg"``, ``"dot"`` or ``"mmd"``; or ``"png"``, which is bytes.
        depth: calls below the outermost modules; what fits on a page if ``None``.
        stage: only modules that work in this stage, with its costs.
        prefix: only this module and what is inside it.
        heavy: only modules with matmul-like work, and those that lead to them.
        link: where a click leads; ``{path}`` and ``{class}`` are filled in.
        slide: as an SVG or PNG of 16:9 with what can be read on a slide, the heaviest modules first.
        rules, trust_remote_code: of a target, as for :func:`drawable`.

    Raises:
        BadInput: no such kind, stage or module, or a slide of another kind.
        Incomplete: the capture has no callgraph; or the extra [plot] is not installed, for a PNG.
    """
    known = variants("graph")
    if kind not in PICTURES:
        raise BadInput("no such kind of picture", where=kind, expected="one of " + ", ".join(PICTURES))
    if slide and kind not in ("svg", "png"):
        raise BadInput("a slide is a picture", where=f"--slide, {kind}", expected="svg or png")
    found = (
        drawable(capture, rules=rules, trust_remote_code=trust_remote_code)
        if isinstance(capture, str | os.PathLike)
        else capture
    )
    view = graph_view(found, Choice(depth, stage, prefix, heavy, link))
    if kind != "png":
        return svg.slide(view) if slide else known[kind].text(view)
    from costproof.reports.plots.raster import png

    return png(svg.slide(view) if slide else svg.svg(view))
