"""How many positions of a text images and sounds fill. Needs torch to load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from costproof.models.generic.copies import short_run

_SCATTERS = (torch.Tensor.masked_scatter, torch.Tensor.masked_scatter_, torch.masked_scatter)


class _Noting(TorchFunctionMode):
    """Notes what is put into a text [B, S, width] where a mask says, without knowing where."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.scattered: int = 0
        self.most: int = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        into, *rest = args or (None,)
        if isinstance(into, torch.Tensor) and into.dim() == 3 and into.shape[1] == self.length and rest:
            if func in _SCATTERS:
                self.scattered += _rows(into, (kwargs or {}).get("source", rest[-1]))
            elif func is torch.Tensor.__setitem__ and _is_mask(rest[0]):
                self.most = max(self.most, _rows(into, rest[1]))
        return func(*args, **(kwargs or {}))


def _is_mask(key: Any) -> bool:
    key = key[0] if isinstance(key, tuple) else key
    return isinstance(key, torch.Tensor) and key.dtype == torch.bool


def _rows(into: torch.Tensor, values: Any) -> int:
    return int(values.numel()) // int(into.shape[-1]) if isinstance(values, torch.Tensor) else 0


def places(model: nn.Module, inputs: Mapping[str, Any]) -> int:
    """Positions of all rows of a batch that a model fills with what its towers made; 0 where it has none."""
    ids = inputs.get("input_ids")
    if ids is None or len(inputs) == 1:
        return 0
    noted = _Noting(int(ids.shape[1]))
    with noted:
        short_run(model, inputs)
    return max(noted.scattered, noted.most)
