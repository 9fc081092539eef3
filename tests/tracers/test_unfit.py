"""A model that does not take its inputs: the module, what it takes and what it got, before what a tracer says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import costproof
from costproof.ledger.errors import Incomplete


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(5, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w


class Nested(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Identity(), inner])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(
    ("inner", "shape", "where", "expected", "got"),
    [
        (nn.Sequential(nn.Linear(8, 6), nn.Linear(8, 4)), (2, 8), "blocks.1.1 (Linear)", "[..., 8]", "[2, 6] float32"),
        (nn.Conv2d(3, 4, 3), (1, 4, 9, 9), "blocks.1 (Conv2d)", "[N, 3, size, size]", "[1, 4, 9, 9] float32"),
        (nn.LayerNorm(6), (2, 5), "blocks.1 (LayerNorm)", "[..., 6]", "[2, 5] float32"),
        (nn.Embedding(10, 4), (3,), "blocks.1 (Embedding)", "integers from 0 to 9", "[3] float32"),
        (Own(), (2, 8), "blocks.1 (Own)", "what fits its own w [5, 5]", "[2, 8] float32"),
    ],
)
def test_the_module_and_both_shapes_are_named(
    inner: nn.Module, shape: tuple[int, ...], where: str, expected: str, got: str
) -> None:
    model = Nested(inner)
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()]
    with pytest.raises(Incomplete) as caught:
        costproof.count(model, torch.zeros(shape))
    error = caught.value
    assert (error.what, error.where, error.expected) == ("the model does not run on these inputs", where, expected)
    assert str(error.got).startswith(f"{got}; ")
    assert "Expected cond" not in str(error)
    assert [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()] == hooks
