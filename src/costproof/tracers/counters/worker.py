"""What the process of one counter does: every invocation of every stage, each answer sent as soon as it is there."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costproof.ledger.counter import CounterCall, Spent
from costproof.ledger.errors import CostproofError, Incomplete
from costproof.ledger.node import CostNode
from costproof.ledger.workload import Workload
from costproof.models.target import Exportable, ExportJob, Run
from costproof.processes import failure
from costproof.tracers.counters.protocol import Counter

TRUTH = "truth"
"""The name under which the process makes our own count instead of a tool's."""

Answer = tuple[CounterCall, Spent]


@dataclass(frozen=True, slots=True)
class Order:
    """A piece of work for :mod:`costproof.processes`: one counter on one target."""

    target: Exportable
    workload: Workload
    counter: str
    """A name of :func:`costproof.tracers.counters.registry.COUNTERS`, or :data:`TRUTH`."""
    stages: tuple[str, ...] = ()
    """Stages to count; empty for all."""
    rules: tuple[str, ...] = ()
    """Files with operator rules."""
    memory_bytes: int = 0
    """The limit of the process, for the message."""

    def __call__(self, say: Callable[[Answer], None]) -> None:
        """Count; an invocation that fails is an answer with its error."""
        from costproof.graph.rules.files import rules_from
        from costproof.tracers.counters.registry import COUNTERS

        warnings.filterwarnings("ignore")
        model = self.target.build(self.workload)
        config = self.target.info().symbols
        values = {(i.stage, i.id): {**config, **i.symbols} for i in self.target.invocations(self.workload)}
        with rules_from(self.rules):
            tool = None if self.counter == TRUTH else COUNTERS.load(self.counter)
            for job in self.target.export_jobs(model, self.workload):
                for invocation in job.invocations:
                    if not self.stages or job.stage in self.stages:
                        say(self._answer(tool, job, values[job.stage, invocation], (job.stage, invocation)))

    def _answer(self, tool: Counter | None, job: ExportJob, values: dict[str, int], place: tuple[str, str]) -> Answer:
        begun = time.perf_counter()
        try:
            nodes, notes = _counted(tool, job, values, place)
            call = CounterCall(*place, nodes, notes=notes, cut=job.id)
        except (Exception, SystemExit) as error:
            call = CounterCall(*place, error=in_short(failure(error, self.memory_bytes)), cut=job.id)
        return call, Spent(round((time.perf_counter() - begun) * 1000), peak())


def _counted(
    tool: Counter | None, job: ExportJob, values: dict[str, int], place: tuple[str, str]
) -> tuple[tuple[CostNode, ...], tuple[str, ...]]:
    from costproof.tracers.counters.surroundings import positional, renamed
    from costproof.tracers.exported_sizes import resized

    args = resized(job, values).args
    if tool is None:
        return _truth(job, args, place), ()
    found = tool.count(*positional(job.module, args))
    nodes = [CostNode(*place, renamed(r.module, job.prefix), r.kind, {"flops": r.value}) for r in found.rows]
    return tuple(nodes), found.notes


def _truth(job: ExportJob, args: Mapping[str, Any], place: tuple[str, str]) -> tuple[CostNode, ...]:
    """Our own count of what a counter was given: FLOPs and vector FLOPs of one cut by (module, operator).

    Raises:
        Incomplete: the cut cannot be traced, or an operator has no rule.
    """
    from costproof.graph.account import account
    from costproof.graph.costed import costed
    from costproof.tracers.counters.surroundings import renamed
    from costproof.tracers.torchlens_trace import trace_graph

    run = Run(job.id, job.module, args, lambda path, call: place)
    found = account(costed(trace_graph(run).graph), lambda path, call: place)
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


def in_short(error: CostproofError) -> str:
    """An error in one line, for a table."""
    return f"{error.what}: {error.got}" if error.got else error.what


def peak() -> int:
    """Largest resident size of this process in bytes. On Linux ``ru_maxrss`` would begin with that of the parent."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024
