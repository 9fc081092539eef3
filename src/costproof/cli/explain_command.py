"""``costproof explain``: formula, derivation, numbers put in, result, matching graph nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from costproof import api
from costproof.cli.kinds import FILE, STAGE, TARGET, Choice, Name
from costproof.cli.options import asked, options
from costproof.cli.output import emit, note, screen
from costproof.cli.target_command import TargetCommand
from costproof.ledger.capture import CAPTURE, Capture
from costproof.ledger.errors import BadInput
from costproof.ledger.files import first_bytes
from costproof.ledger.metrics import PEAK_METRICS
from costproof.reports.listing_text import listing_text
from costproof.reports.outputs import PICTURES, variant, variants
from costproof.views.explanation import peaks_in
from costproof.views.quantities import EXPLAINED

_HEADER: Final = 256
"""Bytes in which a file of ours says its kind."""
_FORMULAS: Final = tuple(variants("explain"))
_PICTURES: Final = (*PICTURES, "html")


class _Explain(TargetCommand):
    def _holds_a_run(self, target: str) -> bool:
        return _capture_at(target) is not None


@click.command(cls=_Explain)
@click.argument("target", type=TARGET)
@click.argument("stage", type=STAGE)
@click.option("--module", metavar="GLOB", help="Only modules whose path matches, such as '*mlp*'.")
@click.option(
    "--metric",
    type=Name(lambda target: (*EXPLAINED, *PEAK_METRICS)),
    default="flops",
    show_default=True,
    metavar="NAME",
    help="The quantity to explain: flops, params, calls, output_bytes, ..., or graph_peak_bytes of a capture.",
)
@click.option(
    "--capture",
    type=FILE,
    metavar="FILE",
    help="Show the graph nodes of this capture; out/TARGET/capture.json if it is there and fits.",
)
@click.option(
    "--graph", "listed", is_flag=True, help="List the operators of the exported stage instead, each with its cost."
)
@click.option(
    "--unrolled", is_flag=True, help="With --graph as a picture: every operator of every layer, not equal layers once."
)
@click.option(
    "-f",
    "--format",
    "kind",
    type=Choice(*dict.fromkeys((*_FORMULAS, *_PICTURES))),
    metavar="FORMAT",
    help="text, md or html; with --graph text, "
    + ", ".join(_PICTURES)
    + "; png needs the extra [plot]. By the ending of -o unless given, else text.",
)
@options("output", "config", "preset", "trust-remote-code", "rules")
def explain(
    target: str,
    stage: str,
    module: str | None,
    metric: str,
    capture: Path | None,
    listed: bool,
    unrolled: bool,
    kind: str | None,
    output: Path | None,
    **choices: Any,
) -> int:
    """Break down the cost of STAGE of TARGET by formula; STAGE may be total.

    TARGET is a target, or a capture or a folder of reports, of which the run that was captured is explained.

    For each formula: the modules it stands for, the expression, the numbers put in, the result, what the graph
    sources have there, and at the end the derivation with its source. Needs no torch; with --graph it does.
    """
    ending = output.suffix.removeprefix(".") if output is not None else ""
    kind = kind or (ending if ending in _PICTURES else None)
    if (held := _capture_at(target)) is not None:
        if capture is not None or listed or any(choices.values()):
            raise BadInput("a capture has its own run and no graph to list", where=str(held), got=target,
                           fix="name the target in place of the capture")  # fmt: skip
        capture = held
    if listed:
        if capture is not None or kind == "md":
            raise BadInput("a listing is of an export, as text or a picture", where="--graph",
                           fix="leave out --capture and -f md")  # fmt: skip
        if unrolled and kind not in _PICTURES:
            raise BadInput("only a picture is unrolled", where="--unrolled", expected="-f " + " or ".join(_PICTURES))
        found = api.operators(asked(target, None, choices), stage, module=module)
        drawn = (
            api.operator_graph(found, kind, unrolled=unrolled)
            if kind in _PICTURES
            else listing_text(found, screen(output))
        )
        emit(drawn, output)
        return 0
    if choices["rules"]:
        raise BadInput("rules count the operators of a graph", where="--rules", fix="add --graph")
    if unrolled or (kind is not None and kind not in _FORMULAS):
        raise BadInput("formulas are not drawn", where="explain", fix="add --graph for a picture of the operators")
    graph = api.read(capture) if capture is not None else _last(target)
    if metric in PEAK_METRICS:
        if capture is None or module is not None or any(choices.values()):
            # That of the last report may be of another workload, and no formula tells.
            raise BadInput("a peak is of a whole stage of a run that was captured", where="--metric", got=metric,
                           fix="--capture FILE alone, of one made with --peaks; or costproof peaks TARGET")  # fmt: skip
        peaks = peaks_in(api.read(capture), stage)
        emit(variant("peaks", kind, output).text(peaks, screen(output)), output)
        return peaks.exit_code
    if capture is not None and graph is not None and not any(choices.values()):
        # A capture holds its own formulas and workload: explain the run that was captured.
        broken = api.explain(graph, stage, module=module, metric=metric)
    else:
        broken = api.explain(asked(target, None, choices), stage, module=module, metric=metric, graph=graph)
    emit(variant("explain", kind, output).text(broken, screen(output)), output)
    return 0


def _capture_at(target: str) -> Path | None:
    """Return where a capture is, if the words name one and no target: its file, or a folder of reports."""
    path = Path(target)
    if target in api.targets():
        return None
    if path.is_file() and path.suffix == ".json":
        return path if CAPTURE.name.encode() in first_bytes(path, _HEADER) else None
    return path if (path / "capture.json").is_file() else None


def _last(target: str) -> Capture | None:
    """Return the capture of the last report, if there is a usable one; it only adds to the answer."""
    path = Path("out") / api.RunRequest(target).label
    try:
        return api.read(path) if (path / "capture.json").is_file() else None
    except BadInput as error:
        note(f"{path} is not used: {error.what}")
        return None
