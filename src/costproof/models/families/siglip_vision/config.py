"""The configuration of SigLIP's vision tower: all that decides a cost. The defaults are those of ViT-B/16 at 224."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from costproof.models.encoding.config import ONE_CLASS, EncoderConfig, VisionConfig


@dataclass(frozen=True, slots=True)
class SiglipVisionConfig(VisionConfig):
    """Sizes, and whether attention makes one vector of an image."""

    hidden: int = 768
    intermediate: int = 3072
    layers: int = 12
    heads: int = 12
    activation: str = "gelu_pytorch_tanh"
    architecture: str = "SiglipVisionModel"
    pooled: bool = True

    not_drawn: ClassVar = ONE_CLASS
    model_type: ClassVar[str] = "siglip_vision_model"
    architectures: ClassVar = {"SiglipVisionModel": False}
    keys: ClassVar = {**VisionConfig.keys, "pooled": "vision_use_head"}
    class_token: ClassVar[bool] = False
    unused_keys: ClassVar = {"projection_dim": "the class does not read it"}

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        return EncoderConfig.native(self)
