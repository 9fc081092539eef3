"""What the second judge counted, placed and summed over the steps; nothing here is shared with the first one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from costproof.ledger.node import CostNode, Ledger, UnknownOp
from costproof.models.specs import Run
from costproof.opgraph.merge import merge_unknown

CallStack = tuple[tuple[str, int], ...]
"""The calls that are running, outermost first: (path of the module, number of its call)."""
FlopKey = tuple[str, str, str, str]
"""Stage, invocation, module, operator."""
Flops = Mapping[FlopKey, int]

SOURCE: Final = "dispatcher"
ALONE: Final = "torch has no formula for this operator"


@dataclass(slots=True)
class DispatchedFlops:
    """One run as the dispatcher saw it."""

    flops: Counter[tuple[CallStack, str]] = field(default_factory=Counter)
    """Of each operator by the calls that it ran in."""
    unjudged: Counter[tuple[CallStack, str]] = field(default_factory=Counter)
    """Calls of operators that no formula is known for."""
    left: Counter[CallStack] = field(default_factory=Counter)
    """How often the numbers of a tensor went to NumPy."""
    by_values: bool = False
    """Whether values of tensors decided a size or a branch."""

    def placed(self, run: Run) -> dict[FlopKey, int]:
        """FLOPs by stage, invocation, module and operator.

        What stands inside a group of modules of which the data decides which run, stands on the group.
        """
        again, found = self._again(), Counter[FlopKey]()
        for (where, operator), flops in self.flops.items():
            found[(*_place(run, where, again), operator)] += flops
        return dict(found)

    def without_formula(self, run: Run) -> tuple[UnknownOp, ...]:
        """Calls of operators that no formula is known for."""
        again = self._again()
        places = ((_place(run, where, again), name, calls) for (where, name), calls in self.unjudged.items())
        return tuple(UnknownOp(name, stage, module, calls, None, ALONE) for (stage, _, module), name, calls in places)

    def gone(self, run: Run) -> Counter[tuple[str, str]]:
        """(stage, module) -> how often the numbers of a tensor went to NumPy there."""
        again, found = self._again(), Counter[tuple[str, str]]()
        for where, times in self.left.items():
            stage, _, module = _place(run, where, again)
            found[stage, module] += times
        return found

    def of_experts(self, run: Run) -> dict[str, tuple[int, ...]]:
        """Module of routed experts -> FLOPs of each expert in this run, where experts are modules."""
        totals: dict[str, list[int]] = {}
        for (where, _), flops in self.flops.items():
            module = where[-1][0] if where else ""
            for group, rows in run.expert_tokens.items():
                expert = module.removeprefix(group + ".").partition(".")[0]
                if module.startswith(group + ".") and expert.isdecimal():
                    totals.setdefault(group, [0] * len(rows))[int(expert)] += flops
        return {group: tuple(each) for group, each in totals.items()}

    def _again(self) -> set[str]:
        """Modules that were called more than once."""
        return {path for calls in (self.flops, self.unjudged) for each, _ in calls for path, n in each if n > 1}


def _place(run: Run, where: CallStack, again: Collection[str]) -> tuple[str, str, str]:
    """Stage, invocation and module; of a call in a module that is called again, the outermost such call decides."""
    module = where[-1][0] if where else ""
    number = next((call for path, call in where if path in again), 1)
    group = next((g for g in run.groups if module.startswith(g + ".")), module)
    return (*run.locate(module, number), group)


def flop_counter_ledger(
    runs: Sequence[tuple[int | None, Flops]], steps: int, stages: tuple[str, ...], alone: Iterable[UnknownOp]
) -> Ledger:
    """The ledger of the judge: what ran once, and all decode steps.

    Args:
        runs: (tokens in the cache before it if it is a decode step, FLOPs) of all that was traced. If those are not all
            steps, the others must lie on the straight line through the first and the last, or the sum is unknown.
        steps: how many steps there are.
        alone: operators without a formula.
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
    """What all steps cost, by adding them up one by one; ``None`` where that is not known.

    Args:
        costs: tokens in the cache -> cost of the step, of the first, the last and some between.
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
