"""Count a second time, by separate code, the memory of a run and the limits of its settings.

No graph gives a limit, the blocks of a cache, or what ranks gather. Here a run is counted anew just below and at each
limit, without the solved expressions; blocks are those that hold a token in use; gathered parameters are put together
one group after another; and all sums are made from their parts. A difference is a defect of costproof.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any, Final

from costproof.algebra.evaluation import evaluate
from costproof.algebra.series import CACHED, CONTEXT
from costproof.algebra.symbols import parse
from costproof.analytic.memory_tape import MemoryTape
from costproof.estimate.memory import Fits, MemoryLimit, MeshTried
from costproof.ledger.errors import CostproofError, Recount
from costproof.ledger.mesh import PLAN, RANK
from costproof.ledger.metrics import UNFUSED, UNPACKED, Metric
from costproof.ledger.node import CostNode, Ledger, bearing
from costproof.ledger.peaks import CallPeaks, Peak
from costproof.ledger.workload import FLOAT_BYTES, KV_BLOCK, KV_DTYPE, Workload
from costproof.models.target import Target, WithBlocks, WithFormulas, WithMemory
from costproof.parametric.cache_checks import blocks_beyond, blocks_in_use, cache_held, cache_recounts
from costproof.parametric.rank_checks import gathered_places
from costproof.parametric.targets import evaluate_formulas, live_peaks

_LIVE: Final = "weights and live peak"
_MOST_REFUSED: Final = 1_000
"""Maximum number of values below a limit that are checked to be refused by the model if no value fits."""


def memory_recounts(model: WithFormulas, held: Mapping[tuple[int, ...], Fits], found: Fits) -> Iterator[Recount]:
    """Yield second counts of all memory figures and limits of a run with formulas.

    Args:
        model: the target, whose formulas made all numbers.
        held: ranks -> their answer; on one device, rank 0.
        found: the answer that is reported.
    """
    for ranks, answer in held.items():
        of = _of_rank(found.workload, ranks[0])
        yield from _parts(answer)
        yield from _bound_recounts(model, of, answer)
        yield from _lasting(model, of, answer)
        yield from _live(model, of, answer)
        yield from cache_recounts(model, of, answer)
        yield from gathered_recounts(model, of, answer.unpacked_bytes)
    yield from _quantised(model, found)
    yield from _ranks(held, found)
    limits = {(limit.setting, limit.held) for answer in held.values() for limit in answer.limits}
    yield Recount("memory", "limits of any rank", "number", len(found.limits), len(limits))
    for limit in found.limits:
        yield from _bounds(limit, found)
        if limit.held in ("weights and cache", _LIVE):
            yield from _limit(model, held, found, limit)


def graph_recounts(
    found: Fits,
    model: Target | None = None,
    counted: Ledger | None = None,
    peaks: Mapping[tuple[int, int], Mapping[str, int]] | None = None,
) -> Iterator[Recount]:
    """Yield second counts of the sums and limits of a run without formulas, computed from one another.

    A cache has equal parts for all sequences, and grows with a text by no more than at its beginning.

    Args:
        peaks: peaks of the graphs that were exported for limits, by stage, by (batch, text tokens).
    """
    yield from _parts(found)
    cache, certain, run = found.cache_bytes, found.certain_bytes, found.workload
    if cache is None or certain is None or found.lasting_bytes is None:
        return
    grown = {"batch": Fraction(cache, run.batch), "text_tokens": Fraction((found.token_bytes or 0) * run.batch)}
    least = grown["text_tokens"] * run.text_tokens
    yield Recount("memory", "a token of a sequence", "more than all of the cache", max(Fraction(0), least - cache), 0)
    if model is not None and counted is not None and found.token_bytes is not None:
        longer, kept = replace(run, text_tokens=run.text_tokens + 1), [*bearing(counted.nodes, "kv_cache_bytes")]
        held = []
        for of in (run, longer):
            sizes = {(call.stage, call.id): call.symbols for call in model.invocations(of)}
            cached = ((n.exprs.get("kv_cache_bytes", "0"), sizes.get((n.stage, n.invocation), {})) for n in kept)
            held.append(sum(evaluate(cost, values) for cost, values in cached))
        every = found.token_bytes * run.batch
        yield Recount("memory", "a token of all sequences", "cache_bytes", every, held[1] - held[0])
    for limit in found.limits:
        yield from _bounds(limit, found)
        own, ends = getattr(run, limit.setting), limit.points
        slope = Fraction(ends[1].bytes - ends[0].bytes, ends[1].at - ends[0].at) if len(ends) == 2 else None
        for point in ends:
            where = f"bytes at {limit.setting} {point.at}"
            at = _with(run, limit, point.at)
            alive = (peaks or {}).get((at.batch, at.text_tokens))
            if limit.held == _LIVE and alive:
                most = sum((found.lasting_bytes, found.unpacked_bytes or 0, max(alive.values())))
                yield Recount("memory", limit.held, where, point.bytes, most)
            affine = slope == grown[limit.setting] or (slope is None and point.at == own)
            if limit.held == "weights and cache" and affine:
                again = certain + grown[limit.setting] * (point.at - own)
                yield Recount("memory", limit.held, where, point.bytes, again)


def peak_recounts(found: Fits, calls: Collection[CallPeaks], model: Target | None) -> Iterator[Recount]:
    """Yield the peaks of a capture's calls, from the tensors alive at each, and what follows of them.

    A call holds what its operators made and, besides, its arguments, which others may hold.
    """
    peaks: dict[str, list[Peak | None]] = {}
    for call in calls:
        peaks.setdefault(call.stage, []).append(call.eager)
    made = {
        s: max((sum(t.bytes for t in e.alive if t.operator) for e in of if e), default=0) for s, of in peaks.items()
    }
    for stage in found.stages:
        mine = peaks.get(stage.id, [])
        every = sum(t.bytes for e in mine if e for t in e.alive) if None not in mine else 0
        yield Recount("memory", f"{stage.id}, eager", "peak_bytes", stage.peak_bytes or 0, made.get(stage.id, 0))
        yield Recount("memory", f"{stage.id}, all eager", "peaks_bytes", stage.peaks_bytes or 0, every)
    lasting, sums = found.lasting_bytes, [stage.peaks_bytes for stage in found.stages]
    if lasting is None or found.held_cache_bytes is not None or found.unpacked_bytes:
        return
    if None not in sums and found.buffers_bytes is not None:
        most = lasting + sum(n or 0 for n in sums)
        yield Recount("memory", "weights, buffers and all peaks", "bytes", found.eager_most_bytes or 0, most)
        if found.live_bytes is None:
            yield Recount("memory", "weights, buffers and all peaks", "upper bound", found.most_bytes or 0, most)
    if found.certain_bytes is not None:
        least = max(found.certain_bytes, lasting + max(made.values(), default=0))
        yield Recount("memory", "weights, buffers and largest peak", "bytes", found.eager_least_bytes or 0, least)
        if found.live_bytes is None:
            yield Recount("memory", "weights, buffers and largest peak", "lower bound", found.least_bytes or 0, least)
    for limit in found.limits:
        if limit.held != "weights and graph peak" or model is None:
            continue
        for point in limit.points:
            run = _with(found.workload, limit, point.at)
            sizes = {(c.stage, c.id): {**model.info().symbols, **c.symbols} for c in model.invocations(run)}
            alive = []
            for call in calls:
                values = sizes.get((call.stage, call.invocation), {})
                if call.form and {s.name for s in parse(call.form).free_symbols} <= values.keys():
                    alive.append(evaluate(call.form, values) - evaluate(call.given or "0", values))
            again = lasting + max(alive, default=0)
            yield Recount("memory", f"{limit.held}, {limit.setting} {point.at}", "bytes", point.bytes, again)


_UNITS: Final = {
    "": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15, "KiB": 2**10, "MiB": 2**20,
    "GiB": 2**30, "TiB": 2**40, "PiB": 2**50,
}  # fmt: skip


def room_recounts(found: Fits, whole: int, memory: int | str | None, reserve: int | str | None) -> Iterator[Recount]:
    """Yield second counts of available memory and reserve, and checks of the search for the smallest mesh.

    Args:
        whole: bytes of a device.
        memory, reserve: as the caller gave them.
    """
    for what, given, size in (("memory", memory, whole), ("reserve", reserve, found.reserve_bytes)):
        if isinstance(given, str) and not (what == "reserve" and given.replace(".", "").isdecimal() and "." in given):
            number = given.strip().rstrip("kKMGTPiB").rstrip()
            unit = given.strip().removeprefix(number).strip()
            yield Recount("memory", f"the {what} of {given}", "bytes", size, Fraction(number) * _UNITS[unit])
    if isinstance(memory, int):
        yield Recount("memory", "the memory", "bytes", whole, memory)
    yield Recount(
        "memory", "what is compared and the reserve", "bytes", found.memory_bytes + found.reserve_bytes, whole
    )
    before, _, digits = reserve.partition(".") if isinstance(reserve, str) else ("", "", "")
    if digits.isdecimal():  # a fraction
        again = whole * int(before + digits) // 10 ** len(digits)
        yield Recount("memory", f"the reserve of {reserve}", "bytes", found.reserve_bytes, again)
    elif not isinstance(reserve, str):
        yield Recount("memory", "the reserve", "bytes", found.reserve_bytes, reserve or 0)
    ranks, experts = range(1, min(found.count or 0, 1024) + 1), found.target.symbols.get("text_experts", 0)
    every = sorted({(tp, ep) for tp in ranks for ep in ((1, tp) if experts else (1,))})
    last = len(found.tried) if found.verdict == "fits" else len(every)
    for i, (tp, ep) in enumerate(every[:last] if found.tried else ()):
        same = i < len(found.tried) and (found.tried[i].tp, found.tried[i].ep) == (tp, ep)
        yield Recount("memory", f"tp {tp}, ep {ep}", "is tried", same, True)
    for tried in found.tried[:-1]:
        yield Recount(
            "memory", f"tp {tried.tp}, ep {tried.ep}", "fits, and is not taken", tried.verdict == "fits", False
        )


def order_recounts(found: Fits) -> Iterator[Recount]:
    """Yield the bytes by which a lower bound of the memory exceeds an upper bound, in a run and in its modules."""
    pairs = [("a run", found.least_bytes, found.most_bytes)]
    if found.peaks_bytes is not None and found.held_cache_bytes is None:  # no eager peak has a cache in blocks
        pairs.append(("modules as written", found.eager_least_bytes, found.eager_most_bytes))
    for what, least, most in pairs:
        if least is not None and most is not None:
            over = max(0, least - most)
            yield Recount("memory", f"the lower bound of {what}", "bytes above the upper bound", over, 0)


def tried_recounts(tried: MeshTried, found: Fits, rank: int) -> Iterator[Recount]:
    """Yield a second count of a tried mesh's weights and buffers, from the result for a mesh with the same rank."""
    rows = [row.weights_bytes for row in found.ranks if rank in row.ranks] or [found.held_weights]
    if tried.weights_bytes is not None and rows[0] is not None and found.buffers_bytes is not None:
        again = rows[0] + found.buffers_bytes
        yield Recount("memory", f"tp {tried.tp}, ep {tried.ep}", "weights_bytes", tried.weights_bytes, again)


def _of_rank(workload: Workload, rank: int) -> Workload:
    return workload if workload.mesh.one else replace(workload, inputs={**workload.inputs, RANK: rank})


def _bound_recounts(model: WithFormulas, run: Workload, found: Fits) -> Iterator[Recount]:
    """Yield the upper bound of activations of each stage, node by node, in its last call.

    All that crosses a module is held, and of one layer of each kind, and of modules outside of layers, what operators
    read and write without weights, and copies of inputs and results; of heads that see a past, keys and values; three
    masks as numbers and four as booleans; and latent attention under sdpa, in float32.
    """
    config, item = model.info().symbols, FLOAT_BYTES[run.dtype]
    nodes = model.formulas(run).nodes
    sizes: dict[tuple[str, str], dict[str, int]] = {}
    bound: Counter[str] = Counter()
    for call in model.invocations(run):
        sizes[call.stage, call.id] = values = {**config, **call.symbols}
        of_sdpa = run.attention == "sdpa" and "text_kv_rank" in values
        wide, value = values.get("text_nope", 0) + values.get("text_rope", 0), values.get("text_value", 0)
        latent = values.get("text_kv_rank", 0)
        absorbed = [(latent + values.get("text_rope", 0), latent)] if found.conventions.mla == "absorbed" else []
        expanded = [(wide, value)] if wide != value else []
        batch, new, past = (values.get(name, 0) for name in ("B", "S", "C"))
        pairs = [(batch, new, new + past)] + ([(batch, new, new)] if past else [])
        kinds = expanded
        if run.rows:
            pairs, kinds = [(row.count, row.new, row.new + row.past) for row in run.rows], [*{*expanded, *absorbed}]
        bound[call.stage] += (3 * item + 4) * sum(n * q * k for n, q, k in (pairs if run.rows else pairs[:1]))
        if "N" in values and "P" in values:
            pairs, kinds = [(batch, 1, values["P"] + values["N"])], absorbed or expanded
            values |= {"P": values["P"] + values["N"] - 1, "N": 1}
        for (keys, results), (n, q, k) in product(kinds if of_sdpa else (), pairs):
            bound[call.stage] += values["text_heads"] * n * (13 * q * k + (q + k) * (12 * keys + 8 * results))
    layers: dict[tuple[str, str, str], list[CostNode]] = {}
    for node in nodes:
        if (values := sizes.get((node.stage, node.invocation), {})) and "output_bytes" in node.exprs:
            bound[node.stage] += evaluate(node.exprs["output_bytes"], values)
        parts = node.module.split(".")
        layer = ".".join(parts[: next((i + 1 for i, part in enumerate(parts) if part.isdecimal()), 0)])
        layers.setdefault((node.stage, node.invocation, layer), []).append(node)
    seen = set()
    for (stage, name, layer), mine in layers.items():
        moved = (f"{n.module.removeprefix(layer)} {n.exprs[UNFUSED]}" for n in mine if UNFUSED in n.exprs)
        if (stage, name) not in sizes or (kind := (stage, name, layer and "layer", *sorted(moved))) in seen:
            continue
        seen.add(kind)
        for node in mine:
            cost = {m: evaluate(node.exprs[m], sizes[stage, name]) for m in _ALIVE if m in node.exprs}
            bound[stage] += sum(cost.get(m, 0) * sign for m, sign in zip(_ALIVE, (1, -1, 1, 1), strict=True))
            if node.kind == "attention" and CONTEXT in parse(node.exprs["flops"]).free_symbols:
                bound[stage] += evaluate(node.exprs["flops"], sizes[stage, name]) // 2 * (item + item % 2)
    for of in found.stages:
        if of.activations_bytes is not None:
            where = f"rank {run.rank}, {of.id}"
            yield Recount("memory", where, "activations_bytes", of.activations_bytes, bound[of.id])


_ALIVE: Final[tuple[Metric, ...]] = (UNFUSED, "weight_read_bytes", "input_bytes", "output_bytes")


def _parts(found: Fits) -> Iterator[Recount]:
    """Yield second counts of the sums of memory components, and of the verdict that follows from them."""
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
    exact = KV_DTYPE not in found.workload.inputs
    over = lasting + (max(cache, found.live_bytes or 0) if exact else cache) > found.memory_bytes
    again = "does not fit" if over else "fits" if most <= found.memory_bytes else "not known"
    yield Recount("memory", f"the verdict {found.verdict}", "follows", found.verdict == again, True)
    largest = [s.live_bytes or 0 for s in found.stages]
    yield Recount("memory", "largest stage", "live_bytes", found.live_bytes or 0, max(largest))


def _lasting(model: WithFormulas, run: Workload, found: Fits) -> Iterator[Recount]:
    """Yield second counts of a rank's buffers and stored weights, summed module by module."""
    sizes: Counter[str] = Counter()
    modules = {node.module: node for node in evaluate_formulas(model, run).nodes if not node.invocation}
    for node in modules.values():
        sizes.update({metric: node.cost(metric) or 0 for metric in ("buffer_bytes", "resident_bytes")})
    if found.buffers_bytes is not None:
        yield Recount("memory", f"rank {run.rank}", "buffers_bytes", found.buffers_bytes, sizes["buffer_bytes"])
    # Files of bitsandbytes have descriptions, and some modules in float32, which the memory does not have.
    kept = run.mesh.one and "bitsandbytes" in found.stored_format
    if found.stored_bytes is not None and run.mesh.fsdp == 1 and sizes["resident_bytes"] and not kept:
        stored = sizes["resident_bytes"] - sizes["buffer_bytes"] + found.next_token_bytes
        yield Recount("memory", f"rank {run.rank}", "stored_bytes", found.stored_bytes, stored)
    layers = Counter[int]()
    for path, node in modules.items():
        if found_in := re.search(r"\.layers\.(\d+)\.", f".{path}."):
            layers[int(found_in[1])] += node.cost("resident_bytes") or 0
    holds = run.mesh.coordinates(run.rank).pp == run.mesh.pp - 1
    further = found.next_token_modules if holds else 0
    least = further * layers[max(layers, default=0)]  # projections, norms and tables come beside them
    less = max(0, least - found.next_token_bytes)
    yield Recount("memory", "MTP modules", "bytes below those of the last layer", less, 0)


def _live(model: WithFormulas, run: Workload, found: Fits) -> Iterator[Recount]:
    """Yield second counts of a rank's weights, and of the cache and live peak of each stage.

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
    by_formula = found.live_bytes is not None and found.live_source != "graph"
    if run.mesh.tp > 1 and run.inputs.get(PLAN) == "megatron":  # whose ranks share tokens between split modules
        yield Recount("memory", where, "has a live peak of ranks that share tokens", by_formula, False)
    for node in nodes if by_formula and run.mesh.tp > 1 else ():
        if node.role == "lm_head" and node.kind == "all_gather" and (messages := node.cost("messages")):
            # All logits of a call, gathered and, but for a single row, put in order.
            one_each = node.stage != "prefill" or run.logits == "last" or run.own_tokens == 1
            whole = (node.cost("comm_payload_bytes") or 0) // messages
            least = whole if run.own_batch == 1 and one_each else 2 * whole
            live = next(stage.live_bytes or 0 for stage in found.stages if stage.id == node.stage)
            yield Recount("memory", f"{where}, {node.stage}", "logits above the live peak", max(0, least - live), 0)
    if found.live_source == "graph" or found.live_bytes is None or not isinstance(model, WithMemory):
        yield Recount("memory", where, "last_logits_bytes", found.last_logits_bytes or 0, 0)
        return
    peaks = live_peaks(model, run, inputs_held=False)
    calls = {(call.stage, call.id): call.symbols for call in model.invocations(run)}
    prompt = next((of["S"] for (stage, _), of in calls.items() if stage == "prefill" and "S" in of), None)
    before = run.past + (prompt or 0)
    for place, tape in model.memory(run).items():
        values = {**model.info().symbols, **calls[place[:2]]}
        if {CONTEXT.name, "N"} <= values.keys():
            values[CONTEXT.name] += values["N"] - 1
        where_of = f"{where}, {'/'.join(filter(None, place))}"
        yield Recount("memory", where_of, "live_bytes", peaks[place], _replayed(tape, values))
        yield from _in_attention(type(model).__name__, run, where_of, values, tape)
    for place, tape in model.memory(run).items() if prompt is not None and run.mesh.one and not run.rows else ():
        of_call = {**model.info().symbols, **calls[place[:2]]}
        # The cache of the last step has all tokens before it; that of a decoder after an encoder is apart.
        if "N" in of_call and of_call[CONTEXT.name] == before:
            at_end = {**of_call, CONTEXT.name: before + of_call["N"] - 1}
            yield Recount("memory", "last step", "live_bytes", peaks[place], tape.peak_bytes(at_end, inputs_held=False))
    for stage in found.stages:
        again = max((n for (of, _, _), n in peaks.items() if of == stage.id), default=0)
        yield Recount("memory", f"{where}, {stage.id}", "live_bytes", stage.live_bytes or 0, again)
    last = replace(run, logits="last")
    few = live_peaks(model, last, inputs_held=False) if run != last and _is_accepted(model, last) else {}
    yield Recount("memory", where, "last_logits_bytes", found.last_logits_bytes or 0, max(few.values(), default=0))


_SOFTMAX_IN_FLOAT32: Final = (
    "Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe", "Gemma", "Gemma2", "Gemma3",
)  # fmt: skip
"""Classes of families whose ``eager_attention_forward`` in transformers has its softmax in float32."""


def _in_attention(
    family: str, run: Workload, where: str, values: Mapping[str, int], tape: MemoryTape
) -> Iterator[Recount]:
    """Yield checks that a tape of a prompt has what attention makes besides numbers in the run's dtype.

    Softmax of written-out attention has scores and their shares in float32; fused attention on a CPU turns a boolean
    mask, which a prompt after cached tokens needs, into numbers. Layers with a window have other sizes: unchecked.
    """
    tokens, past, batch = (values.get(name, 0) for name in ("S", CACHED.name, "B"))
    kind, item = run.attention, FLOAT_BYTES[run.dtype]
    known = family in _SOFTMAX_IN_FLOAT32 and "text_window" not in values and "text_heads" in values
    if not known or not run.mesh.one or run.rows or tokens < 2 or not batch:
        return
    pairs = batch * tokens * (past + tokens)
    made = Counter(n if isinstance(n, int) else evaluate(n, values) for n in tape.sizes)
    layers = min(2, values.get("text_layers", 1))  # tapes have the last two
    if kind == "eager" and item != 4:
        scores = 4 * pairs * values["text_heads"]
        yield Recount("memory", where, "has scores and shares in float32", made[scores] >= 2 * layers, True)
    if kind == "sdpa" and past:
        yield Recount("memory", where, "has a mask of numbers", made[item * pairs] >= layers and made[pairs] >= 1, True)


def _replayed(tape: MemoryTape, values: Mapping[str, int]) -> int:
    """Return the most bytes alive at once when the operators of a tape run in order, each freeing what nothing reads.

    Inputs are freed as all else. What a call returns stays.
    """
    known = {n: n if isinstance(n, int) else evaluate(n, values) for n in {*tape.sizes}}
    size = [known[n] for n in tape.sizes]
    readers = Counter(piece for _, reads in tape.steps for piece in {*reads})
    held = most = sum(size[piece] for piece in tape.inputs)
    for made, reads in tape.steps:
        if made is not None:
            held += size[made]
            most = max(most, held)
        for piece in {*reads}:
            readers[piece] -= 1
        for piece in {*reads, *(() if made is None else (made,))}:
            held -= size[piece] if not readers[piece] and piece not in tape.results else 0
    return most


def _ranks(held: Mapping[tuple[int, ...], Fits], found: Fits) -> Iterator[Recount]:
    """Yield checks of the ranks' table, and of which ranks have the most bytes, against the result for each rank."""
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
        held_by = {rank: (of.weights_bytes or 0) + of.next_token_bytes for rank, of in every.items()}
        sums = {rank: held_by[rank] + (of.cache_bytes or 0) for rank, of in every.items()}
        yield from binding(sums, found.binding_ranks)


def binding(sums: Mapping[int, int], found: Collection[int]) -> Iterator[Recount]:
    """Yield a check for each rank whether it is found among those with the most bytes of weights and cache."""
    for rank, size in sums.items():
        binds = size == max(sums.values())
        yield Recount("memory", f"rank {rank}", "holds most weights and cache", rank in found, binds)


def _bounds(limit: MemoryLimit, found: Fits) -> Iterator[Recount]:
    """Yield checks that a run fits at the values given below a limit, and does not fit at the limit."""
    for point in limit.points:
        fits = point.at != limit.at if limit.outcome == "from" else True
        if limit.outcome != "not solved":
            where = f"{limit.setting} {point.at}, {limit.held}"
            yield Recount("memory", where, "fits", point.bytes <= found.memory_bytes, fits)


# --- Weights ---------------------------------------------------------------------------------------------------------


def gathered_recounts(model: WithFormulas, run: Workload, found: int | None) -> Iterator[Recount]:
    """Yield a second count of the most bytes of gathered parameters at once, gathering one group after another."""
    yield from gathered_places(run)
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
    """Yield checks that the largest unpacked matrix exists in the model and that no quantised one is larger."""
    if found.stored_bytes is None or found.unpacked_bytes is None or found.workload.mesh.fsdp > 1:
        return
    symbols, element = model.info().symbols, FLOAT_BYTES[found.workload.dtype]
    mesh = found.workload.mesh
    one_call = replace(found.workload, inputs={}, text_tokens=1, batch=1, new_tokens=0)
    of = evaluate_formulas(model, one_call if mesh.one else replace(found.workload, new_tokens=0))
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
    # Of a rank's experts: either ranks divide them, or their inner width. All have 3 x inner x hidden weights.
    held = max((node.cost("params") or 0 for node in of.nodes if node.role == "text.layer.experts"), default=0)
    every = 3 * symbols.get("text_experts", 1) * one // element
    parts = next((n for n in sorted({1, mesh.tp, mesh.ep}) if every <= n * held), 1)
    each = one if mesh.ep > 1 else one // parts
    # The first two of an expert, the last of all.
    stacks = {each, 2 * each, 2 * one * symbols.get("text_experts", 1) // parts}
    tables = [symbols.get("text_vocab", 0) * symbols.get("text_hidden", 0) * element for found_in in of.nodes
              if found_in.role.endswith(("embedding", "lm_head")) and found_in.cost(UNPACKED)]  # fmt: skip
    largest = max(linear, *tables, *(stacks if True in sizes else ()), 0)
    if sizes:
        above = max(0, found.unpacked_bytes - largest)
        yield Recount("memory", "the unpacked matrix", "bytes above those of all matrices", above, 0)
    if True in sizes and found.unpacked_bytes > linear:
        yield Recount("memory", "matrices of experts", "have the unpacked one", found.unpacked_bytes in stacks, True)


# --- Limits ----------------------------------------------------------------------------------------------------------


def _limit(
    model: WithFormulas, held: Mapping[tuple[int, ...], Fits], found: Fits, limit: MemoryLimit
) -> Iterator[Recount]:
    """Yield second counts of the bytes of all ranks just below a limit, where each must fit, and at it.

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
            if ends[0] == ends[1] and below > 2 * step:  # a window that refuses longer texts: nothing grows behind it
                last = [max(_held(model, held, found, limit, below - n * step), default=0) for n in (2, 1, 0)]
                ends = [_continued(last, (at - below) // step) for at in (before, limit.at)]
            right = (before < own or ends[0] <= found.memory_bytes) and ends[1] > found.memory_bytes
            yield Recount("memory", where, f"stops to fit at {limit.at}", right, True)
        return
    between = (_with(found.workload, limit, at) for at in range(max(below + 1, limit.at - _MOST_REFUSED), limit.at))
    equal = (run for run in between if run.own_batch > 0 and not run.gathered_batches)
    taken = sum(_is_accepted(model, run) for run in equal)
    yield Recount("memory", where, f"values between {below} and {limit.at}", 0, taken)


def _continued(values: Sequence[int], steps: int) -> int:
    """Return the value that many steps after the last of three, by the parabola through them."""
    first, second, third = values
    more, bend = third - second, third - 2 * second + first
    return third + steps * more + bend * steps * (steps + 1) // 2


def _held(
    model: WithFormulas, held: Mapping[tuple[int, ...], Fits], found: Fits, limit: MemoryLimit, at: int
) -> list[int]:
    """Return the bytes of each distinct rank when the setting of a limit has a given value."""
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
    more: Mapping[str, int] = {} if blocks is None else blocks_beyond(blocks, run)
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
