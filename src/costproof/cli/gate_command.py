"""``costproof gate``: whether a change may pass, by a policy."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import click

from costproof import api
from costproof.cli.kinds import FILE, SIDE, Choice
from costproof.cli.options import options
from costproof.cli.output import check_apart, emit, screen
from costproof.ledger.errors import BadInput
from costproof.reports.outputs import variant, variants


@click.command()
@click.argument("base", type=SIDE)
@click.argument("head", type=SIDE)
@click.option("--policy", type=FILE, required=True, metavar="FILE", help="The limits, as YAML; see docs/gate.md.")
@click.option("--config", type=FILE, metavar="FILE", help="Configuration of HEAD, where it is a target.")
@click.option("--base-config", type=FILE, metavar="FILE", help="Configuration of BASE, where it is a target.")
@click.option("--today", metavar="YYYY-MM-DD", help="The day on which allowances must still count.")
@click.option(
    "-f", "--format", "kind", type=Choice(*variants("gate")), default="text", show_default=True,
    help="What is printed.",
)  # fmt: skip
@click.option(
    "-o", "--output", "outputs", multiple=True, type=FILE, metavar="FILE",
    help="Write there too, in the format of its ending (.md, .json, .xml, .sarif); may be given several times.",
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
    """Hold HEAD against BASE and a policy: may this change pass?

    A side is what costproof diff takes: a committed baseline, one in git (main:baselines/model.json), a capture, or a
    target with settings. Decides without torch.

    Exit code 0 if all limits hold, 1 if one does not, 3 if a number that one is about is not known, or there is no
    baseline.
    """
    try:
        day = None if today is None else date.fromisoformat(today)
    except ValueError:
        raise BadInput("this is not a day", where="--today", expected="YYYY-MM-DD", got=str(today)[:40]) from None
    inputs = [p for p in (Path(base), Path(head)) if p.exists()]
    written = {path: variant("gate", None, path) for path in outputs}
    for path in outputs:
        check_apart(path, inputs)
    found = api.gate(base, head, policy=policy, config=config, base_config=base_config, today=day, **trust)
    for path, how in written.items():
        emit(how.text(found), path)
    emit(variant("gate", kind).text(found, screen()), None)
    return found.exit_code
