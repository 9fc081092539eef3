"""``costproof targets``: the models that can be counted."""

from __future__ import annotations

import click

from costproof import api
from costproof.cli.output import emit, rows, screen


@click.command()
def targets() -> int:
    """List the models that can be counted."""
    known = sorted(api.targets().items())
    meant = [(n, t.what + ("" if t.owner == "costproof" else f" (from {t.owner})")) for n, t in known]
    emit(rows(meant, screen()), None)
    return 0
