"""The one hierarchy of errors: each knows its exit code, its subject and the way out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

EXIT_OK: Final = 0
EXIT_FINDINGS: Final = 1
EXIT_BAD_INPUT: Final = 2
EXIT_INCOMPLETE: Final = 3
EXIT_BUG: Final = 70


class CostproofError(Exception):
    """What went wrong, where, what was expected, what was got, and what to do.

    Args:
        what: one sentence, no trailing full stop.
        where: the subject: a path in a file (``$.vision_config.width``), an option, a module.
        expected: what would have been right.
        got: what was there.
        fix: the command or the change that mends it.
    """

    exit_code: int = EXIT_BAD_INPUT

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: object = None,
        got: object = None,
        fix: str | None = None,
    ) -> None:
        self.what = what
        self.where = where
        self.expected = None if expected is None else str(expected)
        self.got = None if got is None else str(got)
        self.fix = fix
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        for label, value in (
            ("where", self.where),
            ("expected", self.expected),
            ("got", self.got),
            ("fix", self.fix),
        ):
            if value is not None:
                lines.append(f"  {label + ':':<10}{value}")
        return "\n".join(lines)


class BadInput(CostproofError):
    """The user's input is wrong: exit 2."""


class Problems(BadInput):
    """All problems of one input at once: a person mends a file in one go, not in ten."""

    def __init__(self, what: str, problems: Sequence[CostproofError], *, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        head = f"{self.what} ({len(self.problems)} problem{'s' if len(self.problems) != 1 else ''})"
        body = "\n".join(str(p) for p in self.problems)
        tail = f"\n  fix:      {self.fix}" if self.fix else ""
        return f"{head}\n{body}{tail}"


class Incomplete(CostproofError):
    """Something could not be counted, so nothing may be claimed: exit 3."""

    exit_code = EXIT_INCOMPLETE


class Bug(CostproofError):
    """An invariant of ours is broken: exit 70."""

    exit_code = EXIT_BUG
