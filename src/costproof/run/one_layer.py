"""The layers of a model, of which one runs at a time: modules with a number in their path, equal ones once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from costproof.ledger.metrics import UNFUSED
from costproof.ledger.node import CostNode

_LAYER: Final = re.compile(r"(?:[^.]+\.)*?\d+(?=\.|$)")


def layer_of(module: str) -> str:
    """The outermost numbered module that a module is in, ``model.layers.3``; empty where it is in none."""
    found = _LAYER.match(module)
    return found[0] if found else ""


def one_layer(nodes: Iterable[CostNode]) -> Iterator[CostNode]:
    """Nodes outside of layers, and those of one layer of each kind.

    Layers of a call are of one kind where the formulas of :data:`~costproof.ledger.metrics.UNFUSED` are the same. The
    sum over one of each kind is at least that of any layer, and, unlike a maximum, a polynomial where its terms are.
    """
    layers: dict[tuple[str, str, str], list[CostNode]] = {}
    for node in nodes:
        if layer := layer_of(node.module):
            layers.setdefault((node.stage, node.invocation, layer), []).append(node)
        else:
            yield node
    seen = set()
    for (stage, invocation, layer), own in layers.items():
        moved = sorted((n.module.removeprefix(layer), n.exprs[UNFUSED]) for n in own if UNFUSED in n.exprs)
        if (kind := (stage, invocation, *moved)) not in seen:
            seen.add(kind)
            yield from own
