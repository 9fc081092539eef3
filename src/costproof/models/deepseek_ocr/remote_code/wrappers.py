"""Thin modules that hand example inputs to a part of the vendor's model; they add no operators."""

from __future__ import annotations

import torch
from torch import nn


class Plain(nn.Module):
    """A part that takes one tensor and returns one."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.part(x)
        return result


class Features(nn.Module):
    """CLIP on given features; of its pixels it looks at their number alone."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.part(x, x)
        return result
