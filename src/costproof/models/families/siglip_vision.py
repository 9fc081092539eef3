"""SigLIP's vision tower: encoder of image patches with attention pooling, no class token (native class)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.algebra.symbols import sym
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.pooling import AttentionPooling
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.encoding.config import ONE_CLASS, EncoderConfig, VisionConfig
from costproof.models.encoding.formulas import (
    VisionStyle,
    encoder_ledger,
    image_tokens,
    last_norm,
    layer_names,
    pixels,
    vision_encoder,
)
from costproof.models.encoding.images import VisionTarget
from costproof.storage.scheme import CheckpointLayout

if TYPE_CHECKING:
    from costproof.analytic.layer_memory import LayerTape
    from costproof.analytic.memory_tape import Piece
    from costproof.models.encoding.domain import Domain

_POOLER: Final = "vision.pooler"
_NAMES: Final = {
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


@dataclass(frozen=True, slots=True)
class SiglipVisionConfig(VisionConfig):
    """Sizes, and whether attention pools an image to one vector; by default ViT-B/16 at 224."""

    hidden: int = 768
    intermediate: int = 3072
    layers: int = 12
    heads: int = 12
    activation: str = "gelu_pytorch_tanh"
    architecture: str = "SiglipVisionModel"
    pooled: bool = True

    not_drawn: ClassVar = ONE_CLASS
    model_type: ClassVar[str] = "siglip_vision_model"
    not_null: ClassVar = ("attention_dropout", "layer_norm_eps")
    two_sides: ClassVar = False
    architectures: ClassVar = {"SiglipVisionModel": False}
    keys: ClassVar = {**VisionConfig.keys, "pooled": "vision_use_head"}
    class_token: ClassVar[bool] = False
    unused_keys: ClassVar = {"projection_dim": "the class does not read it"}

    def native(self) -> dict[str, Any]:
        return EncoderConfig.native(self)


@dataclass(frozen=True, slots=True)
class SiglipVision(VisionTarget[SiglipVisionConfig]):
    """Target: ``SiglipVisionModel`` with one configuration.

    Source: Zhai et al. 2023, Sigmoid Loss for Language Image Pre-Training; ``SiglipVisionModel`` (transformers).
    """

    config: SiglipVisionConfig = field(default_factory=SiglipVisionConfig)
    name: str = "siglip-vision"
    model_types: ClassVar[tuple[str, ...]] = ("siglip_vision_model",)
    checkpoint_layout: ClassVar[CheckpointLayout] = CheckpointLayout(
        inherited=(("head.attention.out_proj", "NonDynamicallyQuantizableLinear"),)
    )
    """Layout of the checkpoint, whose pooling has the output projection of ``nn.MultiheadAttention``."""

    def style(self) -> VisionStyle:
        return VisionStyle(own_table=False, containers=("vision", "vision.encoder"))

    def _pooling(self) -> AttentionPooling:
        width = sym("vision_hidden")
        mlp = Mlp(width, sym("vision_intermediate"), self.config.activation)
        return AttentionPooling(width, sym("vision_heads"), mlp)

    def record_results(self, tape: LayerTape, hidden: Piece) -> tuple[Piece, ...]:
        """Record the last norm and, if the class has it, the attention pooling; return their results."""
        normed = tape.sequence((last_norm(self.config),), hidden)
        return (normed, tape.pooled(self._pooling(), normed)) if self.config.pooled else (normed,)

    def formulas(self, workload: Workload) -> Ledger:
        config, eager, resampled = self.config, workload.attention == "eager", self.resampled(workload)
        width, b = sym("vision_hidden"), sym("b")
        parts = (*vision_encoder(config, self.style(), resampled=resampled, eager=eager), last_norm(config))
        border = pixels() + sym("B") * image_tokens(config) * width
        if not config.pooled:
            return encoder_ledger(parts, _NAMES, border * b)
        pooler = self._pooling().parts(_POOLER, sym("B"), image_tokens(config), b)
        return encoder_ledger((*parts, *pooler), _NAMES, (border + sym("B") * width) * b)

    def domain(self) -> Domain:
        """Return the domain of a proof about an image encoder that has no class token."""
        usual = VisionTarget.domain(self)
        drawn = usual.parameters
        independent = {**drawn.independent, "vision_positions": "vision_grid**2"}
        return replace(usual, parameters=replace(drawn, independent=independent))

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[SiglipVision, dict[str, bool]]:
        made = cls(SiglipVisionConfig(**cls.drawn_sizes(p, rng), pooled=rng.random() < 0.5))
        return made, {**made.features(), "pooling by attention": made.config.pooled}


TARGET: Final = SiglipVision
