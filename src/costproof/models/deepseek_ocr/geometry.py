"""Tokens and invocations of a workload: what each stage is called with, and on which shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costproof.ledger.workload import DTYPE_BYTES, Invocation, Page, TensorSpec, Workload
from costproof.models.deepseek_ocr.config import CHANNELS, OcrConfig

if TYPE_CHECKING:
    from costproof.models.deepseek_ocr.formulas.structure import Structure

STAGES = ("sam", "clip", "projector", "prefill", "decode")
IMAGE_STAGES = STAGES[:3]


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


def sequence_length(config: OcrConfig, workload: Workload) -> int:
    """Tokens of the prompt per sequence: vision and text."""
    return vision_tokens(workload.page, config.sam.stride) + workload.text_tokens


def invocations(config: OcrConfig, workload: Workload) -> tuple[Invocation, ...]:
    """The calls of the stages in one run, in order of execution, with the values of their symbols.

    Symbols. All: B sequences, b bytes per element. Towers and projector: n views, H pixels per side.
    Prefill: S prompt tokens, V vision tokens among them, L positions that lm_head maps, and with a
    page H_g, with crops H_c, grid_w, grid_h. Decode: P tokens in the cache before the first step, N steps.
    """
    page, batch = workload.page, workload.batch
    found: list[Invocation] = []
    for name, count, side in views(workload):
        found += _towers(config, workload, name, count, side)
    length = sequence_length(config, workload)
    common = {"B": batch, "b": DTYPE_BYTES[workload.dtype]}
    prompt = {
        **common,
        "S": length,
        "V": vision_tokens(page, config.sam.stride),
        "L": length if workload.logits == "all" else 1,
    }
    inputs = [TensorSpec((batch, length), "int64")]
    if page is not None:
        prompt["H_g"] = page.base_size
        inputs.append(_features(config, workload, batch, page.base_size))
        if page.grid is not None:
            prompt |= {"H_c": page.image_size, "grid_w": page.grid[0], "grid_h": page.grid[1]}
            inputs.append(_features(config, workload, batch * page.crops, page.image_size))
    found.append(Invocation("prefill", "prompt", 1, prompt, tuple(inputs)))
    steps = {**common, "P": length, "N": workload.new_tokens}
    step_input = (TensorSpec((batch, 1), "int64"),)
    found.append(Invocation("decode", "steps", workload.new_tokens, steps, step_input))
    return tuple(found)


def views(workload: Workload) -> list[tuple[str, int, int]]:
    """Invocation, number and side in pixels of the views: the global one first, as the model calls them."""
    page = workload.page
    if page is None:
        return []
    found = [("global", workload.batch, page.base_size)]
    if page.grid is not None:
        found.append(("crops", workload.batch * page.crops, page.image_size))
    return found


def structure(config: OcrConfig, workload: Workload) -> Structure:
    """What must be concrete before the formulas of this run can be written down.

    A position table is resampled when it was trained for another grid than the view's
    (``interpolate_pos_encoding`` of both towers).
    """
    from costproof.models.deepseek_ocr.formulas.structure import Structure, View

    sam, clip, text = config.sam, config.clip, config.text
    return Structure(
        views=tuple(
            View(
                invocation=name,
                sam_resampled=side // sam.patch != sam.image // sam.patch,
                clip_resampled=side // sam.stride != clip.image // clip.patch,
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
    )


def _features(config: OcrConfig, workload: Workload, count: int, side: int) -> TensorSpec:
    per_side = side // config.sam.stride
    return TensorSpec((count, per_side * per_side, config.text.hidden), workload.dtype)


def _towers(config: OcrConfig, workload: Workload, name: str, count: int, side: int) -> list[Invocation]:
    """One view through SAM, CLIP and the projector."""
    per_side = side // config.sam.stride
    symbols = {"B": workload.batch, "b": DTYPE_BYTES[workload.dtype], "n": count, "H": side}
    shapes = {
        "sam": (count, CHANNELS, side, side),
        "clip": (count, config.sam.downsample[1], per_side, per_side),
        "projector": (count, per_side * per_side, config.projector_in),
    }
    return [
        Invocation(stage, name, 1, dict(symbols), (TensorSpec(shapes[stage], workload.dtype),))
        for stage in IMAGE_STAGES
    ]
