"""Where the parts of a model sit: roles that the formulas speak of -> module paths in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costproof.models.decoding.names import decoder_names, mixture_names
from costproof.models.families.deepseek_ocr.formulas.names import NATIVE_NAMES

_TOWER: Final = "model.vision_tower"
_ENCODER: Final = f"{_TOWER}.vision_encoder"
_TEXT: Final = "model.language_model"

NAMES: Final[Mapping[str, str]] = {
    **{role: path for role, path in NATIVE_NAMES.items() if role.startswith("sam")},
    "vision": _TOWER,
    "vision.queries_small": f"{_TOWER}.query_768_resolution",
    "vision.queries_large": f"{_TOWER}.query_1024_resolution",
    **{
        role.replace("text", "encoder", 1): path
        for role, path in decoder_names(_ENCODER).items()
        if role.startswith("text")
    },
    "projector": "model.multi_modal_projector",
    "model": "model",
    **decoder_names(_TEXT),
    **mixture_names(_TEXT),
}
"""Paths in ``DeepseekOcr2ForConditionalGeneration``; ``{i}`` is the number of the layer."""
