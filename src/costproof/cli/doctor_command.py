"""``costproof doctor``: versions, and what can be used here."""

from __future__ import annotations

import click

NEEDED_FOR = {
    "torch": "static and dynamic sources",
    "transformers": "static and dynamic sources",
    "torchlens": "dynamic source",
    "sympy": "formulas",
    "pydantic": "reading and writing files",
    "rich": "tables and progress",
    "pandas": "DataFrames",
    "pillow": "--image (optional: pip install 'costproof[image]')",
}
OPTIONAL = frozenset({"pillow"})
OLDEST = {"torch": (2, 6), "transformers": (4, 46, 3), "torchlens": (2, 0)}


@click.command()
def doctor() -> int:
    """Show versions and what can be used here.

    Nothing heavy is imported: versions come from package metadata. Exit code 3 if a source cannot run.
    """
    import platform

    from costproof.cli.machine import counters_line, cuda_line, flash_line
    from costproof.ledger.environment import VERSION, installed
    from costproof.ledger.errors import EXIT_INCOMPLETE, EXIT_OK

    click.echo(f"{'costproof':<14}{VERSION:<16}")
    click.echo(f"{'python':<14}{platform.python_version():<16}")
    broken = False
    for package, use in NEEDED_FOR.items():
        version = installed(package)
        oldest = OLDEST.get(package)
        old = version is not None and oldest is not None and _numbers(version) < oldest
        said = "missing" if version is None else version
        note = f", needs {'.'.join(map(str, oldest))} or newer" if old and oldest else ""
        broken |= package not in OPTIONAL and (version is None or old)
        click.echo(f"{package:<14}{said:<16}{use}{note}")
    graphs = all(installed(p) is not None for p in ("torch", "transformers"))
    click.echo("")
    click.echo(f"analytic: {'ready' if installed('sympy') else 'missing sympy'}")
    click.echo(f"static:   {'ready' if graphs else 'missing torch or transformers'}")
    lens = graphs and installed("torchlens") is not None
    click.echo(f"dynamic:  {'ready' if lens else 'missing torch, transformers or torchlens'}")
    click.echo("")
    click.echo(f"flash:    {flash_line()}")
    click.echo(f"cuda:     {cuda_line()}")
    click.echo(f"counters: {counters_line()}")
    if broken:
        click.echo("\npip install costproof adds what is missing", err=True)
    return EXIT_INCOMPLETE if broken else EXIT_OK


def _numbers(version: str) -> tuple[int, ...]:
    import re

    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[:3])
