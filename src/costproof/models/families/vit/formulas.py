"""The closed formulas of ViT: a class token, positions of the embeddings' own, a classifier or a pooler behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costproof.analytic.compose import Part
from costproof.analytic.linear import Linear
from costproof.analytic.pooler import FirstTokenPooler
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.models.encoding.stage import ledger
from costproof.models.encoding.vision import Style, encoder, last_norm, layer_names, pixels, tokens
from costproof.models.families.vit.config import VitConfig


def names(path: str) -> Mapping[str, str]:
    """Roles -> module paths, for an encoder whose modules have paths that begin so."""
    layer = f"{path}layers.{{i}}"
    return {
        "root": "",
        "vision": path.rstrip("."),
        "vision.embeddings": f"{path}embeddings",
        "vision.dropout": f"{path}embeddings.dropout",
        "vision.patches": f"{path}embeddings.patch_embeddings",
        "vision.patches.projection": f"{path}embeddings.patch_embeddings.projection",
        **layer_names(layer, attention="attention", out="o_proj", norms=("layernorm_before", "layernorm_after")),
        "vision.layer.dropout": f"{layer}.dropout",
        "vision.norm": f"{path}layernorm",
        "vision.pooler": f"{path}pooler",
        "vision.pooler.dense": f"{path}pooler.dense",
        "vision.pooler.activation": f"{path}pooler.activation",
        "classifier": "classifier",
    }


WITH_CLASSIFIER: Final = names("vit.")
ALONE: Final = names("")
_DROPOUTS: Final = (("vision.layer.dropout", 2),)
"""Called, and without effect outside of training."""


def formulas(config: VitConfig, *, resampled: bool, eager: bool) -> Ledger:
    """The stage in symbols: ``exprs`` filled, ``costs`` empty.

    Args:
        resampled: whether the images have another grid than the table of positions.
        eager: whether attention is written out.

    Source: Dosovitskiy et al. 2020, An Image is Worth 16x16 Words; ``ViTForImageClassification``, ``ViTModel``
    (transformers).
    """
    containers = ("vision", "vision.patches", "vision.dropout")
    style = Style(
        bias=("q", "k", "v", "out") if config.qkv_bias else ("out",),
        containers=("root", *containers) if config.labels else containers,
        in_layers=_DROPOUTS,
    )
    images, width, b = sym("B"), sym("vision_hidden"), sym("b")
    parts = (*encoder(config, style, resampled=resampled, eager=eager), last_norm(config))
    if config.labels:
        classifier = Part("classifier", (Linear(images, width, sym("vision_labels"), b),))
        return ledger((*parts, classifier), WITH_CLASSIFIER, (pixels() + images * sym("vision_labels")) * b)
    pooler = FirstTokenPooler(width, sym("vision_pooled"), config.pooler_activation)
    border = (pixels() + images * (tokens(config) * width + sym("vision_pooled"))) * b
    return ledger((*parts, *pooler.parts("vision.pooler", images, b)), ALONE, border)
