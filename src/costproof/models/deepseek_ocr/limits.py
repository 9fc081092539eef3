"""What keeps a model from running a workload."""

from __future__ import annotations

from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.workload import Workload
from costproof.models import settings
from costproof.models.deepseek_ocr.config import OcrConfig
from costproof.models.deepseek_ocr.geometry import sequence_length
from costproof.models.deepseek_ocr.page import Page, page_of
from costproof.models.deepseek_ocr.preprocess import MAX_CROPS, MIN_CROPS


def problems_of(config: OcrConfig, workload: Workload) -> list[CostproofError]:
    """Everything that keeps this model from running this workload."""
    found: list[CostproofError] = []

    page = page_of(workload)
    if page is not None:
        found += page_problems(page, config.sam.stride)
    found += settings.problems(workload, config.text.head_dim, least_text=1 if page is None else 0)
    if found:
        return found
    found += settings.too_long(workload, sequence_length(config, workload), config.text.max_positions)
    window = config.text.sliding_window
    if window is not None and workload.new_tokens > window:
        found.append(
            BadInput(
                "decoding would leave the sliding window of this configuration",
                where="--new-tokens",
                expected=f"at most {window} (sliding_window)",
                got=workload.new_tokens,
                fix="the formulas describe full attention: choose fewer steps, or a longer window in the configuration",
            )
        )
    return found


def page_problems(page: Page, stride: int) -> list[CostproofError]:
    """Everything that is wrong with the geometry of a page for a model with ``stride`` pixels per feature."""
    found: list[CostproofError] = []

    def report(what: str, where: str, expected: object, got: object, fix: str | None = None) -> None:
        found.append(BadInput(what, where=where, expected=expected, got=got, fix=fix))

    # SAM's patches and its two stride-2 convolutions divide each side by the stride; any other
    # size runs too, with cut pixels and rounded maps, but the closed formulas do not describe it.
    sides = [("--base-size", page.base_size)] + ([("--image-size", page.image_size)] if page.grid else [])
    for option, side in sides:
        if side < stride or side % stride:
            report("a view cannot have this size", option, f"a positive multiple of {stride} pixels", side)
    if page.grid is not None:
        columns, rows = page.grid
        if columns < 1 or rows < 1 or not MIN_CROPS <= columns * rows <= MAX_CROPS:
            report(
                "a page cannot be cut into this grid",
                "--grid",
                f"{MIN_CROPS} to {MAX_CROPS} crops",
                f"{columns}x{rows}",
                fix="the real preprocessing makes 2 to 9 crops, or none: choose base for the global view alone",
            )
    return found
