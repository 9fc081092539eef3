"""Define ``costproof diff``, which attributes a difference in cost to changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costproof import api
from costproof.cli.options import format_option, options
from costproof.cli.output import emit, shown_on_terminal, terminal_width
from costproof.cli.params import OPERAND
from costproof.reports.outputs import variant


@click.command()
@click.argument("base", type=OPERAND)
@click.argument("head", type=OPERAND)
@options("head-config", "base-config")
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
    """Compare BASE with HEAD, and attribute each difference in cost to a change.

    BASE and HEAD are each a capture, the folder of a report, a static_compute.json, a baseline, one of these in git
    (main:baselines/deepseek-ocr.json), or a target with workload settings and configuration keys: deepseek-ocr,
    deepseek-ocr@gundam:2x2, deepseek-ocr@base,batch=4,text.topk=8. Targets are counted by their formulas. If one has no
    formulas (hf:opt, model.py:make, package.module:make), both are counted by their exported graphs, which needs torch.

    The exit code is 0 whether or not anything changed, and 3 if part of the cost cannot be compared.
    """
    how = None if shown_on_terminal(kind, output) else variant("diff", kind, output)
    found = api.diff(base, head, config=config, base_config=base_config, **trust)
    if how is None:
        from rich.console import Console

        from costproof.reports.diff import document
        from costproof.reports.text import TerminalPrinter

        TerminalPrinter(Console(highlight=False, emoji=False)).document(document(found, "text"))
    else:
        files = [p for p in (Path(base), Path(head)) if p.exists()]
        emit(how.text(found, terminal_width(output)), output, inputs=files)
    return found.exit_code
