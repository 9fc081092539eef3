"""The process of one counter: an order on stdin; on stdout, per invocation, a pickled call and what it needed."""

from __future__ import annotations

import os
import pickle
import resource
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from costproof.ledger.counter import CounterCall, Spent
from costproof.ledger.errors import CostproofError, first_line
from costproof.ledger.node import CostNode
from costproof.ledger.workload import Workload
from costproof.models.target import ExportJob
from costproof.tracers.both import Spec

TRUTH = "truth"
"""The name under which the process makes our own count instead of a tool's."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker has to do."""

    spec: Spec
    workload: Workload
    counter: str
    """A name of :func:`costproof.tracers.counters.registry.counters`, or :data:`TRUTH`."""
    memory_bytes: int
    stages: tuple[str, ...] = ()
    """Stages to count; empty for all."""


Answer = tuple[CounterCall, Spent]


def work(order: Order, send: Callable[[Answer], None]) -> None:
    """Count every invocation of every stage; one that fails is an answer with its error."""
    from costproof.tracers.counters.registry import counter

    target = order.spec.load()
    model = target.build(order.workload)
    values = {(i.stage, i.id): {**target.info().symbols, **i.symbols} for i in target.invocations(order.workload)}
    tool = None
    problem = ""
    if order.counter != TRUTH:
        try:
            tool = counter(order.counter)
        except Exception as error:
            problem = _said(error, order.memory_bytes)
    for job in target.export_jobs(model, order.workload):
        for invocation in job.invocations:
            if order.stages and job.stage not in order.stages:
                continue
            begun = time.perf_counter()
            place = (job.stage, invocation)
            try:
                nodes, notes = ((), ()) if problem else _counted(order.counter, tool, job, values[place], place)
                call = CounterCall(*place, nodes, error=problem or None, notes=notes, cut=job.id)
            except (Exception, SystemExit) as error:
                call = CounterCall(*place, error=_said(error, order.memory_bytes), cut=job.id)
            send((call, Spent(round((time.perf_counter() - begun) * 1000), _peak())))


def _counted(
    name: str, tool: object, job: ExportJob, values: dict[str, int], place: tuple[str, str]
) -> tuple[tuple[CostNode, ...], tuple[str, ...]]:
    from costproof.tracers.counters.surroundings import positional, renamed, sized

    args = sized(job, values)
    if name == TRUTH:
        from costproof.tracers.counters.truth import truth_nodes

        return truth_nodes(job, args, place), ()
    model, tensors = positional(job.module, args)
    found = tool.count(model, tensors)  # type: ignore[attr-defined]
    nodes = [CostNode(*place, renamed(r.module, job.prefix), r.kind, {"flops": r.value}) for r in found.rows]
    return tuple(nodes), found.notes


def _said(error: BaseException, memory_bytes: int) -> str:
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return f"needs more memory than its limit of {memory_bytes // 2**20:,} MiB"
    if isinstance(error, CostproofError):
        return f"{error.what}: {error.got}" if error.got else error.what
    return first_line(error)


def _peak() -> int:
    """Largest resident size of this process in bytes. On Linux ``ru_maxrss`` would begin with that of the parent."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def main() -> None:
    """Serve one order."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # tools print; their words must not get between the answers
    order: Order = pickle.load(sys.stdin.buffer)
    if order.memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (order.memory_bytes, order.memory_bytes))
    warnings.filterwarnings("ignore")

    def send(answer: Answer) -> None:
        pickle.dump(answer, answers)
        answers.flush()

    try:
        work(order, send)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
