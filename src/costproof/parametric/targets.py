"""Evaluate the closed formulas of a target at one workload: no graph and no run is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from costproof.compare.diff.changes import SETTINGS, WORKLOAD, settings
from costproof.ledger.baseline import Baseline
from costproof.ledger.errors import BadInput
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Invocation, TargetInfo, Workload
from costproof.models.stored_formulas import GivesFormulas, stored_formulas
from costproof.models.target import WithKeys


class HasFormulas(GivesFormulas, Protocol):
    """Protocol of targets that have closed formulas."""

    def info(self) -> TargetInfo:
        """Return the target as data, with the values of its configuration symbols."""

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the calls of the stages in one run, with the values of their symbols."""


class Configurable(HasFormulas, Protocol):
    """A target with closed formulas for any configuration.

    :class:`~costproof.parametric.evaluator.Evaluator` needs nothing else of a target."""

    @property
    def config(self) -> Any:
        """The configuration: a frozen dataclass of everything that decides a cost."""

    def with_keys(self, changes: Mapping[str, Any]) -> Self:
        """Return the same model with other values of some configuration keys."""

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """Return a preset with changed settings."""


def evaluate_formulas(target: HasFormulas, workload: Workload) -> Ledger:
    """Return the analytic ledger of a workload, with every symbol replaced by its value."""
    values = {(i.stage, i.id): i.symbols for i in target.invocations(workload)}
    return evaluate_ledger(stored_formulas(target, workload), values, target.info().symbols)


@dataclass(frozen=True, slots=True)
class BlendedTarget:
    """Target whose workloads take some settings from one run and the others from another, for a diff."""

    model: WithKeys
    base: Baseline
    """The run whose settings are the default."""
    head: Baseline
    kernels: bool = False
    """Whether attention and expert kernels are taken from the workload of HEAD; otherwise from that of BASE."""
    without: frozenset[str] = frozenset()
    """Roles whose nodes are left out of the formulas."""

    @property
    def config(self) -> Any:
        """The configuration of the model."""
        return self.model.config

    def with_keys(self, changes: Mapping[str, Any]) -> BlendedTarget:
        """Return the same target with other values of some configuration keys."""
        return replace(self, model=self.model.with_keys(changes))

    def info(self) -> TargetInfo:
        """Return the model as data."""
        return self.model.info()

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the calls of the model's stages."""
        return self.model.invocations(workload)

    def formulas(self, workload: Workload) -> Ledger:
        """Return the formulas of the model, without the nodes of roles that are left out."""
        ledger = self.model.formulas(workload)
        if not self.without:
            return ledger
        return replace(ledger, nodes=tuple(n for n in ledger.nodes if n.role not in self.without))

    def workload(self, preset: str | None = None, **changed: Any) -> Workload:
        """Return the workload of the base with changed settings.

        Raises:
            BadInput: the model refuses it, or it has a combination of inputs that neither side has.
        """
        values = {**settings(self.base), **changed}
        given = {key.removeprefix(WORKLOAD): value for key, value in values.items() if value is not None}
        own = {name: given.pop(name) for name in SETTINGS}
        sides = [self.base.workload, self.head.workload]
        if given.keys() not in [side.inputs.keys() for side in sides]:
            raise BadInput(
                "neither side has this combination of settings", where="diff, with settings of both sides mixed",
                expected=" or ".join(", ".join(side.inputs) or "none" for side in sides),
                got=", ".join(given) or "none",
            )  # fmt: skip
        kernels = sides[self.kernels]
        blend = replace(sides[0], **own, inputs=given, attention=kernels.attention, experts=kernels.experts)
        self.model.check(blend)
        return blend
