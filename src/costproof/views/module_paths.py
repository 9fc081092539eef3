"""Write several module paths as one pattern, and sort paths by their numbers."""

from __future__ import annotations

from collections.abc import Sequence

from costproof.compare.patterns import patterns
from costproof.views.numbers import first_names

_SHOWN = 3


def pattern(paths: Sequence[str]) -> str:
    """Return paths as one pattern: ``model.layers.[0-11]``, ``attn.{q,k,v}``; else the first few patterns."""
    found = [text for text, _ in patterns(dict.fromkeys(paths))]
    if len(found) == 1:
        return found[0]
    rows = [text.split(".") for text in found]
    if len({len(r) for r in rows}) == 1:
        varying = [i for i, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1]
        if len(varying) == 1:
            at = varying[0]
            choice = "{" + ",".join(dict.fromkeys(r[at] for r in rows)) + "}"
            return ".".join([*rows[0][:at], choice, *rows[0][at + 1 :]])
    return first_names(found, _SHOWN)


def below(path: str, prefix: str) -> bool:
    """Return whether a module is at ``prefix`` or inside it; ``(root)`` contains everything."""
    return prefix == "(root)" or path == prefix or path.startswith(prefix + ".")


def natural(path: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts ``layers.10`` after ``layers.9``."""
    return tuple((0, int(p), "") if p.isdecimal() and p.isascii() else (1, 0, p) for p in path.split("."))
