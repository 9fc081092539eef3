"""Define the configuration of DeepSeek-OCR 2, by default the published one.

Source: Wei et al. 2026, DeepSeek-OCR 2: Visual Causal Flow (arXiv 2601.20552): SAM-base with features of 896 channels,
an encoder of the shape of Qwen2-0.5B, and the decoder of DeepSeek-OCR.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Self

from costproof.configs.reader import Section, shown
from costproof.ledger.errors import CostproofError
from costproof.models import settings as common
from costproof.models.pages.config import (
    WAIVED,
    EqualHeads,
    PageConfig,
    PageDecoderConfig,
    SamConfig,
    read_sam,
    read_text,
)
from costproof.models.pages.page import Page
from costproof.models.pages.workload import PAGE_SETTINGS, PageModes, PagePreset

ENCODER_KEYS: Final = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
}
"""Keys in a file of the encoder's fields, by field."""
_ENCODER_WAIVED: Final = {
    **WAIVED,
    **dict.fromkeys(("vocab_size", "tie_word_embeddings"), "the encoder has no table of tokens"),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), "the encoder has no table of tokens"),
    **dict.fromkeys(("sliding_window", "max_window_layers"), "windows are used only with use_sliding_window"),
    "max_position_embeddings": "the rotary table is made for the positions that there are",
    "rms_norm_eps": "the value of a constant costs nothing",
    "rope_parameters": "the frequencies of a rotary table cost nothing where they are not scaled by length",
    "use_cache": "the encoder keeps no cache",
}


@dataclass(frozen=True, slots=True)
class QueryEncoderConfig(EqualHeads):
    """Configuration of the encoder of DeepSeek-OCR 2, whose queries attend to SAM's features and to earlier queries."""

    hidden: int = 896
    layers: int = 24
    heads: int = 14
    kv_heads: int = 2
    intermediate: int = 4864


CLASS_SAM: Final = SamConfig(downsample=(512, 896))
CLASS_ENCODER: Final = QueryEncoderConfig(4096, 32, 32, 32, 22016)
CLASS_TEXT: Final = PageDecoderConfig(
    hidden=4096, layers=32, heads=32, kv_heads=32, intermediate=11008, moe_intermediate=1407, vocab=102_400,
    max_positions=2048,
)  # fmt: skip
"""Defaults that the class in transformers has for omitted decoder keys."""


@dataclass(frozen=True, slots=True)
class Ocr2Config(PageConfig):
    """Configuration of the whole model, with a linear projector from the encoder to the decoder."""

    sam: SamConfig = CLASS_SAM
    encoder: QueryEncoderConfig = field(default_factory=QueryEncoderConfig)
    text: PageDecoderConfig = field(default_factory=PageDecoderConfig)
    image_token: int = 128_815
    waived: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Keys of the file that affect no cost, with the reason."""

    model_type: ClassVar[str] = "deepseek_ocr2"
    architecture: ClassVar[str] = "DeepseekOcr2ForConditionalGeneration"

    second: ClassVar[str] = "encoder"
    second_keys: ClassVar[Mapping[str, str]] = ENCODER_KEYS
    second_sizes: ClassVar[tuple[str, ...]] = ("hidden", "heads", "kv_heads", "head_dim", "intermediate", "layers")

    @property
    def projector_in(self) -> int:
        return self.encoder.hidden

    @classmethod
    def read(cls, data: object, problems: list[CostproofError]) -> Self:
        top = Section(data, "$", problems)
        top.waive(WAIVED)
        top.fixed("architectures", [cls.architecture], None, why="no formulas for this class", default=None)
        top.fixed("model_type", cls.model_type, why="this is the configuration of another model")
        sam, encoder, text = cls.read_parts(top, cls.model_type)
        if "mlp_layer_types" not in text.data:
            text.problem("a key is missing", "mlp_layer_types", expected="'dense' or 'sparse' per layer")
        config = cls(
            sam=_sam(sam),
            encoder=_encoder(encoder),
            text=read_text(text, "deepseek_ocr2_text", CLASS_TEXT),
            image_token=top.integer("image_token_id", cls().image_token, least=0),
        )
        waived = top.finish(strict=True)
        problems += [] if problems else config.contradictions()
        return cls(config.sam, config.encoder, config.text, config.image_token, waived)


def _sam(section: Section) -> SamConfig:
    """Read the section of SAM, in which an omitted MLP width follows from ``mlp_ratio``."""
    section.waive({"scale": "the model's code never reads it"})
    ratio, hidden, defaults = (
        section.number("mlp_ratio", 4.0),
        section.data.get("hidden_size", CLASS_SAM.hidden),
        CLASS_SAM,
    )
    if section.data.get("mlp_dim") is None and isinstance(hidden, int):
        section.data = {key: value for key, value in section.data.items() if key != "mlp_dim"}
        defaults = replace(CLASS_SAM, mlp=int(hidden * ratio))
    return read_sam(section, "deepseek_ocr2_sam_vision_model", defaults)


def _encoder(section: Section) -> QueryEncoderConfig:
    section.waive(_ENCODER_WAIVED)
    section.fixed("model_type", "deepseek_ocr2_encoder", why="this encoder is not the native one")
    section.fixed("hidden_act", "silu", why="only this activation is described by the formulas")
    section.fixed("use_sliding_window", False, why="windows in the encoder are not described by the formulas")
    sizes = section.sizes(ENCODER_KEYS, CLASS_ENCODER)
    kinds = section.take("layer_types", None)
    if kinds is not None and kinds != ["full_attention"] * sizes["layers"]:
        what = "the formulas describe only layers with full attention"
        section.problem(what, "layer_types", expected=f"{sizes['layers']} of 'full_attention'", got=shown(kinds))
    return QueryEncoderConfig(**sizes)


SMALL, LARGE = 144, 256
"""Numbers of queries of a view: one per feature of 12 x 12 features, or of 16 x 16."""
STAGES: Final = ("sam", "encoder", "projector", "prefill", "decode")
IMAGE_STAGES: Final = STAGES[:3]


def queries(side: int, stride: int) -> int:
    """Return the number of queries of a view: 144 for at most 144 features, 256 for more.

    Source: ``DeepseekOcr2VisionModel.forward``.
    """
    return SMALL if (side // stride) ** 2 <= SMALL else LARGE


def vision_tokens(page: Page | None, stride: int = 64) -> int:
    """Return the number of image tokens per sequence: one per query of each crop and the global view, and a separator.

    Source: ``DeepseekOcr2Model.get_image_features``.

    Args:
        stride: pixels per feature along a side.
    """
    if page is None:
        return 0
    return queries(page.base_size, stride) + page.crops * queries(page.image_size, stride) + 1


_MOST: Final = 6
PRESETS: Final = {
    "base": PagePreset("one view of 1024 pixels", Page(1024, 768)),
    "small": PagePreset("one view of 768 pixels", Page(768, 768)),
    "page": PagePreset(
        "a view of 1024 and 2 to 6 crops of 768 pixels; 2x3 unless page:1x2, --grid or --image says otherwise",
        Page(1024, 768, (2, 3)),
    ),
    "text-only": PagePreset("512 text tokens, no page", None, 512),
}
"""The views of the processor have 256 and 144 tokens; a page has at most 1,120 and a separator."""
SETTINGS: Final = tuple(
    replace(s, choices=("sdpa", "eager")) if s.name == common.ATTENTION.name else s for s in PAGE_SETTINGS
)
MODES: Final = PageModes(
    PRESETS, "page", SETTINGS, vision_tokens, "base", queries, counts_queries=True, most_crops=_MOST, splits_tower=True
)
