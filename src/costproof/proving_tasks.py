"""The pieces of work of a proof. Each is plain data, runs in any process, and answers with plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

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


@dataclass(frozen=True, slots=True)
class Answer:
    """What one task found."""

    rows: dict[str, int]
    """Stage -> quantities compared, one per module, operator kind and metric."""
    judged: tuple[Judged, ...]
    """All of them for an identity task; those that differ otherwise."""
    formulas: tuple[tuple[str, str], ...] = ()
    """(stage, formula) of what was sampled, for the degrees."""


@dataclass(frozen=True, slots=True)
class IdentityTask:
    """All stages of one run, with batch, views, prompt and context as symbols."""

    config: OcrConfig
    workload: Workload

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
class SideTask:
    """The vision stages on views of one side, with the number of views as a symbol."""

    config: OcrConfig
    side: int

    @property
    def id(self) -> str:
        """Name of the task in the progress file."""
        return f"side: {self.side}"

    def run(self) -> Answer:
        """Export, cost and compare as expressions in n."""
        from costproof.models.deepseek_ocr.domain import IMAGE_STAGES, side_workload

        workload = side_workload(self.side)
        judged = _compare(_target(self.config), workload, stages=IMAGE_STAGES)
        return Answer(_rows(judged), _wrong(judged))


@dataclass(frozen=True, slots=True)
class PageTask:
    """What brings vision tokens into the prompt: it loops over images, so its graphs hold for one page."""

    config: OcrConfig
    workload: Workload

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


Task = IdentityTask | SideTask | PageTask | DrawTask


def _compare(
    target: DeepseekOcr,
    workload: Workload,
    *,
    stages: Iterable[str] | None = None,
    glue: bool = False,
    sizes: dict[str, int] | None = None,
    alias: dict[str, str] | None = None,
) -> tuple[Judged, ...]:
    """Both sides of one run, judged.

    Args:
        stages: only these.
        glue: only the exports without symbols.
        sizes: export at these sizes in place of symbols.
    """
    from costproof.tracers.partial import partial_ledger

    values = {(i.stage, i.id): {**i.symbols, **(sizes or {})} for i in target.invocations(workload)}
    wanted = None if stages is None else set(stages)

    def pick(job: ExportJob) -> bool:
        return (wanted is None or job.stage in wanted) and (not glue or not job.sizes)

    model = _model(target.config, workload) if sizes is None else None
    static = partial_ledger(target, workload, values, model=model, pick=pick, concrete=sizes is not None)
    if static.unknown_ops:
        raise Incomplete(
            "an operator has no rule, so nothing is proved",
            where=", ".join(sorted({f"{o.stage}/{o.module}" for o in static.unknown_ops})),
            got=", ".join(sorted({o.op for o in static.unknown_ops})),
        )
    config = target.info().symbols
    full = evaluate_ledger(target.formulas(workload), values, config)
    analytic = Ledger(full.source, full.nodes, full.metrics, static.stages)
    # A concrete export shows some modules of a stage; what it does not show is another task's.
    shown = {(n.module, m) for n in static.nodes for m in n.costs}

    def keep(row: Row) -> bool:
        return not glue or (
            row.metric != "calls" and row.metric not in STAGE_WIDE and (row.module, row.metric) in shown
        )

    return judge(analytic, static, values, config, alias=alias, keep=keep, integers=sizes is not None)


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
    workload = Workload("build", None, 1, 1, 1, dtype, attention, "all", experts)  # type: ignore[arg-type]
    return _target(config).build(workload)
