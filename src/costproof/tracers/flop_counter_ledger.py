"""Sum the FLOPs that torch's own formulas counted by stage and module, independently of the operator rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from costproof.ledger.metrics import KEPT, KEPT_FLOPS, KEPT_SCORES, Metric
from costproof.ledger.node import NO_FORMULA, CostNode, Ledger, UnknownOp, exact_sum
from costproof.models.specs import Run
from costproof.opgraph.merge import merge_unknown

CallStack = tuple[tuple[str, int], ...]
"""The active module calls, outermost first: (path of the module, number of the call)."""
FlopKey = tuple[str, str, str, str]
"""(stage, invocation, path of the module, operator), under which FLOPs are added up."""
Flops = Mapping[FlopKey, int]
Counts = dict[tuple[str, str, str, str, Metric], int | None]
"""Counts by (stage, invocation, path of the module, operator, metric); ``None``: unknown."""

SOURCE: Final = "dispatcher"


@dataclass(slots=True)
class DispatchedFlops:
    """FLOPs of one run, counted at the dispatcher by torch's formulas."""

    flops: Counter[tuple[CallStack, str]] = field(default_factory=Counter)
    """FLOPs by (active calls, operator)."""
    unjudged: Counter[tuple[CallStack, str]] = field(default_factory=Counter)
    """Number of calls of operators without a formula, by (active calls, operator)."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Reason why an operator's formula failed, by operator."""
    left: Counter[CallStack] = field(default_factory=Counter)
    """Number of conversions of a tensor to NumPy, after which work is not seen, by active calls."""
    by_values: bool = False
    """Whether tensor values decided a size or a branch."""
    kept: dict[tuple[CallStack, str], int | None] = field(default_factory=dict)
    """Query-key pairs that masks keep, by (active calls, operator); ``None``: unknown."""
    hidden: dict[tuple[CallStack, str], int | None] = field(default_factory=dict)
    """FLOPs for pairs that masks hide, by (active calls, operator); ``None``: unknown."""
    unread: dict[str, str] = field(default_factory=dict)
    """Error that ended the reading of an operator's masks, by operator; the operator's pairs are then unknown."""

    def placed(self, run: Run) -> dict[FlopKey, int]:
        """Return the FLOPs by stage, invocation, module and operator.

        Work inside a group of modules, from which data selects some, belongs to the group.
        """
        again, found = self._again(), Counter[FlopKey]()
        for (where, operator), flops in self.flops.items():
            found[(*_place(run, where, again), operator)] += flops
        return dict(found)

    def placed_pairs(self, run: Run) -> Counts:
        """Return kept pairs and kept FLOPs by stage, invocation, module, operator and metric; ``None``: unknown."""
        again, found = self._again(), Counts()
        flops = {key: n - h if (h := self.hidden.get(key, 0)) is not None else None for key, n in self.flops.items()}
        for metric, counts in ((KEPT_FLOPS, flops), (KEPT_SCORES, self.kept)):
            for (where, operator), count in counts.items():
                key = (*_place(run, where, again), operator, metric)
                before = found.get(key, 0)
                found[key] = None if before is None or count is None else before + count
        return found

    def without_formula(self, run: Run) -> tuple[UnknownOp, ...]:
        """Return the operators that torch has no formula for, with their calls."""
        again = self._again()
        places = ((_place(run, where, again), name, calls) for (where, name), calls in self.unjudged.items())
        return tuple(
            UnknownOp(name, stage, module, calls, None, self.reasons.get(name, NO_FORMULA))
            for (stage, _, module), name, calls in places
        )

    def gone(self, run: Run) -> Counter[tuple[str, str]]:
        """Return the number of conversions of tensors to NumPy, after which work is not seen, by (stage, module)."""
        again, found = self._again(), Counter[tuple[str, str]]()
        for where, times in self.left.items():
            stage, _, module = _place(run, where, again)
            found[stage, module] += times
        return found

    def of_experts(self, run: Run) -> dict[str, tuple[int, ...]]:
        """Return the FLOPs of each expert in this run, by path of the mixture, if experts are separate modules."""
        totals: dict[str, list[int]] = {}
        for (where, _), flops in self.flops.items():
            module = where[-1][0] if where else ""
            for group, rows in run.expert_tokens.items():
                expert = module.removeprefix(group + ".").partition(".")[0]
                if module.startswith(group + ".") and expert.isdecimal():
                    totals.setdefault(group, [0] * len(rows))[int(expert)] += flops
        return {group: tuple(each) for group, each in totals.items()}

    def _again(self) -> set[str]:
        """Return the paths of modules that were called more than once."""
        return {path for calls in (self.flops, self.unjudged) for each, _ in calls for path, n in each if n > 1}


def _place(run: Run, where: CallStack, again: Collection[str]) -> tuple[str, str, str]:
    """Return (stage, invocation, module) of a call; the outermost repeated module determines the invocation."""
    module = where[-1][0] if where else ""
    number = next((call for path, call in where if path in again), 1)
    group = next((g for g in run.groups if module.startswith(g + ".")), module)
    return (*run.locate(module, number), group)


def flop_counter_ledger(
    runs: Sequence[tuple[int | None, Counts]], steps: int, stages: tuple[str, ...], alone: Iterable[UnknownOp]
) -> Ledger:
    """Return a ledger of FLOPs by torch's own formulas, from calls that ran once and from all decode steps.

    Args:
        runs: (tokens in the cache before a decode step or ``None``, counts) of all traced runs. If not all steps were
            traced, they must lie on the straight line through the first and the last, or the sum is unknown.
        steps: number of decode steps.
        alone: operators that torch has no formula for, which make sums unknown.
    """
    parts: dict[tuple[str, str, str, str, Metric], list[int | None]] = {}
    for context, counts in runs:
        if context is None:
            for quantity, value in counts.items():
                parts.setdefault(quantity, []).append(value)
    traced = {context: counts for context, counts in runs if context is not None}
    for quantity in dict.fromkeys(q for counts in traced.values() for q in counts):
        each = {context: counts.get(quantity, 0) for context, counts in traced.items()}
        known = {context: n for context, n in each.items() if n is not None}
        parts.setdefault(quantity, []).append(sum_steps(known, steps) if len(known) == len(each) else None)
    nodes: dict[FlopKey, dict[Metric, int | None]] = {}
    for (stage, call, module, name, metric), values in parts.items():
        nodes.setdefault((stage, call, module, name), {})[metric] = exact_sum(values)
    metrics = ("flops", *(m for m in KEPT if any(m in costs for costs in nodes.values())))
    return Ledger(
        SOURCE, tuple(CostNode(*k, costs) for k, costs in nodes.items()), metrics, stages, merge_unknown(alone)
    )


def sum_steps(costs: Mapping[int, int], count: int) -> int | None:
    """Return the sum over all decode steps; ``None`` if the traced steps do not determine it.

    Args:
        costs: costs of the first, the last and some other steps, by tokens in the cache.
    """
    if len(costs) == count:
        return sum(costs.values())
    first, last = min(costs), max(costs)
    if last - first != count - 1:
        return None
    slope = Fraction(costs[last] - costs[first], last - first)
    line = [costs[first] + slope * step for step in range(count)]
    total = sum(line)
    straight = all(line[context - first] == cost for context, cost in costs.items())
    return int(total) if straight and total.denominator == 1 else None
