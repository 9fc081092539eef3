"""The page of a run: what DeepSeek-OCR reads and writes of a workload's settings of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, cast

from costproof.ledger.workload import Workload

STAGES: Final = ("sam", "clip", "projector", "prefill", "decode")
IMAGE_STAGES: Final = STAGES[:3]


@dataclass(frozen=True, slots=True)
class Page:
    """Geometry of one page image."""

    base_size: int
    """Side of the global view in pixels."""
    image_size: int
    """Side of one crop in pixels (not used without a grid)."""
    grid: tuple[int, int] | None = None
    """Columns and rows of crops; ``None`` for the global view alone."""

    @property
    def crops(self) -> int:
        """Crops per page."""
        return self.grid[0] * self.grid[1] if self.grid else 0

    def __str__(self) -> str:
        crops = f", {self.grid[0]}x{self.grid[1]} crops of {self.image_size}" if self.grid else ""
        return f"global view {self.base_size}{crops}"


def page_of(workload: Workload) -> Page | None:
    """The page of a workload; ``None`` is a text-only run: the vision stages do not run."""
    return Page(**cast(dict[str, Any], workload.inputs)) if workload.inputs else None


def prefill_name(workload: Workload) -> str:
    """What the run of the prefill is called."""
    return "page" if workload.inputs else "prompt"


def with_page(workload: Workload, page: Page | None, **changes: Any) -> Workload:
    """The workload with another page, or none, and other changes."""
    if page is None:
        return replace(workload, inputs={}, what="text only", **changes)
    inputs = {"base_size": page.base_size, "image_size": page.image_size}
    grid = {} if page.grid is None else {"grid": page.grid}
    return replace(workload, inputs={**inputs, **grid}, what=str(page), **changes)


def page_workload(name: str, page: Page | None, text_tokens: int, *more: Any, **settings: Any) -> Workload:
    """A :class:`Workload` with a page; ``more`` are its fields after ``text_tokens``."""
    return with_page(Workload(name, text_tokens, *more, **settings), page)


def views(workload: Workload) -> tuple[tuple[str, int, int], ...]:
    """Call, number and side in pixels of the views: the global one first, as the native model calls them."""
    page = page_of(workload)
    if page is None:
        return ()
    crops = (("crops", workload.batch * page.crops, page.image_size),) if page.grid else ()
    return (("global", workload.batch, page.base_size), *crops)


def sides(workload: Workload) -> dict[int, tuple[str, ...]]:
    """Side of a view in pixels -> the calls whose views have it."""
    found: dict[int, tuple[str, ...]] = {}
    for call, _, side in views(workload):
        found[side] = (*found.get(side, ()), call)
    return found


def vision_tokens(page: Page | None, stride: int = 64) -> int:
    """Vision tokens per sequence.

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
