"""From the parts of an encoder to the ledger of its one stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from costproof.analytic.attention_block import Projection
from costproof.analytic.compose import Part, analytic_ledger, invocation_nodes, stage_nodes
from costproof.analytic.costs import Size
from costproof.ledger.node import Ledger
from costproof.models.encoding.names import STAGE

ALL: Final[tuple[Projection, ...]] = ("q", "k", "v", "out")
"""Every projection of attention."""


def ledger(parts: Iterable[Part], names: Mapping[str, str], border: Size) -> Ledger:
    """The one stage in symbols: ``exprs`` filled, ``costs`` empty.

    Args:
        names: role -> module path.
        border: bytes of the activations that the stage gets and returns.
    """
    found = tuple(parts)
    nodes = (*stage_nodes(STAGE, found, names), *invocation_nodes(STAGE, STAGE, found, names, border=border))
    return analytic_ledger(nodes, (STAGE,))
