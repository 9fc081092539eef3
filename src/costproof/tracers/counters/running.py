"""Counters side by side: each in a process of its own, under limits of time and memory."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from costproof.ledger.counter import CounterCall, CounterInfo, CounterRun, Spent
from costproof.ledger.errors import Incomplete
from costproof.ledger.workload import Workload
from costproof.tracers.both import Spec
from costproof.tracers.counters.registry import counter
from costproof.tracers.counters.worker import TRUTH, Answer, Order

GIB: Final = 2**30

_SLOWEST: Final = ("torchlens", TRUTH, "torch.profiler", "fvcore", "FlopCounterMode")
"""These start first, so that no core waits for one of them in the end."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one counter may use."""

    seconds: int = 240
    memory_bytes: int = 4 * GIB
    """Of private memory, for the whole process; 0 for no limit."""

    @property
    def at_once(self) -> int:
        """Processes side by side: one for each usable core, and no more than the memory has room for."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (self.memory_bytes or GIB)
        return max(1, min(cores, room))


@dataclass(frozen=True, slots=True)
class Counted:
    """What came of the processes, in the order of the names."""

    truth: tuple[CounterCall, ...]
    runs: tuple[CounterRun, ...]
    spent: dict[str, Spent]


@dataclass(frozen=True, slots=True)
class _Ended:
    """The answers of one process, and how it ended."""

    answers: tuple[Answer, ...]
    problem: str
    """Why there may be too few answers; empty if the process ended well."""


def run_counters(
    spec: Spec,
    workload: Workload,
    names: Iterable[str],
    stages: tuple[str, ...] = (),
    limits: Limits | None = None,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Counted:
    """Our own count and each tool's, call by call. A tool that crashes, hangs or is missing is a run with errors.

    Parts of a stage without any product in them (look-ups, scattering) are left out.

    Args:
        progress: called with a name, and how many are done, when one is.

    Raises:
        Incomplete: our own count failed, so there is nothing to compare with.
    """
    allowed = limits or Limits()
    wanted = list(names)
    orders = {n: Order(spec, workload, n, allowed.memory_bytes, stages) for n in (TRUTH, *wanted)}
    ended = _all(orders, allowed, progress)
    truth = tuple(call for call, _ in ended[TRUTH].answers)
    broken = next((c for c in truth if c.error is not None), None)
    if broken is not None or ended[TRUTH].problem:
        raise Incomplete(
            "our own count failed, so there is nothing to compare counters with",
            where=f"{broken.stage}[{broken.invocation}]" if broken is not None else None,
            got=broken.error if broken is not None else ended[TRUTH].problem,
        )
    counted = tuple(c for c in truth if c.value != 0)
    runs = []
    for name in wanted:
        info = _info(name)
        runs.append(CounterRun(info, _version(info.package), _calls(ended[name], counted)))
    return Counted(counted, tuple(runs), {n: _spent(ended[n].answers) for n in wanted})


def _info(name: str) -> CounterInfo:
    """What a counter says of itself; one that cannot even be loaded says nothing, and its calls say why."""
    try:
        return counter(name).info
    except Exception:
        return CounterInfo(name, name, (), "unknown", "total")


def _all(orders: dict[str, Order], limits: Limits, progress: Callable[[str, int, int], None]) -> dict[str, _Ended]:
    ended: dict[str, _Ended] = {}

    def one(name: str) -> None:
        found = _process(orders[name], limits)
        ended[name] = found
        progress(name, len(ended), len(orders))

    first = [n for n in _SLOWEST if n in orders]
    with ThreadPoolExecutor(max_workers=limits.at_once) as pool:
        try:
            for future in [pool.submit(one, n) for n in (*first, *(n for n in orders if n not in first))]:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return ended


def _calls(ended: _Ended, truth: Sequence[CounterCall]) -> tuple[CounterCall, ...]:
    """A call for every call of the truth: one that a process did not come to has how it ended for an error."""
    answered = {(c.stage, c.invocation, c.cut): c for c, _ in ended.answers}
    why = ended.problem or "it gave no answer"
    return tuple(
        answered.get((c.stage, c.invocation, c.cut)) or CounterCall(c.stage, c.invocation, error=why, cut=c.cut)
        for c in truth
    )


def _spent(answers: Sequence[Answer]) -> Spent:
    return Spent(
        milliseconds=sum(s.milliseconds for _, s in answers),
        peak_bytes=max((s.peak_bytes for _, s in answers), default=0),
    )


def _process(order: Order, limits: Limits) -> _Ended:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        # Other counters have the other cores.
        "OMP_NUM_THREADS": "1",
    }
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "costproof.tracers.counters.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=environment,
        )
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limits.seconds, stop)
        timer.start()
        answers: list[Answer] = []
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                pickle.dump(order, process.stdin)
                process.stdin.close()
            with suppress(EOFError, pickle.UnpicklingError):
                while True:
                    answers.append(pickle.load(process.stdout))
            code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if late.is_set():
            return _Ended(tuple(answers), f"took longer than {limits.seconds} s")
        if not code:
            return _Ended(tuple(answers), "")
        said.seek(0)
        last = said.read().decode("utf-8", "replace").strip().splitlines()
        return _Ended(tuple(answers), f"its process ended with {code}" + (f": {last[-1][:200]}" if last else ""))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
