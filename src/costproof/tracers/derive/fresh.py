"""Count one forward at the dispatcher by our operator rules, without export and symbols.

Every operator is seen with its real shapes, inside the active module. The count shares the rules with the exports, but
neither shapes nor structure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from costproof.ledger.errors import message_of
from costproof.models.specs import Run
from costproof.opgraph.graph import OpCall, Value
from costproof.opgraph.rules.registry import UnknownCost, cost_of
from costproof.patches.inference import inference_context
from costproof.patches.modules import hooked
from costproof.patches.patch import gc_disabled
from costproof.tracers.cpu_fallback import with_numbers
from costproof.tracers.paths import dtype_name, plain_value, split_arguments


class _DispatchedCosts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack: list[str] = []
        self.flops: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.known = KnownValues()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = self.known.scalar(func, args)
        if known is not None:
            return known.item()
        result = func(*args, **(kwargs or {}))
        self.known.follow(func, args, kwargs or {}, result)
        tensors, attrs, names = split_arguments(func._schema, args, kwargs or {}, _values, plain_value)
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
    """Return headline FLOPs by module path in ``model``, and operators without a rule, of one forward."""
    try:
        return _count_forward(model, args)
    except RuntimeError as error:
        # Some models read values (is this mask all ones?), which meta lacks.
        if "meta" not in message_of(error):
            raise
    numbers = with_numbers(Run("fresh", model, args, lambda path, call: ("", "")))
    return _count_forward(numbers.model, numbers.kwargs)


def _count_forward(model: nn.Module, args: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    counter = _DispatchedCosts()
    paths = {module: path for path, module in model.named_modules()}

    def enter(module: nn.Module, args: Any) -> None:
        counter.stack.append(paths[module])

    def leave(*_: Any) -> None:
        counter.stack.pop()

    with gc_disabled(), inference_context(model), hooked(paths, enter, leave), counter:
        model(**args)
    return counter.flops, counter.unknown


def _values(argument: Any) -> list[Value]:
    tensors = (t for t in tree_leaves(argument) if isinstance(t, torch.Tensor))
    return [Value(str(id(t)), tuple(map(int, t.shape)), dtype_name(t.dtype)) for t in tensors]


MOST: Final = 1_000_000
"""Most elements of a tensor whose values are followed."""
_CERTAIN: Final = ("arange", "ones", "zeros", "full", "scalar_tensor", "tril_indices", "eye")


class KnownValues:
    """Values of meta tensors that follow from shapes only: positions, and masks made of them.

    Models look at such values (is this mask all ones?), which meta lacks. Integer and boolean tensors from ``arange``,
    ``ones`` and the like are therefore also made on the CPU, and so is what is computed from them. Whatever depends on
    inputs or weights stays unknown.
    """

    def __init__(self) -> None:
        self.values = WeakTensorKeyDictionary()

    def scalar(self, func: Any, args: Any) -> torch.Tensor | None:
        """Return the value of a tensor that the program converts to a number, if it is known."""
        asked = func is torch.ops.aten._local_scalar_dense.default
        return self.values[args[0]] if asked and args[0] in self.values else None

    def follow(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        """Run an operator also on values if all its inputs are known."""
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not all(t in self.values for t in inputs):
            if func._schema.is_mutable:
                self.values.clear()  # a known tensor may have been overwritten
            return
        # Factories like ``empty`` and random ones have no known values.
        certain = inputs or str(func).split(".")[1] in _CERTAIN
        if not isinstance(result, torch.Tensor) or result.device.type != "meta" or not certain:
            return
        if result.is_floating_point() or result.numel() > MOST:
            return
        given, options = tree_map_only(torch.Tensor, self.values.__getitem__, (args, dict(kwargs)))
        if "device" in options:
            options["device"] = torch.device("cpu")
        self.values[result] = func(*given, **options)
