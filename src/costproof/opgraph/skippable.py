"""Find FLOPs and bytes that another algorithm for the same result can skip; lower time bounds exclude them.

Cached latents that a product expands to keys and values: queries and sums may absorb the weights (DeepSeek-V2, section
2.1.2), so the product over the past can be skipped. Scores of the latents are wider then, which is deducted, unless
heads are wider than two latents: then attention skips the difference too. For many new tokens the wider scores are more
work than the product, and nothing is skipped. Scores that a mask hides are another subject:
:mod:`costproof.opgraph.kept`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import sympy

from costproof.algebra.series import CONTEXT
from costproof.opgraph.costed import CostedGraph
from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.kept import KeptWork
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.names import canonical
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
        past = _mapped_past(op, costed, writer)
        latents = past or next((v for v in op.tensors if costed.roots.get(v.id, v).id in kept_rows), None)
        if latents is None:
            continue
        rank, out = latents.shape[-1], op.outputs[0].shape[-1]
        saved: Size = 0  # new latents are multiplied by the weights in either form
        if past is not None:
            saved = found[i] = prod((2, numel(past), out))
        outer = op.module.rpartition(".")[0]
        for at in (at for at, work in kept.items() if ops[at].module == outer and work.scores != 0):
            scores, wider = kept[at].scores, _wider(ops[at], rank, out)
            if scores is None or wider is None:
                continue
            if wider > 0 and past is not None:  # scores and sums of latents are more work than those of keys and values
                found[i] = saved = _not_negative(total((saved, prod((-2, scores, wider)))))
            elif wider < 0:
                found[at] = prod((2, scores, -wider))
    return found


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


def _mapped_past(op: OpCall, costed: CostedGraph, writer: Mapping[str, int]) -> Value | None:
    """Return the cached part of the tensor, cache joined with new rows, that a call multiplies by a weight."""
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
