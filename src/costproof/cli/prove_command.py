"""Define ``costproof prove``, which proves formulas equal to graphs, and verifies certificates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costproof import api
from costproof.cli.options import options, run_command
from costproof.cli.output import note_written, print_lines
from costproof.cli.params import FILE, TARGET, IntParam
from costproof.cli.progress import show_progress
from costproof.cli.target_command import TargetCommand
from costproof.ledger.errors import BadInput
from costproof.ledger.plural import plural
from costproof.ledger.workload import proved_line
from costproof.reports.escape import visible
from costproof.reports.outputs import variants

if TYPE_CHECKING:
    from costproof.compare.proof.certificate import Certificate


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
    _print_certificate(made)
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


def _print_certificate(made: Certificate) -> None:
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
