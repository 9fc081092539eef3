"""The configuration of a LLaVA: everything that decides a cost. The defaults are those of LLaVA-1.5-7B."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.families.clip_vision import ClipVisionConfig
from costproof.models.families.llama import LlamaConfig
from costproof.models.image_text.config import TEXT, VISION, ImageTextConfig, part
from costproof.models.native import activation, yes_or_no
from costproof.models.section import Section, shown

_CLIP_LEFT_OUT: Final[dict[str, Any]] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
"""What the class takes where a file has no section of the tower."""
_LLAMA_LEFT_OUT: Final[Mapping[str, Any]] = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
"""What the class takes for keys of the decoder that are left out: published files name those alone that differ."""
_STRATEGIES: Final = {"default": False, "full": True}


@dataclass(frozen=True, slots=True)
class LlavaConfig(ImageTextConfig):
    """A tower, a decoder, and the two linear layers between."""

    vision: ClipVisionConfig = field(default_factory=lambda: ClipVisionConfig(1024, 4096, 24, 16, image=336, patch=14))
    text: LlamaConfig = field(
        default_factory=lambda: LlamaConfig(4096, 11008, 32, 32, 32, 128, 32064, max_positions=4096)
    )
    image_token: int = 32000
    projector_bias: bool = True
    projector_activation: str = "gelu"
    class_token: bool = False
    """Whether the class token's features are projected too."""
    from_last: int = 2
    """Which of the tower's hidden states are projected, counted from those behind its last layer, which are 1."""

    not_drawn: ClassVar = dict.fromkeys(("vision.architecture", "vision.pooled"), "the class projects no vector")
    model_type: ClassVar[str] = "llava"
    architecture: ClassVar[str] = "LlavaForConditionalGeneration"
    unused_keys: ClassVar = {
        "ignore_index": "of training alone",
        "image_seq_length": "of the processor alone",
        "vocab_size": "the decoder's section has it",
    }

    @property
    def image_tokens(self) -> int:
        """Places in a prompt that an image takes."""
        return self.vision.grid**2 + int(self.class_token)

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        return {
            **ImageTextConfig.native(self),
            "multimodal_projector_bias": self.projector_bias,
            "projector_hidden_act": self.projector_activation,
            "vision_feature_select_strategy": "full" if self.class_token else "default",
            "vision_feature_layer": -self.from_last,
        }

    @classmethod
    def parts(cls, top: Section) -> Self:
        """All fields; a decoder shares its table with the output projection if either section says so."""
        vision, of_vision = part(top, VISION, ClipVisionConfig, top.given(VISION, _CLIP_LEFT_OUT))
        given = top.given(TEXT, {})
        text, of_text = part(top, TEXT, LlamaConfig, {**_LLAMA_LEFT_OUT, **given} if isinstance(given, dict) else given)
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
        """Sizes that the classes of transformers refuse, or cannot run."""
        found, layers = ImageTextConfig.contradictions(self), self.vision.layers
        if self.from_last > layers + 1:
            expected = f"at least {-layers - 1}"
            what, where = "the tower does not have this layer", "$.vision_feature_layer"
            found.append(BadInput(what, where=where, expected=expected, got=-self.from_last))
        return found
