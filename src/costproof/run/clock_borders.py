"""Solve from which batch or length on the device clock of an eager stage is longer than its host clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final

from costproof.estimate.measured import ClockBorder, MeasuredStage
from costproof.estimate.roofline import BottleneckThreshold, Roof, ThresholdPoint
from costproof.estimate.sums import FormulaSum, MetricTerm
from costproof.ledger.metrics import TRAFFIC
from costproof.ledger.node import CostNode
from costproof.ledger.workload import Workload
from costproof.models.target import Target, WithKeys
from costproof.parametric.run_family import SettingCurve, Threshold
from costproof.run.operands import baseline_by_formulas

_SETTINGS: Final = ("batch", "text_tokens")
_NANO: Final = 10**9


def clock_borders(
    rows: Iterable[MeasuredStage], target: Target, workload: Workload, of: Roof
) -> tuple[ClockBorder, ...]:
    """Return the borders of the first forward of each call of a stage; none for a target without formulas.

    See :class:`~costproof.estimate.measured.ClockBorder` for the assumptions.

    Args:
        rows: the stages, with their clocks.
        target, workload: the run.
        of: the roofline of the device.
    """
    first: dict[tuple[str, str], MeasuredStage] = {}
    for row in rows:
        if row.clocks is not None and row.clocks.device:
            first.setdefault((row.stage, row.invocation), row)
    if not first or not isinstance(target, WithKeys):
        return ()
    side = baseline_by_formulas(target, workload)
    curves = [SettingCurve(side, target, setting) for setting in _SETTINGS]
    return tuple(border for row in first.values() for along in curves for border in _borders(row, along, of))


def _borders(row: MeasuredStage, along: SettingCurve, of: Roof) -> Iterator[ClockBorder]:
    """Yield the border along a setting, unless the work of the stage does not depend on it.

    With D and H the two clocks at the own value s of the setting, and T(x) = max(FLOP / peak, bytes / bandwidth), the
    device binds where D T(x) / T(s) > H. That is where it holds for one of the two sides of the maximum: two sums of
    formulas are compared with a constant, and the smaller solution is the border.
    """
    assert row.clocks is not None

    def here(node: CostNode) -> bool:
        return (node.stage, node.invocation) == (row.stage, row.invocation)

    device, host = row.clocks.device, row.clocks.host
    flops: FormulaSum = (MetricTerm("flops", here, of.bandwidth * device),)
    moved: FormulaSum = tuple(MetricTerm(metric, here, of.flops * device) for metric in TRAFFIC)

    def scaled(at: int) -> int:
        return max(along.value(at, flops), along.value(at, moved))

    own = scaled(along.own) // device
    if not own or not any(along.depends(side) for side in (flops, moved)):
        return
    found = earlier(*(along.first(side, (), host * own) for side in (flops, moved)))
    points = tuple(
        ThresholdPoint(at, str(Fraction(scaled(at), own * _NANO)), str(Fraction(host, _NANO)))
        for at in found.places(along.own)
    )
    border = BottleneckThreshold(
        row.stage, along.setting, "is bound by the device", "device clock", "host clock", "s",
        found.outcome, found.at, points, found.why,
    )  # fmt: skip
    yield ClockBorder(row.run, row.invocation, border)


def earlier(one: Threshold, other: Threshold) -> Threshold:
    """Return where either condition holds first; it is not solved if one of the two is not."""
    for outcome in ("not solved", "from", "refused"):
        found = [each for each in (one, other) if each.outcome == outcome]
        if found:
            return min(found, key=lambda each: each.at or 0)
    return one
