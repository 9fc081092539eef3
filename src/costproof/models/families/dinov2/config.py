"""The configuration of a DINOv2: all that decides a cost. The defaults are those of ViT-B/14 at 518."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from costproof.models.encoding.config import ONE_CLASS, EncoderConfig, VisionConfig
from costproof.models.section import Section


@dataclass(frozen=True, slots=True)
class Dinov2Config(VisionConfig):
    """Sizes, biases, the kind of MLP; its inner width follows from the width."""

    hidden: int = 768
    intermediate: int = 0
    layers: int = 12
    heads: int = 12
    activation: str = "gelu"
    architecture: str = "Dinov2Model"
    image: int = 518
    patch: int = 14
    mlp_ratio: int = 4
    gated: bool = False
    """Whether the MLP is gated; it has two thirds of the inner width then, rounded up to a multiple of 8."""
    qkv_bias: bool = True
    mask_token: bool = True

    not_drawn: ClassVar = ONE_CLASS
    model_type: ClassVar[str] = "dinov2"
    architectures: ClassVar = {"Dinov2Model": False}
    keys: ClassVar = {
        **{field: key for field, key in VisionConfig.keys.items() if field != "intermediate"},
        "mlp_ratio": "mlp_ratio",
        "gated": "use_swiglu_ffn",
        "qkv_bias": "qkv_bias",
        "mask_token": "use_mask_token",
    }
    class_defaults: ClassVar = {"image_size": 224}
    unused_keys: ClassVar = {
        "layerscale_value": "decides no cost",
        **dict.fromkeys(
            (
                "out_features",
                "out_indices",
                "stage_names",
                "apply_layernorm",
                "reshape_hidden_states",
                "_out_features",
                "_out_indices",
            ),
            "of a backbone",
        ),
    }

    def __post_init__(self) -> None:
        """The inner width of the MLP."""
        inner = self.hidden * self.mlp_ratio
        object.__setattr__(self, "intermediate", (inner * 2 // 3 + 7) // 8 * 8 if self.gated else inner)

    @classmethod
    def kind(cls, top: Section) -> dict[str, Any]:
        """The class of transformers, which drops no paths."""
        top.fixed("drop_path_rate", 0.0, 0, why="the formulas describe no dropped paths")
        return super(Dinov2Config, cls).kind(top)

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        return EncoderConfig.native(self)
