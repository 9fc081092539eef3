"""``costproof workloads``: the named workloads."""

from __future__ import annotations

import click

from costproof import api
from costproof.cli.kinds import TARGET
from costproof.foreign import skip
from costproof.ledger.errors import BadInput


@click.command()
@click.argument("target", required=False, type=TARGET)
def workloads(target: str | None) -> int:
    """List the named workloads of TARGET, or of all families, with the tokens that they make."""
    for name in [target] if target is not None else sorted(api.families()):
        try:
            known, settings = api.workloads(name), api.settings(name)
        except BadInput as error:
            if target is not None:
                raise
            skip(error)  # of a plug-in: the others are listed
            continue
        width = max((len(w.name) for w in known), default=0)
        kinds = list(dict.fromkeys(k for w in known for k in w.tokens))
        click.echo(f"{name}, tokens:")
        click.echo(f"  {'name':<{width}}" + "".join(f"  {k:>6}" for k in kinds) + "  meaning")
        for w in known:
            tokens = "".join(f"  {w.tokens.get(k, 0):>6}" for k in kinds)
            click.echo(f"  {w.name:<{width}}{tokens}  {w.what}" + (" (the default)" if w.default else ""))
        changed = ", ".join("--" + s.name.replace("_", "-") for s in settings)
        click.echo(f"  Every setting can be changed: {changed}")
    return 0
