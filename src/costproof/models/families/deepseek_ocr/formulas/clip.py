"""The CLIP encoder, which takes SAM's features in place of patches."""

from __future__ import annotations

from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import Call, Part, numbered
from costproof.analytic.conv2d import Conv2d
from costproof.analytic.embedding import Embedding
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.norms import LayerNorm
from costproof.analytic.position_embedding import ClassAndPositions, PositionIds
from costproof.analytic.transformer import TransformerLayer
from costproof.models.families.deepseek_ocr.formulas.structure import Structure, View


def parts(structure: Structure, view: View) -> tuple[Part, ...]:
    """All modules of the encoder on n views of (H / 4 sam_patch)² features and a class token.

    Source: Radford et al. 2021, CLIP; ``UnlimitedOcrVisionEncoder`` (transformers), ``VitModel`` (vendor).
    """
    # The vendor's code looks positions up whatever the grid, and holds a patch embedding that never runs.
    always, resampled = structure.remote, view.clip_resampled
    n, b, hidden, entries, patch = sym("n"), sym("b"), sym("clip_hidden"), sym("clip_positions"), sym("clip_patch")
    grid = sym("H") / (4 * sym("sam_patch"))
    tokens = grid**2 + 1
    positions = ClassAndPositions(n, grid, hidden, entries, b, resampled, always)
    unused = Conv2d(n, sym("in_channels"), hidden, patch, sym("H"), sym("H") / patch, b, bias=False)
    table = Embedding(entries if always else tokens, entries, hidden, b)
    layer = _layer(structure).parts("clip.layer", Call(n, tokens, b))
    return (
        Part("clip"),
        Part("clip.embeddings", (positions, PositionIds(entries))),
        *((Part("clip.patches", (unused,), called=False),) if structure.remote else ()),
        Part("clip.positions", (table,), called=always or not resampled),
        Part("clip.norm", (LayerNorm(n * tokens, hidden, b),)),
        Part("clip.encoder"),
        *(part for i in range(structure.clip_layers) for part in numbered(i, layer)),
    )


def _layer(structure: Structure) -> TransformerLayer:
    hidden, heads, fused = sym("clip_hidden"), sym("clip_heads"), structure.remote
    attention = AttentionBlock(
        width=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=sym("clip_head_dim"),
        inner=hidden,
        bias=("q", "k", "v", "out"),
        fused=fused,
        cached=False,
        written_out=structure.attention == "eager",
    )
    mlp = Mlp(hidden, sym("clip_mlp"), "quick_gelu", activation_module=not fused)
    return TransformerLayer(hidden, attention, mlp, norm="layer")
