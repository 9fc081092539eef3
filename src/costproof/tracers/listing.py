"""The exported graphs of a stage as a listing: every operator with its cost, at the sizes of the workload."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from costproof.ledger.listing import Line, Listing
from costproof.ledger.workload import Workload
from costproof.models.jobs import ExportJob
from costproof.models.target import Exportable
from costproof.opgraph.costed import Costed, costed
from costproof.opgraph.graph import Value
from costproof.opgraph.reuse import reuse
from costproof.opgraph.rules.registry import UnknownCost
from costproof.tracers.export_cache import kept_export
from costproof.tracers.exported_sizes import resized

_IDLE: Final = ("alias", "factory", "free")
"""Roles of operators that do no work."""


def listings(target: Exportable, workload: Workload, stage: str) -> Iterator[Listing]:
    """Every export of a stage, for every call.

    Raises:
        Incomplete: a part cannot be exported.
    """
    values = {(i.stage, i.id): i.symbols for i in target.invocations(workload)}
    for job in target.export_jobs(target.build(workload), workload):
        for invocation in job.invocations if stage in job.stages else ():
            one = resized(replace(job, invocations=(invocation,)), values[stage, invocation])
            exported = kept_export(one)
            work = costed(exported.graph)
            yield Listing(
                stage,
                invocation,
                job.id,
                tuple(_lines(work, job, stage)),
                reuse(work, exported.cache_inputs),
            )


def _lines(work: Costed, job: ExportJob, stage: str) -> Iterator[Line]:
    moved = work.alone
    for at, (op, cost) in enumerate(zip(work.graph.ops, work.costs, strict=True)):
        if job.place(op.module, op.call)[0] != stage:
            continue
        known = (None, None, cost.why) if isinstance(cost, UnknownCost) else (int(cost.flops), int(cost.vector), "")
        flops, vector, why = known
        yield Line(
            label=op.label,
            operator=op.name,
            module=op.module,
            reads=tuple(map(_name, op.tensors)),
            returns=tuple(f"[{', '.join(map(str, v.shape))}] {v.dtype}" for v in op.outputs),
            flops=flops,
            vector_flops=vector,
            why=why,
            makes=tuple(map(_name, op.outputs)),
            works=isinstance(cost, UnknownCost) or cost.role not in _IDLE,
            bytes=int(moved[at].bytes) if at in moved else 0,
        )


def _name(value: Value) -> str:
    """A parameter by its path, all else by its node."""
    return value.name if value.origin in ("param", "buffer") and value.name else f"%{value.id}"
