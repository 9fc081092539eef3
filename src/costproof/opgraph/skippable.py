"""Find the headline FLOPs that another implementation of the same result can skip, which time bounds leave out.

Scores that a mask hides: a causal flag and a window determine them (:mod:`costproof.opgraph.rules.attention`); the
contents of a mask tensor are data, so it may hide all of them. The same holds for unfused attention: two products where
a
possible mask is applied to the result of the first on its way to the second, with or without a softmax between them.

Cached latents that a product expands to keys and values: queries and sums may absorb the weights (DeepSeek-V2, section
2.1.2), so the product over the past can be skipped. Scores of the latents are wider then, unless heads are wider than
two latents: such attention may skip its scores too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from costproof.opgraph.costed import CostedGraph
from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.attention import is_flash, window_of
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.registry import UnknownCost
from costproof.opgraph.rules.sizes import numel, prod, total

_TRIANGLES: Final = frozenset({"tril", "triu"})
_ADDING: Final = frozenset({"baddbmm", "addmm"})
"""Matrix products that add their first operand to the result."""
_STORED: Final = ("param", "buffer")
_MOVING: Final = ("alias", "move", "lookup")
_LINEAR: Final = frozenset({"linear", "mm", "matmul", "addmm"})
_FUSED: Final = "attention"


def skippable_flops(costed: CostedGraph) -> Mapping[int, Size]:
    """Return, by index of the operator, the headline FLOPs that can be skipped."""
    ops, costs = costed.graph.ops, costed.costs
    found = {i: c.skippable for i, c in enumerate(costs) if isinstance(c, OpCost) and c.skippable != 0}
    writer = {v.id: i for i, op in enumerate(ops) for v in op.outputs}

    def whole(at: int) -> None:
        cost = costs[at]
        assert isinstance(cost, OpCost)
        found[at] = cost.flops

    def multiplies(at: int) -> bool:
        cost = costs[at]
        return isinstance(cost, OpCost) and cost.role == "matmul" and cost.flops != 0

    for at in _maskable_products(costed, multiplies):
        whole(at)
    for i, op in enumerate(ops):
        if canonical(op.name) in _LINEAR and multiplies(i):
            past = _mapped_past(op, costed, writer)
            if past is not None and op.outputs:
                rank, out = past.shape[-1], op.outputs[0].shape[-1]
                found[i] = prod((2, numel(past), out))
                for at in _attention_calls(op, ops):
                    if multiplies(at) and not _heads_are_narrow(ops[at], rank, out):
                        whole(at)
    return found


def _maskable_products(costed: CostedGraph, multiplies: Callable[[int], bool]) -> Iterator[int]:
    """Yield both matrix products of each unfused attention whose scores a mask may hide."""
    scores: dict[str, dict[int, bool]] = {}
    """Id of a value derived from scores -> index of the product that computed them -> whether a mask was applied."""
    live, kept = set[str](), set[str]()
    """Ids of values computed from activations or weights; ids of parameters and buffers, also as views or copies."""
    for i, (op, cost) in enumerate(zip(costed.graph.ops, costed.costs, strict=True)):
        live.update(v.id for v in op.tensors if v.floating and v.origin in ("input", "cache", "param"))
        kept.update(v.id for v in op.tensors if v.origin in _STORED)
        made = {p: masked for v in op.tensors for p, masked in scores.get(v.id, {}).items()}
        role = cost.role if isinstance(cost, OpCost) else "vector"
        if role in _MOVING and any(v.id in kept for v in op.tensors):
            kept.update(v.id for v in op.outputs)
        if any(v.id in live for v in op.tensors):
            live.update(v.id for v in op.outputs)
        if multiplies(i):
            adding = canonical(op.name) in _ADDING
            factors = op.tensors[1:] if adding else op.tensors
            activations = len(factors) > 1 and all(v.id in live for v in factors)
            if activations and _FUSED not in op.name and len({v.id in kept for v in factors}) == 1:
                yield from (at for p, masked in made.items() if masked for at in (p, i))
                masked = adding and op.attrs.get("beta") != 0 and _may_hide(op.tensors[0])
                scores.update((v.id, {i: masked}) for v in op.outputs)
            continue
        seen = [v for v in op.tensors if v.id in scores]
        grown = role == "vector" and all(_is_larger(out, v) for v in seen for out in op.outputs)
        if made and not grown:
            masked = canonical(op.name) in _TRIANGLES
            masked |= any(_may_hide(v) for v in op.tensors if v.id not in scores)
            scores.update((v.id, {p: before or masked for p, before in made.items()}) for v in op.outputs)


def _may_hide(value: Value) -> bool:
    """Return whether a tensor that is combined with scores differs between queries or keys, as a mask does."""
    return any(size != 1 for size in value.shape[-2:])


def _is_larger(out: Value, scores: Value) -> bool:
    """Return whether a result is certainly larger than the scores in it, which were broadcast over its rows."""
    before, after = numel(scores), numel(out)
    return isinstance(before, int) and isinstance(after, int) and after > before


def _mapped_past(op: OpCall, costed: CostedGraph, writer: Mapping[str, int]) -> Value | None:
    """Return the part of a cache that is joined with new rows and multiplied by a weight."""
    if not any(v.origin == "param" or costed.roots.get(v.id, v).origin == "param" for v in op.tensors):
        return None
    for value in op.tensors:
        at = writer.get(costed.roots.get(value.id, value).id)
        if at is None or canonical(costed.graph.ops[at].name) != "cat":
            continue
        for part in costed.graph.ops[at].tensors:
            if costed.roots.get(part.id, part).origin == "cache" and part.shape[-1] == value.shape[-1]:
                return part
    return None


def _attention_calls(op: OpCall, ops: tuple[OpCall, ...]) -> Iterator[int]:
    """Yield the fused attention calls of the module that contains the product's module."""
    outer = op.module.rpartition(".")[0]
    return (i for i, other in enumerate(ops) if other.module == outer and _FUSED in canonical(other.name))


def _heads_are_narrow(op: OpCall, rank: Size, out: Size) -> bool:
    """Return whether all heads together are certainly no wider than two latents per head."""
    heads = op.tensors[0].shape[1] if len(op.tensors[0].shape) == 4 else 1
    spare = total((prod((2, rank, heads)), prod((-1, out))))
    return isinstance(spare, int) and spare >= 0


def hidden_reads(costed: CostedGraph, left_out: Mapping[int, Size]) -> frozenset[str]:
    """Return the ids of tensors that are read only as keys or values of attention that a mask may hide.

    Args:
        left_out: result of :func:`skippable_flops`.
    """
    graph, roots = costed.graph, costed.roots

    def root(value: Value) -> str:
        return roots.get(value.id, value).id

    kept = {v.id for v in graph.cache_outputs}
    needed = {root(v) for v in graph.outputs if v.id not in kept}
    hidden = set[str]()
    for i, (op, cost) in reversed(list(enumerate(zip(graph.ops, costed.costs, strict=True)))):
        role = cost.role if isinstance(cost, OpCost) else "vector"
        if role == "alias":
            continue
        moved = role == "move" and all(root(v) not in needed for v in op.outputs)
        masked = _hides_keys(op, cost, left_out.get(i, 0))
        for place, value in enumerate(op.tensors):
            (hidden if moved or (masked and place > 0) else needed).add(root(value))
    return frozenset(hidden - needed)


def _hides_keys(op: OpCall, cost: OpCost | UnknownCost, left_out: Size) -> bool:
    """Return whether a mask may hide a key from all queries; false if the last query sees every key."""
    if not isinstance(cost, OpCost) or cost.role != "matmul" or left_out == 0:
        return False
    if left_out == cost.flops:
        return not any(v.origin == "param" for v in op.tensors)
    if is_flash(op.name):
        return window_of(op)[0] is not None
    return _FUSED in op.name and op.tensors[0].shape[-2] != op.tensors[1].shape[-2]
