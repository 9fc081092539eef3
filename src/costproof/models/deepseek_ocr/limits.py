"""What keeps a model from running a workload."""

from __future__ import annotations

from typing import Final

from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.workload import Workload
from costproof.models import flash_attention
from costproof.models.deepseek_ocr.config import OcrConfig
from costproof.models.deepseek_ocr.geometry import sequence_length
from costproof.models.deepseek_ocr.page import Page, page_of
from costproof.models.deepseek_ocr.preprocess import MAX_CROPS, MIN_CROPS

MAX_BATCH: Final = 1024
"""The native class loops over the pages of a batch; above this a mistake is likelier than a wish."""


def problems_of(config: OcrConfig, workload: Workload) -> list[CostproofError]:
    """Everything that keeps this model from running this workload."""
    found: list[CostproofError] = []

    def report(what: str, where: str, expected: object, got: object, fix: str | None = None) -> None:
        found.append(BadInput(what, where=where, expected=expected, got=got, fix=fix))

    page = page_of(workload)
    if page is not None:
        found += page_problems(page, config.sam.stride)
    least_text = 1 if page is None else 0
    if workload.text_tokens < least_text:
        report("too few text tokens", "--text-tokens", f"at least {least_text}", workload.text_tokens)
    if workload.new_tokens < 1:
        report("at least one token must be decoded", "--new-tokens", "at least 1", workload.new_tokens)
    if not 1 <= workload.batch <= MAX_BATCH:
        report("the batch is out of range", "--batch", f"1 to {MAX_BATCH}", workload.batch)
    if workload.attention == flash_attention.FLASH:
        found += flash_attention.problems(workload.dtype, config.text.head_dim)
    if found:
        return found
    length = sequence_length(config, workload)
    if length + workload.new_tokens > config.text.max_positions:
        report(
            "the run is longer than the model's context",
            "--text-tokens, --seq-len, --new-tokens",
            f"at most {config.text.max_positions} tokens",
            f"{length} in the prompt + {workload.new_tokens} new = {length + workload.new_tokens}",
        )
    window = config.text.sliding_window
    if window is not None and workload.new_tokens > window:
        report(
            "decoding would leave the sliding window of this configuration",
            "--new-tokens",
            f"at most {window} (sliding_window)",
            workload.new_tokens,
            fix="the formulas describe full attention: choose fewer steps, or a longer window in the configuration",
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
