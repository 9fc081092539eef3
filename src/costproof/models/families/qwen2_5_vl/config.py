"""The configuration of a Qwen2.5-VL: everything that decides a cost. The defaults are those of Qwen2.5-VL-7B."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.decoding.config import DecoderConfig
from costproof.models.encoding.config import ONE_CLASS, EncoderConfig
from costproof.models.image_text.config import TEXT, VISION, ImageTextConfig, part
from costproof.models.native import yes_or_no
from costproof.models.section import Section, shown

_IDS: Final = ("video_token_id", "vision_start_token_id", "vision_end_token_id", "vision_token_id")
_OF_THE_WHOLE: Final = (
    *_IDS, VISION, TEXT, "architectures", "model_type", "image_token_id", "tie_word_embeddings", "transformers_version",
    "torch_dtype", "dtype", "_name_or_path",
)  # fmt: skip
"""Keys of the whole, where a file has those of the decoder beside them."""
_SECTIONS: Final = "mrope_section"


@dataclass(frozen=True, slots=True)
class Qwen25VlVisionConfig(EncoderConfig):
    """Sizes, the window of attention, and the layers that attend to the whole image."""

    hidden: int = 1280
    intermediate: int = 3420
    layers: int = 32
    heads: int = 16
    activation: str = "silu"
    architecture: str = "Qwen2_5_VisionTransformerPretrainedModel"
    out: int = 3584
    """Width of the decoder."""
    patch: int = 14
    frames: int = 2
    """Frames that a patch holds; of an image the same one."""
    merge: int = 2
    """Patches along a side that make one token."""
    channels: int = 3
    window: int = 112
    """Pixels along a side of a window."""
    whole: tuple[int, ...] = (7, 15, 23, 31)
    """Layers, from 0, in which every patch attends to all of its image."""

    not_drawn: ClassVar = ONE_CLASS
    model_type: ClassVar[str] = "qwen2_5_vl_vision"
    architectures: ClassVar = {"Qwen2_5_VisionTransformerPretrainedModel": False}
    keys: ClassVar = {
        **EncoderConfig.keys,
        "layers": "depth",
        "heads": "num_heads",
        "out": "out_hidden_size",
        "patch": "patch_size",
        "frames": "temporal_patch_size",
        "merge": "spatial_merge_size",
        "channels": "in_channels",
        "window": "window_size",
    }
    class_defaults: ClassVar = {"hidden_size": 3584}
    unused_keys: ClassVar = {
        **dict.fromkeys(("rope_parameters", "rope_theta", "tokens_per_second"), "decides no cost"),
        **dict.fromkeys(("in_chans", "spatial_patch_size"), "the class does not read it"),
    }
    prefix: ClassVar[str] = "vision"

    @property
    def volume(self) -> int:
        """Elements of a patch."""
        return self.channels * self.frames * self.patch**2

    @property
    def step(self) -> int:
        """Pixels along a side of a token."""
        return self.patch * self.merge

    @property
    def units(self) -> int:
        """Tokens along a side of a window."""
        return self.window // self.merge // self.patch

    def sizes(self) -> dict[str, int]:
        """Values of the configuration's symbols, without the prefix."""
        own = {"out": self.out, "volume": self.volume, "merge": self.merge, "window": self.units}
        return EncoderConfig.sizes(self) | own

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        return EncoderConfig.native(self) | {"fullatt_block_indexes": list(self.whole)}

    @classmethod
    def read_fields(cls, top: Section, read: Mapping[str, Any]) -> dict[str, Any]:
        """The layers without windows."""
        return {"whole": top.integers("fullatt_block_indexes", (7, 15, 23, 31), least=0)}

    def contradictions(self) -> list[CostproofError]:
        """Sizes that transformers' class refuses, or cannot run."""
        found = EncoderConfig.contradictions(self)
        if self.head_dim % 4:
            where, expected = "$.num_heads", "heads whose width is a multiple of 4"
            found.append(
                BadInput("rows and columns are rotated in pairs", where=where, expected=expected, got=self.heads)
            )
        if self.units < 1:
            expected = f"at least {self.step}"
            found.append(BadInput("a window holds no token", where="$.window_size", expected=expected, got=self.window))
        return found

    def __post_init__(self) -> None:
        """A file of a certificate has a list."""
        object.__setattr__(self, "whole", tuple(self.whole))


@dataclass(frozen=True, slots=True)
class Qwen25VlTextConfig(DecoderConfig):
    """Sizes, and how many frequencies each axis of a position turns; queries, keys and values have biases."""

    hidden: int = 3584
    intermediate: int = 18944
    layers: int = 28
    heads: int = 28
    kv_heads: int = 4
    head_dim: int = 128
    vocab: int = 152064
    max_positions: int = 128000
    sections: tuple[int, ...] = (16, 24, 24)
    """Frequencies that positions in time, height and width turn."""

    model_type: ClassVar[str] = "qwen2_5_vl_text"
    architecture: ClassVar[str] = "Qwen2_5_VLTextModel"
    class_defaults: ClassVar[Mapping[str, Any]] = {"num_key_value_heads": 8, "max_position_embeddings": 32768}
    unused_keys: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("sliding_window", "max_window_layers"), "no layer has a window"),
        "image_token_id": "the whole has it",
    }

    @classmethod
    def caches_as(cls, data: Mapping[str, Any]) -> bool:
        """Whether a cache keeps the tokens that the formulas say: the class drops a window that is not in use."""
        return True

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        rope = {"rope_type": "default", "rope_theta": 1e6, _SECTIONS: list(self.sections)}
        return DecoderConfig.native(self) | {"rope_parameters": rope}

    @classmethod
    def read_fields(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The sections; that no layer has a window."""
        why = "the class of transformers has windows in none of its kernels but FlashAttention"
        top.fixed("use_sliding_window", False, None, why=why, default=False)
        types = top.take("layer_types", None)
        if types is not None and set(map(str, types)) != {"full_attention"}:
            top.problem(why, "layer_types", expected="full_attention for every layer", got=shown(types))
        return {"sections": top.integers(_SECTIONS, (16, 24, 24))}

    def contradictions(self) -> list[CostproofError]:
        """Sizes that transformers' class refuses, or cannot run."""
        found = DecoderConfig.contradictions(self)
        if self.heads * self.head_dim != self.hidden:
            what, share = "the class takes its share of the width for a head", self.hidden // self.heads
            found.append(BadInput(what, where="$.head_dim", expected=share, got=self.head_dim))
        if 2 * sum(self.sections) != self.head_dim:
            what, expected = "the axes do not turn all frequencies", f"numbers that sum to {self.head_dim // 2}"
            found.append(BadInput(what, where=f"$.{_SECTIONS}", expected=expected, got=list(self.sections)))
        return found

    def __post_init__(self) -> None:
        """A file of a certificate has a list."""
        object.__setattr__(self, "sections", tuple(self.sections))


@dataclass(frozen=True, slots=True)
class Qwen25VlConfig(ImageTextConfig):
    """A tower and a decoder; what merges patches to tokens belongs to the tower."""

    vision: Qwen25VlVisionConfig = field(default_factory=Qwen25VlVisionConfig)
    text: Qwen25VlTextConfig = field(default_factory=Qwen25VlTextConfig)
    image_token: int = 151655

    model_type: ClassVar[str] = "qwen2_5_vl"
    architecture: ClassVar[str] = "Qwen2_5_VLForConditionalGeneration"
    unused_keys: ClassVar = dict.fromkeys(_IDS, "token ids decide no cost")

    @classmethod
    def parts(cls, top: Section) -> Self:
        """All fields; published files have the keys of the decoder beside those of the whole."""
        nested = top.data.get(TEXT) is not None
        given = top.take(TEXT, {}) if nested else {k: v for k, v in top.data.items() if k not in _OF_THE_WHOLE}
        top.known.update(() if nested else given)
        vision, of_vision = part(top, VISION, Qwen25VlVisionConfig, top.given(VISION, {}))
        text, of_text = part(top, TEXT if nested else "", Qwen25VlTextConfig, _rotated(given))
        tied = yes_or_no(top, "tie_word_embeddings", default=text.tied)
        token = top.integer("image_token_id", 151655, least=0)
        return cls(vision, replace(text, tied=tied or text.tied), token, waived=(*of_vision, *of_text))

    def contradictions(self) -> list[CostproofError]:
        """Sizes that the classes of transformers refuse, or cannot run."""
        found = ImageTextConfig.contradictions(self)
        if self.vision.out != self.text.hidden:
            where, what = "$.vision_config.out_hidden_size", "the tower's tokens are not as wide as the decoder's"
            found.append(BadInput(what, where=where, expected=self.text.hidden, got=self.vision.out))
        return found


def _rotated(given: Any) -> Any:
    """The keys of a decoder; positions on three axes are rotated as any other, by frequencies in sections."""
    if not isinstance(given, dict):
        return given
    found = dict(given)
    for key in ("rope_scaling", "rope_parameters"):
        rope = found.get(key)
        if isinstance(rope, dict):
            rope = dict(rope)
            sections = rope.pop(_SECTIONS, None)
            kinds = {k: "default" if v == "mrope" else v for k, v in rope.items() if k in ("type", "rope_type")}
            found |= {key: {**rope, **kinds}, **({} if sections is None else {_SECTIONS: sections})}
    return found
