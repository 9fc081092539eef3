"""ViT as a target: transformers' own class with one configuration."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.encoding.images import VisionTarget
from costproof.models.families.vit.config import VitConfig


@dataclass(frozen=True, slots=True)
class Vit(VisionTarget[VitConfig]):
    """``ViTForImageClassification`` or ``ViTModel`` with one configuration."""

    config: VitConfig = field(default_factory=VitConfig)
    name: str = "vit"
    model_types: ClassVar[tuple[str, ...]] = ("vit",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.families.vit.formulas import formulas

        return formulas(self.config, resampled=self.resampled(workload), eager=workload.attention == "eager")

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[Vit, dict[str, bool]]:
        """A random small configuration for a proof."""
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
        return made, {**made.has(), "a classifier": classifies, "biases in attention": config.qkv_bias}


TARGET: Final = Vit
"""What the name ``vit`` stands for."""
