"""Names from models and files, made harmless in Markdown. They are data, never markup."""

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
    """Control characters, line breaks, direction marks and halves of characters as ``\\n``, ``\\x1b``, ``\\u202e``."""
    return _INVISIBLE.sub(lambda m: m.group().encode("unicode_escape").decode(), text)


def plain(text: str) -> str:
    """The text with what no file can hold made visible: control characters, line breaks, lone surrogates."""
    return visible(text).encode("utf-8", "backslashreplace").decode()


def shorten(text: str, width: int) -> str:
    """The text, its middle left out where it is longer than ``width`` characters; the end says more than the start."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return text[: width - 1 - tail] + "…" + text[-tail:]


def markdown(text: str) -> str:
    """Prose: characters that Markdown or HTML could read as markup become entities, all on one line."""
    return _MARKUP.sub(lambda m: f"&#{ord(m.group())};", visible(text))


def unbroken(text: str) -> str:
    """A number that keeps its unit beside it, however narrow the page is."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def code(text: str) -> str:
    """A code span that is safe in prose and in a table cell."""
    shown = visible(text)
    if not shown:
        return "—"
    if _PLAIN.fullmatch(shown) and shown == shown.strip():
        return f"`{shown}`"
    return "<code>" + "".join(_ENTITIES.get(c, c) for c in shown) + "</code>"


def table(header: tuple[str, ...], align: str, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A Markdown table. Cells must be escaped already.

    Args:
        align: one letter per column: ``l`` or ``r``.
    """
    rule = "|" + "|".join("---" if a == "l" else "---:" for a in align) + "|"
    head, *body = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return [head, rule, *body]


def details(summary: str, body: list[str]) -> list[str]:
    """A folded block. GitHub needs the blank lines around Markdown inside HTML."""
    return ["<details>", f"<summary>{summary}</summary>", "", *body, "", "</details>", ""]
