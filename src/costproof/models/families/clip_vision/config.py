"""The configuration of CLIP's vision tower: all that decides a cost. The defaults are those of ViT-B/32 at 224."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from costproof.models.encoding.config import NO_CLASSIFIER, EncoderConfig, VisionConfig
from costproof.models.section import Section

PROJECTED = "CLIPVisionModelWithProjection"


@dataclass(frozen=True, slots=True)
class ClipVisionConfig(VisionConfig):
    """Sizes, and whether the vector of an image is projected."""

    hidden: int = 768
    intermediate: int = 3072
    layers: int = 12
    heads: int = 12
    activation: str = "quick_gelu"
    architecture: str = "CLIPVisionModel"
    patch: int = 32
    pooled: int = 0
    """Width of the projected vector; 0: the class has no projection."""

    not_drawn: ClassVar = NO_CLASSIFIER
    model_type: ClassVar[str] = "clip_vision_model"
    architectures: ClassVar = {"CLIPVisionModel": False, PROJECTED: False}
    unused_keys: ClassVar = {
        "initializer_factor": "of training alone",
        **dict.fromkeys(("dropout", "vocab_size"), "the class does not read it"),
    }

    def sizes(self) -> dict[str, int]:
        """Values of the configuration's symbols, without the prefix."""
        return VisionConfig.sizes(self) | ({"pooled": self.pooled} if self.pooled else {})

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        return EncoderConfig.native(self) | ({"projection_dim": self.pooled} if self.pooled else {})

    @classmethod
    def read_fields(cls, top: Section, read: Mapping[str, Any]) -> dict[str, Any]:
        """The width of the projection, if there is one."""
        width = top.integer("projection_dim", 512)
        return {"pooled": width if top.data.get("architectures") == [PROJECTED] else 0}
