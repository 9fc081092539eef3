"""Runs of a whole model: the prefill, then decode steps; on shapes, or with numbers through the model's own cache.

With numbers the whole run is made once without a tracer before anything is traced. It gives each step the cache
that the steps before it left, says what a traced run has to return, and how many rows every expert gets.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.workload import Workload
from costproof.models.decoding.decoder import Decoder, ids_on_meta
from costproof.models.decoding.exports import contexts
from costproof.models.target import Mark, Run

if TYPE_CHECKING:
    import torch
    from torch import nn

STEP_LIMIT: Final = 8
"""Decode steps that are all traced; of more, the first, the middle and the last."""

Locate = Callable[[str, int], tuple[str, str]]


def locate_prompt(path: str, call: int) -> tuple[str, str]:
    """Stage and invocation of a module of a model that is all decoder, in the prefill."""
    return "prefill", "prompt"


def locate_step(path: str, call: int) -> tuple[str, str]:
    """Stage and invocation of a module of a model that is all decoder, in a decode step."""
    return "decode", "steps"


def prompt_inputs(workload: Workload, decoder: Decoder, length: int) -> dict[str, Any]:
    """Keyword arguments of the prefill on meta: ids [B, S]."""
    return {
        "input_ids": ids_on_meta(workload.batch, length),
        "attention_mask": decoder.mask(decoder.empty_mask(workload, length, length)),
        "use_cache": True,
        "logits_to_keep": int(workload.logits == "last"),
    }


def step_inputs(model: nn.Module, workload: Workload, decoder: Decoder, context: int) -> dict[str, Any]:
    """Keyword arguments of one decode step on meta with ``context`` tokens in the cache."""
    return {
        "input_ids": ids_on_meta(workload.batch, 1),
        "attention_mask": decoder.mask(decoder.empty_mask(workload, 1, context + 1)),
        "past_key_values": decoder.filled_cache(model, decoder.past(model, workload, workload.batch, context)),
        "use_cache": True,
    }


def shape_runs(
    model: nn.Module,
    workload: Workload,
    decoder: Decoder,
    prompt: Mapping[str, Any],
    *,
    name: str = "prompt",
    places: tuple[Locate, Locate] = (locate_prompt, locate_step),
    marks: Sequence[Mark] = (),
) -> tuple[Run, ...]:
    """The prefill, then the first, the middle and the last decode step.

    Args:
        prompt: keyword arguments of the prefill.
        name: of the run of the prefill.
        places: where modules are located in the prefill and in a step.
    """
    result = [Run(name, model, prompt, places[0])]
    for context in contexts(workload, prompt["input_ids"].shape[1]):
        kwargs = step_inputs(model, workload, decoder, context)
        before = [(keys, values) for keys, values in decoder.cache_tensors(kwargs["past_key_values"])]
        result.append(Run(f"step@{context}", model, kwargs, places[1], context, before))
    paths = decoder.attention_paths(model)
    return tuple(replace(run, attention_paths=paths, marks=(*marks, decoder.mark())) for run in result)


def real_runs(
    model: nn.Module,
    workload: Workload,
    decoder: Decoder,
    prompt: Mapping[str, Any],
    *,
    name: str = "prompt",
    places: tuple[Locate, Locate] = (locate_prompt, locate_step),
    marks: Sequence[Mark] = (),
) -> tuple[Run, ...]:
    """The prefill and the traced decode steps, each with its inputs, its cache, and what it must return.

    Args:
        prompt, name, places: as for :func:`shape_runs`.
    """
    import torch

    length = int(prompt["input_ids"].shape[1])
    wanted = traced_steps(workload)
    with torch.no_grad():
        with expert_rows(model) as rows:
            result = model(**copy.deepcopy(dict(prompt)))
        found = [Run(name, model, prompt, places[0], expected=result.logits, expert_tokens=dict(rows))]
        cache = result.past_key_values
        for i in range(workload.new_tokens):
            step = {
                "input_ids": result.logits[:, -1:].argmax(-1),
                "attention_mask": decoder.mask(real_mask(model, workload, decoder, 1, length + i + 1)),
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
                        f"step@{length + i}", model, kept, places[1], length + i,
                        expected=result.logits, expert_tokens=dict(rows),
                    )
                )  # fmt: skip
            cache = result.past_key_values
    paths = decoder.attention_paths(model)
    return tuple(replace(run, attention_paths=paths, marks=(*marks, decoder.mark())) for run in found)


def real_prompt(
    model: nn.Module, workload: Workload, decoder: Decoder, shapes: Mapping[str, Any], ids: torch.Tensor
) -> dict[str, Any]:
    """Keyword arguments of a prefill with numbers: ``shapes`` with the given ids and a mask."""
    length = ids.shape[1]
    mask = decoder.mask(real_mask(model, workload, decoder, length, length))
    return {**shapes, "input_ids": ids.to(next(model.parameters()).device), "attention_mask": mask}


def drawn_ids(vocab: int, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Ids [B, S] that depend on the seed alone."""
    import torch

    from costproof.models.decoding.weights import generator

    return torch.randint(0, vocab, shape, generator=generator(seed, "input_ids"))


def real_mask(model: nn.Module, workload: Workload, decoder: Decoder, queries: int, keys: int) -> torch.Tensor | None:
    """As :meth:`Decoder.empty_mask`, with numbers: 0 where a query may look, the dtype's least number elsewhere."""
    import torch

    shape = decoder.empty_mask(workload, queries, keys)
    if shape is None:
        return None
    mask = torch.full(shape.shape, torch.finfo(shape.dtype).min, dtype=shape.dtype)
    return mask.triu(keys - queries + 1).to(next(model.parameters()).device)


def traced_steps(workload: Workload) -> frozenset[int]:
    """Which of the decode steps are traced; looped experts are called as the data wants, so then all of them."""
    count = workload.new_tokens
    if count <= STEP_LIMIT or workload.experts == "eager":
        return frozenset(range(count))
    return frozenset({0, (count - 1) // 2, count - 1})


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
