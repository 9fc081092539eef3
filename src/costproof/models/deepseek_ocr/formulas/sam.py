"""The SAM encoder: patch embedding, windowed and global attention layers, neck, two downsampling convolutions."""

from __future__ import annotations

from costproof.analytic.attention import Attention
from costproof.analytic.blocks import mlp
from costproof.analytic.compose import Part, numbered
from costproof.analytic.conv2d import Conv2d
from costproof.analytic.layer_norm import LayerNorm
from costproof.analytic.layer_norm_2d import LayerNorm2d
from costproof.analytic.linear import Linear
from costproof.analytic.patch_embedding import PatchEmbedding
from costproof.analytic.position_embedding import PositionEmbedding
from costproof.analytic.residual import Residual
from costproof.ledger.symbols import sym
from costproof.models.deepseek_ocr.formulas.relative_position import RelativePosition
from costproof.models.deepseek_ocr.formulas.structure import Structure, View
from costproof.models.deepseek_ocr.formulas.window import WindowPartition, windows_per_side


def parts(structure: Structure, view: View) -> tuple[Part, ...]:
    """All modules of the encoder on n views of H x H pixels; H is a multiple of 4 patches.

    Source: Kirillov et al. 2023, Segment Anything; ``UnlimitedOcrSamVisionEncoder`` (transformers).
    """
    n, side, b, hidden = sym("n"), sym("H"), sym("b"), sym("sam_hidden")
    out, down1, down2 = sym("sam_out"), sym("sam_down1"), sym("sam_down2")
    grid = side / sym("sam_patch")
    norm = (LayerNorm2d if structure.spelling.sam_norms_written_out else LayerNorm)(n * grid**2, out, b)
    return (
        Part(
            "sam",
            (PositionEmbedding(n, grid, hidden, sym("sam_image") / sym("sam_patch"), b, view.sam_resampled),),
        ),
        Part("sam.patches"),
        Part(
            "sam.patches.projection",
            (PatchEmbedding(n, sym("in_channels"), hidden, sym("sam_patch"), side, grid, b),),
        ),
        *(p for i in range(structure.sam_layers) for p in numbered(i, _layer(structure, view, i))),
        Part("sam.neck"),
        Part("sam.neck.conv1", (Conv2d(n, hidden, out, 1, grid, grid, b, bias=False),)),
        Part("sam.neck.norm1", (norm,)),
        Part("sam.neck.conv2", (Conv2d(n, out, out, 3, grid, grid, b, bias=False),)),
        Part("sam.neck.norm2", (norm,)),
        *((Part("sam.downsample"),) if structure.spelling.sam_downsample_module else ()),
        Part("sam.downsample.conv1", (Conv2d(n, out, down1, 3, grid, grid / 2, b, bias=False),)),
        Part("sam.downsample.conv2", (Conv2d(n, down1, down2, 3, grid / 2, grid / 4, b, bias=False),)),
    )


def _layer(structure: Structure, view: View, i: int) -> tuple[Part, ...]:
    n, b, hidden, heads = sym("n"), sym("b"), sym("sam_hidden"), sym("sam_heads")
    grid = sym("H") / sym("sam_patch")
    window, head_dim = sym("sam_window"), sym("sam_head_dim")
    tokens = n * grid**2

    residual = Residual(tokens * hidden, 2, b)
    if i in structure.sam_global_layers:
        sequences, length, table = n, grid, sym("sam_image") / sym("sam_patch")
        whole = Part("sam.layer", (residual,))
    else:
        sequences, length, table = n * windows_per_side(grid, window) ** 2, window, window
        padded = view.sam_padded or structure.spelling.sam_pads_always
        cut = (WindowPartition(n, grid, window, hidden, b),) if padded else ()
        whole = Part("sam.layer", (residual, *cut))
    attention = Attention(
        batch=sequences,
        queries=length**2,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        item_bytes=b,
        bias="inside",
        scaled="queries" if structure.attention == "eager" else "scores",
    )
    resampled = structure.spelling.sam_resamples_always or (i in structure.sam_global_layers and view.sam_resampled)
    positions = RelativePosition(sequences * heads, length, head_dim, 2 * table - 1, b, resampled)
    rows = sequences * length**2
    norm = LayerNorm(tokens, hidden, b)
    return (
        whole,
        Part("sam.layer.norm1", (norm,)),
        Part("sam.layer.attention", (attention, positions)),
        Part("sam.layer.attention.qkv", (Linear(rows, hidden, 3 * hidden, b, structure.sam_qkv_bias),)),
        Part("sam.layer.attention.out", (Linear(rows, hidden, hidden, b),)),
        Part("sam.layer.norm2", (norm,)),
        *mlp(
            "sam.layer.mlp",
            rows=tokens,
            width=hidden,
            inner=sym("sam_mlp"),
            function=structure.sam_activation,
            b=b,
        ),
    )
