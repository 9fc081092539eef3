"""Values of tensors on meta that follow from shapes alone: positions, masks made of them.

Models look at such values on their way (is this mask all ones?), and meta has none. Integer and boolean
tensors that come from ``arange``, ``ones`` and the like are therefore made on the CPU as well, and
so is what is computed from them; what depends on inputs or weights stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

MOST: Final = 1_000_000
"""Elements of a tensor up to which its values are kept."""
_CERTAIN: Final = ("arange", "ones", "zeros", "full", "scalar_tensor", "tril_indices", "eye")


class Known:
    """What is known about the tensors of one run."""

    def __init__(self) -> None:
        self.values = WeakTensorKeyDictionary()

    def scalar(self, func: Any, args: Any) -> torch.Tensor | None:
        """The value of a tensor of which the program asks a number, if that is so and it is known."""
        asked = func is torch.ops.aten._local_scalar_dense.default
        return self.values[args[0]] if asked and args[0] in self.values else None

    def follow(self, func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        """Do an operator on values as well, where all that it reads is known."""
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if not all(t in self.values for t in inputs):
            if func._schema.is_mutable:
                self.values.clear()  # something known may have been written to
            return
        # Of the factories, ``empty`` and random ones do not say what they make.
        certain = inputs or str(func).split(".")[1] in _CERTAIN
        if not isinstance(result, torch.Tensor) or result.device.type != "meta" or not certain:
            return
        if result.is_floating_point() or result.numel() > MOST:
            return
        given, options = tree_map_only(torch.Tensor, self.values.__getitem__, (args, dict(kwargs)))
        if "device" in options:
            options["device"] = torch.device("cpu")
        self.values[result] = func(*given, **options)
