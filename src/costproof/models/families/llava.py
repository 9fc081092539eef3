"""LLaVA: Llama decoder with a CLIP tower and an MLP projector (transformers' native class)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from costproof.algebra.symbols import sym
from costproof.analytic.compose import ModulePart, StackCall
from costproof.analytic.costs import Size
from costproof.analytic.elementwise import Activation
from costproof.analytic.layer_memory import LayerTape
from costproof.analytic.linear import Linear
from costproof.analytic.memory_tape import MemoryTape
from costproof.configs.config import activation, yes_or_no
from costproof.configs.reader import Section, shown
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.node import Ledger
from costproof.ledger.workload import FLOAT_BYTES, Invocation, TensorSpec, Workload
from costproof.models.decoding.decoder import on_meta
from costproof.models.decoding.formulas import DecoderStyle, decoder_parts
from costproof.models.decoding.names import STAGES, decoder_names
from costproof.models.encoding.formulas import branches_of, image_tokens, pixels, vision_tape
from costproof.models.families.clip_vision import (
    ClipVision,
    ClipVisionConfig,
    class_norm,
    clip_names,
    clip_style,
    clip_tower,
)
from costproof.models.families.llama import Llama, LlamaConfig
from costproof.models.image_text.config import TEXT, VISION, ImageTextConfig, read_part
from costproof.models.image_text.formulas import IMAGES, image_text_ledger
from costproof.models.image_text.layout import CALL, ModelLayout, StagePaths
from costproof.models.image_text.target import EXAMPLE_COUNT, ImageTextTarget, tower_job
from costproof.models.specs import ExportJob
from costproof.storage.scheme import CheckpointLayout
from costproof.weights.stored import unfit

if TYPE_CHECKING:
    from torch import nn


_TOWER: Final = "model.vision_tower"
_PROJECTOR: Final = "model.multi_modal_projector"
_NAMES: Final[Mapping[str, str]] = {
    **clip_names("model.vision_tower."),
    "projector": _PROJECTOR,
    "projector.up": f"{_PROJECTOR}.linear_1",
    "projector.activation": f"{_PROJECTOR}.act",
    "projector.down": f"{_PROJECTOR}.linear_2",
    "model": "model",
    **decoder_names("model.language_model"),
}
_CLIP_DEFAULTS: Final[dict[str, Any]] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
"""Defaults of the class in transformers for a file that has no section for the tower."""
_LLAMA_DEFAULTS: Final[Mapping[str, Any]] = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
"""Defaults of the class in transformers for omitted keys of the decoder; published files rely on them."""
_STRATEGIES: Final = {"default": False, "full": True}


@dataclass(frozen=True, slots=True)
class LlavaConfig(ImageTextConfig):
    """Configuration of a CLIP tower, a decoder, and the two-layer projector between them; by default LLaVA-1.5-7B."""

    vision: ClipVisionConfig = field(default_factory=lambda: ClipVisionConfig(1024, 4096, 24, 16, image=336, patch=14))
    text: LlamaConfig = field(
        default_factory=lambda: LlamaConfig(4096, 11008, 32, 32, 32, 128, 32064, max_positions=4096)
    )
    image_token: int = 32000
    projector_bias: bool = True
    projector_activation: str = "gelu"
    class_token: bool = False
    """Whether the features of the class token are projected as well as those of the patches."""
    from_last: int = 2
    """Layer of the tower whose output is projected, counted from the end; the last layer is 1."""

    not_drawn: ClassVar = dict.fromkeys(("vision.architecture", "vision.pooled"), "the class projects no vector")
    model_type: ClassVar[str] = "llava"
    not_null: ClassVar = ("image_seq_length", "image_token_index")
    architecture: ClassVar[str] = "LlavaForConditionalGeneration"
    unused_keys: ClassVar = {
        "ignore_index": "affects only training",
        "image_seq_length": "affects only the processor",
        "vocab_size": "the decoder's section has it",
    }

    @property
    def image_tokens(self) -> int:
        """Return the number of tokens of an image in the prompt."""
        return self.vision.grid**2 + int(self.class_token)

    def native(self) -> dict[str, Any]:
        return {
            **ImageTextConfig.native(self),
            "multimodal_projector_bias": self.projector_bias,
            "projector_hidden_act": self.projector_activation,
            "vision_feature_select_strategy": "full" if self.class_token else "default",
            "vision_feature_layer": -self.from_last,
        }

    @classmethod
    def read_parts(cls, top: Section) -> Self:
        """Read the sections of tower and decoder; the output projection is tied if either section says so."""
        vision, of_vision = read_part(top, VISION, ClipVisionConfig, top.given(VISION, _CLIP_DEFAULTS))
        given = top.given(TEXT, {})
        text, of_text = read_part(
            top, TEXT, LlamaConfig, {**_LLAMA_DEFAULTS, **given} if isinstance(given, dict) else given
        )
        tied = yes_or_no(top, "tie_word_embeddings", default=text.tied)
        token = "image_token_id" if "image_token_id" in top.data else "image_token_index"
        layer = top.take("vision_feature_layer", -2)
        most = vision.layers
        # The class takes 0 for no layer at all.
        if isinstance(layer, bool) or not isinstance(layer, int) or not (-most - 1 <= layer < 0 or 0 < layer <= most):
            what, expected = "the formulas describe features of one layer", f"{-most - 1} to -1, or 1 to {most}"
            top.problem(what, "vision_feature_layer", expected=expected, got=shown(layer))
            layer = -1
        strategy = top.fixed(
            "vision_feature_select_strategy", *_STRATEGIES, why="the class does not have this choice of features"
        )
        return cls(
            vision,
            replace(text, tied=tied or text.tied),
            top.integer(token, 32000, least=0),
            waived=(*of_vision, *of_text),
            projector_bias=yes_or_no(top, "multimodal_projector_bias", default=True),
            projector_activation=activation(top, "projector_hidden_act", "gelu"),
            class_token=_STRATEGIES[str(strategy)],
            from_last=-layer if layer < 0 else most + 1 - layer,
        )

    def contradictions(self) -> list[CostproofError]:
        found, layers = ImageTextConfig.contradictions(self), self.vision.layers
        if self.from_last > layers + 1:
            expected = f"at least {-layers - 1}"
            what, where = "the vision tower has fewer layers than this", "$.vision_feature_layer"
            found.append(BadInput(what, where=where, expected=expected, got=-self.from_last))
        return found


@dataclass(frozen=True, slots=True)
class Llava(ImageTextTarget[LlavaConfig]):
    """Target: ``LlavaForConditionalGeneration`` with one configuration.

    Source: Liu et al. 2023, Visual Instruction Tuning; Liu et al. 2023, Improved Baselines with Visual Instruction
    Tuning; ``LlavaForConditionalGeneration`` (transformers).
    """

    config: LlavaConfig = field(default_factory=LlavaConfig)
    name: str = "llava"
    model_types: ClassVar[tuple[str, ...]] = ("llava",)
    checkpoint_layout: ClassVar[CheckpointLayout] = CheckpointLayout(
        renamed=(
            ("model.language_model", "language_model.model"),
            ("model.vision_tower", "vision_tower.vision_model"),
            ("model.multi_modal_projector", "multi_modal_projector"),
            ("lm_head", "language_model.lm_head"),
        )
    )
    stages: ClassVar[tuple[str, ...]] = ("vision", "projector", *STAGES)

    @property
    def layout(self) -> ModelLayout:
        """Return the module paths of tower, projector and decoder."""
        return ModelLayout(
            StagePaths({_TOWER: "vision", _PROJECTOR: "projector"}), inner=("transformers.models.llama.modeling_llama",)
        )

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Return the target with the configuration in a file of transformers.

        Raises:
            BadInput: the processor file next to it makes images of another size, for which the class has no positions.
        """
        made = super(Llava, cls).from_file(path)
        images, side = made.stored.images, made.config.vision.image
        if images is not None and images.side != side:
            raise unfit(images, side, str(path))
        return made

    def image_tokens(self, workload: Workload) -> int:
        return self.config.image_tokens

    def least_layers(self) -> int:
        """Return the minimum number of tower layers: those up to the layer whose features are used."""
        return max(1, self.config.from_last - 1)

    def tower_invocations(self, workload: Workload, count: int) -> tuple[Invocation, ...]:
        """Return the invocations of tower and projector on ``count`` images."""
        vision = self.config.vision
        values = {"n": count, "b": FLOAT_BYTES[workload.dtype], "H": vision.image, "G": vision.grid}
        taken = ((vision.channels, vision.image, vision.image), (self.config.image_tokens, vision.hidden))
        return tuple(
            Invocation(stage, CALL, 1, values, (TensorSpec((count, *shape), workload.dtype),))
            for stage, shape in zip(self.stages, taken, strict=False)
        )

    def image_inputs(self, workload: Workload, count: int) -> dict[str, Any]:
        """Return pixels [n, C, H, H] on the meta device."""
        vision = self.config.vision
        return {"pixel_values": on_meta(workload, count, vision.channels, vision.image, vision.image)}

    def tower_jobs(self, model: nn.Module, workload: Workload, count: int | None) -> tuple[ExportJob, ...]:
        """Return the export jobs of tower and projector."""
        from costproof.models.image_text import modules

        tower = modules.Tower(model.get_submodule(_TOWER), -self.config.from_last)
        projector = modules.PartModule(model.get_submodule(_PROJECTOR))
        images = count or EXAMPLE_COUNT
        (pixels,) = self.image_inputs(workload, images).values()
        hidden = on_meta(workload, images, self.config.image_tokens, self.config.vision.hidden)
        return (
            tower_job("vision", _TOWER, tower, sized=True, x=pixels),
            tower_job("projector", _PROJECTOR, projector, sized=True, x=hidden),
        )

    def formulas(self, workload: Workload) -> Ledger:
        """Return the symbolic analytic ledger, with formulas (``exprs``) and without numbers (``costs``).

        The tower runs all of its layers, whichever of them the features are taken from, and norms the class token.
        """
        width, hidden, b = sym("vision_hidden"), sym("text_hidden"), sym("b")
        features = self._features()
        eager = workload.attention == "eager"
        tower = clip_tower(self.config.vision, resampled=False, eager=eager, images=IMAGES, read=False)
        seen = IMAGES * image_tokens(self.config.vision) * width
        projector = self._projector()
        return image_text_ledger(
            {"vision": (tower, (pixels(IMAGES) + seen) * b), "projector": (projector, features * (width + hidden) * b)},
            decoder_parts(self.config.text, self.whole_prompt(workload), self.text_style(), self.plan),
            features,
            workload,
            _NAMES,
            vocabulary=self.shares(workload).padded_vocabulary(),
            config=self.config.text,
        )

    def _features(self) -> Size:
        """Return the number of rows of image features in all prompts."""
        return IMAGES * (sym("G") ** 2 + int(self.config.class_token))

    def _projector(self) -> tuple[ModulePart, ...]:
        """Return the module parts of the projector, in execution order."""
        width, hidden, b, features = sym("vision_hidden"), sym("text_hidden"), sym("b"), self._features()
        return (
            ModulePart("projector"),
            ModulePart("projector.up", (Linear(features, width, hidden, b, self.config.projector_bias),)),
            ModulePart("projector.activation", (Activation(features * hidden, self.config.projector_activation, b),)),
            ModulePart("projector.down", (Linear(features, hidden, hidden, b, self.config.projector_bias),)),
        )

    def text_style(self) -> DecoderStyle:
        """Return the style of the decoder, which is that of Llama."""
        return Llama(self.config.text).style()

    def tower_tapes(self, workload: Workload, count: int) -> dict[str, MemoryTape]:
        """Return the memory tapes of tower and projector on ``count`` images.

        The norm of the class token reads the last layer, and nothing reads the norm.
        """
        vision, tokens = self.config.vision, self.config.image_tokens
        made, hidden = vision_tape(
            vision,
            clip_style(),
            workload,
            grid=vision.grid,
            images=IMAGES,
            count=count,
            from_last=self.config.from_last,
        )
        made.sequence((class_norm(IMAGES),), hidden)
        branches = branches_of(vision, workload, tokens=tokens, sequences=count)
        projector = LayerTape(StackCall(IMAGES, tokens, sym("b")), branches)
        given = projector.tape.give(self._features() * sym("vision_hidden") * sym("b"))
        projector.tape.keep(projector.sequence(self._projector(), given))
        return {"vision": made.tape, "projector": projector.tape}

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[Llava, dict[str, bool]]:
        """Draw a random small configuration for a proof; return its target and its features."""
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
