"""Implement ``costproof.derive``: derive a closed form from a model's graph, and check it at random sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from costproof.compare.proof.closed_form import ClosedForm, Notation, closed_form, render
from costproof.ledger.environment import require
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_OK, BadInput, did_you_mean
from costproof.models.target import Exportable, lacking
from costproof.run.count_lock import count_lock
from costproof.run.prepare import load_run_target
from costproof.run.request import RunRequest, request
from costproof.tracers.cache import cache_enabled
from costproof.tracers.derive.subject import POINTS, Subject, subject

if TYPE_CHECKING:
    from costproof.tracers.derive.closed import SizeCheck

MOST_POINTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Derivation:
    """A derived closed form, and the sizes at which it was compared with counts."""

    form: ClosedForm
    points: tuple[SizeCheck, ...]

    @property
    def wrong(self) -> tuple[SizeCheck, ...]:
        """The points at which form and count differ."""
        return tuple(p for p in self.points if not p.equal)

    @property
    def exit_code(self) -> int:
        """0 if the form equals the count at every point, else 1."""
        return EXIT_FINDINGS if self.wrong else EXIT_OK

    def text(self, how: Notation = "text") -> str:
        """Return the formulas as ``text``, ``latex``, ``python`` or ``yaml`` (a claims file)."""
        return render(self.form, how)

    def table_rows(self) -> Sequence[object]:
        """Return the formulas, one row for each pattern of modules and kind of operator."""
        return self.form.lines

    def __repr__(self) -> str:
        return self.text().rstrip("\n")


def derive(target: str | RunRequest, stage: str | None = None, **choices: Any) -> Derivation:
    """Derive the closed form of a stage from its graph, and check it against counts at random sizes.

    Args:
        target: a target or an address.
        stage: required if there are several stages.
        choices: ``points``, the number of sizes to check; and choices of a run.

    Raises:
        BadInput: there is no such target, stage, file or factory.
        Incomplete: it cannot be exported, or an operator has no cost rule.
    """
    asked = request(target, verb="derive", stage=stage, **choices)
    with count_lock(asked.rules), cache_enabled(not asked.no_cache):
        points, export_subject = prepare_derivation(asked)  # requires torch
        of = export_subject()
        from costproof.tracers.derive.closed import derive as derived  # imports torch

        found = derived(of, points=points)
    form = closed_form(of.name, found.nodes, of.config, of.fixed, found.holds, of.counted)
    return Derivation(form, found.points)


def prepare_derivation(asked: RunRequest) -> tuple[int, Callable[[], Subject]]:
    """Return the number of sizes to check, and a function that exports the stage; nothing is traced yet.

    The request is checked; nothing is traced yet.

    Raises:
        BadInput: there is no such target, stage or file, or too many points.
        Incomplete: torch is not installed.
    """
    target, points = asked.target, asked.derive.get("points", POINTS)
    if not isinstance(points, int) or not 0 <= points <= MOST_POINTS:
        raise BadInput("--points out of range", where="--points", expected=f"0 to {MOST_POINTS}", got=points)
    require("trace", "a form read off a graph")
    model = load_run_target(asked)
    stages = model.info().stages
    stage = asked.derive.get("stage") or (stages[0] if len(stages) == 1 else None)
    if stage not in stages:
        raise BadInput(
            "no such stage" if stage else "no stage is named",
            where=str(stage or "STAGE"),
            expected="one of " + ", ".join(stages),
            fix=did_you_mean(str(stage or ""), stages),
        )
    if not isinstance(model, Exportable):
        raise BadInput(
            "this target has no graph from which a formula can be derived",
            where=target,
            got=lacking(model, ["static"])["static"],
        )
    return points, lambda: subject(model, str(stage), model.name if len(stages) == 1 else f"{model.name} {stage}")
