"""Count operators in the convention of fvcore 0.1.5.post20221221, without running fvcore.

fvcore reports "flops" and counts a multiply-accumulate as 1. Products count their MACs, norms 5 per element (4 without
scale and shift). Operators outside the table count nothing, among them fused attention and grouped expert products.
Activations are the output elements of products, except ``mm``. The MACs of an einsum are half of numpy's estimate of
its
FLOPs, which fvcore parses from a text with four digits.

Source: ``fvcore.nn.jit_handles``, and the tables in ``flop_count`` and ``activation_count``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial
from typing import Final

from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, exact_sum
from costproof.opgraph.account import StageLocator
from costproof.opgraph.graph import Graph, OpCall, Value
from costproof.opgraph.rules.cost import Uncountable, attr, has, result, tensor
from costproof.opgraph.rules.names import canonical, source_kind


@dataclass(frozen=True, slots=True)
class FvcoreCount:
    """MACs and activations that fvcore counts for one operator call."""

    macs: int | None
    """Multiply-accumulates; ``None`` where fvcore fails."""
    activations: int = 0


def fvcore_nodes(graph: Graph, place: StageLocator) -> tuple[CostNode, ...]:
    """Return ``fvcore_macs`` and ``fvcore_activations`` by stage, invocation, module and operator kind.

    Args:
        graph: with integer sizes; see :func:`~costproof.opgraph.costed.substitute_sizes`.
    """
    sums: dict[tuple[str, str, str, str], list[FvcoreCount]] = {}
    for op in graph.ops:
        found = fvcore_count(op)
        here = None if found is None else place(op.module, op.call)
        if found is not None and here is not None:
            sums.setdefault((*here, op.module, source_kind(op.name)), []).append(found)
    return tuple(CostNode(*key, _costs(parts)) for key, parts in sums.items())


def fvcore_count(op: OpCall) -> FvcoreCount | None:
    """Return fvcore's count of an operator call; ``None`` for operators that fvcore has no handler for."""
    rule = _RULES.get(_name(op))
    if rule is None:
        return None
    try:
        return rule(op)
    except (Uncountable, IndexError):
        return FvcoreCount(None)


def _costs(parts: list[FvcoreCount]) -> dict[Metric, int | None]:
    costs: dict[Metric, int | None] = {"fvcore_macs": exact_sum(p.macs for p in parts)}
    activations = sum(p.activations for p in parts)
    return {**costs, "fvcore_activations": activations} if activations else costs


def _name(op: OpCall) -> str:
    """Return the operator's name in fvcore's trace, where each interpolation mode has its name."""
    name = canonical(op.name)
    if name in ("interpolate", "upsample"):
        planar = len(tensor(op, "input", 0).shape) == 4 and not attr(op, "antialias", default=False)
        return _BY_MODE.get(str(attr(op, "mode", default="nearest")), name) if planar else name
    return name


def _elements(value: Value) -> int:
    return math.prod(int(s) for s in value.shape)


def _product(op: OpCall, first: int, second: int, *, activations: bool = True) -> FvcoreCount:
    """Count a matrix product: elements of the operand at ``first`` times the last size of the operand at ``second``."""
    a, b = op.tensors[first], op.tensors[second]
    if len(b.shape) < 2:
        raise Uncountable("fvcore needs a second operand of at least two dimensions")
    return FvcoreCount(_elements(a) * int(b.shape[-1]), _elements(result(op)) if activations else 0)


def _linear(op: OpCall) -> FvcoreCount:
    return FvcoreCount(_elements(tensor(op, "input", 0)) * int(tensor(op, "weight", 1).shape[0]), _elements(result(op)))


def _conv(op: OpCall) -> FvcoreCount:
    """Count a convolution: batch x output positions x weight elements; input positions if it is transposed."""
    data, made = tensor(op, "input", 0), result(op)
    transposed = "transpose" in canonical(op.name) or bool(attr(op, "transposed", default=False))
    positions = (data if transposed else made).shape[2:]
    weight = _elements(tensor(op, "weight", 1))
    return FvcoreCount(math.prod((int(data.shape[0]), weight, *(int(p) for p in positions))), _elements(made))


def _einsum(op: OpCall) -> FvcoreCount:
    equation = attr(op, "equation")
    if not isinstance(equation, str):
        raise Uncountable("an einsum without its equation")
    shapes = tuple(tuple(int(s) for s in v.shape) for v in op.tensors)
    return FvcoreCount(_einsum_macs(_relettered(equation), shapes), _elements(result(op)))


def _relettered(equation: str) -> str:
    """Rename the indices of an einsum equation in order of appearance: ``bqk,bkd->bqd`` becomes ``abc,acd->abd``."""
    text = equation.replace(" ", "")
    letters = dict.fromkeys(c for c in text if c.isalpha())
    return text.translate({ord(c): 97 + i for i, c in enumerate(letters)})


@lru_cache(maxsize=4096)
def _einsum_macs(equation: str, shapes: tuple[tuple[int, ...], ...]) -> int:
    first, last = shapes[0], shapes[-1]
    if equation == "abc,abd->acd":
        return math.prod(first) * last[-1]
    if equation == "abc,adc->adb":
        return math.prod(first) * last[1]
    import numpy as np

    empty = [np.broadcast_to(np.float64(0), shape) for shape in shapes]
    told = str(np.einsum_path(equation, *empty, optimize="optimal")[1])
    line = next(x for x in told.splitlines() if "optimized flop" in x.lower())
    return int(Decimal(line.rpartition(":")[2].strip()) // 2)


def _norm(op: OpCall) -> FvcoreCount:
    data = tensor(op, "input", 0)
    if not 2 <= len(data.shape) <= 5:
        raise Uncountable("fvcore needs two to five dimensions")
    return FvcoreCount(_elements(data) * (5 if has(op, "weight", 1) else 4))


def _batch_norm(op: OpCall) -> FvcoreCount:
    if attr(op, "training", "train", "use_input_stats", default=False):
        return _norm(op)
    return FvcoreCount(_elements(tensor(op, "input", 0)) * (2 if has(op, "weight", 3) else 1))


_BY_MODE: Final = {
    "nearest": "upsample_nearest2d", "bilinear": "upsample_bilinear2d", "area": "adaptive_avg_pool2d",
}  # fmt: skip

_RULES: Final[Mapping[str, Callable[[OpCall], FvcoreCount]]] = {
    "linear": _linear,
    "matmul": partial(_product, first=0, second=1),
    "rmatmul": partial(_product, first=1, second=0),
    "bmm": partial(_product, first=0, second=1),
    "mm": partial(_product, first=0, second=1, activations=False),
    "addmm": partial(_product, first=1, second=2),
    "einsum": _einsum,
    **{f"conv{kind}{n}d": _conv for kind in ("", "_transpose") for n in (1, 2, 3)},
    "convolution": _conv,
    "_convolution": _conv,
    "layer_norm": _norm,
    "group_norm": _norm,
    "instance_norm": _norm,
    "batch_norm": _batch_norm,
    "upsample_nearest2d": lambda op: FvcoreCount(_elements(result(op))),
    "upsample_bilinear2d": lambda op: FvcoreCount(4 * _elements(result(op))),
    "grid_sampler": lambda op: FvcoreCount(4 * _elements(result(op))),
    "adaptive_avg_pool2d": lambda op: FvcoreCount(_elements(tensor(op, "input", 0))),
}  # fmt: skip
