"""Horizontal bars made of pieces, with a word in each piece that has room for it and the whole beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from costproof.reports.plots.figure import begin, ink, style, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH: Final = 10.0
_ROW: Final = 0.34
"""Height of a bar with its gap, in inches."""
_LETTER: Final = 0.0125
"""Width of a letter, as a part of the widest bar."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar."""

    size: float
    colour: str
    label: str
    """Shown where there is room."""
    hatch: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A row."""

    name: str
    pieces: tuple[Piece, ...]
    said: str
    """Beside the bar: its whole, or why there is none."""
    below: bool = False
    """Whether the row belongs to the one above it."""


def bars(
    title: str,
    rows: Sequence[Bar],
    legend: Sequence[tuple[str, str, bool]],
    axis: str,
    kind: str,
    *,
    percent: bool = False,
    unit: str = "",
    line: tuple[float, str] | None = None,
) -> bytes:
    """The picture of some rows, from top to bottom.

    Args:
        legend: name, colour, hatched.
        axis: what the sizes are.
        line: a size that is marked through all rows, and its name.
    """
    from matplotlib.ticker import EngFormatter, PercentFormatter

    with style():
        figure = begin(_WIDTH, 1.5 + _ROW * len(rows), title)
        panel = figure.add_subplot()
        widest = max([1.0 if percent else 0.0, *(_length(row) for row in rows)]) or 1.0
        at = 0.0
        places: list[float] = []
        for row in rows:
            at += 0.0 if row.below or not places else 0.35
            places.append(at)
            _bar(panel, row, at, widest)
            at += 1.0
        panel.set_yticks(places, [row.name for row in rows])
        panel.set_ylim(at - 0.4, -0.7)
        panel.set_xlim(0, widest * 1.18)
        panel.tick_params(axis="y", length=0)
        panel.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0) if percent else EngFormatter(unit))
        if percent:
            panel.set_xticks([t for t in panel.get_xticks() if 0 <= t <= max(1.0, widest)])
        panel.set_xlabel(axis)
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
        if line is not None:
            panel.axvline(line[0], color="#111111", linewidth=1.0, linestyle="--")
            panel.text(line[0], -0.75, line[1], ha="center", va="bottom", fontsize=8)
        _legend(figure, legend)
        return written(figure, kind)


def _length(row: Bar) -> float:
    return sum(p.size for p in row.pieces)


def _bar(panel: Axes, row: Bar, at: float, widest: float) -> None:
    left = 0.0
    for piece in row.pieces:
        hatch = "///" if piece.hatch else None
        panel.barh(at, piece.size, left=left, height=0.8, color=piece.colour, edgecolor="white", lw=0.5, hatch=hatch)
        if piece.label and piece.size / widest > _LETTER * (len(piece.label) + 1):
            where = left + piece.size / 2
            dark = {"color": "#111111", "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}}
            looks = dark if piece.hatch else {"color": ink(piece.colour)}
            panel.text(where, at, piece.label, ha="center", va="center", fontsize=8, **looks)
        left += piece.size
    panel.text(left + 0.008 * widest, at, row.said, ha="left", va="center", fontsize=8)


def _legend(figure: object, legend: Sequence[tuple[str, str, bool]]) -> None:
    from matplotlib.patches import Patch

    if legend:
        handles = [Patch(facecolor=c, label=n, hatch="///" if h else None, edgecolor="white") for n, c, h in legend]
        columns = min(6, len(handles))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)  # type: ignore[attr-defined]
