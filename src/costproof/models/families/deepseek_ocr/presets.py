"""The workloads under their names, the modes of the paper and two of our own, and what can be chosen about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from costproof.ledger.errors import BadInput
from costproof.models import settings as common
from costproof.models.families.deepseek_ocr.page import Page, vision_tokens
from costproof.models.families.deepseek_ocr.preprocess import MAX_CROPS
from costproof.models.target import NamedWorkload, Setting

TEXT_TOKENS: Final = 16
"""About the length of the vendor's prompt "<|grounding|>Convert the document to markdown." with its marks."""

DEFAULT_PRESET: Final = "dsocr-standard-v1"


@dataclass(frozen=True, slots=True)
class PagePreset:
    """A named workload: sizes of the views, and whether the page is cut into crops."""

    what: str
    page: Page | None
    text_tokens: int = TEXT_TOKENS


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


SETTINGS: Final = (
    Setting("base_size", "Side of the global view.", metavar="PIXELS"),
    Setting("image_size", "Side of one crop.", metavar="PIXELS"),
    Setting("grid", "Columns and rows of crops, such as 2x3.", "text", metavar="CxR"),
    Setting("image", "A page image; its size decides the grid.", "file", metavar="FILE"),
    replace(common.TEXT_TOKENS, what="Tokens of the prompt beside the vision tokens."),
    Setting("seq_len", "Tokens of the whole prompt, instead of --text-tokens."),
    common.NEW_TOKENS,
    replace(common.BATCH, what="Pages at once."),
    common.DTYPE,
    common.ATTENTION,
    common.LOGITS,
    common.EXPERTS,
)

USUAL_SIDES: Final = "64-2048"
SIDES: Final = Setting(
    "sides", f"Sides of a view in pixels to enumerate; {USUAL_SIDES} unless given.", "text", metavar="A-B"
)
"""What a proof enumerates."""


@dataclass(frozen=True, slots=True)
class Modes:
    """The named workloads of a model that reads pages, and what its processor makes of one."""

    presets: Mapping[str, PagePreset]
    usual: str
    """The preset that runs unless another is asked for."""
    settings: tuple[Setting, ...]
    tokens: Callable[[Page | None, int], int]
    """(page, pixels per feature along a side) -> vision tokens per sequence."""
    one_view: str
    """The preset without crops."""
    most_crops: int = MAX_CROPS

    def named(self) -> tuple[NamedWorkload, ...]:
        """The presets with the tokens that they make at 64 pixels per feature, as published."""
        return tuple(
            NamedWorkload(
                name,
                preset.what,
                {"vision": self.tokens(preset.page, 64), "text": preset.text_tokens},
                default=name == self.usual,
            )
            for name, preset in self.presets.items()
        )

    def find(self, name: str) -> tuple[str, PagePreset, str | None]:
        """The name alone, its preset, and the grid after its colon if there is one.

        Raises:
            BadInput: there is no such preset, or it takes no grid.
        """
        head, colon, tail = name.partition(":")
        preset = self.presets[common.known_preset(head, self.presets)]
        if colon and not (preset.page and preset.page.grid):
            cut = next(n for n, p in self.presets.items() if p.page and p.page.grid)
            raise BadInput("this mode has no crops", where=f"--preset {head}", got=tail[:80], fix=f"choose {cut}:2x3")
        return head, preset, tail if colon else None


MODES: Final = Modes(PRESETS, DEFAULT_PRESET, SETTINGS, vision_tokens, "base")
"""Those of DeepSeek-OCR."""
