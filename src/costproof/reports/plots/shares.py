"""Where the cost sits: for every quantity the share of each stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from costproof.ledger.capture import Capture
from costproof.ledger.metrics import METRICS, Metric
from costproof.ledger.node import CostNode, Ledger, total
from costproof.reports.escape import visible
from costproof.reports.plots.bars import Bar, Piece, bars
from costproof.reports.plots.figure import colour
from costproof.views.numbers import cut, human, share
from costproof.views.quantities import gives, ledgers

if TYPE_CHECKING:
    from costproof.reports.report import Report

_LEFT_OUT: Final = ("calls", "params_active")
"""Metrics that say nothing about where a cost sits."""
_UNITS: Final = {"bytes": "B", "FLOP": "FLOP", "elements": ""}
_NAME: Final = 24


@dataclass(frozen=True, slots=True)
class Shares:
    """A metric, split over the stages."""

    metric: Metric
    parts: dict[tuple[str, ...], int | None]
    """Stages -> what they have: one stage, or several that work with the same modules. They sum to the whole."""
    whole: int | None


def shares(capture: Capture) -> tuple[Shares, ...]:
    """Every metric that some stage has any of; numbers of the first source that has it in every stage."""
    found = []
    for metric in (m for m in METRICS if m not in _LEFT_OUT):
        speaking = (x for x in ledgers(capture) if all(gives(x, metric, stage) for stage in capture.target.stages))
        ledger = next(speaking, None)
        if ledger is not None and (one := _shares(ledger, metric, capture.target.stages)).parts:
            found.append(one)
    return tuple(found)


def _shares(ledger: Ledger, metric: Metric, stages: tuple[str, ...]) -> Shares:
    modules: dict[str, dict[str, None]] = {}
    wide = METRICS[metric].stage_wide
    nodes = [n for n in ledger.nodes if metric in n.costs or metric in n.exprs]
    for node in nodes:
        modules.setdefault(node.module, {})[node.stage] = None

    def where(node: CostNode) -> tuple[str, ...]:
        return tuple(s for s in stages if s in modules[node.module]) if wide else (node.stage,)

    groups: dict[tuple[str, ...], list[CostNode]] = {}
    for node in nodes:
        groups.setdefault(where(node), []).append(node)
    ordered = sorted(groups, key=lambda group: (stages.index(group[0]), len(group)))
    sums = {group: total(groups[group], metric) for group in ordered}
    return Shares(metric, {g: v for g, v in sums.items() if v != 0}, ledger.total(metric))


def draw(report: Report, kind: str) -> bytes:
    """The picture: a bar of 100 % for each quantity."""
    capture = report.capture
    found = shares(capture)
    groups = list(dict.fromkeys(group for one in found for group in one.parts))
    colours = {group: colour(capture.target.stages.index(group[0])) for group in groups}
    rows = []
    for one in found:
        pieces = [
            Piece(v / one.whole, colours[g], share(v, one.whole), hatch=len(g) > 1)
            for g, v in one.parts.items()
            if v is not None and one.whole
        ]
        info = METRICS[one.metric]
        rows.append(Bar(info.title, tuple(pieces), human(one.whole, _UNITS[info.unit]) if one.whole else "not known"))
    legend = [(cut(visible(" + ".join(g)), _NAME), colours[g], len(g) > 1) for g in groups]
    title = f"{visible(capture.target.title)} at {visible(capture.workload.name)}: where the cost sits"
    return bars(title, rows, legend, "share of the whole run", kind, percent=True)
