"""Count again, by separate code, the memory that a run holds and the limits of its settings.

No graph gives a limit, the blocks of a cache, or what ranks gather. Here a run is counted anew just below and at each
limit, without the solved expressions; blocks are those that hold a token in use; gathered parameters are put together
one group after another; and all sums are made from their parts. A difference is a defect of costproof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from costproof.algebra.evaluation import evaluate
from costproof.estimate.memory import Fits, MemoryLimit, MeshTried
from costproof.ledger.capture import Padding
from costproof.ledger.errors import CostproofError, Recount
from costproof.ledger.mesh import RANK
from costproof.ledger.metrics import UNPACKED
from costproof.ledger.node import Ledger, bearing
from costproof.ledger.workload import FLOAT_BYTES, KV_BLOCK, KV_DTYPE, BatchRow, Workload
from costproof.models.cache_dtype import BlockedCache
from costproof.models.target import WithBlocks, WithFormulas, WithMemory, WithStorage
from costproof.parametric.targets import evaluate_formulas, live_peaks

_LIVE: Final = "weights and live peak"
_MOST_REFUSED: Final = 1_000
"""Values below a limit of which the model must refuse each, if it fits at none of them."""


def memory_recounts(model: WithFormulas, held: Mapping[tuple[int, ...], Fits], found: Fits) -> Iterator[Recount]:
    """Yield everything that is counted again about the memory of a run.

    Args:
        model: the target, whose formulas made all numbers.
        held: ranks -> their answer; on one device, rank 0.
        found: the answer that is reported.
    """
    for ranks, answer in held.items():
        of = _of_rank(found.workload, ranks[0])
        yield from _parts(answer)
        yield from _lasting(model, of, answer)
        yield from _live(model, of, answer)
        yield from _cached(model, of, answer)
        yield from gathered_recounts(model, of, answer.unpacked_bytes)
    yield from _quantised(model, found)
    yield from _ranks(held, found)
    limits = {(limit.setting, limit.held) for answer in held.values() for limit in answer.limits}
    yield Recount("memory", "limits of any rank", "number", len(found.limits), len(limits))
    for limit in found.limits:
        yield from _bounds(limit, found)
        if limit.held in ("weights and cache", _LIVE):
            yield from _limit(model, held, found, limit)


def graph_recounts(found: Fits) -> Iterator[Recount]:
    """Yield the sums and limits of a run whose bytes are those of exported graphs, from each other.

    A cache has equal parts for all sequences, and grows with a text by no more than at its beginning.
    """
    yield from _parts(found)
    cache, certain, run = found.cache_bytes, found.certain_bytes, found.workload
    if cache is None or certain is None or found.lasting_bytes is None:
        return
    grown = {"batch": Fraction(cache, run.batch), "text_tokens": Fraction((found.token_bytes or 0) * run.batch)}
    least = grown["text_tokens"] * run.text_tokens
    yield Recount("memory", "a token of a sequence", "more than all of the cache", max(Fraction(0), least - cache), 0)
    for limit in found.limits:
        yield from _bounds(limit, found)
        own, ends = getattr(run, limit.setting), limit.points
        slope = Fraction(ends[1].bytes - ends[0].bytes, ends[1].at - ends[0].at) if len(ends) == 2 else None
        for point in ends:
            where = f"bytes at {limit.setting} {point.at}"
            affine = slope == grown[limit.setting] or (slope is None and point.at == own)
            if limit.held == "weights and cache" and affine:
                again = certain + grown[limit.setting] * (point.at - own)
                yield Recount("memory", limit.held, where, point.bytes, again)


def room_recounts(found: Fits, whole: int, reserve: int | str | None) -> Iterator[Recount]:
    """Yield the memory that is compared, its reserve, and the meshes that were tried to find the smallest.

    Args:
        whole: bytes of a device.
        reserve: as the caller gave it.
    """
    yield Recount(
        "memory", "what is compared and the reserve", "bytes", found.memory_bytes + found.reserve_bytes, whole
    )
    before, _, digits = reserve.partition(".") if isinstance(reserve, str) else ("", "", "")
    if digits.isdecimal():  # a fraction
        again = whole * int(before + digits) // 10 ** len(digits)
        yield Recount("memory", f"the reserve of {reserve}", "bytes", found.reserve_bytes, again)
    elif not isinstance(reserve, str):
        yield Recount("memory", "the reserve", "bytes", found.reserve_bytes, reserve or 0)
    ranks = range(1, (found.count or 0) + 1)
    every = sorted({(tp, ep) for tp in ranks for others in ranks if tp * others == found.count for ep in (1, tp)})
    last = len(found.tried) if found.verdict == "fits" else len(every)
    for i, (tp, ep) in enumerate(every[:last] if found.tried else ()):
        same = i < len(found.tried) and (found.tried[i].tp, found.tried[i].ep) == (tp, ep)
        yield Recount("memory", f"tp {tp}, ep {ep}", "is tried", same, True)
    for tried in found.tried[:-1]:
        yield Recount(
            "memory", f"tp {tried.tp}, ep {tried.ep}", "fits, and is not taken", tried.verdict == "fits", False
        )


def tried_recounts(tried: MeshTried, found: Fits, rank: int) -> Iterator[Recount]:
    """Yield the weights and buffers of a mesh that was tried, from the answer for it if that is of the same rank."""
    rows = [row.weights_bytes for row in found.ranks if rank in row.ranks] or [found.held_weights]
    if tried.weights_bytes is not None and rows[0] is not None and found.buffers_bytes is not None:
        again = rows[0] + found.buffers_bytes
        yield Recount("memory", f"tp {tried.tp}, ep {tried.ep}", "weights_bytes", tried.weights_bytes, again)


def _of_rank(workload: Workload, rank: int) -> Workload:
    return workload if workload.mesh.one else replace(workload, inputs={**workload.inputs, RANK: rank})


def _parts(found: Fits) -> Iterator[Recount]:
    """Yield the sums over the parts of the memory, and what follows of them."""
    weights = found.weights_bytes if found.stored_bytes is None else found.stored_bytes
    cache = found.cache_bytes if found.held_cache_bytes is None else found.held_cache_bytes
    live = found.live_bytes if found.held_cache_bytes is None else found.blocked_live_bytes
    if weights is None or found.buffers_bytes is None or cache is None:
        return
    lasting = weights + found.buffers_bytes + found.attributes_bytes
    yield Recount("memory", "weights, buffers and cache", "bytes", found.certain_bytes or 0, lasting + cache)
    if live is None or not found.is_known:
        return
    most = lasting + live + (found.unpacked_bytes or 0)
    yield Recount("memory", "weights, buffers, live peak and an unpacked matrix", "bytes", found.most_bytes or 0, most)
    over = lasting + (max(cache, found.live_bytes or 0) if found.is_live_exact else cache) > found.memory_bytes
    again = "does not fit" if over else "fits" if most <= found.memory_bytes else "not known"
    yield Recount("memory", f"the verdict {found.verdict}", "follows", found.verdict == again, True)
    largest = [s.live_bytes or 0 for s in found.stages]
    yield Recount("memory", "largest stage", "live_bytes", found.live_bytes or 0, max(largest))


def _lasting(model: WithFormulas, run: Workload, found: Fits) -> Iterator[Recount]:
    """Yield the buffers of a rank, and its weights as they are stored, module by module."""
    sizes: Counter[str] = Counter()
    modules = {node.module: node for node in evaluate_formulas(model, run).nodes if not node.invocation}
    for node in modules.values():
        sizes.update({metric: node.cost(metric) or 0 for metric in ("buffer_bytes", "resident_bytes")})
    if found.buffers_bytes is not None:
        yield Recount("memory", f"rank {run.rank}", "buffers_bytes", found.buffers_bytes, sizes["buffer_bytes"])
    if found.stored_bytes is not None and not run.mesh.one and run.mesh.fsdp == 1:
        stored = sizes["resident_bytes"] - sizes["buffer_bytes"]
        yield Recount("memory", f"rank {run.rank}", "stored_bytes", found.stored_bytes, stored)


def _live(model: WithFormulas, run: Workload, found: Fits) -> Iterator[Recount]:
    """Yield the weights, and the cache and live peak of each stage of a rank; the peak with fewer logits too.

    The formulas are those of the answer, evaluated for this rank alone: graphs confirm them, here their use is.
    """
    nodes, where = evaluate_formulas(model, run).nodes, f"rank {run.rank}"
    if found.weights_bytes is not None:
        sizes = (node.cost("weight_bytes") or 0 for node in bearing(nodes, "weight_bytes"))
        yield Recount("memory", where, "weights_bytes", found.weights_bytes, sum(sizes))
    for stage in found.stages:
        if stage.cache_bytes is not None:
            added = sum(node.cost("kv_cache_bytes") or 0 for node in nodes if node.stage == stage.id)
            yield Recount("memory", f"{where}, {stage.id}", "cache_bytes", stage.cache_bytes, added)
    if found.live_source == "graph" or found.live_bytes is None or not isinstance(model, WithMemory):
        yield Recount("memory", where, "last_logits_bytes", found.last_logits_bytes or 0, 0)
        return
    peaks = live_peaks(model, run, inputs_held=False)
    for stage in found.stages:
        again = max((n for (of, _, _), n in peaks.items() if of == stage.id), default=0)
        yield Recount("memory", f"{where}, {stage.id}", "live_bytes", stage.live_bytes or 0, again)
    last = replace(run, logits="last")
    few = live_peaks(model, last, inputs_held=False) if run != last and _is_accepted(model, last) else {}
    yield Recount("memory", where, "last_logits_bytes", found.last_logits_bytes or 0, max(few.values(), default=0))


def format_recounts(model: object, found: Fits) -> Iterator[Recount]:
    """Yield whether a cache is counted in the format that the configuration names, as no setting of the run does."""
    if isinstance(model, WithFormulas) and isinstance(model, WithStorage) and (named := model.stored.cache_dtype):
        kept = found.workload.inputs.get(KV_DTYPE) == named
        has = any(setting.name == KV_DTYPE for setting in model.settings())
        yield Recount(
            "memory", f"the cache in {named}, as the configuration names it", "is counted", kept or not has, True
        )


def _ranks(held: Mapping[tuple[int, ...], Fits], found: Fits) -> Iterator[Recount]:
    """Yield the rank that holds most, and those that hold the most weights and cache, from the answers of all."""
    if not found.ranks:
        return
    rows = {rank: row for row in found.ranks for rank in row.ranks}
    every = {rank: answer for ranks, answer in held.items() for rank in ranks}
    counts = len(rows), sum(len(row.ranks) for row in found.ranks)
    for count in counts:
        yield Recount("memory", "ranks with an answer", "number", count, found.workload.mesh.world)
    for rank, row in rows.items():
        of = every[rank]
        yield Recount("memory", f"rank {rank}", f"is {row.verdict}", row.verdict == of.verdict, True)
        for metric, number, again in (
            ("weights_bytes", row.weights_bytes, of.weights_bytes if of.stored_bytes is None else of.stored_bytes),
            ("cache_bytes", row.cache_bytes, of.cache_bytes if of.held_cache_bytes is None else of.held_cache_bytes),
            ("live_bytes", row.live_bytes, of.live_bytes),
            ("most_bytes", row.most_bytes, of.most_bytes),
        ):
            yield Recount("memory", f"rank {rank}", metric, number or 0, again or 0)
    alike = [of for of in every.values() if of.verdict == found.verdict]
    if all(of.most_bytes is not None for of in alike):
        most = max(of.most_bytes or 0 for of in alike)
        yield Recount("memory", "the rank that holds most", "most_bytes", found.most_bytes or 0, most)
    worst = any(of.verdict == "does not fit" for of in every.values())
    yield Recount("memory", "some rank does not fit", "verdict", found.verdict == "does not fit", worst)
    if found.binding_ranks and not found.workload.past:
        sums = {rank: (of.weights_bytes or 0) + (of.cache_bytes or 0) for rank, of in every.items()}
        for rank, size in sums.items():
            binds = size == max(sums.values())
            yield Recount("memory", f"rank {rank}", "holds most weights and cache", rank in found.binding_ranks, binds)


def _bounds(limit: MemoryLimit, found: Fits) -> Iterator[Recount]:
    """Yield whether a run fits at the values that a limit names, and does not at the limit."""
    for point in limit.points:
        fits = point.at != limit.at if limit.outcome == "from" else True
        if limit.outcome != "not solved":
            where = f"{limit.setting} {point.at}, {limit.held}"
            yield Recount("memory", where, "fits", point.bytes <= found.memory_bytes, fits)


# --- Caches ----------------------------------------------------------------------------------------------------------


def cache_held(model: WithFormulas, run: Workload) -> int:
    """Return the bytes of the cache at the end of a run, with those that were there before."""
    calls = {(call.stage, call.id): call.symbols for call in model.invocations(run)}
    config, every = model.info().symbols, Counter[tuple[str, str, str]]()
    for node in model.formulas(run).nodes:  # whatever is stored
        for metric in ("kv_cache_bytes", *(("kv_read_bytes",) * (run.past > 0 and node.stage == "prefill"))):
            if metric in node.exprs and (node.stage, node.invocation) in calls:
                every[node.stage, node.invocation, node.exprs[metric]] += 1
    return sum(n * evaluate(e, {**config, **calls[stage, of]}) for (stage, of, e), n in every.items())


def _cached(model: WithFormulas, run: Workload, found: Fits) -> Iterator[Recount]:
    """Yield the bytes that a token adds to the cache of one sequence, and those of all tokens."""
    mesh = run.mesh
    if found.cache_bytes is None or run.rows:
        return
    yield Recount("memory", f"rank {run.rank}", "cache_bytes", found.cache_bytes, cache_held(model, run))
    yield from _formatted(model, run, found.cache_bytes)
    if KV_BLOCK in run.inputs and isinstance(model, WithBlocks):
        blocks = model.blocked_cache(run)
        assert blocks is not None
        held, wastes = blocks_in_use(blocks, run)
        yield Recount("memory", f"rank {run.rank}, blocks", "cache_bytes", found.held_cache_bytes or 0, held)
        yield Recount("memory", f"rank {run.rank}, blocks", "is a waste", found.cache_waste_bytes in wastes, True)
        surplus, live = _surplus(blocks, run), {stage.id: stage.live_bytes for stage in found.stages}
        if all(live.get(stage) is not None for stage in surplus):
            most = max((live[stage] or 0) + size for stage, size in surplus.items())
            yield Recount("memory", "blocks", "blocked_live_bytes", found.blocked_live_bytes or 0, most)
    if found.token_bytes is None or not run.own_batch:
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


_HEAD_BITS: Final[dict[str, tuple[int, int, int]]] = {
    "fp8": (8, 0, 1), "int8": (8, 32, 0), "int4": (4, 32, 0), "nvfp4": (4, 8, 16), "q8_0": (8, 16, 32),
    "q4_0": (4, 16, 32),
}  # fmt: skip
"""Format of a cache -> bits of an element, of a scale, and elements with one scale, 0 for all of a head.

Sources: vLLM ``v1/kv_cache_interface.py``; llama.cpp, ``ggml-common.h`` (q8_0 has 34 bytes for 32, q4_0 18).
"""


def _formatted(model: WithFormulas, run: Workload, size: int) -> Iterator[Recount]:
    """Yield the bytes of a cache with fewer bits, head by head, from the elements of one in the dtype of the run."""
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


def _in_use(past: int, new: int, window: int, size: int) -> tuple[int, int]:
    """Return the blocks that hold a token which a call reads or writes, and the number of these tokens."""
    first = next(iter(range(past - window + 1, past + new + 1) if 0 < window <= past else (0,)))
    tokens = range(first, past + new)
    if not tokens:
        return 0, 0
    if len(tokens) <= 4_096:
        return len({token // size for token in tokens}), len(tokens)
    return tokens[-1] // size - tokens[0] // size + 1, len(tokens)


def _calls(run: Workload, size: int) -> Iterator[tuple[str, tuple[BatchRow, ...]]]:
    """Yield the prompt, and the decode steps after which the blocks of windows repeat."""
    yield "prefill", run.rows or (BatchRow(run.text_tokens, run.past, run.own_batch),)
    for step in range(max(0, run.new_tokens - 2 * size), run.new_tokens):
        yield "decode", (BatchRow(1, run.past + run.text_tokens + step, run.own_batch),)


def blocks_in_use(of: BlockedCache, run: Workload) -> tuple[int, set[int]]:
    """Return the most bytes that a call holds in blocks, and the bytes without a token in each call with as many."""
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


def _surplus(of: BlockedCache, run: Workload) -> dict[str, int]:
    """Return, for each stage, the most that blocks have more than tokens, each layer before or after its own write."""
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
    """Yield the padded tokens of a run with their FLOPs, and the blocks of its cache, each block a token at a time."""
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


# --- Weights ---------------------------------------------------------------------------------------------------------


def gathered_recounts(model: WithFormulas, run: Workload, found: int | None) -> Iterator[Recount]:
    """Yield the most bytes of gathered parameters at once, each group being put together after the one before."""
    ranks = run.mesh.fsdp * run.mesh.cp
    if run.mesh.fsdp == 1 or found is None:
        return
    sizes: Counter[str] = Counter()
    counted: Ledger = evaluate_formulas(model, run)
    for node in bearing((n for n in counted.nodes if n.stage == "prefill"), "weight_bytes"):
        layer = node.module.split(".layers.")
        sizes[layer[1].partition(".")[0] if len(layer) > 1 else ""] += (node.cost("weight_bytes") or 0) * ranks
    root = sizes.pop("", 0)  # a stage between the first and the last has layers alone
    memory = {"parameters of the root": root, "buffer": root}
    most = sum(memory.values())
    for size in (sizes[name] for name in sorted(sizes, key=int)):
        memory |= {"parameters of a layer": size, "next buffer": size}
        most = max(most, sum(memory.values()))
        memory = {"parameters of the root": root, "buffer": memory["next buffer"]}
    yield Recount("memory", "gathered parameters", "bytes", found, most)


def _quantised(model: WithFormulas, found: Fits) -> Iterator[Recount]:
    """Yield whether an unpacked matrix is one of the model, and no smaller than a quantised linear layer."""
    if found.stored_bytes is None or found.unpacked_bytes is None or found.workload.mesh.fsdp > 1:
        return
    symbols, element = model.info().symbols, FLOAT_BYTES[found.workload.dtype]
    of = evaluate_formulas(model, replace(found.workload, inputs={}, text_tokens=1, batch=1, new_tokens=0))
    sizes: dict[bool, int] = {}
    for node in of.nodes:
        if node.cost(UNPACKED):
            routed = "experts" in node.role.split(".")
            sizes[routed] = max(sizes.get(routed, 0), node.cost("weight_read_bytes") or 0)
    linear = sizes.get(False, 0)
    with_bias = found.unpacked_bytes + found.unpacked_bytes // 8  # of at least 8 columns
    yield Recount("memory", "a quantised linear layer", "above the largest one", max(0, linear - with_bias), 0)
    inner = symbols.get("text_moe", symbols.get("text_intermediate", 0))
    one = inner * symbols.get("text_hidden", 0) * element
    stacks = {one, 2 * one, 2 * one * symbols.get("text_experts", 1)}  # the first two of an expert, the last of all
    if True in sizes and found.unpacked_bytes > linear:
        yield Recount("memory", "matrices of experts", "have the unpacked one", found.unpacked_bytes in stacks, True)


# --- Limits ----------------------------------------------------------------------------------------------------------


def _limit(
    model: WithFormulas, held: Mapping[tuple[int, ...], Fits], found: Fits, limit: MemoryLimit
) -> Iterator[Recount]:
    """Yield what all ranks hold just below and at a limit: below, every rank fits; at the limit, one does not.

    The model must refuse all values between.
    """
    where, below = f"{limit.setting}, {limit.held}", 0
    own: int = getattr(found.workload, limit.setting)
    for point in limit.points:
        every = _held(model, held, found, limit, point.at)
        most = max(every, default=0)
        over = limit.outcome == "from" and point.at == limit.at
        if limit.outcome != "not solved":
            yield Recount("memory", where, f"does not fit at {point.at}", most > found.memory_bytes, over)
        again = point.bytes if point.bytes in every else most
        yield Recount("memory", where, f"bytes at {point.at}", point.bytes, again)
        below = point.at if limit.at is not None and point.at < limit.at else below
    if limit.at is None or limit.outcome == "not solved":
        return
    if limit.outcome == "refused":
        with suppress(CostproofError):  # sizes that the model does not take may have no formulas
            mesh, parts = found.workload.mesh, found.workload.sequence_parts
            step = parts if limit.setting == "text_tokens" else mesh.dp if mesh.batches > 1 else 1
            before = limit.at - step
            ends = [max(_held(model, held, found, limit, at), default=0) for at in (before, limit.at)]
            right = (before < own or ends[0] <= found.memory_bytes) and ends[1] > found.memory_bytes
            yield Recount("memory", where, f"stops to fit at {limit.at}", right, True)
        return
    between = (_with(found.workload, limit, at) for at in range(max(below + 1, limit.at - _MOST_REFUSED), limit.at))
    equal = (run for run in between if run.own_batch > 0 and not run.gathered_batches)
    taken = sum(_is_accepted(model, run) for run in equal)
    yield Recount("memory", where, f"values between {below} and {limit.at}", 0, taken)


def _held(
    model: WithFormulas, held: Mapping[tuple[int, ...], Fits], found: Fits, limit: MemoryLimit, at: int
) -> list[int]:
    """Return the bytes that each kind of rank holds at a value of the setting of a limit."""
    kinds: dict[object, int] = {}
    for ranks, answer in held.items():
        for rank in ranks:
            run = _of_rank(_with(found.workload, limit, at), rank)
            calls = tuple((call.stage, call.id, *sorted(call.symbols.items())) for call in model.invocations(run))
            kind = ranks, run.own_batch, run.mesh.coordinates(rank).pp, calls
            if kind not in kinds:
                kinds[kind] = (answer.lasting_bytes or 0) + _growing(model, run, answer, live=limit.held == _LIVE)
    return list(kinds.values())


def _growing(model: WithFormulas, run: Workload, answer: Fits, *, live: bool) -> int:
    blocks = model.blocked_cache(run) if KV_BLOCK in run.inputs and isinstance(model, WithBlocks) else None
    if not live:
        return cache_held(model, run) if blocks is None else blocks_in_use(blocks, run)[0]
    assert isinstance(model, WithMemory)  # the limit was solved with it
    more: Mapping[str, int] = {} if blocks is None else _surplus(blocks, run)
    peaks = live_peaks(model, run, inputs_held=False)
    return (answer.unpacked_bytes or 0) + max(n + more.get(stage, 0) for (stage, _, _), n in peaks.items())


def _with(workload: Workload, limit: MemoryLimit, at: int) -> Workload:
    changed: dict[str, Any] = {limit.setting: at}
    return replace(workload, **changed)


def _is_accepted(model: WithFormulas, run: Workload) -> bool:
    try:
        model.check(run)
    except CostproofError:
        return False
    return True
