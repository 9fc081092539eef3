"""Weights of routed experts under another routing than the bound: the formulas, with as many experts as are touched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any, Final

from costproof.estimate.routing import ROUTINGS, Routing, Touched, given, known_stages, uniform, uniform_text
from costproof.ledger.baseline import Folded
from costproof.ledger.errors import BadInput
from costproof.ledger.files import read_json
from costproof.ledger.metrics import FLOOR, UNFUSED, Metric
from costproof.ledger.node import CostNode, exact_sum
from costproof.ledger.symbols import parse
from costproof.run.along import Along

EXPERTS: Final = "experts"
"""The last word of the role of a layer's routed experts."""
READ: Final[Metric] = "weight_read_bytes"


def routed(
    folded: Folded, along: Along | None, routing: str | os.PathLike[str]
) -> tuple[Folded, Routing, tuple[Touched, ...]]:
    """The counts of a run under a routing.

    Args:
        along: the run and its formulas; ``None``: no formulas describe it.
        routing: ``bound``, ``uniform``, or a JSON file as :func:`~costproof.estimate.routing.given` reads it.

    Returns:
        The counts, which routing it is, and the experts of each layer; of the bound none, as the counts have it.

    Raises:
        BadInput: no formulas describe the run, it has no routed experts, or the file is not a routing of it.
    """
    if routing == "bound":
        return folded, "bound", ()
    if along is None:
        raise without_formulas()
    data = None if routing in ROUTINGS else read_json(Path(routing), what="routing")
    found = _touched(along, data, os.fspath(routing))
    if not found:
        raise BadInput("the run has no routed experts", where="--routing", fix="leave it out")
    rows = {stage: dict(parts) for stage, parts in folded.rows.items()}
    for stage, part in dict.fromkeys((t.stage, t.part) for t in found):
        read = sum(t.bytes for t in found if (t.stage, t.part) == (stage, part))
        kinds = rows.get(stage, {}).get(part, {})
        if READ not in kinds.get("", {}):
            raise BadInput(
                "the counts do not name the routed experts", where=f"{stage}, {part}", fix="--source analytic"
            )
        before = kinds[""][READ]
        more = None if before is None else read - before
        rows[stage][part] = {**kinds, "": {**_with(kinds[""], UNFUSED, more), READ: read}}
        # What is read crosses the border of the stage, which one row of it tells.
        rows[stage] = {
            one: {kind: _with(costs, FLOOR, more) for kind, costs in others.items()}
            for one, others in rows[stage].items()
        }
    return replace(folded, rows=rows), "uniform" if data is None else "given", tuple(found)


def without_formulas() -> BadInput:
    """Return the error of a run whose experts cannot be told from its other weights."""
    fix = "leave it out: the bound min(E, T k) is counted"
    return BadInput("no formulas describe this run, so its routing cannot be changed", where="--routing", fix=fix)


def _with(costs: Mapping[Metric, int | None], metric: Metric, more: int | None) -> dict[Metric, int | None]:
    """Costs with more of a metric, if it is among them."""
    return {m: exact_sum((x, more)) if m == metric else x for m, x in costs.items()}


def _touched(along: Along, data: Any, where: str) -> list[Touched]:
    ledger = along.shape(along.own).ledger
    assert ledger is not None
    layers: dict[str, list[CostNode]] = {}
    for node in ledger.nodes:
        if node.role.rpartition(".")[2] == EXPERTS and not node.kind and READ in node.exprs:
            layers.setdefault(node.stage, []).append(node)
    if layers and data is not None:
        known_stages(data, layers, where)
    found, sizes = [], along.sizes(along.own)
    for stage, nodes in layers.items():
        for layer, node in enumerate(nodes):
            values = sizes[stage, node.invocation]
            experts, rows, per_expert, rest = _terms(node.exprs[READ], values)
            tokens, calls = values["B"] * values.get("S", 1), values.get("N", 1)
            if calls == 0:
                continue
            top_k = rows // tokens
            if data is None:
                mean, text = uniform(experts, top_k, tokens), uniform_text(experts, top_k, tokens)
            else:
                place = (layer, len(nodes))
                mean = given(data, stage, place, (experts, top_k, tokens, calls), where)
                text = str(mean)
            read = ceil(per_expert * mean + rest)
            found.append(Touched(stage, node.role, layer, experts, top_k, tokens, calls, text, read))
    return found


def _terms(source: str, values: Mapping[str, int]) -> tuple[int, int, Fraction, Fraction]:
    """Of the bytes that all calls read: experts, rows of a call, bytes for each expert touched in a call, and the rest.

    A formula says min(experts, rows) where it means the experts that a call touches.
    """
    import sympy

    expr = parse(source)
    (bound,) = expr.atoms(sympy.Min)
    touched = sympy.Symbol("touched")
    numbers = {s: values[s.name] for s in expr.free_symbols}
    grows = [a for a in bound.args if "B" in {s.name for s in a.free_symbols}]
    held = [a for a in bound.args if a not in grows]
    line = sympy.Poly(expr.xreplace({bound: touched}).subs(numbers), touched)
    per_expert, rest = (line.coeff_monomial(touched**n) for n in (1, 0))
    return (
        int(held[0].subs(numbers)),
        int(grows[0].subs(numbers)),
        Fraction(int(per_expert.p), int(per_expert.q)),
        Fraction(int(rest.p), int(rest.q)),
    )
