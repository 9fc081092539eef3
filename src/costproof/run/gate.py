"""Implement ``costproof.gate``: judge the difference of two operands by a policy."""

from __future__ import annotations

import os
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costproof.compare.gate.judge import judge
from costproof.compare.gate.policy import read_policy
from costproof.compare.gate.types import Gate
from costproof.ledger.baseline import Baseline
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.progress import Progress, silent
from costproof.run.operand_files import OperandInput, baseline_at, check_cut_alike, has_parts, of_stages

if TYPE_CHECKING:
    from costproof.opgraph.rules.files import Files


def gate(
    base: OperandInput,
    head: OperandInput,
    *,
    policy: str | os.PathLike[str],
    config: str | os.PathLike[str] | None = None,
    base_config: str | os.PathLike[str] | None = None,
    today: date | None = None,
    rules: Files = (),
    trust_remote_code: bool = False,
    progress: Progress = silent,
) -> Gate:
    """Judge whether a change may pass; torch is not needed.

    Args:
        base: what to compare with, usually a committed baseline; as for :func:`costproof.diff`.
        head: what changed; likewise.
        policy: the file with the limits.
        config: configuration file of the head, if that is a target.
        base_config: likewise, of the base.
        today: decides which allowances of the policy are still valid (default: the current day).
        rules: Python files with operator rules, which are executed, if a graph is counted.
        trust_remote_code: whether the code of a snapshot that is a target may run.
        progress: is told how far exports of targets without formulas are.

    Raises:
        BadInput: an operand or the policy is invalid.
        Incomplete: there is no baseline.
    """
    limits = read_policy(Path(policy))
    if rules != () or trust_remote_code:
        from costproof.run.operands import check_counted

        check_counted(rules, trust_remote_code, base, head)
    read = partial(_side, rules=rules, trust_remote_code=trust_remote_code, progress=progress)
    try:
        old = read(base, base_config)
    except BadInput as error:
        if isinstance(base, Capture | Baseline) or Path(base).exists() or not _names_a_file(base):
            raise
        raise Incomplete(
            "there is no baseline to compare with",
            where=os.fspath(base),
            got=error.line,
            fix="costproof capture TARGET --sources analytic -f baseline -o FILE writes one; commit it",
        ) from error
    new = read(head, config)
    check_cut_alike(old, new)
    if has_parts(old) != has_parts(new):
        old, new = of_stages(old), of_stages(new)
    return judge(old, new, limits, today or date.today())


def _names_a_file(given: str | os.PathLike[str]) -> bool:
    """Return whether an operand can only be a file, since no target has such a name."""
    return Path(given).suffix == ".json" and not os.fspath(given).startswith("hf:")


def _side(given: OperandInput, config: str | os.PathLike[str] | None, **choices: Any) -> Baseline:
    if isinstance(given, Capture | Baseline) or config is not None or not _names_a_file(given):
        from costproof.run.operands import read_operand  # loads the targets, which takes longer than to decide

        return read_operand(given, config, **choices).baseline
    return baseline_at(os.fspath(given))
