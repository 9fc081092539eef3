"""The published DeepSeek-OCR in numbers, and a short way to evaluate its formulas."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.node import Ledger
from costproof.models.families.deepseek_ocr.formulas import ocr_ledger
from costproof.models.pages.formulas import PageStructure, View

CONFIG = {
    "in_channels": 3,
    "sam_hidden": 768, "sam_heads": 12, "sam_head_dim": 64, "sam_mlp": 3072, "sam_layers": 12, "sam_window": 14,
    "sam_patch": 16, "sam_image": 1024, "sam_out": 256, "sam_down1": 512, "sam_down2": 1024,
    "clip_hidden": 1024, "clip_heads": 16, "clip_head_dim": 64, "clip_mlp": 4096, "clip_layers": 24,
    "clip_positions": 257,
    "text_hidden": 1280, "text_heads": 10, "text_kv_heads": 10, "text_head_dim": 128, "text_intermediate": 6848,
    "text_layers": 12, "text_dense": 1, "text_experts": 64, "text_topk": 6, "text_moe": 896, "text_shared": 2,
    "text_vocab": 129280,
}  # fmt: skip


def counted(
    structure: PageStructure,
    *,
    base: int = 1024,
    crop: int = 640,
    grid: tuple[int, int] = (2, 2),
    batch: int = 1,
    prompt: int = 1000,
    steps: int = 1,
    item_bytes: int = 2,
    context: int | None = None,
    config: dict[str, int] = CONFIG,
) -> Ledger:
    """The formulas at one workload; a prompt without a page needs no more than ``prompt``."""
    common = {"B": batch, "b": item_bytes}
    values = {
        ("prefill", "prompt"): {
            **common, "S": prompt, "H_g": base, "H_c": crop, "grid_w": grid[0], "grid_h": grid[1],
        },
        ("decode", "steps"): {**common, "P": prompt if context is None else context, "N": steps},
    }  # fmt: skip
    for stage in ("sam", "clip", "projector"):
        values[stage, "global"] = {**common, "n": batch, "H": base}
        values[stage, "crops"] = {**common, "n": batch * grid[0] * grid[1], "H": crop}
    return evaluate_ledger(_formulas(structure), values, config)


@lru_cache(maxsize=64)
def _formulas(structure: PageStructure) -> Ledger:
    return ocr_ledger(structure)


def view(invocation: str, side: int) -> View:
    """A view of the published model, whose tables are both made for 1024 pixels: 64² patches, 16² features."""
    return View(invocation, sam_resampled=side != 1024, clip_resampled=side != 1024)


def page(base: int, crop: int | None = None, **changes: object) -> PageStructure:
    """The published structure with a page."""
    views = (view("global", base),) + ((view("crops", crop),) if crop else ())
    return replace(PageStructure(views=views), **changes)  # type: ignore[arg-type]
