"""Runs of a native model that holds numbers: a page, then decode steps through the model's own cache.

Before anything is traced the whole run is made once without a tracer. It gives each step the cache
that the steps before it left, says what a traced run has to return, and how many rows every expert gets.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.workload import Workload
from costproof.models.deepseek_ocr import native
from costproof.models.deepseek_ocr.marks import NATIVE
from costproof.models.deepseek_ocr.page import page_of, vision_tokens
from costproof.models.deepseek_ocr.weights import generator
from costproof.models.target import Run

if TYPE_CHECKING:
    import torch
    from torch import nn

STEP_LIMIT: Final = 8
"""Decode steps that are all traced; of more, the first, the middle and the last."""


def runs(model: nn.Module, workload: Workload, seed: int) -> tuple[Run, ...]:
    """The prefill and the traced decode steps, each with its inputs, its cache, and what it must return."""
    import torch

    paths = native.attention_paths(model)
    length = native.prompt_length(model, workload)
    kwargs = page_inputs(model, workload, seed)
    wanted = traced_steps(workload)
    with torch.no_grad():
        with expert_rows(model) as rows:
            result = model(**copy.deepcopy(kwargs))
        kind = "page" if workload.inputs else "prompt"
        found = [
            Run(
                kind, model, kwargs, native.locate_page, attention_paths=paths,
                expected=result.logits, expert_tokens=dict(rows),
            )
        ]  # fmt: skip
        cache = result.past_key_values
        for i in range(workload.new_tokens):
            step = {
                "input_ids": result.logits[:, -1:].argmax(-1),
                "attention_mask": masks(model, workload, 1, length + i + 1),
                "past_key_values": cache,
                "use_cache": True,
            }
            # A step changes the cache that it gets; what is traced later needs it as it was before.
            kept = {**step, "past_key_values": copy.deepcopy(cache)} if i in wanted else None
            with expert_rows(model) as rows:
                result = model(**step)
            if kept is not None:
                found.append(
                    Run(
                        f"step@{length + i}", model, kept, native.locate_step, length + i, attention_paths=paths,
                        expected=result.logits, expert_tokens=dict(rows),
                    )
                )  # fmt: skip
            cache = result.past_key_values
    return tuple(replace(run, marks=NATIVE) for run in found)


def traced_steps(workload: Workload) -> frozenset[int]:
    """Which of the decode steps are traced; looped experts are called as the data wants, so then all of them."""
    count = workload.new_tokens
    if count <= STEP_LIMIT or workload.experts == "eager":
        return frozenset(range(count))
    return frozenset({0, (count - 1) // 2, count - 1})


def page_inputs(model: nn.Module, workload: Workload, seed: int) -> dict[str, Any]:
    """As :func:`native.page_inputs`, with numbers: image tokens first, then text; everything else seeded."""
    import torch

    device = next(model.parameters()).device
    shapes = native.page_inputs(model, workload)
    config = native.config_of(model)
    image: int = config.image_token_id
    ids = torch.randint(
        0, config.text_config.vocab_size - 1, shapes["input_ids"].shape, generator=generator(seed, "input_ids")
    )
    ids += ids >= image  # every token but the image token
    ids[:, : vision_tokens(page_of(workload), native.stride(model))] = image
    length = ids.shape[1]
    kwargs: dict[str, Any] = {**shapes, "input_ids": ids.to(device)}
    kwargs["attention_mask"] = masks(model, workload, length, length)
    for name in ("pixel_values", "pixel_values_local"):
        if name in shapes:
            drawn = torch.randn(shapes[name].shape, generator=generator(seed, name))
            kwargs[name] = drawn.to(device, shapes[name].dtype)
    return kwargs


def masks(model: nn.Module, workload: Workload, queries: int, keys: int) -> dict[str, Any]:
    """As :func:`native.masks`, with numbers: 0 where a query may look, the least number of the dtype elsewhere."""
    import torch

    shape = native.masks(workload, workload.batch, queries, keys)["full_attention"]
    if shape is None:
        return native.mask_mapping(None)
    mask = torch.full(shape.shape, torch.finfo(shape.dtype).min, dtype=shape.dtype)
    return native.mask_mapping(mask.triu(keys - queries + 1).to(next(model.parameters()).device))


@contextmanager
def expert_rows(model: nn.Module) -> Iterator[dict[str, tuple[int, ...]]]:
    """Counts, while it is open, the rows that each expert of each mixture receives."""
    found: dict[str, tuple[int, ...]] = {}
    handles = []

    def watch(path: str, count: int) -> Any:
        def hook(module: nn.Module, args: Sequence[Any]) -> None:
            chosen: torch.Tensor = args[1]
            rows = chosen.detach().flatten().bincount(minlength=count).tolist()
            found[path] = tuple(a + b for a, b in zip(rows, found.get(path, (0,) * count), strict=True))

        return hook

    try:
        for path, module in model.named_modules():
            if path.endswith(".mlp.experts"):
                count: Any = module.num_experts
                handles.append(module.register_forward_pre_hook(watch(path, int(count))))
        yield found
    finally:
        for handle in handles:
            handle.remove()
