"""Where a command's text goes: stdout, or a file that it names on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from costproof.ledger.errors import BadInput
from costproof.ledger.writing import through, write_named
from costproof.reports.escape import visible
from costproof.reports.summary import print_summary as typeset

if TYPE_CHECKING:
    from costproof.reports.report import Report


def emit(text: str | bytes, output: Path | None, *, inputs: Iterable[Path] = ()) -> None:
    """Write to stdout (``output`` is ``None`` or ``-``) or to a file.

    Args:
        inputs: files that the command reads beside those that its line names as such, and must not overwrite.

    Raises:
        BadInput: the file is one of the inputs, or cannot be written.
    """
    if output is None or str(output) == "-":
        # Binary, so that the bytes are the same on every platform and under every locale.
        click.echo(text.encode("utf-8") if isinstance(text, str) else text, nl=False)
        return
    check_apart(output, inputs)
    write_named(output, text)
    wrote(output)


def check_apart(output: Path, inputs: Iterable[Path] = ()) -> None:
    """Raise :class:`BadInput` if the output is one of the inputs, or of the files that the line names."""
    named = click.get_current_context().params.items()
    files = [p for name, v in named if name != "output" for p in (v if isinstance(v, tuple) else (v,))]
    given = (*inputs, *(p for p in files if isinstance(p, Path)))
    if output.exists() and not through(output) and any(p.exists() and p.samefile(output) for p in given):
        raise BadInput("the output is one of the inputs", where=str(output), fix="choose another file with -o")
    if output.is_dir():
        raise BadInput("the output is a folder", where=str(output), expected="a file", fix="name a file with -o")


def flag(name: str) -> bool:
    """Whether a flag of the whole program was given: ``quiet`` or ``verbose``."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(f"costproof.{name}"))


def note(text: str) -> None:
    """A line on stderr about what was done; not with ``-q``."""
    if not flag("quiet"):
        click.echo(visible(text), err=True)


def wrote(path: Path) -> None:
    """Say which file there is now."""
    note(f"Wrote {path}")


def rows(pairs: Iterable[tuple[str, str]]) -> str:
    """Two columns."""
    found = list(pairs)
    width = max((len(a) for a, _ in found), default=0)
    return "".join(f"{a:<{width}}  {b}\n" for a, b in found)


def terminal() -> bool:
    """Whether a person reads stdout on a terminal."""
    return sys.stdout.isatty()


def on_screen(*asked: object) -> bool:
    """Whether a person reads the answer on a terminal: nobody asked for a format or a file."""
    return all(a is None for a in asked) and terminal()


def print_summary(found: Report) -> None:
    """The table, as wide and as colourful as stdout allows."""
    if not terminal():
        click.echo(found.render("summary"), nl=False)
        return
    from rich.console import Console

    typeset(Console(highlight=False, emoji=False), found)
