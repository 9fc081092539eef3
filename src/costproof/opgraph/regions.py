"""Compute the bytes that cross the boundary of a region, which is a set of operators that run as one fused kernel.

By default, a region is the work of one call of one module, without its children. Views and casts are followed to their
root: the tensor that an operator, an input, a parameter or a buffer created.

A region reads each root from outside once, at most as much of it as its views show or as it looks up. It writes each
root once that is read outside. Everything between two operators of the same region stays inside. What a cache held
before the call is read like any other root, and counted separately. Integer and boolean tensors are not activations;
integer buffers that arithmetic turns into floating-point numbers, such as packed weights, are read all the same. A root
that every outside reader sees through a cast is written in the size that they see. A write over a part of a tensor of
another region counts, and so does the final content of an input that is overwritten.

A view with as many numbers as its source shows the same part in another shape, order or type. A slice is a part of its
source; two slices of one source by the same bounds are one part. Parts that may overlap otherwise count separately.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from costproof.ledger.workload import ITEM_BYTES
from costproof.opgraph.graph import Graph, OpCall, Size, Value
from costproof.opgraph.rules.cost import OpCost, PartialRead
from costproof.opgraph.rules.names import canonical, overwrites
from costproof.opgraph.rules.registry import UnknownCost
from costproof.opgraph.rules.sizes import nbytes, numel, prod, smaller, total

_REPEATING: Final = frozenset({"expand", "expand_as", "expand_copy", "broadcast_to", "broadcast_tensors"})
_BOUNDED: Final = frozenset({"getitem", "narrow", "select", "select_copy", "slice", "slice_copy"})
"""Views whose arguments identify the selected part of the tensor."""


@dataclass(frozen=True, slots=True)
class ViewPart:
    """Part of a root tensor that a view selects."""

    key: Hashable
    """Identity of the part: equal parts of a tensor have equal keys; a part of a part has a tuple that begins with
    the key of the outer part.
    """
    numbers: Size
    """Number of real numbers in the part, each counted once; a complex element has two."""

    def among(self, others: Iterable[Hashable]) -> bool:
        """Return whether the part lies inside a part with one of these keys."""
        keys, key = set(others), self.key
        while isinstance(key, tuple):
            key = key[0]
            if key in keys:
                return True
        return False


def view_parts(ops: Iterable[OpCall], costs: Iterable[OpCost | UnknownCost]) -> dict[str, ViewPart]:
    """Return the part of its root tensor that each view and cast selects, by the id of the view."""
    found: dict[str, ViewPart] = {}
    for op, cost in zip(ops, costs, strict=True):
        if isinstance(cost, UnknownCost) or not op.tensors or (cost.role != "alias" and cost.aliases is None):
            continue
        sources = cost.aliases or (op.tensors[0],) * len(op.outputs)
        for i, (out, source) in enumerate(zip(op.outputs, sources, strict=False)):
            if out.id != source.id:
                found[out.id] = _part_of_output(op, i, out, source, part_of(source, found))
    return found


def part_of(value: Value, found: Mapping[str, ViewPart]) -> ViewPart:
    """Return the part of its root that a tensor selects; a tensor that is not a known view is a whole root."""
    return found.get(value.id) or ViewPart(value.id, count_numbers(value))


def outermost_sizes(shown: Iterable[tuple[ViewPart, Size]]) -> Iterator[Size]:
    """Return the sizes of the parts that lie in no other part; equal parts count once."""
    sizes: dict[Hashable, tuple[ViewPart, Size]] = {}
    for part, size in shown:
        sizes.setdefault(part.key, (part, size))
    return (size for part, size in sizes.values() if not part.among(sizes))


def count_numbers(value: Value) -> Size:
    """Count the real numbers in a tensor; a complex element has two."""
    return prod((numel(value), ITEM_BYTES[value.dtype] // number_bytes(value)))


def number_bytes(value: Value) -> int:
    """Return the bytes of one real number in a tensor's elements; a complex element has two numbers."""
    return ITEM_BYTES[value.dtype] // (2 if value.dtype.startswith("complex") else 1)


def _part_of_output(op: OpCall, at: int, out: Value, source: Value, part: ViewPart) -> ViewPart:
    """Return the part of the root tensor that output ``at`` of a view selects, given that of its source."""
    name, shown, before = canonical(op.name), count_numbers(out), count_numbers(source)
    # What a slice of repeats shows of the part is at most all of it; which repeats it leaves out is not looked at.
    if name in _REPEATING or shown == before or before != part.numbers:
        return part
    bounded = name in _BOUNDED and op.attrs and len(op.outputs) == 1
    which = repr(sorted(op.attrs.items())) if bounded else at
    return ViewPart((part.key, name if bounded else op.label, which), shown)


Region = tuple[str, int]
"""A call of a module: module path and call number."""
R = TypeVar("R", bound=Hashable)
_SCATTERS: Final = frozenset({
    "index_put", "index_add", "index_copy", "index_fill", "index_reduce", "scatter", "scatter_add", "scatter_reduce",
    "put", "one_hot", "repeat_interleave", "nll_loss", "nll_loss_forward", "cross_entropy",
})  # fmt: skip
"""Operators whose integer arguments after the first are indices or counts."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one tensor that cross the boundary of one region."""

    value: Value
    """Root tensor, which views and casts lead back to."""
    nbytes: Size
    repeated: bool = False
    """Whether only looked-up rows are read, and each read counts, so that the bytes may exceed those of the tensor."""


@dataclass(frozen=True, slots=True)
class RegionTraffic:
    """Tensors that cross the boundary of one region, and the parameters that it reads."""

    inputs: tuple[Traffic, ...] = ()
    outputs: tuple[Traffic, ...] = ()
    weights: tuple[Traffic, ...] = ()
    cached: tuple[Traffic, ...] = ()

    @property
    def input_bytes(self) -> Size:
        """Bytes of activations that the region reads from outside."""
        return total(t.nbytes for t in self.inputs)

    @property
    def output_bytes(self) -> Size:
        """Bytes of activations that the region writes for readers outside."""
        return total(t.nbytes for t in self.outputs)

    @property
    def kv_read_bytes(self) -> Size:
        """Bytes that the region reads from a key/value cache, as it was before the call."""
        return total(t.nbytes for t in self.cached)

    @property
    def weight_read_bytes(self) -> Size:
        """Bytes of parameters that the region reads."""
        return total(t.nbytes for t in self.weights)

    @property
    def bytes(self) -> Size:
        """Bytes of inputs, outputs, weights and cache reads together."""
        return total(t.nbytes for t in self.every)

    @property
    def every(self) -> tuple[Traffic, ...]:
        """Inputs, outputs, weights and cache reads in one tuple."""
        return (*self.inputs, *self.outputs, *self.weights, *self.cached)


@dataclass(slots=True)
class _RootReads:
    """Reads of a root tensor by one region: whole views and looked-up rows."""

    root: Value
    views: dict[str, Value] = field(default_factory=dict)
    partial: list[PartialRead] = field(default_factory=list)


def region_traffic(
    graph: Graph,
    costs: Sequence[OpCost | UnknownCost],
    roots: Mapping[str, Value],
    shown: Mapping[str, ViewPart],
    regions: Sequence[R],
) -> dict[R, RegionTraffic]:
    """Compute the bytes that each region of a graph reads and writes across its boundary.

    Args:
        graph: operators in order of execution.
        costs: cost of each operator; an operator without a rule counts as work.
        roots: result of :func:`resolve_views`.
        shown: result of :func:`view_parts`.
        regions: the region of each operator.
    """
    producer: dict[str, R] = {}
    written: list[tuple[R, Value, Value]] = []
    """(region, written part, root tensor) of each write over a part of a tensor."""
    reads: dict[R, dict[str, _RootReads]] = {}
    for op, cost, region in zip(graph.ops, costs, regions, strict=True):
        if isinstance(cost, OpCost) and cost.role == "alias":
            continue
        producer.update((out.id, region) for out in op.outputs)
        if isinstance(cost, OpCost) and cost.aliases is None and op.tensors and overwrites(op):
            written += ((region, out, roots[op.tensors[0].id]) for out in op.outputs if op.tensors[0].id in roots)
        partial = {p.value.id: p for p in cost.partial} if isinstance(cost, OpCost) else {}
        for value in tensors_read(op, cost):
            root = roots.get(value.id, value)
            mine = reads.setdefault(region, {}).setdefault(root.id, _RootReads(root))
            if value.id in partial:
                mine.partial.append(partial[value.id])
            else:
                mine.views.setdefault(value.id, value)

    packed = packed_numbers(graph, costs, roots)
    inputs: dict[R, list[Traffic]] = {}
    weights: dict[R, list[Traffic]] = {}
    cached: dict[R, list[Traffic]] = {}
    outside: dict[str, tuple[Value, list[Value]]] = {}
    """Root tensors that other regions read, with the views through which they do, by id of the root."""
    for region, by_root in reads.items():
        for read in by_root.values():
            root = read.root
            if root.origin == "param":
                repeated = not read.views and not all(p.distinct for p in read.partial)
                weights.setdefault(region, []).append(Traffic(root, _weight_bytes(read, shown), repeated))
            elif root.origin == "buffer" and root.id in packed:
                inputs.setdefault(region, []).append(Traffic(root, _activation_bytes(read, shown)))
            elif root.floating and producer.get(root.id) != region:
                found = cached if root.origin == "cache" else inputs
                found.setdefault(region, []).append(Traffic(root, _activation_bytes(read, shown)))
                seen = (*read.views.values(), *(p.value for p in read.partial))
                outside.setdefault(root.id, (root, []))[1].extend(seen)
    for value in (v for v in (*graph.outputs, *_overwritten_inputs(graph, roots)) if v.floating):
        root = roots.get(value.id, value)
        outside.setdefault(root.id, (root, []))[1].append(value)
    outputs: dict[R, list[Traffic]] = {}
    for root, views in outside.values():
        if root.id in producer and root.floating:
            whole = prod((numel(root), _item(root, views)))
            outputs.setdefault(producer[root.id], []).append(Traffic(root, whole))
    for region, part, root in written:
        own = producer.get(root.id) == region
        if part.floating and not own and part.id not in outside:
            outputs.setdefault(region, []).append(Traffic(part, nbytes(part)))
    return {
        region: RegionTraffic(
            *(tuple(t for t in found.get(region, ()) if t.nbytes != 0) for found in (inputs, outputs, weights, cached))
        )
        for region in dict.fromkeys((*reads, *outputs))
    }


def _overwritten_inputs(graph: Graph, roots: Mapping[str, Value]) -> Iterable[Value]:
    """Return the final contents of inputs that the graph overwrites as a whole, since the caller can read them."""
    given: dict[str, str] = {}
    last: dict[str, Value] = {}
    for op in graph.ops:
        before = op.tensors[0] if op.tensors and len(op.outputs) == 1 and overwrites(op) else None
        # A view of it is a part, which counts where it is written.
        if before is not None and before.id not in roots and (before.origin == "input" or before.id in given):
            source = given.get(before.id, before.id)
            given[op.outputs[0].id] = source
            last[source] = op.outputs[0]
    return last.values()


def resolve_views(ops: Iterable[OpCall], costs: Iterable[OpCost | UnknownCost]) -> dict[str, Value]:
    """Map each view and cast, by id, to its root: the tensor that an operator or the caller created."""
    roots: dict[str, Value] = {}
    for op, cost in zip(ops, costs, strict=True):
        if isinstance(cost, UnknownCost) or not op.tensors or (cost.role != "alias" and cost.aliases is None):
            continue
        sources = cost.aliases or (op.tensors[0],) * len(op.outputs)
        for out, source in zip(op.outputs, sources, strict=False):
            root = roots.get(source.id, source)
            if out.id != root.id:
                roots[out.id] = root
    return roots


def tensors_read(op: OpCall, cost: OpCost | UnknownCost) -> tuple[Value, ...]:
    """Return the tensors whose data an operator reads."""
    if isinstance(cost, UnknownCost) or cost.reads is None:
        return op.tensors
    return cost.reads


def _activation_bytes(read: _RootReads, shown: Mapping[str, ViewPart]) -> Size:
    """Return the bytes that a region reads of an activation: the sum over its parts, at most the whole tensor."""
    root = read.root
    whole = prod((numel(root), _item(root, (*read.views.values(), *(p.value for p in read.partial)))))
    sizes: list[Size] = []
    for size in (
        *outermost_sizes(_sizes(root, read.views.values(), shown)),
        *(_row_bytes(root, p) for p in read.partial),
    ):
        if size == whole:
            return whole
        sizes.append(size)
    return smaller(whole, total(sizes))


def packed_numbers(graph: Graph, costs: Sequence[OpCost | UnknownCost], roots: Mapping[str, Value]) -> frozenset[str]:
    """Return the ids of integer tensors that arithmetic converts to floating point, such as packed weights.

    Indices of look-ups and scatters are excluded, and so are masks: no number is computed from them.
    """
    found: set[str] = set()
    for op, cost in zip(reversed(graph.ops), reversed(costs), strict=True):
        if not any(out.floating or {out.id, roots.get(out.id, out).id} & found for out in op.outputs):
            continue
        picked = {p.value.id for p in cost.partial} if isinstance(cost, OpCost) and cost.role == "lookup" else None
        for i, value in enumerate(op.tensors):
            root = roots.get(value.id, value)
            index = value.id not in picked if picked is not None else i > 0 and canonical(op.name) in _SCATTERS
            if not (index or root.floating or root.dtype == "bool"):
                found |= {value.id, root.id}
    return frozenset(found)


def _sizes(root: Value, views: Iterable[Value], shown: Mapping[str, ViewPart]) -> list[tuple[ViewPart, Size]]:
    """Return (part, bytes) of each view that a region reads; a cast to a wider dtype counts in the root's dtype."""
    by_width = sorted(views, key=number_bytes, reverse=True)
    return [(part, prod((part.numbers, _number(root, v)))) for v in by_width for part in (part_of(v, shown),)]


def _row_bytes(root: Value, read: PartialRead) -> Size:
    """Return the bytes of the rows of an activation or buffer that a region looks up."""
    value = read.value
    return prod((read.elements, ITEM_BYTES[value.dtype] // number_bytes(value), _number(root, value)))


def _number(root: Value, view: Value) -> int:
    """Return the bytes per number that a read through a view moves: the smaller of the view's and the root's."""
    return min(number_bytes(root), number_bytes(view))


def _item(root: Value, views: Iterable[Value]) -> int:
    """Return the widest item size in which these views read a tensor, at most the tensor's item size."""
    return ITEM_BYTES[root.dtype] // number_bytes(root) * min(number_bytes(root), max(map(number_bytes, views)))


def _weight_bytes(read: _RootReads, shown: Mapping[str, ViewPart]) -> Size:
    """Return the bytes of a parameter that a region reads, in the parameter's own dtype."""
    whole, number = nbytes(read.root), number_bytes(read.root)
    rows = [prod((p.elements, ITEM_BYTES[read.root.dtype])) for p in read.partial]
    if read.views:
        seen = [(part, prod((part.numbers, number))) for v in read.views.values() for part in (part_of(v, shown),)]
        size = smaller(whole, total(outermost_sizes(seen)))
        if size == whole or not rows:
            return size
        return smaller(whole, total((size, *rows)))
    if len(rows) > 1 and all(p.distinct for p in read.partial):
        return smaller(whole, total(rows))
    return total(rows)
