"""The CLIP encoder, which takes SAM's features in place of patches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from costproof.analytic.attention import Attention
from costproof.analytic.blocks import mlp
from costproof.analytic.compose import Part
from costproof.analytic.embedding import Embedding
from costproof.analytic.layer_norm import LayerNorm
from costproof.analytic.linear import Linear
from costproof.analytic.position_embedding import ClassAndPositions
from costproof.analytic.residual import Residual
from costproof.ledger.symbols import sym
from costproof.models.deepseek_ocr.formulas.names import path
from costproof.models.deepseek_ocr.formulas.structure import Structure, View


def parts(structure: Structure, view: View, names: Mapping[str, str]) -> tuple[Part, ...]:
    """All modules of the encoder on n views of (H / 4 sam_patch)² features and a class token.

    Source: Radford et al. 2021, CLIP; ``UnlimitedOcrVisionEncoder`` (transformers).
    """
    n, b, hidden, entries = sym("n"), sym("b"), sym("clip_hidden"), sym("clip_positions")
    grid = sym("H") / (4 * sym("sam_patch"))
    tokens = grid**2 + 1
    name = partial(path, names)
    return (
        Part(name("clip")),
        Part(name("clip.embeddings"), (ClassAndPositions(n, grid, hidden, entries, b, view.clip_resampled),)),
        Part(name("clip.positions"), (Embedding(tokens, entries, hidden, b),), called=not view.clip_resampled),
        Part(name("clip.norm"), (LayerNorm(n * tokens, hidden, b),)),
        Part(name("clip.encoder")),
        *(p for i in range(structure.clip_layers) for p in _layer(structure, names, i)),
    )


def _layer(structure: Structure, names: Mapping[str, str], i: int) -> tuple[Part, ...]:
    n, b, hidden, heads = sym("n"), sym("b"), sym("clip_hidden"), sym("clip_heads")
    tokens = (sym("H") / (4 * sym("sam_patch"))) ** 2 + 1
    rows = n * tokens

    def name(role: str) -> str:
        return path(names, role, i)

    attention = Attention(n, tokens, heads, heads, sym("clip_head_dim"), b)
    projection, norm = Linear(rows, hidden, hidden, b), LayerNorm(rows, hidden, b)
    return (
        Part(name("clip.layer"), (Residual(rows * hidden, 2, b),)),
        Part(name("clip.layer.norm1"), (norm,)),
        Part(name("clip.layer.attention"), (attention,)),
        *(Part(name(f"clip.layer.attention.{x}"), (projection,)) for x in ("q", "k", "v", "out")),
        Part(name("clip.layer.norm2"), (norm,)),
        *mlp(
            "clip.layer.mlp",
            name,
            rows=rows,
            width=hidden,
            inner=sym("clip_mlp"),
            function=structure.clip_activation,
            b=b,
        ),
    )
