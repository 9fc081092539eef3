"""What the ledgers say about the modules of a callgraph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from costproof.ledger.callgraph import CallGraph
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger, exact_sum, total
from costproof.ledger.sources import USUAL_SOURCES

ROOT: Final = "(root)"
_SOURCES: Final = USUAL_SOURCES[::-1]
"""Where a number is taken from: the first that gives it. The run comes first, as the callgraph is of a run."""


@dataclass(frozen=True)
class Costs:
    """One metric per module, of the whole workload or of one stage of it. ``None`` is unknown."""

    own: Mapping[str, int | None]
    """Of the modules themselves."""
    drawn: Mapping[str, frozenset[str]]
    """Module that bears costs and never runs, such as a list of experts -> the modules in it that run."""

    @cached_property
    def _inside(self) -> Mapping[str, int | None]:
        found: dict[str, int | None] = {}
        for module, value in self.own.items():
            for around in (ROOT, *([] if module == ROOT else _upwards(module))):
                found[around] = exact_sum((found.get(around, 0), value))
        return found

    def inside(self, instances: Sequence[str]) -> int | None:
        """Of some modules and all inside them."""
        chosen = set(instances)
        outer = {p for p in chosen if p == ROOT or not (chosen & {ROOT, *list(_upwards(p))[1:]})}
        return exact_sum([*(self._inside.get(p, 0) for p in outer), *self._borne(outer)])

    def itself(self, instances: Sequence[str]) -> int | None:
        """Of some modules without what is inside them."""
        return exact_sum([*(self.own.get(p, 0) for p in instances), *self._borne({*instances})])

    def _borne(self, modules: set[str]) -> list[int | None]:
        """What a list bears for its modules: all of it if they are all here, else nobody knows which part."""
        bare = modules - self._inside.keys()
        lists = {above for p in bare for above in list(_upwards(p))[1:] if above in self.drawn}
        return [self.own[x] if self.drawn[x] <= bare else None for x in lists if self.own[x] != 0]


@dataclass(frozen=True)
class Numbers:
    """What is known about the modules of a callgraph, in all stages or in one."""

    modules: frozenset[str]
    """Modules that the ledgers know there."""
    costs: Mapping[Metric, Costs]
    """By metric; a metric that no source gives is not there."""

    def inside(self, metric: Metric, instances: Sequence[str]) -> int | None:
        """The metric of modules and of all inside them."""
        return self.costs[metric].inside(instances) if metric in self.costs else None

    def owns_work(self, instances: Sequence[str]) -> bool:
        """Whether the modules themselves do matmul-like work. Unknown work counts as some."""
        return "flops" in self.costs and self.costs["flops"].itself(instances) != 0

    def calls(self, instances: Sequence[str], traced: int | None) -> int | None:
        """Calls at the workload; those of the trace, which may have fewer decode steps, where no source has them."""
        known = self.costs["calls"].own if "calls" in self.costs else {}
        return exact_sum(known.get(p, 0) for p in instances) if any(p in known for p in instances) else traced


def numbers(ledgers: Sequence[Ledger], graph: CallGraph, stage: str | None) -> Numbers:
    """Numbers of all stages, or of one."""
    known = [x for s in _SOURCES for x in ledgers if x.source == s]
    found: dict[Metric, Costs] = {}
    for metric in ("params", "flops", "calls"):
        speaking = next((x for x in known if metric in x.metrics), None)
        if speaking is not None:
            own = _own(speaking, metric, stage)
            found[metric] = Costs(own, _drawn(graph, own.keys() - graph.call_counts.keys()))
    return Numbers(frozenset(n.module or ROOT for x in known for n in x.nodes if stage in (None, n.stage)), found)


def _own(ledger: Ledger, metric: Metric, stage: str | None) -> dict[str, int | None]:
    """The metric of each module alone."""
    nodes: dict[str, list[CostNode]] = {}
    for node in ledger.nodes:
        if metric in node.costs and stage in (None, node.stage):
            nodes.setdefault(node.module or ROOT, []).append(node)
    found = {module: total(mine, metric) for module, mine in nodes.items()}
    if metric == "flops":
        found |= {op.module or ROOT: None for op in ledger.unknown_ops if stage in (None, op.stage)}
    return found


def _drawn(graph: CallGraph, idle: set[str]) -> dict[str, frozenset[str]]:
    """For each module that never ran: those directly in it, if any of them ran."""
    inside: dict[str, set[str]] = {}
    for path in {*graph.call_counts, *graph.module_types}:
        inside.setdefault(path.rpartition(".")[0], set()).add(path)
    return {p: frozenset(inside[p]) for p in idle if not graph.call_counts.keys().isdisjoint(inside.get(p, ()))}


def _upwards(path: str) -> Iterable[str]:
    """The path and every path around it."""
    while path:
        yield path
        path = path.rpartition(".")[0]
