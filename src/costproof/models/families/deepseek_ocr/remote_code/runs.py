"""Runs of the vendor's model: a page, then decode steps through the cache that it returns itself.

The whole run is made once without a tracer. It gives each step the cache that the steps before it
left, says what a traced forward has to return, and how many rows every expert gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.workload import Workload
from costproof.models.decoding.decoder import Decoder
from costproof.models.decoding.runs import computed
from costproof.models.families.deepseek_ocr.config import CHANNELS, OcrConfig
from costproof.models.families.deepseek_ocr.formulas.page import EMPTY_SIDE
from costproof.models.families.deepseek_ocr.marks import images_in
from costproof.models.families.deepseek_ocr.page import page_of, prefill_name, vision_tokens
from costproof.models.families.deepseek_ocr.remote_code.names import PARTS
from costproof.models.families.deepseek_ocr.remote_code.patches import patched, patches_for
from costproof.models.specs import Mark, Run

if TYPE_CHECKING:
    import torch
    from torch import nn


def vision_inputs(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int | tuple[int, ...]]:
    """Images of a forward and crops of each; nothing for a decode step and for empty views."""
    images = kwargs.get("images")
    if images is None or kwargs["input_ids"].shape[1] == 1 or not images[0][1].any():
        return {}
    return images_in([len(c) if bool(c.any()) else 0 for c, _ in images], kwargs["images_spatial_crop"].tolist())


DECODER: Final = Decoder(seen=(Mark("vision_inputs", "model", vision_inputs),))


def page_inputs(config: OcrConfig, workload: Workload, seed: int, device: torch.device) -> dict[str, Any]:
    """Keyword arguments of the prefill, drawn from a seed.

    ``images`` is a list with one pair (crops [c, 3, H, H], global view [1, 3, H, H]). The pixels are
    positive, or zero where the workload has no view: that is what the code's branches ask for.
    """
    import torch

    made = torch.Generator().manual_seed(seed)
    page, dtype = page_of(workload), getattr(torch, workload.dtype)
    vision = vision_tokens(page, config.sam.stride)
    length = vision + workload.text_tokens
    ids = torch.randint(0, min(config.text.vocab, config.image_token), (1, length), generator=made)
    seen = torch.zeros(1, length, dtype=torch.bool)
    seen[:, :vision] = True
    ids[seen] = config.image_token

    def views(count: int, side: int, empty: bool) -> torch.Tensor:
        shape = (count, CHANNELS, side, side)
        drawn = torch.zeros(shape) if empty else torch.rand(shape, generator=made) + 0.1
        return drawn.to(device, dtype)

    if page is None:
        image = (views(1, EMPTY_SIDE, True), views(1, EMPTY_SIDE, True))
    elif page.grid is None:
        image = (views(1, page.base_size, True), views(1, page.base_size, False))
    else:
        image = (views(page.crops, page.image_size, False), views(1, page.base_size, False))
    grid = page.grid if page is not None and page.grid is not None else (1, 1)
    return {
        "input_ids": ids.to(device),
        "images": [image],
        "images_seq_mask": seen.to(device),
        "images_spatial_crop": torch.tensor([list(grid)], dtype=torch.long),
        "use_cache": True,
    }


def real_runs(model: nn.Module, config: OcrConfig, workload: Workload, seed: int) -> tuple[Run, ...]:
    """The prefill and every decode step, each with its inputs, its cache, and what it must return."""

    def step(context: int, result: Any) -> dict[str, Any]:
        return {
            "input_ids": result.logits[:, -1:].argmax(-1),
            "past_key_values": result.past_key_values,
            "use_cache": True,
        }

    prompt = page_inputs(config, workload, seed, next(model.parameters()).device)
    patches = patches_for(model)
    needed = tuple(p for p in patches if p.needed)
    # The towers see the crops first, if there are any.
    name, here = prefill_name(workload), PARTS.locators(*(["crops"] if "grid" in workload.inputs else []), "global")
    return tuple(
        replace(
            run,
            cache_before=run.kwargs.get("past_key_values", ()),
            attention_paths=tuple(f"model.layers.{i}.self_attn" for i in range(config.text.layers)),
            marks=DECODER.marks(),
            around=partial(patched, patches),
            groups=tuple(run.expert_tokens),
            positions=int(run.kwargs["input_ids"].numel()),
        )
        for run in computed(model, workload, prompt, step, here, name, partial(patched, needed))
    )
