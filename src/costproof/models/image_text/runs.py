"""Runs of a model of images and text: a prompt with its images, then decode steps; on shapes or with numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costproof.ledger.workload import Workload
from costproof.models.decoding import runs as decoding
from costproof.models.decoding.decoder import on_meta
from costproof.models.decoding.weights import generator
from costproof.models.image_text.inputs import images_of
from costproof.models.jobs import Run

if TYPE_CHECKING:
    from torch import nn

    from costproof.models.image_text.base import ImageTextTarget


def runs(target: ImageTextTarget[Any], model: nn.Module, workload: Workload) -> tuple[Run, ...]:
    """The prefill, then the first, the middle and the last decode step; with numbers where the model has them."""
    decoder = target.decoder
    prompt = _shapes(target, workload)
    if next(model.parameters()).device.type == "meta":
        return decoding.shape_runs(model, workload, decoder, prompt)
    return decoding.real_runs(model, workload, decoder, _real(target, model, workload, prompt))


def _shapes(target: ImageTextTarget[Any], workload: Workload) -> dict[str, Any]:
    """Keyword arguments of the prefill on meta: ids [B, S], pixels [n, C, H, H]."""
    kwargs = decoding.prompt_inputs(workload, target.decoder, target.length(workload))
    vision, count = target.config.vision, workload.batch * images_of(workload)
    if count:
        kwargs["pixel_values"] = on_meta(workload, count, vision.channels, vision.image, vision.image)
    return kwargs


def _real(target: ImageTextTarget[Any], model: nn.Module, workload: Workload, shapes: dict[str, Any]) -> dict[str, Any]:
    """The same with numbers: the places of images first, then text; everything else seeded."""
    import torch

    config, seed = target.config, target.options.seed
    ids = decoding.drawn_ids(config.text.vocab - 1, shapes["input_ids"].shape, seed)
    ids += ids >= config.image_token  # every token but that of an image
    ids[:, : images_of(workload) * config.image_tokens] = config.image_token
    kwargs = decoding.real_prompt(model, workload, target.decoder, shapes, ids)
    if "pixel_values" in shapes:
        pixels = shapes["pixel_values"]
        drawn = torch.randn(pixels.shape, generator=generator(seed, "pixel_values"))
        kwargs["pixel_values"] = drawn.to(kwargs["input_ids"].device, pixels.dtype)
    return kwargs
