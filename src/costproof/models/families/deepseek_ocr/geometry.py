"""Tokens and invocations of a workload: what each stage is called with, and on which shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from costproof.ledger.workload import FLOAT_BYTES, Invocation, TensorSpec, Workload
from costproof.models.decoding import names
from costproof.models.families.deepseek_ocr.config import OcrConfig
from costproof.models.families.deepseek_ocr.page import IMAGE_STAGES, page_of, views, vision_tokens

if TYPE_CHECKING:
    from costproof.models.families.deepseek_ocr.formulas.structure import Structure


def sequence_length(config: OcrConfig, workload: Workload) -> int:
    """Tokens of the prompt per sequence: vision and text."""
    return vision_tokens(page_of(workload), config.sam.stride) + workload.text_tokens


def invocations(config: OcrConfig, workload: Workload) -> tuple[Invocation, ...]:
    """The calls of the stages in one run, in order of execution, with the values of their symbols.

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


def structure(config: OcrConfig, workload: Workload, *, remote: bool = False) -> Structure:
    """What must be concrete before the formulas of this run can be written down.

    A position table is resampled when it was trained for another grid than the view's
    (``interpolate_pos_encoding`` of both towers).

    Args:
        remote: whether the vendor's code runs.
    """
    from costproof.models.families.deepseek_ocr.formulas.structure import Structure, View

    sam, clip, text = config.sam, config.clip, config.text
    return Structure(
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
    """One view through SAM, CLIP and the projector."""
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
