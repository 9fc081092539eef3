"""The closed formulas of CLIP's vision tower: norms before the layers and on the class token, a projection behind."""

from __future__ import annotations

from collections.abc import Mapping

from costproof.analytic.compose import Part
from costproof.analytic.costs import Size
from costproof.analytic.linear import Linear
from costproof.analytic.norms import LayerNorm
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.models.encoding.stage import ledger
from costproof.models.encoding.vision import IMAGES, Style, encoder, layer_names, pixels, tokens
from costproof.models.families.clip_vision.config import ClipVisionConfig


def names(path: str) -> Mapping[str, str]:
    """Roles -> module paths, for an encoder whose modules have paths that begin so."""
    layer = f"{path}encoder.layers.{{i}}"
    return {
        "root": "",
        "vision": path.rstrip("."),
        "vision.embeddings": f"{path}embeddings",
        "vision.patches.projection": f"{path}embeddings.patch_embedding",
        "vision.positions": f"{path}embeddings.position_embedding",
        "vision.norm_first": f"{path}pre_layrnorm",
        "vision.encoder": f"{path}encoder",
        **layer_names(layer, attention="self_attn", out="out_proj", norms=("layer_norm1", "layer_norm2")),
        "vision.norm": f"{path}post_layernorm",
        "vision.projection": "visual_projection",
    }


def tower(
    config: ClipVisionConfig,
    *,
    resampled: bool,
    eager: bool,
    images: Size = IMAGES,
    root: bool = False,
    read: bool = True,
) -> tuple[Part, ...]:
    """All modules from pixels to the normalised class token; other arguments as those of :func:`formulas`.

    Args:
        root: whether a module around them calls the encoder.
        read: whether the normalised class token is what the encoder is for; else it is computed, and nothing reads it.

    Source: Radford et al. 2021, CLIP; ``CLIPVisionModel`` (transformers).
    """
    containers = ("vision", "vision.encoder")
    style = Style(
        patch_bias=False,
        own_table=False,
        norm_first=True,
        containers=("root", *containers) if root else containers,
    )
    # Of the last layer's tokens the class token alone is read.
    norm = Part("vision.norm", (LayerNorm(images, sym("vision_hidden"), sym("b"), read),))
    return (*encoder(config, style, resampled=resampled, eager=eager, images=images), norm)


def formulas(config: ClipVisionConfig, *, resampled: bool, eager: bool) -> Ledger:
    """The stage in symbols: ``exprs`` filled, ``costs`` empty.

    Args:
        resampled: whether the images have another grid than the table of positions.
        eager: whether attention is written out.

    Source: Radford et al. 2021, CLIP; ``CLIPVisionModel``, ``CLIPVisionModelWithProjection`` (transformers).
    """
    width, b = sym("vision_hidden"), sym("b")
    parts = tower(config, resampled=resampled, eager=eager, root=bool(config.pooled))
    border = pixels() + IMAGES * tokens(config) * width
    if not config.pooled:
        return ledger(parts, names(""), (border + IMAGES * width) * b)
    projection = Linear(IMAGES, width, sym("vision_pooled"), b, bias=False)
    return ledger(
        (*parts, Part("vision.projection", (projection,))),
        names("vision_model."),
        (border + IMAGES * sym("vision_pooled")) * b,
    )
