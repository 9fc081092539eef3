"""Workloads of DeepSeek-OCR 2: the queries of a view, the tokens of a page, and the presets."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from costproof.models import settings as common
from costproof.models.pages.page import Page
from costproof.models.pages.workload import PAGE_SETTINGS, PageModes, PagePreset

SMALL, LARGE = 144, 256
"""Queries of a view: one for each of 12 x 12 features, or of 16 x 16."""
STAGES: Final = ("sam", "encoder", "projector", "prefill", "decode")
IMAGE_STAGES: Final = STAGES[:3]


def queries(side: int, stride: int) -> int:
    """Return the number of queries of a view; the small table is used if it has a row for each feature.

    Source: ``DeepseekOcr2VisionModel.forward``.
    """
    return SMALL if (side // stride) ** 2 <= SMALL else LARGE


def vision_tokens(page: Page | None, stride: int = 64) -> int:
    """Return the vision tokens per sequence: the queries of all crops and of the global view, and one separator.

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
    PRESETS, "page", SETTINGS, vision_tokens, "base", queries, counts_queries=True, most_crops=_MOST
)
