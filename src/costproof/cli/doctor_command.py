"""``costproof doctor``: versions, and what can be used here."""

from __future__ import annotations

import click

from costproof import api


@click.command()
def doctor() -> int:
    """Show versions and what can be used here.

    Nothing heavy is imported: versions come from package metadata. Exit code 3 if a package that the core needs is
    missing, or one is too old.
    """
    found = api.doctor()
    for package, version, use in found.packages:
        click.echo(f"{package:<14}{version:<16}{use}".rstrip())
    for group in (found.sources, found.others):
        click.echo("")
        for name, said in group.items():
            click.echo(f"{name + ':':<10}{said}")
    for extra, command in found.advice.items():
        click.echo(f"\nto add [{extra}]:\n  {command}")
    return found.exit_code
