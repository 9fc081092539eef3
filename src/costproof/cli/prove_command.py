"""``costproof prove``: formulas equal graphs, for all sizes, and over random configurations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from costproof.cli.kinds import FILE, TARGET, Whole
from costproof.cli.options import options
from costproof.ledger.errors import BadInput

if TYPE_CHECKING:
    from costproof.compare.proof.certificate import Certificate


@click.command()
@click.argument("target", required=False, type=TARGET)
@click.option("-o", "--output", type=FILE, metavar="DIR", help="Folder for the certificate; out/TARGET unless given.")
@options("config")
@click.option("--samples", type=Whole(), metavar="N", help="Random configurations to draw; 500 unless given.")
@click.option("--seed", type=Whole(), metavar="N", help="Seed of the random configurations; 1 unless given.")
@click.option("--sides", metavar="A-B", help="Sides of a view in pixels to enumerate; 64-2048 unless given.")
@click.option("--jobs", type=Whole(), metavar="N", help="Processes; one per core unless given.")
@click.option("--verify", type=FILE, metavar="FILE", help="Repeat the proof of this certificate and compare.")
@options("progress")
def prove(
    target: str | None,
    output: Path | None,
    config: Path | None,
    samples: int | None,
    seed: int | None,
    sides: str | None,
    jobs: int | None,
    verify: Path | None,
    progress: str,
) -> int:
    """Prove that the formulas of TARGET equal its graphs.

    Sizes that a graph keeps as symbols as identities; the others enumerated one by one; random small
    configurations as integers. Writes certificate.json and certificate.md. An interrupted proof goes
    on where it stopped.
    """
    from costproof import api
    from costproof.cli.output import wrote
    from costproof.cli.progress import progress as shown
    from costproof.reports.outputs import variants

    if verify is not None:
        given = {
            "TARGET": target, "--config": config, "--samples": samples, "--seed": seed, "--sides": sides, "-o": output
        }  # fmt: skip
        clash = [name for name, value in given.items() if value is not None]
        if clash:
            raise BadInput("--verify takes everything from the certificate", where=", ".join(clash), fix="leave it out")
        with shown(progress) as say:
            again = api.verify(verify, jobs=jobs, progress=say)
        for line in (*again.versions, *again.differences):
            click.echo(line)
        holds = "does not hold" if again.differences else "holds"
        click.echo(f"{again.certificate.verdict}; the certificate {holds}")
        return again.exit_code
    if target is None:
        raise BadInput("no target to prove", where="costproof prove", fix="name one: see costproof targets")
    folder = output if output is not None else Path("out") / Path(target).name
    range_ = _range(sides)
    with shown(progress) as say:
        made = api.prove(
            target, config=config, samples=samples, seed=seed, sides=range_, out=folder, jobs=jobs, progress=say
        )
    for output_ in variants("certificate").values():
        wrote(folder / output_.file)
    _told(made)
    return made.exit_code


def _told(made: Certificate) -> None:
    rows = sum(made.coverage.rows.values())
    click.echo(
        f"{made.verdict}: {len(made.claims):,} claims, {rows:,} quantities compared, "
        f"{len(made.coverage.sides)} sides, {made.coverage.samples:,} configurations"
    )
    for example, *_ in made.mistakes()[:3]:
        click.echo(f"  {example.stage}/{example.module} {example.kind} {example.metric}: {example.difference}")
    for reason in made.missing[:3]:
        click.echo(f"  not carried out: {reason}")


def _range(sides: str | None) -> tuple[int, int] | None:
    if sides is None:
        return None
    first, dash, last = sides.strip().partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and len(sides) <= 20) or (dash and not last):
        raise BadInput(
            "not a range of sides", where="--sides", expected="A-B in pixels, such as 64-2048", got=repr(sides[:40])
        )
    return int(first), int(last or first)
