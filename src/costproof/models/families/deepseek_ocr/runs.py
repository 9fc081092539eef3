"""Runs of a native model that reads pages: a page, or text alone, then decode steps; on shapes or with numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.workload import Workload
from costproof.models.decoding import runs as decoding
from costproof.models.decoding.build import generator
from costproof.models.decoding.decoder import Decoder, config_of, on_meta, text_config
from costproof.models.families.deepseek_ocr.build import DECODER, stride
from costproof.models.families.deepseek_ocr.page import Page, page_of, prefill_name, vision_tokens
from costproof.models.specs import Run

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Reader:
    """How a class of transformers takes pages."""

    decoder: Decoder
    tokens: Callable[[Page | None, int], int]
    """(page, pixels per feature along a side) -> vision tokens per sequence."""
    grids: bool = True
    """Whether it is told how the crops lie."""

    def length(self, model: nn.Module, workload: Workload) -> int:
        """Tokens of one sequence in the prefill: vision and text."""
        return self.tokens(page_of(workload), stride(model)) + workload.text_tokens


READER: Final = Reader(DECODER, vision_tokens)
"""DeepSeek-OCR's."""


def shape_runs(model: nn.Module, workload: Workload, reader: Reader = READER) -> tuple[Run, ...]:
    """The prefill, then the first, the middle and the last decode step, on meta."""
    inputs = page_inputs(model, workload, reader)
    return decoding.shape_runs(model, workload, reader.decoder, inputs, prefill_name(workload))


def real_runs(model: nn.Module, workload: Workload, seed: int, reader: Reader = READER) -> tuple[Run, ...]:
    """The prefill and the traced decode steps of a model that holds numbers."""
    inputs = real_inputs(model, workload, seed, reader)
    return decoding.real_runs(model, workload, reader.decoder, inputs, prefill_name(workload))


def page_inputs(model: nn.Module, workload: Workload, reader: Reader = READER) -> dict[str, Any]:
    """Keyword arguments of the prefill on meta: ids [B, S], global views [B, C, H, H], crops [B*c, C, H, H]."""
    batch = workload.batch
    kwargs = decoding.prompt_inputs(workload, reader.decoder, reader.length(model, workload))
    page = page_of(workload)
    if page is not None:
        channels = config_of(model).vision_config.sam_config.num_channels
        kwargs["pixel_values"] = on_meta(workload, batch, channels, page.base_size, page.base_size)
        if page.grid:
            kwargs["pixel_values_local"] = on_meta(
                workload, batch * page.crops, channels, page.image_size, page.image_size
            )
            kwargs["num_local_patches"] = [page.crops] * batch
            kwargs |= {"patches_grid": [list(page.grid)] * batch} if reader.grids else {}
    return kwargs


def real_inputs(model: nn.Module, workload: Workload, seed: int, reader: Reader = READER) -> dict[str, Any]:
    """As :func:`page_inputs`, with numbers: image tokens first, then text; everything else seeded."""
    import torch

    shapes = page_inputs(model, workload, reader)
    image: int = config_of(model).image_token_id
    ids = torch.randint(
        0, text_config(model).vocab_size - 1, shapes["input_ids"].shape, generator=generator(seed, "input_ids")
    )
    ids += ids >= image  # every token but the image token
    ids[:, : reader.tokens(page_of(workload), stride(model))] = image
    kwargs = decoding.real_prompt(model, workload, reader.decoder, shapes, ids)
    for name in ("pixel_values", "pixel_values_local"):
        if name in shapes:
            drawn = torch.randn(shapes[name].shape, generator=generator(seed, name))
            kwargs[name] = drawn.to(kwargs["input_ids"].device, shapes[name].dtype)
    return kwargs
