"""CLIP's vision tower: encoder of image patches with a class token, with or without its projection (transformers)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from costproof.algebra.symbols import sym
from costproof.analytic.compose import ModulePart
from costproof.analytic.costs import Size
from costproof.analytic.layer_memory import LayerTape
from costproof.analytic.linear import Linear
from costproof.analytic.memory_tape import Piece
from costproof.analytic.norms import LayerNorm
from costproof.configs.reader import Section
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.encoding.config import NO_CLASSIFIER, EncoderConfig, VisionConfig
from costproof.models.encoding.formulas import (
    IMAGES,
    VisionStyle,
    encoder_ledger,
    image_tokens,
    layer_names,
    pixels,
    vision_encoder,
)
from costproof.models.encoding.images import VisionTarget


def clip_names(path: str) -> Mapping[str, str]:
    """Return the module paths of an encoder at the module path ``path``, by role."""
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


def clip_tower(
    config: ClipVisionConfig,
    *,
    resampled: bool,
    eager: bool,
    images: Size = IMAGES,
    root: bool = False,
    read: bool = True,
) -> tuple[ModulePart, ...]:
    """Return all module parts from the pixels to the normalised class token; arguments as for ``vision_encoder``.

    Args:
        root: whether a module around them calls the encoder.
        read: whether the normalised class token is what the encoder is for; else it is computed, and nothing reads it.

    Source: Radford et al. 2021, CLIP; ``CLIPVisionModel`` (transformers).
    """
    encoder = vision_encoder(config, clip_style(root=root), resampled=resampled, eager=eager, images=images)
    return (*encoder, class_norm(images, read=read))


def clip_style(*, root: bool = False) -> VisionStyle:
    """Return the differences of CLIP's tower from other image encoders; ``root`` is as for :func:`clip_tower`."""
    containers = ("vision", "vision.encoder")
    return VisionStyle(
        patch_bias=False, own_table=False, norm_first=True, containers=("root", *containers) if root else containers
    )


def class_norm(images: Size = IMAGES, *, read: bool = True) -> ModulePart:
    """Return the final layer norm, which runs only on the class token of each image."""
    return ModulePart("vision.norm", (LayerNorm(images, sym("vision_hidden"), sym("b"), read),))


PROJECTED = "CLIPVisionModelWithProjection"


@dataclass(frozen=True, slots=True)
class ClipVisionConfig(VisionConfig):
    """Sizes, and the width of an optional projection of the class token; by default ViT-B/32 at 224."""

    hidden: int = 768
    intermediate: int = 3072
    layers: int = 12
    heads: int = 12
    activation: str = "quick_gelu"
    architecture: str = "CLIPVisionModel"
    patch: int = 32
    pooled: int = 0
    """Width of the projected vector; 0 if the class has no projection."""

    not_drawn: ClassVar = NO_CLASSIFIER
    model_type: ClassVar[str] = "clip_vision_model"
    not_null: ClassVar = ("initializer_factor", "initializer_range", "layer_norm_eps")
    two_sides: ClassVar = False
    architectures: ClassVar = {"CLIPVisionModel": False, PROJECTED: False}
    unused_keys: ClassVar = {
        "initializer_factor": "affects only training",
        **dict.fromkeys(("dropout", "vocab_size"), "the class does not read it"),
    }

    def sizes(self) -> dict[str, int]:
        return VisionConfig.sizes(self) | ({"pooled": self.pooled} if self.pooled else {})

    def native(self) -> dict[str, Any]:
        return EncoderConfig.native(self) | ({"projection_dim": self.pooled} if self.pooled else {})

    @classmethod
    def read_fields(cls, top: Section, read: Mapping[str, Any]) -> dict[str, Any]:
        """Read the width of the projection of the class token; 0 for the class without a projection."""
        width = top.integer("projection_dim", 512)
        return {"pooled": width if top.data.get("architectures") == [PROJECTED] else 0}


@dataclass(frozen=True, slots=True)
class ClipVision(VisionTarget[ClipVisionConfig]):
    """Target: ``CLIPVisionModel``, or the class with a projection, with one configuration.

    Source: Radford et al. 2021, CLIP; ``CLIPVisionModel``, ``CLIPVisionModelWithProjection`` (transformers).
    """

    config: ClipVisionConfig = field(default_factory=ClipVisionConfig)
    name: str = "clip-vision"
    model_types: ClassVar[tuple[str, ...]] = ("clip_vision_model",)

    def formulas(self, workload: Workload) -> Ledger:
        config, eager, resampled = self.config, workload.attention == "eager", self.resampled(workload)
        width, b = sym("vision_hidden"), sym("b")
        parts = clip_tower(config, resampled=resampled, eager=eager, root=bool(config.pooled))
        border = pixels() + IMAGES * image_tokens(config) * width
        if not config.pooled:
            return encoder_ledger(parts, clip_names(""), (border + IMAGES * width) * b)
        border += IMAGES * sym("vision_pooled")
        return encoder_ledger((*parts, self._projection()), clip_names("vision_model."), border * b)

    def _projection(self) -> ModulePart:
        projection = Linear(IMAGES, sym("vision_hidden"), sym("vision_pooled"), sym("b"), bias=False)
        return ModulePart("vision.projection", (projection,))

    def style(self) -> VisionStyle:
        return clip_style(root=bool(self.config.pooled))

    def record_results(self, tape: LayerTape, hidden: Piece) -> tuple[Piece, ...]:
        """Record the norm and projection of the class token; return all tokens and the projected class token."""
        pooled = tape.sequence((class_norm(),), hidden)
        return hidden, tape.sequence((self._projection(),), pooled) if self.config.pooled else pooled

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[ClipVision, dict[str, bool]]:
        projected = rng.random() < 0.5
        more: dict[str, Any] = {"architecture": PROJECTED, "pooled": p["vision_pooled"]} if projected else {}
        made = cls(ClipVisionConfig(**cls.drawn_sizes(p, rng), **more))
        return made, {**made.features(), "a projection": projected}


TARGET: Final = ClipVision
