"""Factories of modules with attention as kernels run it, on 3 documents of 10, 20 and 34 tokens in one row of 64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn

LENGTHS = (10, 20, 34)
HEADS, DIM = 4, 16
STARTS = torch.tensor([0, 10, 30, 64], dtype=torch.int32)
ROWS = torch.ones(64, HEADS * DIM)


class Packed(nn.Module):
    """Projections around attention on packed rows."""

    def __init__(self, window: tuple[int, int] = (-1, -1)) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(HEADS * DIM, 3 * HEADS * DIM), nn.Linear(HEADS * DIM, HEADS * DIM)
        self.window = window

    def attend(self, x: Tensor, starts: Tensor, used: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).view(-1, 3, HEADS, DIM).unbind(1)
        found: Any = varlen_attn(q, k, v, starts, starts, 34, 34, window_size=self.window, seqused_k=used)
        result: Tensor = self.out(found.flatten(1))
        return result

    def forward(self, x: Tensor, starts: Tensor, used: Tensor | None = None) -> Tensor:
        return self.attend(x, starts, used)


class FromLengths(Packed):
    """The starts are computed from the lengths."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        return self.attend(x, functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32))


class Written(Packed):
    """The starts are written into zeros."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        starts = torch.zeros(4, dtype=torch.int32, device=x.device)
        starts[1:] = lengths.cumsum(0)
        return self.attend(x, starts)


class Held(Packed):
    """The starts are a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("starts", STARTS.clone())

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        assert isinstance(self.starts, Tensor)
        return self.attend(x, self.starts)


class Flash(Packed):
    """The function of the FlashAttention package, which needs no kernels on meta."""

    def forward(self, x: Tensor, starts: Tensor) -> Tensor:  # type: ignore[override]
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found, import-untyped, unused-ignore]

        q, k, v = self.qkv(x).view(-1, 3, HEADS, DIM).unbind(1)
        found = flash_attn_varlen_func(q, k, v, starts, starts, 34, 34, causal=True, window_size=(7, 0))
        result: Tensor = self.out(found.flatten(1))
        return result


def plain() -> Any:
    return Packed(), (ROWS, STARTS)


def causal() -> Any:
    return Packed((-1, 0)), (ROWS, STARTS)


def window() -> Any:
    return Packed((7, 0)), (ROWS, STARTS)


def partly() -> Any:
    return Packed((-1, 0)), (ROWS, STARTS, torch.tensor([10, 12, 30], dtype=torch.int32))


def from_lengths() -> Any:
    return FromLengths((-1, 0)), (ROWS, torch.tensor(LENGTHS))


def written() -> Any:
    return Written(), (ROWS, torch.tensor(LENGTHS))


def held() -> Any:
    return Held(), (ROWS,)


def flash() -> Any:
    half = ROWS.to("meta", torch.float16)
    return Flash().to("meta", torch.float16), (half, STARTS)


def on_meta() -> Any:
    return Packed().to("meta"), (ROWS.to("meta"), STARTS.to("meta"))


def too_long() -> Any:
    return Packed(), (ROWS, torch.tensor([0, 10, 20, 64], dtype=torch.int32))


class Flexible(Packed):
    """``flex_attention`` of all rows, under a mask function and a score function."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.slopes = kind, nn.Parameter(torch.ones(HEADS))

    def mask(self) -> Any:
        if self.kind == "documents":
            which = torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS), output_size=64)
            return lambda b, h, i, j: (which[i] == which[j]) & (i >= j)
        if self.kind == "by head":
            return lambda b, h, i, j: (i >= j) & (i - j <= h)
        return lambda b, h, i, j: i >= j

    def score(self) -> Any:
        if self.kind == "sloped":
            return lambda score, b, h, i, j: score + self.slopes[h] * (j - i)
        return None

    def forward(self, x: Tensor, mask: Any = None) -> Tensor:  # type: ignore[override]
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        q, k, v = (t.transpose(0, 1)[None] for t in self.qkv(x).view(-1, 3, HEADS, DIM).unbind(1))
        if mask is None and self.kind != "open":
            heads = HEADS if self.kind == "by head" else None
            mask = create_block_mask(self.mask(), None, heads, len(x), len(x), device=x.device)
        found: Any = flex_attention(q, k, v, self.score(), mask)
        result: Tensor = self.out(found[0].transpose(0, 1).flatten(1))
        return result


def open_() -> Any:
    return Flexible("open"), (ROWS,)


def causal_function() -> Any:
    return Flexible("causal"), (ROWS,)


def documents() -> Any:
    return Flexible("documents"), (ROWS,)


def by_head() -> Any:
    return Flexible("by head"), (ROWS,)


def sloped() -> Any:
    return Flexible("sloped"), (ROWS,)


def given_mask() -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    mask = create_block_mask(Flexible("documents").mask(), None, None, 64, 64, device="cpu")
    return Flexible("given"), (ROWS, mask)
