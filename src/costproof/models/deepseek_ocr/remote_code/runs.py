"""Runs of the vendor's model: a page, then decode steps through the cache that it returns itself.

The whole run is made once without a tracer. It gives each step the cache that the steps before it
left, says what a traced forward has to return, and how many rows every expert gets.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.workload import Workload
from costproof.models.deepseek_ocr.config import CHANNELS, OcrConfig
from costproof.models.deepseek_ocr.formulas.page import EMPTY_SIDE
from costproof.models.deepseek_ocr.marks import images_in
from costproof.models.deepseek_ocr.page import page_of, vision_tokens
from costproof.models.deepseek_ocr.remote_code.names import stage_of
from costproof.models.deepseek_ocr.remote_code.patches import around, patched, patches_for
from costproof.models.target import Mark, Run

if TYPE_CHECKING:
    import torch
    from torch import nn


def vision_inputs(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int | tuple[int, ...]]:
    """Images of a forward and crops of each; nothing for a decode step and for empty views."""
    images = kwargs.get("images")
    if images is None or kwargs["input_ids"].shape[1] == 1 or not images[0][1].any():
        return {}
    return images_in([len(c) if bool(c.any()) else 0 for c, _ in images], kwargs["images_spatial_crop"].tolist())


def llm_stack(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """Layers of the decoder, and the positions that pass them."""
    return {"layers": len(module.layers), "positions": int(kwargs["input_ids"].shape[1])}


MARKS: Final = (Mark("vision_inputs", "model", vision_inputs), Mark("llm_stack", "model", llm_stack))


@dataclass(frozen=True, slots=True)
class Locate:
    """(module path, call) -> (stage, invocation). The towers see the crops first, if there are any."""

    crops: bool
    step: bool = False

    def __call__(self, path: str, call: int) -> tuple[str, str]:
        if self.step:
            return stage_of(path, "decode"), "steps"
        stage = stage_of(path)
        if stage == "prefill":
            return stage, "prompt"
        return stage, "crops" if self.crops and call == 1 else "global"


def places(workload: Workload) -> tuple[Locate, Locate]:
    """How modules are located in the prefill and in a decode step."""
    crops = "grid" in workload.inputs
    return Locate(crops), Locate(crops, step=True)


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
    import torch

    parameter = next(model.parameters())
    locate_page, locate_step = places(workload)
    paths = tuple(f"model.layers.{i}.self_attn" for i in range(config.text.layers))
    groups = tuple(f"model.layers.{i}.mlp.experts" for i in range(config.text.dense_layers, config.text.layers))
    kwargs = page_inputs(config, workload, seed, parameter.device)
    length = int(kwargs["input_ids"].shape[1])
    found: list[Run] = []
    needed = tuple(p for p in patches_for(model) if p.needed)
    for i in range(workload.new_tokens + 1):
        with torch.no_grad(), patched(needed), expert_rows(model, groups) as rows:
            result = model(**copy.deepcopy(kwargs))
        kind = "page" if workload.inputs else "prompt"
        found.append(
            Run(
                id=f"step@{length + i - 1}" if i else kind,
                model=model,
                kwargs=kwargs,
                locate=locate_step if i else locate_page,
                context=length + i - 1 if i else None,
                cache_before=kwargs.get("past_key_values", ()),
                attention_paths=paths,
                expected=result.logits,
                expert_tokens=dict(rows),
                marks=MARKS,
                around=around(model),
                groups=groups,
                positions=int(kwargs["input_ids"].numel()),
            )
        )
        kwargs = {
            "input_ids": result.logits[:, -1:].argmax(-1),
            "past_key_values": result.past_key_values,
            "use_cache": True,
        }
    return tuple(found)


@contextmanager
def expert_rows(model: nn.Module, groups: tuple[str, ...]) -> Iterator[dict[str, tuple[int, ...]]]:
    """Counts, while it is open, the rows that each expert of each mixture receives."""
    counts = {g: [0] * sum(1 for _ in model.get_submodule(g).children()) for g in groups}
    found: dict[str, tuple[int, ...]] = {}
    handles = []

    def watch(group: str, number: int) -> Any:
        def hook(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            counts[group][number] += int(args[0].shape[0])

        return hook

    try:
        for group in groups:
            for number, expert in enumerate(model.get_submodule(group).children()):
                handles.append(expert.register_forward_pre_hook(watch(group, number)))
        yield found
        found.update({g: tuple(c) for g, c in counts.items()})
    finally:
        for handle in handles:
            handle.remove()
