"""The closed form that the graph of a model holds, checked against fresh counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from costproof.compare.proof.closed_form import ClosedForm, Form, closed_form, render
from costproof.graph.rules.files import rules_from
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_OK, BadInput, did_you_mean
from costproof.ledger.extras import require
from costproof.models.generic.build import factory, huggingface
from costproof.models.generic.module import STAGE
from costproof.models.registry import load_target
from costproof.models.serving import lacking
from costproof.models.target import Exportable
from costproof.tracers.derive.closed import POINTS, Point
from costproof.tracers.derive.closed import derive as derived
from costproof.tracers.derive.subject import Subject, subject

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
    """Export a subject with symbols, cost its graph, and check the form; errors as for :func:`costproof.api.derive`."""
    if not 0 <= points <= MOST_POINTS:
        raise BadInput("--points out of range", where="--points", expected=f"0 to {MOST_POINTS}", got=points)
    require("trace", "a form read off a graph")
    found_in = subject_of(target, stage)
    with rules_from(rules):
        found = derived(found_in, points=points)
    return Derivation(closed_form(found.name, found.nodes, found_in.config), dict(found_in.fixed), tuple(found.points))


def subject_of(target: str, stage: str | None) -> Subject:
    """What a name stands for: a stage of a target, a configuration, a factory.

    Raises:
        BadInput: there is no such target, stage, file or factory.
    """
    path = Path(target)
    if path.exists():
        return subject(huggingface(path), STAGE)
    if ":" in target:
        return subject(factory(target), STAGE)
    model = load_target(target, None)
    stages = model.info().stages
    if stage not in stages:
        raise BadInput(
            "no such stage",
            where=stage or "STAGE",
            expected="one of " + ", ".join(stages),
            fix=did_you_mean(stage or "", stages),
        )
    if not isinstance(model, Exportable):
        raise BadInput("no graph to read a form off", where=target, got=lacking(model, ["static"])["static"])
    return subject(model, stage, f"{target} {stage}")
