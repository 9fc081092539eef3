"""Errors planted into a symbolic analytic ledger: what people get wrong in cost models, one at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import parse, sym, text
from costproof.compare.patterns import Mask, template
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger

Values = Mapping[str, int]

OPERATIONS = (
    "drop a term",
    "halve",
    "double",
    "wrong dimension",
    "off by one",
    "drop the node",
    "one layer too many",
)


@dataclass(frozen=True, slots=True)
class Site:
    """One formula at work: all modules of a pattern in which a layer costs the same expression."""

    owner: str
    stage: str
    invocation: str
    template: Mask
    kind: str
    metric: Metric
    expression: str
    nodes: tuple[CostNode, ...]

    @property
    def formula(self) -> tuple[str, str, str]:
        """What a mistake in the layer's source would touch: (layer, operator kind, metric)."""
        return self.owner, self.kind, self.metric


@dataclass(frozen=True, slots=True)
class Planted:
    """One error, and the ledger that has it."""

    operation: str
    what: str
    site: Site
    modules: tuple[str, ...]
    difference: sympy.Expr
    """Wrong minus right, for one module, in the symbols of the formula."""
    changes_value: bool
    """Whether the error shows at this workload; otherwise only the formula gives it away."""
    ledger: Ledger


def sites(ledger: Ledger, metrics: Sequence[Metric]) -> list[Site]:
    """All formulas at work whose metric is one of ``metrics``, in the order of the ledger."""
    found: dict[tuple[str, str, str, Mask, str, Metric, str], list[CostNode]] = {}
    for node in ledger.nodes:
        for metric, expression in node.exprs.items():
            if metric in metrics and node.costs.get(metric) != 0:
                mask, _ = template(node.module)
                key = (node.owner, node.stage, node.invocation, mask, node.kind, metric, expression)
                found.setdefault(key, []).append(node)
    return [Site(*key, tuple(nodes)) for key, nodes in found.items()]


def plant(capture: Capture, ledger: Ledger, site: Site) -> Iterator[Planted]:
    """All errors of all kinds for one site."""
    values = _values(capture, site)
    right = parse(site.expression)
    visible = _visible(capture, site)
    for operation, what, wrong, touched in _wrong_formulas(right, values, visible):
        planted = _replaced(ledger, site, operation, what, right, wrong, values)
        # H + 1 inside a rounding up to whole windows is not an error that a graph of this side could show.
        if planted and (planted.changes_value or touched <= visible):
            yield planted
    # Leaving out or adding one module of many must not smear over the others.
    last = site.nodes[-1]
    yield Planted(
        "drop the node", last.module or "(root)", site, (last.module,), -right, True,
        _swap(ledger, {id(last): _without(last, site.metric)}),
    )  # fmt: skip
    mask, numbers = template(last.module)
    if numbers:
        further = max(n for node in ledger.nodes for n in template(node.module)[1]) + 1
        path = _path(mask, (further, *numbers[1:]))
        phantom = replace(
            last, module=path, costs={site.metric: last.costs[site.metric]}, exprs={site.metric: site.expression}
        )
        yield Planted(
            "one layer too many", path, site, (path,), right, True, replace(ledger, nodes=(*ledger.nodes, phantom))
        )


def _wrong_formulas(
    right: sympy.Expr, values: Values, visible: frozenset[str]
) -> Iterator[tuple[str, str, sympy.Expr, frozenset[str]]]:
    """(operation, what exactly, the wrong formula, symbols that were touched)."""
    nothing: frozenset[str] = frozenset()
    yield "halve", "1/2", right / 2, nothing
    yield "double", "2", right * 2, nothing
    expanded = sympy.expand(right)
    terms = sympy.Add.make_args(expanded)
    if len(terms) > 1:
        for term in (terms[0], terms[-1]):
            yield "drop a term", text(term), expanded - term, nothing
    names = sorted(s.name for s in right.free_symbols)
    for wrong, name in _swaps(names, values, visible):
        yield "wrong dimension", f"{wrong} for {name}", right.subs(sym(name), sym(wrong)), frozenset({wrong, name})
    for name in names[:1] + names[-1:]:
        yield "off by one", f"{name} + 1", right.subs(sym(name), sym(name) + 1), frozenset({name})
    if not names:
        yield "off by one", "+ 1", right + 1, nothing


def _swaps(names: Sequence[str], values: Values, visible: frozenset[str]) -> list[tuple[str, str]]:
    """Pairs (wrong, right) of symbols of one family that somebody could notice.

    Two symbols of the configuration with the same value are the same to every graph of this
    configuration. Two of the workload with the same value differ if the graph keeps both as symbols.
    """
    pairs = [
        (wrong, name)
        for name in names
        for wrong in sorted(values)
        if wrong != name and _family(wrong) == _family(name)
        if values[wrong] != values[name] or {wrong, name} <= visible
    ]
    # A handful per formula, spread over its symbols, the same in every run.
    return sorted(pairs, key=lambda p: zlib.crc32("/".join(p).encode()))[:4]


def _family(name: str) -> str:
    prefix, _, rest = name.partition("_")
    return prefix if rest else ""


def _replaced(
    ledger: Ledger, site: Site, operation: str, what: str, right: sympy.Expr, wrong: sympy.Expr, values: Values
) -> Planted | None:
    try:
        value = evaluate(wrong, values)
    except BadInput:
        return None  # half of an odd count is not a count
    before = evaluate(right, values)
    if sympy.expand(wrong - right) == 0:
        return None
    changed = {
        id(n): replace(n, costs={**n.costs, site.metric: value}, exprs={**n.exprs, site.metric: text(wrong)})
        for n in site.nodes
    }
    modules = tuple(n.module for n in site.nodes)
    return Planted(operation, what, site, modules, wrong - right, value != before, _swap(ledger, changed))


def _without(node: CostNode, metric: Metric) -> CostNode:
    return replace(
        node,
        costs={m: v for m, v in node.costs.items() if m != metric},
        exprs={m: e for m, e in node.exprs.items() if m != metric},
    )


def _swap(ledger: Ledger, changed: Mapping[int, CostNode]) -> Ledger:
    return replace(ledger, nodes=tuple(changed.get(id(n), n) for n in ledger.nodes))


def _path(mask: Mask, numbers: Sequence[int]) -> str:
    return mask[0] + "".join(f"{n}{p}" for n, p in zip(numbers, mask[1:], strict=True))


def _values(capture: Capture, site: Site) -> dict[str, int]:
    """Values of all symbols that a formula of the site may use."""
    for invocation in capture.invocations:
        if (invocation.stage, invocation.id) == (site.stage, site.invocation):
            return capture.values(invocation)
    shared: dict[str, set[int]] = {}
    for invocation in capture.invocations:
        for name, value in invocation.symbols.items():
            shared.setdefault(name, set()).add(value)
    return {**{n: min(v) for n, v in shared.items() if len(v) == 1}, **capture.target.symbols}


def _visible(capture: Capture, site: Site) -> frozenset[str]:
    """Symbols that the static source keeps as symbols in every module of the site."""
    static = capture.by_source.get("static")
    if static is None:
        return frozenset()
    modules = {n.module for n in site.nodes}
    return frozenset(
        s.name
        for n in static.nodes
        if (n.stage, n.invocation) == (site.stage, site.invocation) and n.module in modules
        for e in n.exprs.values()
        for s in parse(e).free_symbols
    )
