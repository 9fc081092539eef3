"""Write HTML: elements that escape their content, the frame of a page, and data for its script."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from importlib.resources import files
from itertools import count
from typing import Any, Final

from costproof.reports.escape import plain

_LARGEST: Final = 2**53 - 1
"""The largest integer that a JavaScript number holds exactly; larger ones are passed as text."""
_BREAKING: Final = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


class Html(str):
    """Finished HTML; any other string is escaped when it is inserted into HTML."""

    __slots__ = ()


Inside = str | Iterable[str] | None


def h(tag: str, /, *inside: Inside, **attributes: str | int | bool | None) -> Html:
    """Return an HTML element; keyword arguments are attributes (``class_``, ``aria_label``), None omits one."""
    named = "".join(
        f" {name}" if value is True else f' {name}="{_text(str(value))}"'
        for name, value in ((k.rstrip("_").replace("_", "-"), v) for k, v in attributes.items())
        if value is not None and value is not False
    )
    return Html(f"<{tag}{named}>{join_markup(*inside)}</{tag}>")


def join_markup(*inside: Inside) -> Html:
    """Join HTML strings; plain strings are escaped."""
    flat = (piece for part in inside if part is not None for piece in ([part] if isinstance(part, str) else part))
    return Html("".join(piece if isinstance(piece, Html) else _text(piece) for piece in flat))


def _text(text: str) -> str:
    return escape(plain(text))


def line(tag: str, cells: Iterable[str], align: str) -> Html:
    """Return a table row.

    ``align`` has a letter (``l`` or ``r``) per column; the last one also covers further columns.
    """
    scope = "col" if tag == "th" else None
    kinds = ("n" if align[min(i, len(align) - 1)] == "r" else None for i in count())
    return h("tr", (h(tag, cell, class_=kind, scope=scope) for cell, kind in zip(cells, kinds, strict=False)))


def table(head: Iterable[str], rows: Iterable[Iterable[str]], *, align: str = "lr", class_: str = "") -> Html:
    """Return a table in a container that scrolls on narrow screens."""
    body = h("tbody", (line("td", cells, align) for cells in rows))
    made = h("table", h("thead", line("th", head, align)), body, class_=class_ or None)
    return h("div", made, class_="wide", tabindex=0)


def page(title: str, top: Html, inside: Iterable[Inside], bottom: Html, data: Mapping[str, Any] | None = None) -> str:
    """Return an HTML file with head, sections and foot; ``data`` is for scripts as in :func:`document`."""
    main = h("main", *inside, id="content")
    return document(title, h("div", top, main, bottom, class_="page"), data or {})


def document(title: str, body: Html, data: Mapping[str, Any]) -> str:
    """Return an HTML file that loads nothing from elsewhere and runs only our own script and style.

    Args:
        data: what the script reads: plain values, of which large integers arrive as text.
    """
    style, script = part("page.css"), part("page.js") + (part("tree.js") if "rows" in data else "")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            h("title", title),
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            body,
            f'<script type="application/json" id="data">{payload(data)}</script>',
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        )
    )


def payload(data: object) -> str:
    """Return JSON escaped so that it cannot close the script element that contains it."""
    text = json.dumps(_safe(data), ensure_ascii=True, separators=(",", ":"))
    return text.translate(_BREAKING)


def _safe(value: object) -> object:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) <= _LARGEST else str(value)
    if isinstance(value, Mapping):
        return {plain(str(k)): _safe(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_safe(v) for v in value]
    return value


@cache
def part(name: str) -> str:
    """Return the text of a file in this package, such as the style sheet."""
    return "\n" + files("costproof.reports.html").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
