"""A piece of a proof carried out: exports costed and compared with formulas. It answers with plain data."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from costproof.compare.proof.judge import Answer, judge
from costproof.ledger.errors import Incomplete
from costproof.ledger.evaluate import evaluate, evaluate_ledger
from costproof.ledger.metrics import FLOOR, STAGE_WIDE
from costproof.ledger.node import Ledger
from costproof.ledger.series import CONTEXT, STEPS
from costproof.ledger.symbols import parse
from costproof.ledger.workload import SettingValue, Workload
from costproof.models.jobs import ExportJob
from costproof.models.proof import Piece, Provable
from costproof.models.target import Runnable
from costproof.processes import Say
from costproof.run.proof_certificate import ANY
from costproof.tracers.exported import Exported, export_graph
from costproof.tracers.exporting import with_sizes
from costproof.tracers.guards import conditions, holds_at
from costproof.tracers.static import exported_ledger
from costproof.tracers.untraced_runs import count_every_step

if TYPE_CHECKING:
    from torch import nn


def carried_out(piece: Piece[Provable], say: Say | None = None) -> Answer:
    """Export, cost and compare the run of a piece.

    Raises:
        Incomplete: a part cannot be exported, or an operator has no cost rule.
    """
    graphs: dict[str, Exported] = {}
    found = counted(piece, graphs).judged(piece.target.formulas(piece.workload))
    drawn = piece.sizes is not None or piece.phase == "runs"
    config = piece.target.info().symbols if drawn else {}
    return Answer(
        rows=found.rows,
        claims=tuple(
            replace(c, invocation=_call(piece, c.invocation)) for c in found.claims if piece.phase == "identities"
        ),
        counterexamples=tuple(
            replace(c, found_in=piece.id, invocation=_call(piece, c.invocation), config=config)
            for c in found.counterexamples
        ),
        formulas=found.formulas if piece.phase == "draws" else (),
        sizes={g.job.stage: _held(piece, g) for g in graphs.values()} if piece.asked else {},
        conditions=tuple(dict.fromkeys(_conditions(piece, graphs.values()))),
    )


def _conditions(piece: Piece[Provable], graphs: Iterable[Exported]) -> Iterator[str]:
    """Where the graphs of an identity are not the model: claims about all sizes leave these out."""
    for graph in graphs if piece.phase == "identities" and not piece.asked else ():
        for condition in conditions(graph):
            yield f"{piece.id.partition(': ')[2]}: {graph.job.stage} at sizes where not {condition}"


def _call(piece: Piece[Provable], invocation: str) -> str:
    """What a call is named in an answer: one of any size, or of a draw."""
    if piece.sizes is not None:
        return f"{invocation} of {piece.workload.name}"
    return ANY if piece.asked and invocation else invocation


@dataclass(frozen=True, slots=True)
class Counted:
    """The graphs of a piece, costed, or its run, counted: what formulas are compared with."""

    piece: Piece[Provable]
    static: Ledger
    values: Mapping[tuple[str, str], Mapping[str, int]]
    fixed: frozenset[tuple[str, str, str]]
    """(stage, module, metric) of what exports without symbols show: it holds for the inputs of this run alone."""

    def judged(self, formulas: Ledger) -> Answer:
        """Formulas of the piece's run, in symbols, against the graphs."""
        piece, static, ran = self.piece, self.static, self.piece.phase == "runs"
        config = piece.target.info().symbols
        full = evaluate_ledger(formulas, self.values, config)
        return judge(
            Ledger(full.source, full.nodes, static.metrics if ran else full.metrics, static.stages),
            static, self.values, config,
            alias={"L": "S"} if piece.workload.logits == "all" else {},
            fixed=self.fixed, only_fixed=piece.phase == "workloads",
            steps=piece.steps, integers=ran or piece.sizes is not None,
        )  # fmt: skip


def counted(piece: Piece[Provable], graphs: dict[str, Exported]) -> Counted:
    """Export and cost the run of a piece, or make every step of it; ``graphs`` gets every export by its job's name.

    Raises:
        Incomplete: a part cannot be exported, or an operator has no cost rule.
    """
    target, workload, sizes = piece.target, piece.workload, piece.sizes
    values = {(i.stage, i.id): {**i.symbols, **(sizes or {})} for i in target.invocations(workload)}
    if piece.phase == "runs":
        return Counted(piece, count_every_step(cast(Runnable, target), workload, "static"), values, frozenset())
    kernels = (workload.dtype, workload.attention, workload.experts)
    names = {s.name for s in target.settings() if s.choices}
    own = tuple((name, value) for name, value in workload.inputs.items() if name in names)
    model = _built(cast(Hashable, target), *kernels, own) if sizes is None else target.build(workload)

    def export(job: ExportJob) -> Exported:
        if job.id not in graphs:
            graphs[job.id] = export_graph(job)
        return graphs[job.id]

    def ledger(jobs: Sequence[ExportJob]) -> Ledger:
        stages = [s for s in target.info().stages if s in {job.stage for job in jobs}]
        return exported_ledger(target, workload, model, jobs, stages, values, export=export, whole=True)

    jobs = [job for job in target.export_jobs(model, workload) if not piece.stages or job.stage in piece.stages]
    fixed = [job for job in jobs if not job.sizes]
    if sizes is not None:
        jobs = [one for job in jobs for one in _at(job, values)]
    static = ledger(fixed if piece.phase == "workloads" else jobs)
    if static.unknown_ops:
        raise Incomplete(
            "an operator has no cost rule, so nothing is proved",
            where=", ".join(sorted({f"{o.stage}/{o.module}" for o in static.unknown_ops})),
            got=", ".join(sorted({o.op for o in static.unknown_ops})),
        )
    # What exports without symbols show holds for the inputs of this run; all else is another piece's.
    shown = ledger(fixed).nodes if fixed and sizes is None else ()
    here = {(n.stage, n.module, m) for n in shown for m in n.costs if m != "calls" and m not in STAGE_WIDE}
    if piece.phase == "workloads":  # without the other parts of a stage: what crosses its border is not all there
        here = {row for row in here if row[2] != FLOOR}
    return Counted(piece, static, values, frozenset(here))


def _at(job: ExportJob, values: Mapping[tuple[str, str], Mapping[str, int]]) -> Iterator[ExportJob]:
    """The job at the sizes of its calls; of decode steps every one by itself, so that no formula sums them.

    One graph in symbols may stand for calls of several sizes: for each of these there is one.
    """
    calls: dict[tuple[int, ...], list[str]] = {}
    for call in job.invocations:
        known = values[job.stage, call]
        calls.setdefault(tuple(evaluate(parse(s.symbol), known) for s in job.sizes), []).append(call)
    for alike in calls.values():
        sizes, name = values[job.stage, alike[0]], job.id if len(calls) == 1 else f"{job.id} of {alike[0]}"
        past, steps = (sizes[str(CONTEXT)], sizes[str(STEPS)]) if job.repeated else (0, 1)
        for i in range(steps):
            made = with_sizes(job, {**sizes, str(CONTEXT): past + i} if job.repeated else sizes)
            yield replace(made, id=f"{name} at {past + i}" if job.repeated else name, invocations=tuple(alike))


def _held(piece: Piece[Provable], exported: Exported) -> tuple[int, ...]:
    """The sizes at all of whose points an export describes the model."""
    points = [(size, point) for size, asked in piece.asked.items() for point in asked]
    holds = holds_at(exported, [dict(point) for _, point in points])
    fails = {size for (size, _), held in zip(points, holds, strict=True) if not held}
    return tuple(size for size in piece.asked if size not in fails)


@lru_cache(maxsize=2)
def _built(
    target: Hashable, dtype: str, attention: str, experts: str, own: tuple[tuple[str, SettingValue], ...]
) -> nn.Module:
    """One process makes dozens of exports of the same model; building it takes as long as one of them.

    Args:
        own: what is chosen among settings of the target's own; their sizes build nothing.
    """
    workload = Workload("build", 1, 1, 1, dtype, attention, "all", experts, dict(own))  # type: ignore[arg-type]
    return cast(Provable, target).build(workload)
