"""Define the hierarchy of errors, each with exit code, location and fix."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from costproof.ledger.plural import plural

EXIT_OK: Final = 0
EXIT_FINDINGS: Final = 1
EXIT_BAD_INPUT: Final = 2
EXIT_INCOMPLETE: Final = 3
EXIT_BUG: Final = 70
_WORST_FIRST: Final = (EXIT_FINDINGS, EXIT_INCOMPLETE)

_LONGEST: Final = 300


NOT_GIVEN: Final = object()
"""Default of error fields, since ``None`` can be a value: ``null`` in a file."""


def worst_exit(*codes: int) -> int:
    """Return the most severe of several exit codes; a finding outweighs an incomplete count."""
    return next((code for code in _WORST_FIRST if code in codes), EXIT_OK)


class CostproofError(Exception):
    """An error with its location, expected and actual value, and fix.

    Args:
        what: one sentence, no trailing full stop.
        where: the subject: a path in a file (``$.vision_config.width``), an option, a module.
        expected: the valid values; ``None`` reads ``null``.
        got: the actual value; ``None`` reads ``null``.
        fix: the command or change that fixes it.
    """

    exit_code: int = EXIT_BAD_INPUT

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: object = NOT_GIVEN,
        got: object = NOT_GIVEN,
        fix: str | None = None,
    ) -> None:
        self.what = what
        self.where = where
        self.expected = _text(expected)
        self.got = _text(got)
        self.fix = fix or None  # an empty text advises nothing
        super().__init__(what)

    def __str__(self) -> str:
        said = {"where": self.where, "expected": self.expected, "got": self.got, "fix": self.fix}
        lines = (f"  {label + ':':<10}{value}" for label, value in said.items() if value is not None)
        return "\n".join((self.what, *lines))

    @property
    def line(self) -> str:
        """Return the message, location and actual value in one line."""
        said = [self.what, *(f"{label} {x}" for label, x in (("in", self.where), ("got", self.got)) if x)]
        return " ".join("; ".join(said).split())[:_LONGEST]


def _text(value: object) -> str | None:
    if value is NOT_GIVEN:
        return None
    return "null" if value is None else str(value)


class BadInput(CostproofError):
    """Raised for invalid user input; exit code 2."""


class Problems(BadInput):
    """Raised with all errors of one input at once, each listed once."""

    def __init__(self, what: str, problems: Sequence[CostproofError], *, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.problems = tuple({str(p): p for p in problems}.values())
        self.args = (what, self.problems)  # errors come from other processes too, made again of these

    def __str__(self) -> str:
        head = f"{self.what} ({plural(len(self.problems), 'problem')})"
        body = "\n".join(str(p) for p in self.problems)
        tail = f"\n  fix:      {self.fix}" if self.fix else ""
        return f"{head}\n{body}{tail}"


class Incomplete(CostproofError):
    """Raised if something could not be counted; exit code 3."""

    exit_code = EXIT_INCOMPLETE


class Absent(Incomplete):
    """Raised if a capture lacks the data for an output, which a report folder then omits."""


class Bug(CostproofError):
    """Raised for a broken invariant of costproof itself; exit code 70."""

    exit_code = EXIT_BUG


class Recount(NamedTuple):
    """A reported number and an independent second count of the same quantity."""

    stage: str
    where: str
    metric: str
    found: int | Fraction
    """The number that costproof reports."""
    again: int | Fraction
    """The same quantity, counted by separate code."""


def check_recounts(counted: Iterable[Recount]) -> None:
    """Check that each number equals its second count.

    Raises:
        Bug: some are not.
    """
    for one in counted:
        if one.found != one.again:
            what = "a number is not what its definition gives, counted in another way"
            where = f"{one.stage or 'the mesh'}, {one.where}: {one.metric}"
            raise Bug(what, where=where, expected=str(one.again), got=str(one.found))


def first_problem(error: CostproofError) -> str:
    """Return an error in one line; if it contains several, the first of them."""
    return error.problems[0].line if isinstance(error, Problems) else error.line


def message_of(error: BaseException) -> str:
    """Return the message of a foreign exception; empty if the exception's ``__str__`` fails."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return ""


def first_line(error: BaseException) -> str:
    """Return type and first line of a foreign exception: ``TypeError: unhashable type``."""
    lines = message_of(error).strip().splitlines()
    return type(error).__name__ + (f": {lines[0][:_LONGEST].rstrip()}" if lines else "")


OF_SOME_TARGETS: Final = {
    ("rows", ""): "a batch of unequal rows is counted for text decoders: with formulas, such as llama, llava and "
    "deepseek-ocr, in one packed call; of hf: classes without, as a forward a row; of another target, each row as a "
    "run of its own",
    ("attention", "flash_attention_2"): "FlashAttention is described for text decoders, for encoders of text and of "
    "whole images, and for the decoder of deepseek-ocr; T5's class does not support it, and its kernels have no sinks, "
    "as gpt-oss needs; elsewhere FLOPs, kept pairs and bytes are those of sdpa, and what the kernel allocates is not "
    "described",
}
"""Text on which targets support what others reject, by setting and value, which is ``""`` for the setting itself."""


_SAME_MEANING: Final = {"text_tokens": "seq_len", "--text-tokens": "--seq-len"}
"""Name that a setting of families with formulas has for other models, by its name."""


def by_its_name(name: str, known: Collection[str]) -> str | None:
    """Return the fix for a setting that this target has by another name; ``None`` if it has none."""
    other = _SAME_MEANING.get(name)
    return f"write {other}, as for all models without formulas of their own" if other in known else None


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return ``did you mean decode?`` for the most similar known name, ignoring case; ``None`` if none is similar."""
    from difflib import get_close_matches

    by_lower = {k.lower(): k for k in known}
    longer = [k for k in by_lower if k.startswith(f"{name.lower()}-")]
    found = get_close_matches(name.lower(), longer or by_lower, n=1, cutoff=0 if longer else 0.6)
    return f"did you mean {by_lower[found[0]]}?" if found else None


def setting_fix(name: str, value: str, known: Iterable[str]) -> str | None:
    """Return which targets have a setting that others reject, or one of its values, else the most similar name.

    Args:
        value: a rejected value of the setting; empty if the setting itself is rejected.
        known: names of settings, or values of this one.
    """
    known = tuple(known)
    same = by_its_name(name, known) if not value else None
    return OF_SOME_TARGETS.get((name, value)) or same or did_you_mean(value or name, known)


def no_such(
    what: str, name: str, known: Iterable[str], *, where: str | None = None, fix: str | None = None
) -> BadInput:
    """Return the error for an unknown name, with the known names and the most similar one.

    Args:
        where: the option that took the name (default: the name itself).
        fix: what else to do, such as where a name of another kind is given.
    """
    words = list(known)
    place, got = (name, NOT_GIVEN) if where is None else (where, name)
    similar = setting_fix(name, "", words) if what.startswith("setting") else did_you_mean(name, words)
    fix = f"{similar} {fix[0].upper()}{fix[1:]}" if similar and fix else similar or fix
    expected = "one of " + ", ".join(words)
    return BadInput(f"no such {what}", where=place, expected=expected, got=got, fix=fix)


def invalid_choice(where: str | None, got: object, known: Collection[str], *, setting: str = "") -> BadInput:
    """Return the error for a value that is not one of the choices.

    Args:
        setting: name of the setting, if its choices are those of some targets.
    """
    word, expected = str(got), " or ".join(known)
    fix = setting_fix(setting, word, known)
    return BadInput("invalid choice", where=where, expected=expected, got=repr(word[:40]), fix=fix)
