"""The closed formulas of DINOv2: learned scales behind attention and MLP, positions of the embeddings' own."""

from __future__ import annotations

from typing import Final

from costproof.analytic.feed_forward import Mlp
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.models.encoding.stage import ALL, ledger
from costproof.models.encoding.vision import Style, encoder, last_norm, layer_names, pixels, tokens
from costproof.models.families.dinov2.config import Dinov2Config

_LAYER: Final = "encoder.layer.{i}"
NAMES: Final = {
    "vision": "",
    "vision.embeddings": "embeddings",
    "vision.dropout": "embeddings.dropout",
    "vision.patches": "embeddings.patch_embeddings",
    "vision.patches.projection": "embeddings.patch_embeddings.projection",
    "vision.encoder": "encoder",
    **layer_names(_LAYER, attention="attention", out="o_proj", norms=("norm1", "norm2")),
    "vision.layer.scale1": f"{_LAYER}.layer_scale1",
    "vision.layer.scale2": f"{_LAYER}.layer_scale2",
    "vision.norm": "layernorm",
}
GATED: Final = NAMES | {
    **{f"vision.layer.mlp.{x}": f"{_LAYER}.mlp.{x}_proj" for x in ("gate", "up", "down")},
    "vision.layer.mlp.activation": f"{_LAYER}.mlp.act_fn",
}


def formulas(config: Dinov2Config, *, resampled: bool, eager: bool) -> Ledger:
    """The stage in symbols: ``exprs`` filled, ``costs`` empty.

    Args:
        resampled: whether the images have another grid than the table of positions.
        eager: whether attention is written out.

    Source: Oquab et al. 2023, DINOv2; ``Dinov2Model`` (transformers).
    """
    style = Style(
        bias=ALL if config.qkv_bias else ("out",),
        mask_token=config.mask_token,
        layer_scale=True,
        mlp=Mlp(sym("vision_hidden"), sym("vision_intermediate"), "silu", gated=True) if config.gated else None,
        containers=("vision", "vision.patches", "vision.dropout", "vision.encoder"),
    )
    parts = (*encoder(config, style, resampled=resampled, eager=eager), last_norm(config))
    border = (pixels() + sym("B") * tokens(config) * sym("vision_hidden")) * sym("b")
    return ledger(parts, GATED if config.gated else NAMES, border)
