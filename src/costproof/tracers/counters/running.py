"""Run third-party counters in parallel, each in a separate process with limits of time and memory."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from costproof.ledger.counter import CounterCall, CounterInfo, CounterRecord, CounterRun, CounterUsage
from costproof.ledger.environment import installed
from costproof.ledger.errors import CostproofError, Incomplete
from costproof.ledger.node import CostNode
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import Workload
from costproof.models.specs import ExportJob, Run
from costproof.models.target import Exportable
from costproof.opgraph.rules.files import with_rules_in_force
from costproof.processes import Late, Limits, Pool, failure
from costproof.tracers.counters.protocol import COUNTERS, Counter, not_installed
from costproof.tracers.sources import preload_modules

GIB: Final = 2**30

TRUTH: Final = "truth"
"""Name of the process that computes our own count."""

_FIRST: Final = (TRUTH, "torchlens", "torch.profiler", "fvcore", "FlopCounterMode")
"""Names of our own count and the slowest tools, which start first so that no core waits for one of them at the end."""

CounterAnswer = tuple[CounterCall, CounterUsage]
CutKey = tuple[str, str, str]
"""Identity of a counted graph: stage, invocation, and the export if a stage is exported in parts."""


def side_by_side(memory_bytes: int) -> int:
    """Return the number of parallel counter processes: one for each usable core, limited by memory."""
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
    progress: Progress = silent,
) -> tuple[CounterRecord, dict[str, CounterUsage]]:
    """Run our own count and each counter; return numbers by call, and time and memory by counter, in order of names.

    A tool that crashes, hangs or cannot be loaded is a run with errors, and so is our own count. A tool that is not
    installed is a run without calls. Parts of a stage without products (look-ups, scattering) are left out.
    """
    wanted, absent = list(names), not_installed()
    ordered = sorted((TRUTH, *wanted), key=lambda n: (*_FIRST, n).index(n))
    answers: dict[str, list[CounterAnswer]] = {n: [] for n in ordered if n not in absent}
    problems: dict[str, str] = {}
    orders = {n: with_rules_in_force(CounterTask(target, workload, n, stages, limits.memory_bytes)) for n in answers}
    ready = preload_modules(target)
    with Pool[None](side_by_side(limits.memory_bytes), limits, fresh=True, ready=ready) as pool:
        for ended in pool.results(orders, lambda name, answer: answers[name].append(answer)):
            more = "; costproof counters --timeout allows more" if isinstance(ended.error, Late) else ""
            problems[ended.name] = "" if ended.error is None else one_line(ended.error) + more
            progress("counters", len(problems), len(orders))
    calls = {n: {(c.stage, c.invocation, c.cut): c for c, _ in found} for n, found in answers.items()}
    due = list(calls[TRUTH]) if not problems[TRUTH] else expected_cuts(target, workload, stages, calls)
    truth = _with_missing(calls[TRUTH], due, problems[TRUTH])
    counted = [p for p, c in truth.items() if c.value != 0]
    runs = []
    for name in wanted:
        info = _info(name)
        its = () if name in absent else _with_missing(calls[name], counted, problems[name]).values()
        runs.append(CounterRun(info, installed(info.package), tuple(its)))
    spent = {
        name: CounterUsage(sum(s.milliseconds for _, s in found), max((s.peak_bytes for _, s in found), default=0))
        for name in wanted
        if (found := answers.get(name)) is not None
    }
    return CounterRecord(tuple(truth[p] for p in counted), tuple(runs)), spent


def expected_cuts(
    target: Exportable, workload: Workload, stages: tuple[str, ...], calls: Mapping[str, Mapping[CutKey, CounterCall]]
) -> list[CutKey]:
    """Return the calls that a complete count should have: those that any counter has, and all other invocations."""
    from costproof.tracers.static import stages_not_exported

    found = dict.fromkeys((*calls[TRUTH], *(p for its in calls.values() for p in its)))
    reached = {place[:2] for place in found}
    for i in target.invocations(workload):
        wanted = (not stages or i.stage in stages) and i.stage not in stages_not_exported(target)
        if wanted and (i.stage, i.id) not in reached:
            found[i.stage, i.id, ""] = None
    return list(found)


def _with_missing(
    answered: Mapping[CutKey, CounterCall], due: Iterable[CutKey], problem: str
) -> dict[CutKey, CounterCall]:
    """Add the error that ended the process to every requested call without a result."""
    return {p: answered.get(p) or CounterCall(p[0], p[1], error=problem or "it gave no answer", cut=p[2]) for p in due}


def _info(name: str) -> CounterInfo:
    """Return a counter's description, or a placeholder if the counter cannot be loaded; its calls report the error."""
    try:
        return COUNTERS.load(name).info
    except Exception:
        return CounterInfo(name, name, (), "unknown", "total")


@dataclass(frozen=True, slots=True)
class CounterTask:
    """Task of a worker process: run one counter on one target."""

    target: Exportable
    workload: Workload
    counter: str
    """Name of the counter in :data:`COUNTERS`, or :data:`TRUTH`."""
    stages: tuple[str, ...] = ()
    """Stages to count; empty: all."""
    memory_bytes: int = 0
    """Memory limit of the process in bytes, for error messages."""

    def __call__(self, say: Callable[[CounterAnswer], None]) -> None:
        """Run the counter on every call, and send each result, or the error of a failed call, at once."""
        warnings.filterwarnings("ignore")
        model = self.target.build(self.workload)
        config = self.target.info().symbols
        values = {(i.stage, i.id): {**config, **i.symbols} for i in self.target.invocations(self.workload)}
        tool = None if self.counter == TRUTH else COUNTERS.load(self.counter)
        for job in self.target.export_jobs(model, self.workload):
            for invocation in job.invocations:
                if not self.stages or job.stage in self.stages:
                    say(self._answer(tool, job, values[job.stage, invocation], (job.stage, invocation)))

    def _answer(
        self, tool: Counter | None, job: ExportJob, values: dict[str, int], place: tuple[str, str]
    ) -> CounterAnswer:
        begun = time.perf_counter()
        try:
            nodes, notes = _count_cut(tool, job, values, place)
            call = CounterCall(*place, nodes, notes=notes, cut=job.id)
        except BaseException as error:  # of the tool, which has a process of its own
            call = CounterCall(*place, error=one_line(failure(error, self.memory_bytes)), cut=job.id)
        return call, CounterUsage(round((time.perf_counter() - begun) * 1000), peak_bytes())


def _count_cut(
    tool: Counter | None, job: ExportJob, values: dict[str, int], place: tuple[str, str]
) -> tuple[tuple[CostNode, ...], tuple[str, ...]]:
    from costproof.tracers.counters.tools import positional, renamed
    from costproof.tracers.exporting import with_sizes

    args = with_sizes(job, values).args
    if tool is None:
        return _truth(job, args, place), ()
    found = tool.count(*positional(job.module, args))
    nodes = [CostNode(*place, renamed(r.module, job.prefix), r.kind, {"flops": r.value}) for r in found.rows]
    return tuple(nodes), found.notes


def _truth(job: ExportJob, args: Mapping[str, Any], place: tuple[str, str]) -> tuple[CostNode, ...]:
    """Count the module that a counter gets by our own rules: FLOPs and vector FLOPs by (module, operator).

    Raises:
        Incomplete: the part cannot be traced, or an operator has no rule.
    """
    from costproof.opgraph.account import account
    from costproof.opgraph.costed import cost_graph
    from costproof.tracers.counters.tools import renamed
    from costproof.tracers.torchlens_trace import trace_graph

    run = Run(job.id, job.module, args, lambda path, call: place)
    found = account(cost_graph(trace_graph(run).graph), lambda path, call: place)
    if found.unknown:
        raise Incomplete(
            "an operator of the model has no rule, so there is no truth to compare with",
            where=", ".join(sorted({o.op for o in found.unknown})),
            fix="give it a rule: see docs/extending.md",
        )
    return tuple(
        CostNode(*place, renamed(n.module, job.prefix), n.kind, dict(n.costs), owner=n.owner, evidence=n.evidence)
        for n in found.nodes
        if n.kind
    )


def one_line(error: CostproofError) -> str:
    """Return an error in one line, for a table."""
    return f"{error.what}: {error.got}" if error.got else error.what


def peak_bytes() -> int:
    """Return the peak resident size of this process in bytes; on Linux ``ru_maxrss`` would include the parent's."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024
