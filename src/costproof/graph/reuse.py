"""What a graph moves under three models of reuse, which differ in how much of it is one region.

*Unfused*: every operator on its own; what one makes, the next one reads. *Fused*: each call of a module is a region, as
the ledgers count (:mod:`costproof.graph.regions`). *Floor*: the whole graph is one: each input, weight and piece of the
cache is read once, each result written once. What the run appends to its cache is written in all three.

A larger region hides bytes and adds none, so floor <= fused <= unfused. Views and casts move nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from costproof.graph.costed import Costed
from costproof.graph.graph import Value
from costproof.graph.regions import RegionTraffic, region_traffic
from costproof.graph.rules.sizes import nbytes
from costproof.ledger.listing import Reuse


def reuse(work: Costed, cache_before: Iterable[Value]) -> Reuse:
    """The bytes of a graph with integer sizes under each model.

    Args:
        cache_before: what the cache holds before the run.
    """
    grown = sum(int(nbytes(v)) for v in work.graph.cache_outputs) - sum(int(nbytes(v)) for v in cache_before)

    def moved(found: Iterable[RegionTraffic]) -> int:
        return grown + sum(int(t.bytes) for t in found)

    whole = region_traffic(work.graph, work.costs, work.roots, [""] * len(work.graph.ops))
    return Reuse(moved(whole.values()), moved(work.traffic.values()), moved(work.alone.values()))
