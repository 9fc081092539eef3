"""The closed formulas of Qwen2.5-VL: a tower on patches, most of its layers in windows, and the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import Call, Part, numbered
from costproof.analytic.costs import Size
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.patch_grid import (
    FLOAT32,
    AxialTable,
    JoinedImages,
    PatchMerger,
    VolumePatches,
    WindowOrder,
    window_pairs,
)
from costproof.analytic.rotary import Rotary, RotaryAxes
from costproof.analytic.transformer import TransformerLayer
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding.formulas import DecoderStyle, decoder_parts
from costproof.models.decoding.names import decoder_names, mlp_names
from costproof.models.encoding.formulas import ALL_PROJECTIONS
from costproof.models.families.qwen2_5_vl.config import Qwen25VlConfig
from costproof.models.image_text.ledger import IMAGES, ledger

_TOWER: Final = "model.visual"
_LAYER: Final = f"{_TOWER}.blocks.{{i}}"
_MERGER: Final = f"{_TOWER}.merger"
NAMES: Final[Mapping[str, str]] = {
    "vision": _TOWER,
    "vision.patches": f"{_TOWER}.patch_embed",
    "vision.patches.projection": f"{_TOWER}.patch_embed.proj",
    "vision.rotary": f"{_TOWER}.rotary_pos_emb",
    "vision.layer": _LAYER,
    "vision.layer.norm1": f"{_LAYER}.norm1",
    "vision.layer.attention": f"{_LAYER}.attn",
    "vision.layer.attention.qkv": f"{_LAYER}.attn.qkv",
    "vision.layer.attention.out": f"{_LAYER}.attn.proj",
    "vision.layer.norm2": f"{_LAYER}.norm2",
    **mlp_names("vision.layer.mlp", f"{_LAYER}.mlp"),
    "vision.merger": _MERGER,
    "vision.merger.mlp": f"{_MERGER}.mlp",
    "vision.merger.norm": f"{_MERGER}.ln_q",
    "vision.merger.up": f"{_MERGER}.mlp.0",
    "vision.merger.activation": f"{_MERGER}.mlp.1",
    "vision.merger.down": f"{_MERGER}.mlp.2",
    "model": "model",
    **decoder_names("model.language_model"),
}
STYLE: Final = DecoderStyle(bias=("q", "k", "v"), table=RotaryAxes, positions_per_sequence=True)


def formulas(config: Qwen25VlConfig, workload: Workload) -> Ledger:
    """All stages in symbols: ``exprs`` filled, ``costs`` empty.

    n images of U x U tokens, each of merge² patches.

    Source: Bai et al. 2025, Qwen2.5-VL Technical Report; ``Qwen2_5_VLForConditionalGeneration`` (transformers).
    """
    tokens = IMAGES * sym("U") ** 2
    patches = tokens * sym("vision_merge") ** 2
    out, b = sym("vision_out"), sym("b")
    border = (patches * sym("vision_volume") + tokens * out) * b
    return ledger(
        {"vision": (_tower(config, patches, tokens, eager=workload.attention == "eager"), border)},
        decoder_parts(config.text, workload, STYLE),
        tokens,
        workload,
        NAMES,
        returned=False,
    )


def _tower(config: Qwen25VlConfig, patches: Size, tokens: Size, *, eager: bool) -> tuple[Part, ...]:
    """All modules from patches to tokens.

    Branches: a configuration says which layers have windows.
    """
    vision = config.vision
    width, head_dim, out, b = sym("vision_hidden"), sym("vision_head_dim"), sym("vision_out"), sym("b")
    unit, heads, side = sym("vision_merge") ** 2, sym("vision_heads"), sym("U")
    seen = {True: side**4, False: window_pairs(side, sym("vision_window"))}
    rotary = Rotary(1, patches, heads, heads, head_dim, FLOAT32, state_bytes=b)

    def layer(i: int) -> tuple[Part, ...]:
        attention = AttentionBlock(
            width=width,
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            inner=width,
            bias=ALL_PROJECTIONS,
            fused=True,
            cached=False,
            seen=IMAGES * unit**2 * seen[i in vision.whole],
            written_out=eager,
            beside=(rotary, JoinedImages(patches * width, b)),
        )
        mlp = Mlp(width, sym("vision_intermediate"), vision.activation, gated=True)
        return numbered(i, TransformerLayer(width, attention, mlp, norm="rms").parts("vision.layer", call))

    call = Call(1, patches, b)
    return (
        Part("vision", (WindowOrder(patches, width, head_dim, tokens, out, b),)),
        Part("vision.patches"),
        Part("vision.patches.projection", (VolumePatches(patches, sym("vision_volume"), width, b, bias=False),)),
        Part("vision.rotary", (AxialTable(patches, head_dim),)),
        *(p for i in range(vision.layers) for p in layer(i)),
        *PatchMerger(width, unit, out, norm="rms").parts("vision.merger", patches, b),
        Part("vision.merger.mlp"),
    )
