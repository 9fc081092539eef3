"""What part of a callgraph to show."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from costproof.ledger.errors import BadInput, did_you_mean, no_such

_LINK: Final = re.compile(r"(?:https?://|(?![A-Za-z][A-Za-z0-9+.\-]*:)[^\s\x00-\x20:])[^\s\x00-\x20\"<>]*\Z")
"""No scheme but http: an SVG runs what a ``javascript:`` address says."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to show; everything unless said."""

    depth: int | None = None
    """Calls below the outermost nodes shown; ``None`` for as deep as fits on one page."""
    stage: str | None = None
    prefix: str | None = None
    """Path of a module: it and what is inside it."""
    heavy: bool = False
    """Only modules that own matmul-like work, and those that lead to them."""
    link: str | None = None
    """Address that a node leads to; ``{path}`` and ``{class}`` stand for the module's."""


def check(chosen: Choice, stages: Sequence[str], modules: Collection[str]) -> None:
    """Raise :class:`BadInput` if the choice asks for what there is not.

    Args:
        stages: of the target.
        modules: paths in the callgraph.
    """
    if chosen.depth is not None and chosen.depth < 0:
        raise BadInput("a depth cannot be negative", where="--depth", expected="0 or more", got=chosen.depth)
    if chosen.stage is not None and chosen.stage not in stages:
        raise no_such("stage", chosen.stage, stages, where="--stage")
    if chosen.link is not None and not _LINK.match(chosen.link):
        raise BadInput(
            "this address cannot be linked to",
            where="--link",
            expected="http://, https://, or a relative address; {path} and {class} stand for the module's",
            got=chosen.link,
        )
    if chosen.prefix is not None and chosen.prefix not in modules:
        raise BadInput(
            "no such module",
            where="--prefix",
            expected="the path of a module, such as "
            + min(modules, default="(root)", key=lambda p: (-p.count("."), p)),
            got=chosen.prefix,
            fix=did_you_mean(chosen.prefix, sorted(modules)),
        )
