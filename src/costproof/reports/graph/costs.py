"""Look up the costs of a callgraph's modules in the ledgers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

from costproof.ledger.callgraph import CallGraph
from costproof.ledger.metrics import TRAFFIC, Metric
from costproof.ledger.node import CostNode, Ledger, exact_sum, total
from costproof.ledger.run import DEFAULT_SOURCES
from costproof.views.quantities import with_quantity

ROOT: Final = "(root)"
MOVED: Final = "io_bytes"
"""Bytes read and written, derived from the metrics of :data:`~costproof.ledger.metrics.TRAFFIC`."""
EXPERTS: Final = "experts"
"""The last word of the role of a layer's routed experts."""
_SOURCES: Final = DEFAULT_SOURCES[::-1]
"""Sources in order of precedence. The dynamic source comes first, as the callgraph records a run."""


@dataclass(frozen=True)
class ModuleNumbers:
    """Costs of the modules of a callgraph, over all stages or one; ``None`` is unknown."""

    modules: frozenset[str]
    """Modules with cost nodes in these stages."""
    own: Mapping[Metric, Mapping[str, int | None]]
    """Metric -> module -> value without inner modules; metrics that no source gives are absent."""
    drawn: Mapping[str, frozenset[str]]
    """Module that has costs but never runs, such as a list of experts -> the modules in it that run."""
    experts: Mapping[str, str]
    """Holder of routed experts, and its parent -> ``64 experts, top 6``, if formulas give it."""

    @cached_property
    def _inside(self) -> Mapping[Metric, Mapping[str, int | None]]:
        found: dict[Metric, dict[str, int | None]] = {}
        for metric, own in self.own.items():
            sums = found.setdefault(metric, {})
            for module, value in own.items():
                for around in (ROOT, *([] if module == ROOT else _upwards(module))):
                    sums[around] = exact_sum((sums.get(around, 0), value))
        return found

    def inside(self, metric: Metric, instances: Sequence[str]) -> int | None:
        """Return the sum of a metric over modules and everything inside them; None if unknown."""
        if metric not in self.own:
            return None
        chosen = set(instances)
        outer = {p for p in chosen if p == ROOT or not (chosen & {ROOT, *list(_upwards(p))[1:]})}
        return exact_sum([*(self._inside[metric].get(p, 0) for p in outer), *self._borne(metric, outer)])

    def owns_work(self, instances: Sequence[str]) -> bool:
        """Return whether the modules themselves do matmul-like work. Unknown work counts as work."""
        if "flops" not in self.own:
            return False
        own = self.own["flops"]
        return exact_sum([*(own.get(p, 0) for p in instances), *self._borne("flops", set(instances))]) != 0

    def calls(self, instances: Sequence[str], traced: int | None) -> int | None:
        """Return the calls at the workload, or those of the trace (maybe fewer decode steps) if no source has any."""
        known = self.own.get("calls", {})
        return exact_sum(known.get(p, 0) for p in instances) if any(p in known for p in instances) else traced

    def _borne(self, metric: Metric, modules: set[str]) -> list[int | None]:
        """Return the costs that module lists carry for these modules: all, or None if only some of a list are here."""
        own = self.own[metric]
        bare = modules - self._inside[metric].keys()
        lists = {above for p in bare for above in list(_upwards(p))[1:] if above in self.drawn and above in own}
        return [own[x] if self.drawn[x] <= bare else None for x in lists if own[x] != 0]


def module_numbers(
    ledgers: Sequence[Ledger], graph: CallGraph, stage: str | None, symbols: Mapping[str, int] | None = None
) -> ModuleNumbers:
    """Return the costs of modules in all stages, or in one.

    Args:
        symbols: the sizes of the configuration.
    """
    known = [x for s in _SOURCES for x in ledgers if x.source == s]
    own: dict[Metric, dict[str, int | None]] = {}
    for metric in ("params", "flops", "calls"):
        speaking = next((x for x in known if metric in x.metrics), None)
        if speaking is not None:
            own[metric] = _own_costs(speaking, metric, stage)
    moving = next((x for x in known if set(TRAFFIC) <= set(x.metrics)), None)
    if moving is not None:
        own[MOVED] = _own_costs(with_quantity(moving, MOVED), MOVED, stage)
    modules = frozenset(n.module or ROOT for x in known for n in x.nodes if stage in (None, n.stage))
    drawn = _idle_holders(graph, {p for sums in own.values() for p in sums} - graph.call_counts.keys())
    return ModuleNumbers(modules, own, drawn, _experts(known, symbols))


def _experts(ledgers: Sequence[Ledger], symbols: Mapping[str, int] | None) -> dict[str, str]:
    """Return the routed experts of modules as text, E and k from the ratio of their parameter formulas."""
    found: dict[str, str] = {}
    for node in (n for x in ledgers for n in x.nodes):
        held, passed = node.exprs.get("params"), node.exprs.get("params_active")
        if node.role.rpartition(".")[2] == EXPERTS and held and passed and symbols:
            found[node.module] = _ratio(held, passed, tuple(sorted(symbols.items())))
    return {place: text for module, text in found.items() for place in (module, module.rpartition(".")[0]) if text}


@cache
def _ratio(held: str, passed: str, symbols: tuple[tuple[str, int], ...]) -> str:
    import sympy

    from costproof.algebra.symbols import parse

    experts, top = sympy.fraction(sympy.cancel(parse(held) / parse(passed)))
    known = dict(symbols)
    sizes = [part.subs({s: known[s.name] for s in part.free_symbols if s.name in known}) for part in (experts, top)]
    return f"{sizes[0]} experts, top {sizes[1]}" if all(s.is_Integer for s in sizes) else ""


def _own_costs(ledger: Ledger, metric: Metric, stage: str | None) -> dict[str, int | None]:
    """Return the metric of each module without the modules inside it."""
    nodes: dict[str, list[CostNode]] = {}
    for node in ledger.nodes:
        if metric in node.costs and stage in (None, node.stage):
            nodes.setdefault(node.module or ROOT, []).append(node)
    found = {module: total(mine, metric) for module, mine in nodes.items()}
    if metric in ("flops", MOVED):
        found |= {op.module or ROOT: None for op in ledger.unknown_ops if stage in (None, op.stage)}
    return found


def _idle_holders(graph: CallGraph, idle: set[str]) -> dict[str, frozenset[str]]:
    """Return, for each module that never ran, the modules directly inside it, if any of them ran."""
    inside: dict[str, set[str]] = {}
    for path in {*graph.call_counts, *graph.module_types}:
        inside.setdefault(path.rpartition(".")[0], set()).add(path)
    return {p: frozenset(inside[p]) for p in idle if not graph.call_counts.keys().isdisjoint(inside.get(p, ()))}


def _upwards(path: str) -> Iterable[str]:
    """Yield a path and the paths of all modules around it."""
    while path:
        yield path
        path = path.rpartition(".")[0]
