"""Find FLOPs and bytes that an execution of the same result can skip, which time bounds leave out.

Cached latents that a product expands to keys and values: queries and sums may absorb the weights (DeepSeek-V2, section
2.1.2), so the product over the past can be skipped. Scores of the latents are wider then, unless heads are wider than
two latents: such attention may skip its scores too. Scores that a mask hides are another subject:
:mod:`costproof.opgraph.kept`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from costproof.opgraph.costed import CostedGraph
from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.kept import KeptWork
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.sizes import numel, prod, total

_LINEAR: Final = frozenset({"linear", "mm", "matmul", "addmm"})
_FUSED: Final = "attention"


def skippable_flops(costed: CostedGraph) -> Mapping[int, Size]:
    """Return, by index of the operator, the headline FLOPs that another algorithm skips, whatever masks hide."""
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


def hidden_reads(costed: CostedGraph, kept: Mapping[int, KeptWork]) -> frozenset[str]:
    """Return the ids of tensors that are read only as keys or values of attention that a mask may hide."""
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
        moved = role == "move" and all(root(v) not in needed for v in op.outputs)
        masked = i in kept and kept[i].hides_keys and not any(v.origin == "param" for v in op.tensors)
        for place, value in enumerate(op.tensors):
            (hidden if moved or (masked and place > 0) else needed).add(root(value))
    return frozenset(hidden - needed)
