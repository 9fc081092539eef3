"""SigLIP's vision tower as a target: transformers' own class with one configuration."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.encoding.images import VisionTarget
from costproof.models.families.siglip_vision.config import SiglipVisionConfig

if TYPE_CHECKING:
    from costproof.models.encoding.domain import Domain


@dataclass(frozen=True, slots=True)
class SiglipVision(VisionTarget[SiglipVisionConfig]):
    """``SiglipVisionModel`` with one configuration."""

    config: SiglipVisionConfig = field(default_factory=SiglipVisionConfig)
    name: str = "siglip-vision"
    model_types: ClassVar[tuple[str, ...]] = ("siglip_vision_model",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.families.siglip_vision.formulas import formulas

        return formulas(self.config, resampled=self.resampled(workload), eager=workload.attention == "eager")

    def domain(self) -> Domain:
        """As of every encoder of images, without a class token."""
        usual = VisionTarget.domain(self)
        drawn = usual.parameters
        independent = {**drawn.independent, "vision_positions": "vision_grid**2"}
        return replace(usual, parameters=replace(drawn, independent=independent))

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[SiglipVision, dict[str, bool]]:
        """A random small configuration for a proof."""
        made = cls(SiglipVisionConfig(**cls.drawn_sizes(p, rng), pooled=rng.random() < 0.5))
        return made, {**made.has(), "pooling by attention": made.config.pooled}


TARGET: Final = SiglipVision
"""What the name ``siglip-vision`` stands for."""
