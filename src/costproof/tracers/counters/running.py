"""Counters side by side: each in a process of its own, under limits of time and memory."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from costproof.ledger.counter import CounterCall, CounterRun
from costproof.ledger.errors import Incomplete
from costproof.ledger.workload import Workload
from costproof.models.target import Target
from costproof.tracers.both import Spec
from costproof.tracers.counters.registry import counter
from costproof.tracers.counters.worker import TRUTH, Order

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Limits:
    """What one counter may use."""

    seconds: int = 240
    memory_bytes: int = 12 * GIB
    """Of private memory, for the whole process; 0 for no limit."""
    at_once: int = 2


def run_counters(
    spec: Spec,
    workload: Workload,
    names: Iterable[str],
    stages: tuple[str, ...] = (),
    limits: Limits | None = None,
    progress: Callable[[str], None] = lambda name: None,
) -> tuple[tuple[CounterCall, ...], tuple[CounterRun, ...]]:
    """Our own count and each tool's, call by call. A tool that crashes, hangs or is missing is a run with errors.

    Parts of a stage without any product in them (look-ups, scattering) are left out.

    Raises:
        Incomplete: our own count failed, so there is nothing to compare with.
    """
    allowed = limits or Limits()
    wanted = list(names)
    target = spec.load()
    expected = _expected(target, workload, stages)

    def one(name: str) -> tuple[CounterCall, ...]:
        found = _process(Order(spec, workload, name, allowed.memory_bytes, stages), allowed, expected)
        progress(name)
        return found

    with ThreadPoolExecutor(max_workers=allowed.at_once) as pool:
        answers = list(pool.map(one, [TRUTH, *wanted]))
    truth = answers[0]
    broken = [c for c in truth if c.error is not None]
    if broken:
        raise Incomplete(
            "our own count failed, so there is nothing to compare counters with",
            where=f"{broken[0].stage}[{broken[0].invocation}]",
            got=broken[0].error,
        )
    idle = {(c.stage, c.invocation, c.cut) for c in truth if not any(n.costs.get("flops") for n in c.nodes)}
    runs = []
    for name, calls in zip(wanted, answers[1:], strict=True):
        info = counter(name).info
        kept = tuple(c for c in calls if (c.stage, c.invocation, c.cut) not in idle)
        runs.append(CounterRun(info, _version(info.package), kept))
    return tuple(c for c in truth if (c.stage, c.invocation, c.cut) not in idle), tuple(runs)


def _expected(target: Target, workload: Workload, stages: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The calls that an answer must have, so that none is dropped when a process dies."""
    return tuple((i.stage, i.id) for i in target.invocations(workload) if not stages or i.stage in stages)


def _process(order: Order, limits: Limits, expected: tuple[tuple[str, str], ...]) -> tuple[CounterCall, ...]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
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
        found: list[CounterCall] = []
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                pickle.dump(order, process.stdin)
                process.stdin.close()
            with suppress(EOFError, pickle.UnpicklingError):
                while True:
                    found.append(pickle.load(process.stdout))
            code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if late.is_set():
            why = f"took longer than {limits.seconds} s"
        else:
            said.seek(0)
            last = said.read().decode("utf-8", "replace").strip().splitlines()
            why = f"its process ended with {code}" + (f": {last[-1][:200]}" if last and code else "")
    answered = {(c.stage, c.invocation) for c in found}
    missing = [CounterCall(*place, error=why) for place in expected if place not in answered]
    return (*found, *missing)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
