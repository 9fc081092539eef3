"""Operator calls for tests: hand-made ones, and ones taken from a real call of a torch operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.registry import cost_of
from costproof.tracers.paths import split_arguments

_ids = count()


def value(*shape: Size, dtype: str = "float32", origin: str = "op", name: str = "") -> Value:
    """A tensor with an id of its own."""
    return Value(name or f"v{next(_ids)}", tuple(shape), dtype, origin, name)


def call(
    name: str,
    tensors: Sequence[Value],
    outputs: Sequence[Value],
    attrs: Mapping[str, Any] | None = None,
    names: Mapping[str, Value] | None = None,
    module: str = "m",
    number: int = 1,
) -> OpCall:
    """A hand-made call."""
    return OpCall(
        f"{name}_{next(_ids)}", name, module, number, tuple(tensors), tuple(outputs), attrs or {}, names or {}
    )


def counted(op: OpCall) -> OpCost:
    """The cost of a call that has a rule."""
    cost = cost_of(op)
    assert isinstance(cost, OpCost), cost
    return cost


def taken(overload: Any, *args: Any, **kwargs: Any) -> tuple[OpCall, Any]:
    """Run an aten overload for real and write its call down as an export would."""
    result = overload(*args, **kwargs)
    tensors, attrs, names = split_arguments(overload._schema, args, kwargs, _values, lambda argument: argument)
    results = result if isinstance(result, list | tuple) else [result]
    outputs = [_value(r) for r in results if isinstance(r, torch.Tensor)]
    return call(str(overload), tensors, outputs, attrs, names), result


def torch_count(overload: Any, *args: Any, **kwargs: Any) -> int:
    """What torch's own counter says of one call."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        overload(*args, **kwargs)
    return int(counter.get_total_flops())


def _values(argument: Any) -> list[Value]:
    given = argument if isinstance(argument, list | tuple) else [argument]
    return [_value(a) for a in given if isinstance(a, torch.Tensor)]


def _value(tensor: torch.Tensor) -> Value:
    return value(*tensor.shape, dtype=str(tensor.dtype).removeprefix("torch."))
