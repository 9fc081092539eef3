"""The CLIP encoder, which takes SAM's features in place of patches."""

from __future__ import annotations

from costproof.analytic.attention import Attention
from costproof.analytic.blocks import mlp
from costproof.analytic.compose import Part, numbered
from costproof.analytic.embedding import Embedding
from costproof.analytic.layer_norm import LayerNorm
from costproof.analytic.linear import Linear
from costproof.analytic.position_embedding import ClassAndPositions
from costproof.analytic.residual import Residual
from costproof.ledger.symbols import sym
from costproof.models.deepseek_ocr.formulas.structure import Structure, View


def parts(structure: Structure, view: View) -> tuple[Part, ...]:
    """All modules of the encoder on n views of (H / 4 sam_patch)² features and a class token.

    Source: Radford et al. 2021, CLIP; ``UnlimitedOcrVisionEncoder`` (transformers).
    """
    n, b, hidden, entries = sym("n"), sym("b"), sym("clip_hidden"), sym("clip_positions")
    grid = sym("H") / (4 * sym("sam_patch"))
    tokens = grid**2 + 1
    return (
        Part("clip"),
        Part("clip.embeddings", (ClassAndPositions(n, grid, hidden, entries, b, view.clip_resampled),)),
        Part("clip.positions", (Embedding(tokens, entries, hidden, b),), called=not view.clip_resampled),
        Part("clip.norm", (LayerNorm(n * tokens, hidden, b),)),
        Part("clip.encoder"),
        *(p for i in range(structure.clip_layers) for p in numbered(i, _layer(structure))),
    )


def _layer(structure: Structure) -> tuple[Part, ...]:
    n, b, hidden, heads = sym("n"), sym("b"), sym("clip_hidden"), sym("clip_heads")
    tokens = (sym("H") / (4 * sym("sam_patch"))) ** 2 + 1
    rows = n * tokens

    attention = Attention(n, tokens, heads, heads, sym("clip_head_dim"), b)
    projection, norm = Linear(rows, hidden, hidden, b), LayerNorm(rows, hidden, b)
    return (
        Part("clip.layer", (Residual(rows * hidden, 2, b),)),
        Part("clip.layer.norm1", (norm,)),
        Part("clip.layer.attention", (attention,)),
        *(Part(f"clip.layer.attention.{x}", (projection,)) for x in ("q", "k", "v", "out")),
        Part("clip.layer.norm2", (norm,)),
        *mlp(
            "clip.layer.mlp",
            rows=rows,
            width=hidden,
            inner=sym("clip_mlp"),
            function=structure.clip_activation,
            b=b,
        ),
    )
