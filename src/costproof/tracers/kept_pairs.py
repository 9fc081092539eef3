"""Count the query-key pairs that masks keep in a run, from the values of the masks.

The rules of :mod:`costproof.opgraph.kept` read masks off the operators of a graph. Nothing of them is used here: torch
itself computes what a mask contains, next to a run on meta, and what softmax and masks leave of scores is counted. The
pairs of a fused operator are counted query by query, from its definition.

Large masks are computed some rows at a time: a mask of 131,072 x 131,072 pairs is never stored.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import prod
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from costproof.ledger.errors import first_line

_STORED: Final = 2**18
"""Maximum number of elements of a tensor whose values are stored; larger tensors are computed some rows at a time."""
_LONGEST: Final = 2**24
"""Maximum number of elements of a vector whose values are stored."""
_MOST: Final = 2**26
"""Maximum number of mask elements that are counted."""
_HIDDEN: Final = -9_999.0
"""Largest number that hides a score when it is added to it."""
_SCORE: Final = 0.7390851
"""Number in place of an unknown score; it is not 0 and does not hide a score."""
_FILLED: Final = {"zeros": 0, "ones": 1}
_FACTORIES: Final = (
    "arange", "scalar_tensor", "full", "zeros", "ones", "eye", "tril_indices", "triu_indices", "tensor",
)  # fmt: skip
_SAME: Final = ("_to_copy", "clone", "detach", "alias", "contiguous", "lift_fresh", "lift_fresh_copy", "dropout")
_LOOKUPS: Final = ("embedding", "index", "index_select", "gather")
_SHAPED: Final = ("view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "unsqueeze", "squeeze")
_MOVED: Final = (*_SAME, *_SHAPED, "slice", "select", "transpose", "permute", "t", "cat", "tril", "triu", "flatten")
PRODUCTS: Final = ("bmm", "baddbmm", "mm", "addmm")


class Elements(NamedTuple):
    """Values of a tensor: stored, or computed for some rows (indices of the dimension before the last).

    Dimensions over which the values are equal may have the size 1.
    """

    shape: tuple[int, ...]
    rows: Callable[[int, int], torch.Tensor]
    whole: torch.Tensor | None = None
    key: Hashable = None
    """Key that is equal for values that are computed by the same operations from equal values."""


def stored(tensor: torch.Tensor, shape: tuple[int, ...] | None = None) -> Elements:
    """Return the elements of a tensor with values; ``shape`` is the broadcast shape in which they are used."""
    return Elements(tuple(tensor.shape) if shape is None else shape, partial(_rows_of, tensor), tensor)


def _rows_of(tensor: torch.Tensor, first: int, end: int) -> torch.Tensor:
    return tensor if tensor.dim() < 2 or tensor.shape[-2] == 1 else tensor[..., first:end, :]


def _rows(value: Any, first: int, end: int) -> Any:
    """Return some rows of known values, where a single row stands for all rows; return anything else unchanged."""
    if not isinstance(value, Elements):
        return value
    return value.rows(0, 1) if len(value.shape) > 1 and value.shape[-2] == 1 else value.rows(first, end)


def _constant(shape: tuple[int, ...], number: float = _SCORE, dtype: torch.dtype = torch.float32) -> Elements:
    return stored(torch.full((1,) * len(shape), number, dtype=dtype), shape)


def _in_shape(values: torch.Tensor, before: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
    """Reshape the leading dimensions of rows of values; values that are equal over them stay unexpanded.

    Args:
        before: the shape of all values, of which some dimensions may have the size 1 in ``values``.
        shape: the shape afterwards.
    """
    ends = values.shape[-2:]
    if prod(values.shape[:-2]) == 1:
        return values.reshape((1,) * (len(shape) - 2) + tuple(ends))
    return values.expand(*before[:-2], *ends).reshape(*shape[:-2], *ends)


def _expanded(values: torch.Tensor, dimensions: int) -> torch.Tensor:
    """Prepend dimensions of size 1, over which values are equal."""
    return values.reshape((1,) * (dimensions - values.dim()) + tuple(values.shape))


_broadcast: Final[Callable[..., tuple[int, ...]]] = torch.broadcast_shapes
PLAIN: Final = _constant(())
"""Values of a tensor computed from activations or weights: unknown, except that they hide no score."""


class _Entry(NamedTuple):
    ref: weakref.ref[torch.Tensor]
    known: Elements
    storage: int
    weight: bool = False
    multiplied: bool = False


class RunValues:
    """Values of a run's tensors, which torch computes from tensors with known values."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}

    def add(
        self, tensor: torch.Tensor, value: torch.Tensor | Elements, *, weight: bool = False, multiplied: bool = False
    ) -> None:
        """Record the values of a meta tensor, or that the tensor is a weight; other code must not change the values."""
        known = value if isinstance(value, Elements) else stored(value)
        ref = weakref.ref(tensor, partial(self._forget, id(tensor)))
        self._entries[id(tensor)] = _Entry(ref, known, _storage(tensor), weight, multiplied)

    def _forget(self, key: int, dead: Any) -> None:
        if (entry := self._entries.get(key)) is not None and entry.ref is dead:
            del self._entries[key]

    def known(self, tensor: Any) -> Elements | None:
        """Return the values of a tensor; ``None`` if they are unknown."""
        entry = self._entries.get(id(tensor))
        if entry is not None and entry.ref() is tensor:
            return entry.known
        plain = isinstance(tensor, torch.Tensor) and not tensor.is_meta and not tensor.is_nested
        return stored(tensor) if plain and type(tensor) in (torch.Tensor, torch.nn.Parameter) else None

    def is_weight(self, tensor: Any) -> bool:
        """Return whether a tensor is a parameter, or computed from parameters alone."""
        entry = self._entries.get(id(tensor))
        if entry is not None and entry.ref() is tensor:
            return entry.weight
        return isinstance(tensor, torch.nn.Parameter)

    def is_multiplied(self, tensor: Any) -> bool:
        """Return whether a tensor is, or comes from, a product of parameters alone, as do projected learned queries."""
        entry = self._entries.get(id(tensor))
        return entry is not None and entry.ref() is tensor and entry.multiplied

    def get(self, value: Any) -> Any:
        """Return the stored values of a tensor in place of the tensor; return anything else unchanged."""
        known = self.known(value) if isinstance(value, torch.Tensor) else None
        return value if known is None or known.whole is None or known is PLAIN else known.whole

    def follow(self, func: Any, name: str, args: Any, kwargs: Any, result: Any, *, product: bool) -> None:
        """Compute the result of an operator on meta tensors with known values.

        Args:
            product: whether the operator multiplies matrices, so that its result hides no score.
        """
        made = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        schema = getattr(func, "_schema", None)
        if schema is None:
            return
        weight = bool(given) and all(self.is_weight(t) for t in given)
        multiplied = weight and (product or any(map(self.is_multiplied, given)))
        looked_up = name in _LOOKUPS and bool(given) and self.is_weight(given[0])
        values = [self.known(t) for t in given]
        if schema.is_mutable and given:
            if not given[0].is_meta:
                return
            target, every = values[0], all(v is not None and v.whole is not None and v is not PLAIN for v in values)
            if target is not None and target.whole is not None and every and _is_dense(target.whole):
                with suppress(Exception):
                    func(*tree_map(self.get, args), **tree_map(self.get, dict(kwargs)))  # which views see as well
                    return
            found = (
                self._made(func, name, args, kwargs, made[:1]) if made and made[0] is given[0] and all(values) else None
            )
            self._drop(given[0])
            made = made[:1]
        elif not made or not (weight or all(t.is_meta for t in made)):
            return
        elif product or weight or looked_up:
            found = [PLAIN for _ in made]
        elif not all(values):
            filled = name.removesuffix("_like").removeprefix("new_") in (*_FILLED, "full")
            found = self._made(func, name, args, kwargs, made) if filled else None
        elif any(v is PLAIN for v in values) and not _hide(values):
            found = [PLAIN for _ in made] if all(t.is_floating_point() for t in made) else None
        else:
            found = self._made(func, name, args, kwargs, made)
        for tensor, value in zip(made, found or (), strict=False):
            self.add(tensor, value, weight=weight, multiplied=multiplied)

    def forget(self, result: Any) -> None:
        """Discard the values of an operator's results, and of all tensors that share their memory."""
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._drop(tensor)

    def _drop(self, changed: torch.Tensor) -> None:
        """Discard the values of an overwritten tensor, and of all tensors that share its memory."""
        storage = _storage(changed)
        for key, entry in list(self._entries.items()):
            if entry.storage == storage and entry.known is not PLAIN:
                del self._entries[key]

    def _made(self, func: Any, name: str, *call: Any) -> list[Elements] | None:
        with suppress(Exception):  # of an operator that the CPU lacks, or of other arguments
            return computed(func, name, call[0], call[1], call[2], self.known)
        return None


def _is_dense(whole: torch.Tensor) -> bool:
    """Return whether no two elements of a tensor share memory."""
    return all(stride or size < 2 for stride, size in zip(whole.stride(), whole.shape, strict=True))


def _hide(values: Sequence[Elements | None]) -> bool:
    """Return whether known values can hide scores: as an additive mask, or as flags that select scores."""
    for one in values:
        if one is None or one is PLAIN:
            continue
        if one.whole is None or not one.whole.is_floating_point() or hides(one.whole):
            return True
    return False


def hides(values: torch.Tensor) -> bool:
    """Return whether numbers that are added to scores hide some of them."""
    return bool((values <= _HIDDEN).any())


def _storage(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def computed(
    func: Any,
    name: str,
    args: Any,
    kwargs: Any,
    made: Sequence[torch.Tensor],
    known: Callable[[Any], Elements | None],
) -> list[Elements] | None:
    """Compute the values of an operator's results with torch from those of its inputs; ``None`` if they are unknown."""
    shape = tuple(made[0].shape)
    stem = name.removesuffix("_") if func._schema.is_mutable else name
    base = stem.removesuffix("_like").removeprefix("new_")
    if base in (*_FILLED, "full") and len(made) == 1:
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, int | float | bool)]
        found = _constant(shape, _FILLED.get(base, given[0] if given else 0), made[0].dtype)
        small = prod(shape) <= _STORED and found.whole is not None
        return [stored(found.whole.expand(shape).clone())] if small else [found]  # type: ignore[union-attr]
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if not tensors and base not in _FACTORIES:
        return None
    values = {id(t): known(t) for t in tensors}
    if not all(values.values()):
        return None
    if func._schema.is_mutable:  # computed as another tensor, which takes the place of the first one
        func = getattr(getattr(torch.ops.aten, stem), func._overloadname)
    args, kwargs = tree_map(lambda t: values[id(t)] if isinstance(t, torch.Tensor) else t, (args, dict(kwargs)))
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    parts = [v for v in tree_leaves((args, kwargs), is_leaf=_is_known) if _is_known(v)]
    few = sum(t.numel() for t in made) <= _STORED or (len(shape) < 2 and prod(shape) <= _LONGEST)
    if few and all(v.whole is not None for v in parts):
        each = tree_map(lambda v: v.whole.expand(v.shape) if _is_known(v) else v, (args, kwargs), is_leaf=_is_known)
        results = [t for t in tree_leaves(func(*each[0], **each[1])) if isinstance(t, torch.Tensor)]
        return [stored(t.expand(m.shape)) for t, m in zip(results, made, strict=True)]
    if len(made) != 1 or len(shape) < 2:
        return None
    args, kwargs = tree_map(_held, (args, kwargs), is_leaf=_is_known)
    rows = _by_rows(func, stem, args, kwargs, shape)
    key = (str(func), *map(_keyed, tree_leaves((args, kwargs), is_leaf=_is_known)), *kwargs, shape)
    return None if rows is None else [Elements(shape, rows, None, key)]


def _is_known(value: Any) -> bool:
    return isinstance(value, Elements)


def _held(value: Any) -> Any:
    """Return a copy of stored values, since later operators may overwrite the tensor."""
    if not _is_known(value) or value.whole is None or value.key is not None:
        return value
    own = value.whole.clone() if value.whole.numel() <= _STORED else value.whole
    alike = hash(own.numpy().tobytes()) if own is not value.whole and own.dtype != torch.bfloat16 else object()
    return stored(own, value.shape)._replace(key=(value.shape, tuple(own.shape), str(own.dtype), alike))


def _keyed(value: Any) -> Hashable:
    return value.key if _is_known(value) else str(value)


def _by_rows(func: Any, name: str, args: Any, kwargs: Any, shape: tuple[int, ...]) -> Any:
    """Return a function from (first row, last row + 1) to result rows; ``None`` for operators that mix rows."""
    if torch.Tag.pointwise in func.tags or name in _SAME:

        def rows(a: int, b: int) -> Any:
            one, more = tree_map(partial(_rows, first=a, end=b), (args, kwargs), is_leaf=_is_known)
            return func(*one, **more)

        return rows
    first = args[0]
    if name in ("tril", "triu"):
        diagonal = args[1] if len(args) > 1 else kwargs.get("diagonal", 0)
        return lambda a, b: func((x := _rows(first, a, b)).expand(*x.shape[:-2], b - a, shape[-1]), diagonal + a)
    if name == "cat" and (args[1] if len(args) > 1 else 0) % len(shape) == len(shape) - 1:
        return lambda a, b: _joined([(_rows(v, a, b), v.shape[-1]) for v in first], b - a)
    if not _is_known(first):
        return None
    if name == "expand" and len(first.shape) > 1:
        return lambda a, b: _expanded(_rows(first, a, b), len(shape))
    if name in _SHAPED:
        alike = first.shape[-2:] == shape[-2:]
        return (lambda a, b: _in_shape(_rows(first, a, b), first.shape, shape)) if alike else None
    axis = (args[1] if len(args) > 1 else 0) % len(first.shape) - len(first.shape)
    if name == "slice" and axis == -2:
        start, step = (*args[2:3], 0)[0] or 0, args[4] if len(args) > 4 else 1
        return (lambda a, b: _rows(first, a + start, b + start)) if start >= 0 and step == 1 else None
    if name in ("slice", "select") and (name == "slice" or axis < -2):
        return lambda a, b: func(_grown(_rows(first, a, b), axis, first.shape[axis]), *args[1:], **kwargs)
    return None


def _grown(values: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Expand one dimension of values to its full size, if they are equal over the dimension."""
    shape = list(values.shape)
    shape[axis] = size
    return values.expand(shape)


def _joined(parts: Sequence[tuple[torch.Tensor, int]], rows: int) -> torch.Tensor:
    """Join rows of several tensors along the last dimension."""
    leading = _broadcast(*(x.shape[:-2] for x, _ in parts))
    return torch.cat([x.expand(*leading, rows, width) for x, width in parts], dim=-1)


@dataclass(slots=True)
class _Product:
    """The matrix product that computed scores: its call, FLOPs and number of scores."""

    key: Any
    flops: int
    pairs: int
    before: int | None = None
    """Number of pairs that the masks before a softmax keep."""
    softmax: bool = False
    widened: bool = False
    done: bool = False


class _Followed(NamedTuple):
    ref: weakref.ref[torch.Tensor]
    product: _Product
    known: Elements | None
    """Scores with a constant in place of each computed number; ``None`` after an unknown mask."""
    masked: bool


@dataclass(slots=True)
class KeptPairs:
    """Pairs that masks keep, and FLOPs that they hide, by call of a module and operator.

    An error while masks are read makes the pairs of their scores unknown, and nothing else.
    """

    values: RunValues
    kept: dict[Any, int | None]
    """Query-key pairs by (active calls, operator); ``None``: unknown."""
    hidden: dict[Any, int | None]
    """FLOPs for pairs that masks hide, by (active calls, operator); ``None``: unknown."""
    unread: dict[str, str]
    """Error that ended the reading of an operator's masks, by operator."""
    _scores: dict[int, _Followed] = field(default_factory=dict)
    _counts: dict[Hashable, int | None] = field(default_factory=dict)

    def fused(self, key: Any, flops: int, count: Callable[[], tuple[int, int | None]]) -> None:
        """Add a fused attention call; ``count`` returns its pairs, and the pairs that its mask keeps."""
        try:
            pairs, kept = count()
        except Exception as error:
            self._lose([key], key[1], error)
            return
        _add(self.kept, key, kept)
        _add(self.hidden, key, None if kept is None else flops - (flops * kept // pairs if pairs else 0))

    def follow(self, key: Any, func: Any, name: str, args: Any, kwargs: Any, result: Any, flops: int) -> None:
        """Track scores from the product that computes them to the product that weights values by them."""
        try:
            self._follow(key, func, name, args, kwargs, result, flops)
        except Exception as error:
            scores = [s for t in tree_leaves((args, kwargs)) if (s := self._of(t)) is not None]
            self._lose([*([key] if flops else []), *(s.product.key for s in scores)], name, error)

    def _lose(self, keys: Iterable[Any], name: str, error: Exception) -> None:
        """Mark the pairs of some calls as unknown, since the reading of a mask failed."""
        self.kept |= dict.fromkeys(keys)
        self.hidden |= dict.fromkeys(keys)
        self.unread[name] = first_line(error)

    def _follow(self, key: Any, func: Any, name: str, args: Any, kwargs: Any, result: Any, flops: int) -> None:
        if name in PRODUCTS and flops:
            self._product(key, name, args, result, flops)
            return
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        seen = [s for t in given if (s := self._of(t)) is not None]
        made = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        if not seen or not made:
            return
        first = seen[0]
        pointwise = torch.Tag.pointwise in func.tags
        if len(made) > 1 or not (pointwise or name in _MOVED or "softmax" in name):
            for tensor in made:
                if tensor.shape[-1:] == (1,) and tensor.is_meta:  # a sum or maximum of each row
                    self.values.add(tensor, PLAIN)
            return
        if "softmax" in name:
            left = None if first.known is None else visible(first.known)
            if not first.product.softmax:
                first.product.softmax = True
                # Of scores with further columns, such as sinks, the pairs are counted once these are cut off.
                first.product.widened = made[0].numel() != first.product.pairs
                if left is not None and not first.product.widened:
                    first.product.before = self._count(left)
            self._note(made[0], first.product, left, masked=True)
            return
        others = [t for t in given if self._of(t) is None]
        varying = [t for t in others if any(size != 1 for size in t.shape[-2:])]
        masked = first.masked or (bool(varying) and name != "cat") or name in ("tril", "triu")
        if all(s.known is None for s in seen) or None in map(self.values.known, varying):
            self._note(made[0], first.product, None, masked=masked)
            return

        def known(tensor: Any) -> Elements | None:
            if (found := self._of(tensor)) is not None:
                return found.known
            value = self.values.known(tensor)
            return _constant(tuple(tensor.shape)) if value is None or value is PLAIN else value

        values: list[Elements] | None = None
        with suppress(Exception):
            values = computed(func, name, args, kwargs, made, known)
        self._note(made[0], first.product, values[0] if values else None, masked=masked)

    def _product(self, key: Any, name: str, args: Any, result: Any, flops: int) -> None:
        added = args[0] if name in ("baddbmm", "addmm") else None
        left, right = args[1:3] if added is not None else args[:2]
        for factor, other in ((left, right), (right, left)):
            if (found := self._of(factor)) is not None and self._of(other) is None:
                self._weights(key, found, factor, flops)
                return
        if any(self.values.is_weight(t) and not self.values.is_multiplied(t) for t in (left, right)):
            return
        shape, known = tuple(result.shape), None
        if added is None or added.numel() == 1 or self.values.known(added) is PLAIN:
            known = _constant(shape)
        elif (mask := self.values.known(added)) is not None:
            known = Elements(
                shape, lambda a, b: _SCORE + _rows(mask, a, b), None, ("added", shape, _keyed(_held(mask)))
            )
        self._note(result, _Product(key, flops, prod(shape)), known, masked=added is not None and added.numel() > 1)

    def _weights(self, key: Any, scores: _Followed, factor: torch.Tensor, flops: int) -> None:
        """Record the attention that ends with this product, in which scores weight values."""
        first = scores.product
        if first.done or not (scores.masked or first.softmax):
            return
        whole = factor.numel() == first.pairs
        after = self._count(visible(scores.known)) if scores.known is not None and whole else None
        if not first.softmax and after == first.pairs:  # products without a softmax of which nothing is hidden
            return
        first.done = True
        before = first.before if first.softmax and not first.widened else after
        _add(self.kept, first.key, before)
        for place, cost, left in ((first.key, first.flops, before), (key, flops, after)):
            _add(self.hidden, place, None if left is None else cost - cost * left // first.pairs)

    def _count(self, flags: Elements) -> int | None:
        """Return the number of flags that are true; ``None`` if there are too many flags."""
        if flags.key is None or flags.key not in self._counts or flags.whole is not None:
            self._counts[flags.key] = _number(flags)
        return self._counts[flags.key]

    def _of(self, tensor: Any) -> _Followed | None:
        found = self._scores.get(id(tensor))
        return found if found is not None and found.ref() is tensor else None

    def _note(self, tensor: torch.Tensor, product: _Product, known: Elements | None, *, masked: bool) -> None:
        ref = weakref.ref(tensor, partial(self._forget, id(tensor)))
        self._scores[id(tensor)] = _Followed(ref, product, known, masked)

    def _forget(self, key: int, dead: Any) -> None:
        if (found := self._scores.get(key)) is not None and found.ref is dead:
            del self._scores[key]


def _add(sums: dict[Any, int | None], key: Any, amount: int | None) -> None:
    before = sums.get(key, 0)
    sums[key] = None if before is None or amount is None else before + amount


def visible(known: Elements) -> Elements:
    """Return for each score whether it is visible: neither hidden before a softmax nor set to 0."""
    whole = None if known.whole is None else _shown(known.whole)
    return Elements(known.shape, lambda a, b: _shown(known.rows(a, b)), whole, ("visible", known.key))


def _shown(values: torch.Tensor) -> torch.Tensor:
    return _unhidden(values) & (values != 0)


def _unhidden(values: torch.Tensor) -> torch.Tensor:
    """Return which values hide no score; complex values never hide one."""
    if values.is_complex():
        return torch.ones_like(values, dtype=torch.bool)
    return values if values.dtype == torch.bool else values > _HIDDEN


def _number(flags: Elements) -> int | None:
    if flags.whole is not None:
        return int(flags.whole.count_nonzero()) * (prod(flags.shape) // flags.whole.numel()) if prod(flags.shape) else 0
    rows, columns = flags.shape[-2:]
    if rows * columns > _MOST:
        return None
    step, found = max(1, _STORED // max(1, columns)), 0
    for first in range(0, rows, step):
        end = min(first + step, rows)
        block = flags.rows(first, end)
        found += int(block.count_nonzero()) * (prod(flags.shape[:-2]) * (end - first) * columns // block.numel())
    return found


@lru_cache(maxsize=4096)
def band(queries: int, keys: int, left: int | None, right: int | None, shift: int) -> int:
    """Return the pairs of one query x key matrix in a band around the diagonal, counted query by query.

    Args:
        left: keys that a query sees before its own; ``None``: all.
        right: keys that a query sees after its own; ``None``: all.
        shift: index of the key that is query 0's own.
    """
    found = 0
    for query in range(queries):
        own = query + shift
        first = 0 if left is None else max(0, own - left)
        last = keys - 1 if right is None else min(keys - 1, own + right)
        found += max(0, last - first + 1)
    return found


def broadcast_pairs(mask: Elements, pairs: int) -> int | None:
    """Return the pairs that a boolean or additive mask keeps, broadcast to all query x key matrices."""
    if mask.whole is not None:
        mask = stored(_unhidden(mask.whole), mask.shape)
    one = _number(Elements(mask.shape, lambda a, b: _unhidden(mask.rows(a, b)), mask.whole))
    size = prod(mask.shape)
    return None if one is None or not size or pairs % size else one * (pairs // size)
