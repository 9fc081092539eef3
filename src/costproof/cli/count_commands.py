"""Define the commands that count a target: ``report``, ``capture``, ``counters``, ``peaks`` and ``measure``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from costproof import api
from costproof.cli.options import TargetCommand, device_option, options, report_command, run_command
from costproof.cli.output import check_apart, emit, note_written, print_note, print_summary
from costproof.cli.params import FILE, STAGE, TARGET, ChoiceParam, IntParam, ListParam
from costproof.cli.progress import show_progress
from costproof.ledger.errors import EXIT_INCOMPLETE, EXIT_OK, BadInput
from costproof.ledger.node import rule_wanted, unknown_clause
from costproof.ledger.progress import Progress
from costproof.ledger.writing import written_in_place
from costproof.reports.escape import visible
from costproof.reports.outputs import OUTPUTS
from costproof.reports.report import check_folder, check_report_folder, write_report
from costproof.views.manifest import check_source

if TYPE_CHECKING:
    from costproof.estimate.measured import Measurement


@click.command(
    cls=TargetCommand,
    help="Count TARGET, compare the sources, write the folder of reports.\n\nTARGET is a name (costproof targets), the"
    " folder of a snapshot, or the address of any model: hf:CONFIG.json, hf:FOLDER, hf:MODEL_TYPE, FILE.py:FUNCTION,"
    " package.module:FUNCTION.\n\nWrites "
    + ", ".join(o.file for o in OUTPUTS if o.folder in ("report", "measured"))
    + ", each if the run has data for it, and either all of them or none. Files of an earlier run in the folder are"
    " replaced or removed.",
)
@click.argument("target", required=False, type=TARGET)
@click.option("-o", "--output", type=FILE, metavar="DIR", help="Folder for the reports.  [default: out/TARGET]")
@options("request", "dry-run", "config", "preset", "run", "weights", "layers", "seed", "profile", "sources")
@options("convention", "all-calls", "peaks", "counters", "trust-remote-code", "rules", "no-cache", "progress")
@run_command
def report(run: api.RunRequest, output: Path | None, progress: str) -> int:
    # A snapshot is named by its folder, and the reports must not land in it.
    folder = output if output is not None else Path("out") / run.label
    check_report_folder(folder)
    source = run.source(folder)
    if output is None:
        check_source(folder, source)
    with show_progress(progress) as say:
        found = api.report(run, progress=say)
        written = write_report(found, folder, say, source=source)
    for path in written.files:
        note_written(path)
    for path in written.removed:
        print_note(f"Removed {path}, which an earlier run left")
    print_summary(found)
    for why in (*found.capture.failed, *(found.discrepancy.counters.incomplete if found.discrepancy.counters else ())):
        click.echo(f"incomplete: {visible(why)}", err=True)
    click.echo(f"Reports: {folder}/")
    return found.exit_code


@click.command(cls=TargetCommand)
@click.argument("target", required=False, type=TARGET)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="File to write; - for stdout.")
@click.option(
    "-f",
    "--format",
    "kind",
    type=ChoiceParam("capture", "baseline"),
    default="capture",
    show_default=True,
    help="capture: all ledgers; baseline: summed by role and metric, small enough to commit.",
)
@options("request", "dry-run", "config", "preset", "run", "weights", "layers", "seed", "sources")
@options("convention", "all-calls", "peaks", "trust-remote-code", "rules", "no-cache", "progress")
@run_command
def capture(run: api.RunRequest, output: Path | None, kind: str, progress: str) -> int:
    """Count TARGET and write the capture file.

    The capture contains all ledgers, the callgraph, the conventions and the versions of one run. It can be compared and
    rendered without torch, on any machine. Exit code 3 if an operator has no cost rule or a source failed.
    """
    if output is None:
        raise BadInput("missing option '-o'", where="costproof capture", fix="-o FILE, or -o - for stdout")
    check_apart(output)
    if str(output) != "-" and not written_in_place(output):
        check_folder(output.parent)
    with show_progress(progress) as say:
        made = api.capture(run, progress=say)
    emit(api.render(made, "baseline" if kind == "baseline" else "capture-json"), output)
    unknown = [op for ledger in made.ledgers for op in ledger.unknown_ops]
    for op in unknown:
        click.echo(f"no cost rule for {op.op} ({unknown_clause([op])}): {op.why}", err=True)
    wanted = rule_wanted(unknown)
    if wanted:
        click.echo(wanted, err=True)
    for why in made.failed:
        click.echo(f"incomplete: {visible(why)}", err=True)
    return EXIT_INCOMPLETE if unknown or made.failed else EXIT_OK


@click.command(cls=TargetCommand)
@click.argument("target", required=False, type=TARGET)
@click.option("--stage", "stages", multiple=True, type=STAGE, metavar="NAME", help="Only this stage; may be repeated.")
@click.option(
    "--add",
    "own",
    multiple=True,
    metavar="NUMBER|CSV",
    help="Compare a number of your own too: mine@STAGE=571.92G, mine@STAGE:CALL=571.92GMAC, or a CSV of such numbers.",
)
@click.option(
    "--only", "counters", type=ListParam(offered=api.counter_names), help="Only these counters, separated by commas."
)
@click.option(
    "--timeout", type=IntParam(), default=600, show_default=True, metavar="SECONDS", help="Time limit per counter."
)
@click.option(
    "--memory", type=IntParam(), default=4, show_default=True, metavar="GIB", help="Memory limit per counter."
)
@report_command(
    "counters", "request", "dry-run", "config", "preset", "trust-remote-code", "rules", "progress",
    warnings=lambda found: (f"incomplete: {why}" for why in found.compared.incomplete),
)  # fmt: skip
def counters(
    run: api.RunRequest, stages: tuple[str, ...], own: tuple[str, ...], timeout: int, memory: int, progress: Progress
) -> object:
    """Run third-party FLOP counters on TARGET and explain the differences.

    The reference is our own count of the same forward, checked against the closed formulas. A counter that crashes gets
    a row with its error; one that is not installed is skipped unless --only names it. Your own number gets a row with
    its causes, as in costproof check; a CSV has the columns name, stage, value and, optionally, unit (flop or mac) and
    invocation.

    Exit code 1 if a difference is unexplained, 3 if the reference or a counter failed.
    """
    return api.counters(run, stages=stages, own=own, seconds=timeout, memory_gib=memory, progress=progress)


@click.command(cls=TargetCommand)
@click.argument("target", required=False, type=TARGET)
@report_command("peaks", "request", "dry-run", "config", "preset", "layers", "trust-remote-code", "rules", "progress")
def peaks(run: api.RunRequest, progress: Progress) -> object:
    """Find the peak of live activations of every stage of TARGET, in its graph and in the eager module.

    The graph frees a tensor after its last reader; variables of the module hold some tensors longer. The gap between
    the two is listed tensor by tensor, with the variables that hold each. Sizes are those of a run on a CPU, but
    nothing is computed. Inputs and outputs count, parameters and buffers do not.

    Exit code 1 if a formula differs from its graph, 3 if a peak is unknown.
    """
    return api.peaks(run, progress=progress)


def _failures(found: Measurement) -> Iterator[str]:
    """Yield a line for each stage below its time bound, and each operator that could not run in isolation."""
    yield from (f"{row.run} {row.stage}: {row.wrong}" for row in found.rows if row.wrong)
    yield from (f"{o.run} {o.stage}: {o.operator} could not be made: {o.why}" for o in found.operators if o.why)


@click.command(cls=TargetCommand)
@click.argument("target", required=False, type=TARGET)
@device_option("Device of the run; by default this machine, which is measured first")
@options("math")
@click.option(
    "--predict", is_flag=True,
    help="Time each distinct operator in isolation instead of running the model, which then need not fit in memory.",
)  # fmt: skip
@click.option(
    "--compiled",
    is_flag=True,
    help="Also time each stage on a GPU under torch.compile, which takes minutes to compile.",
)
@report_command(
    "measure", "request", "dry-run", "config", "preset", "run", "weights", "layers", "seed", "profile",
    "trust-remote-code", "rules", "progress", warnings=_failures,
)  # fmt: skip
def measure(
    run: api.RunRequest, device: str | None, math: str | None, predict: bool, compiled: bool, progress: Progress
) -> object:
    """Run TARGET, time its stages, and compare the times with the roofline bound of a device.

    Each time is split into parts that add up to it: the floor (compulsory traffic or products), further traffic, the
    time of operators beyond their bound, and host time, on a GPU that in which the device is idle: Python, dispatch,
    launches and synchronisation. The host and device clocks of the run also predict its time. With --predict the
    prediction is the only result, and the model never runs. Runs on the CPU unless --run cuda is given, 5 times unless
    --profile N is given. On a GPU each stage is also timed as a CUDA graph, where it can be captured.

    The exit code is 1 if something ran faster than its bound, which the report then explains, and 3 if the cost of an
    operator is unknown or it cannot be run in isolation.
    """
    forms = ("eager", "graph", *(["compiled"] if compiled else []))
    return api.measure(run, on=device, math=math, predict=predict, ways=forms, progress=progress)
