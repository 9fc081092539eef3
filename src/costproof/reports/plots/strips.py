"""Pictures of sweeps: lines for each stage over what varies, stacked areas, and a heat map over two names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from costproof.reports.plots.figure import begin, colour, style, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHOLE: Final = "whole run"
_WIDE: Final = 30
"""Ratio of the largest to the smallest from which on a scale is logarithmic."""
_SIDE: Final = (4.4, 3.1)
"""Width and height of a panel, in inches."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A metric over one name, all others as at the base point."""

    name: str
    at: Sequence[Any]
    """Values of the name at which there is a model."""
    stages: Mapping[str, Sequence[int]]
    """Stage -> the metric at these values; the whole run under :data:`WHOLE`."""


@dataclass(frozen=True, slots=True)
class Heat:
    """A metric of the whole run over two names; ``None`` where there is not a model."""

    names: tuple[str, str]
    at: tuple[Sequence[Any], Sequence[Any]]
    values: Sequence[Sequence[int | None]]
    """A row for each value of the first name."""


@dataclass(frozen=True, slots=True)
class Strip:
    """The panels of one metric, side by side."""

    metric: str
    unit: str
    lines: tuple[Lines, ...]
    stacked: bool
    """Whether the first lines are shown as areas on top of each other too."""
    heat: Heat | None


def draw(strips: Sequence[Strip], title: str, kind: str) -> bytes:
    """A picture, ``svg`` or ``png``; the same strips make the same bytes.

    Args:
        title: above everything, such as the base point.
    """
    columns = max(len(s.lines) + s.stacked + (s.heat is not None) for s in strips)
    with style():
        figure = begin(_SIDE[0] * columns, _SIDE[1] * len(strips) + 0.5, title)
        panels = figure.subplots(len(strips), columns, squeeze=False)
        for strip, row in zip(strips, panels, strict=True):
            free = iter(row)
            for lines in strip.lines:
                _lines(next(free), lines, strip)
            if strip.stacked:
                _stacked(next(free), strip.lines[0], strip)
            if strip.heat is not None:
                _heat(figure, next(free), strip.heat, strip)
            for left in free:
                left.set_axis_off()
        return written(figure, kind)


def _lines(panel: Axes, lines: Lines, strip: Strip) -> None:
    x = _positions(panel, lines.name, lines.at)
    panel.grid(alpha=0.3)
    for number, (stage, values) in enumerate(lines.stages.items()):
        if any(values):
            # The whole run is broad and pale: a stage that is nearly all of it lies on top and is seen.
            whole: dict[str, Any] = {"color": "#bbbbbb", "linewidth": 5.0, "solid_capstyle": "round"}
            own: dict[str, Any] = {"color": colour(number - 1), "linewidth": 1.4, "marker": "." if len(x) <= 40 else ""}
            panel.plot(x, list(map(float, values)), label=stage, **(whole if stage == WHOLE else own))
    positive = [v for values in lines.stages.values() for v in values if v > 0]
    if positive and max(positive) > _WIDE * min(positive):
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)
    _labelled(panel, strip)
    panel.set_title(f"{strip.metric} over {lines.name}")
    panel.legend()


def _stacked(panel: Axes, lines: Lines, strip: Strip) -> None:
    x = _positions(panel, lines.name, lines.at, log=False)
    panel.grid(alpha=0.3)
    every = [stage for stage in lines.stages if stage != WHOLE]
    own = {stage: list(map(float, lines.stages[stage])) for stage in every if any(lines.stages[stage])}
    if own:
        colours = [colour(every.index(stage)) for stage in own]
        panel.stackplot(x, list(own.values()), labels=list(own), colors=colours, alpha=0.85)
        panel.legend(loc="upper left")
    _labelled(panel, strip)
    panel.set_title(f"{strip.metric} of the stages, stacked")


def _heat(figure: Any, panel: Axes, heat: Heat, strip: Strip) -> None:
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import EngFormatter

    known = [v for row in heat.values for v in row if v is not None and v > 0]
    wide = bool(known) and max(known) > _WIDE * min(known)
    values = [[float("nan") if v is None else float(v) for v in row] for row in heat.values]
    image = panel.imshow(values, aspect="auto", origin="lower", norm=LogNorm() if wide else None)
    for set_ticks, at in ((panel.set_yticks, heat.at[0]), (panel.set_xticks, heat.at[1])):
        shown = sorted({round(i * (len(at) - 1) / 5) for i in range(6)})
        set_ticks(shown, [_shown(at[i]) for i in shown])
    panel.set_ylabel(heat.names[0])
    panel.set_xlabel(heat.names[1])
    panel.set_title(f"{strip.metric} of the whole run")
    figure.colorbar(image, ax=panel, format=EngFormatter(strip.unit))


def _positions(panel: Axes, name: str, at: Sequence[Any], *, log: bool = True) -> list[float]:
    """Where values stand: numbers at their places, all else side by side."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    panel.set_xlabel(name)
    if all(type(v) is int for v in at):
        if log and min(at) > 0 and max(at) > _WIDE * min(at):
            panel.set_xscale("log", base=2)
            panel.xaxis.set_minor_locator(NullLocator())
        else:
            panel.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        panel.tick_params(axis="x", labelrotation=30 if max(at) >= 10_000 else 0)
        return list(map(float, at))
    panel.set_xticks(range(len(at)), [_shown(v) for v in at])
    return list(map(float, range(len(at))))


def _shown(value: Any) -> str:
    return f"{value:,}" if type(value) is int else str(value)


def _labelled(panel: Axes, strip: Strip) -> None:
    from matplotlib.ticker import EngFormatter

    panel.yaxis.set_major_formatter(EngFormatter(strip.unit))
