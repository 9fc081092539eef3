"""How long each stage of a forward takes, and each module: a stamp wherever the work passes from one to another.

On the CPU a stamp is the time of day of a steady clock; on a GPU it is a CUDA event, so that the time is the device's.
For stages only modules at the border of one carry a hook; for modules all do, in runs of their own, since each hook
takes time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.profile import StageTime, Timing
from costproof.ledger.progress import Progress, silent
from costproof.models.jobs import Run
from costproof.tracers.readonly import watched

if TYPE_CHECKING:
    from torch import nn

Stage = tuple[str, str]
"""(stage, invocation)"""
NOWHERE: Final[Stage] = ("", "")
WARM_UP: Final = 1
"""Runs before those that are timed."""


def clock_of(device: str) -> tuple[str, int]:
    """What times a run on ``cpu`` or ``cuda``: ``perf_counter`` or ``CUDA events``; and how many threads it has."""
    import torch

    return "CUDA events" if device == "cuda" else "perf_counter", torch.get_num_threads()


def timed_stages(runs: Sequence[Run], count: int, progress: Progress = silent) -> tuple[StageTime, ...]:
    """Each stage of the forwards, ``count`` times, after :data:`WARM_UP`; nothing else runs beside them."""
    found: dict[tuple[str, Stage], list[int]] = {}
    for i in range(WARM_UP + count):
        progress("time the stages", i, WARM_UP + count)
        for run in runs:
            for stage, spent in stage_times(run).items():
                if i >= WARM_UP:
                    found.setdefault((run.id, stage), []).append(spent)
    progress("time the stages", WARM_UP + count, WARM_UP + count)
    return tuple(StageTime(run, *stage, Timing(tuple(spent))) for (run, stage), spent in found.items())


def timed_modules(
    runs: Sequence[Run], count: int, progress: Progress = silent
) -> dict[tuple[str, str, str], tuple[int, ...]]:
    """(Run, stage, module) -> nanoseconds of the module itself, without the modules in it, in ``count`` runs."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for i in range(WARM_UP + count):
        progress("time the modules", i, WARM_UP + count)
        for run in runs:
            spent = _spent(run, [path for path, _ in run.model.named_modules()])
            for ((stage, _), path), nanoseconds in spent.items() if i >= WARM_UP else ():
                # What does not run each time, such as an expert, takes nothing then.
                found.setdefault((run.id, stage, path), [0] * count)[i - WARM_UP] += nanoseconds
    progress("time the modules", WARM_UP + count, WARM_UP + count)
    return {place: tuple(times) for place, times in found.items()}


def stage_times(run: Run) -> dict[Stage, int]:
    """Nanoseconds that each stage of one forward takes; together they are the whole forward."""
    found: Counter[Stage] = Counter()
    for (stage, _), nanoseconds in _spent(run, borders(run)).items():
        found[stage] += nanoseconds
    return dict(found)


def _spent(run: Run, paths: Iterable[str]) -> dict[tuple[Stage, str], int]:
    """Nanoseconds between the borders of these modules in one forward, by stage and by the innermost of them."""
    import torch

    cuda = next(run.model.parameters()).device.type == "cuda"
    stamps: list[tuple[tuple[Stage, str], Any]] = []
    new_event: Any = torch.cuda.Event

    def stamp(stage: Stage, path: str) -> None:
        if cuda:
            event = new_event(enable_timing=True)
            event.record()
            stamps.append(((stage, path), event))
        else:
            stamps.append(((stage, path), time.perf_counter_ns()))

    kwargs = run.inputs()
    with entered(run, paths, stamp), torch.no_grad(), run.around():
        run.model(**kwargs)
    if cuda:
        torch.cuda.synchronize()
    found: Counter[tuple[Stage, str]] = Counter()
    for (place, begin), (_, end) in pairwise(stamps):
        found[place] += round(begin.elapsed_time(end) * 1e6) if cuda else end - begin
    return dict(found)


@contextmanager
def entered(run: Run, paths: Iterable[str], passed: Callable[[Stage, str], None]) -> Iterator[None]:
    """Tell each time, for the time of the block, that the work passes to one of these modules, and in which stage."""
    stack: list[tuple[Stage, str]] = []
    calls: Counter[nn.Module] = Counter()
    modules = {run.model.get_submodule(path): path for path in paths}

    def enter(module: nn.Module, args: Any) -> None:
        calls[module] += 1
        stack.append((run.locate(modules[module], calls[module]), modules[module]))
        passed(*stack[-1])

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        stack.pop()
        passed(*(stack[-1] if stack else (NOWHERE, "")))

    with watched(modules, enter, leave):
        yield


def borders(run: Run) -> list[str]:
    """Modules that belong to another stage than the module around them; the root among them."""
    found = []
    for path, _ in run.model.named_modules():
        parent = path.rpartition(".")[0]
        if not path or run.locate(path, 1)[0] != run.locate(parent, 1)[0]:
            found.append(path)
    return found
