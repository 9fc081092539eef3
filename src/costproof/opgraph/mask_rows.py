"""Count the query-key pairs that masks keep in a graph with concrete sizes, row by row.

Integer and boolean operators that lead to a mask are computed with NumPy. A comparison of positions of queries and of
keys is not computed pair by pair: the keys that it leaves to a query are an interval, as long as the positions of the
keys do not decrease. So a mask of 131,072 x 131,072 pairs has 131,072 intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any, Final

import numpy as np

from costproof.opgraph.graph import CausalMask, Graph, OpCall, Value
from costproof.opgraph.kept import MaskUse, Write, is_selected, writes_of
from costproof.opgraph.rules.attention import LENGTHS, length_tensors
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.names import canonical, overwrites
from costproof.opgraph.rules.registry import cost_of

Array = np.ndarray[Any, Any]
MOST_ELEMENTS: Final = 2**26
"""Maximum number of elements of a mask whose values are computed."""
HIDDEN: Final = -9_999.0
"""Largest number that hides a score when it is added to it."""


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A boolean tensor [.., rows, keys] whose rows are each true in a single interval of keys."""

    begin: Array
    """First visible key of each row [.., rows]."""
    end: Array
    """Key after the last visible one of each row [.., rows]; at most ``begin`` if the row has no visible key."""
    keys: int

    def both(self, other: Intervals) -> Intervals:
        """Return the intersection with other intervals of the same keys."""
        return Intervals(np.maximum(self.begin, other.begin), np.minimum(self.end, other.end), self.keys)

    def dense(self) -> Array | None:
        """Return the tensor that the intervals describe; ``None`` if it is too large to store."""
        if self.begin.size * self.keys > MOST_ELEMENTS:
            return None
        key = np.arange(self.keys)
        found: Array = (key >= self.begin[..., None]) & (key < self.end[..., None])
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Added:
    """A floating-point tensor that hides the scores to which it is added where ``visible`` is false."""

    visible: Intervals | Array | None = None
    """Keys of each row to which no hiding number is added; ``None``: all keys."""


Content = Intervals | Array | Added | None
"""Known content of a tensor; ``None`` if it is unknown."""
_EVERYWHERE: Final = Added()

_UFUNCS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floor_divide": np.floor_divide, "div": np.true_divide,
    "remainder": np.remainder, "minimum": np.minimum, "maximum": np.maximum, "pow": np.power,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "logical_and": np.logical_and, "logical_or": np.logical_or,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_UNARY: Final[Mapping[str, Callable[..., Any]]] = {
    "bitwise_not": np.invert, "logical_not": np.logical_not, "neg": np.negative, "abs": np.abs,
}  # fmt: skip
_ALONG: Final[Mapping[str, Callable[..., Any]]] = {"cumsum": np.cumsum, "diff": np.diff}
_JOINED: Final[Mapping[str, Callable[..., Any]]] = {
    "cat": np.concatenate, "concat": np.concatenate, "concatenate": np.concatenate, "stack": np.stack,
}  # fmt: skip
_COMPARED: Final = frozenset({"eq", "lt", "le", "gt", "ge"})
_SAME: Final = frozenset({
    "to", "clone", "contiguous", "detach", "alias", "long", "int", "bool", "float", "lift_fresh", "lift_fresh_copy",
    "identity", "type_as", "expand_as", "half", "bfloat16",
})  # fmt: skip
_WRITING: Final = frozenset({"fill", "copy", "setitem"})
_RESHAPED: Final = frozenset({"view", "reshape", "unsqueeze", "squeeze", "flatten", "expand"})
_APPLYING: Final = frozenset({"add", "mul", "masked_fill", "where", "baddbmm", "addmm"})


class QueryRowMasks:
    """Pair counter for concrete sizes, which evaluates the masks of a graph."""

    def __init__(self, graph: Graph, given: Mapping[str, CausalMask | Callable[[], Array]]) -> None:
        """Prepare to evaluate the masks of a graph with concrete sizes.

        Args:
            graph: the graph.
            given: contents, or functions that return the values, of inputs by name and, by ``buffer:NAME``, of buffers,
                plain attributes, and parameters that hide scores.
        """
        self.writers = {v.id: op for op in graph.ops for v in op.outputs}
        self.written = writes_of(graph.ops)
        self.given = given
        self.known: dict[str, Content] = {}

    def in_band(self, queries: Any, keys: Any, left: Any, right: Any, *, at_end: bool) -> int:
        """Count the pairs of one query x key matrix in a band around the diagonal."""
        rows = np.arange(queries, dtype=np.int64) + (keys - queries if at_end else 0)
        begin = np.zeros_like(rows) if left is None else np.maximum(rows - left, 0)
        end = np.full_like(rows, keys) if right is None else np.minimum(rows + right + 1, keys)
        return int(np.maximum(end - begin, 0).sum())

    def under_masks(self, masks: Sequence[MaskUse], grids: Any, queries: Any, keys: Any) -> int | None:
        every: Intervals | Array | None = None
        for use in masks:
            found = self._use(use, queries, keys)
            if found is None:
                return None
            if found.visible is not None:
                every = found.visible if every is None else _both(every, found.visible)
                if every is None:
                    return None
        if every is None:
            return int(grids * queries * keys)
        if isinstance(every, Intervals):
            lengths = np.maximum(np.minimum(every.end, keys) - np.maximum(every.begin, 0), 0)
            one, rows = int(lengths.sum()), lengths.size
            whole, rest = divmod(int(grids * queries), rows)
        else:
            one, rows = int(np.count_nonzero(every)), every.size
            whole, rest = divmod(int(grids * queries * keys), rows)
        return None if rest else one * whole

    def _use(self, use: MaskUse, queries: int, keys: int) -> Added | None:
        """Return which scores an operator keeps when it applies a mask to them."""
        name = canonical(use.op.name)
        if use.mask is None:
            diagonal = int(use.op.attrs.get("diagonal", 0))
            row, all_keys = np.arange(queries), np.full(queries, keys)
            if name == "tril":
                return Added(Intervals(np.zeros(queries, int), np.minimum(row + diagonal + 1, all_keys), keys))
            return Added(Intervals(np.maximum(row + diagonal, 0), all_keys, keys))
        if name in ("masked_fill", "where") and use.place != (1 if name == "masked_fill" else 0):
            return _EVERYWHERE  # what hidden scores become
        if name == "where" and not is_selected(use.op):
            return None
        content = self.content(use.mask)
        if name == "masked_fill":
            return None if (hidden := _flags(content)) is None or (left := _inverted(hidden)) is None else Added(left)
        added = content if use.mask.floating else Added(flags) if (flags := _flags(content)) is not None else None
        if isinstance(added, np.ndarray):
            added = Added(added != 0 if name == "mul" else added > HIDDEN)
        if not isinstance(added, Added):
            return None
        applies = name in _APPLYING or "attention" in name
        return added if added.visible is None or applies else None

    def content(self, value: Value) -> Content:
        """Return the content of a tensor as far as it is known."""
        if value.id not in self.known:
            self.known[value.id] = None
            with suppress(TypeError, ValueError, IndexError, KeyError, OverflowError):  # other forms of arguments
                self.known[value.id] = self._overwritten(value, self._found(value))
        return self.known[value.id]

    def numbers(self, value: Value) -> list[int] | None:
        """Return the values of a vector of integers; ``None`` if they are unknown."""
        content = self.content(value)
        if not isinstance(content, np.ndarray) or content.dtype.kind not in "iu" or len(value.shape) != 1:
            return None
        return [int(n) for n in np.broadcast_to(content, tuple(value.shape))]

    def _overwritten(self, value: Value, content: Content) -> Content:
        """Return the values of a tensor after all operators that overwrite it or a view of it."""
        writes = self.written.get(value.id, ())
        if not writes:
            return content
        if not isinstance(content, np.ndarray):
            return None
        whole = np.array(np.broadcast_to(content, tuple(value.shape)))
        return whole if all(self._write(whole, one) for one in writes) else None

    def _write(self, whole: Array, write: Write) -> bool:
        """Execute an operator that overwrites a view of a tensor; return whether that was possible."""
        view: Content = whole
        for op in write.views:
            name, shape = canonical(op.name), tuple(int(n) for n in op.outputs[0].shape)
            view = (
                _reshaped(name, view, op.tensors[0], shape) if name in _RESHAPED else _selected(name, op, [view], shape)
            )
        if not isinstance(view, np.ndarray) or not np.shares_memory(view, whole):
            return False
        name, attrs, others = canonical(write.op.name), write.op.attrs, write.op.tensors[1:]
        if name == "masked_fill":
            flags = _flags(self.content(others[0]))
            dense = flags.dense() if isinstance(flags, Intervals) else flags
            filled = self.content(others[1]) if len(others) > 1 else attrs.get("value")
            if dense is None or not isinstance(filled, np.ndarray | int | float):
                return False
            view[np.broadcast_to(dense, view.shape)] = filled
            return True
        number = self.content(others[-1]) if others else attrs.get("value", attrs.get("2", attrs.get("other")))
        if len(others) > 1 or not isinstance(number, np.ndarray | int | float) or name not in _WRITING:
            return False
        key = attrs.get("key", attrs.get("1")) if name == "setitem" else ...
        view[tuple(key) if isinstance(key, list) else key] = number
        return key is not None

    def _found(self, value: Value) -> Content:
        op = self.writers.get(value.id)
        if op is None:
            return self._given(value)
        if overwrites(op) or canonical(op.name) == "setitem":
            return self.content(op.tensors[0])
        name, shape = canonical(op.name), tuple(int(n) for n in value.shape)
        if not op.tensors or name in ("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full"):
            return _made(name, op.attrs, value, shape)
        parts = [self.content(v) for v in op.tensors]
        first = parts[0]
        if name in _SAME:
            return _cast(first, value)
        if name in _RESHAPED:
            return _reshaped(name, first, op.tensors[0], shape)
        if name in ("slice", "select", "getitem", "index"):
            return _selected(name, op, parts, shape)
        if name in ("transpose", "permute", "t") and isinstance(first, np.ndarray):
            return _transposed(name, first, op.attrs)
        if name in _ALONG and isinstance(first, np.ndarray):
            return np.asarray(_ALONG[name](first, axis=op.attrs.get("dim", -1)))
        if name in ("pad", "constant_pad_nd") and isinstance(first, np.ndarray):
            return _padded(first, op.attrs)
        if name in _JOINED and all(isinstance(part, np.ndarray) for part in parts):
            arrays = [part for part in parts if isinstance(part, np.ndarray)]
            return np.asarray(_JOINED[name](arrays, axis=op.attrs.get("dim", 0)))
        if name in _UNARY and not value.floating:
            return _inverted(first) if isinstance(first, Intervals) else _apply(_UNARY[name], first)
        if name in _UFUNCS and (found := _combined(name, op, parts, shape)) is not None:
            return found
        if name == "rsub" and isinstance(first, np.ndarray):
            return np.asarray(op.attrs["other"] - first)
        return self._biased(op, name, parts) if value.floating else None

    def _given(self, value: Value) -> Content:
        held = value.origin in ("buffer", "const", "param")
        given = self.given.get(f"buffer:{value.name}" if held else value.name)
        if isinstance(given, CausalMask):
            queries, keys = (int(n) for n in value.shape[-2:])
            end = np.arange(queries) + keys - queries + 1
            begin = np.maximum(end - given.window, 0) if given.window else np.zeros(queries, int)
            visible = Intervals(begin, np.minimum(end, keys), keys)
            return Added(visible) if value.floating else visible
        if given is not None:
            return given()
        return _EVERYWHERE if value.floating and value.origin == "param" else None

    def _biased(self, op: OpCall, name: str, parts: Sequence[Content]) -> Content:
        """Return which scores a floating-point tensor hides when it is added to them."""
        if name == "masked_fill" and len(parts) >= 2 and _is_hiding(op.attrs.get("value"), parts[2:]):
            flags, before = _flags(parts[1]), _numbers(parts[0])
            left = None if flags is None else _inverted(flags)
            if left is None or before is None:
                return None
            both = left if before.visible is None else _both(left, before.visible)
            return None if both is None else Added(both)
        if name == "where":
            flags = _flags(parts[0])
            return Added(flags) if flags is not None and _is_hiding(op.attrs.get("other"), parts[2:]) else None
        if name in ("tril", "triu"):
            return None
        cost = cost_of(op)
        if not isinstance(cost, OpCost):
            return None
        if cost.role == "matmul":
            return _EVERYWHERE
        if cost.role == "lookup":
            return first if isinstance(first := parts[0], Added) and first.visible is None else None
        floats = [_numbers(part) for value, part in zip(op.tensors, parts, strict=True) if value.floating]
        if not floats or None in floats:
            return None
        return _EVERYWHERE if all(part is not None and part.visible is None for part in floats) else None


def with_lengths(graph: Graph, given: Mapping[str, CausalMask | Callable[[], Array]]) -> Graph:
    """Add the lengths of packed sequences to each attention call whose sequence starts have known values.

    Args:
        graph: graph with concrete sizes.
        given: as of :class:`QueryRowMasks`.
    """
    values: QueryRowMasks | None = None
    ops: list[OpCall] = []
    for op in graph.ops:
        tensors = length_tensors(op)
        if tensors is not None:
            values = QueryRowMasks(graph, given) if values is None else values
            starts, key_starts, used = (None if v is None else values.numbers(v) for v in tensors)
            keys = used if tensors[2] is not None else _steps(starts if tensors[1] is None else key_starts)
            queries = _steps(starts)
            if queries is not None and keys is not None and len(queries) == len(keys):
                op = replace(op, attrs={**op.attrs, LENGTHS: tuple(zip(queries, keys, strict=True))})
        ops.append(op)
    return graph if values is None else replace(graph, ops=tuple(ops))


def _steps(starts: list[int] | None) -> list[int] | None:
    return None if starts is None else [end - start for start, end in pairwise(starts)]


def _made(name: str, attrs: Mapping[str, Any], value: Value, shape: tuple[int, ...]) -> Content:
    """Return the values of a tensor that an operator creates from numbers, such as ``arange``."""
    if prod(shape) > MOST_ELEMENTS:
        return None
    if name == "arange":
        start, step = attrs.get("start", 0), attrs.get("step", 1)
        return np.asarray(start + np.arange(shape[0]) * step)
    if name in ("full", "full_like", "new_full", "scalar_tensor", "tensor"):
        number = attrs.get("fill_value", attrs.get("s", attrs.get("data")))
        return None if number is None else np.full(shape, number)
    known = "ones" in name or "zeros" in name
    return np.full(shape, "ones" in name, dtype=bool if value.dtype == "bool" else np.int64) if known else None


def _cast(first: Content, value: Value) -> Content:
    """Return known values converted to another dtype."""
    if not isinstance(first, np.ndarray):
        flags = isinstance(first, Intervals) and value.dtype != "bool"
        return first.dense() if flags and isinstance(first, Intervals) else first
    if value.dtype == "bool":
        return first.astype(bool)
    return first.astype(np.float64 if value.floating else np.int64)


def _reshaped(name: str, first: Content, before: Value, shape: tuple[int, ...]) -> Content:
    """Return known values in another shape; intervals must keep their last two dimensions."""
    if isinstance(first, np.ndarray):
        if name == "expand":
            return first.reshape((1,) * (len(shape) - first.ndim) + first.shape)
        if prod(shape) > MOST_ELEMENTS:
            return None
        return np.broadcast_to(first, before.shape).reshape(shape)
    if isinstance(first, Added) and first.visible is None:
        return first
    return first if before.shape[-2:] == shape[-2:] else None


def _padded(first: Array, attrs: Mapping[str, Any]) -> Content:
    """Return known values padded with a constant along the last dimension; ``None`` for other paddings."""
    amounts, mode = attrs["pad"], attrs.get("mode")
    if len(amounts) != 2 or min(amounts) < 0 or mode not in (None, "constant"):
        return None
    return np.pad(first, [(0, 0)] * (first.ndim - 1) + [tuple(amounts)], constant_values=attrs.get("value") or 0)


def _transposed(name: str, first: Array, attrs: Mapping[str, Any]) -> Array:
    if name == "permute":
        return np.transpose(first, attrs["dims"])
    ends = (-1, -2) if name == "t" else (attrs["dim0"], attrs["dim1"])
    return np.swapaxes(first, *ends)


def _selected(name: str, op: OpCall, parts: Sequence[Content], shape: tuple[int, ...]) -> Content:
    """Return the values that a slice or an index selects from known values; ``None`` if they are unknown."""
    first, attrs = parts[0], op.attrs
    if not isinstance(first, np.ndarray):
        same = op.tensors[0].shape[-2:] == shape[-2:] and len(op.tensors) == 1
        return first if same or (isinstance(first, Added) and first.visible is None) else None
    if name == "select":
        return np.asarray(np.take(first, attrs["index"], axis=attrs["dim"]))
    if name == "slice":
        place = [slice(None)] * first.ndim
        place[attrs.get("dim", 0)] = slice(attrs.get("start"), attrs.get("end"), attrs.get("step"))
        return np.asarray(first[tuple(place)])
    if len(parts) == 1:
        key = attrs["key"]
        return np.asarray(first[tuple(key) if isinstance(key, list) else key])
    places = [part for part in parts[1:] if isinstance(part, np.ndarray)]
    plain = len(places) == len(parts) - 1 and attrs.get("indices") is None and attrs.get("key") is None
    return np.asarray(first[tuple(places)]) if plain and prod(shape) <= MOST_ELEMENTS else None


def _apply(function: Callable[..., Any], first: Content) -> Content:
    return np.asarray(function(first)) if isinstance(first, np.ndarray) else None


def _combined(name: str, op: OpCall, parts: Sequence[Content], shape: tuple[int, ...]) -> Content:
    """Return the result of an operator on two tensors, or on a tensor and a number; ``None`` if it is unknown."""
    first: Any = parts[0]
    other: Any = parts[1] if len(parts) > 1 else op.attrs.get("other")
    if isinstance(first, Intervals) or isinstance(other, Intervals):
        flags = _flags(first), _flags(other)
        if name in ("bitwise_or", "logical_or"):
            for one, rest in (flags, flags[::-1]):
                if isinstance(one, np.ndarray) and not one.any():
                    return rest
        if name not in ("bitwise_and", "logical_and") or flags[0] is None or flags[1] is None:
            dense = [x.dense() if isinstance(x, Intervals) else x for x in (first, other)]
            usable = all(isinstance(x, np.ndarray | int) for x in dense) and name in _UFUNCS
            return np.asarray(_UFUNCS[name](*dense)) if usable else None
        return _both(flags[0], flags[1])
    if name == "add" and isinstance(first, Added) and (second := _numbers(other)) is not None:
        visible = [x for x in (first.visible, second.visible) if x is not None]
        both = _both(*visible) if len(visible) == 2 else visible[0] if visible else None
        return Added(both) if both is not None or not visible else None
    if not isinstance(first, np.ndarray) or not isinstance(other, np.ndarray | int | float):
        return None
    if op.attrs.get("alpha") not in (None, 1) or op.attrs.get("rounding_mode") is not None:
        return None
    if name in _COMPARED and isinstance(other, np.ndarray) and (found := _intervals(name, first, other)) is not None:
        return found
    return np.asarray(_UFUNCS[name](first, other)) if prod(shape) <= MOST_ELEMENTS else None


def _intervals(name: str, first: Array, other: Array) -> Intervals | None:
    """Compare a column with a row of ascending keys; return the result as intervals, ``None`` for other operands."""
    if first.ndim == other.ndim >= 2 and first.shape[-2] == 1 and other.shape[-1] == 1 and first.shape[-1] != 1:
        turned = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}.get(name, name)
        return _intervals(turned, other, first)
    if first.ndim != other.ndim or first.ndim < 2 or first.shape[-1] != 1 or other.shape[-2] != 1:
        return None
    keys = other.reshape(-1, other.shape[-1])
    if keys.shape[0] != 1 or np.any(np.diff(keys[0]) < 0):
        return None
    key, rows = keys[0], first[..., 0]
    low, high = (np.searchsorted(key, rows, side=side) for side in ("left", "right"))
    zero, end = np.zeros_like(low), np.full_like(low, len(key))
    begin, stop = {
        "eq": (low, high), "gt": (zero, low), "ge": (zero, high), "lt": (high, end), "le": (low, end),
    }[name]  # fmt: skip
    return Intervals(begin, stop, len(key))


def _flags(content: object) -> Intervals | Array | None:
    """Convert known values or intervals to a boolean mask; ``None`` for other content."""
    if isinstance(content, Intervals):
        return content
    return content.astype(bool) if isinstance(content, np.ndarray) else None


def _numbers(content: object) -> Added | None:
    """Convert known floating-point content to the scores that it hides when added; ``None`` for other content."""
    if isinstance(content, np.ndarray):
        shown = content > HIDDEN
        return _EVERYWHERE if bool(shown.all()) else Added(shown)
    if isinstance(content, int | float):
        return _EVERYWHERE
    return content if isinstance(content, Added) else None


def _inverted(flags: Intervals | Array) -> Array | Intervals | None:
    if isinstance(flags, np.ndarray):
        return np.logical_not(flags)
    if not np.any(flags.begin):  # from the end of each interval on
        return Intervals(np.maximum(flags.end, 0), np.full_like(flags.end, flags.keys), flags.keys)
    if bool(np.all(flags.end == flags.keys)):
        return Intervals(np.zeros_like(flags.begin), flags.begin, flags.keys)
    dense = flags.dense()
    return None if dense is None else np.logical_not(dense)


def _both(one: Intervals | Array, other: Intervals | Array) -> Intervals | Array | None:
    """Return the positions at which both masks are true; ``None`` if the result is too large to store."""
    if isinstance(one, Intervals) and isinstance(other, Intervals):
        return one.both(other)
    for flags, rest in ((one, other), (other, one)):
        if isinstance(flags, np.ndarray) and bool(flags.all()):
            return rest
    dense = [x.dense() if isinstance(x, Intervals) else x for x in (one, other)]
    return None if dense[0] is None or dense[1] is None else np.logical_and(dense[0], dense[1])


def _is_hiding(number: Any, others: Sequence[object]) -> bool:
    """Return whether a number, or a tensor in its place, is so negative that it hides scores."""
    return bool(others) if number is None else isinstance(number, int | float) and number <= HIDDEN
