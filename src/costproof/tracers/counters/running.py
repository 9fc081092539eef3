"""Counters side by side: each in a process of its own, under limits of time and memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from costproof.ledger.counter import CounterCall, CounterInfo, CounterRun, Spent
from costproof.ledger.environment import installed
from costproof.ledger.errors import Incomplete
from costproof.ledger.workload import Workload
from costproof.models.target import Exportable
from costproof.processes import Limits, Pool
from costproof.tracers.counters.registry import COUNTERS
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
    """Our own count and each tool's, call by call. A tool that crashes, hangs or is missing is a run with errors.

    Parts of a stage without any product in them (look-ups, scattering) are left out.

    Args:
        progress: called with a name, and how many are done, when one is.

    Raises:
        Incomplete: our own count failed, so there is nothing to compare with.
    """
    wanted = list(names)
    answers: dict[str, list[Answer]] = {n: [] for n in sorted((TRUTH, *wanted), key=_place)}
    problems: dict[str, str] = {}
    orders = {n: Order(target, workload, n, stages, rules, limits.memory_bytes) for n in answers}
    with Pool[None](side_by_side(limits.memory_bytes), limits, fresh=True) as pool:
        for ended in pool.results(orders, lambda name, answer: answers[name].append(answer)):
            problems[ended.name] = "" if ended.error is None else in_short(ended.error)
            progress(ended.name, len(problems), len(orders))
    truth = tuple(call for call, _ in answers[TRUTH])
    broken = next((c for c in truth if c.error is not None), None)
    if broken is not None or problems[TRUTH]:
        raise Incomplete(
            "our own count failed, so there is nothing to compare counters with",
            where=f"{broken.stage}[{broken.invocation}]" if broken is not None else None,
            got=broken.error if broken is not None else problems[TRUTH],
        )
    counted = tuple(c for c in truth if c.value != 0)
    runs = []
    for name in wanted:
        info = _info(name)
        runs.append(CounterRun(info, installed(info.package), _calls(answers[name], problems[name], counted)))
    return Counted(counted, tuple(runs), {n: _spent(answers[n]) for n in wanted})


def _place(name: str) -> int:
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


def _info(name: str) -> CounterInfo:
    """What a counter says of itself; one that cannot even be loaded says nothing, and its calls say why."""
    try:
        return COUNTERS.load(name).info
    except Exception:
        return CounterInfo(name, name, (), "unknown", "total")


def _calls(answers: Sequence[Answer], problem: str, truth: Sequence[CounterCall]) -> tuple[CounterCall, ...]:
    """A call for every call of the truth: one that a process did not come to has how it ended for an error."""
    answered = {(c.stage, c.invocation, c.cut): c for c, _ in answers}
    why = problem or "it gave no answer"
    return tuple(
        answered.get((c.stage, c.invocation, c.cut)) or CounterCall(c.stage, c.invocation, error=why, cut=c.cut)
        for c in truth
    )


def _spent(answers: Sequence[Answer]) -> Spent:
    return Spent(
        milliseconds=sum(s.milliseconds for _, s in answers),
        peak_bytes=max((s.peak_bytes for _, s in answers), default=0),
    )
