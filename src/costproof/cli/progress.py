"""Show progress on stderr: a live bar in an interactive terminal, otherwise a line per phase."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Final

import click

from costproof.cli.output import has_flag
from costproof.ledger.progress import Progress, silent
from costproof.ledger.run import SOURCES

if TYPE_CHECKING:
    from rich.progress import TaskID

EVERY: Final = 30.0
"""Seconds between lines about a long phase, if there is no live bar."""

TITLES = {
    "load": "loading the target",
    "whole model": "counting more layers, for the whole model",
    "all layers": "running all layers as shapes",
    **{source.name: source.doing for source in SOURCES},
    "headers": "reading the headers of the checkpoint",
    "identities": "comparing expressions",
    "sizes": "enumerating sizes",
    "workloads": "enumerating workloads",
    "draws": "drawing configurations",
    "runs": "running every decode step",
    "counters": "running third-party counters",
    "compare": "comparing the sources",
    "peaks": "following what is alive",
    "rows": "comparing batches of rows",
    "machine": "measuring the machine",
    "points": "evaluating the points",
    "validate": "counting points statically",
    "write": "writing the reports",
}


def interactive() -> bool:
    """Return whether stderr is an interactive terminal outside CI."""
    return sys.stderr.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


@contextmanager
def show_progress(mode: str) -> Iterator[Progress]:
    """Yield the progress callback of a mode: ``auto``, ``always`` (also in CI) or ``never``.

    ``-q`` overrides the mode with ``never``; ``-v`` prints every step.
    """
    if mode == "never" or has_flag("quiet"):
        yield silent
    elif has_flag("verbose"):
        yield _lines(every=True)
    elif interactive() or (mode == "always" and sys.stderr.isatty()):
        with _bars() as callback:
            yield callback
    else:
        yield _lines()


def _lines(*, every: bool = False) -> Progress:
    """Return a callback that prints a line per phase, and per step for long phases or if ``every`` is set."""
    began: dict[str, float] = {}
    said: dict[str, float] = {}

    def say(phase: str, done: int, total: int) -> None:
        now = monotonic()
        if phase not in began:
            began[phase] = said[phase] = now
            many = f" ({done} of {total})" if total > 1 else ""
            click.echo(f"{phase}: {TITLES.get(phase, phase)}{many}", err=True)
            if not every:
                return
        if every or (0 < done < total and now - said[phase] >= EVERY):
            said[phase] = now
            click.echo(f"{phase}: {done} of {total}{_time_left(done, total, now - began[phase])}", err=True)

    return say


def _time_left(done: int, total: int, seconds: float) -> str:
    """Return an estimate of the remaining time, if there is enough data."""
    if not 0 < done < total or seconds < 1:
        return ""
    left = round(seconds * (total - done) / done)
    return f", about {left // 60}:{left % 60:02} left"


@contextmanager
def _bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def say(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(TITLES.get(phase, phase), total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield say
