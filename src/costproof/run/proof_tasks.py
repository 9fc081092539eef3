"""A piece of a proof carried out: exports costed and compared with formulas. It answers with plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from costproof.compare.align import Row
from costproof.compare.proof.assemble import ANY
from costproof.compare.proof.certificate import Claim, Counterexample
from costproof.compare.proof.judge import Answer, judge
from costproof.ledger.errors import Incomplete
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.metrics import STAGE_WIDE
from costproof.ledger.node import Ledger
from costproof.ledger.progress import silent
from costproof.ledger.workload import Workload
from costproof.models.proof import Comparison, Piece, Provable
from costproof.models.target import ExportJob
from costproof.tracers.exported import Exported, export_graph
from costproof.tracers.exported_sizes import resized
from costproof.tracers.guards import holds_at
from costproof.tracers.static import Values, exported_ledger

if TYPE_CHECKING:
    from torch import nn


def carried_out(piece: Piece) -> Answer:
    """Export, cost and compare every run of a piece.

    Raises:
        Incomplete: a part cannot be exported, or an operator has no cost rule.
    """
    rows: Counter[str] = Counter()
    claims: list[Claim] = []
    wrong: list[Counterexample] = []
    formulas: dict[tuple[str, str], None] = {}
    sizes: dict[str, tuple[int, ...]] = {}
    for run in piece.runs:
        graphs: list[Exported] = []
        found = compared(run, graphs.append)
        rows.update(found.rows)
        if run.sizes is not None:
            formulas.update(dict.fromkeys(found.formulas))
        if run.asked:
            sizes |= {g.job.stage: _held(run, g) for g in graphs}
        claims += (replace(c, invocation=_call(run, c.invocation)) for c in found.claims if piece.claims)
        wrong += (replace(c, invocation=_call(run, c.invocation)) for c in found.counterexamples)
    return Answer(dict(rows), tuple(claims), tuple(wrong), tuple(formulas), sizes)


def _call(run: Comparison, invocation: str) -> str:
    """What a call is named in an answer: one of any size, or of a draw."""
    return (invocation and ANY if run.asked else invocation) + run.suffix


def compared(run: Comparison, seen: Callable[[Exported], None] = lambda exported: None) -> Answer:
    """Both sides of one run, judged.

    Args:
        seen: gets every export.

    Raises:
        Incomplete: a part cannot be exported, or an operator has no cost rule.
    """

    def export(job: ExportJob) -> Exported:
        exported = export_graph(job)
        seen(exported)
        return exported

    target, workload, sizes = run.target, run.workload, run.sizes
    values = {(i.stage, i.id): {**i.symbols, **(sizes or {})} for i in target.invocations(workload)}
    model = _model(target, workload) if sizes is None else target.build(workload)
    picked = [
        job
        for job in target.export_jobs(model, workload)
        if (not run.stages or job.stage in run.stages) and not (run.concrete and job.sizes)
    ]
    fixed_jobs = [job for job in picked if not job.sizes]
    if sizes is not None:
        picked = [resized(job, values[job.stage, job.invocations[0]]) for job in picked]
    static = _static(target, workload, model, picked, values, export)
    if static.unknown_ops:
        raise Incomplete(
            "an operator has no cost rule, so nothing is proved",
            where=", ".join(sorted({f"{o.stage}/{o.module}" for o in static.unknown_ops})),
            got=", ".join(sorted({o.op for o in static.unknown_ops})),
        )
    config = target.info().symbols
    full = evaluate_ledger(target.formulas(workload), values, config)
    analytic = Ledger(full.source, full.nodes, full.metrics, static.stages)
    shown = set() if sizes is not None else _cells(_static(target, workload, model, fixed_jobs, values))

    def fixed(row: Row) -> bool:
        return row.metric != "calls" and row.metric not in STAGE_WIDE and (row.stage, row.module, row.metric) in shown

    # An export without symbols shows some modules of a stage; what it does not show is another piece's.
    keep = fixed if run.concrete else lambda row: True
    alias = {"L": "S"} if workload.logits == "all" else {}
    return judge(
        analytic, static, values, config,
        alias=alias, keep=keep, fixed=fixed, steps=dict(run.steps), integers=sizes is not None,
    )  # fmt: skip


def _static(
    target: Provable,
    workload: Workload,
    model: nn.Module,
    jobs: Sequence[ExportJob],
    values: Values,
    *export: Callable[[ExportJob], Exported],
) -> Ledger:
    """The static ledger of these exports and the stages that they are of."""
    stages = [s for s in target.info().stages if s in {job.stage for job in jobs}]
    return exported_ledger(target, workload, model, jobs, stages, values, silent, *export)


def _cells(static: Ledger) -> set[tuple[str, str, str]]:
    """(stage, module, metric) of what the exports without symbols show: it holds for the inputs of this run."""
    return {(n.stage, n.module, m) for n in static.nodes for m in n.costs}


def _held(run: Comparison, exported: Exported) -> tuple[int, ...]:
    """The sizes at all of whose points an export describes the model."""
    points = [(size, point) for size, asked in run.asked.items() for point in asked]
    holds = holds_at(exported, [dict(point) for _, point in points])
    fails = {size for (size, _), held in zip(points, holds, strict=True) if not held}
    return tuple(size for size in run.asked if size not in fails)


def _model(target: Provable, workload: Workload) -> nn.Module:
    return _built(cast(Hashable, target), workload.dtype, workload.attention, workload.experts)


@lru_cache(maxsize=2)
def _built(target: Hashable, dtype: str, attention: str, experts: str) -> nn.Module:
    """One process makes dozens of exports of the same model; building it takes as long as one of them."""
    workload = Workload("build", 1, 1, 1, dtype, attention, "all", experts)  # type: ignore[arg-type]
    return cast(Provable, target).build(workload)
