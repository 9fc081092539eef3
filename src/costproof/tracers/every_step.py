"""A run with all of its decode steps, each made and counted by the second judge: no rules, no sums in symbols."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from costproof.ledger.errors import Incomplete
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.progress import silent
from costproof.ledger.workload import Workload
from costproof.models.jobs import Run
from costproof.models.target import Runnable
from costproof.patches.patch import gc_disabled
from costproof.tracers.flop_counter_ledger import Quantity
from costproof.tracers.hooks import ROOT, Hooked, trace_hooks

COUNTED: Final[tuple[Metric, ...]] = ("flops", "kv_cache_bytes")
"""What neither the operator rules nor the accounting of graphs have a part in."""


def counted_runs(target: Runnable, workload: Workload, source: str) -> Ledger:
    """FLOPs by torch's formulas and bytes that the cache grows by, added up over everything that runs.

    The last of so many steps is always among a target's runs; so step i is the last of a run of i steps.

    Args:
        source: the name that the ledger gets.

    Raises:
        Incomplete: torch has no formula for an operator, or a step begins with another cache than it should.
    """
    model = target.build_run(workload, silent).model
    sums: dict[tuple[Quantity, Metric], int] = {}
    contexts: list[int] = []
    for steps in range(1, workload.new_tokens + 1):
        *before, last = target.runs(model, replace(workload, new_tokens=steps))
        contexts.append(last.context or 0)
        for run in (last,) if steps > 1 else (*before, last):
            with gc_disabled(), run.around():
                _add(sums, run, trace_hooks(run))
    if contexts != list(range(contexts[0], contexts[0] + workload.new_tokens)):
        raise Incomplete("the steps that ran are not one after another", where=target.info().name, got=contexts)
    nodes = (CostNode(*quantity, {metric: value}) for (quantity, metric), value in sums.items())
    return Ledger(source, tuple(nodes), COUNTED, target.info().stages)


def _add(sums: dict[tuple[Quantity, Metric], int], run: Run, seen: Hooked) -> None:
    if seen.judged.unjudged:
        names = sorted({name for _, name in seen.judged.unjudged})
        raise Incomplete("torch has no formula for an operator", where=run.id, got=", ".join(names))
    for quantity, flops in seen.judged.placed(run).items():
        sums[quantity, "flops"] = sums.get((quantity, "flops"), 0) + flops
    for name, size in seen.cache_growth.items():
        path = name.removeprefix(ROOT)
        place: Quantity = (*run.locate(path, 1), path, "")
        sums[place, "kv_cache_bytes"] = sums.get((place, "kv_cache_bytes"), 0) + size
