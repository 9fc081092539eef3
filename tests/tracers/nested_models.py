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
        result: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return result


def open_() -> Any:
    return Block(), jagged()


def causal() -> Any:
    return Block(causal=True), jagged()


class Packed(Block):
    """Rows of all sequences, with their lengths; the nested tensor is made inside."""

    def forward(self, rows: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        given: Any = torch.nested.nested_tensor_from_jagged(rows, lengths=lengths)
        found: Tensor = super().forward(given).values()
        return found


class FromOffsets(Block):
    """As :class:`Packed`, with the first rows."""

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:  # type: ignore[override]
        given: Any = torch.nested.nested_tensor_from_jagged(rows, offsets)
        found: Tensor = super().forward(given).values()
        return found


class FromList(Block):
    """The nested tensor is made of the sequences."""

    def forward(self, *sequences: Tensor) -> Tensor:
        given = torch.nested.nested_tensor(list(sequences), layout=torch.jagged)
        padded: Tensor = torch.nested.to_padded_tensor(super().forward(given), 0.0)
        return padded


class AsNested(Block):
    def forward(self, *sequences: Tensor) -> Tensor:
        given = torch.nested.as_nested_tensor(list(sequences), layout=torch.jagged)
        return super().forward(given).mean(dim=1)


class Crossed(nn.Module):
    """Queries of some sequences see the keys of others."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        k, v = self.kv(y).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (HEADS, DIM)).transpose(1, 2) for t in (self.q(x), k, v))
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.block = nn.Embedding(50, WIDTH), Block(causal=True)

    def forward(self, ids: Tensor) -> list[Tensor]:
        return [part.sum(0) for part in self.block(self.table(ids)).unbind()]


ROWS = torch.ones(sum(LENGTHS), WIDTH)


def of_lengths() -> Any:
    return Packed(causal=True), (ROWS, torch.tensor(LENGTHS))


def of_offsets() -> Any:
    return FromOffsets(), (ROWS, torch.tensor([0, 10, 30, 64]))


def of_list() -> Any:
    return FromList(causal=True), tuple(torch.ones(n, WIDTH) for n in LENGTHS)


def as_nested() -> Any:
    return AsNested(), tuple(torch.ones(n, WIDTH) for n in LENGTHS)


def grouped() -> Any:
    return Block(causal=True, key_heads=2), jagged()


def crossed() -> Any:
    return Crossed(), (jagged(), jagged((7, 5, 9)))


def embedded() -> Any:
    ids = torch.nested.nested_tensor([torch.ones(n, dtype=torch.int64) for n in LENGTHS], layout=torch.jagged)
    return Embedded(), ids


def holes() -> Any:
    return Block(), torch.nested.narrow(torch.ones(3, 40, WIDTH), 1, 0, torch.tensor(LENGTHS), layout=torch.jagged)


def strided() -> Any:
    return Block(), torch.nested.nested_tensor([torch.ones(n, WIDTH) for n in LENGTHS])


class Many(nn.Module):
    """One attention for each of many nested tensors."""

    def forward(self, given: list[Tensor]) -> list[Tensor]:
        found = []
        for i, x in enumerate(given):
            nested: Any = x
            rows = nested.unflatten(-1, (2, 4)).transpose(1, 2)
            found.append(functional.scaled_dot_product_attention(rows, rows, rows, is_causal=i % 2 == 1))
        return found


class Soft(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=1).sum(dim=1) + x.sum(dim=1)


def soft() -> Any:
    return Soft(), jagged()


def multihead() -> Any:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, batch_first=True), jagged()
