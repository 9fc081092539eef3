"""The CLIP encoder, which takes SAM's features in place of patches."""

from __future__ import annotations

from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import ModulePart, StackCall, in_layer
from costproof.analytic.conv2d import Conv2d
from costproof.analytic.embedding import ClassAndPositions, Embedding, PositionIds
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.norms import LayerNorm
from costproof.analytic.transformer import TransformerLayer
from costproof.models.families.deepseek_ocr.formulas.structure import Structure, View


def parts(structure: Structure, view: View) -> tuple[ModulePart, ...]:
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
    layer = _layer(structure).parts("clip.layer", StackCall(n, tokens, b))
    return (
        ModulePart("clip"),
        ModulePart("clip.embeddings", (positions, PositionIds(entries))),
        *((ModulePart("clip.patches", (unused,), called=False),) if structure.remote else ()),
        ModulePart("clip.positions", (table,), called=always or not resampled),
        ModulePart("clip.norm", (LayerNorm(n * tokens, hidden, b),)),
        ModulePart("clip.encoder"),
        *(part for i in range(structure.clip_layers) for part in in_layer(i, layer)),
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
