"""Pooling: one FLOP per tap read, taps x outputs."""

from __future__ import annotations

from typing import Any

import sympy

from costproof.opgraph.graph import OpCall, Size
from costproof.opgraph.rules.cost import Uncountable
from costproof.opgraph.rules.elementwise import vector_rule
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.operands import attr, out_elements, result, tensor
from costproof.opgraph.rules.sizes import prod

_NAMES = tuple(f"{kind}_pool{d}d" for kind in ("avg", "max") for d in (1, 2, 3))
_WITH_INDICES = tuple(f"max_pool{d}d_with_indices" for d in (1, 2, 3))


@vector_rule(*_NAMES, *_WITH_INDICES)
def pool(op: OpCall) -> Size:
    """Kernel taps x outputs: an addition or a comparison each; taps on padding count."""
    kernel: Any = attr(op, "kernel_size")
    if kernel is None:
        raise Uncountable("a pooling without its kernel_size")
    spatial = int(next(c for c in reversed(canonical(op.name).partition("_with_")[0]) if c.isdigit()))
    sides = (kernel,) * spatial if isinstance(kernel, int | sympy.Expr) else tuple(kernel)
    taps = prod(sides * spatial if len(sides) == 1 else sides)
    return prod((taps, out_elements(op)))


@vector_rule(*(f"adaptive_{kind}" for kind in (*_NAMES, *_WITH_INDICES)))
def adaptive(op: OpCall) -> Size:
    """Taps x outputs; bin i of n over a length m reads floor(i*m/n) to ceil((i+1)*m/n)."""
    before, after = tensor(op, "input", 0).shape, result(op).shape
    return prod(_taps(m, n) for m, n in zip(before, after, strict=True))


def _taps(length: Size, bins: Size) -> Size:
    if bins in (1, length):
        return length
    if isinstance(length, int) and isinstance(bins, int):
        return sum(-(-(i + 1) * length // bins) - i * length // bins for i in range(bins))
    if (sympy.sympify(length) / bins).is_integer:
        return length
    raise Uncountable("adaptive pooling with bins that may overlap at symbolic sizes")
