"""The pieces of work of a proof. Each is plain data, runs in any process, and answers with plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final

from costproof.compare.align import Row
from costproof.compare.proof.judge import Judged, judge
from costproof.ledger.errors import Incomplete
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.metrics import STAGE_WIDE
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload

if TYPE_CHECKING:
    from torch import nn

    from costproof.models.deepseek_ocr.config import OcrConfig
    from costproof.models.deepseek_ocr.target import DeepseekOcr
    from costproof.models.target import ExportJob
    from costproof.tracers.exported import Exported
    from costproof.tracers.static import Values

ANY_SIDE: Final = "any side"
WHOLE_WINDOWS: Final = "any side of whole windows"
"""Names of the identities in the side of a view."""
_VIEWS: Final = (2, 3, 5)
"""Numbers of views at which the conditions of an export are looked at."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one task found."""

    rows: dict[str, int]
    """Stage -> quantities compared, one per module, operator kind and metric."""
    judged: tuple[Judged, ...]
    """All of them for an identity task; those that differ otherwise."""
    formulas: tuple[tuple[str, str], ...] = ()
    """(stage, formula) of what was sampled, for the degrees."""
    sides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Where the side of a view is a symbol: stage -> the sides that its graph describes, of those tried."""


@dataclass(frozen=True, slots=True)
class IdentityTask:
    """All stages of one run, with batch, views, prompt and context as symbols."""

    config: OcrConfig
    workload: Workload
    phase: ClassVar[str] = "identities"

    @property
    def id(self) -> str:
        """Name of the task in the progress file."""
        return f"identity: {self.workload.name}"

    def run(self) -> Answer:
        """Export, cost and compare as expressions."""
        target = _target(self.config)
        judged = _compare(target, self.workload, alias=_alias(self.workload))
        return Answer(_rows(judged), judged)


@dataclass(frozen=True, slots=True)
class AnySideTask:
    """The vision stages with the side and the number of views as symbols."""

    config: OcrConfig
    whole: bool = False
    """SAM at the sides that whole windows tile, which take no padding and make a graph of their own."""
    phase: ClassVar[str] = "identities"

    @property
    def id(self) -> str:
        """Name of the task in the progress file."""
        return "identity: " + (WHOLE_WINDOWS if self.whole else ANY_SIDE)

    def run(self) -> Answer:
        """Export, cost and compare as expressions in n and H; ask the exports at which sides they hold."""
        from costproof.compare.proof.assemble import ANY
        from costproof.models.deepseek_ocr import any_side
        from costproof.models.deepseek_ocr.domain import symbolic_sides
        from costproof.models.deepseek_ocr.page import IMAGE_STAGES
        from costproof.tracers.exported import export_graph
        from costproof.tracers.guards import holds_at

        sam = self.config.sam
        workload = any_side.any_side_workload(self.config, whole=self.whole)
        graphs: list[Exported] = []

        def export(job: ExportJob) -> Exported:
            graphs.append(export_graph(job))
            return graphs[-1]

        jobs = any_side.any_side_jobs(_model(self.config, workload), workload, sam, whole=self.whole)
        steps = {"H": any_side.whole_step(sam) if self.whole else sam.stride}
        judged = _compare(_target(self.config), workload, stages=IMAGE_STAGES, jobs=jobs, export=export, steps=steps)
        points = [{"n": n, "H": side} for side in symbolic_sides(self.config) for n in _VIEWS]
        sides = {g.job.stage: _held(points, holds_at(g, points)) for g in graphs}
        return Answer(_rows(judged), tuple(replace(j, invocation=j.invocation and ANY) for j in judged), (), sides)


@dataclass(frozen=True, slots=True)
class SideTask:
    """The vision stages on views of one side, with the number of views as a symbol."""

    config: OcrConfig
    side: int
    phase: ClassVar[str] = "sides"

    @property
    def id(self) -> str:
        """Name of the task in the progress file."""
        return f"side: {self.side}"

    def run(self) -> Answer:
        """Export, cost and compare as expressions in n."""
        from costproof.models.deepseek_ocr.domain import side_workload
        from costproof.models.deepseek_ocr.page import IMAGE_STAGES

        workload = side_workload(self.side)
        judged = _compare(_target(self.config), workload, stages=IMAGE_STAGES)
        return Answer(_rows(judged), _wrong(judged))


@dataclass(frozen=True, slots=True)
class PageTask:
    """What brings vision tokens into the prompt: it loops over images, so its graphs hold for one page."""

    config: OcrConfig
    workload: Workload
    phase: ClassVar[str] = "pages"

    @property
    def id(self) -> str:
        """Name of the task in the progress file."""
        return f"page: {self.workload.name}"

    def run(self) -> Answer:
        """Export, cost and compare as integers what the concrete exports own."""
        judged = _compare(_target(self.config), self.workload, glue=True)
        return Answer(_rows(judged), _wrong(judged))


@dataclass(frozen=True, slots=True)
class DrawTask:
    """Random configurations of a seed: all stages, as integers."""

    seed: int
    numbers: tuple[int, ...]
    phase: ClassVar[str] = "draws"

    @property
    def id(self) -> str:
        """Name of the task in the progress file."""
        return f"draws: {self.numbers[0]}-{self.numbers[-1]}"

    def run(self) -> Answer:
        """Build, export, cost and compare each of them."""
        from costproof.models.deepseek_ocr.domain import draw

        rows: dict[str, int] = {}
        wrong: list[Judged] = []
        formulas: dict[tuple[str, str], None] = {}
        for number in self.numbers:
            drawn = draw(self.seed, number)
            judged = _compare(drawn.target, drawn.workload, sizes=drawn.sizes)
            for stage, count in _rows(judged).items():
                rows[stage] = rows.get(stage, 0) + count
            formulas.update(dict.fromkeys((j.stage, j.formula) for j in judged))
            wrong += [replace(j, invocation=f"{j.invocation} of draw {number}") for j in _wrong(judged)]
        return Answer(rows, tuple(wrong), tuple(formulas))


Task = IdentityTask | AnySideTask | SideTask | PageTask | DrawTask


def _compare(
    target: DeepseekOcr,
    workload: Workload,
    *,
    stages: Iterable[str] | None = None,
    jobs: Sequence[ExportJob] | None = None,
    export: Callable[[ExportJob], Exported] | None = None,
    glue: bool = False,
    sizes: dict[str, int] | None = None,
    alias: dict[str, str] | None = None,
    steps: dict[str, int] | None = None,
) -> tuple[Judged, ...]:
    """Both sides of one run, judged.

    Args:
        stages: only these.
        jobs: these exports in place of the target's own, and how they are made.
        glue: only the exports without symbols.
        sizes: export at these sizes in place of symbols.
    """
    from costproof.tracers.exported import export_graph
    from costproof.tracers.exported_sizes import resized

    values = {(i.stage, i.id): {**i.symbols, **(sizes or {})} for i in target.invocations(workload)}
    wanted = None if stages is None else set(stages)

    model = _model(target.config, workload) if sizes is None else target.build(workload)
    picked = [
        job
        for job in (target.export_jobs(model, workload) if jobs is None else jobs)
        if (wanted is None or job.stage in wanted) and not (glue and job.sizes)
    ]
    fixed_jobs = [job for job in picked if not job.sizes]
    if sizes is not None:
        picked = [resized(job, values[job.stage, job.invocations[0]]) for job in picked]
    static = _static(target, workload, model, picked, values, export or export_graph)
    if static.unknown_ops:
        raise Incomplete(
            "an operator has no rule, so nothing is proved",
            where=", ".join(sorted({f"{o.stage}/{o.module}" for o in static.unknown_ops})),
            got=", ".join(sorted({o.op for o in static.unknown_ops})),
        )
    config = target.info().symbols
    full = evaluate_ledger(target.formulas(workload), values, config)
    analytic = Ledger(full.source, full.nodes, full.metrics, static.stages)
    shown = set() if sizes is not None else _glue_cells(_static(target, workload, model, fixed_jobs, values))

    def fixed(row: Row) -> bool:
        return row.metric != "calls" and row.metric not in STAGE_WIDE and (row.stage, row.module, row.metric) in shown

    # An export without symbols shows some modules of a stage; what it does not show is another task's.
    keep = fixed if glue else lambda row: True
    return judge(
        analytic, static, values, config, alias=alias, keep=keep, fixed=fixed, steps=steps, integers=sizes is not None
    )


def _static(
    target: DeepseekOcr,
    workload: Workload,
    model: nn.Module,
    jobs: Sequence[ExportJob],
    values: Values,
    *export: Callable[[ExportJob], Exported],
) -> Ledger:
    """The static ledger of these exports and the stages that they are of."""
    from costproof.ledger.progress import silent
    from costproof.tracers.static import exported_ledger

    stages = [s for s in target.info().stages if s in {job.stage for job in jobs}]
    return exported_ledger(target, workload, model, jobs, stages, values, silent, *export)


def _glue_cells(static: Ledger) -> set[tuple[str, str, str]]:
    """(stage, module, metric) of what the exports without symbols show: it holds for the page of this run."""
    return {(n.stage, n.module, m) for n in static.nodes for m in n.costs}


def _held(points: Sequence[Mapping[str, int]], holds: Sequence[bool]) -> tuple[int, ...]:
    """The sides of which every point holds."""
    fails = {p["H"] for p, held in zip(points, holds, strict=True) if not held}
    return tuple(dict.fromkeys(p["H"] for p in points if p["H"] not in fails))


def _alias(workload: Workload) -> dict[str, str]:
    return {"L": "S"} if workload.logits == "all" else {}


def _rows(judged: Iterable[Judged]) -> dict[str, int]:
    found: dict[str, int] = {}
    for j in judged:
        found[j.stage] = found.get(j.stage, 0) + j.modules
    return found


def _wrong(judged: Iterable[Judged]) -> tuple[Judged, ...]:
    return tuple(j for j in judged if j.judgement == "different")


def _target(config: OcrConfig) -> DeepseekOcr:
    from costproof.models.deepseek_ocr.target import DeepseekOcr

    return DeepseekOcr(config)


def _model(config: OcrConfig, workload: Workload) -> nn.Module:
    return _built(config, workload.dtype, workload.attention, workload.experts)


@lru_cache(maxsize=2)
def _built(config: OcrConfig, dtype: str, attention: str, experts: str) -> nn.Module:
    """One process makes dozens of exports of the same model; building it takes as long as one of them."""
    workload = Workload("build", 1, 1, 1, dtype, attention, "all", experts)  # type: ignore[arg-type]
    return _target(config).build(workload)
