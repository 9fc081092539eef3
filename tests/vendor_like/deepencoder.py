"""The two vision towers and the projector.

Traits of the original that matter to a tracer: resampling and padding only where sizes differ, a norm
written out in primitives, sub-modules run past their ``__call__``, an activation compiled by
TorchScript, a convolution that is loaded and never run.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@torch.jit.script
def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


def resampled(table: torch.Tensor, side: int) -> torch.Tensor:
    """[1, s, s, width] -> [1, side, side, width]."""
    if table.size(1) == side:
        return table
    channels = table.permute(0, 3, 1, 2).to(torch.float32)
    grown = F.interpolate(channels, size=(side, side), mode="bicubic", antialias=True, align_corners=False)
    return grown.to(table.dtype).permute(0, 2, 3, 1)


class Norm2d(nn.Module):
    """Layer norm over the channels of [n, channels, y, x]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Written out in primitives."""
        mean = x.mean(1, keepdim=True)
        spread = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(spread + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class PatchEmbed(nn.Module):
    """[n, 3, H, H] -> [n, H / 16, H / 16, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, kernel_size=16, stride=16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Channels last."""
        result: torch.Tensor = self.proj(x).permute(0, 2, 3, 1)
        return result


def relative(side: int, table: torch.Tensor) -> torch.Tensor:
    """[side, side, head width] of a table of distances."""
    length = 2 * side - 1
    if table.shape[0] != length:
        flat = table.to(torch.float32).reshape(1, table.shape[0], -1).permute(0, 2, 1)
        table = F.interpolate(flat, size=length, mode="linear").to(table.dtype).reshape(-1, length).permute(1, 0)
    queries = torch.arange(side)[:, None] * 1.0
    keys = torch.arange(side)[None, :] * 1.0
    distance = (queries - keys) + (side - 1) * 1.0
    return table[distance.long()]


class Attention(nn.Module):
    """Attention on a grid with decomposed relative positions."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.rel_pos_h = nn.Parameter(torch.zeros(2 * side - 1, width // heads))
        self.rel_pos_w = nn.Parameter(torch.zeros(2 * side - 1, width // heads))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, side, side, width]."""
        n, side, _, _ = x.shape
        packed = self.qkv(x).reshape(n, side * side, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = packed.reshape(3, n * self.heads, side * side, -1).unbind(0)
        grid = q.reshape(n * self.heads, side, side, -1)
        rows = torch.einsum("bhwc,hkc->bhwk", grid, relative(side, self.rel_pos_h))
        columns = torch.einsum("bhwc,wkc->bhwk", grid, relative(side, self.rel_pos_w))
        rows = rows.reshape(n, self.heads, side * side, side, 1)
        columns = columns.reshape(n, self.heads, side * side, 1, side)
        bias = (rows + columns).view(n, self.heads, side * side, side * side)
        q, k, v = (t.view(n, self.heads, side * side, -1) for t in (q, k, v))
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x.view(n, self.heads, side, side, -1).permute(0, 2, 3, 1, 4).reshape(n, side, side, -1)
        result: torch.Tensor = self.proj(x)
        return result


class Perceptron(nn.Module):
    """lin2(gelu(lin1(x)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin1 = nn.Linear(width, 4 * width)
        self.lin2 = nn.Linear(4 * width, width)
        self.act = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Width in, width out."""
        result: torch.Tensor = self.lin2(self.act(self.lin1(x)))
        return result


class Block(nn.Module):
    """A layer of SAM; a window of 0 is attention over the whole grid."""

    def __init__(self, width: int, heads: int, window: int, side: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, window or side)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Perceptron(width)
        self.window = window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, side, side, width]."""
        short, x = x, self.norm1(x)
        n, side, _, width = x.shape
        w = self.window
        padded = side
        if w:
            missing = (w - side % w) % w
            if missing:
                x = F.pad(x, (0, 0, 0, missing, 0, missing))
            padded = side + missing
            x = x.view(n, padded // w, w, padded // w, w, width).permute(0, 1, 3, 2, 4, 5)
            x = x.contiguous().view(-1, w, w, width)
        x = self.attn(x)
        if w:
            x = x.view(n, padded // w, padded // w, w, w, -1).permute(0, 1, 3, 2, 4, 5)
            x = x.contiguous().view(n, padded, padded, -1)
            if padded > side:
                x = x[:, :side, :side, :].contiguous()
        x = short + x
        result: torch.Tensor = x + self.mlp(self.norm2(x))
        return result


class ImageEncoderViT(nn.Module):
    """SAM: [n, 3, H, H] -> [n, features, H / 64, H / 64]."""

    def __init__(self, vision: dict[str, Any]) -> None:
        super().__init__()
        tower = vision["width"]["sam_vit_b"]
        width, side = tower["width"], vision["image_size"] // 16
        first, second = tower["downsample_channels"]
        self.patch_embed = PatchEmbed(width)
        self.pos_embed = nn.Parameter(torch.zeros(1, side, side, width))
        self.blocks = nn.ModuleList(
            Block(width, tower["heads"], 0 if i in tower["global_attn_indexes"] else 14, side)
            for i in range(tower["layers"])
        )
        self.neck = nn.Sequential(
            nn.Conv2d(width, 256, kernel_size=1, bias=False),
            Norm2d(256),
            nn.Conv2d(256, 256, kernel_size=3, padding=1, bias=False),
            Norm2d(256),
        )
        self.net_2 = nn.Conv2d(256, first, kernel_size=3, stride=2, padding=1, bias=False)
        self.net_3 = nn.Conv2d(first, second, kernel_size=3, stride=2, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Features."""
        x = self.patch_embed(x)
        x = x + resampled(self.pos_embed, x.size(1))
        for block in self.blocks:
            x = block(x)
        x = self.neck(x.permute(0, 3, 1, 2))
        result: torch.Tensor = self.net_3(self.net_2(x).clone())
        return result


class Embeddings(nn.Module):
    """A class token before the given features, and positions."""

    def __init__(self, width: int, image: int, patch: int) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.randn(width))
        self.patch_embedding = nn.Conv2d(3, width, kernel_size=patch, stride=patch, bias=False)
        positions = (image // patch) ** 2 + 1
        self.position_embedding = nn.Embedding(positions, width)
        self.register_buffer("position_ids", torch.arange(positions).expand((1, -1)))

    def forward(self, pixels: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """[n, width, q, q] -> [n, q² + 1, width]; the pixels give n alone."""
        tokens = features.flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(pixels.shape[0], 1, -1), tokens], dim=1)
        table = self.position_embedding(self.position_ids)
        source, side = int(math.sqrt(table.size(1) - 1)), int(math.sqrt(x.size(1)))
        if source != side:
            first, rest = table.squeeze(0)[:1], table.squeeze(0)[1:]
            grown = resampled(rest.view(1, source, source, -1), side).view(side * side, -1)
            table = torch.cat([first, grown], dim=0).unsqueeze(0)
        result: torch.Tensor = x + table
        return result


class SelfAttention(nn.Module):
    """Plain attention with one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, tokens, width]."""
        n, tokens, _ = x.shape
        packed = self.qkv_proj(x).view(n, tokens, 3, self.heads, -1)
        q, k, v = (t.squeeze(2).permute(0, 2, 1, 3) for t in torch.split(packed, 1, dim=2))
        x = F.scaled_dot_product_attention(q, k, v).permute(0, 2, 1, 3).reshape(n, tokens, -1)
        result: torch.Tensor = self.out_proj(x)
        return result


class FeedForward(nn.Module):
    """fc2(quick_gelu(fc1(x)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4096)
        self.fc2 = nn.Linear(4096, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Width in, width out."""
        result: torch.Tensor = self.fc2(quick_gelu(self.fc1(x)))
        return result


class TransformerBlock(nn.Module):
    """A layer of CLIP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.self_attn = SelfAttention(width, heads)
        self.mlp = FeedForward(width)
        self.layer_norm1 = nn.LayerNorm(width)
        self.layer_norm2 = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs its parts past their ``__call__``: no hook sees them."""
        x = x + self.self_attn.forward(self.layer_norm1(x))
        return x + self.mlp.forward(self.layer_norm2(x))


class Transformer(nn.Module):
    """All layers of CLIP."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerBlock(width, heads) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        for layer in self.layers:
            x = layer(x)
        return x


class VitModel(nn.Module):
    """CLIP, fed with SAM's features."""

    def __init__(self, vision: dict[str, Any]) -> None:
        super().__init__()
        tower = vision["width"]["clip-l-14-224"]
        self.embeddings = Embeddings(tower["width"], tower["image_size"], tower["patch_size"])
        self.transformer = Transformer(tower["width"], tower["heads"], tower["layers"])
        self.pre_layrnorm = nn.LayerNorm(tower["width"])

    def forward(self, x: torch.Tensor, patch_embeds: torch.Tensor) -> torch.Tensor:
        """[n, q² + 1, width]."""
        result: torch.Tensor = self.transformer(self.pre_layrnorm(self.embeddings(x, patch_embeds)))
        return result


class MlpProjector(nn.Module):
    """One linear layer inside a module of its own."""

    def __init__(self, projector: dict[str, Any]) -> None:
        super().__init__()
        self.layers = nn.Linear(projector["input_dim"], projector["n_embed"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """To the decoder's width."""
        result: torch.Tensor = self.layers(x)
        return result
