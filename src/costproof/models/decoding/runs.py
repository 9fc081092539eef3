"""Run a whole decoder, prefill and decode steps, on the meta device or with real weights.

With weights, the whole run is made once without a tracer. It provides the cache before each step, the output that a
traced run must reproduce, and the number of rows that each expert gets.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.workload import ROWS_INVOCATION, BatchRow, Workload, sampled_steps
from costproof.models.decoding.decoder import Decoder, Locate, Masks, Past, ids_on_meta, on_meta
from costproof.models.decoding.exports import contexts, packed_inputs
from costproof.models.specs import Run

if TYPE_CHECKING:
    import torch
    from torch import nn

    from costproof.models.decoding.modules import RowsCache

STEP_LIMIT: Final = 8
"""Number of decode steps up to which all are traced; of more steps, only the first, middle and last are."""


def prompt_inputs(workload: Workload, decoder: Decoder, length: int) -> dict[str, Any]:
    """Return the keyword arguments of the prefill, with token ids [B, S], on the meta device."""
    return {
        "input_ids": ids_on_meta(workload.batch, length),
        "attention_mask": decoder.mask(decoder.empty_masks(workload, length, 0)),
        "use_cache": True,
        "logits_to_keep": int(workload.logits == "last"),
    }


def behind_past(model: nn.Module, workload: Workload, decoder: Decoder, prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a prefill on meta, with the past of the workload in its cache."""
    if not workload.past:
        return dict(prompt)
    length = int(prompt["input_ids"].shape[1])
    return {
        **prompt,
        "attention_mask": decoder.mask(decoder.empty_masks(workload, length, workload.past)),
        "past_key_values": decoder.filled_cache(model, decoder.past(model, workload, workload.batch, workload.past)),
    }


def step_inputs(model: nn.Module, workload: Workload, decoder: Decoder, context: int) -> dict[str, Any]:
    """Return the keyword arguments of a decode step on the meta device, with ``context`` tokens in the cache."""
    return {
        "input_ids": ids_on_meta(workload.batch, 1),
        "attention_mask": decoder.mask(decoder.empty_masks(workload, 1, context)),
        "past_key_values": decoder.filled_cache(model, decoder.past(model, workload, workload.batch, context)),
        "use_cache": True,
    }


def shape_runs(
    model: nn.Module,
    workload: Workload,
    decoder: Decoder,
    prompt: dict[str, Any],
    name: str = "prompt",
    *,
    grows: bool = True,
    every: bool = False,
) -> tuple[Run, ...]:
    """Return the runs of the prefill and of the first, middle and last decode step, on the meta device.

    Args:
        prompt: keyword arguments of the prefill.
        name: name of the run of the prefill.
        grows: whether the cache keeps the tokens of steps; if not, each has that of the first.
        every: whether all decode steps run.
    """
    found = [Run(name, model, prompt, decoder.places[0], cache_before=_cached(prompt, decoder))]
    length = workload.past + prompt["input_ids"].shape[1]
    for context in contexts(workload, length, every=every):
        kwargs = step_inputs(model, workload, decoder, context if grows else length)
        found.append(Run(f"step@{context}", model, kwargs, decoder.places[1], context, _cached(kwargs, decoder)))
    return _of_decoder(found, decoder)


def with_hidden_states(run: Run, workload: Workload, width: int) -> Run:
    """Return a run whose input is the hidden states of the previous pipeline stage instead of token ids."""
    kwargs = dict(run.kwargs)
    shape = kwargs.pop("input_ids").shape
    return replace(run, kwargs={"inputs_embeds": on_meta(workload, *shape, width), **kwargs})


def with_positions(run: Run) -> Run:
    """Return a run with explicit positions [1, n] for tokens that do not directly follow the cached ones."""
    given = next(run.kwargs[name] for name in ("input_ids", "inputs_embeds") if name in run.kwargs)
    return replace(run, kwargs={**run.kwargs, "position_ids": ids_on_meta(1, given.shape[1])})


def rows_runs(
    model: nn.Module,
    workload: Workload,
    decoder: Decoder,
    ids: torch.Tensor | None = None,
    more: Callable[[dict[str, Any]], Mapping[str, Any]] = lambda given: {},
) -> tuple[Run, ...]:
    """Return the run of a batch of unequal rows, packed into one sequence, on meta or with values.

    Args:
        ids: token ids of all rows, past and new ones row by row, for a run with values.
        more: returns further arguments, given the others.
    """
    import torch

    from costproof.models.decoding.modules import row_masks, row_name, rows_cache

    each = [(workload.of_row(row), row) for row in workload.rows]
    if ids is None:
        pasts = [decoder.past(model, one, row.count, row.past) if row.past else None for one, row in each]
        masks = [decoder.empty_masks(one, row.new, row.past) for one, row in each]
        cache, given = rows_cache(model, workload, decoder, pasts), packed_inputs(workload, decoder)
    else:
        masks = [real_masks(model, one, decoder, row.new, row.past) for one, row in each]
        cache, given = _real_rows(model, workload, decoder, ids)
    kwargs = {
        "input_ids": given["ids"],
        "position_ids": given["positions"],
        "attention_mask": decoder.mask(row_masks(masks)),  # type: ignore[arg-type]
        "past_key_values": cache,
        "use_cache": True,
        "logits_to_keep": given.get("kept", 0),
    }
    kwargs |= more(kwargs)
    run = Run(ROWS_INVOCATION, model, kwargs, partial(in_rows, decoder.places[0]))
    if ids is not None:
        again = copy.deepcopy(kwargs)
        with torch.no_grad(), expert_rows(model) as counted:
            result = model(**again)
        tokens = {path: tuple(counts) for path, counts in counted.items()}
        run = replace(run, expected=result.logits, expert_tokens=tokens)
    (found,) = _of_decoder([run], decoder)
    every = {f"{place}.{row_name(i)}": mask for place, mask in found.masks.items() for i in range(len(each))}
    return (replace(found, masks=every),)


def _real_rows(
    model: nn.Module, workload: Workload, decoder: Decoder, ids: torch.Tensor
) -> tuple[RowsCache, dict[str, torch.Tensor]]:
    """Return the cache of a batch of rows, filled by running each past, and ids, positions and indices of logits."""
    import torch

    from costproof.models.decoding.modules import rows_cache, unpacked

    device = next(model.parameters()).device
    cache = rows_cache(model, workload, decoder, [None] * len(workload.rows))
    parts: dict[str, list[torch.Tensor]] = {"ids": [], "positions": [], "kept": []}
    start = 0
    for i, row in enumerate(workload.rows):
        length = row.past + row.new
        own = ids[start : start + row.count * length].reshape(row.count, length).to(device)
        start += row.count * length
        if row.past:
            mask = decoder.mask(real_masks(model, workload.of_row(row), decoder, row.past, 0))
            with torch.no_grad(), unpacked(model, workload.attention):
                before = model(input_ids=own[:, : row.past], attention_mask=mask, use_cache=True)
            cache.caches[i] = before.past_key_values
        ends = sum(map(len, parts["ids"])) + torch.arange(1, row.count + 1) * row.new
        parts["kept"].append((ends[:, None] - torch.arange(row.logits, 0, -1)).flatten())
        parts["ids"].append(own[:, row.past :].flatten())
        parts["positions"].append(torch.arange(row.past, length).repeat(row.count))
    made = {name: torch.cat(tensors).to(device) for name, tensors in parts.items()}
    places = made["positions"][None]
    places = places if decoder.axes == 1 else places.expand(decoder.axes, 1, -1)  # values decide no cost
    found = {"ids": made["ids"][None], "positions": places}
    return cache, found | ({"kept": made["kept"]} if len(made["kept"]) < workload.text_tokens else {})


def in_rows(prompt: Locate, path: str, call: int) -> tuple[str, str]:
    """Return the stage and invocation of a module in a batch of rows, derived from those in a prompt."""
    stage, invocation = prompt(path, call)
    return stage, ROWS_INVOCATION if stage == "prefill" else invocation


def _cached(kwargs: Mapping[str, Any], decoder: Decoder) -> Past:
    """Return the keys and values of each layer in the cache among a call's arguments."""
    cache = kwargs.get("past_key_values")
    return [] if cache is None else [(pair[0], pair[1]) for pair in decoder.cache_tensors(cache) if pair]


def real_runs(
    model: nn.Module, workload: Workload, decoder: Decoder, prompt: dict[str, Any], name: str = "prompt"
) -> tuple[Run, ...]:
    """Return the runs of the prefill and of the traced decode steps, with inputs, cache and expected output.

    Args:
        prompt, name: as for :func:`shape_runs`.
    """

    def step(context: int, result: Any) -> dict[str, Any]:
        return {
            "input_ids": result.logits[:, -1:].argmax(-1),
            "attention_mask": decoder.mask(real_masks(model, workload, decoder, 1, context)),
            "past_key_values": result.past_key_values,
            "use_cache": True,
        }

    return _of_decoder(computed(model, workload, prompt, step, decoder.places, name), decoder)


def _of_decoder(runs: Iterable[Run], decoder: Decoder) -> tuple[Run, ...]:
    return tuple(
        replace(
            run, attention_paths=decoder.attention_paths(run.model), marks=decoder.marks(), masks=decoder.placed_masks()
        )
        for run in runs
    )


def computed(
    model: nn.Module,
    workload: Workload,
    prompt: dict[str, Any],
    step: Callable[[int, Any], dict[str, Any]],
    places: tuple[Locate, Locate],
    name: str,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[Run]:
    """Run the prefill and all steps once without a tracer; yield the runs to trace, with cache and expected output.

    Args:
        step: (tokens in the cache, result of the forward before) -> keyword arguments of a decode step.
        places: functions that locate modules in the prefill and in a step.
        around: context in which the model runs.
    """
    import torch

    wanted, inputs = traced_steps(workload), prompt
    before = workload.past + int(prompt["input_ids"].shape[1]) - 1
    for i in range(workload.new_tokens + 1):
        # A forward modifies its cache; the traced run needs the cache as it was before.
        kept = copy.deepcopy(inputs) if i == 0 or i - 1 in wanted else None
        with torch.no_grad(), around(), expert_rows(model) as rows:
            result = model(**inputs)
        if kept is not None:
            yield Run(
                id=f"step@{before + i}" if i else name,
                model=model,
                kwargs=kept,
                locate=places[i > 0],
                context=before + i if i else None,
                expected=result.logits,
                expert_tokens={path: tuple(counts) for path, counts in rows.items()},
            )
        if i < workload.new_tokens:
            inputs = step(before + i + 1, result)


def real_prompt(
    model: nn.Module, workload: Workload, decoder: Decoder, shapes: Mapping[str, Any], ids: torch.Tensor
) -> dict[str, Any]:
    """Return the prefill's arguments ``shapes`` with these token ids, and with masks and a past that have values.

    Args:
        ids: those of the past, which fill the cache in a run without a tracer, and those of the prompt.
    """
    import torch

    past, ids = workload.past, ids.to(next(model.parameters()).device)

    def given(part: torch.Tensor, context: int) -> dict[str, Any]:
        mask = decoder.mask(real_masks(model, workload, decoder, part.shape[1], context))
        return {**shapes, "input_ids": part, "attention_mask": mask}

    if not past:
        return given(ids, 0)
    with torch.no_grad():
        cache = model(**given(ids[:, :past], 0)).past_key_values
    return {**given(ids[:, past:], past), "past_key_values": cache}


def drawn_ids(vocab: int, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Return random token ids [B, S] that depend only on the seed and the sizes."""
    from costproof.weights.random_values import random_integers

    return random_integers(vocab, shape, seed, "input_ids")


def row_ids(
    rows: Sequence[BatchRow], vocab: int, seed: int, token: int, images: Sequence[int], behind: int = 0
) -> torch.Tensor:
    """Return random ids of the rows' past and new tokens, with images in the first sequences that have room.

    Args:
        token: the image token, which has no other places.
        images: tokens of each.
        behind: text tokens after each image.
    """
    ids = drawn_ids(vocab - 1, (sum(row.count * (row.past + row.new) for row in rows),), seed)
    ids += ids >= token
    start, left = 0, list(images)
    for row in (one for one in rows for _ in range(one.count)):
        at, start = start + row.past, start + row.past + row.new
        while left and at + left[0] + behind <= start:
            ids[at : at + left[0]] = token
            at += left.pop(0) + behind
    return ids


def real_masks(model: nn.Module, workload: Workload, decoder: Decoder, queries: int, context: int) -> Masks:
    """Return the masks of :meth:`~costproof.models.decoding.decoder.Decoder.empty_masks` with their values.

    They are 0 where a query may attend, and the minimum of the dtype elsewhere.
    """
    import torch

    device = next(model.parameters()).device

    def filled(shape: torch.Tensor | None, window: int) -> torch.Tensor | None:
        if shape is None:
            return None
        hidden = torch.ones(shape.shape, dtype=torch.bool)
        last = shape.shape[-1] - queries  # the first query's own key
        outside = hidden.triu(last + 1) | (hidden.tril(last - window) if window else ~hidden)
        if shape.dtype == torch.bool:
            return ~outside.to(device)
        return torch.zeros(shape.shape, dtype=shape.dtype).masked_fill(outside, torch.finfo(shape.dtype).min).to(device)

    full, seen = decoder.empty_masks(workload, queries, context)
    return filled(full, 0), filled(seen, decoder.window)


def traced_steps(workload: Workload) -> frozenset[int]:
    """Return the indices of the decode steps to trace: all if they are few or loop over experts, else a sample."""
    count = workload.new_tokens
    if count <= STEP_LIMIT or workload.experts == "eager":
        return frozenset(range(count))
    return frozenset(sampled_steps(count))


@contextmanager
def expert_rows(model: nn.Module) -> Iterator[dict[str, list[int]]]:
    """Count the rows that each expert of each mixture receives while the block runs.

    A mixture is either one module whose second argument is the indices of the chosen experts, or a list of expert
    modules.
    """
    from torch import nn

    rows: dict[str, list[int]] = {}
    handles = []

    def watch(module: nn.Module, path: str, received: Callable[[Sequence[Any]], Mapping[int, int]]) -> None:
        def hook(module: nn.Module, args: Sequence[Any]) -> None:
            for expert, count in received(args).items():
                rows[path][expert] += count

        handles.append(module.register_forward_pre_hook(hook))

    def one(expert: int) -> Callable[[Sequence[Any]], Mapping[int, int]]:
        return lambda args: {expert: int(args[0].shape[0])}

    try:
        for path, module in model.named_modules():
            if path.endswith(".mlp.experts"):
                experts = list(module) if isinstance(module, nn.ModuleList) else []
                count: Any = len(experts) or module.num_experts
                rows[path] = [0] * int(count)
                for number, expert in enumerate(experts):
                    watch(expert, path, one(number))
                if not experts:
                    watch(module, path, lambda args: Counter(args[1].flatten().tolist()))
        yield rows
    finally:
        for handle in handles:
            handle.remove()
