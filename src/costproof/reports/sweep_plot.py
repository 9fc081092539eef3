"""Pictures of sweeps: lines for each stage over what varies, stacked areas, and a heat map over two names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHOLE: Final = "whole run"
_WIDE: Final = 30
"""Ratio of the largest to the smallest from which on a scale is logarithmic."""
_SIDE: Final = (4.2, 3.0)
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


def draw(strips: Sequence[Strip], title: str, path: Path) -> None:
    """Write a picture, SVG or PNG by the ending of the path; the same strips make the same bytes.

    Args:
        title: above everything, such as the base point.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = max(len(s.lines) + s.stacked + (s.heat is not None) for s in strips)
    with matplotlib.rc_context({"svg.hashsalt": "costproof", "font.size": 8, "axes.grid": True, "grid.alpha": 0.3}):
        figure = Figure((_SIDE[0] * columns, _SIDE[1] * len(strips) + 0.5), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, fontsize=9)
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
        kind = path.suffix.removeprefix(".")
        figure.savefig(path, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None})


def _lines(panel: Axes, lines: Lines, strip: Strip) -> None:
    x = _positions(panel, lines.name, lines.at)
    for stage, values in lines.stages.items():
        if any(values):
            style: dict[str, Any] = {"color": "black", "linewidth": 1.6} if stage == WHOLE else {"linewidth": 1.0}
            panel.plot(x, list(map(float, values)), label=stage, marker="." if len(x) <= 40 else "", **style)
    positive = [v for values in lines.stages.values() for v in values if v > 0]
    if positive and max(positive) > _WIDE * min(positive):
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)
    _labelled(panel, strip)
    panel.set_title(f"{strip.metric} over {lines.name}", fontsize=8)
    panel.legend(fontsize=6)


def _stacked(panel: Axes, lines: Lines, strip: Strip) -> None:
    x = _positions(panel, lines.name, lines.at, log=False)
    own = {stage: list(map(float, values)) for stage, values in lines.stages.items() if stage != WHOLE and any(values)}
    if own:
        panel.stackplot(x, list(own.values()), labels=list(own), alpha=0.8)
        panel.legend(fontsize=6, loc="upper left")
    _labelled(panel, strip)
    panel.set_title(f"{strip.metric} of the stages, stacked", fontsize=8)


def _heat(figure: Any, panel: Axes, heat: Heat, strip: Strip) -> None:
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import EngFormatter

    known = [v for row in heat.values for v in row if v is not None and v > 0]
    wide = bool(known) and max(known) > _WIDE * min(known)
    values = [[float("nan") if v is None else float(v) for v in row] for row in heat.values]
    panel.grid(visible=False)
    image = panel.imshow(values, aspect="auto", origin="lower", norm=LogNorm() if wide else None)
    for set_ticks, at in ((panel.set_yticks, heat.at[0]), (panel.set_xticks, heat.at[1])):
        shown = sorted({round(i * (len(at) - 1) / 7) for i in range(8)})
        set_ticks(shown, [str(at[i]) for i in shown])
    panel.set_ylabel(heat.names[0])
    panel.set_xlabel(heat.names[1])
    panel.set_title(f"{strip.metric} of the whole run", fontsize=8)
    figure.colorbar(image, ax=panel, format=EngFormatter(strip.unit))


def _positions(panel: Axes, name: str, at: Sequence[Any], *, log: bool = True) -> list[float]:
    """Where values stand: numbers at their places, all else side by side."""
    panel.set_xlabel(name)
    if all(type(v) is int for v in at):
        if log and min(at) > 0 and max(at) > _WIDE * min(at):
            panel.set_xscale("log", base=2)
        return list(map(float, at))
    panel.set_xticks(range(len(at)), [str(v) for v in at])
    return list(map(float, range(len(at))))


def _labelled(panel: Axes, strip: Strip) -> None:
    from matplotlib.ticker import EngFormatter

    panel.yaxis.set_major_formatter(EngFormatter(strip.unit))
