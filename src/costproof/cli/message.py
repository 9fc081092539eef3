"""Errors as text for a terminal: one block, names from files made harmless."""

from __future__ import annotations

from costproof.ledger.errors import CostproofError, Problems
from costproof.ledger.plural import plural
from costproof.reports.escape import visible


def message(error: CostproofError) -> str:
    """What is wrong, where, expected, got and the way out; all problems of an input as a list."""
    if not isinstance(error, Problems):
        return "error: " + "\n".join(_block(error))
    count = len(error.problems)
    lines = [f"error: {visible(error.what)} ({plural(count, 'problem')})"]
    for problem in error.problems:
        first, *rest = _block(problem)
        lines += [f"- {first}", *("  " + line for line in rest)]
    return "\n".join([*lines, *_fields(("fix", error.fix))])


def _block(error: CostproofError) -> list[str]:
    if isinstance(error, Problems) or "\n" in error.what:
        # An error that came as text from another process.
        return [visible(line) for line in str(error).split("\n")]
    fields = _fields(("where", error.where), ("expected", error.expected), ("got", error.got), ("fix", error.fix))
    return [visible(error.what), *fields]


def _fields(*pairs: tuple[str, str | None]) -> list[str]:
    return [f"  {label + ':':<10}{visible(value)}" for label, value in pairs if value is not None]
