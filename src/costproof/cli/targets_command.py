"""``costproof targets``: the models that can be counted."""

from __future__ import annotations

import click

from costproof import api
from costproof.cli.output import emit, rows


@click.command()
def targets() -> int:
    """List the models that can be counted."""
    known = sorted(api.targets().items())
    emit(rows((n, t.what + ("" if t.owner == "costproof" else f" (from {t.owner})")) for n, t in known), None)
    return 0
