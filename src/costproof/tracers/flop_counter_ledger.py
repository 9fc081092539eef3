"""Sum the FLOPs that torch's own formulas counted by stage and module, independently of the operator rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from costproof.ledger.node import NO_FORMULA, CostNode, Ledger, UnknownOp
from costproof.models.specs import Run
from costproof.opgraph.merge import merge_unknown

CallStack = tuple[tuple[str, int], ...]
"""The active calls, outermost first: (path of the module, number of its call)."""
FlopKey = tuple[str, str, str, str]
"""Key of a sum of FLOPs: stage, invocation, path of the module, operator."""
Flops = Mapping[FlopKey, int]

SOURCE: Final = "dispatcher"


@dataclass(slots=True)
class DispatchedFlops:
    """FLOPs of one run, counted at the dispatcher by torch's formulas."""

    flops: Counter[tuple[CallStack, str]] = field(default_factory=Counter)
    """(active calls, operator) -> FLOPs."""
    unjudged: Counter[tuple[CallStack, str]] = field(default_factory=Counter)
    """(active calls, operator) -> calls of an operator without a formula."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Operator -> why its formula had no answer."""
    left: Counter[CallStack] = field(default_factory=Counter)
    """Active calls -> number of conversions of a tensor to NumPy, where operators are no longer seen."""
    by_values: bool = False
    """Whether values of tensors decided a size or a branch."""

    def placed(self, run: Run) -> dict[FlopKey, int]:
        """Return the FLOPs by stage, invocation, module and operator.

        Work inside a group of modules of which data selects some belongs to the group.
        """
        again, found = self._again(), Counter[FlopKey]()
        for (where, operator), flops in self.flops.items():
            found[(*_place(run, where, again), operator)] += flops
        return dict(found)

    def without_formula(self, run: Run) -> tuple[UnknownOp, ...]:
        """Return the calls of operators that torch has no formula for."""
        again = self._again()
        places = ((_place(run, where, again), name, calls) for (where, name), calls in self.unjudged.items())
        return tuple(
            UnknownOp(name, stage, module, calls, None, self.reasons.get(name, NO_FORMULA))
            for (stage, _, module), name, calls in places
        )

    def gone(self, run: Run) -> Counter[tuple[str, str]]:
        """Return (stage, module) -> number of conversions of a tensor to NumPy, whose further work is not seen."""
        again, found = self._again(), Counter[tuple[str, str]]()
        for where, times in self.left.items():
            stage, _, module = _place(run, where, again)
            found[stage, module] += times
        return found

    def of_experts(self, run: Run) -> dict[str, tuple[int, ...]]:
        """Return path of a mixture -> FLOPs of each expert in this run, where experts are modules of their own."""
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
    """Return (stage, invocation, module) of a call; the outermost repeated module decides the invocation."""
    module = where[-1][0] if where else ""
    number = next((call for path, call in where if path in again), 1)
    group = next((g for g in run.groups if module.startswith(g + ".")), module)
    return (*run.locate(module, number), group)


def flop_counter_ledger(
    runs: Sequence[tuple[int | None, Flops]], steps: int, stages: tuple[str, ...], alone: Iterable[UnknownOp]
) -> Ledger:
    """Return the ledger of torch's own FLOP formulas: calls that ran once, and all decode steps.

    Args:
        runs: (tokens in the cache before a decode step or ``None``, FLOPs) of all traced runs. If not all steps were
            traced, they must lie on the straight line through the first and the last, or the sum is unknown.
        steps: number of decode steps.
        alone: operators that torch has no formula for; sums with them are unknown.
    """
    parts: dict[FlopKey, list[int | None]] = {}
    for context, flops in runs:
        if context is None:
            for quantity, value in flops.items():
                parts.setdefault(quantity, []).append(value)
    traced = {context: flops for context, flops in runs if context is not None}
    for quantity in dict.fromkeys(q for flops in traced.values() for q in flops):
        each = {context: flops.get(quantity, 0) for context, flops in traced.items()}
        parts.setdefault(quantity, []).append(sum_steps(each, steps))
    nodes = (
        CostNode(*quantity, {"flops": None if None in values else sum(v or 0 for v in values)})
        for quantity, values in parts.items()
    )
    return Ledger(SOURCE, tuple(nodes), ("flops",), stages, merge_unknown(alone))


def sum_steps(costs: Mapping[int, int], count: int) -> int | None:
    """Return the sum over all decode steps, or ``None`` if the traced ones do not determine it.

    Args:
        costs: tokens in the cache -> cost of the step, of the first, the last and some in between.
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
