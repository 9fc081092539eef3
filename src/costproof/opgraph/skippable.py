"""Find FLOPs and bytes that another algorithm for the same result can skip; lower time bounds exclude them.

Cached latents that a product expands to keys and values: queries and sums may absorb the weights (DeepSeek-V2, section
2.1.2), so the product over the past can be skipped. Scores of the latents are wider then, which is deducted, unless
heads are wider than two latents: then attention skips the difference too. For many new tokens the wider scores are more
work than the product, and nothing is skipped. Scores that a mask hides are another subject:
:mod:`costproof.opgraph.kept`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import sympy

from costproof.algebra.series import CONTEXT
from costproof.opgraph.costed import CostedGraph
from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.kept import KeptWork
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.names import canonical, overwrites
from costproof.opgraph.rules.sizes import numel, prod, total

_LINEAR: Final = frozenset({"linear", "mm", "matmul", "addmm"})
_FUSED: Final = "attention"
_NARROWEST: Final = 4
"""Width of the key and value of a head from which absorbing saves work at every step of two keys or more."""


def skippable_flops(costed: CostedGraph, kept: Mapping[int, KeptWork]) -> Mapping[int, Size]:
    """Return index of an operator -> the headline FLOPs that another algorithm skips, apart from masks.

    Args:
        kept: result of :func:`~costproof.opgraph.kept.kept_work`; without it, attention skips nothing.
    """
    ops, costs = costed.graph.ops, costed.costs
    found = {i: c.skippable for i, c in enumerate(costs) if isinstance(c, OpCost) and c.skippable != 0}
    writer = {v.id: i for i, op in enumerate(ops) for v in op.outputs}
    kept_rows = {costed.roots.get(v.id, v).id for v in costed.graph.cache_outputs}
    for i, (op, cost) in enumerate(zip(ops, costs, strict=True)):
        multiplies = isinstance(cost, OpCost) and cost.role == "matmul" and cost.flops != 0
        if not multiplies or canonical(op.name) not in _LINEAR or not op.outputs:
            continue
        parts = _mapped_parts(op, costed, writer)
        pasts = [past for _, past in parts if past is not None]
        latents = next(iter(pasts), None) or next(
            (v for v in op.tensors if costed.roots.get(v.id, v).id in kept_rows), None
        )
        if latents is None:
            continue
        rank, out = latents.shape[-1], op.outputs[0].shape[-1]
        # New latents are multiplied by the weights in either form.
        saved = [0 if past is None else prod((2, numel(past), out)) for _, past in parts]
        if pasts:
            found[i] = total(saved)
        calls = _calls_behind(i, costed, kept)
        paired = len(parts) > 1 and _read_in_order(calls, parts, ops)
        for number, at in enumerate(calls):
            k = number if paired else 0
            past = parts[k][1] if paired or len(parts) == 1 else None
            scores, wider = kept[at].scores, _wider(ops[at], rank, out)
            if scores is None or wider is None:
                continue
            if wider > 0 and past is not None:  # scores and sums of latents are more work than those of keys and values
                saved[k] = _not_negative(total((saved[k], prod((-2, scores, wider)))))
                found[i] = total(saved)
            elif wider < 0:
                found[at] = prod((2, scores, -wider))
    return found


def _calls_behind(start: int, costed: CostedGraph, kept: Mapping[int, KeptWork]) -> list[int]:
    """Return the attention calls of the enclosing module that read a product's result, or all of them if none does."""
    ops, roots = costed.graph.ops, costed.roots
    outer = ops[start].module.rpartition(".")[0]
    reached = {v.id for v in ops[start].outputs}
    found = []
    for at in range(start + 1, len(ops)):
        op = ops[at]
        if op.module != outer or not any({v.id, roots.get(v.id, v).id} & reached for v in op.tensors):
            continue
        if at in kept and kept[at].scores != 0:
            found.append(at)
            continue
        written = (*op.outputs, *(op.tensors[:1] if overwrites(op) else ()))
        reached |= {key for v in written for key in (v.id, roots.get(v.id, v).id)}
    return found or [at for at, work in kept.items() if ops[at].module == outer and work.scores != 0]


_Part = tuple[Value, Value | None]
"""Latents that a call multiplies by a weight, and those of them that are cached."""


def _read_in_order(calls: Sequence[int], parts: Sequence[_Part], ops: Sequence[OpCall]) -> bool:
    """Return whether attention calls read the keys of these latents, one call each, in order."""

    def keys(at: int) -> tuple[Size, ...]:
        shape = ops[at].tensors[1].shape if len(ops[at].tensors) > 1 else ()
        # Keys, or their transpose as the second factor of a product.
        return tuple(prod((*shape[:1], shape[i])) for i in (-2, -1)) if len(shape) > 2 else ()

    same = len(calls) == len(parts)
    return same and all(prod(part.shape[:-1]) in keys(at) for at, (part, _) in zip(calls, parts, strict=True))


def _not_negative(saved: Size) -> Size:
    """Return the saved FLOPs, at least 0; in decode steps with a symbolic context they are never negative."""
    if isinstance(saved, int):
        return max(0, saved)
    return saved if CONTEXT in saved.free_symbols else sympy.Max(0, sympy.expand(saved))


def _wider(op: OpCall, rank: Size, out: Size) -> int | None:
    """Return by how many elements two latents are wider than the key and value of one head together.

    0 if key and value together are narrower than ``_NARROWEST`` and not wider than two latents: attention on latents
    then skips at most the expansion. ``None`` if a size is a symbol.

    Args:
        op: the operator that computes the scores of the heads.
        rank: width of a latent.
        out: width of the keys and values of all heads.
    """
    shape = op.tensors[0].shape if _FUSED in canonical(op.name) else op.outputs[0].shape
    heads = shape[-3] if len(shape) > 2 else 1
    if not (isinstance(heads, int) and isinstance(rank, int) and isinstance(out, int)) or out % heads:
        return None
    both = out // heads
    return 2 * rank - both if both >= _NARROWEST or both > 2 * rank else 0


def _mapped_parts(op: OpCall, costed: CostedGraph, writer: Mapping[str, int]) -> list[_Part]:
    """Return the latents that a call multiplies by a weight, of each row of a batch, with their cached part.

    The latents of one row are those of its cache joined with new ones. Those of several rows are joined once more.
    Empty if nothing is cached.
    """
    if not any(v.origin == "param" or costed.roots.get(v.id, v).origin == "param" for v in op.tensors):
        return []

    def joined(value: Value) -> tuple[Value, ...]:
        at = writer.get(costed.roots.get(value.id, value).id)
        return () if at is None or canonical(costed.graph.ops[at].name) != "cat" else costed.graph.ops[at].tensors

    def cached(value: Value, width: Size) -> Value | None:
        return next(
            (p for p in joined(value) if costed.roots.get(p.id, p).origin == "cache" and p.shape[-1] == width), None
        )

    for value in op.tensors:
        width = value.shape[-1]
        if (past := cached(value, width)) is not None:
            return [(value, past)]
        rows: list[_Part] = [(part, cached(part, width)) for part in joined(value)]
        if any(past is not None for _, past in rows):
            return rows
    return []


def hidden_reads(costed: CostedGraph, kept: Mapping[int, KeptWork]) -> frozenset[str]:
    """Return the ids of tensors that are read only as keys or values of attention with a mask."""
    graph, roots = costed.graph, costed.roots

    def root(value: Value) -> str:
        return roots.get(value.id, value).id

    cached = {v.id for v in graph.cache_outputs}
    needed = {root(v) for v in graph.outputs if v.id not in cached}
    hidden = set[str]()
    for i, (op, cost) in reversed(list(enumerate(zip(graph.ops, costed.costs, strict=True)))):
        role = cost.role if isinstance(cost, OpCost) else "vector"
        if role == "alias":
            continue
        moved = role == "move" and {root(v) for v in op.outputs} <= hidden - needed
        masked = i in kept and kept[i].hides_keys and not any(v.origin == "param" for v in op.tensors)
        for place, value in enumerate(op.tensors):
            (hidden if moved or (masked and place > 0) else needed).add(root(value))
    return frozenset(hidden - needed)
