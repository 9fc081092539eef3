"""``costproof diff``: what a change does to the cost, and which part of the change does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costproof import api
from costproof.cli.kinds import FILE, SIDE
from costproof.cli.options import format_option, options
from costproof.cli.output import emit, on_screen, screen
from costproof.reports.outputs import variant


@click.command()
@click.argument("base", type=SIDE)
@click.argument("head", type=SIDE)
@click.option("--config", type=FILE, metavar="FILE", help="Configuration of HEAD, where it is a target.")
@click.option("--base-config", type=FILE, metavar="FILE", help="Configuration of BASE, where it is a target.")
@format_option("diff", table=True)
@options("output", "trust-remote-code", "rules")
def diff(
    base: str,
    head: str,
    config: Path | None,
    base_config: Path | None,
    kind: str | None,
    output: Path | None,
    **trust: Any,
) -> int:
    """Compare BASE with HEAD: what changed, and what each change does to the cost.

    A side is a capture, the folder of a report, a static_compute.json, a baseline, one of these in git
    (main:baselines/deepseek-ocr.json), or a target with settings of the workload and keys of the configuration:
    deepseek-ocr, deepseek-ocr@gundam:2x2, deepseek-ocr@base,batch=4,text.topk=8. Targets are counted by their
    formulas; where one side has none (hf:opt, model.py:make, package.module:make), both by their exported graphs,
    which needs torch.

    The exit code is 0 whether anything changed or not, and 3 where not all of the cost can be compared.
    """
    how = None if on_screen(kind, output) else variant("diff", kind, output)
    found = api.diff(base, head, config=config, base_config=base_config, **trust)
    if how is None:
        from rich.console import Console

        from costproof.reports.diff import document
        from costproof.reports.text import TerminalPrinter

        TerminalPrinter(Console(highlight=False, emoji=False)).document(document(found, "text"))
    else:
        files = [p for p in (Path(base), Path(head)) if p.exists()]
        emit(how.text(found, screen(output)), output, inputs=files)
    return found.exit_code
