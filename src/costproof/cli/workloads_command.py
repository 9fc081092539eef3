"""``costproof workloads``: the named workloads."""

from __future__ import annotations

from typing import Final

import click

from costproof import api
from costproof.cli.kinds import TARGET
from costproof.cli.output import screen, tell
from costproof.foreign import skip
from costproof.ledger.errors import BadInput
from costproof.reports.screen import aligned

_INDENT: Final = 2


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
        kinds = list(dict.fromkeys(k for w in known for k in w.tokens))
        table = [
            (w.name, *(str(w.tokens.get(k, 0)) for k in kinds), w.what + (" (the default)" if w.default else ""))
            for w in known
        ]
        changed = ", ".join("--" + s.name.replace("_", "-") for s in settings)
        width = None if (columns := screen()) is None else columns - _INDENT
        lines = aligned(("name", *kinds, "meaning"), table, width=width, prose=True)
        lines.append(f"Every setting can be changed: {changed}")
        tell(f"{name}, tokens:", *(" " * _INDENT + line for line in lines))
    return 0
