"""Register all outputs, which define the formats of commands, the files of a report folder and the schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from costproof.ledger.errors import BadInput, did_you_mean
from costproof.plugins import Plugin, Registry, lazy

if TYPE_CHECKING:
    from costproof.ledger.schema import FileKind
    from costproof.reports.document import Form
    from costproof.reports.report import Report

Folder = Literal["", "report", "measured", "later"]


@dataclass(frozen=True, slots=True)
class Output:
    """An output format of a subject: one function prepares the data, another writes them as text."""

    name: str
    """Name made of subject and format: ``static-md``."""
    file: str
    """The default name of the file."""
    meaning: str
    data: Callable[[Report], Any] | None = None
    """Function that prepares the data from a report, or ``None`` if a separate command does.

    May raise :class:`~costproof.ledger.errors.Absent`.
    """
    write: Callable[[], Callable[..., str]] | None = None
    """Loads the function that writes the data as text; ``None`` writes them as JSON of :attr:`kind`.

    The function takes the data, and the width if the output is :attr:`for_screens`.
    """
    kind: Callable[[], FileKind[Any]] | None = None
    """Function that loads the kind of file that the data form, with its schema."""
    states_verdict: bool = False
    """Whether the text states the verdict, so that the exit code reflects it."""
    folder: Folder = ""
    """Whether a report folder has the file: ``report`` or ``measured`` yes, ``later`` by another command.

    No capture holds the data of a ``measured`` one. A ``later`` one is written next to its capture.
    """

    for_screens: bool = False
    """Whether the text is wrapped to the width of a terminal."""

    @property
    def of_capture(self) -> bool:
        """Return whether a capture can be rendered to this output."""
        return self.data is not None and self.folder != "measured"

    def text(self, data: Any, width: int | None = None) -> str:
        """Return the content of this output, in its format (text, JSON, HTML …).

        Args:
            data: the result of ``self.data`` for a report.
            width: columns of the terminal that the output is printed on; ``None`` if it is written to a file.
        """
        if self.write is not None:
            return self.write()(data, width) if self.for_screens else self.write()(data)
        from costproof.ledger.files import json_text
        from costproof.ledger.schema import to_data

        assert self.kind is not None, self.name
        return json_text(to_data(self.kind(), data))


def _at(place: str) -> Callable[[], Any]:
    return lazy(f"costproof.{place}")


def _of(place: str, *parts: str) -> Callable[[Report], Any]:
    """Return a function that calls a lazily imported function with some attributes of a report, to prepare data."""
    return lambda report: _at(place)()(*(getattr(report, part) for part in parts))


def _printer(subject: str, form: Form, *, comment: bool = False, ruled: bool = False) -> Callable[[], Any]:
    """Return a lazy loader of the function that writes a subject's document in one format.

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
        from costproof.reports.text import TerminalPrinter, TextPrinter, print_plain

        if ruled:
            return lambda data, width=None: print_plain(
                lambda console: TerminalPrinter(console).document(document(data, form)), width
            )
        return lambda data, width=None: TextPrinter(width).document(document(data, form))

    return load


_FORMS: Final = {
    "text": ("txt", "for the console"),
    "md": ("md", "for people"),
    "json": ("json", "for programs"),
    "html": ("html", "as a page for a browser"),
}
"""Ending of the file, and words added to the meaning, by format."""


def _outputs(
    name: str,
    meaning: str,
    forms: str,
    kind: str = "",
    *,
    file: str = "",
    document: str = "",
    data: Callable[[Report], Any] | None = None,
    folder: Folder = "",
    states_verdict: bool = False,
    comment: bool = False,
    ruled: bool = False,
) -> Iterator[Output]:
    """Yield the outputs of one subject, in the order of ``forms``.

    Args:
        kind: the kind of file that the JSON is, such as ``claims:CLAIMS``.
        document: module of :mod:`costproof.reports` that makes the document (default: ``name``).
        data: the data half of all of them; of the JSON, if ``kind`` is a part of a report, that part.
        folder: of the Markdown and the JSON.
        comment: Markdown short enough for a comment on a change.
        ruled: text as a terminal shows it, with rules.
    """
    for form in forms.split():
        ending, audience = _FORMS[form]
        audience = "short enough for a comment" if comment and form == "md" else audience
        printed = None if form == "json" else _printer(document or name, form, comment=comment, ruled=ruled)  # type: ignore[arg-type]
        yield Output(
            f"{name}-{form}",
            f"{file or name}.{ending}",
            f"{meaning}, {audience}",
            data,
            printed,
            _at(kind) if form == "json" else None,
            states_verdict=states_verdict,
            folder=folder if form in ("md", "json") else "",
            for_screens=form == "text",
        )


_CALLGRAPH: Final = _of("views.files:callgraph_file", "capture")
_PICTURE: Final = _of("reports.graph.view:graph_view", "capture")
_COUNTERS: Final = _of("views.counters:counter_report", "capture", "discrepancy", "spent")
_PROFILE: Final = _of("reports.measure:require_profile", "profile")


def _whole(report: Report) -> Report:
    return report


OUTPUTS: Final[tuple[Output, ...]] = (
    Output(
        "capture-json", "capture.json", "the capture itself, normalised",
        lambda r: r.capture, kind=_at("ledger.capture:CAPTURE"), folder="report",
    ),
    Output(
        "baseline", "baseline.json", "the numbers folded by role, small enough to be committed",
        _of("ledger.baseline:fold_capture", "capture"), kind=_at("ledger.baseline:BASELINE"),
    ),
    Output(
        "html", "report.html", "everything on one page, for a browser: offline, one file",
        _whole, _at("reports.html.capture_page:capture_page"), states_verdict=True, folder="report",
    ),
    *_outputs("static", "what each stage costs", "md", file="static_compute", data=_whole, folder="report",
              states_verdict=True),
    *_outputs("static", "what each stage costs", "json", "views.static_compute:STATIC_COMPUTE", file="static_compute",
              data=lambda r: r.static, folder="report", states_verdict=True),
    *_outputs("discrepancy", "the comparison", "md", data=_whole, folder="report", states_verdict=True),
    *_outputs("discrepancy", "every comparison and its causes", "json", "compare.findings:DISCREPANCY",
              data=lambda r: r.discrepancy, folder="report", states_verdict=True),
    Output(
        "discrepancy-short", "discrepancy-short.md", "the comparison, short enough for a comment",
        _whole, _at("reports.discrepancy:discrepancy_short"), states_verdict=True, folder="report",
    ),
    Output(
        "callgraph-json", "callgraph.json", "what called what, how often, on which shapes",
        _CALLGRAPH, kind=_at("views.files:CALLGRAPH"), folder="report",
    ),
    Output(
        "manifest-json", "manifest.json", "which files of the folder belong together",
        kind=_at("views.manifest:MANIFEST"), folder="report",
    ),
    Output("graph-dot", "callgraph.dot", "the callgraph in families, for Graphviz", _PICTURE,
           _at("reports.graph.picture:dot"), folder="later"),
    Output("graph-svg", "callgraph.svg", "the callgraph in families, as a picture", _PICTURE,
           _at("reports.graph.svg:svg"), folder="later"),
    Output("graph-mmd", "callgraph.mmd", "the callgraph in families, for Mermaid", _PICTURE,
           _at("reports.graph.picture:mermaid"), folder="later"),
    Output(
        "summary", "summary.txt", "the table that the report command prints",
        _whole, _at("reports.summary:summary_text"), states_verdict=True, for_screens=True,
    ),
    Output(
        "modules", "modules.txt", "what each module costs, equal layers in one row, for the console",
        _whole, _at("reports.summary:modules_text"), states_verdict=True, for_screens=True,
    ),
    *_outputs("counters", "third-party counters beside the truth", "text md json html", "views.counters:COUNTERS",
              data=_COUNTERS, folder="report"),
    *_outputs("profile", "measured times", "json md", "ledger.profile:PROFILE", document="measure:profile_document",
              data=_PROFILE, folder="measured"),
    Output(
        "profile-trace", "profile_trace.json", "measured times, for a viewer of Chrome traces",
        _of("reports.measure:require_profile", "chrome_trace"), lambda: str, folder="measured",
    ),
    *_outputs("explain", "the formulas of a stage with numbers put in", "text md html"),
    *_outputs("claims", "verdicts on published numbers", "md json html", "claims:CLAIMS"),
    *_outputs("diff", "what a change does to the cost", "md json", "compare.diff.types:DIFF", comment=True),
    Output("diff-csv", "diff.csv", "sums and rows that a change has changed, as a table",
           write=_at("reports.diff:diff_csv")),
    *_outputs("diff", "what a change does to the cost", "html text", ruled=True),
    *_outputs("gate", "whether a change may pass", "text md json html", "compare.gate.types:GATE", comment=True),
    Output("gate-junit", "gate.xml", "whether a change may pass, as JUnit XML", write=_at("reports.gate:gate_junit")),
    Output("gate-sarif", "gate.sarif", "limits that do not hold, for code scanning",
           write=_at("reports.gate:gate_sarif")),
    Output("gate-github", "gate.github", "limits that do not hold, as annotations of a job on GitHub",
           write=_at("reports.gate:gate_github")),
    *_outputs("roofline", "what a run takes at least on a device", "text md json", "estimate.roofline:ROOFLINE"),
    Output("roofline-csv", "roofline.csv", "what each part of a run takes at least on a device, as a table",
           write=_at("reports.roofline:roofline_csv")),
    Output("roofline-svg", "roofline.svg", "a run under the roof of a device, as a picture",
           write=_at("reports.roofline:roofline_svg")),
    *_outputs("measure", "measured times beside their bounds", "text md json", "estimate.measured:MEASUREMENT",
              file="measured"),
    *_outputs("fits", "whether a run fits into a memory", "text md json", "estimate.memory:FITS"),
    *_outputs("stored", "what a checkpoint takes on disk", "text md json", "storage.checkpoint:STORED",
              document="fits:stored_document"),
    *_outputs("peaks", "peaks of live activations and what holds them", "text md json html", "ledger.peaks:PEAKS"),
    Output("device-text", "device.txt", "a device and its sources, for the console",
           write=_at("reports.listing:device_text"), for_screens=True),
    Output("device-json", "device.json", "a device and its sources, for programs",
           kind=_at("estimate.hardware:DEVICE")),
    Output("sweep-json", "sweep.json", "formulas at many points, for programs", kind=_at("views.files:SWEEP")),
    *_outputs("certificate", "a proof", "md json html", "compare.proof.certificate:CERTIFICATE"),
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
"""Outputs that a capture can be rendered to. Plug-ins register further :class:`Output` objects."""


def formats() -> dict[str, str]:
    """Return the meaning of each output that a capture can be rendered to, by name."""
    return {name: plugin.what for name, plugin in REGISTRY.listed().items()}


def variants(about: str) -> dict[str, Output]:
    """Return the registered outputs of a subject: ``variants("claims")`` has ``md``, ``json`` and ``html``."""
    return {o.name.removeprefix(f"{about}-"): o for o in OUTPUTS if o.name.startswith(f"{about}-")}


PICTURES: Final = (*variants("graph"), "png")
"""File formats of graphs; for PNG, resvg rasterises the SVG."""


def variant(about: str, format_: str | None, file: Path | None = None) -> Output:
    """Return the requested output of a subject: by format, else by the file's suffix, else the first one.

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
    """Check that some output is written to files with this suffix.

    Raises:
        BadInput: no.
    """
    if file.suffix not in (endings := sorted({*known})):
        expected, fix = " or ".join(endings), did_you_mean(file.suffix, endings) or "-f says the format"
        raise BadInput("no format has this ending", where="-o", expected=expected, got=str(file), fix=fix)
