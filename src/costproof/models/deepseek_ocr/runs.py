"""Runs of the native model: a page, or text alone, then decode steps; on shapes or with numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costproof.ledger.workload import Workload
from costproof.models.decoding import runs as decoding
from costproof.models.decoding.decoder import config_of, on_meta, text_config
from costproof.models.decoding.weights import generator
from costproof.models.deepseek_ocr.build import DECODER, prompt_length, stride
from costproof.models.deepseek_ocr.page import page_of, prefill_name, vision_tokens
from costproof.models.jobs import Run

if TYPE_CHECKING:
    from torch import nn


def shape_runs(model: nn.Module, workload: Workload) -> tuple[Run, ...]:
    """The prefill, then the first, the middle and the last decode step, on meta."""
    return decoding.shape_runs(model, workload, DECODER, page_inputs(model, workload), prefill_name(workload))


def real_runs(model: nn.Module, workload: Workload, seed: int) -> tuple[Run, ...]:
    """The prefill and the traced decode steps of a model that holds numbers."""
    return decoding.real_runs(model, workload, DECODER, real_inputs(model, workload, seed), prefill_name(workload))


def page_inputs(model: nn.Module, workload: Workload) -> dict[str, Any]:
    """Keyword arguments of the prefill on meta: ids [B, S], global views [B, C, H, H], crops [B*c, C, H, H]."""
    batch = workload.batch
    kwargs = decoding.prompt_inputs(workload, DECODER, prompt_length(model, workload))
    page = page_of(workload)
    if page is not None:
        channels = config_of(model).vision_config.sam_config.num_channels
        kwargs["pixel_values"] = on_meta(workload, batch, channels, page.base_size, page.base_size)
        if page.grid:
            kwargs["pixel_values_local"] = on_meta(
                workload, batch * page.crops, channels, page.image_size, page.image_size
            )
            kwargs["num_local_patches"] = [page.crops] * batch
            kwargs["patches_grid"] = [list(page.grid)] * batch
    return kwargs


def real_inputs(model: nn.Module, workload: Workload, seed: int) -> dict[str, Any]:
    """As :func:`page_inputs`, with numbers: image tokens first, then text; everything else seeded."""
    import torch

    shapes = page_inputs(model, workload)
    image: int = config_of(model).image_token_id
    ids = torch.randint(
        0, text_config(model).vocab_size - 1, shapes["input_ids"].shape, generator=generator(seed, "input_ids")
    )
    ids += ids >= image  # every token but the image token
    ids[:, : vision_tokens(page_of(workload), stride(model))] = image
    kwargs = decoding.real_prompt(model, workload, DECODER, shapes, ids)
    for name in ("pixel_values", "pixel_values_local"):
        if name in shapes:
            drawn = torch.randn(shapes[name].shape, generator=generator(seed, name))
            kwargs[name] = drawn.to(kwargs["input_ids"].device, shapes[name].dtype)
    return kwargs
