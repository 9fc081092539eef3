"""Escape names from models and files for Markdown, text and files, so that none acts as markup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.,:;=@/()\[\]+*#'%…\- ]+")
_ENTITIES: Final = {c: f"&#{ord(c)};" for c in "&<>|`*_[]()\\~#$!\"'{}"}
_MARKUP: Final = re.compile(
    r"[&<>|`*\\~$]"  # entities, HTML, table cells, code, emphasis, escapes, strike-through, formulas
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"  # emphasis; inside a word an underscore is a letter
    r"|\](?=[(\[:])|\[(?=\^)"  # links, references, footnotes; a pattern such as [0-3] is none
    r"|/(?=/)|(?<=www)\.|@"  # addresses that GitHub would link by itself, people that it would call
)
_INVISIBLE: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Escape control characters, direction marks and lone surrogates as ``\\n``, ``\\x1b``, ``\\u202e``."""
    return _INVISIBLE.sub(lambda m: m.group().encode("unicode_escape").decode(), text)


def plain(text: str) -> str:
    """Return text that any file encoding can hold, with control characters and lone surrogates escaped."""
    return visible(text).encode("utf-8", "backslashreplace").decode()


def shorten(text: str, width: int) -> str:
    """Return the text with its middle elided if it is longer than ``width`` characters; the end is kept longer."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return text[: width - 1 - tail] + "…" + text[-tail:]


def markdown(text: str) -> str:
    """Escape text for one line of Markdown: characters that Markdown or HTML read as markup become entities."""
    return _MARKUP.sub(lambda m: f"&#{ord(m.group())};", visible(text))


def unbroken(text: str) -> str:
    """Replace spaces by no-break spaces, so that a number stays next to its unit."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def code(text: str) -> str:
    """Return a code span that is safe in prose and in table cells."""
    shown = visible(text)
    if not shown:
        return "—"
    if _PLAIN.fullmatch(shown) and shown == shown.strip():
        return f"`{shown}`"
    return "<code>" + "".join(_ENTITIES.get(c, c) for c in shown) + "</code>"


def table(header: tuple[str, ...], align: str, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the lines of a Markdown table of cells that are already escaped.

    Args:
        align: one letter per column: ``l`` or ``r``.
    """
    rule = "|" + "|".join("---" if a == "l" else "---:" for a in align) + "|"
    head, *body = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return [head, rule, *body]


def details(summary: str, body: list[str]) -> list[str]:
    """Return the lines of a ``<details>`` block, with the blank lines that GitHub needs around Markdown inside it."""
    return ["<details>", f"<summary>{summary}</summary>", "", *body, "", "</details>", ""]
