"""``costproof derive``: the closed form that the graph of a model holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from costproof.cli.options import FILE, Choice, Whole, rules_option

if TYPE_CHECKING:
    from costproof.tracers.derive.subject import Subject


@click.command()
@click.argument("target")
@click.argument("stage", required=False)
@click.option(
    "-f",
    "--format",
    "form",
    type=Choice("text", "latex", "python", "yaml"),
    default="text",
    show_default=True,
    help="How the formulas are written.",
)
@click.option("--points", type=Whole(), default=5, show_default=True, metavar="N", help="Random sizes to check at.")
@rules_option
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write there instead of stdout.")
def derive(target: str, stage: str | None, form: str, points: int, rules: tuple[Path, ...], output: Path | None) -> int:
    """Read the closed form of STAGE of TARGET off its graph.

    TARGET is a target, a Hugging Face config.json or a folder with one, or module.path:factory of an nn.Module;
    STAGE is needed for a target alone. The form is checked against fresh counts at random sizes.
    """
    from costproof.cli.output import emit
    from costproof.compare.proof.closed_form import Form, closed_form, render
    from costproof.ledger.errors import EXIT_FINDINGS, EXIT_OK, BadInput
    from costproof.tracers.derive.closed import derive as derived
    from costproof.tracers.rules.files import rules_from

    assert form in get_args(Form)
    if not 0 <= points <= 1000:
        raise BadInput("so many points cannot be checked", where="--points", expected="0 to 1000", got=points)
    subject = subject_of(target, stage)
    with rules_from(rules):
        found = derived(subject, points=points)
    written = closed_form(found.name, found.nodes, subject.config)
    emit(render(written, form, subject.fixed), output)  # type: ignore[arg-type]
    wrong = [p for p in found.points if not p.equal]
    for p in wrong:
        sizes = ", ".join(f"{k} = {v}" for k, v in p.sizes.items())
        click.echo(
            f"differs at {sizes}: {p.derived:,} derived, {p.counted:,} counted in {', '.join(p.differing)}", err=True
        )
    click.echo(
        f"checked: equal to a fresh count at {len(found.points) - len(wrong)} of {len(found.points)} points", err=True
    )
    return EXIT_FINDINGS if wrong else EXIT_OK


def subject_of(target: str, stage: str | None) -> Subject:
    """What the command line names.

    Raises:
        BadInput: there is no such target, stage, file or factory.
    """
    from costproof.ledger.errors import BadInput
    from costproof.tracers.derive.subject import factory, huggingface

    path = Path(target)
    if path.exists():
        return huggingface(path)
    if ":" in target:
        return factory(target)
    from costproof.compare.identity import free_symbols
    from costproof.models.registry import load_target
    from costproof.tracers.derive.subject import Subject

    model = load_target(target, None)
    stages = model.info().stages
    if stage not in stages:
        raise BadInput("no such stage", where=stage or "STAGE", expected="one of " + ", ".join(stages))
    workload = model.workload(None)
    jobs = model.export_jobs(model.build(workload), workload)
    picked = tuple(j for j in jobs if j.stage == stage and j.sizes)[:1]
    symbolic = {name for job in picked for size in job.sizes for name in free_symbols(size.symbol)}
    calls = [i for i in model.invocations(workload) for job in picked if (i.stage, i.id) == (stage, job.invocations[0])]
    fixed = {name: value for call in calls for name, value in call.symbols.items() if name not in symbolic}
    return Subject(f"{target} {stage}", picked, model.info().symbols, fixed)
