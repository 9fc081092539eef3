"""Counters side by side: each in a process of its own, under limits of time and memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from costproof.ledger.counter import CounterCall, CounterInfo, CounterRun, Spent
from costproof.ledger.environment import installed
from costproof.ledger.errors import CostproofError
from costproof.ledger.workload import Workload
from costproof.models.target import Exportable
from costproof.processes import Late, Limits, Pool
from costproof.tracers.counters.registry import COUNTERS, not_installed
from costproof.tracers.counters.worker import TRUTH, Answer, Order, in_short

GIB: Final = 2**30

_FIRST: Final = (TRUTH, "torchlens", "torch.profiler", "fvcore", "FlopCounterMode")
"""The truth, and those that take longest, so that no core waits for one of them in the end."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What came of the processes, in the order of the names."""

    truth: tuple[CounterCall, ...]
    runs: tuple[CounterRun, ...]
    spent: dict[str, Spent]


def side_by_side(memory_bytes: int) -> int:
    """How many processes at once: one for each usable core, and no more than the memory has room for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (memory_bytes or GIB)
    return max(1, min(cores, room))


def run_counters(
    target: Exportable,
    workload: Workload,
    names: Iterable[str],
    limits: Limits,
    *,
    stages: tuple[str, ...] = (),
    rules: tuple[str, ...] = (),
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Counted:
    """Our own count and each tool's, call by call.

    A tool that crashes, hangs or cannot be loaded is a run with errors, and so is the truth; one that is not
    installed is a run without calls. Parts of a stage without any product in them (look-ups, scattering) are left out.

    Args:
        progress: called with a name, and how many are done, when one is.
    """
    wanted, absent = list(names), not_installed()
    answers: dict[str, list[Answer]] = {n: [] for n in sorted((TRUTH, *wanted), key=_place) if n not in absent}
    problems: dict[str, str] = {}
    orders = {n: Order(target, workload, n, stages, rules, limits.memory_bytes) for n in answers}
    with Pool[None](side_by_side(limits.memory_bytes), limits, fresh=True) as pool:
        for ended in pool.results(orders, lambda name, answer: answers[name].append(answer)):
            problems[ended.name] = "" if ended.error is None else _why(ended.error)
            progress(ended.name, len(problems), len(orders))
    calls = {n: {(c.stage, c.invocation, c.cut): c for c, _ in found} for n, found in answers.items()}
    due = list(calls[TRUTH]) if not problems[TRUTH] else places(target, workload, stages, calls)
    truth = _complete(calls[TRUTH], due, problems[TRUTH])
    counted = [p for p, c in truth.items() if c.value != 0]
    runs = []
    for name in wanted:
        info = _info(name)
        its = () if name in absent else tuple(_complete(calls[name], counted, problems[name]).values())
        runs.append(CounterRun(info, installed(info.package), its))
    return Counted(
        tuple(truth[p] for p in counted), tuple(runs), {n: _spent(answers[n]) for n in wanted if n not in absent}
    )


Place = tuple[str, str, str]
"""Stage, invocation, cut."""


def places(
    target: Exportable, workload: Workload, stages: tuple[str, ...], calls: Mapping[str, Mapping[Place, CounterCall]]
) -> list[Place]:
    """What there is to count if the truth has not come to all of it: what a tool came to, and the other invocations."""
    from costproof.tracers.static import left_out

    found = dict.fromkeys((*calls[TRUTH], *(p for its in calls.values() for p in its)))
    reached = {place[:2] for place in found}
    for i in target.invocations(workload):
        wanted = (not stages or i.stage in stages) and i.stage not in left_out(target)
        if wanted and (i.stage, i.id) not in reached:
            found[i.stage, i.id, ""] = None
    return list(found)


def _complete(answered: Mapping[Place, CounterCall], due: Iterable[Place], problem: str) -> dict[Place, CounterCall]:
    """A call for every place: one that a process did not come to has how it ended for an error."""
    return {p: answered.get(p) or CounterCall(p[0], p[1], error=problem or "it gave no answer", cut=p[2]) for p in due}


def _why(error: CostproofError) -> str:
    more = "; costproof counters --timeout allows more" if isinstance(error, Late) else ""
    return in_short(error) + more


def _place(name: str) -> int:
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


def _info(name: str) -> CounterInfo:
    """What a counter says of itself; one that cannot even be loaded says nothing, and its calls say why."""
    try:
        return COUNTERS.load(name).info
    except Exception:
        return CounterInfo(name, name, (), "unknown", "total")


def _spent(answers: Sequence[Answer]) -> Spent:
    return Spent(
        milliseconds=sum(s.milliseconds for _, s in answers),
        peak_bytes=max((s.peak_bytes for _, s in answers), default=0),
    )
