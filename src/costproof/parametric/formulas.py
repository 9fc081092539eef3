"""Evaluate the closed formulas of a target at one workload: no graph and no run is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Invocation, TargetInfo, Workload


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
