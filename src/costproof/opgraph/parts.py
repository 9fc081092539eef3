"""Which part of a tensor a view shows, so that what is read twice is counted once.

A view that shows as many numbers as its source shows the same part, in another shape, order or type. A slice is a part
of what its source shows; two slices of one source by the same bounds are one part. Of parts that only overlap nothing
is known here: each counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from costproof.ledger.workload import ITEM_BYTES
from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.registry import UnknownCost
from costproof.opgraph.rules.sizes import numel, prod

_REPEATING: Final = frozenset({"expand", "expand_as", "expand_copy", "broadcast_to", "broadcast_tensors"})
_BOUNDED: Final = frozenset({"getitem", "narrow", "select", "select_copy", "slice", "slice_copy"})
"""Whose attributes say which part it is."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a view shows of the tensor that was really made."""

    key: Hashable
    """Equal parts of one tensor have one; that of a part of a part is a tuple that begins with the other's."""
    numbers: Size
    """Real numbers that are shown, each once: a complex element holds two."""

    def among(self, others: Iterable[Hashable]) -> bool:
        """Whether it lies in another part."""
        keys, key = set(others), self.key
        while isinstance(key, tuple):
            key = key[0]
            if key in keys:
                return True
        return False


def parts(ops: Iterable[OpCall], costs: Iterable[OpCost | UnknownCost]) -> dict[str, Part]:
    """Id of every view and cast -> the part that it shows."""
    found: dict[str, Part] = {}
    for op, cost in zip(ops, costs, strict=True):
        if isinstance(cost, UnknownCost) or not op.tensors or (cost.role != "alias" and cost.aliases is None):
            continue
        sources = cost.aliases or (op.tensors[0],) * len(op.outputs)
        for i, (out, source) in enumerate(zip(op.outputs, sources, strict=False)):
            if out.id != source.id:
                found[out.id] = _seen(op, i, out, source, part_of(source, found))
    return found


def part_of(value: Value, found: Mapping[str, Part]) -> Part:
    """That of a view; of any other tensor the whole."""
    return found.get(value.id) or Part(value.id, numbers(value))


def largest(shown: Iterable[tuple[Part, Size]]) -> Iterator[Size]:
    """Sizes of parts, without those that lie in another one; of equal parts the first."""
    sizes: dict[Hashable, tuple[Part, Size]] = {}
    for part, size in shown:
        sizes.setdefault(part.key, (part, size))
    return (size for part, size in sizes.values() if not part.among(sizes))


def numbers(value: Value) -> Size:
    """Real numbers that a tensor holds."""
    return prod((numel(value), ITEM_BYTES[value.dtype] // number_bytes(value)))


def number_bytes(value: Value) -> int:
    """Bytes of a number of an element: a complex one holds two."""
    return ITEM_BYTES[value.dtype] // (2 if value.dtype.startswith("complex") else 1)


def _seen(op: OpCall, at: int, out: Value, source: Value, part: Part) -> Part:
    """The part that an output shows of what its source shows."""
    name, shown, before = canonical(op.name), numbers(out), numbers(source)
    # What a slice of repeats shows of the part is at most all of it; which repeats it leaves out is not looked at.
    if name in _REPEATING or shown == before or before != part.numbers:
        return part
    bounded = name in _BOUNDED and op.attrs and len(op.outputs) == 1
    which = repr(sorted(op.attrs.items())) if bounded else at
    return Part((part.key, name if bounded else op.label, which), shown)
