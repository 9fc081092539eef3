"""ViT: encoder of image patches with a class token, its classifier or its pooler (transformers' native class)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from costproof.algebra.symbols import sym
from costproof.analytic.compose import ModulePart
from costproof.analytic.layer_memory import LayerTape
from costproof.analytic.linear import Linear
from costproof.analytic.memory_tape import Piece
from costproof.analytic.pooling import FirstTokenPooler
from costproof.configs.config import activation
from costproof.configs.reader import Section
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.encoding.config import EncoderConfig, VisionConfig
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


def _names(path: str) -> Mapping[str, str]:
    """Return the module paths of an encoder at the module path ``path``, by role."""
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


_WITH_CLASSIFIER: Final = _names("vit.")
_HEADLESS: Final = _names("")
_DROPOUTS: Final = (("vision.layer.dropout", 2),)
"""Numbers of calls per layer of the modules that run but have no effect outside of training, by module."""


@dataclass(frozen=True, slots=True)
class VitConfig(VisionConfig):
    """Sizes, biases, and a classifier or a pooler; by default ViT-B/16 at 224."""

    hidden: int = 768
    intermediate: int = 3072
    layers: int = 12
    heads: int = 12
    activation: str = "gelu"
    architecture: str = "ViTForImageClassification"
    labels: int = 1000
    qkv_bias: bool = True
    pooled: int = 0
    """Width of the pooler's output; 0 if the class has no pooler."""
    pooler_activation: str = "tanh"

    model_type: ClassVar[str] = "vit"
    not_null: ClassVar = (
        "attention_probs_dropout_prob", "encoder_stride", "hidden_dropout_prob", "initializer_range", "layer_norm_eps",
    )  # fmt: skip
    reads_head_dim: ClassVar = True
    architectures: ClassVar = {"ViTForImageClassification": True, "ViTModel": False}
    keys: ClassVar = {**VisionConfig.keys, "qkv_bias": "qkv_bias"}
    unused_keys: ClassVar = {"encoder_stride": "of a class that restores images"}

    def sizes(self) -> dict[str, int]:
        return VisionConfig.sizes(self) | ({"pooled": self.pooled} if self.pooled else {})

    def native(self) -> dict[str, Any]:
        pooler = {"pooler_output_size": self.pooled or None, "pooler_act": self.pooler_activation}
        return EncoderConfig.native(self) | pooler

    @classmethod
    def read_fields(cls, top: Section, read: Mapping[str, Any]) -> dict[str, Any]:
        """Read the width and the activation of the pooler, if the class has a pooler."""
        width = top.take("pooler_output_size", None)
        pooled = read["hidden"] if width is None else top.check_integer(width, "pooler_output_size")
        function = activation(top, "pooler_act", "tanh")
        headless = top.data.get("architectures") == ["ViTModel"]
        return {"pooled": pooled if headless else 0, "pooler_activation": function}


@dataclass(frozen=True, slots=True)
class Vit(VisionTarget[VitConfig]):
    """Target: ``ViTForImageClassification`` or ``ViTModel`` with one configuration.

    Source: Dosovitskiy et al. 2020, An Image is Worth 16x16 Words; ``ViTForImageClassification``, ``ViTModel``
    (transformers).
    """

    config: VitConfig = field(default_factory=VitConfig)
    name: str = "vit"
    model_types: ClassVar[tuple[str, ...]] = ("vit",)

    def style(self) -> VisionStyle:
        containers = ("vision", "vision.patches", "vision.dropout")
        return VisionStyle(
            bias=("q", "k", "v", "out") if self.config.qkv_bias else ("out",),
            containers=("root", *containers) if self.config.labels else containers,
            layer_containers=_DROPOUTS,
        )

    def _head(self) -> tuple[ModulePart, ...]:
        """Return the parts of the classifier or the pooler, which process the class token."""
        images, width, b = sym("B"), sym("vision_hidden"), sym("b")
        if self.config.labels:
            return (ModulePart("classifier", (Linear(images, width, sym("vision_labels"), b),)),)
        pooler = FirstTokenPooler(width, sym("vision_pooled"), self.config.pooler_activation)
        return pooler.parts("vision.pooler", images, b)

    def formulas(self, workload: Workload) -> Ledger:
        config, eager, resampled = self.config, workload.attention == "eager", self.resampled(workload)
        images, width, b = sym("B"), sym("vision_hidden"), sym("b")
        parts = vision_encoder(config, self.style(), resampled=resampled, eager=eager)
        whole = (*parts, last_norm(config), *self._head())
        if config.labels:
            return encoder_ledger(whole, _WITH_CLASSIFIER, (pixels() + images * sym("vision_labels")) * b)
        border = (pixels() + images * (image_tokens(config) * width + sym("vision_pooled"))) * b
        return encoder_ledger(whole, _HEADLESS, border)

    def record_results(self, tape: LayerTape, hidden: Piece) -> tuple[Piece, ...]:
        """Record the last norm and the head; return the logits, or without a classifier the norm and pooler results."""
        normed = tape.sequence((last_norm(self.config),), hidden)
        result = tape.sequence(self._head(), normed)
        return (result,) if self.config.labels else (normed, result)

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[Vit, dict[str, bool]]:
        from costproof.models.encoding.domain import ACTIVATIONS

        classifies = rng.random() < 0.5
        config = VitConfig(
            **cls.drawn_sizes(p, rng),
            architecture="ViTForImageClassification" if classifies else "ViTModel",
            labels=p["vision_labels"] if classifies else 0,
            qkv_bias=rng.random() < 0.5,
            pooled=0 if classifies else p["vision_pooled"],
            pooler_activation=rng.choice(ACTIVATIONS),
        )
        made = cls(config)
        return made, {**made.features(), "a classifier": classifies, "biases in attention": config.qkv_bias}


TARGET: Final = Vit
