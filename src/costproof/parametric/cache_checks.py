"""Count again, by separate code, the cache of a run: token by token, head by head and block by block.

No graph gives the blocks of a cache or what pads a call. Blocks are those that hold a token in use. A difference is a
defect of costproof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Final

from costproof.algebra.evaluation import evaluate
from costproof.estimate.memory import Fits
from costproof.ledger.attributes import attribute
from costproof.ledger.capture import Padding
from costproof.ledger.errors import CostproofError, Recount
from costproof.ledger.mesh import AXES
from costproof.ledger.workload import FLOAT_BYTES, KV_BLOCK, KV_DTYPE, BatchRow, Workload
from costproof.models.cache_dtype import BlockedCache
from costproof.models.target import WithBlocks, WithFormulas, WithStorage
from costproof.parametric.targets import evaluate_formulas


def cache_held(model: WithFormulas, run: Workload) -> int:
    """Return the bytes of the cache at the end of a run, including tokens cached before the run."""
    calls = {(call.stage, call.id): call.symbols for call in model.invocations(run)}
    config, every = model.info().symbols, Counter[tuple[str, str, str]]()
    for node in model.formulas(run).nodes:  # whatever is stored
        for metric in ("kv_cache_bytes", *(("kv_read_bytes",) * (run.past > 0 and node.stage == "prefill"))):
            if metric in node.exprs and (node.stage, node.invocation) in calls:
                every[node.stage, node.invocation, node.exprs[metric]] += 1
    return sum(n * evaluate(e, {**config, **calls[stage, of]}) for (stage, of, e), n in every.items())


def cache_recounts(model: WithFormulas, run: Workload, found: Fits) -> Iterator[Recount]:
    """Yield second counts of the cache: bytes of one more token, of all tokens, and of blocks."""
    mesh = run.mesh
    if found.cache_bytes is None or run.rows:
        return
    yield Recount("memory", f"rank {run.rank}", "cache_bytes", found.cache_bytes, cache_held(model, run))
    yield from _formatted(model, run, found.cache_bytes)
    if KV_BLOCK in run.inputs and isinstance(model, WithBlocks):
        blocks = model.blocked_cache(run)
        assert blocks is not None
        yield from _layer_recounts(model, run, blocks)
        held, wastes = blocks_in_use(blocks, run)
        yield Recount("memory", f"rank {run.rank}, blocks", "cache_bytes", found.held_cache_bytes or 0, held)
        yield Recount("memory", f"rank {run.rank}, blocks", "is a waste", found.cache_waste_bytes in wastes, True)
        surplus, live = blocks_beyond(blocks, run), {stage.id: stage.live_bytes for stage in found.stages}
        if all(live.get(stage) is not None for stage in surplus):
            most = max((live[stage] or 0) + size for stage, size in surplus.items())
            yield Recount("memory", "blocks", "blocked_live_bytes", found.blocked_live_bytes or 0, most)
    if not run.own_batch:
        return
    if found.token_bytes is None:
        solved = mesh.one and any(limit.setting == "text_tokens" for limit in found.limits)
        yield Recount("memory", "a token of a sequence", "is not known", solved and _has_next(model, run), False)
        return
    with suppress(CostproofError):  # the model refuses one of these lengths
        one = replace(run, batch=mesh.dp * mesh.fsdp)
        longer = cache_held(model, replace(one, text_tokens=run.text_tokens + 1)) - cache_held(model, one)
        yield Recount("memory", f"rank {run.rank}, a token of a sequence", "cache_bytes", found.token_bytes, longer)
        if isinstance(model, WithBlocks) and mesh.cp == 1:
            inputs = {name: value for name, value in one.inputs.items() if name != "past"}
            first = cache_held(model, replace(one, text_tokens=1, new_tokens=0, inputs=inputs))
            every = first * run.own_batch * (run.past + run.text_tokens + run.new_tokens)
            more = found.cache_bytes - every if found.token_bytes == first else max(0, found.cache_bytes - every)
            yield Recount("memory", f"rank {run.rank}, token by token", "cache_bytes", every + more, every)


def _has_next(model: WithFormulas, run: Workload) -> bool:
    """Return whether the model takes one more text token, which adds as many bytes to each sequence."""
    longer = replace(run, text_tokens=run.text_tokens + 1)
    with suppress(CostproofError):
        model.check(longer)
        return (cache_held(model, longer) - cache_held(model, run)) % run.own_batch == 0
    return False


_HEAD_BITS: Final[dict[str, tuple[int, int, int]]] = {
    "fp8": (8, 0, 1), "int8": (8, 32, 0), "int4": (4, 32, 0), "nvfp4": (4, 8, 16), "q8_0": (8, 16, 32),
    "q4_0": (4, 16, 32),
}  # fmt: skip
"""(bits of an element, bits of a scale, elements per scale) by cache format; 0 elements: one scale per head.

Sources: vLLM ``v1/kv_cache_interface.py``; llama.cpp, ``ggml-common.h`` (q8_0 has 34 bytes for 32, q4_0 18).
"""


def _formatted(model: WithFormulas, run: Workload, size: int) -> Iterator[Recount]:
    """Yield a second count of a quantised cache, head by head, from the element count of an unquantised one."""
    kind, symbols = run.inputs.get(KV_DTYPE), model.info().symbols
    if kind is None:
        return
    plain = replace(run, inputs={name: value for name, value in run.inputs.items() if name != KV_DTYPE})
    elements = cache_held(model, plain) // FLOAT_BYTES[run.dtype]
    if "text_kv_rank" in symbols:  # a latent in 8 bits with scales in float32, and rotated keys in 16 bits
        rank, rope = symbols["text_kv_rank"], symbols["text_rope"]
        each, bits = rank + rope, 8 * rank + 32 * len(range(0, rank, 128)) + 16 * rope
    else:
        width, of_scale, group = symbols["text_head_dim"], *_HEAD_BITS[str(kind)][1:]
        scales = len(range(0, width, group or width))
        each, bits = width, 8 * -(-width * _HEAD_BITS[str(kind)][0] // 8) + of_scale * scales
    yield Recount("memory", f"rank {run.rank}, a cache in {kind}", "bits", 8 * size, elements // each * bits)


def _layer_recounts(model: WithFormulas, run: Workload, of: BlockedCache) -> Iterator[Recount]:
    """Yield the cache of a prompt of one token, and of one longer than a window, layer by layer: that keeps w - 1."""
    inputs = {name: value for name, value in run.inputs.items() if name in (KV_DTYPE, *AXES)}
    windows = attribute(attribute(model, "config", None), "windows", tuple)()
    in_windows = sum(group.layers for group in of.groups if group.window)
    yield Recount("memory", "blocks", "layers with a window", in_windows, sum(map(bool, windows)))
    for tokens in (1, *(group.window + 5 for group in of.groups if group.window)):
        prompt = replace(run, text_tokens=tokens, new_tokens=0, batch=1, inputs=inputs)
        every = sum(g.layers * g.token_bytes * min(tokens, g.window - 1 if g.window else tokens) for g in of.groups)
        yield Recount("memory", f"layers in blocks, {tokens} tokens", "cache_bytes", every, cache_held(model, prompt))


def _in_use(past: int, new: int, window: int, size: int) -> tuple[int, int]:
    """Return the number of blocks with a token that a call reads or writes, and the number of these tokens."""
    first = next(iter(range(past - window + 1, past + new + 1) if 0 < window <= past else (0,)))
    tokens = range(first, past + new)
    if not tokens:
        return 0, 0
    if len(tokens) <= 4_096:
        return len({token // size for token in tokens}), len(tokens)
    return tokens[-1] // size - tokens[0] // size + 1, len(tokens)


def _calls(run: Workload, size: int) -> Iterator[tuple[str, tuple[BatchRow, ...]]]:
    """Yield the batch rows of the prompt, and of the last decode steps, after which blocks of windows repeat."""
    yield "prefill", run.rows or (BatchRow(run.text_tokens, run.past, run.own_batch),)
    for step in range(max(0, run.new_tokens - 2 * size), run.new_tokens):
        yield "decode", (BatchRow(1, run.past + run.text_tokens + step, run.own_batch),)


def blocks_in_use(of: BlockedCache, run: Workload) -> tuple[int, set[int]]:
    """Return the most bytes of cache blocks in any call, and the possible unused bytes of calls with as many."""
    found: dict[int, set[int]] = {}
    for _, rows in _calls(run, of.size):
        held = used = 0
        for row in rows:
            for group in of.groups:
                blocks, tokens = _in_use(row.past, row.new, group.window, of.size)
                held += row.count * group.layers * group.token_bytes * of.size * blocks
                used += row.count * group.layers * group.token_bytes * tokens
        found.setdefault(held, set()).add(held - used)
    return max(found), found[max(found)]


def blocks_beyond(of: BlockedCache, run: Workload) -> dict[str, int]:
    """Return, by stage, the largest excess of cache blocks over cached tokens, before or after each layer's write."""
    found: dict[str, tuple[int, int]] = {}
    for stage, rows in _calls(run, of.size):
        held = more = 0
        for row in rows:
            for group in of.groups:
                each, ends = row.count * group.layers * group.token_bytes, []
                for new in (0, row.new):
                    kept = _in_use(row.past + new, 0, group.window, of.size)[1]
                    ends.append(of.size * _in_use(row.past, new, group.window, of.size)[0] - kept)
                held += each * _in_use(row.past, row.new, group.window, of.size)[0]
                more += each * max(ends)
        if stage not in found or held >= found[stage][0]:
            found[stage] = held, more
    return {stage: more for stage, (_, more) in found.items()}


def padding_recounts(model: WithBlocks, run: Workload, found: Padding) -> Iterator[Recount]:
    """Yield second counts of padded tokens with their FLOPs, and of cache blocks, token by token."""
    yield from (Recount("", problem.line, "problem", 1, 0) for problem in found.problems())
    tokens = {"prefill": run.text_tokens * (1 if run.rows else run.batch), "decode": run.batch}
    for one in found.batch:
        fits = sorted(size for size in run.padded_sizes if not size < tokens[one.stage])
        yield Recount(one.stage, "padding", "tokens", one.tokens, tokens[one.stage])
        yield Recount(one.stage, "padding", "size", one.size, fits[0] if fits else one.tokens)
        if "text_kv_rank" not in model.info().symbols:  # a projection of latents has rows of its own
            of_token = Fraction(0)
            for node in evaluate_formulas(model, run).nodes:
                if node.stage == one.stage and node.kind != "attention" and node.role != "lm_head":
                    of_token += Fraction(node.cost("flops") or 0, one.tokens)
            yield Recount(one.stage, "padding", "flops", one.flops, of_token * (one.size - one.tokens))
    blocks = model.blocked_cache(run)
    if blocks is not None:
        yield from _layer_recounts(model, run, blocks)
    for stage in dict.fromkeys(row.stage for row in found.cache):
        assert blocks is not None
        held: dict[int, list[list[tuple[int, int]]]] = {}
        for rows in (rows for name, rows in _calls(run, blocks.size) if name == stage):
            used = []
            for group in blocks.groups:
                each = [(row.count, *_in_use(row.past, row.new, group.window, blocks.size)) for row in rows]
                used.append((sum(n * many for n, many, _ in each), sum(n * many for n, _, many in each)))
            size = sum(n * of.layers * of.token_bytes for (n, _), of in zip(used, blocks.groups, strict=True))
            held.setdefault(size, []).append(used)
        used = [(row.blocks, row.tokens) for row in found.cache if row.stage == stage]
        yield Recount(stage, "blocks and tokens in them", "are those in use", used in held[max(held)], True)


def format_recounts(model: object, found: Fits, *, chosen: bool) -> Iterator[Recount]:
    """Yield whether a cache is counted in the format that the configuration names, unless a setting chooses another.

    The format is read once more from the words that reports have for it: ``NVFP4 ($.quantization_config)``. In another
    one nothing is known of the memory.
    """
    if not isinstance(model, WithFormulas) or not isinstance(model, WithStorage):
        return
    said, kept = dict(model.stored.quantised).get("cache", "").lower(), found.workload.inputs.get(KV_DTYPE)
    if said and kept is None:
        yield Recount("memory", "a cache in another format", "is known", found.verdict != "not known", False)
    if model.stored.cache_dtype and not chosen and any(setting.name == KV_DTYPE for setting in model.settings()):
        again = next((kind for kind in _HEAD_BITS if said.startswith(kind)), "fp8")
        where = f"the cache in {again}, as the configuration names it"
        yield Recount("memory", where, "is counted", kept == again, True)
