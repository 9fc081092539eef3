"""``costproof doctor``: versions, and what can be used here."""

from __future__ import annotations

import click

NEEDED_FOR = {
    "sympy": "formulas",
    "pydantic": "reading and writing files",
    "rich": "tables and progress",
    "pandas": "DataFrames",
    "torch": "static and dynamic sources",
    "transformers": "static and dynamic sources",
    "torchlens": "dynamic source",
    "pillow": "--image",
}
EXTRA = {"torch": "trace", "transformers": "trace", "torchlens": "trace", "pillow": "image"}
"""What the core runs without, and the extra that brings it."""
OLDEST = {"torch": (2, 6), "transformers": (4, 46, 3), "torchlens": (2, 36)}


@click.command()
def doctor() -> int:
    """Show versions and what can be used here.

    Nothing heavy is imported: versions come from package metadata. Exit code 3 if a package that the core needs is
    missing, or one is too old.
    """
    import platform

    from costproof.cli.machine import counters_line, cuda_line, flash_line
    from costproof.ledger.environment import VERSION, installed
    from costproof.ledger.errors import EXIT_INCOMPLETE, EXIT_OK
    from costproof.ledger.extras import advice
    from costproof.tracers.counters.registry import lacking as lacking_counters

    click.echo(f"{'costproof':<14}{VERSION:<16}")
    click.echo(f"{'python':<14}{platform.python_version():<16}")
    broken = False
    wanted = {"counters"} if set(lacking_counters().values()) - set(NEEDED_FOR) else set()
    for package, use in NEEDED_FOR.items():
        version = installed(package)
        oldest = OLDEST.get(package)
        old = version is not None and oldest is not None and _numbers(version) < oldest
        said = "missing" if version is None else version
        note = f", needs {'.'.join(map(str, oldest))} or newer" if old and oldest else ""
        broken |= old or (version is None and package not in EXTRA)
        wanted |= {EXTRA[package]} if version is None and package in EXTRA else set()
        click.echo(f"{package:<14}{said:<16}{use}{note}")
    lacking = [p for p in ("torch", "transformers", "torchlens") if installed(p) is None]
    graphs = [p for p in lacking if p != "torchlens"]
    click.echo("")
    click.echo(f"analytic: {'ready' if installed('sympy') else 'missing sympy'}")
    click.echo(f"static:   {'missing ' + ', '.join(graphs) if graphs else 'ready'}")
    click.echo(f"dynamic:  {'missing ' + ', '.join(lacking) if lacking else 'ready'}")
    click.echo("")
    click.echo(f"flash:    {flash_line()}")
    click.echo(f"cuda:     {cuda_line()}")
    click.echo(f"counters: {counters_line()}")
    for extra in sorted(wanted, key=("trace", "counters", "image").index):
        click.echo(f"\nto add [{extra}]:\n  {advice(extra)}")
    return EXIT_INCOMPLETE if broken else EXIT_OK


def _numbers(version: str) -> tuple[int, ...]:
    import re

    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[:3])
