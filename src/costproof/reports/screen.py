"""Fit tables and sentences to a terminal's width: split wide tables by columns, never break numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from costproof.reports.escape import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    Cell = str | Text

_GAP: Final = 2
_GAP_TYPESET: Final = 3
_EDGES: Final = 2
"""Characters for padding between and around the columns of a table with rules."""
_PROSE: Final = 32
_PROSE_TYPESET: Final = 18
"""Minimum width of the sentence column in a table; a narrower screen puts sentences below their rows."""
_MOST_PANELS: Final = 3
_NUMBER: Final = re.compile(r"[-+]?\d(?:[\d,._]*\d)?")
_SOFT: Final = frozenset("./_,:;=-|)]}>*")


def fold_line(line: str, width: int | None) -> list[str]:
    """Break a line longer than ``width``, but never within a number or between a number and its unit.

    Break at spaces, but not between a number and its unit; without spaces, after punctuation, or else anywhere.

    Args:
        width: columns of the screen; ``None`` is a file, which takes lines of any length.
    """
    lines: list[str] = []
    hang = " " * (len(line) - len(line.lstrip()) + 2)
    while width is not None and len(line) > width:
        at = _break(line, width, len(line) - len(line.lstrip()) + 1)
        if at is None:
            break
        lines.append(line[:at].rstrip())
        line = hang + line[at:].lstrip()
    return [*lines, line]


def _break(line: str, width: int, first: int) -> int | None:
    """Return the position of the next line break; ``None`` if the rest of the line fits."""
    inside = {i for m in _NUMBER.finditer(line) for i in range(m.start() + 1, m.end())}

    def unit(i: int) -> bool:
        return line[i] == " " and not line[i - 1].isdigit()

    def space(i: int) -> bool:
        return line[i] == " "

    def soft(i: int) -> bool:
        return line[i - 1] in _SOFT and i not in inside

    def outside(i: int) -> bool:
        return i not in inside

    ways: tuple[Callable[[int], bool], ...] = (unit, space, soft, outside)
    for way in ways:
        if (found := next((i for i in range(width, first, -1) if way(i)), None)) is not None:
            return found
    return next((i for i in range(max(width, first) + 1, len(line)) if outside(i)), None)


def fill_lines(lines: Iterable[str], width: int | None) -> str:
    """Join lines into text: make control characters visible, and wrap lines at ``width``."""
    return "".join(f"{part.rstrip()}\n" for line in lines for part in fold_line(visible(line), width))


def align_table(
    head: tuple[str, ...] | None,
    rows: Sequence[tuple[str, ...]],
    left: int = 1,
    width: int | None = None,
    *,
    keys: int | None = None,
    prose: bool = False,
) -> list[str]:
    """Return the lines of a table of plain text.

    A table that is wider than the screen is split by columns, and its first columns are repeated; where these are too
    wide for that, each row becomes a block with a line for each cell.

    Args:
        head: headings, ``None`` if there are none.
        left: so many first columns are words, the others numbers.
        width: columns of the screen; ``None`` is a file, which takes tables of any width.
        keys: so many first columns say which row it is; those of words unless given.
        prose: the last column is sentences, which are broken, or follow their row if there is no room.
    """
    grid = [*([head] if head is not None else []), *rows]
    short = [row[:-1] for row in grid] if prose else grid
    panels = _panels(short, left if keys is None else keys, width)
    if panels is None or (prose and len(panels) > 1):
        return _blocks(head or ("",) * max(map(len, rows), default=0), rows, width)
    lines = [line for n, panel in enumerate(panels) for line in (*([""] if n else []), *_lines(short, panel, left))]
    return _with_prose(lines, [row[-1] for row in grid], width) if prose else [line.rstrip() for line in lines]


def _panels(grid: Sequence[Sequence[str]], keys: int, width: int | None, gap: int = _GAP) -> list[list[int]] | None:
    """Return the column indices of each panel of a wide table; ``None`` if even its key columns do not fit."""
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    if width is None or sum(widths) + gap * (len(widths) - 1) <= width:
        return [list(range(len(widths)))]
    taken = sum(widths[:keys]) + gap * (keys - 1)
    panels: list[list[int]] = []
    room = -1
    for i in range(keys, len(widths)):
        if room < widths[i] + gap:
            panels.append([*range(keys)])
            room = width - taken
        panels[-1].append(i)
        room -= widths[i] + gap
        if room < 0:
            return None
    return panels if 0 < len(panels) <= _MOST_PANELS else None


def _lines(grid: Sequence[Sequence[str]], panel: Sequence[int], left: int) -> list[str]:
    widths = {i: max(len(row[i]) for row in grid) for i in panel}
    pad = {i: str.ljust if i < left else str.rjust for i in panel}
    return [(" " * _GAP).join(pad[i](row[i], widths[i]) for i in panel) for row in grid]


def _with_prose(lines: Sequence[str], said: Sequence[str], width: int | None) -> list[str]:
    indent = len(lines[0]) + _GAP if lines else 0
    if width is not None and width - indent < _PROSE:
        below = 2 * _GAP
        return [
            part
            for line, text in zip(lines, said, strict=True)
            for part in (line.rstrip(), *(f"{' ' * below}{x.strip()}" for x in fold_line(text, width - below) if x))
        ]
    made = []
    for line, text in zip(lines, said, strict=True):
        first, *others = fold_line(text, None if width is None else width - indent)
        made += [f"{line}{' ' * _GAP}{first}".rstrip(), *(" " * indent + x.strip() for x in others)]
    return made


def _blocks(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    indent = max(map(len, head)) + _GAP
    lines: list[str] = []
    for row in rows:
        lines += [""] if lines else []
        for name, cell in zip(head, row, strict=True):
            if cell:
                first, *others = fold_line(cell, None if width is None else width - indent)
                lines += [f"{name:<{indent}}{first}".rstrip(), *(" " * indent + x.strip() for x in others)]
    return lines


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print a sentence, broken by the rules of :func:`fold_line`."""
    from rich.text import Text

    for line in fold_line(visible(text), console.width):
        console.print(Text(line, style=style), soft_wrap=True)


def table_fits(console: Console, rows: Sequence[Sequence[Cell]]) -> bool:
    """Return whether a table with borders is at most as wide as the console."""
    panels = _panels([[str(cell) for cell in row] for row in rows], 1, console.width - _EDGES, _GAP_TYPESET)
    return panels is not None and len(panels) == 1


def print_table(
    console: Console,
    head: Sequence[str],
    align: str,
    rows: Sequence[Sequence[Cell]],
    *,
    keys: int = 1,
    total: bool = False,
    prose: bool = False,
) -> None:
    """Print a table with borders and colours, split like :func:`align_table` where it is too wide.

    Args:
        align: one letter for each column: ``l`` or ``r``.
        keys: so many first columns say which row it is.
        total: the last row is a sum.
        prose: the last column is sentences.
    """
    from rich.text import Text

    shown = [[cell if isinstance(cell, Text) else Text(visible(cell)) for cell in row] for row in rows]
    plain = [[*head], *([cell.plain for cell in row] for row in shown)]
    width = console.width - _EDGES
    panels = _panels([row[:-1] for row in plain] if prose else plain, keys, width, _GAP_TYPESET)
    if prose and panels is not None and len(panels) == 1:
        taken = [max(map(len, column)) + _GAP_TYPESET for column in zip(*plain, strict=True)]
        room = width - sum(taken[:-1])
        panels = [[*range(len(head))]]
        if room < _PROSE_TYPESET:
            room = width - sum(taken[:keys])
            panels = [[*range(len(head) - 1)], [*range(keys), len(head) - 1]]
        for row in shown:
            parts = fold_line(row[-1].plain, room)
            row[-1] = Text("\n".join(part.strip() for part in parts), style=row[-1].style)
        panels = panels if room >= _PROSE_TYPESET else None
    elif prose:
        panels = None
    if panels is None:
        _print_blocks(console, head, shown)
        return
    for panel in panels:
        cells = [[row[i] for i in panel] for row in shown if any(row[i].plain for i in panel[keys:])]
        _print_grid(console, [head[i] for i in panel], [align[i] for i in panel], cells, total=total)


def _print_grid(
    console: Console, head: Sequence[str], align: Sequence[str], rows: Sequence[Sequence[Text]], *, total: bool
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title, side in zip(head, align, strict=True):
        grid.add_column(title, justify="left" if side == "l" else "right", no_wrap=True)
    for n, row in enumerate(rows, 1):
        last = total and n == len(rows)
        if last:
            grid.add_section()
        grid.add_row(*row, style="bold" if last else "")
    console.print(grid)


def _print_blocks(console: Console, head: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
    from rich.text import Text

    indent = max(map(len, head)) + _GAP
    console.print()
    for row in rows:
        for name, cell in zip(head, row, strict=True):
            label = f"{name:<{indent}}"
            for part in fold_line(cell.plain, console.width - indent) if cell.plain else ():
                console.print(Text.assemble(label, Text(part.strip(), style=cell.style)), soft_wrap=True)
                label = " " * indent
        console.print()
