"""Reading a configuration so that no key goes unnoticed.

Every key of an object is consumed by a reader method, or waived by name with a reason; what is
left over when :meth:`Section.finish` is called is a problem. Problems are collected, not raised,
so that a person sees all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from costproof.ledger.errors import NOT_GIVEN, BadInput, CostproofError, did_you_mean

LARGEST: Final = 2**31 - 1
"""Sizes above this are typing errors: no tensor dimension of a real model comes near it."""
MOST_LAYERS: Final = 1_000
"""Several times those of any model; each layer is a few dozen lines of every ledger."""

_MISSING: Final = object()


def shown(value: object) -> str:
    """A value from a file as it stands in an error message."""
    if isinstance(value, dict):
        return "an object"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Section:
    """One JSON object of a configuration, at a path such as ``$.vision_config``.

    Args:
        data: the object; anything else is a problem and reads as empty.
        path: where it stands in the file.
        problems: the list that all sections of one file share.
    """

    def __init__(self, data: object, path: str, problems: list[CostproofError]) -> None:
        self.path = path
        self.problems = problems
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        self.broken = not isinstance(data, dict)
        self.known: set[str] = set()
        self.waived: dict[str, str] = {}
        self.children: list[Section] = []
        if self.broken:
            self.problem("this must be an object", None, expected="a JSON object", got=shown(data))

    def problem(
        self,
        what: str,
        key: str | None,
        *,
        expected: object = NOT_GIVEN,
        got: object = NOT_GIVEN,
        fix: str | None = None,
    ) -> None:
        """Note one problem at a key of this section (``None``: the section itself)."""
        where = self.path if key is None else f"{self.path}.{key}"
        self.problems.append(BadInput(what, where=where, expected=expected, got=got, fix=fix))

    def take(self, key: str, default: object = _MISSING) -> Any:
        """The raw value of a key; a missing key without a default is a problem and reads as ``None``.

        A key that is waived and taken is used: it is waived no longer.
        """
        self.known.add(key)
        self.waived.pop(f"{self.path}.{key}", None)
        if key in self.data:
            return self.data[key]
        if default is _MISSING:
            if not self.broken:
                self.problem("a key is missing", key)
            return None
        return default

    def integer(self, key: str, default: object = _MISSING, *, least: int = 1, most: int = LARGEST) -> int:
        """An integer within bounds; ``least`` stands in for a value that is a problem."""
        value = self.take(key, default)
        if key not in self.data and (default is _MISSING or value is None):
            return least
        return self.check_integer(value, key, least=least, most=most)

    def sizes(self, keys: Mapping[str, str], usual: object = None) -> dict[str, Any]:
        """Field -> :meth:`integer` under its key; ``usual`` has the fields of which the keys may be missing."""
        return {
            field: self.integer(
                key, getattr(usual, field, _MISSING), most=MOST_LAYERS if field == "layers" else LARGEST
            )
            for field, key in keys.items()
        }

    def check_integer(self, value: object, key: str, *, least: int = 1, most: int = LARGEST) -> int:
        """:meth:`integer` for a value that is already at hand."""
        if isinstance(value, bool) or not isinstance(value, int):
            self.problem("this must be an integer", key, expected=_bounds(least, most), got=shown(value))
            return least
        if not least <= value <= most:
            self.problem("this is out of range", key, expected=_bounds(least, most), got=shown(value))
            return least
        return value

    def integers(self, key: str, default: object = _MISSING, *, least: int = 1, most: int = LARGEST) -> tuple[int, ...]:
        """A list of integers within bounds."""
        value = self.take(key, default)
        if value is None and key not in self.data:
            return ()
        if not isinstance(value, (list, tuple)):
            self.problem("this must be a list of integers", key, expected="a list", got=shown(value))
            return ()
        return tuple(self.check_integer(v, f"{key}[{i}]", least=least, most=most) for i, v in enumerate(value))

    def number(self, key: str, default: float) -> float:
        """A finite number above 0; a value that is a problem reads as the default."""
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self.problem("this must be a finite number", key, got=shown(value))
            return default
        if value <= 0:
            self.problem("this must be a positive number", key, got=shown(value))
            return default
        return float(value)

    def fixed(self, key: str, *allowed: object, why: str, default: object = _MISSING) -> object:
        """A value that the formulas depend on: one of ``allowed``, or a problem that says why not.

        A missing key reads as ``default``, by default the first of ``allowed``.
        """
        value = self.take(key, allowed[0] if default is _MISSING else default)
        if not any(type(value) is type(a) and value == a for a in allowed):
            expected = " or ".join(shown(a) for a in allowed)
            self.problem(why, key, expected=expected, got=shown(value))
            return allowed[0]
        return value

    def waive(self, reasons: Mapping[str, str]) -> None:
        """Let keys stand without using them, and remember why."""
        self.known.update(reasons)
        self.waived |= {f"{self.path}.{key}": reason for key, reason in reasons.items() if key in self.data}

    def child(self, key: str, *, optional: bool = False) -> Section:
        """The section under a key. A missing optional one reads as an empty object."""
        self.known.add(key)
        section = Section(self.data.get(key, {}), f"{self.path}.{key}", self.problems)
        self.children.append(section)
        if key not in self.data and not optional and not self.broken:
            self.problem("a key is missing", key, expected="a JSON object")
            section.broken = True
        return section

    def finish(self) -> tuple[tuple[str, str], ...]:
        """Report every key that nothing consumed, here and below; return what was waived, with reasons."""
        for key in sorted(set(self.data) - self.known):
            self.problem(
                "nothing is known about this key",
                key,
                got=shown(self.data[key]),
                fix=did_you_mean(key, sorted(self.known)) or "remove the key, or report what it does",
            )
        waived = list(self.waived.items())
        for child in self.children:
            waived += child.finish()
        return tuple(sorted(waived))


def renamed(config: object, keys: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a configuration under the keys that they have in a file."""
    return {key: getattr(config, field) for field, key in keys.items()}


def _bounds(least: int, most: int) -> str:
    if most == LARGEST:
        return "a positive integer" if least == 1 else f"an integer of at least {least}"
    return f"an integer from {least} to {most}"
