"""The closed form that the graph of a model holds, checked against fresh counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from costproof.compare.identity import free_symbols
from costproof.compare.proof.closed_form import ClosedForm, Form, closed_form, render
from costproof.graph.rules.files import rules_from
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_OK, BadInput, did_you_mean
from costproof.ledger.extras import require
from costproof.ledger.program import compiled
from costproof.ledger.workload import Workload
from costproof.models.registry import load_target
from costproof.models.target import Exportable, Target, WithFormulas
from costproof.tracers.derive.closed import POINTS, Point
from costproof.tracers.derive.closed import derive as derived
from costproof.tracers.derive.subject import Subject, counts_layers, factory, huggingface, of_tokens

FORMS: Final[tuple[Form, ...]] = get_args(Form)
MOST_POINTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Derivation:
    """A closed form, and where it was compared with a count."""

    form: ClosedForm
    fixed: dict[str, int]
    """Symbols of the workload that the graph holds as numbers."""
    points: tuple[Point, ...]

    @property
    def wrong(self) -> tuple[Point, ...]:
        """The points at which form and count differ."""
        return tuple(p for p in self.points if not p.equal)

    @property
    def exit_code(self) -> int:
        """0 if the form equals the count at every point, else 1."""
        return EXIT_FINDINGS if self.wrong else EXIT_OK

    def text(self, how: Form = "text") -> str:
        """The formulas as ``text``, ``latex``, ``python`` or ``yaml`` (a claims file)."""
        return render(self.form, how, self.fixed)

    def __repr__(self) -> str:
        return self.text().rstrip("\n")


def derive(target: str, stage: str | None, *, points: int = POINTS, rules: Iterable[str | Path] = ()) -> Derivation:
    """Export a subject with symbols, cost its graph, and check the form at random sizes.

    Raises:
        BadInput: there is no such target, stage, file or factory, or so many points cannot be checked.
        Incomplete: the subject cannot be exported, or an operator has no cost rule.
    """
    if not 0 <= points <= MOST_POINTS:
        raise BadInput("--points out of range", where="--points", expected=f"0 to {MOST_POINTS}", got=points)
    require("trace", "a form read off a graph")
    subject = subject_of(target, stage)
    with rules_from(rules):
        found = derived(subject, points=points)
    return Derivation(closed_form(found.name, found.nodes, subject.config), dict(subject.fixed), tuple(found.points))


def subject_of(target: str, stage: str | None) -> Subject:
    """What a name stands for: a stage of a target, a configuration, a factory.

    Raises:
        BadInput: there is no such target, stage, file or factory.
    """
    path = Path(target)
    if path.exists():
        return huggingface(path)
    if ":" in target:
        return factory(target)
    from costproof.models.deepseek_ocr.any_side import any_side_jobs, any_side_workload
    from costproof.models.deepseek_ocr.page import IMAGE_STAGES
    from costproof.models.deepseek_ocr.target import DeepseekOcr

    model = load_target(target, None)
    stages = model.info().stages
    if stage not in stages:
        raise BadInput(
            "no such stage",
            where=stage or "STAGE",
            expected="one of " + ", ".join(stages),
            fix=did_you_mean(stage or "", stages),
        )
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
    if not isinstance(model, WithFormulas):
        return {}
    formulas = {e for n in model.formulas(workload).nodes if n.stage == stage for e in n.exprs.values()}
    used = {name for e in formulas for name in compiled(e).symbols}
    return {n: v for n, v in model.info().symbols.items() if n in used and not counts_layers(n)}
