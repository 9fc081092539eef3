"""The formats of the grouped view, by the ending of their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from costproof.ledger.errors import BadInput
from costproof.reports.graph.dot import dot
from costproof.reports.graph.mermaid import mermaid
from costproof.reports.graph.svg import svg
from costproof.reports.graph.view import GraphView
from costproof.reports.near import near

WRITERS: Final[Mapping[str, Callable[[GraphView], str]]] = {"dot": dot, "svg": svg, "mmd": mermaid}


def writer(kind: str) -> Callable[[GraphView], str]:
    """What writes files with that ending.

    Raises:
        BadInput: nothing does.
    """
    if kind not in WRITERS:
        raise BadInput(
            "no such graph format",
            where="-f",
            expected="of " + ", ".join(WRITERS),
            got=repr(kind[:40]),
            fix=near(kind, WRITERS, "did you mean {}?"),
        )
    return WRITERS[kind]
