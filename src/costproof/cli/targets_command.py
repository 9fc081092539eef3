"""``costproof targets``: the models that can be counted."""

from __future__ import annotations

import click


@click.command()
def targets() -> int:
    """List the models that can be counted."""
    from costproof import api
    from costproof.ledger.errors import EXIT_OK

    known = api.targets()
    width = max(map(len, known), default=0)
    for name, item in sorted(known.items()):
        owner = "" if item.owner == "costproof" else f" (from {item.owner})"
        click.echo(f"{name:<{width}}  {item.what}{owner}")
    return EXIT_OK
