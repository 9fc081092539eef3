"""``costproof prove``: formulas equal graphs, for all sizes, and over random configurations."""

from __future__ import annotations

from pathlib import Path

import click

from costproof.cli.options import FILE, Whole, progress_option


@click.command()
@click.argument("target", required=False)
@click.option("-o", "--output", type=FILE, metavar="DIR", help="Folder for the certificate; out/TARGET unless given.")
@click.option("--config", type=FILE, metavar="FILE", help="Configuration of the model; the published one unless given.")
@click.option("--samples", type=Whole(), metavar="N", help="Random configurations to draw; 500 unless given.")
@click.option("--seed", type=Whole(), metavar="N", help="Seed of the random configurations; 1 unless given.")
@click.option("--sides", metavar="A-B", help="Sides of a view in pixels to enumerate; 64-2048 unless given.")
@click.option("--jobs", type=Whole(), metavar="N", help="Processes; one per core unless given.")
@click.option("--verify", type=FILE, metavar="FILE", help="Repeat the proof of this certificate and compare.")
@progress_option
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

    Batch, sequence, past length and number of crops as identities; every side of an image; random
    small configurations as integers. Writes certificate.json and certificate.md. An interrupted
    proof goes on where it stopped.
    """
    from costproof.cli.output import wrote
    from costproof.cli.progress import progress as shown
    from costproof.compare.proof.certificate import differences, read_certificate
    from costproof.ledger.errors import EXIT_FINDINGS, BadInput
    from costproof.models.registry import load_target
    from costproof.reports.folder import check_folder, write_texts
    from costproof.reports.outputs import variants
    from costproof.run import proof as proving

    if verify is not None:
        given = {
            "TARGET": target, "--config": config, "--samples": samples, "--seed": seed, "--sides": sides, "-o": output
        }  # fmt: skip
        clash = [name for name, value in given.items() if value is not None]
        if clash:
            raise BadInput("--verify takes everything from the certificate", where=", ".join(clash), fix="leave it out")
        old = read_certificate(verify)
        with shown(progress) as say:
            new = proving.repeat(old, processes=_jobs(jobs), progress=say)
        found = differences(old, new)
        versions = [
            f"{k}: {old.environment.get(k)} in the certificate, {v} now"
            for k, v in new.environment.items()
            if old.environment.get(k) != v
        ]
        for line in versions:
            click.echo(line)
        for line in found:
            click.echo(line)
        click.echo(f"{new.verdict}; " + ("the certificate holds" if not found else "the certificate does not hold"))
        return new.exit_code or (EXIT_FINDINGS if found else 0)
    if target is None:
        raise BadInput("no target to prove", where="costproof prove", fix="name one: see costproof targets")
    folder = output if output is not None else Path("out") / target
    model = load_target(target, config)
    check_folder(folder)
    with shown(progress) as say:
        made = proving.prove(
            model,
            samples=proving.SAMPLES if samples is None else samples,
            seed=proving.SEED if seed is None else seed,
            sides=_range(sides),
            folder=folder,
            processes=_jobs(jobs),
            progress=say,
        )
    texts = {folder / o.file: o.text(made) for o in variants("certificate").values()}
    write_texts(texts)
    for path in texts:
        wrote(path)
    rows = sum(made.coverage.rows.values())
    click.echo(
        f"{made.verdict}: {len(made.claims):,} claims, {rows:,} quantities compared, "
        f"{len(made.coverage.sides)} sides, {made.coverage.samples:,} configurations"
    )
    for example, *_ in made.mistakes()[:3]:
        click.echo(f"  {example.stage}/{example.module} {example.kind} {example.metric}: {example.difference}")
    for reason in made.missing[:3]:
        click.echo(f"  not carried out: {reason}")
    return made.exit_code


def _range(sides: str | None) -> tuple[int, int] | None:
    if sides is None:
        return None
    from costproof.ledger.errors import BadInput

    first, dash, last = sides.strip().partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and len(sides) <= 20) or (dash and not last):
        raise BadInput(
            "this is no range of sides",
            where="--sides",
            expected="A-B in pixels, such as 64-2048",
            got=repr(sides[:40]),
        )
    return int(first), int(last or first)


def _jobs(jobs: int | None) -> int | None:
    from costproof.ledger.errors import BadInput

    if jobs is not None and not 1 <= jobs <= 256:
        raise BadInput("so many processes cannot be used", where="--jobs", expected="1 to 256", got=jobs)
    return jobs
