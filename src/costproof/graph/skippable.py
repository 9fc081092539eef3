"""What another implementation of the same result leaves out of a graph: a bound of time takes none of it.

Scores that a mask hides. A flag and a window say which (:mod:`costproof.graph.rules.attention`); of a mask that is a
tensor, or that is added between written-out products, the numbers are data: it may hide all of them.

Latents that a cache holds and that a product expands to keys and values: queries and sums may absorb the weights
(DeepSeek-V2, section 2.1.2), so the product over the past is left out. Scores of the latents are wider then, but for
heads that are wider than two latents: these may leave out their scores too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from costproof.graph.costed import Costed
from costproof.graph.graph import OpCall, Size, Value
from costproof.graph.rules.cost import OpCost
from costproof.graph.rules.names import canonical
from costproof.graph.rules.sizes import numel, prod, total

_SOFTMAX: Final = frozenset({"softmax", "_softmax", "_safe_softmax", "log_softmax"})
_LINEAR: Final = frozenset({"linear", "mm", "matmul", "addmm"})
_FUSED: Final = "attention"


def skippable(costed: Costed) -> Mapping[int, Size]:
    """Return, by its place in the order of execution, the headline FLOPs of an operator that may be left out."""
    ops, costs = costed.graph.ops, costed.costs
    found = {i: c.skippable for i, c in enumerate(costs) if isinstance(c, OpCost) and c.skippable != 0}
    writer = {v.id: i for i, op in enumerate(ops) for v in op.outputs}
    readers: dict[str, list[int]] = {}
    for i, op in enumerate(ops):
        for value in op.tensors:
            readers.setdefault(value.id, []).append(i)

    def whole(at: int) -> None:
        cost = costs[at]
        assert isinstance(cost, OpCost)
        found[at] = cost.flops

    def multiplies(at: int) -> bool:
        cost = costs[at]
        return isinstance(cost, OpCost) and cost.role == "matmul" and cost.flops != 0

    for i, op in enumerate(ops):
        if canonical(op.name) in _SOFTMAX:
            products, masked = _before(i, ops, writer, multiplies)
            if masked:
                for at in (*products, *_behind(i, ops, readers, multiplies)):
                    whole(at)
        elif canonical(op.name) in _LINEAR and multiplies(i):
            past = _past(op, costed, writer)
            if past is not None and op.outputs:
                rank, out = past.shape[-1], op.outputs[0].shape[-1]
                found[i] = prod((2, numel(past), out))
                for at in _attending(op, ops):
                    if multiplies(at) and not _narrow(ops[at], rank, out):
                        whole(at)
    return found


def _before(
    start: int, ops: tuple[OpCall, ...], writer: Mapping[str, int], multiplies: Callable[[int], bool]
) -> tuple[list[int], bool]:
    """Return the products that a softmax is of, and whether something else is put into them on the way."""
    products, masked, seen, open_ = list[int](), False, {start}, [start]
    while open_:
        op = ops[open_.pop()]
        floating = [v for v in op.tensors if v.origin not in ("param", "buffer") or v.shape]
        masked |= len(floating) > 1
        for value in op.tensors:
            at = writer.get(value.id)
            if at is None or at in seen:
                continue
            seen.add(at)
            if multiplies(at):
                products.append(at)
            elif len(seen) < len(ops) and canonical(ops[at].name) not in _SOFTMAX:
                open_.append(at)
    return products, masked and bool(products)


def _behind(
    start: int, ops: tuple[OpCall, ...], readers: Mapping[str, list[int]], multiplies: Callable[[int], bool]
) -> Iterator[int]:
    """Yield the products that take what a softmax returns."""
    seen, open_ = {start}, [start]
    while open_:
        for value in ops[open_.pop()].outputs:
            for at in readers.get(value.id, ()):
                if at in seen:
                    continue
                seen.add(at)
                if multiplies(at):
                    yield at
                else:
                    open_.append(at)


def _past(op: OpCall, costed: Costed, writer: Mapping[str, int]) -> Value | None:
    """Return the part of a cache that a product of a weight maps, joined with new rows."""
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


def _attending(op: OpCall, ops: tuple[OpCall, ...]) -> Iterator[int]:
    """Yield the fused attentions of the module that holds the one of a product."""
    outer = op.module.rpartition(".")[0]
    return (i for i, other in enumerate(ops) if other.module == outer and _FUSED in canonical(other.name))


def _narrow(op: OpCall, rank: Size, out: Size) -> bool:
    """Whether all heads of an attention together are certainly no wider than two latents each."""
    heads = op.tensors[0].shape[1] if len(op.tensors[0].shape) == 4 else 1
    spare = total((prod((2, rank, heads)), prod((-1, out))))
    return isinstance(spare, int) and spare >= 0
