"""The data of ``macs.json``: fvcore's convention, each stage alone beside its part of the whole run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from costproof.compare.findings import Discrepancy
from costproof.compare.kinds import kind_of
from costproof.ledger.capture import Capture
from costproof.ledger.conventions import Conventions
from costproof.ledger.metrics import FVCORE
from costproof.ledger.node import Ledger
from costproof.ledger.run import Convention
from costproof.ledger.schema import FileKind
from costproof.ledger.workload import TargetInfo, Workload
from costproof.reports.absent import Absent
from costproof.reports.values import Where, gives, ledgers, quantity, value
from costproof.reports.verdicts import worst

Sums = dict[str, int | None]
"""Source -> number; ``isolated`` is the stage alone, ``dynamic`` its part of the run of the whole model."""


@dataclass(frozen=True, slots=True)
class OperatorMacs:
    """One kind of operator of a stage."""

    kind: str
    macs: Sums
    activations: Sums


@dataclass(frozen=True, slots=True)
class InvocationMacs:
    """One call of a stage."""

    id: str
    macs: Sums
    activations: Sums


@dataclass(frozen=True, slots=True)
class StageMacs:
    """One stage over all its invocations."""

    id: str
    params: int | None
    macs: Sums
    activations: Sums
    status: str
    """The worst of the findings on the two: ``exact`` where all sources agree operator by operator."""
    operators: tuple[OperatorMacs, ...]
    invocations: tuple[InvocationMacs, ...]
    left_out: dict[str, int]
    """Operator kind -> FLOPs of ours (2 per multiply-accumulate) of operators that the convention does not know."""


@dataclass(frozen=True, slots=True)
class Macs:
    """``macs.json``."""

    conventions: Conventions
    """Of the FLOPs in ``left_out``; ``convention`` is that of the rest."""
    target: TargetInfo
    workload: Workload
    environment: dict[str, str]
    convention: Convention
    verdict: str
    stages: tuple[StageMacs, ...]
    params: int | None
    """Of the whole model: those of a module that works in two stages count once."""
    totals: dict[str, Sums]
    """Sums over the stages."""
    meaning: dict[str, str] = field(default_factory=lambda: {str(m): i.meaning for m, i in FVCORE.items()})


MACS: Final = FileKind(name="costproof/macs", version=(2, 0), type=Macs)


def counted(capture: Capture) -> tuple[Ledger, ...]:
    """The sources that were asked for the convention, in the order in which they are shown."""
    return tuple(x for x in ledgers(capture) if gives(x, "fvcore_macs"))


def macs(capture: Capture, found: Discrepancy) -> Macs:
    """The table of a capture.

    Raises:
        Absent: no source of the capture counted the convention.
    """
    sources = counted(capture)
    if not sources:
        raise Absent(
            "this capture was counted without the convention of fvcore",
            expected="a source with fvcore_macs",
            got=", ".join(x.source for x in capture.ledgers),
            fix="costproof capture TARGET -o FILE --convention fvcore-macs",
        )
    settled = found.verdict in ("exact", "explained")
    return Macs(
        conventions=capture.conventions,
        target=capture.target,
        workload=capture.workload,
        environment=capture.environment,
        convention="fvcore-macs",
        verdict=found.verdict,
        stages=tuple(_stage(capture, found, sources, stage) for stage in capture.target.stages),
        params=quantity(capture, "params", settled=settled).value,
        totals=_sums(sources),
    )


def _stage(capture: Capture, found: Discrepancy, sources: tuple[Ledger, ...], stage: str) -> StageMacs:
    here = [x for x in sources if stage in x.stages]
    settled = found.verdict in ("exact", "explained")
    whole = next((x for x in here if x.source == "dynamic"), here[0] if here else None)
    kinds = dict.fromkeys(
        kind_of(n.kind) for x in here for n in x.nodes if n.stage == stage and "fvcore_macs" in n.costs
    )
    return StageMacs(
        id=stage,
        params=quantity(capture, "params", stage, settled=settled).value,
        **_sums(here, stage),
        status=_status(capture, found, stage),
        operators=tuple(OperatorMacs(k, **_sums(here, stage, _of_kind(k))) for k in sorted(kinds)),
        invocations=tuple(
            InvocationMacs(i.id, **_sums(here, stage, _of_call(i.id))) for i in capture.invocations if i.stage == stage
        ),
        left_out={} if whole is None else _left_out(whole, stage),
    )


def _status(capture: Capture, found: Discrepancy, stage: str) -> str:
    """A stage of which everything is left out has no rows to compare: all sources say 0."""
    rows = [f for f in found.findings if f.stage == stage and f.metric in FVCORE]
    if rows:
        return worst(rows)
    return "exact" if any(i.stage == stage for i in capture.invocations) else "not-executed"


def _left_out(ledger: Ledger, stage: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for n in ledger.nodes:
        flops = n.cost("flops")
        if n.stage == stage and flops and "fvcore_macs" not in n.costs:
            kind = kind_of(n.kind)
            sums[kind] = sums.get(kind, 0) + flops
    return dict(sorted(sums.items()))


def _of_kind(kind: str) -> Where:
    return lambda n: kind_of(n.kind) == kind


def _of_call(invocation: str) -> Where:
    return lambda n: n.invocation == invocation


def _sums(sources: Sequence[Ledger], stage: str | None = None, where: Where | None = None) -> dict[str, Sums]:
    """Both quantities of the convention."""
    return {
        "macs": {x.source: value(x, "fvcore_macs", stage, where) for x in sources},
        "activations": {x.source: value(x, "fvcore_activations", stage, where) for x in sources},
    }
