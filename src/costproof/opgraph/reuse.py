"""What a graph moves under three models of reuse, which differ in how much of it is one region.

*Unfused*: every operator on its own; what one makes, the next one reads. *Fused*: each call of a module is a region, as
the ledgers count (:mod:`costproof.opgraph.regions`). *Floor*: the whole graph is one: each input, weight and piece of
the cache is read once, each result written once. What the run appends to its cache is written in all three.

A larger region hides bytes and adds none, so floor <= fused <= unfused. Views and casts move nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import sympy

from costproof.ledger.listing import Reuse
from costproof.opgraph.costed import Costed
from costproof.opgraph.graph import Size, Value
from costproof.opgraph.regions import R, RegionTraffic, Traffic
from costproof.opgraph.rules.sizes import nbytes, prod, smaller, total

RETURNED: Final = "return."
"""With a number from 0 the name of a tensor that a graph returns."""


def floors(
    work: Costed, regions: Sequence[R], inside: Collection[str] = (), spared: Spared | None = None
) -> dict[R, Size]:
    """The bytes that cross the borders of some regions, without what they append to a cache.

    Args:
        regions: of each operator, the region that it is in.
        inside: names of inputs and of what is returned (:data:`RETURNED`) that pass between two graphs of one region,
            and of parameters that another of them reads whole.
        spared: what of each tensor's traffic is wanted, in place of all of it.
    """
    kept = {work.roots.get(v.id, v).id for i, v in enumerate(work.graph.outputs) if f"{RETURNED}{i}" in inside}

    def crosses(value: Value) -> bool:
        return value.id not in kept and not (value.origin in ("input", "param") and value.name in inside)

    found = work.crossing(regions)
    return {
        region: _once(t for t in (spared.of(m) if spared else m.every) if crosses(t.value))
        for region, m in found.items()
    }


@dataclass(frozen=True, slots=True)
class Spared:
    """Which bytes of a graph's traffic a run need not move."""

    hidden: frozenset[str]
    """Ids of tensors that are keys and values alone, which a mask may hide."""
    halved: frozenset[str]
    """Ids of tensors that autocast may make in half of float32, where the graph has them in float32."""

    def of(self, moved: RegionTraffic) -> Iterator[Traffic]:
        """Yield those of a region."""
        for one in moved.every:
            if one.value.id in self.hidden and one.value.origin != "param":
                yield one
            elif one.value.id in self.halved and one.value.dtype == "float32":
                half = replace(one.value, dtype="bfloat16")
                yield Traffic(half, prod((one.nbytes, sympy.Rational(1, 2))))

    def bytes(self, moved: RegionTraffic) -> Size:
        """Return their sum."""
        return total(one.nbytes for one in self.of(moved))


def _once(found: Iterable[Traffic]) -> Size:
    """Bytes of some tensors, of each at most the whole, however often its rows are looked up.

    A trace has a buffer anew wherever it is read, and that is one tensor.
    """
    tensors: dict[tuple[str, str], list[Traffic]] = {}
    for one in found:
        name = one.value.name if one.value.origin == "buffer" else ""
        tensors.setdefault((name, "" if name else one.value.id), []).append(one)
    return total(smaller(nbytes(same[0].value), total(t.nbytes for t in same)) for same in tensors.values())


def partly_read(work: Costed) -> dict[str, tuple[int, int]]:
    """Parameters of which a graph with integer sizes looks up rows: bytes of these, with repeats, and of the whole."""
    moved = work.crossing([""] * len(work.graph.ops)).get("", RegionTraffic())
    found = {t.value.name: (int(t.nbytes), int(nbytes(t.value))) for t in moved.weights}
    return {name: both for name, both in found.items() if both[0] != both[1]}


def reuse(work: Costed, cache_before: Iterable[Value]) -> Reuse:
    """The bytes of a graph with integer sizes under each model.

    Args:
        cache_before: what the cache holds before the run.
    """
    grown = sum(int(nbytes(v)) for v in work.graph.cache_outputs) - sum(int(nbytes(v)) for v in cache_before)

    def moved(found: Iterable[RegionTraffic]) -> int:
        return grown + sum(int(t.bytes) for t in found)

    whole = floors(work, [""] * len(work.graph.ops))
    return Reuse(grown + sum(int(n) for n in whole.values()), moved(work.traffic.values()), moved(work.alone.values()))
