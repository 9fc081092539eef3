"""Count runs of a model with dispatcher modes and hooks only, without traces and operator rules.

The work of a model's first layers is compared with that of all layers, because a layer may depend on its position in a
way that neither parameters nor settings show. All decode steps of a run are counted one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

from costproof.ledger.errors import Incomplete
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.progress import silent
from costproof.ledger.workload import Workload
from costproof.models.specs import Run
from costproof.models.target import Runnable
from costproof.patches.inference import inference_context
from costproof.patches.modules import forward_redirected, hooked
from costproof.patches.patch import gc_disabled
from costproof.snapshots.copies import unchecked
from costproof.tracers.cpu_fallback import with_numbers
from costproof.tracers.flop_counter_ledger import FlopKey
from costproof.tracers.hooks import ROOT, Hooked, trace_hooks
from costproof.tracers.paths import Paths

PLACES: Final = ("as it is given", "with numbers")
"""How a run is made: on meta, or with concrete values for a model that needs them."""


@dataclass(frozen=True, slots=True)
class ModuleWork:
    """Work of one run by module, without the work of submodules."""

    run: str
    flops: Counter[str] = field(default_factory=Counter)
    """FLOPs by torch's own formulas."""
    elements: Counter[str] = field(default_factory=Counter)
    """Elements of floating-point results of all operators, including views."""
    calls: Counter[str] = field(default_factory=Counter)

    def sums(self, times: Callable[[str], int]) -> dict[str, int]:
        """Return the FLOPs, elements and calls of a model with ``times(path)`` copies of the module at each path."""
        found = {"FLOPs": self.flops, "elements of results": self.elements, "calls of modules": self.calls}
        return {what: sum(n * times(path) for path, n in each.items()) for what, each in found.items()}


def module_work(target: Runnable, workload: Workload, place: str) -> list[ModuleWork]:
    """Execute the runs of a target; return the FLOPs, result elements and calls of every module in each.

    Args:
        place: one of :data:`PLACES`.

    Raises:
        Exception: whatever the model raises if it cannot run.
    """
    model = target.build_run(workload, silent).model
    runs = target.runs(model, workload)
    return [_work(with_numbers(run) if place == PLACES[1] else run) for run in runs]


def _work(run: Run) -> ModuleWork:
    from costproof.tracers.flop_counter_mode import CountingMode

    found, paths, kwargs = ModuleWork(run.id), Paths(run.model), run.inputs()
    judge = CountingMode([], "")

    def enter(module: Any, args: Any, kwargs: Any) -> None:
        path = paths.by_id[id(module)]
        found.calls[path] += 1
        judge.running.append((path, 1, None))

    def leave(module: Any, args: Any, kwargs: Any, result: Any) -> None:
        judge.running.pop()

    on_cpu = any(p.device.type != "meta" for p in run.model.parameters())
    with ExitStack() as around:
        around.enter_context(gc_disabled())
        around.enter_context(unchecked() if on_cpu else nullcontext())
        around.enter_context(run.around())
        around.enter_context(inference_context(run.model))
        around.enter_context(hooked(paths.modules.values(), enter, leave, with_kwargs=True))
        around.enter_context(forward_redirected(run.model))
        around.enter_context(judge.watching())
        run.model(**kwargs)
    for (where, _), flops in judge.seen.flops.items():
        found.flops[where[-1][0] if where else ""] += flops
    return replace(found, elements=judge.elements)


COUNTED: Final[tuple[Metric, ...]] = ("flops", "kv_cache_bytes")
"""Metrics that involve neither operator rules nor the accounting of graphs."""


def count_every_step(target: Runnable, workload: Workload, source: str) -> Ledger:
    """Sum torch's FLOPs and the growth of the cache over every forward of a run, all decode steps included.

    The last of n steps is always among a target's runs, so step i is the last of a run of i steps.

    Args:
        source: name of the ledger.

    Raises:
        Incomplete: torch has no formula for an operator, or a step begins with another cache than it should.
    """
    model = target.build_run(workload, silent).model
    sums: dict[tuple[FlopKey, Metric], int] = {}
    contexts: list[int] = []
    for steps in range(1, workload.new_tokens + 1):
        *before, last = target.runs(model, replace(workload, new_tokens=steps))
        contexts.append(last.context or 0)
        for run in (last,) if steps > 1 else (*before, last):
            with gc_disabled(), run.around():
                _add(sums, run, trace_hooks(run))
    if contexts != list(range(contexts[0], contexts[0] + workload.new_tokens)):
        raise Incomplete(
            "the cache does not grow by one token in each decode step", where=target.info().name,
            expected=f"{workload.new_tokens} consecutive lengths", got=contexts,
        )  # fmt: skip
    nodes = (CostNode(*quantity, {metric: value}) for (quantity, metric), value in sums.items())
    return Ledger(source, tuple(nodes), COUNTED, target.info().stages)


def _add(sums: dict[tuple[FlopKey, Metric], int], run: Run, seen: Hooked) -> None:
    if seen.judged.unjudged:
        names = sorted({name for _, name in seen.judged.unjudged})
        raise Incomplete("torch has no FLOP formula for an operator", where=run.id, got=", ".join(names))
    for quantity, flops in seen.judged.placed(run).items():
        sums[quantity, "flops"] = sums.get((quantity, "flops"), 0) + flops
    for name, size in seen.cache_growth.items():
        path = name.removeprefix(ROOT)
        place: FlopKey = (*run.locate(path, 1), path, "")
        sums[place, "kv_cache_bytes"] = sums.get((place, "kv_cache_bytes"), 0) + size
