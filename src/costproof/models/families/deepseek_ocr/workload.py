"""Workloads of DeepSeek-OCR: the modes of the paper, its vision tokens, and the invocations of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from costproof.ledger.errors import CostproofError
from costproof.ledger.workload import FLOAT_BYTES, Invocation, TensorSpec, Workload
from costproof.models.decoding import names
from costproof.models.families.deepseek_ocr.config import OcrConfig
from costproof.models.pages.formulas import PageStructure, View
from costproof.models.pages.page import Page, page_of, views
from costproof.models.pages.workload import (
    PAGE_SETTINGS,
    PageModes,
    PagePreset,
    ReadsPages,
    page_run_problems,
    preset_workload,
)
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


MODES: Final = PageModes(PRESETS, DEFAULT_PRESET, PAGE_SETTINGS, vision_tokens, "base")


def make_workload(preset: str = DEFAULT_PRESET, *, config: ReadsPages | None = None, **settings: Any) -> Workload:
    """Return a preset with changed settings, as :func:`~costproof.models.pages.workload.preset_workload`.

    Args:
        config: the model that will run it (default: the published DeepSeek-OCR).
    """
    return preset_workload(preset, config=config or OcrConfig(), modes=MODES, **settings)


def problems_of(config: ReadsPages, workload: Workload) -> list[CostproofError]:
    """Return an error for each reason why the model cannot run the workload."""
    return page_run_problems(config, workload, MODES)


def sequence_length(config: OcrConfig, workload: Workload) -> int:
    """Return the length of the prompt in tokens: vision and text."""
    return vision_tokens(page_of(workload), config.sam.stride) + workload.text_tokens


def invocations(config: OcrConfig, workload: Workload) -> tuple[Invocation, ...]:
    """Return the invocations of the stages in one run, in order of execution, with the values of their symbols.

    Symbols. All: B sequences, b bytes per element. Towers and projector: n views, H pixels per side.
    Prefill: S prompt tokens, V vision tokens among them, L positions that lm_head maps, and with a
    page H_g, with crops H_c, grid_w, grid_h. Decode: P tokens in the cache before the first step, N steps.
    """
    page, stride = page_of(workload), config.sam.stride
    found = [call for view in views(workload) for call in _towers(config, workload, *view)]
    length = sequence_length(config, workload)
    prefill, *steps = names.invocations(replace(workload, text_tokens=length))
    symbols = {**prefill.symbols, "V": vision_tokens(page, stride)}
    if page is not None:
        symbols["H_g"] = page.base_size
        if page.grid is not None:
            symbols |= {"H_c": page.image_size, "grid_w": page.grid[0], "grid_h": page.grid[1]}
    features = (
        TensorSpec((count, (side // stride) ** 2, config.text.hidden), workload.dtype)
        for _, count, side in views(workload)
    )
    return (*found, replace(prefill, symbols=symbols, inputs=(*prefill.inputs, *features)), *steps)


def structure(config: OcrConfig, workload: Workload, *, remote: bool = False) -> PageStructure:
    """Return the concrete structure that the formulas of this run depend on.

    A position table is resampled when it was trained for another grid than the view's
    (``interpolate_pos_encoding`` of both towers).

    Args:
        remote: whether the vendor's code runs.
    """
    sam, clip, text = config.sam, config.clip, config.text
    return PageStructure(
        views=tuple(
            View(
                invocation=name,
                sam_resampled=side // sam.patch != sam.image // sam.patch,
                clip_resampled=side // sam.stride != clip.image // clip.patch,
                sam_padded=side // sam.patch % sam.window != 0,
            )
            for name, _, side in views(workload)
        ),
        sam_layers=sam.layers,
        sam_global_layers=sam.global_layers,
        clip_layers=clip.layers,
        text_layers=text.layers,
        text_dense=text.dense_layers,
        attention=workload.attention,
        logits=workload.logits,
        experts=workload.experts,
        decode=workload.new_tokens > 0,
        remote=remote,
    )


def _towers(config: OcrConfig, workload: Workload, name: str, count: int, side: int) -> list[Invocation]:
    """Return the invocations of SAM, CLIP and the projector on the views of one call."""
    per_side = side // config.sam.stride
    symbols = {"B": workload.batch, "b": FLOAT_BYTES[workload.dtype], "n": count, "H": side}
    shapes = {
        "sam": (count, config.sam.channels, side, side),
        "clip": (count, config.sam.downsample[1], per_side, per_side),
        "projector": (count, per_side * per_side, config.projector_in),
    }
    return [
        Invocation(stage, name, 1, dict(symbols), (TensorSpec(shapes[stage], workload.dtype),))
        for stage in IMAGE_STAGES
    ]
