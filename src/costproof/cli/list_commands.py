"""Define the listing commands: ``costproof targets``, ``workloads``, ``ops``, ``schema`` and ``doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from costproof import api
from costproof.cli.options import options
from costproof.cli.output import emit, print_lines, terminal_width, two_columns
from costproof.cli.params import FILE, TARGET, NameParam
from costproof.foreign import skip
from costproof.ledger.errors import EXIT_INCOMPLETE, EXIT_OK, BadInput
from costproof.ledger.files import json_text
from costproof.ledger.plural import plural
from costproof.reports.listing import coverage_text
from costproof.reports.screen import align_table


@click.command()
def targets() -> int:
    """List the models that can be counted."""
    known = sorted(api.targets().items())
    meant = [(n, t.what + ("" if t.owner == "costproof" else f" (from {t.owner})")) for n, t in known]
    emit(two_columns(meant, terminal_width()), None)
    return 0


_INDENT: Final = 2


@click.command()
@click.argument("target", required=False, type=TARGET)
def workloads(target: str | None) -> int:
    """List the named workloads of TARGET, or of all families, with their numbers of tokens."""
    for name in [target] if target is not None else sorted(api.families()):
        try:
            known, settings = api.workloads(name), api.settings(name)
        except BadInput as error:
            if target is not None:
                raise
            skip(error)  # of a plug-in: the others are listed
            continue
        kinds = list(dict.fromkeys(k for w in known for k in w.tokens))
        table = [
            (w.name, *(str(w.tokens.get(k, 0)) for k in kinds), w.what + (" (the default)" if w.default else ""))
            for w in known
        ]
        changed = ", ".join("--" + s.name.replace("_", "-") for s in settings)
        width = None if (columns := terminal_width()) is None else columns - _INDENT
        lines = align_table(("name", *kinds, "meaning"), table, width=width, prose=True)
        lines.append(f"Every setting can be changed: {changed}")
        print_lines(f"{name}, tokens:", *(" " * _INDENT + line for line in lines))
    return 0


@click.command()
@click.option("--filter", "glob", default="*", metavar="GLOB", help="Only operators that match, such as '*attention*'.")
@click.option(
    "--capture", type=FILE, metavar="FILE", help="Show the operators of this capture, and those without a cost rule."
)
def ops(glob: str, capture: Path | None) -> int:
    """List the operator rules; with --capture, the operators of a run.

    Exit code 3 if the capture has an operator without a cost rule.
    """
    if capture is None:
        known = api.ops(glob)
        named = [(r.operator, f"{r.summary} ({_origin(r.owner)})") for r in known]
        emit(two_columns(named, terminal_width()) + f"{plural(len(known), 'operator')}\n", None)
        return EXIT_OK
    made = api.read(capture)
    emit(coverage_text(made, glob, terminal_width()), None)
    return EXIT_INCOMPLETE if any(x.unknown_ops for x in made.ledgers) else EXIT_OK


def _origin(owner: str) -> str:
    """Return the file of a rule of costproof, or the full name of another rule."""
    room, *names = owner.removeprefix("costproof.opgraph.").split(".")
    return f"{room}/{names[0]}.py" if owner.startswith("costproof.") else f"from {owner}"


@click.command(
    help="Print the JSON Schema of the file kind NAME, or list the kinds.\n\nKinds: "
    + ", ".join(api.schema_names())
    + "."
)
@click.argument("name", required=False, type=NameParam(lambda target: api.schema_names()))
@options("output")
def schema(name: str | None, output: Path | None) -> int:
    if name is None:
        emit(two_columns(api.schemas().items(), terminal_width(output)), output)
    else:
        emit(json_text(api.schema(name)), output)
    return 0


@click.command()
def doctor() -> int:
    """Show versions, extras, plug-ins and available sources.

    Nothing heavy is imported: versions come from package metadata. Plug-ins of other distributions are loaded in
    separate processes. Exit code 3 if a package that the core needs is missing or too old.

    Patches are attributes of other packages that are replaced only while a model is exported or traced.
    """
    found = api.doctor()
    width = terminal_width()
    lines = align_table(None, found.packages, 2, width, prose=True)
    for group in (found.sources, found.others):
        lines += ["", *align_table(None, [(f"{name}:", said) for name, said in group.items()], width=width, prose=True)]
    extras = []
    for extra in found.extras:
        extras.append((f"  {extra.name}", ", ".join(f"{n} {v or 'missing'}" for n, v in extra.packages.items())))
        extras += [("", f"to add: {extra.add}")] if extra.add else []
    lines += ["", "extras:", *align_table(None, extras, width=width, prose=True)] if extras else []
    lines += ["", "plug-ins:" + ("" if found.plugins else " none")]
    for plugin in found.plugins:
        state = f"cannot be loaded: {plugin.problem}" if plugin.problem else "loads"
        lines.append(f"  {plugin.group}: {plugin.name} = {plugin.place} ({plugin.owner}): {state}")
    patches = [(f"  {package}", ", ".join(names)) for package, names in found.patches.items()]
    lines += ["", "patches while a model is traced:", *align_table(None, patches, width=width, prose=True)]
    print_lines(*lines)
    return found.exit_code
