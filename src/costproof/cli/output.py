"""Where a command's text goes: stdout, or a file that it names on stderr."""

from __future__ import annotations

from pathlib import Path

import click

from costproof.ledger.errors import BadInput


def emit(text: str, output: Path | None, *, inputs: tuple[Path | None, ...] = ()) -> None:
    """Write to stdout (``output`` is ``None`` or ``-``) or to a file.

    Args:
        inputs: files that the command reads, and must not overwrite.

    Raises:
        BadInput: the file is one of the inputs, or cannot be written.
    """
    if output is None or str(output) == "-":
        # Binary, so that the bytes are the same on every platform and under every locale.
        click.echo(text.encode("utf-8"), nl=False)
        return
    check_apart(output, inputs)
    from costproof.reports.folder import write_texts

    write_texts({output: text})
    wrote(output)


def check_apart(output: Path, inputs: tuple[Path | None, ...]) -> None:
    """Raise :class:`BadInput` if the output is one of the inputs."""
    if any(given is not None and given.exists() and output.exists() and given.samefile(output) for given in inputs):
        raise BadInput("the output is one of the inputs", where=str(output), fix="choose another file with -o")
    if output.is_dir():
        raise BadInput("the output is a folder", where=str(output), expected="a file", fix="name a file with -o")


def wrote(path: Path) -> None:
    """Say which file there is now."""
    from costproof.reports.escape import visible

    click.echo(f"Wrote {visible(str(path))}", err=True)
