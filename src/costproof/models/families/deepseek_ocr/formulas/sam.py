"""The SAM encoder: patch embedding, windowed and global attention layers, neck, two downsampling convolutions."""

from __future__ import annotations

from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import ModulePart, StackCall, in_layer
from costproof.analytic.conv2d import Conv2d, PatchEmbedding
from costproof.analytic.embedding import PositionEmbedding
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.norms import LayerNorm, LayerNorm2d
from costproof.analytic.transformer import TransformerLayer
from costproof.models.families.deepseek_ocr.formulas.sam_attention import (
    RelativePosition,
    WindowPartition,
    windows_per_side,
)
from costproof.models.families.deepseek_ocr.formulas.structure import Structure, View


def parts(structure: Structure, view: View) -> tuple[ModulePart, ...]:
    """All modules of the encoder on n views of H x H pixels; H is a multiple of 4 patches.

    Source: Kirillov et al. 2023, Segment Anything; ``UnlimitedOcrSamVisionEncoder`` (transformers),
    ``ImageEncoderViT`` (vendor).
    """
    n, side, b, hidden = sym("n"), sym("H"), sym("b"), sym("sam_hidden")
    out, down1, down2 = sym("sam_out"), sym("sam_down1"), sym("sam_down2")
    grid = side / sym("sam_patch")
    norm = (LayerNorm2d if structure.remote else LayerNorm)(n * grid**2, out, b)
    return (
        ModulePart(
            "sam",
            (PositionEmbedding(n, grid, hidden, sym("sam_image") / sym("sam_patch"), b, view.sam_resampled),),
        ),
        ModulePart("sam.patches"),
        ModulePart(
            "sam.patches.projection",
            (PatchEmbedding(n, sym("in_channels"), hidden, sym("sam_patch"), side, grid, b),),
        ),
        *(p for i in range(structure.sam_layers) for p in in_layer(i, _layer(structure, view, i))),
        ModulePart("sam.neck"),
        ModulePart("sam.neck.conv1", (Conv2d(n, hidden, out, 1, grid, grid, b, bias=False),)),
        ModulePart("sam.neck.norm1", (norm,)),
        ModulePart("sam.neck.conv2", (Conv2d(n, out, out, 3, grid, grid, b, bias=False),)),
        ModulePart("sam.neck.norm2", (norm,)),
        *(() if structure.remote else (ModulePart("sam.downsample"),)),
        ModulePart("sam.downsample.conv1", (Conv2d(n, out, down1, 3, grid, grid / 2, b, bias=False),)),
        ModulePart("sam.downsample.conv2", (Conv2d(n, down1, down2, 3, grid / 2, grid / 4, b, bias=False),)),
    )


def _layer(structure: Structure, view: View, i: int) -> tuple[ModulePart, ...]:
    n, b, hidden, heads = sym("n"), sym("b"), sym("sam_hidden"), sym("sam_heads")
    grid, window, head_dim = sym("H") / sym("sam_patch"), sym("sam_window"), sym("sam_head_dim")
    remote, whole = structure.remote, i in structure.sam_global_layers
    if whole:
        sequences, length, table = n, grid, sym("sam_image") / sym("sam_patch")
    else:
        sequences, length, table = n * windows_per_side(grid, window) ** 2, window, window
    # transformers pads by nothing where windows fit, and resamples tables even to the length that they have.
    cut = not whole and (view.sam_padded or not remote)
    resampled = not remote or (whole and view.sam_resampled)
    attention = AttentionBlock(
        width=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        inner=hidden,
        bias=("q", "k", "v", "out"),
        fused=True,
        cached=False,
        mask="inside",
        written_out=structure.attention == "eager",
        scaled="queries" if structure.attention == "eager" else "scores",
        beside=(RelativePosition(sequences * heads, length, head_dim, 2 * table - 1, b, resampled),),
    )
    layer = TransformerLayer(
        width=hidden,
        attention=attention,
        feed_forward=Mlp(hidden, sym("sam_mlp"), "gelu"),
        norm="layer",
        beside=(WindowPartition(n, grid, window, hidden, b),) if cut else (),
    )
    return layer.parts("sam.layer", StackCall(n, grid**2, b), StackCall(sequences, length**2, b))
