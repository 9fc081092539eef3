"""Define the commands that compare counts, render them and draw them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any, Final

import click

from costproof import api
from costproof.cli.options import TargetCommand, device_option, mesh_options, options, report_command
from costproof.cli.output import (
    check_apart,
    check_no_picture,
    emit,
    note_written,
    print_summary,
    shown_on_terminal,
    terminal_width,
    two_columns,
)
from costproof.cli.params import FILE, OPERAND, TARGET, ChoiceParam, IntParam, ListParam, NameParam
from costproof.cli.progress import show_progress
from costproof.ledger.errors import EXIT_OK, BadInput
from costproof.ledger.writing import places, write_texts
from costproof.reports.outputs import OUTPUTS, PICTURES, REGISTRY, check_ending, formats, variant, variants

_FORMATS: Final = {
    "text": "summary",
    "modules": "modules",
    **{kind: output.name for kind, output in variants("discrepancy").items()},
}
"""Output of a capture, by the format that the command line names."""


@click.command()
@click.argument("captures", nargs=-1, required=True, type=FILE, metavar="CAPTURE")
@click.option(
    "-f", "--format", "kind", type=ChoiceParam(*_FORMATS),
    help="text: the table and open findings; modules: a row per module; md, json: the whole comparison; short: for a"
    " pull request comment.  [default: by the suffix of -o, else text]",
)  # fmt: skip
@options("output")
def compare(captures: tuple[Path, ...], kind: str | None, output: Path | None) -> int:
    """Compare the sources of CAPTURE: a file that capture or report wrote, or the folder of a report.

    The exit code is the verdict: 0 all exact or explained, 1 findings, 3 incomplete.
    """
    if len(captures) > 1:
        raise BadInput(
            "one capture is compared at a time: its sources with each other",
            where="costproof compare",
            expected="CAPTURE",
            got=" ".join(map(str, captures))[:80],
            fix=f"costproof compare {captures[0]}",
        )
    if kind is None and output is not None and output.suffix:
        check_ending(output, (".txt", ".md", ".json"))
    found = api.compare(captures[0])
    if shown_on_terminal(kind, output):
        print_summary(found)
    else:
        ending = output.suffix.removeprefix(".") if output is not None else ""
        emit(found.render(_FORMATS.get(kind or ending, _FORMATS["text"]), terminal_width(output)), output)
    return found.exit_code


@click.command(
    help="Convert CAPTURE, a file or the folder of a report, to one of the report formats.\n\nFormats: "
    + ", ".join(o.name for o in OUTPUTS if o.of_capture)
    + ", and those of installed plug-ins. If the format states a verdict, the exit code is the verdict."
)
@click.argument("capture", type=FILE, required=False)
@click.option(
    "-f",
    "--format",
    "name",
    type=NameParam(lambda target: formats()),
    metavar="FORMAT",
    help="Output format; --list lists them.",
)
@options("output")
@device_option("With html: add the roofline of this device")
@click.option("--list", "listing", is_flag=True, help="List the formats.")
def render(capture: Path | None, name: str | None, output: Path | None, device: str | None, listing: bool) -> int:
    if listing:
        emit(two_columns(formats().items(), terminal_width(output)), output)
        return EXIT_OK
    if capture is None or name is None:
        missing = "CAPTURE" if capture is None else "-f FORMAT"
        raise BadInput(
            f"{missing} is missing",
            where="costproof render",
            expected="CAPTURE and -f FORMAT",
            fix="costproof render --list names the formats",
        )
    chosen = REGISTRY.load(name)
    found = api.compare(capture, on=device)
    if device is not None and name != "html":
        raise BadInput(
            "--on has no effect on this format", where=f"-f {name}", expected="-f html", fix="leave out --on, or use "
            "costproof roofline",
        )  # fmt: skip
    if name == "summary" and shown_on_terminal(output):
        print_summary(found)
    else:
        emit(found.render(name, terminal_width(output)), output)
    return found.exit_code if chosen.states_verdict else EXIT_OK


@click.command()
@click.argument("base", type=OPERAND)
@click.argument("head", type=OPERAND)
@mesh_options("base", "head")
@options("head-config", "base-config")
@report_command("diff", "trust-remote-code", "rules", "progress", table=True)
def diff(base: str, head: str, **choices: Any) -> object:
    """Compare BASE with HEAD, and attribute each difference in cost to a change.

    BASE and HEAD are each a capture, the folder of a report, a static_compute.json, a baseline, one of these in git
    (main:baselines/deepseek-ocr.json), or a target with workload settings and configuration keys: deepseek-ocr,
    deepseek-ocr@gundam:2x2, deepseek-ocr@base,batch=4,text.topk=8. Targets are counted by their formulas. If one has no
    formulas (hf:opt, model.py:make, package.module:make), both are counted by their exported graphs, which needs torch.
    Options of a mesh (--tp 8) hold for both, settings (llama-3.1-8b@chat,tp=2) for one.

    The exit code is 0 whether or not anything changed, and 3 if part of the cost cannot be compared.
    """
    return api.diff(base, head, **choices)


@click.command()
@click.argument("base", type=OPERAND)
@click.argument("head", type=OPERAND)
@click.option("--policy", type=FILE, required=True, metavar="FILE", help="Limits as YAML; see docs/gate.md.")
@options("head-config", "base-config")
@click.option(
    "--today",
    metavar="YYYY-MM-DD",
    help="Date by which to decide whether the policy's allowances have expired.  [default: today]",
)
@click.option(
    "-f", "--format", "kind", type=ChoiceParam(*variants("gate")), default="text", show_default=True,
    help="Output format.",
)  # fmt: skip
@click.option(
    "-o", "--output", "outputs", multiple=True, type=FILE, metavar="FILE",
    help="Also write to FILE, in the format of its suffix (.md, .json, .xml, .sarif); may be repeated.",
)  # fmt: skip
@options("trust-remote-code", "rules", "progress")
def gate(
    base: str,
    head: str,
    policy: Path,
    config: Path | None,
    base_config: Path | None,
    today: str | None,
    kind: str,
    outputs: tuple[Path, ...],
    progress: str,
    **trust: Any,
) -> int:
    """Check the change from BASE to HEAD against the limits of a policy.

    BASE and HEAD are operands as in costproof diff: a committed baseline, one in git (main:baselines/model.json), a
    capture, or a target with settings. Needs no torch.

    Exit code 0 if all limits hold, 1 if one does not, 3 if a number in a limit is unknown or there is no baseline.
    """
    try:
        day = None if today is None else date.fromisoformat(today)
    except ValueError:
        raise BadInput("this is not a date", where="--today", expected="YYYY-MM-DD", got=str(today)[:40]) from None
    written = {path: variant("gate", None, path) for path in outputs}
    for path in outputs:
        check_apart(path)
    with show_progress(progress) as say:
        trust["progress"] = say
        found = api.gate(base, head, policy=policy, config=config, base_config=base_config, today=day, **trust)
    for path, how in written.items():
        emit(how.text(found), path)
    emit(variant("gate", kind).text(found, terminal_width()), None)
    return found.exit_code


@click.command(cls=TargetCommand)
@click.argument("claims", type=FILE)
@click.argument("target", required=False, type=TARGET)
@click.option(
    "--capture",
    type=FILE,
    metavar="FILE",
    help="Check against this capture, which must be exact or explained, instead of the formulas.",
)
@report_command("claims", "config", "preset", "trust-remote-code", "rules", "progress", table=True)
def check(claims: Path, target: str | None, **choices: Any) -> object:
    """Check the numbers and formulas in CLAIMS, a YAML file, against TARGET.

    Each claim is right, explained by named causes of exact size, refuted at every length, or left with an unexplained
    rest. The file may name TARGET; workload options override those in the file. Torch is needed only for claims about
    memory peaks without a capture that has them, and for a TARGET without formulas, whose exported graph is the truth.

    The exit code is 0 if every claim is right or explained, 3 if one is about bytes of a quantised checkpoint, else 1.
    """
    return api.check(claims, target, **choices)


_PICTURES: Final = ("shares", "roofline", "peaks", "counters", "sweep")


@click.command()
@click.argument("capture", metavar="CAPTURE|TARGET", type=OPERAND)
@click.option(
    "-f",
    "--format",
    "kinds",
    type=ListParam(*PICTURES),
    default="svg",
    show_default=True,
    help="Image formats: " + ", ".join(PICTURES) + "; png needs the extra [plot].",
)
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="DIR",
    help="Folder for the files.  [default: stdout for one format, the folder of CAPTURE for several]",
)
@click.option(
    "--depth",
    type=IntParam(),
    metavar="N",
    help="Levels of nested modules to draw below the outermost ones.  [default: as many as fit on a page]",
)
@click.option("--stage", metavar="STAGE", help="Show only modules that work in this stage, with its costs.")
@click.option("--prefix", metavar="PATH", help="Show only this module and its submodules.")
@click.option("--heavy", is_flag=True, help="Show only modules with matmul-like work, and their ancestors.")
@click.option(
    "--link",
    metavar="URL",
    help="URL that a click on a module opens (dot, svg); {path} and {class} in it are replaced by the module's.",
)
@click.option(
    "--slide",
    is_flag=True,
    help="Draw for a 16:9 slide (svg, png): as many modules as are legible, the heaviest first.",
)
@mesh_options("capture")
@options("trust-remote-code", "rules", "progress")
def graph(
    capture: str,
    kinds: tuple[str, ...],
    output: Path | None,
    trust_remote_code: bool,
    rules: tuple[Path, ...],
    progress: str,
    **choice: Any,
) -> int:
    """Draw the callgraph of CAPTURE or of a callgraph.json, with equal modules grouped.

    A target with settings, as in costproof diff (hf:opt,seq-len=8, deepseek-ocr@tiny), is run on the meta device first.

    "for 12" marks twelve modules in series, "parfor 64" parallel modules or calls of one module. Solid arrows are
    calls, dashed ones data. An orange bar is the share of the FLOPs.
    """
    file = Path(capture)
    if output is None and len(kinds) > 1 and not file.exists():
        raise BadInput("several pictures of a target need a folder", where="costproof graph", fix="-o DIR")
    check_no_picture(output)
    beside = file if file.is_dir() else file.parent
    folder = beside if output is None else output
    alone = output is None and len(kinds) == 1
    files = {} if alone else {kind: folder / f"callgraph.{kind}" for kind in kinds}
    places(files.values())
    for path in files.values():
        check_apart(path)
    with show_progress(progress) as say:
        made = api.drawable(capture, say, rules=rules, trust_remote_code=trust_remote_code)
    texts = {kind: api.graph(made, kind, **choice) for kind in kinds}
    if alone:
        emit(texts[kinds[0]], None)
        return 0
    write_texts({path: texts[kind] for kind, path in files.items()})
    for path in files.values():
        note_written(path)
    return 0


@click.command()
@click.argument("file", type=FILE)
@click.option(
    "-f", "--format", "kinds", type=ListParam("svg", "png", metavar="svg,png"), default="svg", show_default=True,
    help="Image formats.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=FILE, metavar="DIR", help="Folder for the pictures.  [default: the folder of FILE]"
)
@click.option(
    "--only", type=ListParam(offered=lambda: _PICTURES), default="", metavar="LIST",
    help=f"Pictures to draw: {', '.join(_PICTURES)}.  [default: all that FILE has data for]",
)  # fmt: skip
@device_option("Also draw the roofline of a capture on this device")
def plot(file: Path, kinds: tuple[str, ...], output: Path | None, only: tuple[str, ...], device: str | None) -> int:
    """Draw the contents of FILE.

    FILE is a capture or the folder of a report (the share of each stage; peaks and third-party counters if present), a
    sweep (.json or .csv: a metric over the varied setting), or the JSON file of roofline, peaks or counters. A capture
    gives a file for each picture (shares.svg and so on), another FILE one picture of the same name. Needs the extra
    [plot].
    """
    check_no_picture(output)
    folder = output or (file if file.is_dir() else file.parent)

    def check(names: Iterable[str]) -> None:
        for path in places(folder / name for name in names):
            check_apart(path)

    files = {
        folder / name: made for name, made in api.plot(file, kinds, only=only, on=device, named_first=check).items()
    }
    write_texts(files)
    for path in files:
        note_written(path)
    return EXIT_OK
