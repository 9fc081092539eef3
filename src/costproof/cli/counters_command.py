"""``costproof counters``: other people's counters beside the truth, each difference explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costproof.cli.options import FILE, Whole, format_option, listed, remote_code_option, workload_options


@click.command()
@click.argument("target")
@click.option("--stage", "stages", multiple=True, metavar="NAME", help="Only this stage; may be given several times.")
@click.option(
    "--add",
    "own",
    multiple=True,
    metavar="NUMBER|CSV",
    help="A number of your own, such as mine@sam=571.92G or mine@sam:crops=571.92GMAC, or a CSV of them.",
)
@click.option("--only", metavar="LIST", help="Only these counters, separated by commas.")
@click.option("--timeout", type=Whole(), default=240, show_default=True, metavar="SECONDS", help="For each counter.")
@click.option("--memory", type=Whole(), default=4, show_default=True, metavar="GIB", help="For each counter.")
@format_option("counters")
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write there instead of stdout.")
@workload_options
@remote_code_option
def counters(
    target: str,
    stages: tuple[str, ...],
    own: tuple[str, ...],
    only: str | None,
    timeout: int,
    memory: int,
    kind: str | None,
    output: Path | None,
    config: Path | None,
    **settings: Any,
) -> int:
    """Run other people's FLOP counters on TARGET and explain why each differs from the truth.

    The truth is our own count of the same forward, compared with the closed formulas. A counter that is not installed
    or crashes is a row with its error. A number of your own is a row with its causes, as costproof check finds them;
    a CSV has the columns name, stage, value and, if you like, unit (flop or mac) and invocation.

    Exit code 1 if a difference stays unexplained, 3 if a counter failed.
    """
    from costproof.cli.output import emit
    from costproof.reports.outputs import variant
    from costproof.run.counters import count_with_counters, exit_code

    found = count_with_counters(
        target,
        config=config,
        stages=stages,
        only=listed(only) if only is not None else None,
        own=own,
        seconds=timeout,
        memory_gib=memory,
        progress=lambda name, done, total: click.echo(f"counted with {name} ({done} of {total})", err=True),
        **settings,
    )
    emit(
        variant("counters", kind, output).text(found), output, inputs=(config, *(Path(o) for o in own if "=" not in o))
    )
    return exit_code(found)
