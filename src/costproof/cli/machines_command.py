"""``costproof machines``: the devices that are known."""

from __future__ import annotations

import click

from costproof import api
from costproof.cli.output import emit, screen
from costproof.reports.device_text import devices_text


@click.command()
def machines() -> int:
    """List the devices whose roofs are known. Names are exact; costproof machine NAME has the sources."""
    emit(devices_text((api.machine(name) for name in api.machines()), screen()), None)
    return 0
