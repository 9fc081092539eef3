"""Define ``costproof gate``, which checks a change against the limits of a policy."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import click

from costproof import api
from costproof.cli.options import options
from costproof.cli.output import check_apart, emit, terminal_width
from costproof.cli.params import FILE, OPERAND, ChoiceParam
from costproof.ledger.errors import BadInput
from costproof.reports.outputs import variant, variants


@click.command()
@click.argument("base", type=OPERAND)
@click.argument("head", type=OPERAND)
@click.option("--policy", type=FILE, required=True, metavar="FILE", help="Limits as YAML; see docs/gate.md.")
@options("head-config", "base-config")
@click.option("--today", metavar="YYYY-MM-DD", help="Date on which allowances must not have expired.  [default: today]")
@click.option(
    "-f", "--format", "kind", type=ChoiceParam(*variants("gate")), default="text", show_default=True,
    help="Output format.",
)  # fmt: skip
@click.option(
    "-o", "--output", "outputs", multiple=True, type=FILE, metavar="FILE",
    help="Also write to FILE, in the format of its suffix (.md, .json, .xml, .sarif); may be repeated.",
)  # fmt: skip
@options("trust-remote-code", "rules")
def gate(
    base: str,
    head: str,
    policy: Path,
    config: Path | None,
    base_config: Path | None,
    today: str | None,
    kind: str,
    outputs: tuple[Path, ...],
    **trust: Any,
) -> int:
    """Check the change from BASE to HEAD against the limits of a policy.

    BASE and HEAD are operands as in costproof diff: a committed baseline, one in git (main:baselines/model.json), a
    capture, or a target with settings. Needs no torch.

    Exit code 0 if all limits hold, 1 if one does not, 3 if a number in a limit is unknown or there is no baseline.
    """
    try:
        day = None if today is None else date.fromisoformat(today)
    except ValueError:
        raise BadInput("this is not a date", where="--today", expected="YYYY-MM-DD", got=str(today)[:40]) from None
    inputs = [p for p in (Path(base), Path(head)) if p.exists()]
    written = {path: variant("gate", None, path) for path in outputs}
    for path in outputs:
        check_apart(path, inputs)
    found = api.gate(base, head, policy=policy, config=config, base_config=base_config, today=day, **trust)
    for path, how in written.items():
        emit(how.text(found), path)
    emit(variant("gate", kind).text(found, terminal_width()), None)
    return found.exit_code
