"""Sum metrics over the nodes and calls of a run, for estimates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from costproof.algebra.series import CONTEXT
from costproof.algebra.symbols import parse
from costproof.ledger.metrics import UNFUSED, Metric
from costproof.ledger.node import CostNode

Take = Literal["whole", "last step"]
_LAYER: Final = re.compile(r"(?:[^.]+\.)*?\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class MetricTerm:
    """A metric summed over some nodes, times a constant factor."""

    metric: Metric
    nodes: Callable[[CostNode], bool]
    """Selects the nodes of the sum."""
    factor: int = 1
    take: Take = "whole"
    """``last step``: only the last of a series of decode steps."""
    layers: Literal["all", "one of each kind"] = "all"
    """``one of each kind``: an upper bound for a single layer, see :func:`distinct_layers`."""


@dataclass(frozen=True, slots=True)
class CallTerm:
    """A formula in the symbols of a call, summed over all calls that define its symbols."""

    source: str
    """The expression, as text."""
    stage: str | None = None
    """``None``: calls of every stage."""
    invocation: str | None = None
    """``None``: every call of the stage."""


FormulaSum = tuple[MetricTerm | CallTerm, ...]


def depends_on_context(source: str) -> bool:
    """Return whether the formula of a decode step depends on the number of tokens in the cache."""
    return CONTEXT in parse(source).free_symbols


def layer_of(module: str) -> str:
    """Return the outermost numbered module that contains a module (``model.layers.3``), or an empty string."""
    found = _LAYER.match(module)
    return found[0] if found else ""


def distinct_layers(nodes: Iterable[CostNode]) -> Iterator[CostNode]:
    """Yield the nodes outside of layers and, for each call, those of one layer of each kind.

    Two layers of a call are of the same kind if their formulas of :data:`~costproof.ledger.metrics.UNFUSED` are equal.
    The sum over one layer of each kind is at least the sum over any single layer. Unlike a maximum it is a polynomial
    if its terms are.
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
