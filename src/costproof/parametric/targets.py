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
from costproof.models.target import WithKeys


class HasFormulas(Protocol):
    """The part of a target that closed formulas need."""

    def info(self) -> TargetInfo:
        """Return the target as data, with the values of its configuration symbols."""
        ...

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the calls of the stages in one run, with the values of their symbols."""
        ...

    def formulas(self, workload: Workload) -> Ledger:
        """Return the analytic ledger in symbols."""
        ...


class Configurable(HasFormulas, Protocol):
    """A target with closed formulas for any configuration.

    :class:`~costproof.parametric.evaluator.Evaluator` needs nothing else of a target."""

    @property
    def config(self) -> Any:
        """The configuration: a frozen dataclass of everything that decides a cost."""
        ...

    def with_keys(self, changes: Mapping[str, Any]) -> Self:
        """Return the same model with other values of some configuration keys."""
        ...

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """Return a preset with changed settings."""
        ...


def evaluate_formulas(target: HasFormulas, workload: Workload) -> Ledger:
    """Return the analytic ledger of a workload, with every symbol replaced by its value."""
    values = {(i.stage, i.id): i.symbols for i in target.invocations(workload)}
    return evaluate_ledger(target.formulas(workload), values, target.info().symbols)


@dataclass(frozen=True, slots=True)
class BlendedTarget:
    """A target whose workload lies between those of the two sides."""

    model: WithKeys
    base: Baseline
    head: Baseline
    kernels: bool
    """Whether the kernels are the head's."""
    without: frozenset[str] = frozenset()
    """Roles that are left out."""

    @property
    def config(self) -> Any:
        """The configuration of the model."""
        return self.model.config

    def with_keys(self, changes: Mapping[str, Any]) -> BlendedTarget:
        """The same with other keys."""
        return replace(self, model=self.model.with_keys(changes))

    def info(self) -> TargetInfo:
        """That of the model."""
        return self.model.info()

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Those of the model."""
        return self.model.invocations(workload)

    def formulas(self, workload: Workload) -> Ledger:
        """Those of the model."""
        made = self.model.formulas(workload)
        return replace(made, nodes=tuple(n for n in made.nodes if n.role not in self.without)) if self.without else made

    def workload(self, preset: str | None = None, **changed: Any) -> Workload:
        """The base's workload with these settings, and with the head's kernels.

        Raises:
            BadInput: the model cannot run it, or it has inputs together that neither side has.
        """
        values = {**settings(self.base), **changed}
        given = {key.removeprefix(WORKLOAD): value for key, value in values.items() if value is not None}
        own = {name: given.pop(name) for name in SETTINGS}
        sides = [self.base.workload, self.head.workload]
        if given.keys() not in [side.inputs.keys() for side in sides]:
            raise BadInput("these settings only make sense together", got=", ".join(given) or "none of them")
        kernels = sides[self.kernels]
        made = replace(sides[0], **own, inputs=given, attention=kernels.attention, experts=kernels.experts)
        self.model.check(made)
        return made
