"""LLaVA as a target: transformers' own class with one configuration."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.clip_vision.config import ClipVisionConfig
from costproof.models.clip_vision.target import ClipVision
from costproof.models.image_text.base import ImageTextTarget
from costproof.models.image_text.places import Anatomy
from costproof.models.llama.config import LlamaConfig
from costproof.models.llava.config import LlavaConfig


@dataclass(frozen=True, slots=True)
class Llava(ImageTextTarget[LlavaConfig]):
    """``LlavaForConditionalGeneration`` with one configuration."""

    config: LlavaConfig = field(default_factory=LlavaConfig)
    name: str = "llava"
    model_types: ClassVar[tuple[str, ...]] = ("llava",)

    @property
    def anatomy(self) -> Anatomy:
        """Where the parts of the model sit, and how its vision tower is called."""
        return Anatomy(layer=self.config.feature_layer, inner=("transformers.models.llama.modeling_llama",))

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.llava.formulas import formulas

        return formulas(self.config, workload)

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[Llava, dict[str, bool]]:
        """A random small configuration for a proof."""
        from costproof.models.decoding.domain import has, random_config
        from costproof.models.encoding.domain import ACTIVATIONS

        text = replace(random_config(LlamaConfig, p, rng), max_positions=512)
        config = LlavaConfig(
            ClipVisionConfig(**ClipVision.drawn_sizes(p, rng)),
            text,
            rng.randrange(text.vocab),
            projector_bias=rng.random() < 0.5,
            projector_activation=rng.choice(ACTIVATIONS),
            class_token=p["whole"] == 1,
            feature_layer=rng.choice((-2, -1, 1, p["layers"])),
        )
        more: dict[str, Any] = {
            "features of the class token": config.class_token,
            "biases in the projector": config.projector_bias,
        }
        return cls(config), {**has(text), **more}


TARGET: Final = Llava
"""What the name ``llava`` stands for."""
