"""CLIP's vision tower as a target: transformers' own class with one configuration."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.encoding.images import VisionTarget
from costproof.models.families.clip_vision.config import PROJECTED, ClipVisionConfig


@dataclass(frozen=True, slots=True)
class ClipVision(VisionTarget[ClipVisionConfig]):
    """``CLIPVisionModel``, or the class with the projection, with one configuration."""

    config: ClipVisionConfig = field(default_factory=ClipVisionConfig)
    name: str = "clip-vision"
    model_types: ClassVar[tuple[str, ...]] = ("clip_vision_model",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.families.clip_vision.formulas import formulas

        return formulas(self.config, resampled=self.resampled(workload), eager=workload.attention == "eager")

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[ClipVision, dict[str, bool]]:
        """A random small configuration for a proof."""
        projected = rng.random() < 0.5
        more: dict[str, Any] = {"architecture": PROJECTED, "pooled": p["vision_pooled"]} if projected else {}
        made = cls(ClipVisionConfig(**cls.drawn_sizes(p, rng), **more))
        return made, {**made.has(), "a projection": projected}


TARGET: Final = ClipVision
"""What the name ``clip-vision`` stands for."""
