"""Progress on stderr: a live bar in an interactive terminal, one line per phase elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Progress = Callable[[str, int, int], None]

TITLES = {
    "load": "loading the target",
    "analytic": "evaluating the formulas",
    "static": "exporting the graphs",
    "dynamic": "tracing the run",
    "isolated": "tracing every stage alone",
    "identities": "comparing expressions",
    "sides": "enumerating sides",
    "pages": "enumerating pages",
    "draws": "drawing configurations",
    "counters": "running other counters",
    "compare": "comparing the sources",
    "write": "writing the reports",
}


def interactive() -> bool:
    """Whether a live bar would be seen by a person and by nobody else."""
    return sys.stderr.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


@contextmanager
def progress(mode: str) -> Iterator[Progress]:
    """The callback for a mode: ``auto``, ``always`` (in CI too) or ``never``."""
    if mode == "never":
        yield lambda phase, done, total: None
    elif interactive() or (mode == "always" and sys.stderr.isatty()):
        with _live() as callback:
            yield callback
    else:
        yield _lines()


def _lines() -> Progress:
    seen: set[str] = set()

    def say(phase: str, done: int, total: int) -> None:
        if phase not in seen:
            seen.add(phase)
            click.echo(f"{phase}: {TITLES.get(phase, phase)}", err=True)

    return say


@contextmanager
def _live() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description:<24}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, object] = {}

        def say(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(TITLES.get(phase, phase), total=total)
            bars.update(tasks[phase], completed=done, total=total)  # type: ignore[arg-type]

        yield say
