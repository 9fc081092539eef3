"""What the modules of a model do in its runs, told fast: no trace, no rules, nothing but the dispatcher and hooks.

It is compared with what the first layers of the model say about all of them: a layer may do something because of where
it stands, which neither its parameters nor its settings show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._pytree import tree_leaves

from costproof.ledger.progress import silent
from costproof.models.as_it_runs import as_it_runs
from costproof.models.generic.copies import unchecked
from costproof.patches.modules import forward_redirected, hooked
from costproof.patches.patch import gc_disabled
from costproof.tracers.cpu_fallback import with_numbers
from costproof.tracers.flop_counter_mode import Judge
from costproof.tracers.paths import Paths

if TYPE_CHECKING:
    from costproof.ledger.workload import Workload
    from costproof.models.jobs import Run
    from costproof.models.target import Runnable

PLACES: Final = ("as it is given", "with numbers")
"""Where a run is made: on meta as a rule; a model that looks at numbers there gets ones."""


@dataclass(frozen=True, slots=True)
class Work:
    """Of one run, module by module: what runs in a module itself, not in those inside it."""

    run: str
    flops: Counter[str] = field(default_factory=Counter)
    """By torch's own formulas."""
    elements: Counter[str] = field(default_factory=Counter)
    """Of the results of all operators, views too, where they are fractions."""
    calls: Counter[str] = field(default_factory=Counter)

    def sums(self, times: Callable[[str], int]) -> dict[str, int]:
        """FLOPs, elements and calls of a model in which every module stands for so many."""
        found = {"FLOPs": self.flops, "elements of results": self.elements, "calls of modules": self.calls}
        return {what: sum(n * times(path) for path, n in each.items()) for what, each in found.items()}


def work_of(target: Runnable, workload: Workload, place: str) -> list[Work]:
    """What each run of a target does.

    Args:
        place: one of :data:`PLACES`.

    Raises:
        Exception: whatever the model raises where it cannot run.
    """
    model = target.build_run(workload, silent).model
    runs = target.runs(model, workload)
    return [_work(with_numbers(run) if place == PLACES[1] else run) for run in runs]


def _work(run: Run) -> Work:
    found, paths, kwargs = Work(run.id), Paths(run.model), run.inputs()
    judge = _Counting([], "")

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
        around.enter_context(as_it_runs(run.model))
        around.enter_context(hooked(paths.modules.values(), enter, leave, with_kwargs=True))
        around.enter_context(forward_redirected(run.model))
        around.enter_context(judge.watching())
        run.model(**kwargs)
    for (where, _), flops in judge.seen.flops.items():
        found.flops[where[-1][0] if where else ""] += flops
    return replace(found, elements=judge.elements)


class _Counting(Judge):  # type: ignore[no-untyped-call]
    """The second judge, and the elements of all results of fractions."""

    def __init__(self, running: list[tuple[str, int, Any]], root: str) -> None:
        super().__init__(running, root)
        self.running, self.elements = running, Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        tensors = (t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.is_floating_point())
        self.elements[self.running[-1][0] if self.running else ""] += sum(t.numel() for t in tensors)
        return result
