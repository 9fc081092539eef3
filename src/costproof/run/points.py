"""The analytic numbers of one target at any configuration and workload: what a diff and a sweep evaluate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger, bearing
from costproof.models.changing import key_named, keys_of
from costproof.models.registry import load_target
from costproof.models.target import WithKeys
from costproof.run.capture import analytic_ledger
from costproof.run.request import checked, option

NO_CHANGES: Mapping[str, Any] = {}


class Row(NamedTuple):
    """What is counted: a part of the model in a stage, all its layers and calls together."""

    stage: str
    role: str
    kind: str
    """Of the operator; empty for what belongs to the module as a whole."""
    metric: Metric


@dataclass(frozen=True, slots=True)
class Numbers:
    """All that the formulas say at one point, as exact integers."""

    rows: Mapping[Row, int]
    totals: Mapping[tuple[str, Metric], int]
    """(Stage, metric) -> sum; of all stages under an empty name. A module that works in two stages has its parameters
    in each, and once in the whole."""


@dataclass(frozen=True, slots=True)
class Points:
    """One target at any point: its formulas are written and compiled once for every form that they have."""

    target: WithKeys

    @classmethod
    def of(cls, name: str, config: Path | None = None) -> Points:
        """The points around a target, or around a configuration in a file.

        Raises:
            BadInput: no such target, or it has no formulas.
        """
        target = load_target(name, config)
        if not isinstance(target, WithKeys):
            raise BadInput("no formulas describe this target", where=name, expected="a family of costproof targets")
        return cls(target)

    def key(self, name: str, where: str = "") -> str:
        """The configuration key that a name means; see :func:`~costproof.models.changing.key_named`."""
        return key_named(self.target.config, name, where or name)

    def keys(self) -> dict[str, Any]:
        """Every configuration key and its value."""
        return keys_of(self.target.config)

    def at(
        self, keys: Mapping[str, Any] = NO_CHANGES, preset: str | None = None, settings: Mapping[str, Any] = NO_CHANGES
    ) -> Numbers:
        """The numbers of one point.

        Args:
            keys: other values of configuration keys, by their whole names.
            preset: the target's default one if ``None``.
            settings: of the workload, by the names that the target gives them.

        Raises:
            Problems: everything that keeps this from being a model, or a run of it.
        """
        problems: list[CostproofError] = []
        chosen = checked(self.target.settings(), settings, option, problems)
        if problems:
            raise Problems("the workload cannot be run", problems)
        target = self.target.with_keys(keys) if keys else self.target
        return numbers_of(analytic_ledger(target, target.workload(preset, **chosen)))


def numbers_of(ledger: Ledger) -> Numbers:
    """The rows and totals of a ledger of numbers."""
    rows: Counter[Row] = Counter()
    totals: dict[tuple[str, Metric], int] = {}
    nodes: dict[str, list[CostNode]] = {stage: [] for stage in ledger.stages}
    for node in ledger.nodes:
        nodes[node.stage].append(node)
        for metric, amount in node.costs.items():
            assert amount is not None, "a formula is never unknown"
            rows[Row(node.stage, node.role, node.kind, metric)] += amount
    for metric in ledger.metrics:
        for stage, own in (*nodes.items(), ("", ledger.nodes)):
            totals[stage, metric] = sum(node.costs[metric] or 0 for node in bearing(own, metric))
    return Numbers(dict(rows), totals)
