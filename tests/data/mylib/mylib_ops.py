"""A library of somebody's own: an operator that nobody else knows, a layer around it, a model."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.library.custom_op("mylib::fancy_matmul", mutates_args=())
def fancy_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """[.., k] x [k, n] -> [.., n]."""
    return x @ weight


@fancy_matmul.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[-1]))


class Fancy(nn.Module):
    """A linear layer 8 -> 12 through the operator."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 12))

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        result: Tensor = fancy_matmul(x, self.weight)
        return result


class Model(nn.Module):
    """Linear 6 -> 8, then the same fancy layer on both halves of what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.fancy = Fancy()

    def forward(self, x: Tensor) -> Tensor:
        """[B, 4, 6] -> [B, 4, 12]."""
        y = self.first(x)
        return torch.cat([self.fancy(y[:, :2]), self.fancy(y[:, 2:])], dim=1)

    def example_inputs(self) -> dict[str, Tensor]:
        """Three sequences of four."""
        return {"x": torch.empty(3, 4, 6, device="meta")}
