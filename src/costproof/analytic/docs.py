"""What a reader of a report gets beside the numbers: derivations and sources of formulas."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from costproof.analytic.costs import layer_named
from costproof.ledger.capture import FormulaDoc
from costproof.ledger.node import CostNode


def formula_docs(nodes: Iterable[CostNode]) -> dict[str, FormulaDoc]:
    """Title, derivation and source of the layers that nodes come from, by name.

    Raises:
        BadInput: a node names a layer that is not loaded.
    """
    docs = {}
    for name in sorted({n.owner for n in nodes} - {""}):
        layer = layer_named(name)
        docs[name] = FormulaDoc(title=layer.title, derivation=inspect.getdoc(layer) or "", source=layer.source)
    return docs
