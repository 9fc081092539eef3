"""Runs of a model of images and text: a prompt with its images, then decode steps; on shapes or with numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costproof.ledger.workload import Workload
from costproof.models.decoding import runs as decoding
from costproof.models.decoding.build import generator
from costproof.models.image_text.inputs import images_of
from costproof.models.specs import Run

if TYPE_CHECKING:
    import torch
    from torch import nn

    from costproof.models.image_text.base import ImageTextTarget


def runs(target: ImageTextTarget[Any], model: nn.Module, workload: Workload) -> tuple[Run, ...]:
    """The prefill, then the first, the middle and the last decode step; with numbers where the model has them."""
    decoder, count = target.decoder, workload.batch * images_of(workload)
    prompt = decoding.prompt_inputs(workload, decoder, target.length(workload))
    if next(model.parameters()).device.type == "meta":
        pictures = target.pictures(workload, count) if count else {}
        return decoding.shape_runs(model, workload, decoder, {**prompt, **pictures})
    kwargs = decoding.real_prompt(model, workload, decoder, prompt, _ids(target, workload, prompt["input_ids"]))
    if count:
        kwargs |= target.drawn_pictures(model, workload, kwargs)
    return decoding.real_runs(model, workload, decoder, kwargs)


def _ids(target: ImageTextTarget[Any], workload: Workload, shape: torch.Tensor) -> torch.Tensor:
    """Ids [B, S]: the places of each image and a token of text, as far as there is text; any token but an image's."""
    config, count = target.config, target.image_tokens(workload)
    ids = decoding.drawn_ids(config.text.vocab - 1, tuple(shape.shape), target.options.seed)
    ids += ids >= config.image_token
    between = int(workload.text_tokens >= images_of(workload))
    for image in range(images_of(workload)):
        first = image * (count + between)
        ids[:, first : first + count] = config.image_token
    return ids


def drawn(name: str, shape: torch.Tensor, seed: int, device: torch.device) -> torch.Tensor:
    """Normal numbers that depend on the seed and on what they are for."""
    import torch

    return torch.randn(shape.shape, generator=generator(seed, name)).to(device, shape.dtype)
