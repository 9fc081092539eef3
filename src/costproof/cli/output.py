"""Print reports and errors: on a terminal, to a pipe, or into a file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Final

import click

from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.plural import plural
from costproof.ledger.writing import check_replaceable, resolve_named, write_error, write_named, written_in_place
from costproof.reports.escape import visible
from costproof.reports.outputs import PICTURES
from costproof.reports.screen import align_table, fill_lines
from costproof.reports.summary import print_summary as typeset

if TYPE_CHECKING:
    from costproof.reports.report import Report


_OUTPUT: Final = ("output", "outputs")
"""Names of the command parameters that are output paths."""
_NARROWEST: Final = 40
"""Minimum number of text columns, whatever the terminal reports."""
_READ: Final = ("capture.json", "callgraph.json", "config.json")
"""Names of files that are read if an argument is a folder."""


def emit(text: str | bytes, output: Path | None) -> None:
    """Write a text to stdout (``output`` is ``None`` or ``-``) or to a file.

    Raises:
        BadInput: the file is one of the inputs, or cannot be written.
    """
    if output is None or str(output) == "-":
        if isinstance(text, str) and not hasattr(sys.stdout, "buffer"):  # a notebook, or redirect_stdout(StringIO())
            click.echo(text, nl=False)
            return
        # Binary, so that the bytes are the same on every platform and under every locale.
        click.echo(text.encode("utf-8") if isinstance(text, str) else text, nl=False)
        return
    check_apart(output)
    write_named(output, text)
    note_written(output)


def check_apart(output: Path | None) -> None:
    """Check, before long work, that the output is a writable file and none of the inputs.

    Raises:
        BadInput: it is an input, a file in the arguments, or not writable.
    """
    if output is None or str(output) == "-" or written_in_place(output):
        return
    named = click.get_current_context().params.items()
    words = [w for name, v in named if name not in _OUTPUT for w in (v if isinstance(v, tuple) else (v,))]
    if output.exists() and any(_same(path, output) for word in words for path in _files(word)):
        raise BadInput("the output is one of the inputs", where=str(output), fix="choose another file with -o")
    if output.is_dir():
        raise BadInput("the output is a folder", where=str(output), expected="a file", fix="name a file with -o")
    try:
        check_replaceable(resolve_named(output))
    except OSError as error:
        raise write_error(output, error) from error


def _same(path: Path, output: Path) -> bool:
    try:
        return path.samefile(output)
    except (OSError, ValueError):  # it is not there, or no path
        return False


def _files(word: object) -> list[Path]:
    """Return the files that a command-line argument may refer to: a path, a diff operand, or a target's address."""
    if isinstance(word, Path):
        found = [word]
    elif isinstance(word, str):
        whole = re.sub("^hf:", "", word)
        found = [Path(part) for part in (word, whole, *(whole.partition(mark)[0] for mark in ",@:"))]
    else:
        return []
    return [file for path in found for file in (path, *(path / name for name in _READ))]


def has_flag(name: str) -> bool:
    """Return whether a global flag, ``quiet`` or ``verbose``, is set."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(f"costproof.{name}"))


def print_note(text: str) -> None:
    """Print a line on stderr, except with ``-q``."""
    if not has_flag("quiet"):
        click.echo(visible(text), err=True)


def note_written(path: Path) -> None:
    """Print the path of a written file on stderr."""
    print_note(f"Wrote {path}")


def two_columns(pairs: Iterable[tuple[str, str]], width: int | None) -> str:
    """Format (name, meaning) pairs as two columns of text."""
    return fill_lines(align_table(None, list(pairs), width=width, prose=True), width)


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def terminal_width(output: Path | None = None) -> int | None:
    """Return the columns of the terminal; ``None`` if the output goes elsewhere."""
    if (output is not None and str(output) != "-") or not is_terminal():
        return None
    return max(get_terminal_size().columns, _NARROWEST)


def print_lines(*lines: str) -> None:
    """Print lines of a report on stdout, wrapped to the terminal's width."""
    emit(fill_lines(lines, terminal_width()), None)


def check_no_picture(folder: Path | None) -> None:
    """Check that ``-o`` names a folder, not a picture file such as ``graph.svg``.

    Raises:
        BadInput: it is.
    """
    if folder is not None and folder.suffix.removeprefix(".") in PICTURES and not folder.is_dir():
        fix = f"-o {folder.parent} -f {folder.suffix.removeprefix('.')}"
        raise BadInput("this option takes a folder", where="-o", expected="DIR", got=str(folder), fix=fix)


def shown_on_terminal(*asked: object) -> bool:
    """Return whether the output goes to a terminal because neither a format nor a file was requested."""
    return all(a is None for a in asked) and is_terminal()


def print_table(about: str, found: object) -> None:
    """Print a result with the report module ``about``, in the width and colours of stdout."""
    from rich.console import Console

    from costproof.reports.text import TerminalPrinter

    document = import_module(f"costproof.reports.{about}").document
    TerminalPrinter(Console(highlight=False, emoji=False)).document(document(found, "text"))


def print_summary(found: Report) -> None:
    """Print the summary table, as wide and colorful as stdout allows."""
    if not is_terminal():
        emit(found.render("summary"), None)
        return
    from rich.console import Console

    typeset(Console(highlight=False, emoji=False), found)


def error_text(error: CostproofError) -> str:
    """Return the text of an error with its fields; several problems as a list."""
    if not isinstance(error, Problems):
        return "error: " + "\n".join(_block(error))
    count = len(error.problems)
    lines = [f"error: {visible(error.what)} ({plural(count, 'problem')})"]
    for problem in error.problems:
        first, *rest = _block(problem)
        lines += [f"- {first}", *("  " + line for line in rest)]
    return "\n".join([*lines, *_fields(("fix", error.fix))])


def _block(error: CostproofError) -> list[str]:
    if isinstance(error, Problems) or "\n" in error.what:
        # An error that came as text from another process.
        return [visible(line) for line in str(error).split("\n")]
    fields = _fields(("where", error.where), ("expected", error.expected), ("got", error.got), ("fix", error.fix))
    return [visible(error.what), *fields]


def _fields(*pairs: tuple[str, str | None]) -> list[str]:
    return [f"  {label + ':':<10}{visible(value)}" for label, value in pairs if value is not None]
