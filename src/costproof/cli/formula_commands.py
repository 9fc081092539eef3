"""Define the commands on formulas: ``explain``, ``prove``, ``derive`` and ``sweep``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from costproof import api
from costproof.cli.options import TargetCommand, options, run_command, run_request
from costproof.cli.output import check_apart, emit, note_written, print_lines, print_note, terminal_width
from costproof.cli.params import FILE, STAGE, TARGET, AxisParam, ChoiceParam, IntParam, ListParam, NameParam
from costproof.cli.progress import show_progress
from costproof.ledger.capture import CAPTURE, Capture
from costproof.ledger.environment import installed
from costproof.ledger.errors import EXIT_INCOMPLETE, EXIT_OK, NOT_GIVEN, BadInput, worst_exit
from costproof.ledger.files import first_bytes
from costproof.ledger.metrics import EVERY_METRIC, PEAK_METRICS
from costproof.ledger.plural import plural, verb
from costproof.ledger.workload import proved_line
from costproof.ledger.writing import places, written_in_place
from costproof.reports.escape import visible
from costproof.reports.listing import listing_text
from costproof.reports.outputs import PICTURES, variant, variants
from costproof.views.explanation import peaks_in
from costproof.views.quantities import EXPLAINED

if TYPE_CHECKING:
    from costproof.compare.proof.closed_form import Notation
    from costproof.run.sweep import ValidatedPoint
    from costproof.run.sweep_files import Tally

_MOST_REASONS: Final = 20
"""Maximum number of reasons that are printed for refused points of a sweep."""
_HEADER: Final = 256
"""Bytes at the start of costproof's files that contain the schema name."""
_FORMULAS: Final = tuple(variants("explain"))
_PICTURES: Final = (*PICTURES, "html")


@dataclass(frozen=True, slots=True)
class _ExplainLine:
    """The arguments and options of one command line of ``costproof explain``."""

    target: str
    stage: str
    module: str | None
    metric: str
    capture: Path | None
    """Capture to explain, or whose graph nodes are shown: ``--capture``, or TARGET if :attr:`run_given`."""
    two_captures: bool
    """Whether both TARGET and ``--capture`` are captures."""
    run_given: bool
    """Whether TARGET is a capture."""
    listed: bool
    unrolled: bool
    kind: str | None
    output: Path | None
    choices: dict[str, Any]

    @property
    def chosen(self) -> bool:
        """Return whether the command line has any option of a run."""
        return any(self.choices.values())


_PICTURE_FORMATS: Final = "-f " + " or ".join(_PICTURES)
_EXCLUSIONS: Final[tuple[tuple[Callable[[_ExplainLine], object], str, str, object, str | None], ...]] = (
    (lambda x: x.run_given and (x.two_captures or x.listed or x.chosen),
     "a capture has its own run and no graph to list", "{line.target}", NOT_GIVEN,
     "name the target in place of the capture"),
    (lambda x: x.listed and (x.capture is not None or x.kind == "md"),
     "a listing is of an export, as text or a picture", "--graph", NOT_GIVEN, "leave out --capture and -f md"),
    (lambda x: x.listed and x.unrolled and x.kind not in _PICTURES,
     "only a picture is unrolled", "--unrolled", _PICTURE_FORMATS, None),
    (lambda x: not x.listed and x.choices["rules"],
     "rules count the operators of a graph", "--rules", NOT_GIVEN, "add --graph"),
    (lambda x: not x.listed and (x.unrolled or (x.kind is not None and x.kind not in _FORMULAS)),
     "formulas are not drawn", "explain", NOT_GIVEN, "add --graph for a picture of the operators"),
    # The capture of the last report may be of another workload, and no formula gives a peak.
    (lambda x: not x.listed and x.metric in PEAK_METRICS and (x.capture is None or x.module is not None or x.chosen),
     "a peak is of a whole stage of a captured run", "--metric {line.metric}", NOT_GIVEN,
     "only --capture FILE, made with --peaks; or costproof peaks TARGET"),
)  # fmt: skip
"""Rejected combinations of options: the condition, and the fields of the error (what, where, expected, fix)."""


class _Explain(TargetCommand):
    def _holds_a_run(self, target: str) -> bool:
        return _capture_at(target) is not None


@click.command(cls=_Explain)
@click.argument("target", type=TARGET)
@click.argument("stage", type=STAGE)
@click.option("--module", metavar="GLOB", help="Only modules whose path matches, such as '*mlp*'.")
@click.option(
    "--metric",
    type=NameParam(lambda target: (*EXPLAINED, *PEAK_METRICS)),
    default="flops",
    show_default=True,
    metavar="NAME",
    help="Quantity to explain: flops, params, calls, output_bytes, ..., or graph_peak_bytes of a capture.",
)
@click.option(
    "--capture",
    type=FILE,
    metavar="FILE",
    help="Show the graph nodes of this capture.  [default: out/TARGET/capture.json if target and workload match]",
)
@click.option(
    "--graph", "listed", is_flag=True, help="List the operators of the exported stage instead, each with its cost."
)
@click.option(
    "--unrolled",
    is_flag=True,
    help="With --graph and an image format: draw equal layers one by one, not once with their number.",
)
@click.option(
    "-f",
    "--format",
    "kind",
    type=ChoiceParam(*dict.fromkeys((*_FORMULAS, *_PICTURES))),
    metavar="FORMAT",
    help=f"Output format: text, md or html; with --graph text, {', '.join(_PICTURES)}; png needs the extra [plot]."
    "  [default: by the suffix of -o, else text]",
)
@options("output", "config", "preset", "trust-remote-code", "rules")  # fmt: skip
def explain(capture: Path | None, kind: str | None, output: Path | None, **given: Any) -> int:
    """Break down the cost of STAGE of TARGET by formula; STAGE may be total.

    TARGET is a target, or a capture or a folder of reports, whose captured run is explained.

    For each formula: the modules that it covers, the expression, the values of its symbols, the result, the counts of
    the graph sources, and the derivation with its source. Needs torch only with --graph.
    """
    suffix = output.suffix.removeprefix(".") if output is not None else ""
    own = {name: given.pop(name) for name in ("target", "stage", "module", "metric", "listed", "unrolled")}
    run = _capture_at(own["target"])
    line = _ExplainLine(
        **own, capture=run or capture, two_captures=run is not None and capture is not None, run_given=run is not None,
        kind=kind or (suffix if suffix in _PICTURES else None), output=output, choices=given,
    )  # fmt: skip
    for applies, what, where, expected, fix in _EXCLUSIONS:
        if applies(line):
            raise BadInput(what, where=where.format(line=line), expected=expected, fix=fix)
    if line.listed:
        found = api.operators(run_request(line.target, None, line.choices), line.stage, module=line.module)
        if line.kind in _PICTURES:
            emit(api.operator_graph(found, str(line.kind), unrolled=line.unrolled), line.output)
        else:
            emit(listing_text(found, terminal_width(line.output)), line.output)
        return 0
    return _explain_peak(line) if line.metric in PEAK_METRICS else _explain_formulas(line)


def _explain_peak(line: _ExplainLine) -> int:
    assert line.capture is not None
    peaks = peaks_in(api.read(line.capture), line.stage)
    emit(variant("peaks", line.kind, line.output).text(peaks, terminal_width(line.output)), line.output)
    return peaks.exit_code


def _explain_formulas(line: _ExplainLine) -> int:
    graph = api.read(line.capture) if line.capture is not None else _last_report(line.target)
    if line.capture is not None and graph is not None and not line.chosen:
        # A capture has its own formulas and workload: explain the captured run.
        found = api.explain(graph, line.stage, module=line.module, metric=line.metric)
    else:
        run = run_request(line.target, None, line.choices)
        found = api.explain(run, line.stage, module=line.module, metric=line.metric, graph=graph)
    emit(variant("explain", line.kind, line.output).text(found, terminal_width(line.output)), line.output)
    return 0


def _capture_at(target: str) -> Path | None:
    """Return the capture file or report folder that the argument names; ``None`` if it names a target."""
    path = Path(target)
    if target in api.targets():
        return None
    if path.is_file() and path.suffix == ".json":
        return path if CAPTURE.name.encode() in first_bytes(path, _HEADER) else None
    return path if (path / "capture.json").is_file() else None


def _last_report(target: str) -> Capture | None:
    """Return the capture of the target's last report, if it can be used to add graph counts."""
    path = Path("out") / api.RunRequest(target).label
    try:
        return api.read(path) if (path / "capture.json").is_file() else None
    except BadInput as error:
        print_note(f"{path} is not used: {error.what}")
        return None


@click.command(cls=TargetCommand)
@click.argument("target", required=False, type=TARGET)
@click.option("-o", "--output", type=FILE, metavar="DIR", help="Folder for the certificate.  [default: out/TARGET]")
@options("request", "dry-run", "config")
@click.option("--samples", type=IntParam(), metavar="N", help="Random configurations to draw.  [default: 64]")
@click.option("--seed", type=IntParam(), metavar="N", help="Seed of the random configurations.  [default: 1]")
@click.option("--jobs", type=IntParam(), metavar="N", help="Processes.  [default: one per core]")
@click.option("--verify", type=FILE, metavar="FILE", help="Repeat the proof of this certificate and compare.")
@options("trust-remote-code", "rules", "progress")
def prove(verify: Path | None, **given: Any) -> int:
    """Prove that the formulas of TARGET equal its graphs.

    Sizes that are symbolic in the graph are compared as identities, other sizes one by one, and random small
    configurations as integers. Writes certificate.json, .md and .html. An interrupted proof resumes where it stopped.
    """
    return _prove(**given) if verify is None else _verify(verify, **given)


@run_command
def _prove(run: api.RunRequest, output: Path | None, jobs: int | None, progress: str) -> int:
    folder = output if output is not None else Path("out") / Path(run.target).name
    with show_progress(progress) as say:
        made = api.prove(run, out=folder, jobs=jobs, progress=say)
    for output_ in variants("certificate").values():
        note_written(folder / output_.file)
    rows = sum(made.coverage.rows.values())
    print_lines(
        f"{made.verdict}: {plural(len(made.claims), 'claim')}, {plural(rows, 'quantity', 'quantities')} compared, "
        f"{plural(len(made.coverage.sizes), 'size')}, {plural(made.coverage.samples, 'configuration')}"
    )
    print_lines(visible(proved_line(made.target)))
    for example, *_ in made.mistakes()[:3]:
        print_lines(f"  {example.stage}/{example.module} {example.kind} {example.metric}: {example.difference}")
    for reason in made.missing[:3]:
        print_lines(f"  not carried out: {reason}")
    return made.exit_code


def _verify(certificate: Path, rules: tuple[Path, ...], jobs: int | None, progress: str, **given: Any) -> int:
    context = click.get_current_context()
    made = {name for name, value in given.items() if value not in (None, False)}
    params = [p for p in context.command.get_params(context) if p.name in made]
    clash = [p.opts[0] if isinstance(p, click.Option) else p.human_readable_name for p in params]
    if clash:
        raise BadInput("--verify takes everything from the certificate", where=", ".join(clash), fix="leave it out")
    with show_progress(progress) as say:
        again = api.verify(certificate, rules=rules, jobs=jobs, progress=say)
    print_lines(*again.versions, *again.differences)
    holds = "does not hold" if again.differences else "holds"
    print_lines(f"{again.certificate.verdict}; the certificate {holds}")
    return again.exit_code


@click.command()
@click.argument("target", required=False, type=TARGET)
@click.argument("stage", required=False, type=STAGE)
@click.option(
    "-f",
    "--format",
    "form",
    type=ChoiceParam("text", "latex", "python", "yaml"),
    default="text",
    show_default=True,
    help="Notation of the formulas.",
)
@click.option("--points", type=IntParam(), metavar="N", help="Random sizes to check at.  [default: 5]")
@options("request", "dry-run", "config", "trust-remote-code", "rules", "no-cache", "output")
@run_command
def derive(run: api.RunRequest, form: str, output: Path | None) -> int:
    """Derive the closed formulas of STAGE of TARGET from its graph.

    TARGET is a name, or the address of a model: hf:CONFIG.json, hf:FOLDER, hf:MODEL_TYPE, FILE.py:FUNCTION or
    package.module:FUNCTION. STAGE is required if there are several. The formulas are checked against new counts at
    random sizes.
    """
    check_apart(output)
    found = api.derive(run)
    emit(found.text(cast("Notation", form)), output)
    for p in found.wrong:
        sizes = ", ".join(f"{k} = {v}" for k, v in p.sizes.items())
        click.echo(
            f"differs at {sizes}: {p.derived:,} derived, {p.counted:,} counted in {', '.join(p.differing)}", err=True
        )
    total = len(found.points)
    print_note(f"checked: equal to a fresh count at {total - len(found.wrong)} of {total} points")
    return found.exit_code


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@click.option(
    "--over",
    multiple=True,
    type=AxisParam(),
    metavar="NAME=VALUES",
    help="Vary a setting or a configuration key: 1,8 or 512:1280:64. Several --over give all combinations;"
    " batch/seq_len=1/512,2/1024 varies two together, in pairs.",
)
@click.option(
    "--also",
    multiple=True,
    metavar="'NAME=VALUES …'",
    help="A further grid, all combinations of these values; its points follow those of --over.",
)
@click.option(
    "--table", type=FILE, metavar="CSV", help="Add points of a file: a row each, a column per setting or key."
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    type=ListParam(offered=lambda: EVERY_METRIC),
    metavar="LIST",
    help="Metrics to evaluate; each has a column for every stage and one for the run."
    "  [default: flops,weight_bytes,kv_cache_bytes,output_bytes]",
)
@click.option(
    "--stage",
    "stages",
    multiple=True,
    type=STAGE,
    metavar="NAME",
    help="Give columns of this stage and of the whole run only; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Only count the points, and list the refused ones with reasons.")
@click.option(
    "-o", "--output", type=FILE, metavar="FILE", help="Write FILE.csv, .json or .parquet.  [default: CSV on stdout]"
)
@click.option("--no-plot", is_flag=True, help="Do not draw FILE.svg, which needs matplotlib.")
@click.option(
    "--validate",
    "checked",
    type=IntParam(),
    metavar="N",
    help="Check N random points: export their graphs, count them, and compare with the formulas.",
)
@click.option(
    "--seed", type=IntParam(), default=1, show_default=True, metavar="N", help="Seed of the points of --validate."
)
@click.option("--jobs", type=IntParam(), metavar="N", help="Processes for --validate.  [default: one per core]")
@click.option("--cluster", metavar="ADDRESS", help="Count the points of --validate on workers of this Dask scheduler.")
@options("config", "preset", "trust-remote-code", "rules", "progress")
def sweep(
    target: str,
    over: tuple[str, ...],
    also: tuple[str, ...],
    metrics: tuple[tuple[str, ...], ...],
    stages: tuple[str, ...],
    dry_run: bool,
    output: Path | None,
    no_plot: bool,
    checked: int | None,
    seed: int,
    jobs: int | None,
    cluster: str | None,
    progress: str,
    **given: Any,
) -> int:
    """Evaluate the formulas of TARGET at many points.

    Any setting of the workload and any key of the configuration can be varied. Numbers are exact at any size. Points
    that are not a valid model or run have no row; stderr reports their number and the reasons. An interrupted sweep
    that writes to a file resumes where it stopped.

    The exit code is 3 if no point is valid, or if a metric is about bytes of a quantised checkpoint.
    """
    products = [_axes_of(over, "--over"), *(_axes_of(one.split(), "--also") for one in also)]
    made = api.sweep(
        target, products, metrics=[m for words in metrics for m in words] or None, stages=stages or None, **given
    )
    print_note(visible(made.counted))
    if dry_run:
        tally = made.count()
        models = f"{tally.rows:,} of them {verb(tally.rows, 'is a model', 'are models')}"
        print_lines(f"{plural(tally.points, 'point')}, {models}; each row has {plural(len(made.titles), 'cost')}")
        _print_refused(tally, print_lines)
        return EXIT_OK
    code = EXIT_OK
    if output is not None:
        check_apart(output)
        picture = output.with_suffix(".svg")
        drawn = not no_plot and not written_in_place(output) and installed("matplotlib") is not None
        for path in places([picture] if drawn else ()):
            check_apart(path)
        with show_progress(progress) as say:
            tally = made.write(output, say)
        note_written(output)
        if drawn and tally.rows:
            made.plot(picture)
            note_written(picture)
        code = _print_refused(tally, print_note)
    elif checked is None:
        # On a terminal, the rows themselves tell how far it is.
        with show_progress("never" if sys.stdout.isatty() else progress) as say:
            tally = made.stream(lambda text: click.echo(text, nl=False), say)
        code = _print_refused(tally, print_note)
    code = EXIT_INCOMPLETE if made.incomplete else code
    if checked is None:
        return code
    with show_progress(progress) as say:
        found = made.validate(checked, seed=seed, jobs=jobs or -1, cluster=cluster, progress=say)
    return worst_exit(code, _print_validated(found))


def _print_validated(found: Iterable[ValidatedPoint]) -> int:
    """Print the results of validation and return the worst exit code."""
    codes = [EXIT_OK]
    for one in found:
        print_lines(f"{one.verdict}: {_point_text(one.point)}", *(f"  {line}" for line in one.wrong))
        codes.append(one.exit_code)
    return worst_exit(*codes)


def _axes_of(words: Iterable[str], option: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals or not name or not values:
            raise BadInput(
                "an axis of a sweep must be a name and its values", where=option, expected="NAME=VALUES", got=word[:80]
            )
        if name in found:
            raise BadInput("a name is varied twice in one product", where=option, got=name)
        found[name] = values
    return found


def _print_refused(tally: Tally, say: Any) -> int:
    """Print the refused points and return the exit code: 3 if all points were refused."""
    for reason, one in list(tally.refused.items())[:_MOST_REASONS]:
        say(visible(f"refused {one['count']:,}: {reason}; such as {_point_text(one['example'])}: {one['says']}"))
    if len(tally.refused) > _MOST_REASONS:
        say(f"and {plural(len(tally.refused) - _MOST_REASONS, 'more reason')}")
    return EXIT_OK if tally.rows else EXIT_INCOMPLETE


def _point_text(values: Mapping[str, Any]) -> str:
    """Return a point as arguments: ``sam.global_layers 2+5, batch 3``."""
    return ", ".join(f"{n} {'+'.join(map(str, v)) if isinstance(v, (tuple, list)) else v}" for n, v in values.items())
