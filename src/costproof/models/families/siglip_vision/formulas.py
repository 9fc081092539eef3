"""The closed formulas of SigLIP's vision tower: no class token, a norm behind the layers, pooling by attention."""

from __future__ import annotations

from typing import Final

from costproof.analytic.attention_pooling import AttentionPooling
from costproof.analytic.feed_forward import Mlp
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.models.encoding.stage import ledger
from costproof.models.encoding.vision import Style, encoder, last_norm, layer_names, pixels, tokens
from costproof.models.families.siglip_vision.config import SiglipVisionConfig

_POOLER: Final = "vision.pooler"
NAMES: Final = {
    "vision": "",
    "vision.embeddings": "embeddings",
    "vision.patches.projection": "embeddings.patch_embedding",
    "vision.positions": "embeddings.position_embedding",
    "vision.encoder": "encoder",
    **layer_names("encoder.layers.{i}", attention="self_attn", out="out_proj", norms=("layer_norm1", "layer_norm2")),
    "vision.norm": "post_layernorm",
    _POOLER: "head",
    f"{_POOLER}.attention": "head.attention",
    f"{_POOLER}.attention.out": "head.attention.out_proj",
    f"{_POOLER}.norm": "head.layernorm",
    f"{_POOLER}.mlp": "head.mlp",
    f"{_POOLER}.mlp.up": "head.mlp.fc1",
    f"{_POOLER}.mlp.activation": "head.mlp.activation_fn",
    f"{_POOLER}.mlp.down": "head.mlp.fc2",
}


def formulas(config: SiglipVisionConfig, *, resampled: bool, eager: bool) -> Ledger:
    """The stage in symbols: ``exprs`` filled, ``costs`` empty.

    Args:
        resampled: whether the images have another grid than the table of positions.
        eager: whether attention is written out.

    Source: Zhai et al. 2023, Sigmoid Loss for Language Image Pre-Training; ``SiglipVisionModel`` (transformers).
    """
    width, b = sym("vision_hidden"), sym("b")
    style = Style(own_table=False, containers=("vision", "vision.encoder"))
    parts = (*encoder(config, style, resampled=resampled, eager=eager), last_norm(config))
    border = pixels() + sym("B") * tokens(config) * width
    if not config.pooled:
        return ledger(parts, NAMES, border * b)
    mlp = Mlp(width, sym("vision_intermediate"), config.activation)
    pooler = AttentionPooling(width, sym("vision_heads"), mlp)
    return ledger((*parts, *pooler.parts(_POOLER, sym("B"), tokens(config), b)), NAMES, (border + sym("B") * width) * b)
