"""The CLIP encoder in the vendor's spelling: one projection for queries, keys and values."""

from __future__ import annotations

from costproof.analytic.attention import Attention
from costproof.analytic.compose import Part, numbered
from costproof.analytic.conv2d import Conv2d
from costproof.analytic.embedding import Embedding
from costproof.analytic.layer_norm import LayerNorm
from costproof.analytic.linear import Linear
from costproof.analytic.mlp import Activation
from costproof.analytic.position_embedding import ClassAndPositions
from costproof.analytic.residual import Residual
from costproof.ledger.symbols import sym
from costproof.models.deepseek_ocr.formulas.structure import Structure, View


def parts(structure: Structure, view: View) -> tuple[Part, ...]:
    """All modules of the encoder on n views of (H / 4 sam_patch)² features and a class token.

    The patch embedding is loaded and never runs: SAM's features stand in its place.

    Source: Radford et al. 2021, CLIP; ``VitModel`` of the vendor.
    """
    n, b, hidden, entries = sym("n"), sym("b"), sym("clip_hidden"), sym("clip_positions")
    grid, patch = sym("H") / (4 * sym("sam_patch")), sym("clip_patch")
    tokens = grid**2 + 1
    unused = Conv2d(n, sym("in_channels"), hidden, patch, sym("H"), sym("H") / patch, b, bias=False)
    positions = ClassAndPositions(n, grid, hidden, entries, b, view.clip_resampled, looked_up=True)
    return (
        Part("clip"),
        Part("clip.embeddings", (positions,)),
        Part("clip.patches", (unused,), called=False),
        Part("clip.positions", (Embedding(entries, entries, hidden, b),)),
        Part("clip.norm", (LayerNorm(n * tokens, hidden, b),)),
        Part("clip.encoder"),
        *(p for i in range(structure.clip_layers) for p in numbered(i, _layer(structure))),
    )


def _layer(structure: Structure) -> tuple[Part, ...]:
    n, b, hidden, heads = sym("n"), sym("b"), sym("clip_hidden"), sym("clip_heads")
    tokens = (sym("H") / (4 * sym("sam_patch"))) ** 2 + 1
    rows, inner = n * tokens, sym("clip_mlp")

    attention = Attention(n, tokens, heads, heads, sym("clip_head_dim"), b)
    norm = LayerNorm(rows, hidden, b)
    return (
        Part("clip.layer", (Residual(rows * hidden, 2, b),)),
        Part("clip.layer.norm1", (norm,)),
        Part("clip.layer.attention", (attention,)),
        Part("clip.layer.attention.qkv", (Linear(rows, hidden, 3 * hidden, b),)),
        Part("clip.layer.attention.out", (Linear(rows, hidden, hidden, b),)),
        Part("clip.layer.norm2", (norm,)),
        # The activation is a function, not a module.
        Part("clip.layer.mlp", (Activation(rows * inner, structure.clip_activation, b),)),
        Part("clip.layer.mlp.up", (Linear(rows, hidden, inner, b),)),
        Part("clip.layer.mlp.down", (Linear(rows, inner, hidden, b),)),
    )
