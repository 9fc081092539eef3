"""Sizes of the configurations in which mistakes cancel."""

from __future__ import annotations

from typing import Final

from costproof.models.families.deepseek_ocr.config import ClipConfig, OcrConfig
from costproof.models.pages.config import PageDecoderConfig, SamConfig
from costproof.models.pages.page import Page, page_workload

TINY: Final = OcrConfig(
    sam=SamConfig(24, 3, 4, 96, 64, 4, 3, (1,), 8, (10, 20)),
    clip=ClipConfig(20, 2, 4, 80, 32, 2),
    text=PageDecoderConfig(40, 3, 1, 5, 5, 56, 8, 2, 16, 2, 64, 4096),
    image_token=1,
)
"""As in the published model heads x head_dim = width, heads = key/value heads, heads of CLIP = SAM's patch."""


DEFAULT: Final = page_workload("default", Page(64, 48, (2, 2)), 12, 4)
