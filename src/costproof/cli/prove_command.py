"""``costproof prove``: formulas equal graphs, for all sizes, and over random configurations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costproof import api
from costproof.cli.kinds import FILE, TARGET, Whole
from costproof.cli.options import of_run, options
from costproof.cli.output import tell, wrote
from costproof.cli.progress import progress as shown
from costproof.cli.target_command import TargetCommand
from costproof.ledger.errors import BadInput
from costproof.ledger.plural import plural
from costproof.reports.outputs import variants

if TYPE_CHECKING:
    from costproof.compare.proof.certificate import Certificate


@click.command(cls=TargetCommand)
@click.argument("target", required=False, type=TARGET)
@click.option("-o", "--output", type=FILE, metavar="DIR", help="Folder for the certificate; out/TARGET unless given.")
@options("request", "dry-run", "config")
@click.option("--samples", type=Whole(), metavar="N", help="Random configurations to draw; 64 unless given.")
@click.option("--seed", type=Whole(), metavar="N", help="Seed of the random configurations; 1 unless given.")
@click.option("--jobs", type=Whole(), metavar="N", help="Processes; one per core unless given.")
@click.option("--verify", type=FILE, metavar="FILE", help="Repeat the proof of this certificate and compare.")
@options("trust-remote-code", "rules", "progress")
def prove(verify: Path | None, **given: Any) -> int:
    """Prove that the formulas of TARGET equal its graphs.

    Sizes that a graph keeps as symbols as identities; the others enumerated one by one; random small
    configurations as integers. Writes certificate.json, .md and .html. An interrupted proof goes on
    where it stopped.
    """
    return _proved(**given) if verify is None else _again(verify, **given)


@of_run
def _proved(run: api.RunRequest, output: Path | None, jobs: int | None, progress: str) -> int:
    folder = output if output is not None else Path("out") / Path(run.target).name
    with shown(progress) as say:
        made = api.prove(run, out=folder, jobs=jobs, progress=say)
    for output_ in variants("certificate").values():
        wrote(folder / output_.file)
    _told(made)
    return made.exit_code


def _again(certificate: Path, rules: tuple[Path, ...], jobs: int | None, progress: str, **given: Any) -> int:
    context = click.get_current_context()
    made = {name for name, value in given.items() if value not in (None, False)}
    params = [p for p in context.command.get_params(context) if p.name in made]
    clash = [p.opts[0] if isinstance(p, click.Option) else p.human_readable_name for p in params]
    if clash:
        raise BadInput("--verify takes everything from the certificate", where=", ".join(clash), fix="leave it out")
    with shown(progress) as say:
        again = api.verify(certificate, rules=rules, jobs=jobs, progress=say)
    tell(*again.versions, *again.differences)
    holds = "does not hold" if again.differences else "holds"
    tell(f"{again.certificate.verdict}; the certificate {holds}")
    return again.exit_code


def _told(made: Certificate) -> None:
    rows = sum(made.coverage.rows.values())
    tell(
        f"{made.verdict}: {plural(len(made.claims), 'claim')}, {plural(rows, 'quantity', 'quantities')} compared, "
        f"{plural(len(made.coverage.sizes), 'size')}, {plural(made.coverage.samples, 'configuration')}"
    )
    for example, *_ in made.mistakes()[:3]:
        tell(f"  {example.stage}/{example.module} {example.kind} {example.metric}: {example.difference}")
    for reason in made.missing[:3]:
        tell(f"  not carried out: {reason}")
