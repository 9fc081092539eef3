"""A roofline as a picture: rate over intensity, both on logarithmic scales, the parts of a run on the roof."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from html import escape
from math import ceil, floor, log10
from typing import Final

from costproof.estimate.roofline import PartBound, Roofline
from costproof.reports.escape import visible
from costproof.reports.plots.figure import colour
from costproof.reports.roofline_words import duration, largest, roof
from costproof.views.numbers import human

_WIDTH: Final = 900
_HEIGHT: Final = 560
_LEFT: Final = 90
_RIGHT: Final = 30
_TOP: Final = 70
_BOTTOM: Final = 60
_NAMED: Final = 8
"""Parts whose names stand beside them."""
_NAME: Final = (7, 16)
"""Width of a letter of such a name, and height of its line."""
Place = Callable[[Fraction], float]
"""Where a number lies."""


def roofline_svg(found: Roofline) -> str:
    """The picture. Parts without products or without bytes have no place in it."""
    ridge = Fraction(found.peak_flops, found.bandwidth)
    placed = [p for p in found.parts if p.at_roof.taken and p.at_roof.bytes and p.at_roof.seconds is not None]
    every = [Fraction(p.at_roof.taken or 0, p.at_roof.bytes or 1) for p in placed]
    low = floor(log10(min([*every, ridge / 10])))
    high = ceil(log10(max([*every, ridge * 10])))
    bottom = floor(log10(found.bandwidth * Fraction(10) ** low))
    top = ceil(log10(found.peak_flops * 2))

    def x(intensity: Fraction) -> float:
        return _LEFT + (log10(intensity) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(rate: Fraction) -> float:
        return _HEIGHT - _BOTTOM - (log10(rate) - bottom) / (top - bottom) * (_HEIGHT - _TOP - _BOTTOM)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        _text(_LEFT, 24, found.name, size=15),
        _text(_LEFT, 44, roof(found)),
        _text(_LEFT, 60, "The area of a point is its share of the time at the roof. A bound, not a prediction."),
    ]
    for n in range(low, high + 1):
        at = x(Fraction(10) ** n)
        lines += [
            _line(at, _TOP, at, _HEIGHT - _BOTTOM, "#ddd"),
            _text(at, _HEIGHT - _BOTTOM + 18, _power(n), "middle"),
        ]
    for n in range(bottom, top + 1):
        at = y(Fraction(10) ** n)
        lines += [
            _line(_LEFT, at, _WIDTH - _RIGHT, at, "#ddd"),
            _text(_LEFT - 8, at + 4, human(10**n, "FLOP/s", places=0), "end"),
        ]
    lines.append(_text((_LEFT + _WIDTH) / 2, _HEIGHT - 14, "FLOP per byte", "middle"))
    start = (x(Fraction(10) ** low), y(found.bandwidth * Fraction(10) ** low))
    corner, end = (x(ridge), y(Fraction(found.peak_flops))), (_WIDTH - _RIGHT, y(Fraction(found.peak_flops)))
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (start, corner, end))
    lines.append(f'<polyline points="{path}" fill="none" stroke="#222" stroke-width="2"/>')
    lines += list(_points(found, placed, x, y))
    return "\n".join([*lines, "</svg>", ""])


def _points(found: Roofline, placed: list[PartBound], x: Place, y: Place) -> Iterator[str]:
    colours = {s.id: colour(i) for i, s in enumerate(found.stages)}
    whole = Fraction(found.run.modules.seconds or 1) or Fraction(1)
    named = [p for p in largest(found) if p in placed][:_NAMED]
    used: list[tuple[float, float, float]] = []
    lines: list[str] = []
    names: list[str] = []
    for p in sorted(placed, key=lambda p: -Fraction(p.at_roof.seconds or 0)):
        b = p.at_roof
        seconds = Fraction(b.seconds or 0)
        at = x(Fraction(b.taken or 0, b.bytes or 1)), y(Fraction(b.taken or 0) / seconds)
        radius = 3 + 30 * float(seconds / whole) ** 0.5
        said = f"{p.stage} {p.part}: {human(b.flops, 'FLOP')}, {human(b.bytes, 'B')}, {duration(b.seconds)}, {b.bound}"
        yield (
            f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:.1f}" fill="{colours[p.stage]}" fill-opacity="0.55">'
            f"<title>{escape(visible(said))}</title></circle>"
        )
        if p in named:
            name = p.part if p.part.split(".")[0] == p.stage else f"{p.stage} {p.part}"
            width = float(_NAME[0] * len(name))
            # Below the roof, and so that no two lie on each other.
            left, low = min(at[0] + 12, _WIDTH - width), at[1] + radius + 14
            while any(left < a + w and a < left + width and abs(low - h) < _NAME[1] for a, w, h in used):
                low += _NAME[1]
            used.append((left, width, low))
            lines.append(_line(at[0], at[1], left - 2, low - 4, "#777"))
            size = f'width="{width:.1f}" height="{_NAME[1]}"'
            names.append(f'<rect x="{left - 1:.1f}" y="{low - 12:.1f}" {size} fill="#fff" fill-opacity="0.85"/>')
            names.append(_text(left, low, name))
    yield from (*lines, *names)
    for i, stage in enumerate(found.stages):
        at_y = _HEIGHT - _BOTTOM - 12 - 16 * (len(found.stages) - 1 - i)
        yield f'<circle cx="{_WIDTH - _RIGHT - 150}" cy="{at_y - 4}" r="5" fill="{colours[stage.id]}"/>'
        yield _text(_WIDTH - _RIGHT - 140, at_y, f"{stage.id}, {duration(stage.modules.seconds)}")


def _power(n: int) -> str:
    return f"{10**n:,}" if n >= 0 else f"1/{10**-n:,}"


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    shown = escape(visible(text))
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{shown}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'
