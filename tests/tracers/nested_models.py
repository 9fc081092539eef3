"""Factories of modules on jagged nested tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LENGTHS = (10, 20, 34)
HEADS, DIM = 4, 16
WIDTH = HEADS * DIM


def jagged(lengths: tuple[int, ...] = LENGTHS, width: int = WIDTH) -> Any:
    return torch.nested.nested_tensor([torch.ones(n, width) for n in lengths], layout=torch.jagged)


class Block(nn.Module):
    """A layer of a transformer on nested tensors."""

    def __init__(self, *, causal: bool = False, key_heads: int = HEADS) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.sizes = [WIDTH, key_heads * DIM, key_heads * DIM]
        self.q, self.k, self.v = (nn.Linear(WIDTH, size) for size in self.sizes)
        self.out, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (layer(h).unflatten(-1, (-1, DIM)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        found = functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, enable_gqa=q.shape[1] != k.shape[1]
        )
        x = x + self.out(found.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def open_() -> Any:
    return Block(), jagged()


def causal() -> Any:
    return Block(causal=True), jagged()


def on_meta() -> Any:
    module, given = Block(causal=True).to("meta"), jagged()
    return module, given
