"""``costproof doctor``: versions, extras, plug-ins, and what can be used here."""

from __future__ import annotations

import click

from costproof import api
from costproof.reports.escape import visible


@click.command()
def doctor() -> int:
    """Show versions, extras, plug-ins, and what can be used here.

    Nothing heavy is imported: versions come from package metadata. A plug-in of another distribution is loaded in a
    process of its own. Exit code 3 if a package that the core needs is missing, or one is too old.
    """
    found = api.doctor()
    for package, version, use in found.packages:
        click.echo(f"{package:<14}{version:<16}{use}".rstrip())
    for group in (found.sources, found.others):
        click.echo("")
        for name, said in group.items():
            click.echo(visible(f"{name + ':':<10}{said}"))
    if found.extras:
        click.echo("\nextras:")
    for extra in found.extras:
        click.echo(f"  {extra.name:<10}" + ", ".join(f"{n} {v or 'missing'}" for n, v in extra.packages.items()))
        if extra.add:
            click.echo(f"  {'':<10}to add: {extra.add}")
    click.echo("\nplug-ins:" + ("" if found.plugins else " none"))
    for plugin in found.plugins:
        state = f"cannot be loaded: {plugin.problem}" if plugin.problem else "loads"
        click.echo(visible(f"  {plugin.group}: {plugin.name} = {plugin.place} ({plugin.owner}): {state}"))
    return found.exit_code
