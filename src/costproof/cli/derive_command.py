"""``costproof derive``: the closed form that the graph of a model holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from costproof.cli.options import FILE, Choice, Whole, rules_option

if TYPE_CHECKING:
    from costproof.ledger.workload import Workload
    from costproof.models.target import Target
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
    from costproof.graph.rules.files import rules_from
    from costproof.ledger.errors import EXIT_FINDINGS, EXIT_OK, BadInput
    from costproof.ledger.extras import require
    from costproof.tracers.derive.closed import derive as derived

    assert form in get_args(Form)
    require("trace", "a form read off a graph")
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
    from costproof.models.deepseek_ocr.any_side import any_side_jobs, any_side_workload
    from costproof.models.deepseek_ocr.page import IMAGE_STAGES
    from costproof.models.deepseek_ocr.target import DeepseekOcr
    from costproof.models.registry import load_target
    from costproof.models.target import Exportable
    from costproof.tracers.derive.subject import Subject, of_tokens

    model = load_target(target, None)
    stages = model.info().stages
    if stage not in stages:
        raise BadInput("no such stage", where=stage or "STAGE", expected="one of " + ", ".join(stages))
    if isinstance(model, DeepseekOcr) and stage in IMAGE_STAGES:
        workload = any_side_workload(model.config)
        jobs = any_side_jobs(model.build(workload), workload, model.config.sam)
        steps = {"H": model.config.sam.stride}
    else:
        assert isinstance(model, Exportable)
        workload = model.workload(None)
        jobs, steps = model.export_jobs(model.build(workload), workload), {}
    picked = next(j for j in jobs if j.stage == stage and j.sizes)
    names = _names(model, workload, stage) if of_tokens(picked) else {}
    symbolic = {name for size in picked.sizes for name in free_symbols(size.symbol)}
    calls = [i for i in model.invocations(workload) if (i.stage, i.id) == (stage, picked.invocations[0])]
    fixed = {name: value for call in calls for name, value in call.symbols.items() if name not in symbolic}
    return Subject(f"{target} {stage}", (picked,), names, fixed, steps)


def _names(model: Target, workload: Workload, stage: str) -> dict[str, int]:
    """Sizes that the stage's formulas use; those of other stages would fit by chance."""
    from costproof.ledger.program import compiled
    from costproof.models.target import WithFormulas
    from costproof.tracers.derive.subject import counts_layers

    if not isinstance(model, WithFormulas):
        return {}
    formulas = {e for n in model.formulas(workload).nodes if n.stage == stage for e in n.exprs.values()}
    used = {name for e in formulas for name in compiled(e).symbols}
    return {n: v for n, v in model.info().symbols.items() if n in used and not counts_layers(n)}
