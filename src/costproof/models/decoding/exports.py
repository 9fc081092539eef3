"""Export jobs of the prefill and of a decode step, with symbolic sizes or at given sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costproof.ledger.workload import ROWS_INVOCATION, Workload, sampled_steps
from costproof.models.decoding.decoder import Decoder, ids_on_meta, on_meta, text_config
from costproof.models.specs import ExportJob, SymbolicSize
from costproof.opgraph.graph import CausalMask
from costproof.patches import flash_attention

if TYPE_CHECKING:
    from torch import nn

# Example sizes of symbolic dimensions: above 1 and pairwise different, so that torch.export neither specialises
# them nor merges two of them.
_BATCH, _LENGTH, _CONTEXT = 3, 37, 41
_BATCHES = (_BATCH, 7, 11, 13)
"""Example batches of a prefill with a past; the first that differs from all lengths is taken."""
_MASKS = ("mask", "window_mask")


def export_jobs(model: nn.Module, workload: Workload, decoder: Decoder, *, embeds: bool = False) -> list[ExportJob]:
    """Return the export jobs of the prefill and, if the workload has decode steps, of one step.

    Args:
        embeds: whether the prefill gets embeddings instead of token ids.
    """
    if workload.rows:
        return [replace(rows_job(model, workload, decoder, embeds=embeds), conventions=_stands_for(workload))]
    first = chunk_job(model, workload, decoder) if workload.past else None
    jobs = [first or prefill_job(model, workload, decoder, embeds=embeds)]
    if workload.new_tokens:
        jobs.append(step_job(model, workload, decoder))
    if workload.attention == flash_attention.FLASH:
        jobs[-1] = replace(jobs[-1], notes=flash_attention.notes(decoder.beside))
    return [replace(job, conventions=_stands_for(workload)) for job in jobs]


def _stands_for(workload: Workload) -> dict[str, str]:
    """Return the convention by which an export with grouped GEMMs differs from a run that loops over experts."""
    return {"expert_kernel": "grouped_mm"} if workload.experts == "eager" else {}


def rows_job(model: nn.Module, workload: Workload, decoder: Decoder, *, embeds: bool = False) -> ExportJob:
    """Return the export job of a batch of unequal rows, packed into one sequence, without symbolic sizes.

    Args:
        embeds: whether it gets embeddings instead of token ids.
    """
    from costproof.models.decoding.modules import RowsModule

    rows = workload.rows
    each = [workload.of_row(row) for row in rows]
    args: dict[str, Any] = packed_inputs(workload, decoder)
    if embeds:
        given = {"embeds": on_meta(workload, *args.pop("ids").shape, text_config(model).hidden_size)}
        args = {**given, **args}
    pasts = [decoder.past(model, one, row.count, row.past) for one, row in zip(each, rows, strict=True) if row.past]
    if pasts:
        args["keys"] = [keys for past in pasts for keys, _ in past]
        args["values"] = [values for past in pasts for _, values in past]
    masks = [decoder.empty_masks(one, row.new, row.past) for one, row in zip(each, rows, strict=True)]
    masked: list[tuple[int, ...]] = []
    contents: dict[str, CausalMask] = {}
    for name, which, window in zip((f"{_MASKS[0]}s", f"{_MASKS[1]}s"), (0, 1), (0, decoder.window), strict=True):
        found = {i: mask for i, pair in enumerate(masks) if (mask := pair[which]) is not None}
        masked.append(tuple(found))
        if found:
            args[name] = list(found.values())
            contents |= {f"{name}.{i}": CausalMask(window) for i in range(len(found))}
    return ExportJob(
        "rows", "prefill", (ROWS_INVOCATION,), RowsModule(model, decoder, workload, masked), {"part": ""}, args,
        returns_cache=True, masks=contents, inside=frozenset({"embeds"}) & args.keys(),
    )  # fmt: skip


def packed_inputs(workload: Workload, decoder: Decoder) -> dict[str, Any]:
    """Return the packed ids and positions of a batch of rows, and the indices that get logits, on the meta device."""
    import torch

    length, axes = workload.text_tokens, (decoder.axes,) if decoder.axes > 1 else ()
    found = {"ids": ids_on_meta(1, length), "positions": ids_on_meta(*axes, 1, length)}
    kept = sum(row.count * row.logits for row in workload.rows)
    if kept < workload.text_tokens:
        found["kept"] = torch.zeros(kept, dtype=torch.long, device="meta")
    return found


def stage_runs(
    model: nn.Module, workload: Workload, decoder: Decoder, length: int, *, embeds: bool = False
) -> list[ExportJob]:
    """Return jobs that run the prefill of ``length`` tokens and the first, middle and last decode step in isolation."""
    if workload.rows:
        tokens = "embeds" if embeds else "ids"
        lengths = [(tokens, 0, "B"), (tokens, 1, "S"), ("kept", 0, "L")]
        sizes = [SymbolicSize((name,), dim, symbol) for name, dim, symbol in lengths]
        return [replace(rows_job(model, workload, decoder, embeds=embeds), sizes=sizes)]
    batch = workload.batch
    steps = {n: step_job(model, workload, decoder, batch, n) for n in contexts(workload, workload.past + length)}
    prefill = (
        chunk_job(model, workload, decoder, batch, (length, workload.past))
        if workload.past
        else prefill_job(model, workload, decoder, batch, length, embeds=embeds)
    )
    return [prefill, *(replace(job, id=f"step@{context}", context=context) for context, job in steps.items())]


def contexts(workload: Workload, length: int, chunk: int = 0, *, every: bool = False) -> tuple[int, ...]:
    """Return the cache lengths before the sampled decode steps after a prompt of ``length`` tokens.

    Args:
        workload: the workload.
        length: number of tokens in the cache before the first step.
        chunk: number of positions of a chunk, for attention within chunks.
        every: whether all steps are sampled.
    """
    if every:
        return tuple(range(length, length + workload.new_tokens))
    return tuple(length + i for i in sampled_steps(workload.new_tokens, length, chunk))


def prefill_job(
    model: nn.Module,
    workload: Workload,
    decoder: Decoder,
    batch: int = _BATCH,
    length: int | None = None,
    *,
    embeds: bool = False,
) -> ExportJob:
    """Return the export job of the prefill, with symbolic batch and length."""
    from costproof.models.decoding.modules import PrefillModule

    length = _example(_LENGTH, workload, decoder) if length is None else length
    args: dict[str, Any]
    if embeds:
        args = {"embeds": on_meta(workload, batch, length, text_config(model).hidden_size)}
    else:
        args = {"ids": ids_on_meta(batch, length)}
    sizes = [SymbolicSize((name,), dim, symbol) for name in args for dim, symbol in ((0, "B"), (1, "S"))]
    masks = decoder.empty_masks(workload, length, 0, batch)
    # A prompt of window - 1 tokens fills the cache, as longer ones do, but is not truncated.
    masked = workload.attention == "eager" or workload.text_tokens >= decoder.window
    for name, mask in zip(_MASKS, masks if masked else (), strict=masked):
        if mask is not None:
            args[name] = mask
            sizes += [SymbolicSize((name,), dim, symbol) for dim, symbol in ((0, "B"), (2, "S"), (3, "S"))]
    module = PrefillModule(model, decoder, int(workload.logits == "last"))
    inside = frozenset({"embeds"}) & args.keys()
    job = ExportJob(
        "prefill", "prefill", ("prompt",), module, {"part": ""}, args, sizes, returns_cache=True, inside=inside,
        holds=_side_of_window(workload, decoder, sizes), masks=decoder.mask_contents(_MASKS),
    )  # fmt: skip
    # The mask of a single token hides nothing, that of any other number some keys.
    return with_numbers(job, {"S": 1}) if workload.text_tokens == 1 and {*_MASKS} & {*args} else job


def chunk_job(
    model: nn.Module,
    workload: Workload,
    decoder: Decoder,
    batch: int | None = None,
    lengths: tuple[int, int] | None = None,
) -> ExportJob:
    """Return the export job of a prefill on a filled cache, with symbolic batch, length and past.

    Sizes below 2 are not symbolic, nor is the past of a layer whose window it fills.

    Args:
        batch: number of sequences (default: an example).
        lengths: new tokens, and those in the cache (default: examples on the same sides of a window and of 1 token).
    """
    from costproof.models.decoding.modules import PrefillModule

    length, context = _chunk_example(workload, decoder) if lengths is None else lengths
    if batch is None:
        batch = next(n for n in _BATCHES if n not in (length, context, length + context))
    # torch.export takes a size of 1 for a constant, and merges equal ones.
    new = "S" if 1 < length != context else str(length)
    before = "C" if 1 < context != length else str(context)
    full = 0 < decoder.window <= context + 1
    past = decoder.past(model, workload, batch, context)
    args: dict[str, Any] = {
        "ids": ids_on_meta(batch, length),
        "keys": [keys for keys, _ in past],
        "values": [values for _, values in past],
    }
    sizes = [SymbolicSize(("ids",), 0, "B"), SymbolicSize(("ids",), 1, new)]
    for name in ("keys", "values"):
        for i in range(len(past)):
            sizes.append(SymbolicSize((name, i), 0, "B"))
            if not (full and decoder.windows and decoder.windows[i]):
                sizes.append(SymbolicSize((name, i), 2, before))
    for name, mask in zip(_MASKS, decoder.empty_masks(workload, length, context, batch), strict=True):
        if mask is not None:
            args[name] = mask
            known = str(decoder.window - 1) if full and name == "window_mask" else before
            every = ((0, "B"), (2, new), (3, f"{known} + {new}"))
            sizes += [SymbolicSize((name,), dim, symbol) for dim, symbol in every]
    sizes = [size for size in sizes if not size.symbol.replace(" + ", "").isdigit()]
    window, holds = decoder.window, list[str]()
    if window and full:
        holds = [f"{before} - {window - 1}"]
    elif window and context + length >= window - 1:
        holds = [f"{window - 2} - {before}", f"{before} + {new} - {window - 1}"]
    elif window:
        holds = [f"{window - 2} - {before} - {new}"]
    used = {symbol for size in sizes for symbol in size.symbol.split(" + ")}
    return ExportJob(
        "prefill", "prefill", ("prompt",), PrefillModule(model, decoder, int(workload.logits == "last")), {"part": ""},
        args, sizes, returns_cache=True, masks=decoder.mask_contents(_MASKS),
        holds=tuple(text for text in holds if used & {"S", "C"} & {*text.split()}),
    )  # fmt: skip


def _chunk_example(workload: Workload, decoder: Decoder) -> tuple[int, int]:
    """Return example numbers of new and of cached tokens on the same side of the window as the workload's."""
    length, window = 1 if workload.text_tokens == 1 else _LENGTH, decoder.window
    if not window:
        return length, _CONTEXT
    if workload.past >= window - 1:
        return length, window + _CONTEXT
    if workload.context >= window - 1:
        return (1, window - 2) if length == 1 else (window + _LENGTH, min(_CONTEXT, window - 2))
    if length + _CONTEXT <= window - 2:
        return length, _CONTEXT
    small = (
        (n, c) for n in ((1,) if length == 1 else (4, 3, 2)) for c in (5, 4, 3, 2) if n != c and n + c < window - 1
    )
    return next(small, (workload.text_tokens, workload.past))


def step_job(
    model: nn.Module, workload: Workload, decoder: Decoder, batch: int = _BATCH, context: int | None = None
) -> ExportJob:
    """Return the export job of a decode step with symbolic batch and cache length; a full window has a fixed length."""
    from costproof.models.decoding.modules import StepModule

    context = _example(_CONTEXT, workload, decoder) if context is None else context
    full = decoder.fills_window(workload)
    growing = [not (full and window) for window in decoder.windows]
    past = decoder.past(model, workload, batch, context)
    args: dict[str, Any] = {
        "ids": ids_on_meta(batch, 1),
        "keys": [keys for keys, _ in past],
        "values": [values for _, values in past],
    }
    sizes = [SymbolicSize(("ids",), 0, "B")]
    for name in ("keys", "values"):
        for i in range(len(past)):
            sizes.append(SymbolicSize((name, i), 0, "B"))
            if not decoder.windows or growing[i]:
                sizes.append(SymbolicSize((name, i), 2, "P"))
    for name, mask in zip(_MASKS, decoder.empty_masks(workload, 1, context, batch), strict=True):
        if mask is not None:
            args[name] = mask
            sizes.append(SymbolicSize((name,), 0, "B"))
            if name == "mask" or not full:
                sizes.append(SymbolicSize((name,), 3, "P + 1"))
    module = StepModule(model, decoder)
    # On the other side of the window the graph differs: a full window keeps its length.
    least, most = f"P - {decoder.window - 1}", f"{decoder.window - 2} - P"
    return ExportJob(
        "step", "decode", ("steps",), module, {"part": ""}, args, sizes, returns_cache=True, repeated=True,
        holds=(least if full else most,) if decoder.window and any(s.symbol == "P" for s in sizes) else (),
        masks=decoder.mask_contents(_MASKS),
    )  # fmt: skip


def in_steps(job: ExportJob, workload: Workload) -> list[ExportJob]:
    """Return a job in numbers for each of the decode steps that one stands for, which exchange unequal pairs."""
    from costproof.models.decoding.modules import StepModule

    module: Any = job.module
    found = []
    for step in range(workload.new_tokens):
        own = StepModule(module.part, module.decoder, step)
        context = workload.context + step
        one = with_numbers(job, {"B": workload.own_batch, "P": context, "P + 1": context + 1})
        found.append(replace(one, id=f"step@{context}", module=own, repeated=False))
    return found


def _side_of_window(workload: Workload, decoder: Decoder, sizes: Sequence[SymbolicSize]) -> tuple[str, ...]:
    """Return margins, as text, of the condition that the prompt reaches the window or not; empty without a mask."""
    masks = {size.argument[0] for size in sizes} & {*_MASKS}
    if not decoder.window or not masks:
        return ()
    window = decoder.window
    return (f"S - {window - 1}",) if decoder.fills_window(workload) else (f"{window - 2} - S",)


def _example(usual: int, workload: Workload, decoder: Decoder) -> int:
    """Return a prompt length for exports; it reaches the window if and only if the prompt of the workload does."""
    window = decoder.window
    if decoder.fills_window(workload):
        return max(usual, window + usual)
    # Below a short window, and different from the batch, with which torch.export would merge it.
    return usual if not window or usual < window - 1 else next(n for n in (window - 2, window - 3) if n != _BATCH)


def with_hidden_states(job: ExportJob, workload: Workload, width: int) -> ExportJob:
    """Return a job whose input is the hidden states of the previous pipeline stage instead of token ids."""
    shape = job.args["ids"].shape
    args = {"embeds": on_meta(workload, *shape, width), **{k: v for k, v in job.args.items() if k != "ids"}}
    named: dict[tuple[str | int, ...], tuple[str | int, ...]] = {("ids",): ("embeds",)}
    return replace(job, args=args, sizes=[replace(s, argument=named.get(s.argument, s.argument)) for s in job.sizes])


def with_tokens_of(job: ExportJob, workload: Workload, decoder: Decoder) -> ExportJob:
    """Return the export job of one rank that shares a prompt: its tokens, and masks over all positions.

    With masks, or a window, its length is a number: an export takes no multiple of a symbol.
    """
    name = next(name for name in ("ids", "embeds") if name in job.args)
    if decoder.window or {*_MASKS} & {*job.args}:
        job = with_numbers(job, {"S": workload.text_tokens})
        return replace(job, args={**job.args, name: job.args[name][:, : workload.own_tokens]})
    return job


def with_positions(job: ExportJob) -> ExportJob:
    """Return a job with explicit positions [1, n] for tokens that do not directly follow the cached ones."""
    ids = next(job.args[name] for name in ("ids", "embeds") if name in job.args)
    own = [s for s in job.sizes if s.argument in (("ids",), ("embeds",)) and s.dim == 1]
    return replace(
        job,
        args={**job.args, "positions": ids_on_meta(1, ids.shape[1])},
        sizes=[*job.sizes, *(replace(s, argument=("positions",)) for s in own)],
    )


def of_rank(
    jobs: Iterable[ExportJob], workload: Workload, numbers: Mapping[str, int] | None = None
) -> tuple[ExportJob, ...]:
    """Return the jobs of one of several ranks, with numbers for the sizes on which the form of its graph depends.

    Args:
        workload: its text tokens are all those of a prompt.
        numbers: more numbers, by symbol.
    """
    one = {"B": 1, **({"S": 1} if workload.text_tokens == 1 else {})} if workload.own_batch == 1 else {}
    fixed = {**one, **(numbers or {})}
    return tuple(with_numbers(job, fixed) for job in jobs)


def with_numbers(job: ExportJob, numbers: Mapping[str, int]) -> ExportJob:
    """Return a job in which some symbolic sizes are fixed to numbers, given by symbol.

    Gathered parts of a single row need no concatenation, which an export with a symbolic batch would have.
    """
    dims: dict[tuple[str | int, ...], dict[int, int]] = {}
    for size in job.sizes:
        if size.symbol in numbers:
            dims.setdefault(tuple(size.argument), {})[size.dim] = numbers[size.symbol]

    def fixed(path: tuple[str | int, ...], value: Any) -> Any:
        if isinstance(value, list):
            return [fixed((*path, i), part) for i, part in enumerate(value)]
        return value.new_empty([dims.get(path, {}).get(dim, size) for dim, size in enumerate(value.shape)])

    sizes = [size for size in job.sizes if size.symbol not in numbers]
    holds = tuple(text for text in job.holds if not {*numbers} & {*text.split()})
    return replace(
        job, args={name: fixed((name,), value) for name, value in job.args.items()}, sizes=sizes, holds=holds
    )
