"""``costproof doctor``: versions, extras, plug-ins, and what can be used here."""

from __future__ import annotations

import click

from costproof import api
from costproof.cli.output import screen, tell
from costproof.reports.screen import aligned


@click.command()
def doctor() -> int:
    """Show versions, extras, plug-ins, and what can be used here.

    Nothing heavy is imported: versions come from package metadata. A plug-in of another distribution is loaded in a
    process of its own. Exit code 3 if a package that the core needs is missing, or one is too old.

    Patches are attributes of other packages that are replaced only while a model is exported or traced.
    """
    found = api.doctor()
    width = screen()
    lines = aligned(None, found.packages, 2, width, prose=True)
    for group in (found.sources, found.others):
        lines += ["", *aligned(None, [(f"{name}:", said) for name, said in group.items()], width=width, prose=True)]
    extras = []
    for extra in found.extras:
        extras.append((f"  {extra.name}", ", ".join(f"{n} {v or 'missing'}" for n, v in extra.packages.items())))
        extras += [("", f"to add: {extra.add}")] if extra.add else []
    lines += ["", "extras:", *aligned(None, extras, width=width, prose=True)] if extras else []
    lines += ["", "plug-ins:" + ("" if found.plugins else " none")]
    for plugin in found.plugins:
        state = f"cannot be loaded: {plugin.problem}" if plugin.problem else "loads"
        lines.append(f"  {plugin.group}: {plugin.name} = {plugin.place} ({plugin.owner}): {state}")
    patches = [(f"  {package}", ", ".join(names)) for package, names in found.patches.items()]
    lines += ["", "patches while a model is traced:", *aligned(None, patches, width=width, prose=True)]
    tell(*lines)
    return found.exit_code
