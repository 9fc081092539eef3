"""Read JSON configurations so that no key is silently ignored.

Every key of an object is consumed by a reader method or waived with a reason. :meth:`Section.finish` waives the rest,
as harmless or as unread. Problems are collected instead of raised, so that all of them are reported at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, Final

from costproof.configs import known_keys
from costproof.ledger.errors import NOT_GIVEN, BadInput, CostproofError, did_you_mean
from costproof.ledger.workload import UNREAD

LARGEST: Final = 2**31 - 1
"""Largest accepted size; larger ones are typing errors, since no tensor dimension of a real model is near it."""
MOST_LAYERS: Final = 1_000
"""Maximum number of layers, several times that of any model; each layer adds dozens of lines to every ledger."""

_MISSING: Final = object()
_CLOSE: Final = 0.85
"""Ratio of ``SequenceMatcher`` from which a key counts as a misspelling: one letter in seven differs."""


def shown(value: object) -> str:
    """Return the repr of a JSON value, shortened for an error message."""
    if isinstance(value, dict):
        return "an object"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Section:
    """JSON object of a configuration, at a path such as ``$.vision_config``, that tracks which keys are read.

    Args:
        data: the object; anything else is a problem and reads as empty.
        path: its JSON path in the file.
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
        self.below: list[tuple[str, Collection[str], Mapping[str, Any]]] = []
        """Path, known keys and data of every section below, including those that other classes read."""
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
        """Record a problem with a key of this section, or with the section itself for ``None``."""
        where = self.path if key is None else f"{self.path}.{key}"
        self.problems.append(BadInput(what, where=where, expected=expected, got=got, fix=fix))

    def take(self, key: str, default: object = _MISSING) -> Any:
        """Return the raw value of a key; a missing key without a default is a problem and returns ``None``.

        A waived key that is taken counts as used and is no longer waived.
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

    def given(self, key: str, default: object) -> Any:
        """Return the value that :meth:`take` returns, with ``null`` treated as a missing key."""
        value = self.take(key, default)
        return default if value is None else value

    def integer(self, key: str, default: object = _MISSING, *, least: int = 1, most: int = LARGEST) -> int:
        """Return an integer within bounds; an invalid value is a problem and returns ``least``."""
        value = self.take(key, default)
        if key not in self.data and (default is _MISSING or value is None):
            return least
        return self.check_integer(value, key, least=least, most=most)

    def sizes(self, named: Mapping[str, str], usual: object = None) -> dict[str, Any]:
        """Read :meth:`integer` for each field's key; keys of the fields in ``usual`` may be missing."""
        return {
            field: self.integer(
                key, getattr(usual, field, _MISSING), most=MOST_LAYERS if field == "layers" else LARGEST
            )
            for field, key in named.items()
        }

    def check_integer(self, value: object, key: str, *, least: int = 1, most: int = LARGEST) -> int:
        """Check a given value as :meth:`integer` does."""
        if isinstance(value, bool) or not isinstance(value, int):
            self.problem("this must be an integer", key, expected=_bounds(least, most), got=shown(value))
            return least
        if not least <= value <= most:
            self.problem("this is out of range", key, expected=_bounds(least, most), got=shown(value))
            return least
        return value

    def integers(self, key: str, default: object = _MISSING, *, least: int = 1, most: int = LARGEST) -> tuple[int, ...]:
        """Return a list of integers within bounds."""
        value = self.take(key, default)
        if value is None and key not in self.data:
            return ()
        if not isinstance(value, (list, tuple)):
            self.problem("this must be a list of integers", key, expected="a list", got=shown(value))
            return ()
        return tuple(self.check_integer(v, f"{key}[{i}]", least=least, most=most) for i, v in enumerate(value))

    def number(self, key: str, default: float) -> float:
        """Return a finite positive number; an invalid value is a problem and returns the default."""
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self.problem("this must be a finite number", key, got=shown(value))
            return default
        if value <= 0:
            self.problem("this must be a positive number", key, got=shown(value))
            return default
        return float(value)

    def fixed(self, key: str, *allowed: object, why: str, default: object = _MISSING) -> object:
        """Return a value that must be one of ``allowed``, since formulas assume it; otherwise record a problem.

        A missing key reads as ``default``, by default the first of ``allowed``.
        """
        value = self.take(key, allowed[0] if default is _MISSING else default)
        if not any(type(value) is type(a) and value == a for a in allowed):
            expected = " or ".join(shown(a) for a in allowed)
            self.problem(why, key, expected=expected, got=shown(value))
            return allowed[0]
        return value

    def waive(self, reasons: Mapping[str, str]) -> None:
        """Accept keys without using them, and record the reason for each."""
        self.known.update(reasons)
        self.waived |= {f"{self.path}.{key}": reason for key, reason in reasons.items() if key in self.data}

    def child(self, key: str, *, optional: bool = False) -> Section:
        """Return the section under a key; a missing optional one reads as an empty object."""
        self.known.add(key)
        section = Section(self.data.get(key, {}), f"{self.path}.{key}", self.problems)
        self.children.append(section)
        self.below.append((section.path, section.known, section.data))
        if key not in self.data and not optional and not self.broken:
            self.problem("a key is missing", key, expected="a JSON object")
            section.broken = True
        return section

    def finish(self, *, strict: bool = False, not_null: Collection[str] = ()) -> tuple[tuple[str, str], ...]:
        """Return (path, reason) of every key, here and in subsections, that affects no cost or was not read.

        A key that only a section below reads, with a different value there, is a problem: it is probably misplaced.

        Args:
            strict: whether a key that is neither used nor harmless is a problem.
            not_null: keys of this section for which ``null`` is a problem.
        """
        waived = list(self.waived.items())
        kind = str(self.data.get("model_type", ""))
        parts = sorted(self.below, key=lambda part: "text" not in part[0])  # a decoder has the sizes of the whole
        for key in sorted(set(self.data) - self.known):
            value = self.data[key]
            below = next((path for path, known, data in parts if key in known and data.get(key) != value), None)
            reason = known_keys.HARMLESS.get(key) if strict else known_keys.harmless(kind, key, value)
            if reason is not None:
                waived.append((f"{self.path}.{key}", reason))
            elif (wrong := known_keys.contradiction(kind, key, value, f"{self.path}.{key}")) is not None:
                self.problems.append(wrong)
            elif strict or known_keys.is_read(kind, key) or self._meant(kind, key):
                self.problem(
                    "nothing is known about this key",
                    key,
                    got=shown(value),
                    fix=did_you_mean(key, sorted(self.known)) or "remove the key, or report what it does",
                )
            elif below is not None:
                self.misplaced(key, below)
            else:
                waived.append((f"{self.path}.{key}", UNREAD))
        told = {problem.where for problem in self.problems}
        for key in sorted(not_null):
            if self.data.get(key, "") is None and f"{self.path}.{key}" not in told:
                self.problem("transformers refuses null here", key, expected="a value, or no such key", got="null")
        for child in self.children:
            waived += child.finish(strict=strict)
        return tuple(sorted(waived))

    def _meant(self, kind: str, key: str) -> bool:
        """Return whether an unknown key is probably a misspelling of a known one, not a prefixed or suffixed name."""
        close = get_close_matches(key, self.known | known_keys.aliases(kind), n=1, cutoff=_CLOSE)
        parts = (a.startswith(f"{b}_") or a.endswith(f"_{b}") for n in close for a, b in ((key, n), (n, key)))
        return bool(close) and not any(parts)

    def misplaced(self, key: str, path: str) -> None:
        """Record a key that is read only in the section at another path."""
        what, where = "nothing reads this key here", f"{path}.{key}"
        self.problem(what, key, expected=where, got=shown(self.data[key]), fix=f"move it to {where}")


def renamed(config: object, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a configuration by the keys that they have in a file."""
    return {key: getattr(config, field) for field, key in keys.items()}


def _bounds(least: int, most: int) -> str:
    if most == LARGEST:
        return "a positive integer" if least == 1 else f"an integer of at least {least}"
    return f"an integer from {least} to {most}"
