"""Parse restricted YAML into strings, lists and maps with positions.

All scalars stay strings, so that no digit is lost in a float and no word becomes a boolean. Anchors, aliases, tags and
merge keys are refused, keys are unique, and sizes are limited before anything is built.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from costproof.ledger.errors import NOT_GIVEN, BadInput
from costproof.ledger.files import first_bytes

YamlValue = str | list["YamlValue"] | dict[str, "YamlValue"]

MAX_BYTES: Final = 262_144
_MAX_DEPTH: Final = 12
_MAX_NODES: Final = 20_000
_MAX_KEY: Final = 200


def read_source(path: Path, what: str) -> str:
    """Read a text file of limited size.

    Raises:
        BadInput: the file is missing, unreadable, too large or not UTF-8.
    """
    try:
        raw = first_bytes(path, MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise BadInput(f"{what} is too large", where=str(path), expected=f"at most {MAX_BYTES:,} bytes")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"cannot read {what}", where=str(path), got=error.strerror or type(error).__name__) from None
    except UnicodeDecodeError:
        raise BadInput(f"{what} is not text", where=str(path), expected="UTF-8") from None


def read_document(source: str, *, where: str, what: str = "a claims file") -> YamlValue:
    """Parse the content of one YAML document.

    Args:
        what: the kind of file, for messages.

    Raises:
        BadInput: the source is not YAML, is too large or too deep, or uses a refused feature.
    """
    if len(source.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise BadInput(f"{what} is too large", where=where, expected=f"at most {MAX_BYTES:,} bytes")
    try:
        return _Builder(source, where, what).document()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        start = getattr(error, "context_mark", None)
        raise BadInput(
            f"{what} is not YAML",
            where=where if mark is None else f"{where}, line {mark.line + 1}, column {mark.column + 1}",
            **_advice(str(getattr(error, "problem", None) or getattr(error, "reason", None) or ""), start),
        ) from None


def _advice(said: str, start: yaml.Mark | None) -> dict[str, str]:
    """Translate the YAML parser's message into ``got`` and ``fix`` for the user."""
    if "<block end>" in said or "mapping values are not allowed" in said:
        above = "" if start is None else f" (line {start.line + 1}, column {start.column + 1})"
        return {
            "got": "a line that is indented neither like the keys above it nor deeper",
            "fix": f"align it with the other keys of its map{above}, and put a text that holds ': ' into quotes",
        }
    if "\\t" in said or "'\t'" in said:
        return {"got": "a tab", "fix": "indent with spaces"}
    if "could not find expected ':'" in said:
        return {"got": "a key without its colon", "fix": "write KEY: VALUE"}
    if "end of stream" in said or "stream end" in said:
        return {"got": "a quote or a bracket that is never closed", "fix": "close it"}
    return {"got": said or "an unreadable character"}


class _Builder:
    """Builds values from the YAML parser's events, without recursion."""

    def __init__(self, source: str, where: str, what: str) -> None:
        self.events = yaml.parse(source, Loader=yaml.SafeLoader)
        self.where = where
        self.what = what
        self.count = 0

    def error(self, what: str, event: yaml.Event, expected: object = NOT_GIVEN) -> BadInput:
        mark = event.start_mark
        place = self.where if mark is None else f"{self.where}, line {mark.line + 1}, column {mark.column + 1}"
        return BadInput(what, where=place, expected=expected)

    def next(self) -> yaml.Event:
        event = next(self.events)
        self.count += 1
        if self.count > _MAX_NODES:
            raise self.error(f"{self.what} has too many parts", event, f"at most {_MAX_NODES:,}")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise self.error("anchors and aliases are not allowed", event, "every value written out")
        if getattr(event, "tag", None) is not None:
            raise self.error("tags are not allowed", event, "plain texts, lists and maps")
        return event

    def document(self) -> YamlValue:
        self.next()
        start = self.next()
        if isinstance(start, yaml.StreamEndEvent):
            raise BadInput(f"{self.what} is empty", where=self.where)
        value = self.value(self.next(), 0)
        end = self.next()
        after = self.next()
        if not isinstance(end, yaml.DocumentEndEvent) or not isinstance(after, yaml.StreamEndEvent):
            raise self.error(f"{self.what} holds one document", after)
        return value

    def value(self, event: yaml.Event, depth: int) -> YamlValue:
        if depth > _MAX_DEPTH:
            raise self.error("nested too deep", event, f"at most {_MAX_DEPTH} levels")
        if isinstance(event, yaml.ScalarEvent):
            if "\0" in event.value:
                raise self.error("a text holds a null character", event)
            if any("\ud800" <= c <= "\udfff" for c in event.value):
                raise self.error("a text contains an unpaired surrogate", event, "Unicode that UTF-8 can write")
            return str(event.value)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[YamlValue] = []
            while not isinstance(item := self.next(), yaml.SequenceEndEvent):
                items.append(self.value(item, depth + 1))
            return items
        found: dict[str, YamlValue] = {}
        while not isinstance(key := self.next(), yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent) or len(key.value) > _MAX_KEY or key.value == "<<":
                raise self.error("a key must be a short text", key)
            if key.value in found:
                raise self.error(f"the key {key.value!r} occurs twice", key, "every key once")
            found[key.value] = self.value(self.next(), depth + 1)
        return found
