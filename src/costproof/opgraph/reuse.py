"""Compute the bytes that a graph moves under three models of data reuse: unfused, fused by module, and floor.

They differ in the size of a region. *Unfused*: every operator is one. *Fused*: each call of a module is one, as in the
ledgers (:mod:`costproof.opgraph.regions`). *Floor* (compulsory traffic): the whole graph is one; each input, weight and
part of the cache is read once, each result written once. Bytes appended to the cache are written under all three.

A larger region hides bytes and adds none, so floor <= fused <= unfused. Views and casts move nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import sympy

from costproof.ledger.callgraph import ReuseBytes
from costproof.ledger.errors import Recount
from costproof.ledger.metrics import FLOOR, SPARED, SPARED_AT_FLOOR
from costproof.opgraph.costed import CostedGraph
from costproof.opgraph.graph import Size, Value
from costproof.opgraph.kept import KeptWork
from costproof.opgraph.regions import R, RegionTraffic, Traffic
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.sizes import in_numbers, nbytes, prod, smaller, total

RETURNED: Final = "return."
"""Prefix of the name of a returned tensor; the index of the tensor follows, from 0."""


class PackedReads:
    """Reads of parameters and buffers by several graphs that stand for one call, which reads each tensor once.

    A later graph reads only what is left of a tensor that an earlier one has read in the same region: nothing of a
    whole weight, and those experts that no earlier graph has touched. Rows of a table that are looked up are read
    again.
    """

    def __init__(self) -> None:
        self._read: dict[tuple[Hashable, str], int] = {}

    def again(self, region: Hashable, moved: Iterable[Traffic]) -> int:
        """Return the bytes of a region's traffic that earlier graphs have already read; sizes must be integers."""
        found = 0
        for one in moved:
            if one.value.origin in ("param", "buffer") and not one.repeated:
                key, size, most = (region, one.value.name or one.value.id), int(one.nbytes), int(nbytes(one.value))
                before = self._read.get(key, 0)
                self._read[key] = min(most, before + size)
                found += before + size - self._read[key]
        return found


def floors(
    work: CostedGraph,
    regions: Sequence[R],
    inside: Collection[str] = (),
    spared: AvoidableTraffic | None = None,
    packed: PackedReads | None = None,
) -> dict[R, Size]:
    """Return the least bytes that must cross the boundary of each region, without those appended to a cache.

    Args:
        regions: the region of each operator.
        inside: names of inputs and returned tensors (:data:`RETURNED`) that pass between two graphs of one region, and
            of parameters that another of these graphs reads whole.
        spared: counts only this part of the traffic.
        packed: reads of graphs of the same call.
    """
    kept = {work.roots.get(v.id, v).id for i, v in enumerate(work.graph.outputs) if f"{RETURNED}{i}" in inside}

    def crosses(value: Value) -> bool:
        return value.id not in kept and not (value.origin in ("input", "param") and value.name in inside)

    found = work.crossing(regions)
    result: dict[R, Size] = {}
    for region, m in found.items():
        once = _read_once(t for t in (spared.of(m) if spared else m.every) if crosses(t.value))
        again = 0 if packed is None else packed.again(FLOOR, once)
        result[region] = total((*(t.nbytes for t in once), -again))
    return result


@dataclass(frozen=True, slots=True)
class AvoidableTraffic:
    """Traffic of a graph that another implementation of the same result can avoid."""

    hidden: frozenset[str]
    """Ids of tensors that are read only as keys or values, which a mask may hide."""
    halved: frozenset[str]
    """Ids of float32 tensors that may be half as large under autocast."""

    def of(self, moved: RegionTraffic) -> Iterator[Traffic]:
        """Yield the avoidable part of this traffic: hidden tensors whole, halved tensors by half."""
        for one in moved.every:
            if one.value.id in self.hidden and one.value.origin != "param":
                yield one
            elif one.value.id in self.halved and one.value.dtype == "float32":
                half = replace(one.value, dtype="bfloat16")
                yield Traffic(half, prod((one.nbytes, sympy.Rational(1, 2))))

    def bytes(self, moved: RegionTraffic) -> Size:
        """Return the bytes of the avoidable part of this traffic."""
        return total(one.nbytes for one in self.of(moved))


def avoidable_recounts(
    spared: AvoidableTraffic, modules: Iterable[tuple[str, RegionTraffic, Size]], floor: Iterable[Size]
) -> Iterator[Recount]:
    """Yield second counts of avoidable bytes: all that a module moves, less what it must move; symbols have numbers.

    Args:
        modules: name, traffic, and avoidable bytes of each call of a module.
        floor: avoidable bytes of whole graphs, each of whose tensors some module moves.
    """
    every: list[Size] = []
    for module, moved, found in modules:
        every.append(found)
        needed: list[Size] = []
        for one in moved.every:
            if one.value.origin == "param" or one.value.id not in spared.hidden:
                narrow = one.value.id in spared.halved and one.value.dtype == "float32"
                needed.append(prod((one.nbytes, sympy.Rational(1, 2))) if narrow else one.nbytes)
        if found != 0 or needed != [one.nbytes for one in moved.every]:
            again = in_numbers(moved.bytes) - in_numbers(total(needed))
            yield Recount("graph", module or "(root)", SPARED, in_numbers(found), again)
    more = in_numbers(total(floor)) - in_numbers(total(every))
    yield Recount("graph", SPARED_AT_FLOOR, "more than of the modules", max(0, more), 0)


def hidden_again(costed: CostedGraph, kept: Mapping[int, KeptWork], hidden: frozenset[str]) -> frozenset[str]:
    """Return again the tensors that are read only as keys or values, deciding for each from all its readers.

    Args:
        hidden: the result of :func:`.account.hidden_reads`, which decides whether a copy is hidden, and tensors that
            an operator overwrites.
    """
    graph, overwritten = costed.graph, set[str]()
    returned = {v.id for v in graph.outputs}.difference(v.id for v in graph.cache_outputs)
    free = dict.fromkeys((costed.roots[x].id if x in costed.roots else x for x in returned), False)
    for i, (op, cost) in enumerate(zip(graph.ops, costed.costs, strict=True)):
        role = cost.role if isinstance(cost, OpCost) else ""
        ids, made = ([costed.roots.get(v.id, v).id for v in values] for values in (op.tensors, op.outputs))
        weighted = i not in kept or not kept[i].hides_keys or any(v.origin == "param" for v in op.tensors)
        for place, one in enumerate(() if role in _UNREAD else ids):
            unseen = all(x in hidden for x in made) if role == "move" else place != 0 and not weighted
            free[one] = free.get(one, True) and unseen
        if not set(ids).isdisjoint(made) and role != "alias":
            overwritten.update(ids)
    return frozenset(one for one, only in free.items() if (one in hidden if one in overwritten else only))


_UNREAD: Final = ("alias", "factory", "free")
"""Roles of operators that read no data of their arguments."""


def _read_once(found: Iterable[Traffic]) -> list[Traffic]:
    """Merge the reads of each tensor into one, whose bytes are at most those of the tensor.

    A trace has a new value for each read of a buffer; reads of one name count as one tensor.
    """
    tensors: dict[tuple[str, str], list[Traffic]] = {}
    for one in found:
        name = one.value.name if one.value.origin == "buffer" else ""
        tensors.setdefault((name, "" if name else one.value.id), []).append(one)
    return [
        Traffic(same[0].value, smaller(nbytes(same[0].value), total(t.nbytes for t in same)))
        for same in tensors.values()
    ]


def partly_read(work: CostedGraph) -> dict[str, tuple[int, int]]:
    """Return (bytes of looked-up rows with repeats, bytes of the whole) by parameter name, for those read by rows."""
    moved = work.crossing([""] * len(work.graph.ops)).get("", RegionTraffic())
    found = {t.value.name: (int(t.nbytes), int(nbytes(t.value))) for t in moved.weights}
    return {name: both for name, both in found.items() if both[0] != both[1]}


def reuse_bytes(work: CostedGraph, cache_before: Iterable[Value]) -> ReuseBytes:
    """Return the bytes that a graph with integer sizes moves under each model of data reuse.

    Args:
        cache_before: contents of the cache before the run.
    """
    grown = sum(int(nbytes(v)) for v in work.graph.cache_outputs) - sum(int(nbytes(v)) for v in cache_before)

    def moved(found: Iterable[RegionTraffic]) -> int:
        return grown + sum(int(t.bytes) for t in found)

    whole = floors(work, [""] * len(work.graph.ops))
    return ReuseBytes(
        grown + sum(int(n) for n in whole.values()), moved(work.traffic.values()), moved(work.alone.values())
    )
