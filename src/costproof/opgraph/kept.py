"""Count the query-key pairs that masks keep, in each attention of a graph.

Attention is a fused call, whose rule states the scores and their mask, or two products with a softmax or a mask
between them (:func:`unfused_attention`). How many pairs a mask leaves is counted by a :class:`PairCounter`, of which
every source has its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Final, Protocol

from costproof.ledger.errors import Recount, check_recounts
from costproof.opgraph.costed import CostedGraph
from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.attention import FLEX
from costproof.opgraph.rules.cost import OpCost, ScoreGrid
from costproof.opgraph.rules.names import canonical, overwrites
from costproof.opgraph.rules.sizes import in_numbers, numel, prod, total

_TRIANGLES: Final = frozenset({"tril", "triu"})
_ADDING: Final = frozenset({"baddbmm", "addmm"})
"""Matrix products that add their first operand to the result."""
_JOINING: Final = frozenset({"cat", "concat", "concatenate"})
_SOFTMAX: Final = frozenset({"softmax", "_softmax", "safe_softmax", "_safe_softmax"})
_STORED: Final = ("param", "buffer")
_MOVING: Final = ("alias", "move", "lookup")
_FUSED: Final = "attention"


@dataclass(frozen=True, slots=True)
class MaskUse:
    """A mask, with the operator that applies it to attention scores."""

    op: OpCall
    mask: Value | None
    """Mask tensor; ``None`` for the triangle of ``tril`` or ``triu``, which the operator applies itself."""
    place: int = 0
    """Position of the mask among the tensor arguments of the operator."""


class PairCounter(Protocol):
    """Protocol of counters of the query-key pairs that masks keep; ``None`` means unknown."""

    def in_band(self, queries: Size, keys: Size, left: Size | None, right: Size | None, *, at_end: bool) -> Size | None:
        """Count the pairs of one query x key matrix in a band, with arguments as in :class:`.rules.cost.ScoreGrid`."""
        ...

    def under_masks(self, masks: Sequence[MaskUse], grids: Size, queries: Size, keys: Size) -> Size | None:
        """Count the pairs that all masks together keep, over ``grids`` query x key matrices."""
        ...


@dataclass(frozen=True, slots=True)
class FirstKnown:
    """Pair counter that asks other counters in order, and returns the first known count."""

    counters: tuple[PairCounter, ...]

    def in_band(self, queries: Size, keys: Size, left: Size | None, right: Size | None, *, at_end: bool) -> Size | None:
        """Count the pairs of one query x key matrix in a band around the diagonal."""
        found = (one.in_band(queries, keys, left, right, at_end=at_end) for one in self.counters)
        return next((n for n in found if n is not None), None)

    def under_masks(self, masks: Sequence[MaskUse], grids: Size, queries: Size, keys: Size) -> Size | None:
        found = (one.under_masks(masks, grids, queries, keys) for one in self.counters)
        return next((n for n in found if n is not None), None)


@dataclass(frozen=True, slots=True)
class KeptWork:
    """FLOPs and query-key pairs of an operator that masks keep; ``None``: unknown."""

    flops: Size | None
    scores: Size | None = 0
    """Number of scores that no mask hides; 0 for the second product of unfused attention, as the first has them."""
    hides_keys: bool = False
    """Whether a mask may hide a key from all queries."""


def kept_work(costed: CostedGraph, count: PairCounter) -> Mapping[int, KeptWork]:
    """Return the work that masks keep, by index of each operator that computes scores or weights values by them."""
    found: dict[int, KeptWork] = {}
    for i, (op, cost) in enumerate(zip(costed.graph.ops, costed.costs, strict=True)):
        if isinstance(cost, OpCost) and cost.attention is not None and cost.flops != 0:
            found[i] = one_call = _fused(op, cost.attention, count)
            again = _may_hide_keys(cost.attention, one_call.scores)
            check_recounts(
                [Recount(op.module or "(root)", f"mask of {op.name}", "hides keys", one_call.hides_keys, again)]
            )
            if op.name.startswith(FLEX):
                both = _of_flexible(op, cost.vector)
                check_recounts([Recount(op.module or "(root)", op.name, "vector FLOPs", *both)])
    for one in unfused_attention(costed):
        first, second = (costed.costs[at] for at in (one.first, one.second))
        assert isinstance(first, OpCost)
        assert isinstance(second, OpCost)
        *leading, queries, keys = costed.graph.ops[one.first].outputs[0].shape
        grids = prod(leading)
        pairs = prod((grids, queries, keys))
        before, after = (
            count.under_masks(masks, grids, queries, keys) if masks else pairs for masks in (one.before, one.masks)
        )
        hides = after != pairs
        if not one.softmax and not hides:  # a sum with another product, as in hyper-connections, hides nothing
            continue
        found[one.first] = KeptWork(_share(first.flops, before, pairs), before, hides)
        found[one.second] = KeptWork(_share(second.flops, after, pairs), 0, hides)
    return found


_SCORE: Final = 1 + 5
"""Vector FLOPs of a score: the scale, and the maximum, difference, exponential, sum and division of the softmax."""


def _of_flexible(op: OpCall, counted: Size) -> tuple[int, int]:
    """Return the vector FLOPs of a flex_attention call, symbolic ones at one size: as counted, and by definition.

    No other source counts them by a rule of its own. Each score of a query of each head with each key takes
    :data:`_SCORE` and what the score function states.
    """
    (batch, heads, queries, _), keys = op.tensors[0].shape, op.tensors[1].shape[-2]
    again = prod((batch, heads, queries, keys, _SCORE + op.attrs["score_flops"]))
    return in_numbers(counted), in_numbers(again)


def _fused(op: OpCall, grid: ScoreGrid, count: PairCounter) -> KeptWork:
    """Return the FLOPs and query-key pairs that the mask or window of a fused attention call keeps."""
    pairs = grid.pairs
    kept: Size | None = pairs
    hides = False
    if grid.kept is not None:
        kept, hides = grid.kept, grid.kept != pairs
    elif not grid.known or (grid.packed and grid.mask is not None):
        kept, hides = None, True
    elif grid.packed:
        kept = _packed(grid, count)
        # As below, and a cache may have rows that no sequence uses.
        hides = _behind_band(grid, any(q != k for q, k in grid.packed)) or sum(k for _, k in grid.packed) != grid.keys
    elif grid.mask is not None:
        kept = count.under_masks([MaskUse(op, grid.mask)], grid.grids, grid.queries, grid.keys)
        hides = kept != pairs
    elif grid.left is not None or grid.right is not None:
        one = count.in_band(grid.queries, grid.keys, grid.left, grid.right, at_end=grid.at_end)
        kept = None if one is None else prod((grid.grids, one))
        hides = _behind_band(grid, grid.queries != grid.keys)
    return KeptWork(None if kept is None else prod((2, kept, grid.width)), kept, hides)


def _behind_band(grid: ScoreGrid, unequal: bool) -> bool:
    """Return whether keys may lie outside of the bands of all queries: before them, or after them."""
    return unequal and (grid.left if grid.at_end else grid.right) is not None


def _may_hide_keys(grid: ScoreGrid, kept: Size | None) -> bool:
    """Return whether a fused call may have keys that no query attends to, by brute force over small matrices.

    Args:
        kept: number of pairs that the mask keeps; ``None``: unknown.
    """
    if not grid.known or grid.mask is not None or grid.kept is not None:
        return kept is None or kept != grid.pairs
    rows = grid.packed or ((grid.queries, grid.keys),)
    unused = bool(grid.packed) and sum(k for _, k in grid.packed) != grid.keys
    ends = (None if end is None else min(end, 2) for end in (grid.left, grid.right))
    return unused or _hides_in_small(*ends, at_end=grid.at_end, square=all(q == k for q, k in rows))


@cache
def _hides_in_small(left: int | None, right: int | None, *, at_end: bool, square: bool) -> bool:
    """Return whether some matrix of at most 3 queries by 8 keys has a key that its band hides from all queries."""
    for queries, keys in product(range(1, 4), range(1, 9)):
        shift = keys - queries if at_end else 0
        seen = {
            key
            for query, key in product(range(queries), range(keys))
            if (left is None or key >= query + shift - left) and (right is None or key <= query + shift + right)
        }
        if len(seen) < keys and (queries == keys or not square):
            return True
    return False


def _packed(grid: ScoreGrid, count: PairCounter) -> Size | None:
    """Return the number of query-key pairs of packed sequences that a window keeps, in all heads."""
    if grid.left is None and grid.right is None:
        return grid.pairs
    found: list[Size] = []
    for (queries, keys), times in Counter(grid.packed).items():
        one = count.in_band(queries, keys, grid.left, grid.right, at_end=grid.at_end)
        if one is None:
            return None
        found.append(prod((times, one)))
    return prod((grid.grids, total(found)))


def _share(flops: Size, kept: Size | None, pairs: Size) -> Size | None:
    """Return the FLOPs of the query-key pairs that a mask keeps: flops * kept / pairs."""
    if kept is None or kept == pairs:
        return None if kept is None else flops
    if isinstance(flops, int) and isinstance(pairs, int):
        return prod((flops // pairs, kept))
    import sympy

    return prod((sympy.cancel(sympy.sympify(flops) / pairs), kept))


@dataclass(slots=True)
class _Scores:
    """Masks and a softmax that were applied to attention scores since the product that computed them."""

    masks: tuple[MaskUse, ...] = ()
    before: tuple[MaskUse, ...] | None = None
    """Masks applied before the softmax; ``None`` if no softmax was applied."""


@dataclass(frozen=True, slots=True)
class UnfusedAttention:
    """Attention as two matrix products: the first computes scores, the second weights values by them."""

    first: int
    second: int
    before: tuple[MaskUse, ...]
    """Masks that reduce the first product's work: those before a softmax, which needs all other scores."""
    masks: tuple[MaskUse, ...]
    """All masks between the two products."""
    softmax: bool
    """Whether a softmax is between the two products."""


def unfused_attention(costed: CostedGraph) -> Iterator[UnfusedAttention]:
    """Yield the attentions that a graph computes by two matrix products with a softmax or mask between them."""
    scores: dict[str, dict[int, _Scores]] = {}
    """Products whose scores a value derives from, by index, with the masks applied since; by id of the value."""
    live, given, kept = set[str](), set[str](), set[str]()
    """Ids of values computed from activations or weights (``live``), and from inputs or caches of any type (``given``);
    of parameters and buffers, with views, copies and selected matrices, but not rows looked up by tokens (``kept``)."""
    fixed = set[str]()
    """Ids of parameters, buffers and values computed from them alone without a product: an interpolated table."""
    projections = set[int]()
    """Indices of products with a parameter, which scale and shift scores but do not compare tokens."""
    for i, (op, cost) in enumerate(zip(costed.graph.ops, costed.costs, strict=True)):
        live.update(v.id for v in op.tensors if v.floating and v.origin in ("input", "cache", "param"))
        kept.update(v.id for v in op.tensors if v.origin in _STORED)
        given.update(v.id for v in op.tensors if v.origin in ("input", "cache"))
        if any(v.id in given for v in op.tensors):
            given.update(v.id for v in op.outputs)
        made = {p: state for v in op.tensors for p, state in scores.get(v.id, {}).items()}
        role = cost.role if isinstance(cost, OpCost) else "vector"
        fixed.update(v.id for v in op.tensors if v.origin in _STORED)
        if role != "matmul" and op.tensors and all(v.id in fixed for v in op.tensors):
            fixed.update(v.id for v in op.outputs)
        moved = role in _MOVING and any(v.id in kept for v in op.tensors)
        embedded = role == "lookup" and len(op.tensors[0].shape) == 2 and any(v.id in given for v in op.tensors)
        if (moved and not embedded) or any(v.id in fixed for v in op.outputs):
            kept.update(v.id for v in op.outputs)
        if any(v.id in live for v in op.tensors):
            live.update(v.id for v in op.outputs)
        if isinstance(cost, OpCost) and cost.role == "matmul" and cost.flops != 0:
            adding = canonical(op.name) in _ADDING
            factors = op.tensors[1:] if adding else op.tensors
            activations = len(factors) > 1 and all(v.id in live for v in factors)
            if len({v.id in kept for v in factors}) > 1:
                projections.add(i)
            elif activations and _FUSED not in op.name:
                for p, state in made.items():
                    if p not in projections and (state.masks or state.before is not None):
                        before = state.masks if state.before is None else state.before
                        yield UnfusedAttention(p, i, before, state.masks, state.before is not None)
                added = adding and op.attrs.get("beta") != 0 and _may_hide(op.tensors[0])
                own = _Scores((MaskUse(op, op.tensors[0]),)) if added else _Scores()
                scores.update((v.id, {i: own}) for v in op.outputs)
            continue
        seen = [v for v in op.tensors if v.id in scores]
        grown = role == "vector" and all(_is_larger(out, v) for v in seen for out in op.outputs)
        if made and not grown:
            name = canonical(op.name)
            uses: tuple[MaskUse, ...] = (MaskUse(op, None),) if name in _TRIANGLES else ()
            if name not in _JOINING:
                uses += tuple(
                    MaskUse(op, v, at) for at, v in enumerate(op.tensors) if v.id not in scores and _may_hide(v)
                )
            normalized = name in _SOFTMAX
            scores.update(
                (v.id, {p: _applied(state, uses, normalized=normalized) for p, state in made.items()})
                for v in op.outputs
            )


def _applied(state: _Scores, uses: tuple[MaskUse, ...], *, normalized: bool) -> _Scores:
    masks = (*state.masks, *uses)
    return _Scores(masks, masks if normalized and state.before is None else state.before)


def _may_hide(value: Value) -> bool:
    """Return whether a tensor combined with scores varies along queries or keys, as only a mask does."""
    return any(size != 1 for size in value.shape[-2:])


def _is_larger(out: Value, scores: Value) -> bool:
    """Return whether a result certainly has more elements than the scores, so that it broadcasts them."""
    before, after = numel(scores), numel(out)
    return isinstance(before, int) and isinstance(after, int) and after > before


_VIEWS: Final = frozenset({
    "slice", "select", "getitem", "view", "reshape", "unsqueeze", "squeeze", "expand", "transpose", "permute", "t",
    "alias", "detach", "narrow",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Write:
    """An operator that overwrites a tensor or a view of it."""

    views: tuple[OpCall, ...]
    """Views that lead from the tensor to the part that is overwritten, outermost first."""
    op: OpCall


def writes_of(ops: Iterable[OpCall]) -> dict[str, list[Write]]:
    """Return the operators that overwrite a tensor, in order of execution, by the tensor's id."""
    found: dict[str, list[Write]] = {}
    writers: dict[str, OpCall] = {}
    for op in ops:
        if op.tensors and (overwrites(op) or canonical(op.name) == "setitem"):
            value, views = op.tensors[0], list[OpCall]()
            while (before := writers.get(value.id)) is not None and canonical(before.name) in _VIEWS:
                views.insert(0, before)
                value = before.tensors[0]
            found.setdefault(value.id, []).append(Write(tuple(views), op))
        writers.update((v.id, op) for v in op.outputs)
    return found


def is_selected(op: OpCall) -> bool:
    """Return whether a ``where`` returns the scores where its condition is true."""
    others = [v for v in op.tensors[1:] if v.floating]
    scores = max(others, key=lambda v: len(v.shape), default=None)
    return scores is not None and scores is not op.names.get("other") and "self" not in op.attrs
