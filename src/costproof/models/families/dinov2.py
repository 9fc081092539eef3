"""DINOv2: encoder of image patches with LayerScale (transformers' native class)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.algebra.symbols import sym
from costproof.analytic.feed_forward import Mlp
from costproof.configs.reader import Section
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.encoding.config import ONE_CLASS, EncoderConfig, VisionConfig
from costproof.models.encoding.formulas import (
    ALL_PROJECTIONS,
    VisionStyle,
    encoder_ledger,
    image_tokens,
    last_norm,
    layer_names,
    pixels,
    vision_encoder,
)
from costproof.models.encoding.images import VisionTarget

if TYPE_CHECKING:
    from costproof.analytic.layer_memory import LayerTape
    from costproof.analytic.memory_tape import Piece
    from costproof.models.encoding.domain import Domain

_LAYER: Final = "encoder.layer.{i}"
_NAMES: Final = {
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
_GATED_NAMES: Final = _NAMES | {
    **{f"vision.layer.mlp.{x}": f"{_LAYER}.mlp.{x}_proj" for x in ("gate", "up", "down")},
    "vision.layer.mlp.activation": f"{_LAYER}.mlp.act_fn",
}


@dataclass(frozen=True, slots=True)
class Dinov2Config(VisionConfig):
    """Sizes, biases and the kind of MLP, whose inner width follows from ``hidden``; by default ViT-B/14 at 518."""

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
    """Whether the MLP is gated; its inner width is then two thirds of the usual, rounded up to a multiple of 8."""
    qkv_bias: bool = True
    mask_token: bool = True

    not_drawn: ClassVar = ONE_CLASS
    model_type: ClassVar[str] = "dinov2"
    not_null: ClassVar = (
        "apply_layernorm", "attention_probs_dropout_prob", "hidden_dropout_prob", "initializer_range", "layer_norm_eps",
        "layerscale_value", "reshape_hidden_states",
    )  # fmt: skip
    reads_head_dim: ClassVar = True
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
        """Set the inner width of the MLP."""
        inner = self.hidden * self.mlp_ratio
        object.__setattr__(self, "intermediate", (inner * 2 // 3 + 7) // 8 * 8 if self.gated else inner)

    @classmethod
    def read_class(cls, top: Section) -> dict[str, Any]:
        """Read the class name, and check that no layers are dropped at random (``drop_path_rate``)."""
        top.fixed("drop_path_rate", 0.0, 0, why="the formulas describe no dropped paths")
        return super(Dinov2Config, cls).read_class(top)

    def native(self) -> dict[str, Any]:
        return EncoderConfig.native(self)


@dataclass(frozen=True, slots=True)
class Dinov2(VisionTarget[Dinov2Config]):
    """Target: ``Dinov2Model`` with one configuration.

    Source: Oquab et al. 2023, DINOv2; ``Dinov2Model`` (transformers).
    """

    config: Dinov2Config = field(default_factory=Dinov2Config)
    name: str = "dinov2"
    model_types: ClassVar[tuple[str, ...]] = ("dinov2",)
    resamples: ClassVar[bool] = False

    def style(self) -> VisionStyle:
        config = self.config
        return VisionStyle(
            bias=ALL_PROJECTIONS if config.qkv_bias else ("out",),
            mask_token=config.mask_token,
            layer_scale=True,
            upcast=False,
            resampled_in_float32=True,
            mlp=Mlp(sym("vision_hidden"), sym("vision_intermediate"), "silu", gated=True) if config.gated else None,
            containers=("vision", "vision.patches", "vision.dropout", "vision.encoder"),
        )

    def record_results(self, tape: LayerTape, hidden: Piece) -> tuple[Piece, ...]:
        """Record the last norm and return its result."""
        return (tape.sequence((last_norm(self.config),), hidden),)

    def formulas(self, workload: Workload) -> Ledger:
        config, eager, resampled = self.config, workload.attention == "eager", self.resampled(workload)
        parts = (*vision_encoder(config, self.style(), resampled=resampled, eager=eager), last_norm(config))
        border = (pixels() + sym("B") * image_tokens(config) * sym("vision_hidden")) * sym("b")
        return encoder_ledger(parts, _GATED_NAMES if config.gated else _NAMES, border)

    def domain(self) -> Domain:
        """Return the domain of a proof about an image encoder, with a random ratio of MLP width to width."""
        usual = VisionTarget.domain(self)
        drawn = usual.parameters
        return replace(
            usual,
            parameters=replace(
                drawn,
                ranges={**drawn.ranges, "mlp_ratio": range(1, 9)},
                independent={**drawn.independent, "vision_intermediate": "vision_heads*vision_head_dim*mlp_ratio"},
            ),
        )

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[Dinov2, dict[str, bool]]:
        flags: dict[str, Any] = {name: rng.random() < 0.5 for name in ("qkv_bias", "mask_token", "gated")}
        made = cls(Dinov2Config(**cls.drawn_sizes(p, rng), **flags, mlp_ratio=p["mlp_ratio"]))
        return made, {
            **made.features(),
            "biases in attention": flags["qkv_bias"],
            "a mask token": flags["mask_token"],
            "gated MLPs": flags["gated"],
        }


TARGET: Final = Dinov2
