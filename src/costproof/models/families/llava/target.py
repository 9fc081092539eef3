"""LLaVA as a target: transformers' own class with one configuration."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from costproof.ledger.node import Ledger
from costproof.ledger.workload import FLOAT_BYTES, Invocation, TensorSpec, Workload
from costproof.models.checkpoint import unfit
from costproof.models.decoding.decoder import on_meta
from costproof.models.decoding.names import STAGES
from costproof.models.families.clip_vision import ClipVision, ClipVisionConfig
from costproof.models.families.llama import LlamaConfig
from costproof.models.families.llava.config import LlavaConfig
from costproof.models.image_text.base import ImageTextTarget
from costproof.models.image_text.exports import COUNT, tower_job
from costproof.models.image_text.inputs import CALL
from costproof.models.image_text.places import Anatomy, Parts
from costproof.models.specs import ExportJob

if TYPE_CHECKING:
    from torch import nn

TOWER: Final = "model.vision_tower"
PROJECTOR: Final = "model.multi_modal_projector"


@dataclass(frozen=True, slots=True)
class Llava(ImageTextTarget[LlavaConfig]):
    """``LlavaForConditionalGeneration`` with one configuration."""

    config: LlavaConfig = field(default_factory=LlavaConfig)
    name: str = "llava"
    model_types: ClassVar[tuple[str, ...]] = ("llava",)
    stages: ClassVar[tuple[str, ...]] = ("vision", "projector", *STAGES)

    @property
    def anatomy(self) -> Anatomy:
        """Where the parts of the model sit."""
        return Anatomy(
            Parts({TOWER: "vision", PROJECTOR: "projector"}), inner=("transformers.models.llama.modeling_llama",)
        )

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """The configuration in a file.

        Raises:
            BadInput: the processor beside it makes images of another size; the class fits no positions to them.
        """
        made = super(Llava, cls).from_file(path)
        images, side = made.stored.images, made.config.vision.image
        if images is not None and images.side != side:
            raise unfit(images, side, str(path))
        return made

    def image_tokens(self, workload: Workload) -> int:
        """Places in a prompt that an image takes."""
        return self.config.image_tokens

    def least_layers(self) -> int:
        """Layers that the tower needs."""
        return max(1, self.config.from_last - 1)

    def seen(self, workload: Workload, count: int) -> tuple[Invocation, ...]:
        """Tower and projector on so many images."""
        vision = self.config.vision
        values = {"n": count, "b": FLOAT_BYTES[workload.dtype], "H": vision.image, "G": vision.grid}
        taken = ((vision.channels, vision.image, vision.image), (self.config.image_tokens, vision.hidden))
        return tuple(
            Invocation(stage, CALL, 1, values, (TensorSpec((count, *shape), workload.dtype),))
            for stage, shape in zip(self.stages, taken, strict=False)
        )

    def pictures(self, workload: Workload, count: int) -> dict[str, Any]:
        """Pixels [n, C, H, H] on meta."""
        vision = self.config.vision
        return {"pixel_values": on_meta(workload, count, vision.channels, vision.image, vision.image)}

    def tower_jobs(self, model: nn.Module, workload: Workload, count: int | None) -> tuple[ExportJob, ...]:
        """Tower and projector alone."""
        from costproof.models.image_text import modules

        tower = modules.Tower(model.get_submodule(TOWER), -self.config.from_last)
        projector = modules.Part(model.get_submodule(PROJECTOR))
        images = count or COUNT
        (pixels,) = self.pictures(workload, images).values()
        hidden = on_meta(workload, images, self.config.image_tokens, self.config.vision.hidden)
        return (
            tower_job("vision", TOWER, tower, sized=True, x=pixels),
            tower_job("projector", PROJECTOR, projector, sized=True, x=hidden),
        )

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.families.llava.formulas import formulas

        return formulas(self.config, workload)

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[Llava, dict[str, bool]]:
        """A random small configuration for a proof."""
        from costproof.models.decoding.domain import features, random_config
        from costproof.models.encoding.domain import ACTIVATIONS

        text = replace(random_config(LlamaConfig, p, rng), max_positions=rng.randint(512, 1024))
        config = LlavaConfig(
            ClipVisionConfig(**ClipVision.drawn_sizes(p, rng)),
            text,
            rng.randrange(text.vocab),
            projector_bias=rng.random() < 0.5,
            projector_activation=rng.choice(ACTIVATIONS),
            class_token=p["whole"] == 1,
            from_last=rng.randint(1, p["layers"] + 1),
        )
        more: dict[str, Any] = {
            "features of the class token": config.class_token,
            "biases in the projector": config.projector_bias,
        }
        return cls(config), {**features(text), **more}


TARGET: Final = Llava
"""What the name ``llava`` stands for."""
