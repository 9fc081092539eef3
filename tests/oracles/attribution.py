"""Compute the terms of a difference by exhaustion, node by node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any

from costproof.compare.diff.attribution import attribute
from costproof.compare.diff.diff import Levers, StageMetric
from costproof.configs.config import keys_of
from costproof.ledger.baseline import Baseline
from costproof.ledger.errors import BadInput
from costproof.ledger.workload import Workload
from costproof.models.target import Target, WithKeys
from costproof.parametric.targets import evaluate_formulas
from costproof.run.diff import levers
from costproof.run.operands import Operand

Totals = Mapping[StageMetric, int | None]


def candidates(value: Any) -> list[Any]:
    """Other values of a key, likely ones first."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [v for v in (2 * value, value + 1, value + 2, value // 2, value - 1, 3 * value, 8) if v != value]
    if isinstance(value, float):
        return [2 * value]
    if isinstance(value, tuple) and value:
        found = [(*value[:-1], 2 * value[-1]), value[:-1], (value[0] + 8, *value[1:]), (*value[:-1], value[-1] + 1)]
        return [v for v in found if v != value]
    return ["gelu", "relu", "wf", "f", "dm"] if isinstance(value, str) else [4096]


@dataclass
class Exhausted:
    """One target at one workload, and what was found of it."""

    target: WithKeys
    workload: Workload
    singles: dict[str, Any] = field(default_factory=dict)
    """Key -> a legal value for it alone."""
    partners: dict[str, str] = field(default_factory=dict)
    """A key without such a value -> one that has to change with it."""
    splits: int = 0
    """Differences of a metric in a stage that were split."""
    merged: int = 0
    """Changes of several keys that only make sense together."""
    without: list[tuple[str, ...]] = field(default_factory=list)
    """Keys for which no legal change was found."""
    known: dict[str, Totals] = field(default_factory=dict)

    @classmethod
    def of(cls, target: Target) -> Exhausted:
        """A target at its default workload."""
        assert isinstance(target, WithKeys)
        return cls(target, target.workload())

    def runs(self, changes: Mapping[str, Any]) -> bool:
        """Whether the model with these keys runs the workload."""
        try:
            self.target.with_keys(changes).check(self.workload)
        except BadInput:
            return False
        return True

    def change(self, keys: Sequence[str]) -> dict[str, Any]:
        """A legal change of all these keys; nothing if none was found."""
        now = keys_of(self.target.config)
        choices = []
        for key in keys:
            first = [self.singles[key]] if key in self.singles else []
            choices.append([*first, *(v for v in candidates(now[key]) if v not in first)])
        tried = (dict(zip(keys, values, strict=True)) for values in product(*choices))
        return next((changes for changes in tried if self.runs(changes)), {})

    def totals(self, changes: Mapping[str, Any]) -> Totals:
        """Every metric of every stage, from the nodes of the ledger."""
        key = repr(sorted(changes.items()))
        if key not in self.known:
            target = self.target.with_keys(changes) if changes else self.target
            ledger = evaluate_formulas(target, self.workload)
            parts = {s: replace(ledger, nodes=tuple(n for n in ledger.nodes if n.stage == s)) for s in ledger.stages}
            parts[""] = ledger
            self.known[key] = {(s, m): part.total(m) for s, part in parts.items() for m in ledger.metrics}
        return self.known[key]

    def between(self, changes: Mapping[str, Any]) -> Levers:
        """What a diff evaluates of a change."""
        found = levers(self.read({}), self.read(changes))
        assert found is not None
        assert set(found.keys) == set(changes)
        return found

    def read(self, changes: Mapping[str, Any]) -> Operand:
        """A side; its rows are not looked at here."""
        target = self.target.with_keys(changes) if changes else self.target
        side = Baseline(target.conventions(self.workload), target.info(), self.workload, {}, {})
        return Operand(side, target)

    def wrong(self, changes: Mapping[str, Any]) -> Iterator[str]:
        """What does not add up."""
        between = self.between(changes)
        found = attribute(between.keys, between.point)
        before, after = self.totals({}), self.totals(changes)
        self.merged += any(len(p.keys) > 1 for p in found.players)
        for place in after:
            delta = (after[place] or 0) - (before.get(place, 0) or 0)
            split = found.splits[place]
            self.splits += 1
            sums = sum(t.amount for t in split.terms), sum(split.shares.values())
            if sums != (delta, delta):
                yield f"{changes} {place}: {sums}, not {delta}"
        for key in changes if len(changes) > 1 else ():
            rest = {k: v for k, v in changes.items() if k != key}
            if not self.runs(rest):
                continue
            alone = attribute([k for k in between.keys if k != key], between.point)
            for place, split in found.splits.items():
                left = tuple(t for t in split.terms if key not in t.keys)
                if alone.splits[place].terms != left:
                    yield f"{changes} without {key}, {place}: {alone.splits[place].terms}, not {left}"
                if rest in [{k: v} for k, v in self.singles.items()]:
                    own = sum(t.amount for t in left)
                    if own != (self.totals(rest)[place] or 0) - (before[place] or 0):
                        yield f"{rest} {place}: {own}"

    def singles_found(self) -> list[dict[str, Any]]:
        """A change for each key that has one for itself; for the others the key that has to change with them."""
        keys = list(keys_of(self.target.config))
        for key in keys:
            self.singles |= self.change((key,))
        for key in (k for k in keys if k not in self.singles):
            self.partners |= {key: next(other for other in keys if other != key and self.change((key, other)))}
        return [{key: value} for key, value in self.singles.items()]

    def pairs(self) -> Iterator[dict[str, Any]]:
        """A change for each pair of keys, and of what has to change with them."""
        for pair in combinations(keys_of(self.target.config), 2):
            partners = (self.partners[key] for key in pair if key in self.partners)
            changes = self.change(tuple(dict.fromkeys((*pair, *partners))))
            if changes:
                yield changes
            else:
                self.without.append(pair)
