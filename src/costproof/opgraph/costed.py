"""A graph whose operators are costed and still in order: what accounting, liveness and time are read off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from costproof.opgraph.graph import Graph, Value
from costproof.opgraph.parts import Part, parts
from costproof.opgraph.regions import R, Region, RegionTraffic, region_traffic, resolve
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.registry import UnknownCost, cost_of, transforms


@dataclass(frozen=True, eq=False)
class Costed:
    """A graph after all transforms, with what each of its operators costs.

    Operators keep their place in the order of execution; accounting alone gives it up.
    """

    graph: Graph
    costs: tuple[OpCost | UnknownCost, ...]
    """One for each operator of the graph, in order of execution."""

    @cached_property
    def roots(self) -> Mapping[str, Value]:
        """Id of every view and cast -> the tensor that was really made."""
        return resolve(self.graph.ops, self.costs)

    @cached_property
    def traffic(self) -> Mapping[Region, RegionTraffic]:
        """What crosses the border of every region."""
        return self.crossing([(op.module, op.call) for op in self.graph.ops])

    @cached_property
    def alone(self) -> Mapping[int, RegionTraffic]:
        """What every operator moves where each runs on its own, by its place in the order of execution."""
        return self.crossing(range(len(self.graph.ops)))

    def crossing(self, regions: Sequence[R]) -> dict[R, RegionTraffic]:
        """What crosses the border of every region, where each operator is in one of these."""
        return region_traffic(self.graph, self.costs, self.roots, self._parts, regions)

    @cached_property
    def _parts(self) -> Mapping[str, Part]:
        return parts(self.graph.ops, self.costs)


def costed(graph: Graph) -> Costed:
    """Bring a graph into the form that rules know, and cost every operator."""
    for transform in transforms():
        graph = transform(graph)
    return Costed(graph, tuple(cost_of(op) for op in graph.ops))
