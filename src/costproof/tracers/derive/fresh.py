"""A count of one run on its way through the dispatcher: no export, no symbols, the same operator rules.

Every operator that a forward dispatches is seen with its real shapes, inside the module that is
running. It shares the rules with the exports, and neither shapes nor structure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from costproof.ledger.errors import said_by
from costproof.models.as_it_runs import as_it_runs
from costproof.models.jobs import Run
from costproof.opgraph.graph import OpCall, Value
from costproof.opgraph.rules.registry import UnknownCost, cost_of
from costproof.tracers.derive.known import Known
from costproof.tracers.elsewhere import with_numbers
from costproof.tracers.operands import dtype_name, operands, plain_value
from costproof.tracers.readonly import uncollected, watched


class _Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack: list[str] = []
        self.flops: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.known = Known()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = self.known.scalar(func, args)
        if known is not None:
            return known.item()
        result = func(*args, **(kwargs or {}))
        self.known.follow(func, args, kwargs or {}, result)
        tensors, attrs, names = operands(func._schema, args, kwargs or {}, _values, plain_value)
        outputs = tuple(_values(result))
        if tensors or outputs:
            module = self.stack[-1] if self.stack else ""
            call = OpCall("", str(func), module, 1, tensors, outputs, attrs, names)
            cost = cost_of(call)
            if isinstance(cost, UnknownCost):
                self.unknown[call.name] += 1
            elif cost.flops != 0:
                self.flops[call.module] += int(cost.flops)
        return result


def fresh_flops(model: nn.Module, args: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Headline FLOPs by module path in ``model``, and operators without a rule, of one forward."""
    try:
        return _counted(model, args)
    except RuntimeError as error:
        # Some models look at values on their way (a mask that may be all ones): meta has none.
        if "meta" not in said_by(error):
            raise
    numbers = with_numbers(Run("fresh", model, args, lambda path, call: ("", "")))
    return _counted(numbers.model, numbers.kwargs)


def _counted(model: nn.Module, args: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    counter = _Dispatched()
    paths = {module: path for path, module in model.named_modules()}

    def enter(module: nn.Module, args: Any) -> None:
        counter.stack.append(paths[module])

    def leave(*_: Any) -> None:
        counter.stack.pop()

    with uncollected(), as_it_runs(model), watched(paths, enter, leave), counter:
        model(**args)
    return counter.flops, counter.unknown


def _values(argument: Any) -> list[Value]:
    tensors = (t for t in tree_leaves(argument) if isinstance(t, torch.Tensor))
    return [Value(str(id(t)), tuple(map(int, t.shape)), dtype_name(t.dtype)) for t in tensors]
