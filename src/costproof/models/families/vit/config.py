"""The configuration of a ViT: everything that decides a cost, and nothing else. The defaults are ViT-B/16 at 224."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from costproof.models.encoding.config import EncoderConfig, VisionConfig
from costproof.models.native import activation
from costproof.models.section import Section


@dataclass(frozen=True, slots=True)
class VitConfig(VisionConfig):
    """Sizes, biases, and a classifier or a pooler."""

    hidden: int = 768
    intermediate: int = 3072
    layers: int = 12
    heads: int = 12
    activation: str = "gelu"
    architecture: str = "ViTForImageClassification"
    labels: int = 1000
    qkv_bias: bool = True
    pooled: int = 0
    """Width of what the pooler returns; 0: the class has no pooler."""
    pooler_activation: str = "tanh"

    model_type: ClassVar[str] = "vit"
    architectures: ClassVar = {"ViTForImageClassification": True, "ViTModel": False}
    keys: ClassVar = {**VisionConfig.keys, "qkv_bias": "qkv_bias"}
    unused_keys: ClassVar = {"encoder_stride": "of a class that restores images"}

    def sizes(self) -> dict[str, int]:
        """Values of the configuration's symbols, without the prefix."""
        return VisionConfig.sizes(self) | ({"pooled": self.pooled} if self.pooled else {})

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        pooler = {"pooler_output_size": self.pooled or None, "pooler_act": self.pooler_activation}
        return EncoderConfig.native(self) | pooler

    @classmethod
    def read_fields(cls, top: Section, read: Mapping[str, Any]) -> dict[str, Any]:
        """What the pooler is, if there is one."""
        width = top.take("pooler_output_size", None)
        pooled = read["hidden"] if width is None else top.check_integer(width, "pooler_output_size")
        function = activation(top, "pooler_act", "tanh")
        headless = top.data.get("architectures") == ["ViTModel"]
        return {"pooled": pooled if headless else 0, "pooler_activation": function}
