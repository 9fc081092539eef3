"""Workloads of DeepSeek-OCR: the modes of the paper, its vision tokens, and the invocations of a run."""

from __future__ import annotations

from typing import Any, Final

from costproof.ledger.workload import Workload
from costproof.models.families.deepseek_ocr.config import OcrConfig
from costproof.models.pages.config import PageConfig
from costproof.models.pages.page import Page
from costproof.models.pages.workload import PAGE_SETTINGS, PageModes, PagePreset, preset_workload
from costproof.models.target import Setting

STAGES: Final = ("sam", "clip", "projector", "prefill", "decode")
IMAGE_STAGES: Final = STAGES[:3]
DEFAULT_PRESET: Final = "dsocr-standard-v1"
_GRID: Final = (2, 2)
_CUT: Final = "a view of {0} and 2 to 9 crops of {1} pixels; 2x2 unless {2}:3x2, --grid or --image says otherwise"

PRESETS: Final = {
    "tiny": PagePreset("one view of 512 pixels", Page(512, 640)),
    "small": PagePreset("one view of 640 pixels", Page(640, 640)),
    "base": PagePreset("one view of 1024 pixels", Page(1024, 640)),
    "large": PagePreset("one view of 1280 pixels", Page(1280, 640)),
    "gundam": PagePreset(_CUT.format(1024, 640, "gundam"), Page(1024, 640, _GRID)),
    "gundam-m": PagePreset(_CUT.format(1280, 1024, "gundam-m"), Page(1280, 1024, _GRID)),
    DEFAULT_PRESET: PagePreset(
        "a view of 1024 and 2x2 crops of 640 pixels, 512 text tokens", Page(1024, 640, _GRID), 512
    ),
    "text-only": PagePreset("512 text tokens, no page", None, 512),
}
DEFAULT_SIDES: Final = "64-2048"
SIDES: Final = Setting(
    "sides", f"Sides of a view in pixels to enumerate; {DEFAULT_SIDES} unless given.", "text", metavar="A-B"
)
"""The setting of a proof: the sides to enumerate."""


def vision_tokens(page: Page | None, stride: int = 64) -> int:
    """Return the number of vision tokens per sequence.

    The global view of side s gives q = s/stride features per side, a newline token after each row,
    and one separator: q(q+1) + 1. A grid of w x h crops of q' features per side is laid out as one
    map, a newline after each of its rows: (h q')(w q' + 1). Source: ``UnlimitedOcrModel.get_image_features``
    and ``DeepseekOCRModel.forward`` of the vendor, which agree.

    Args:
        stride: pixels per feature along a side (:attr:`SamConfig.stride`).
    """
    if page is None:
        return 0
    side = page.base_size // stride
    tokens = side * (side + 1) + 1
    if page.grid is not None:
        columns, rows = page.grid
        crop = page.image_size // stride
        tokens += rows * crop * (columns * crop + 1)
    return tokens


MODES: Final = PageModes(
    PRESETS, DEFAULT_PRESET, PAGE_SETTINGS, vision_tokens, "base", lambda side, stride: (side // stride) ** 2
)


def make_workload(preset: str = DEFAULT_PRESET, *, config: PageConfig | None = None, **settings: Any) -> Workload:
    """Return a preset with changed settings, as :func:`~costproof.models.pages.workload.preset_workload`.

    Args:
        config: the model that will run it (default: the published DeepSeek-OCR).
    """
    return preset_workload(preset, config=config or OcrConfig(), modes=MODES, **settings)
