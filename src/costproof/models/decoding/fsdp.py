"""Parameters that ranks store in shards and gather layer by layer, as torch's ``fully_shard`` does.

Each layer is a group, and all other modules are one; ``fully_shard`` is applied to every layer and then to the root,
with ``reshard_after_forward``. Every parameter is cut along its first dimension into parts of ceil(rows / n) rows. The
last ranks may have fewer rows, or none, but all of them store as many, padded. Before a group runs, its parts travel in
one all-gather, in the dtype of the run; afterwards the gathered parameters are freed.

Source: torch.distributed.fsdp (``FSDPParam._init_sharded_param``, ``foreach_all_gather``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, Final

import sympy

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import sym, text
from costproof.analytic.collectives import GatheredParameters
from costproof.analytic.compose import CONTAINER, HeldNode, ModulePart, StackCall
from costproof.analytic.costs import Layer, Size, costs_of
from costproof.analytic.experts import Router
from costproof.ledger.node import CostNode
from costproof.models.decoding.sharding import GATHERED_BEFORE
from costproof.opgraph.rules.collectives import PARTS_GROUP as GROUP
from costproof.patches.sharding import PARTS, ParameterShard

RANKS: Final = sym("fsdp")
ROOT, LAYER = GATHERED_BEFORE


def tensors_of(layer: Layer) -> Iterator[tuple[Size, Size]]:
    """Yield (rows, elements per row) of each parameter that a layer owns; its first dimension is the rows.

    Parameters other than matrices are vectors, of which a module has at most one.
    """
    costs = costs_of(layer)
    left = costs.params
    if isinstance(layer, Router):
        yield layer.experts, layer.hidden
        if layer.routing.biased:
            yield layer.experts, 1
        return
    if costs.params == 0:
        return
    for matrix in costs.matrices:
        stacked = matrix.kind == "Expert"
        yield (matrix.count, matrix.rows * matrix.columns) if stacked else (matrix.rows, matrix.columns)
        if matrix.bias:
            yield (matrix.count, matrix.rows) if stacked else (matrix.rows, 1)
        left -= matrix.elements
    left = sympy.expand(left)
    if left != 0:
        yield left, 1


def stored(layers: Iterable[Layer]) -> Size:
    """Return the parameter elements that each rank stores of some layers, padding included."""
    return sum((sympy.ceiling(rows / RANKS) * size for x in layers for rows, size in tensors_of(x)), sympy.Integer(0))


def own(layers: Iterable[Layer]) -> Size:
    """Return the elements that a rank stores of the parameters of some layers, without padding."""
    found: Size = sympy.Integer(0)
    for x in layers:
        for rows, size in tensors_of(x):
            part = sympy.ceiling(rows / RANKS)
            found += sympy.Min(part, sympy.Max(0, rows - sym("fsdp_rank") * part)) * size
    return found


def with_gathers(parts: Iterable[ModulePart], call: StackCall) -> Iterator[ModulePart]:
    """Yield the modules of a decoder; add the all-gather of each parameter group to the first module that needs it."""
    every = tuple(parts)
    groups: dict[tuple[str, int], list[Layer]] = {}
    for part in every:
        groups.setdefault(_group(part), []).extend(part.layers)
    for part in every:
        if part.role not in GATHERED_BEFORE:
            yield part
            continue
        parts_of_rank = stored(groups[_group(part)])
        if parts_of_rank == 0:  # the root of a stage between
            yield part
            continue
        gathered = GatheredParameters(parts_of_rank, RANKS, call.item_bytes)
        others = tuple(x for x in part.layers if x != CONTAINER)
        yield replace(part, layers=(*(others or (CONTAINER,)), gathered))


def _group(part: ModulePart) -> tuple[str, int]:
    inside = part.role == LAYER or part.role.startswith(f"{LAYER}.")
    return (LAYER, part.i) if inside else (ROOT, 0)


def as_stored(nodes: Iterable[CostNode]) -> Iterator[CostNode]:
    """Yield the nodes with the parameters that one rank stores; active parameters stay those of whole layers."""
    for node in nodes:
        if not isinstance(node, HeldNode) or "params" not in node.exprs:
            yield node
            continue
        params, weight_bytes = _as_stored(node.layers)
        yield replace(node, exprs={**node.exprs, "params": params, "weight_bytes": weight_bytes})


@cache
def _as_stored(layers: tuple[Layer, ...]) -> tuple[str, str]:
    """Return the formulas of the parameter elements of a rank without padding, and of its bytes with padding."""
    return text(own(layers)), text(stored(layers) * sym("b"))


def padding_by_role(parts: Iterable[ModulePart], sizes: Mapping[str, int], ranks: int, item: int) -> dict[str, int]:
    """Return the bytes of padding that all ranks together store for one module of each role."""
    found: dict[str, int] = {}
    for part in parts:
        if part.role not in found:
            shapes = (map(sympy.sympify, shape) for x in part.layers for shape in tensors_of(x))
            known = [[evaluate(size, sizes) for size in shape] for shape in shapes]
            found[part.role] = sum(-rows % ranks * size * item for rows, size in known)
    return found


def keep_parts(model: Any, ranks: int, rank: int) -> None:
    """Turn a decoder into one rank that stores parts of the parameters, by our reading of ``fully_shard``.

    Its layers, and the model around them, gather the parameters that they run with.
    """
    import torch

    facts: dict[str, ParameterShard] = {}
    taken: set[int] = set()
    for path, root in (*((f"model.layers.{i}", layer) for i, layer in enumerate(model.model.layers)), ("", model)):
        places: dict[int, list[tuple[Any, str]]] = {}
        gathered: list[_Gathered] = []
        for owner in root.modules():
            for leaf, parameter in owner._parameters.items():
                if parameter is not None and id(parameter) not in taken:
                    places.setdefault(id(parameter), []).append((owner, leaf))
        for name, whole in root.named_parameters():
            if id(whole) in taken:
                continue
            rows = -(-len(whole) // ranks)
            mine = whole[rows * rank : rows * (rank + 1)]
            missing = rows - len(mine)
            part = torch.cat([mine, mine.new_zeros(missing, *whole.shape[1:])]) if missing else mine.clone()
            facts[f"{path}.{name}" if path else name] = ParameterShard(mine.numel(), part.nbytes, whole.numel())
            made = torch.nn.Parameter(part, requires_grad=False)
            for owner, leaf in places[id(whole)]:
                owner._parameters[leaf] = made
            gathered.append(_Gathered(tuple(whole.shape), tuple(places[id(whole)])))
            taken.add(id(made))
        if gathered:
            _gather_before(root, gathered, ranks)
    vars(model)[PARTS] = facts


@dataclass(frozen=True, slots=True)
class _Gathered:
    """A parameter that is sharded over ranks: its full shape, the modules that own it, and its name in each."""

    shape: tuple[int, ...]
    places: tuple[tuple[Any, str], ...]


def _gather_before(root: Any, gathered: Sequence[_Gathered], ranks: int) -> None:
    """Patch a module to gather parameters before its forward, and to free them afterwards."""
    import torch

    ops, base = torch.ops._c10d_functional, type(root)
    split: Any = torch.split_with_sizes_copy  # whose stub has only the form that returns nothing

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        parts = [owner._parameters[leaf] for one in gathered for owner, leaf in one.places[:1]]
        flat = torch.cat([part.reshape(-1) for part in parts])
        every = ops.wait_tensor(ops.all_gather_into_tensor(flat, ranks, f"{GROUP}:{ranks}"))
        apart = split(every.view(ranks, -1), [part.numel() for part in parts], 1)
        for joined, one in zip(apart, gathered, strict=True):
            whole = joined.reshape(-1)[: prod(one.shape)].view(one.shape)
            for owner, leaf in one.places:
                owner._parameters[leaf] = whole
        try:
            return base.forward(self, *args, **kwargs)
        finally:
            for part, one in zip(parts, gathered, strict=True):
                for owner, leaf in one.places:
                    owner._parameters[leaf] = part

    # By what it does, which the fingerprint of an export has to tell apart.
    vars(root)["_gathered"] = ranks, tuple(one.shape for one in gathered)
    root.__class__ = type(base.__name__, (base,), {"forward": forward, "__module__": base.__module__})
