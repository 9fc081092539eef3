"""What is printed in colour on a console, as text for a file."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

_UNBOUNDED: Final = 100_000
"""Columns of a file."""


def uncoloured(write: Callable[[Console], None], width: int | None) -> str:
    """Return the text that ``write`` prints, without colour and trailing space.

    Args:
        width: columns of a screen; ``None`` is a file, which takes lines of any length.
    """
    from rich.console import Console

    out = StringIO()
    write(
        Console(
            file=out, width=width or _UNBOUNDED, color_system=None, force_terminal=False, highlight=False, emoji=False,
            force_jupyter=False,  # else rich shows it in the cell of a notebook, whatever the file is
        )
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"
