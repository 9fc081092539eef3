"""All outputs in one table: formats of commands, the folder of a report and the list of schemas are made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.errors import BadInput, did_you_mean
from costproof.plugins import Plugin, Registry, at
from costproof.reports.output import Output

if TYPE_CHECKING:
    from costproof.reports.document import Form
    from costproof.reports.report import Report


def _at(place: str) -> Callable[[], Any]:
    return at(f"costproof.{place}")


def _of(place: str, *parts: str) -> Callable[[Report], Any]:
    """The data half that a function of ours makes of some parts of a report."""
    return lambda report: _at(place)()(*(getattr(report, part) for part in parts))


def _printed(subject: str, form: Form, *, comment: bool = False, ruled: bool = False) -> Callable[[], Any]:
    """Return the loader of a writing half: the document of a subject, printed in a format.

    Args:
        comment: Markdown short enough for a comment on a change.
        ruled: text as a terminal shows it, with rules.
    """

    def load() -> Callable[..., str]:
        document = _at(f"reports.{subject}" if ":" in subject else f"reports.{subject}:document")()
        if form == "html":
            from costproof.reports.html.printer import HtmlPrinter

            return lambda data: HtmlPrinter().document(document(data, form))
        if form == "md":
            from costproof.reports.markdown import BUDGET, MarkdownPrinter

            return lambda data: MarkdownPrinter(BUDGET if comment else None).document(document(data, form))
        from costproof.reports.text import TerminalPrinter, TextPrinter, uncolored

        if ruled:
            return lambda data, width=None: uncolored(
                lambda console: TerminalPrinter(console).document(document(data, form)), width
            )
        return lambda data, width=None: TextPrinter(width).document(document(data, form))

    return load


_CALLGRAPH: Final = _of("views.callgraph_file:callgraph_file", "capture")
_PICTURE: Final = _of("reports.graph.view:graph_view", "capture")
_COUNTERS: Final = _of("views.counters:counter_report", "capture", "discrepancy", "spent")
OUTPUTS: Final[tuple[Output, ...]] = (
    Output(
        "capture-json", "capture.json", "the capture itself, normalised",
        lambda r: r.capture, kind=_at("ledger.capture:CAPTURE"), folder="report",
    ),
    Output(
        "baseline", "baseline.json", "the numbers folded by role, small enough to be committed",
        _of("ledger.baseline:baseline_of", "capture"), kind=_at("ledger.baseline:BASELINE"),
    ),
    Output(
        "html", "report.html", "everything on one page, for a browser: offline, one file",
        lambda r: r, _at("reports.html.capture_page:capture_page"), states_verdict=True, folder="report",
    ),
    Output(
        "static-md", "static_compute.md", "what each stage costs, for people",
        lambda r: r, _at("reports.static_md:static_md"), states_verdict=True, folder="report",
    ),
    Output(
        "static-json", "static_compute.json", "what each stage costs, for programs",
        lambda r: r.static, kind=_at("views.static_compute:STATIC_COMPUTE"), states_verdict=True, folder="report",
    ),
    Output(
        "discrepancy-md", "discrepancy.md", "the comparison, for people",
        lambda r: r, _at("reports.discrepancy_md:discrepancy_md"), states_verdict=True, folder="report",
    ),
    Output(
        "discrepancy-json", "discrepancy.json", "every comparison and its causes, for programs",
        lambda r: r.discrepancy, kind=_at("compare.findings:DISCREPANCY"), states_verdict=True, folder="report",
    ),
    Output(
        "discrepancy-short", "discrepancy-short.md", "the comparison, short enough for a comment",
        lambda r: r, _at("reports.discrepancy_md:discrepancy_short"), states_verdict=True, folder="report",
    ),
    Output(
        "callgraph-json", "callgraph.json", "what called what, how often, on which shapes",
        _CALLGRAPH, kind=_at("views.callgraph_file:CALLGRAPH"), folder="report",
    ),
    Output(
        "manifest-json", "manifest.json", "which files of the folder belong together",
        kind=_at("views.manifest:MANIFEST"), folder="report",
    ),
    Output(
        "graph-dot", "callgraph.dot", "the callgraph in families, for Graphviz",
        _PICTURE, _at("reports.graph.dot:dot"), folder="later",
    ),
    Output(
        "graph-svg", "callgraph.svg", "the callgraph in families, as a picture",
        _PICTURE, _at("reports.graph.svg:svg"), folder="later",
    ),
    Output(
        "graph-mmd", "callgraph.mmd", "the callgraph in families, for Mermaid",
        _PICTURE, _at("reports.graph.mermaid:mermaid"), folder="later",
    ),
    Output(
        "summary", "summary.txt", "the table that the report command prints",
        lambda r: r, _at("reports.summary:summary_text"), states_verdict=True, for_screens=True,
    ),
    Output(
        "modules", "modules.txt", "what each module costs, equal layers in one row, for the console",
        lambda r: r, _at("reports.modules_text:modules_text"), states_verdict=True, for_screens=True,
    ),
    Output(
        "counters-text", "counters.txt", "third-party counters beside the truth, for the console",
        _COUNTERS, _printed("counters", "text"), for_screens=True,
    ),
    Output(
        "counters-md", "counters.md", "third-party counters beside the truth, for people",
        _COUNTERS, _printed("counters", "md"), folder="report",
    ),
    Output(
        "counters-json", "counters.json", "third-party counters beside the truth, for programs",
        _COUNTERS, kind=_at("views.counters:COUNTERS"), folder="report",
    ),
    Output(
        "counters-html", "counters.html", "third-party counters beside the truth, as a page for a browser",
        _COUNTERS, _printed("counters", "html"),
    ),
    Output(
        "profile-json", "profile.json", "measured times, for programs",
        _of("reports.measure:recorded", "profile"), kind=_at("ledger.profile:PROFILE"), folder="measured",
    ),
    Output(
        "profile-md", "profile.md", "measured times, for people",
        _of("reports.measure:recorded", "profile"), _printed("measure:profile_document", "md"), folder="measured",
    ),
    Output(
        "profile-trace", "profile_trace.json", "measured times, for a viewer of Chrome traces",
        _of("reports.measure:recorded", "chrome_trace"), lambda: str, folder="measured",
    ),
    Output(
        "explain-text", "explain.txt", "the formulas of a stage with numbers put in, for the console",
        write=_printed("explain", "text"), for_screens=True,
    ),
    Output(
        "explain-md", "explain.md", "the formulas of a stage with numbers put in, for people",
        write=_printed("explain", "md"),
    ),
    Output(
        "explain-html", "explain.html", "the formulas of a stage with numbers put in, as a page for a browser",
        write=_printed("explain", "html"),
    ),
    Output(
        "claims-md", "claims.md", "verdicts on published numbers, for people",
        write=_printed("claims", "md"),
    ),
    Output(
        "claims-json", "claims.json", "verdicts on published numbers, for programs", kind=_at("claims:CLAIMS"),
    ),
    Output(
        "claims-html", "claims.html", "verdicts on published numbers, as a page for a browser",
        write=_printed("claims", "html"),
    ),
    Output(
        "diff-md", "diff.md", "what a change does to the cost, short enough for a comment",
        write=_printed("diff", "md", comment=True),
    ),
    Output(
        "diff-json", "diff.json", "what a change does to the cost, for programs", kind=_at("compare.diff.types:DIFF"),
    ),
    Output(
        "diff-csv", "diff.csv", "sums and rows that a change has changed, as a table",
        write=_at("reports.diff:diff_csv"),
    ),
    Output(
        "diff-html", "diff.html", "what a change does to the cost, as a page for a browser",
        write=_printed("diff", "html"),
    ),
    Output(
        "diff-text", "diff.txt", "what a change does to the cost, for the console",
        write=_printed("diff", "text", ruled=True), for_screens=True,
    ),
    Output(
        "gate-text", "gate.txt", "whether a change may pass, for the console",
        write=_printed("gate", "text"), for_screens=True,
    ),
    Output(
        "gate-md", "gate.md", "whether a change may pass, short enough for a comment",
        write=_printed("gate", "md", comment=True),
    ),
    Output(
        "gate-json", "gate.json", "whether a change may pass, for programs", kind=_at("compare.gate.types:GATE"),
    ),
    Output(
        "gate-html", "gate.html", "whether a change may pass, as a page for a browser",
        write=_printed("gate", "html"),
    ),
    Output(
        "gate-junit", "gate.xml", "whether a change may pass, as JUnit XML", write=_at("reports.gate:gate_junit"),
    ),
    Output(
        "gate-sarif", "gate.sarif", "limits that do not hold, for code scanning",
        write=_at("reports.gate:gate_sarif"),
    ),
    Output(
        "gate-github", "gate.github", "limits that do not hold, as annotations of a job on GitHub",
        write=_at("reports.gate:gate_github"),
    ),
    Output(
        "roofline-text", "roofline.txt", "what a run takes at least on a device, for the console",
        write=_printed("roofline", "text"), for_screens=True,
    ),
    Output(
        "roofline-md", "roofline.md", "what a run takes at least on a device, for people",
        write=_printed("roofline", "md"),
    ),
    Output(
        "roofline-json", "roofline.json", "what a run takes at least on a device, for programs",
        kind=_at("estimate.roofline:ROOFLINE"),
    ),
    Output(
        "roofline-csv", "roofline.csv", "what each part of a run takes at least on a device, as a table",
        write=_at("reports.roofline:roofline_csv"),
    ),
    Output(
        "roofline-svg", "roofline.svg", "a run under the roof of a device, as a picture",
        write=_at("reports.roofline:roofline_svg"),
    ),
    Output(
        "measure-text", "measured.txt", "measured times beside their bounds, for the console",
        write=_printed("measure", "text"), for_screens=True,
    ),
    Output(
        "measure-md", "measured.md", "measured times beside their bounds, for people",
        write=_printed("measure", "md"),
    ),
    Output(
        "measure-json", "measured.json", "measured times beside their bounds, for programs",
        kind=_at("estimate.measured:MEASUREMENT"),
    ),
    Output(
        "fits-text", "fits.txt", "whether a run fits into a memory, for the console",
        write=_printed("fits", "text"), for_screens=True,
    ),
    Output(
        "fits-md", "fits.md", "whether a run fits into a memory, for people",
        write=_printed("fits", "md"),
    ),
    Output(
        "fits-json", "fits.json", "whether a run fits into a memory, for programs", kind=_at("estimate.memory:FITS"),
    ),
    Output(
        "peaks-text", "peaks.txt", "what is alive at peaks, for consoles",
        write=_printed("peaks", "text"), for_screens=True,
    ),
    Output(
        "peaks-md", "peaks.md", "what is alive at peaks, for people", write=_printed("peaks", "md"),
    ),
    Output(
        "peaks-json", "peaks.json", "peaks of live activations and what holds them, for programs",
        kind=_at("ledger.peaks:PEAKS"),
    ),
    Output(
        "peaks-html", "peaks.html", "what is alive at peaks, as a page for a browser",
        write=_printed("peaks", "html"),
    ),
    Output(
        "device-text", "device.txt", "a device and its sources, for the console",
        write=_at("reports.device_text:device_text"), for_screens=True,
    ),
    Output(
        "device-json", "device.json", "a device and its sources, for programs", kind=_at("estimate.hardware:DEVICE"),
    ),
    Output(
        "sweep-json", "sweep.json", "formulas at many points, for programs", kind=_at("views.sweep_file:SWEEP"),
    ),
    Output(
        "certificate-md", "certificate.md", "a proof, for people",
        write=_printed("certificate", "md"),
    ),
    Output(
        "certificate-json", "certificate.json", "a proof, for programs",
        kind=_at("compare.proof.certificate:CERTIFICATE"),
    ),
    Output(
        "certificate-html", "certificate.html", "a proof, as a page for a browser",
        write=_printed("certificate", "html"),
    ),
)  # fmt: skip


def _same(output: Output) -> Output:
    return output


REGISTRY: Final[Registry[Output]] = Registry(
    "outputs",
    "format",
    tuple(Plugin(o.name, o.meaning, partial(_same, o)) for o in OUTPUTS if o.of_capture),
    instance=Output,
    command="costproof render --list",
)
"""What a capture can be rendered to. Another distribution offers an :class:`Output` of the same name."""


def formats() -> dict[str, str]:
    """What a capture can be rendered to, by name, with its meaning."""
    return {name: plugin.what for name, plugin in REGISTRY.listed().items()}


def variants(about: str) -> dict[str, Output]:
    """Our outputs about one thing, by format: ``variants("claims")`` has ``md`` and ``json``."""
    return {o.name.removeprefix(f"{about}-"): o for o in OUTPUTS if o.name.startswith(f"{about}-")}


PICTURES: Final = (*variants("graph"), "png")
"""What a graph is drawn as; resvg makes the PNG of the SVG."""


def variant(about: str, format_: str | None, file: Path | None = None) -> Output:
    """Return the output that is asked for: by its format, else by the ending of the file, else the first.

    Raises:
        BadInput: no format has this ending.
    """
    known = variants(about)
    if format_ is not None:
        return known[format_]
    first = next(iter(known.values()))
    if file is None or not file.suffix:
        return first
    by_ending = {Path(o.file).suffix: o for o in reversed(known.values())}
    check_ending(file, (*by_ending, ".txt"))
    return by_ending.get(file.suffix, first)


def check_ending(file: Path, known: Iterable[str]) -> None:
    """Check that a format is written to files of this ending.

    Raises:
        BadInput: no.
    """
    if file.suffix not in (endings := sorted({*known})):
        expected, fix = " or ".join(endings), did_you_mean(file.suffix, endings) or "-f says the format"
        raise BadInput("no format has this ending", where="-o", expected=expected, got=str(file), fix=fix)
