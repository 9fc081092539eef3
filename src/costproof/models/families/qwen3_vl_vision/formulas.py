"""The closed formulas of Qwen3-VL's vision tower: n patches of one image, and mergers of four patches each."""

from __future__ import annotations

from typing import Final

from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import Call, Part, numbered
from costproof.analytic.embedding import Embedding
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.patch_grid import (
    FLOAT32,
    AxialTable,
    InterpolatedPositions,
    JoinedImages,
    PatchMerger,
    VolumePatches,
)
from costproof.analytic.rotary import Rotary
from costproof.analytic.transformer import TransformerLayer
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.models.encoding.stage import ALL, ledger
from costproof.models.families.qwen3_vl_vision.config import Qwen3VlVisionConfig

_LAYER: Final = "blocks.{i}"
_MLP: Final = "vision.layer.mlp"
_MERGERS: Final = {"vision.merger": "merger", "vision.deep_merger": "deepstack_merger_list.{i}"}
NAMES: Final = {
    "vision": "",
    "vision.patches": "patch_embed",
    "vision.patches.projection": "patch_embed.proj",
    "vision.positions": "pos_embed",
    "vision.rotary": "rotary_pos_emb",
    "vision.layer": _LAYER,
    "vision.layer.norm1": f"{_LAYER}.norm1",
    "vision.layer.attention": f"{_LAYER}.attn",
    "vision.layer.attention.qkv": f"{_LAYER}.attn.qkv",
    "vision.layer.attention.out": f"{_LAYER}.attn.proj",
    "vision.layer.norm2": f"{_LAYER}.norm2",
    _MLP: f"{_LAYER}.mlp",
    f"{_MLP}.up": f"{_LAYER}.mlp.linear_fc1",
    f"{_MLP}.activation": f"{_LAYER}.mlp.act_fn",
    f"{_MLP}.down": f"{_LAYER}.mlp.linear_fc2",
    **_MERGERS,
    **{
        f"{role}.{part}": f"{path}.{name}"
        for role, path in _MERGERS.items()
        for part, name in (("norm", "norm"), ("up", "linear_fc1"), ("activation", "act_fn"), ("down", "linear_fc2"))
    },
}


def formulas(config: Qwen3VlVisionConfig, *, eager: bool) -> Ledger:
    """The stage in symbols: ``exprs`` filled, ``costs`` empty.

    Args:
        eager: whether attention is written out.

    Source: Bai et al. 2025, Qwen3-VL; ``Qwen3VLVisionModel`` (transformers).
    """
    n, b, width, heads, head_dim = (sym(x) for x in ("n", "b", "vision_hidden", "vision_heads", "vision_head_dim"))
    call, merged, out = Call(1, n, b), sym("vision_merged"), sym("vision_out")
    attention = AttentionBlock(
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        inner=width,
        bias=ALL,
        fused=True,
        cached=False,
        written_out=eager,
        beside=(Rotary(1, n, heads, heads, head_dim, FLOAT32, state_bytes=b), JoinedImages(n * width, b)),
    )
    mlp = Mlp(width, sym("vision_intermediate"), config.activation)
    layer = TransformerLayer(width, attention, mlp, norm="layer").parts("vision.layer", call)
    deep = PatchMerger(width, merged, out, norm_last=True).parts("vision.deep_merger", n, b)
    parts = (
        Part("vision", (InterpolatedPositions(n, width, b),)),
        Part("vision.patches"),
        Part("vision.patches.projection", (VolumePatches(n, sym("vision_volume"), width, b),)),
        Part("vision.positions", (Embedding(4 * n, sym("vision_positions"), width, b),)),
        Part("vision.rotary", (AxialTable(n, head_dim),)),
        *(part for i in range(config.layers) for part in numbered(i, layer)),
        *PatchMerger(width, merged, out).parts("vision.merger", n, b),
        *(part for i in range(len(config.deep)) for part in numbered(i, deep)),
    )
    # Beside the patches come the weights of four neighbours each; what the last layer returns goes out with the merged.
    returned = n * width + (1 + len(config.deep)) * n / merged * out
    return ledger(parts, NAMES, (n * sym("vision_volume") + returned) * b + 4 * n * FLOAT32)
