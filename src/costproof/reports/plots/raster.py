"""PNG of the SVG that this program writes itself: boxes, lines, paths, text, and plain rules of style.

Not a reader of SVG in general: what it does not know it refuses, so that nothing is left out silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree

from costproof.reports.plots.figure import begin, style, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RULE: Final = re.compile(r"([^{}]+)\{([^{}]*)\}")
_TOKEN: Final = re.compile(r"[A-Za-z]|-?[0-9.]+")
_INHERITED: Final = ("fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "font-family",
                     "text-anchor", "fill-opacity")  # fmt: skip
_SILENT: Final = ("title", "style", "defs", "desc")
Looks = Mapping[str, str]
Rules = Sequence[tuple[tuple[str, ...], dict[str, str]]]
Point = tuple[float, float]


def png(svg: str) -> bytes:
    """The picture as PNG, 1.5 dots a pixel.

    Raises:
        ValueError: the picture has an element or a command that is not known here.
    """
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    rules = [
        (tuple(selector.split()), _declared(body))
        for element in root.iter()
        if _tag(element) == "style"
        for selectors, body in _RULE.findall(element.text or "")
        for selector in selectors.strip().split(",")
    ]
    with style():
        figure = begin(width / 100, height / 100, "", layout="none")
        panel = figure.add_axes((0, 0, 1, 1))
        panel.set_axis_off()
        panel.set_xlim(0, width)
        panel.set_ylim(height, 0)
        _Drawing(panel, rules).draw(root, (), {"fill": "#000000", "font-size": "12"}, (0.0, 0.0))
        return written(figure, "png")


class _Drawing:
    """What is drawn, in the order of the elements."""

    def __init__(self, panel: Axes, rules: Rules) -> None:
        self.panel = panel
        self.rules = rules
        self.order = 0

    def draw(self, element: Any, above: tuple[Any, ...], inherited: Looks, shift: Point) -> None:
        """Draw an element and what is in it."""
        tag = _tag(element)
        if tag in _SILENT:
            return
        here = (*above, element)
        looks = {**inherited, **self._own(here)}
        self.order += 1
        if tag in ("svg", "g", "a"):
            moved = re.fullmatch(r"translate\(([-\d.]+),([-\d.]+)\)", element.get("transform", "translate(0,0)"))
            if moved is None:
                raise ValueError(f"transform {element.get('transform')}")
            inside = (shift[0] + float(moved[1]), shift[1] + float(moved[2]))
            handed = {k: v for k, v in looks.items() if k in _INHERITED}
            for child in element:
                self.draw(child, here, handed, inside)
            return
        if tag not in ("rect", "circle", "line", "polyline", "path", "text"):
            raise ValueError(f"element {tag}")
        getattr(self, f"_{tag}")(element, here, looks, shift)

    def _own(self, here: tuple[Any, ...]) -> dict[str, str]:
        """Attributes, and over them the rules that match: the more they ask for the later."""
        found = dict(here[-1].attrib)
        for selector, declared in sorted(self.rules, key=lambda rule: len(rule[0])):
            if _matches(selector, here):
                found |= declared
        return found | _declared(here[-1].get("style", ""))

    def _patch(self, patch: Any, looks: Looks, *, filled: bool = True) -> None:
        fill, stroke = looks.get("fill", "#000000"), looks.get("stroke", "none")
        patch.set_facecolor(fill if filled else "none")
        if "fill-opacity" in looks:
            patch.set_alpha(float(looks["fill-opacity"]))
        patch.set_edgecolor(stroke)
        patch.set_linewidth(0.0 if stroke == "none" else _number(looks.get("stroke-width", "1")) * 0.72)
        if looks.get("stroke-dasharray", "none") != "none" and stroke != "none":
            patch.set_linestyle((0, tuple(float(n) for n in re.split(r"[ ,]+", looks["stroke-dasharray"]))))
        patch.set_zorder(self.order)
        self.panel.add_patch(patch)

    def _rect(self, element: Any, here: object, looks: Looks, shift: Point) -> None:
        from matplotlib.patches import FancyBboxPatch, Rectangle

        x, y = _number(element.get("x", "0")) + shift[0], _number(element.get("y", "0")) + shift[1]
        width, height, round_ = (_number(element.get(n, "0")) for n in ("width", "height", "rx"))
        self._patch(
            FancyBboxPatch((x, y), width, height, boxstyle=f"round,pad=0,rounding_size={round_}")
            if round_
            else Rectangle((x, y), width, height),
            looks,
        )

    def _circle(self, element: Any, here: object, looks: Looks, shift: Point) -> None:
        from matplotlib.patches import Circle

        x, y, radius = (_number(element.get(n)) for n in ("cx", "cy", "r"))
        self._patch(Circle((x + shift[0], y + shift[1]), radius), looks)

    def _line(self, element: Any, here: object, looks: Looks, shift: Point) -> None:
        ends = [(_number(element.get(f"x{n}")), _number(element.get(f"y{n}"))) for n in (1, 2)]
        self._stroke([("M", [ends[0]]), ("L", [ends[1]])], element, looks, shift)

    def _polyline(self, element: Any, here: object, looks: Looks, shift: Point) -> None:
        points = [tuple(map(float, p.split(","))) for p in element.get("points").split()]
        self._stroke([("L" if i else "M", [(p[0], p[1])]) for i, p in enumerate(points)], element, looks, shift)

    def _path(self, element: Any, here: object, looks: Looks, shift: Point) -> None:
        self._stroke(list(_steps(element.get("d"))), element, looks, shift)

    def _stroke(self, steps: list[tuple[str, list[Point]]], element: Any, looks: Looks, shift: Point) -> None:
        from matplotlib.patches import PathPatch, Polygon
        from matplotlib.path import Path

        codes = {"M": Path.MOVETO, "L": Path.LINETO, "C": Path.CURVE4}
        points = [(x + shift[0], y + shift[1]) for _, some in steps for x, y in some]
        kinds = [codes[step] for step, some in steps for _ in some]
        self._patch(PathPatch(Path(points, kinds)), looks, filled=looks.get("fill") not in (None, "none"))
        if element.get("marker-end"):
            head = _arrow(points[-2], points[-1])
            self.panel.add_patch(Polygon(head, closed=True, color=looks["stroke"], zorder=self.order, lw=0))

    def _text(self, element: Any, here: tuple[Any, ...], looks: Looks, shift: Point) -> None:
        x, y = _number(element.get("x", "0")) + shift[0], _number(element.get("y", "0")) + shift[1]
        runs = [(element.text or "", looks)]
        for child in element:
            runs.append((child.text or "", {**looks, **self._own((*here, child))}))
            runs.append((child.tail or "", looks))
        side = {"start": "left", "middle": "center", "end": "right"}[looks.get("text-anchor", "start")]
        for words, own in runs:
            if not words:
                continue
            text = self.panel.text(
                x, y, words, ha=side, va="baseline", color=own["fill"], zorder=self.order,
                fontsize=_number(own["font-size"]) * 0.72, fontweight=own.get("font-weight", "normal"),
                family="DejaVu Sans Mono" if "mono" in own.get("font-family", "") else "DejaVu Sans",
            )  # fmt: skip
            if len(runs) > 1:
                box = text.get_window_extent().transformed(self.panel.transData.inverted())
                # The box of a text leaves out blanks at its ends.
                blanks = len(words) - len(words.rstrip())
                x = box.x1 + 0.32 * _number(own["font-size"]) * blanks


def _tag(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def _number(text: str) -> float:
    return float(text.removesuffix("px"))


def _declared(body: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in body.split(";") if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _matches(selector: tuple[str, ...], here: tuple[Any, ...]) -> bool:
    """Whether the last word names the element, and the others, in order, what it is in."""
    *around, last = selector
    if not _named(last, here[-1]):
        return False
    above = iter(reversed(here[:-1]))
    return all(any(_named(word, element) for element in above) for word in reversed(around))


def _named(word: str, element: Any) -> bool:
    tag, *classes = word.split(".")
    return tag in ("", _tag(element)) and set(classes) <= set(element.get("class", "").split())


def _steps(d: str) -> Iterator[tuple[str, list[Point]]]:
    """A path as moves, lines and curves to absolute points."""
    tokens = _TOKEN.findall(d)
    x = y = 0.0
    i = 0
    while i < len(tokens):
        command, i = tokens[i], i + 1
        count = {"M": 2, "L": 2, "H": 1, "V": 1, "C": 6, "c": 6}.get(command)
        if count is None:
            raise ValueError(f"path command {command}")
        numbers, i = [float(t) for t in tokens[i : i + count]], i + count
        if command in "HV":
            x, y = (numbers[0], y) if command == "H" else (x, numbers[0])
            yield "L", [(x, y)]
            continue
        base = (x, y) if command == "c" else (0.0, 0.0)
        points = [(a + base[0], b + base[1]) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
        x, y = points[-1]
        yield command.upper(), points


def _arrow(before: Point, tip: Point) -> list[Point]:
    """The head of an arrow: 7 pixels long and broad, pointing where the line ends."""
    dx, dy = tip[0] - before[0], tip[1] - before[1]
    length = (dx * dx + dy * dy) ** 0.5 or 1.0
    u, v = dx / length, dy / length
    back = (tip[0] - 7 * u, tip[1] - 7 * v)
    return [tip, (back[0] - 3.5 * v, back[1] + 3.5 * u), (back[0] + 3.5 * v, back[1] - 3.5 * u)]
