"""Implement ``costproof.fits``: whether a run fits into memory, and the largest batch and length that still fit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final

from costproof.estimate.hardware import Device
from costproof.estimate.links import devices_in
from costproof.estimate.memory import (
    NEEDED,
    Fits,
    FitVerdict,
    MemoryLimit,
    MeshTried,
    RankMemory,
    StageMemory,
    activations,
    parse_size,
    row_kinds_in,
    unfused_attention,
)
from costproof.estimate.roofline import choose_source
from costproof.ledger.baseline import Baseline, Folded
from costproof.ledger.capture import Padding
from costproof.ledger.environment import require
from costproof.ledger.errors import BadInput, CostproofError, Incomplete, Recount, check_recounts, first_problem
from costproof.ledger.mesh import PAIRS, RANK, Parallel
from costproof.ledger.node import exact_sum
from costproof.ledger.peaks import CallPeaks
from costproof.ledger.plural import plural
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import FLOAT_BYTES, KV_BLOCK, KV_DTYPE, Workload, cache_counted
from costproof.models.cache_dtype import BlockedCache
from costproof.models.native import NOT_KNOWN, largest_matrix
from costproof.models.target import (
    Exportable,
    Sharded,
    Target,
    WithBlocks,
    WithFormulas,
    WithMemory,
    WithStorage,
    sharded,
)
from costproof.opgraph.rules.files import Files
from costproof.parametric.cache_checks import format_recounts
from costproof.parametric.memory_checks import (
    binding,
    graph_recounts,
    memory_recounts,
    order_recounts,
    peak_recounts,
    room_recounts,
    tried_recounts,
)
from costproof.parametric.run_family import EQUAL_BATCHES, ONE_ROUTING, SettingCurve, Threshold
from costproof.parametric.targets import count_ranks, evaluate_formulas, live_peaks
from costproof.run.count_lock import count_lock
from costproof.run.graph_limits import CACHE, GraphRun, block_limits, graph_peaks, memory_limits, report_order
from costproof.run.operand_files import OperandInput, check_whole
from costproof.run.operands import Operand, baseline_by_formulas, check_counted, export_target, read_operand
from costproof.run.peaks import gathered_bytes
from costproof.run.stored import further_of_ranks, stored_checkpoint
from costproof.storage.checkpoint import StoredCheckpoint

BLOCKS: Final = (
    "the cache is kept in blocks, no prefix is shared: the most that a call holds counts, and with the live peak, to "
    "which a layer adds its blocks when it writes, it is an upper bound"
)
FURTHER_LAST: Final = "MTP modules are on the last stage of the pipeline, as in vLLM (GPUModelRunner)"
SETTINGS: Final = ("batch", "text_tokens")
"""Settings whose limits are searched."""
_RANK_NAMED: Final = re.compile(rf"[@,]{RANK}=")
"""Matches an operand that names a rank; the default rank 0 is not among the inputs of a workload."""
_CACHE_NAMED: Final = re.compile(r"[@,]kv[-_]dtype=")
_FRACTION: Final = re.compile(r"[0-9]*\.[0-9]+")
_PREFILL: Final = "prefill"
_CACHES: Final = ("kv_read_bytes", "kv_cache_bytes")


def fits(
    target: OperandInput,
    *,
    on: str | os.PathLike[str] | Device | None = None,
    memory: int | str | None = None,
    reserve: int | str | None = None,
    config: str | os.PathLike[str] | None = None,
    next_token: int = 0,
    rules: Files = (),
    trust_remote_code: bool = False,
    progress: Progress = silent,
) -> Fits:
    """Return whether a run fits into a memory, with the bytes that the run takes and the limits of its settings.

    Torch is needed only for quantised weights, and for the graph of a target whose peak no formula gives or bounds.

    Args:
        target: a target with settings, ``"llama-3.1-8b@chat,batch=4"``, or any operand of
            :func:`~costproof.run.diff.diff`. Peaks of a capture are used too.
        on: a device, whose memory is the limit unless ``memory`` is given. On ``8xh100-sxm`` a run that names no mesh
            gets the smallest one that fits: tp from 1 to 8, with ep 1 and then tp if there are experts.
        memory: bytes, or a text such as ``"80GB"`` (10^9) and ``"80GiB"`` (2^30).
        reserve: part of the memory that is left to the runtime: bytes, a size, or a fraction such as ``"0.1"``.
        config: a configuration file, for a target.
        next_token: modules that predict one more token (MTP) whose weights are in memory too. Their cache and
            activations are left out, since the run is that of the model without them.
        rules: Python files with operator rules, which are executed, if a graph is counted.
        trust_remote_code: whether the code of a snapshot that is a target may run.
        progress: is told how far exports of a target without formulas are.

    Raises:
        BadInput: there is no such target or device, or no memory is known.
        Incomplete: no source counts weights, caches and activations.
    """
    devices = None if on is None else devices_in(on)
    device = None if devices is None else devices.device
    whole = _memory_limit(device, memory)
    kept_free = _reserve(reserve, whole)
    check_counted(rules, trust_remote_code, target)
    trusted = partial(read_operand, rules=rules, trust_remote_code=trust_remote_code)
    read = partial(trusted, config=config, progress=progress)
    room = _Room(device, whole - kept_free, kept_free, next_token)
    found = read(target)
    mesh = found.baseline.workload.mesh
    several = devices is not None and (devices.count or 1) > 1
    if next_token and found.origin is None:
        what = "a file has no MTP modules: their weights are counted of a target"
        raise BadInput(what, where="--mtp", expected="0, or a target with settings", got=next_token)
    if devices is not None and several and mesh.one and isinstance(target, str) and sharded(found.target) is not None:
        answer = _smallest_mesh(target, devices.count or 1, read, room)
        check_recounts([Recount("memory", "devices", "number", answer.count or 0, devices.count or 0)])
    else:
        if devices is not None and several:
            devices.check(mesh)
        answer = _of_all_ranks(target, found, room)
    check_recounts((*room_recounts(answer, whole, memory, reserve), *order_recounts(answer)))
    if found.peaks:
        check_recounts(peak_recounts(answer, found.peaks, found.target))
    if found.counted and isinstance(target, str):
        check_recounts(format_recounts(found.target, answer, chosen=_CACHE_NAMED.search(target) is not None))
    return answer


@dataclass(frozen=True, slots=True)
class _Room:
    """The memory of one device, and the bytes of it that are available to a run or reserved."""

    device: Device | None
    room: int
    reserve: int
    next_token: int = 0
    """Number of MTP modules whose weights are in memory."""


_MOST_RANKS: Final = 1024
"""Largest ``tp`` that is tried; no model has as many heads."""
_ORDER: Final[dict[FitVerdict, int]] = {"does not fit": 2, "not known": 1, "fits": 0}


def _smallest_mesh(target: str, count: int, read: Callable[[str], Operand], room: _Room) -> Fits:
    """Return the result of the smallest ``tp``, with ``ep`` 1 or ``tp``, that fits; else of the last mesh tried.

    A ``tp`` need not divide the number of devices: the rest is idle, or runs copies.
    """
    tried: list[MeshTried] = []
    too_large: tuple[str, Operand] | None = None
    routed = False
    for tp in range(1, min(count, _MOST_RANKS) + 1):
        for ep in (1, tp) if tp > 1 and routed else (1,):
            spread = f"{target},tp={tp}" + (f",ep={ep}" if ep > 1 else "")
            try:
                side = read(spread)
            except (BadInput, Incomplete) as error:
                if tp == 1:  # what one device refuses is wrong with the run itself
                    raise
                tried.append(MeshTried(tp, ep, None, None, first_problem(error)))
                continue
            routed = "text_experts" in side.baseline.target.symbols
            held = _formula_weights(side.baseline)
            if held is not None and room.next_token:
                held += _further(side, room.next_token)[0]
            found = None if held is not None and held > room.room else _of_all_ranks(spread, side, room)
            tried.append(MeshTried(tp, ep, "does not fit" if found is None else found.verdict, held))
            if found is not None:
                check_recounts(tried_recounts(tried[-1], found, side.baseline.workload.rank))
            if found is not None and found.verdict == "fits":
                return replace(found, count=count, tried=tuple(tried))
            too_large = spread, side
    assert too_large is not None  # one device is tried first
    last = _of_all_ranks(*too_large, room)
    of_last = next(one for one in reversed(tried) if one.verdict is not None)
    check_recounts(tried_recounts(of_last, last, too_large[1].baseline.workload.rank))
    return replace(last, count=count, tried=tuple(tried))


def _formula_weights(side: Baseline) -> int | None:
    """Return the bytes of weights and buffers of the counted rank, as stored if the checkpoint is quantised.

    ``None``: its format is not known.
    """
    _, folded = choose_source(side, needed=NEEDED)
    if "weights" in side.target.quantised:
        return folded.total("resident_bytes") if "resident_bytes" in folded.metrics else None
    return exact_sum(map(folded.total, ("weight_bytes", "buffer_bytes")))


def _of_all_ranks(target: OperandInput, found: Operand, room: _Room) -> Fits:
    """Return the result of the rank with the most bytes, and the smallest limits of all ranks; or of a named rank."""
    workload, model = found.baseline.workload, sharded(found.target)
    named = RANK in workload.inputs or (isinstance(target, str) and _RANK_NAMED.search(target) is not None)
    if named or workload.mesh.one or model is None or found.target is None:
        answer = _of_rank(found, room)
        if found.counted and found.target is not None:
            check_recounts(memory_recounts(found.target, {(workload.rank,): answer}, answer))
        elif found.exported is not None:
            run = found.exported
            check_recounts(graph_recounts(answer, run.target, run.ledger, run.highest | run.peaks))
        return answer
    answers: list[tuple[tuple[int, ...], Fits]] = []
    counted = count_ranks(model, workload, evaluate_formulas(model, workload))
    for row in counted.ranks:
        own = workload.rank in row.ranks
        other = replace(workload, inputs={**workload.inputs, RANK: row.ranks[0]})
        side = found if own else replace(found, baseline=baseline_by_formulas(found.target, other), peaks=())
        answers.append((row.ranks, _of_rank(side, room)))
    answers.sort(key=lambda a: (-_ORDER[a[1].verdict], -(a[1].most_bytes or a[1].certain_bytes or 0), a[0]))
    ranks = tuple(
        RankMemory(ranks, a.held_weights, a.planned_cache_bytes, a.live_bytes, a.most_bytes, a.verdict)
        for ranks, a in answers
    )
    limits: dict[tuple[str, str], list[MemoryLimit]] = {}
    for limit in (x for _, answer in answers for x in answer.limits):
        limits.setdefault((limit.setting, limit.held), []).append(limit)
    least = (min(same, key=lambda x: report_order(Threshold(x.outcome, x.at))) for same in limits.values())
    answer = replace(answers[0][1], ranks=ranks, limits=tuple(least))
    check_recounts(memory_recounts(found.target, dict(answers), answer))
    return answer


def _of_rank(read: Operand, of: _Room) -> Fits:
    """Return the result for the counted rank, or for a run on one device."""
    side, device, room, kept_free = read.baseline, of.device, of.room, of.reserve
    check_whole(side)
    name, folded = choose_source(side, needed=NEEDED)
    along = {} if read.target is None else {s: SettingCurve(side, read.target, s) for s in SETTINGS}
    sizes = along["batch"].sizes(along["batch"].own) if along else {}
    element = FLOAT_BYTES[side.workload.dtype]
    rows = max(map(row_kinds_in, sizes.values()), default=0)
    blocked = _blocked_cache(read.target, side.workload)
    live, why = _live_memory(read.target, side.workload)
    live = live if live is None or blocked is None else replace(live, blocked=blocked)
    peak = None if live is None else live.in_blocks
    by_stage = {} if live is None else live.stages()
    stages = []
    for stage in folded.stages:
        held = None
        if along:
            terms = (*activations(element, stage, rows), *unfused_attention(side, sizes, stage))
            held = along["batch"].value(along["batch"].own, terms)
        known = (*_peaks(read.peaks, stage), by_stage.get(stage))
        stages.append(StageMemory(stage, folded.total("kv_cache_bytes", stage), held, *known))
    weights, buffers = folded.total("weight_bytes"), folded.total("buffer_bytes")
    quantised, unknown = _stored_weights(read.origin, of.next_token)
    without = quantised if not of.next_token else _stored_weights(read.origin, 0, plain=True)[0]
    further, every = _further(read, of.next_token)
    weights = None if quantised is None and "weights" in side.target.quantised else weights
    held = weights if quantised is None or without is None else quantised.totals.bytes - without.buffer_bytes
    # A checkpoint is that of all ranks, in the dtype that its configuration names.
    dtype = side.workload.dtype
    converted = quantised is not None and getattr(read.origin, "dtype", None) not in (None, dtype)
    if quantised is not None and (converted or not side.workload.mesh.one):
        resident = folded.total("resident_bytes")
        held = None if resident is None or buffers is None else resident - buffers + further
        quantised, weights = (None, None) if resident is None else (quantised, weights)  # as notes say why
    if converted and of.next_token:
        what = "the weights of MTP modules are counted in the dtype of the checkpoint"
        raise BadInput(what, where="--dtype, --mtp", expected=getattr(read.origin, "dtype", None), got=dtype)
    unpacked = None
    if quantised is not None and quantised.formats:
        unpacked = _largest_matrix(read, quantised if without is None else without) * element
    if side.workload.mesh.fsdp > 1:
        unpacked = gathered_bytes(read.target, side.workload)
        held = None if unpacked is None else held
    counted = not {*cache_counted(side.target, side.workload).quantised} - (set() if quantised is None else {"weights"})
    certain = None if held is None or buffers is None or not counted else held + buffers + side.attributes_bytes
    kept = (*activations(element, rows=rows), *unfused_attention(side, sizes)) if along and live is None else None
    limits: tuple[MemoryLimit, ...] = ()
    exported, cached = read.exported, bool(folded.total("kv_cache_bytes")) and given_cache(side, folded) == 0
    routed = PAIRS in side.workload.inputs
    if certain is not None and not side.workload.rows and not routed:  # rows and routings say all lengths
        run, matrix = (along, certain, room), unpacked or 0
        if blocked is not None:
            limits = tuple(block_limits(*run, peak, blocked, side.workload, matrix))
        else:
            limits = tuple(memory_limits(*run, kept, peak, read.peaks, matrix))
        if exported is not None:
            limits += tuple(_of_graph(exported, certain, room, matrix, cached=cached))
    answer = Fits(
        side.conventions, side.target, side.workload, side.environment, device, room, name,
        weights_bytes=weights,
        stored_bytes=None if quantised is None else held,
        stored_format="" if quantised is None else ", ".join(quantised.formats),
        next_token_modules=of.next_token,
        next_token_bytes=further,
        next_token_ranks=() if every is None else every.ranks,
        next_token_copies=() if every is None else every.duplicates,
        unpacked_bytes=unpacked,
        buffers_bytes=buffers,
        attributes_bytes=side.attributes_bytes,
        cache_bytes=exact_sum((given_cache(side, folded), *(s.cache_bytes for s in stages))),
        activations_bytes=exact_sum(s.activations_bytes for s in stages),
        peak_bytes=max((s.peak_bytes for s in stages if s.peak_bytes is not None), default=None),
        stages=tuple(stages),
        live_bytes=max(by_stage.values(), default=None),
        last_logits_bytes=None if live is None else live.with_last_logits(),
        token_bytes=exported.token_bytes() if exported and cached else _token_bytes(along, side.workload.own_batch),
        reserve_bytes=kept_free,
        limits=limits,
        notes=(
            *(side.notes if quantised is None else _without_unknown(side.notes)),
            *unknown, *why, *((ONE_ROUTING if routed else EQUAL_BATCHES,) if side.workload.mesh.batches > 1 else ()),
            *((FURTHER_LAST,) if every is not None and side.workload.mesh.pp > 1 else ()),
            *_cache_notes(side.workload, live), *([] if blocked is None else [BLOCKS]),
            *(() if quantised is None else _stored_notes(quantised)),
            *((f"weights that are not quantised are in {dtype}, unlike stored ones",) if converted else ()),
        ),
        rank=None if side.workload.mesh.one else side.workload.rank,
        binding_ranks=() if held is None else _binding_ranks(read.target, side.workload, every),
    )  # fmt: skip
    return _with_graph(answer if blocked is None else _in_blocks(answer, blocked, by_stage), read)


def _largest_matrix(read: Operand, stored: StoredCheckpoint) -> int:
    """Return the number of weights of the largest quantised matrix, on a mesh that of the counted rank's parts.

    Args:
        stored: the checkpoint without MTP modules, whose matrices are those of a layer of the decoder.
    """
    run, model = read.baseline.workload, read.target
    if run.mesh.one or run.mesh.fsdp > 1 or not isinstance(model, WithFormulas):
        return stored.largest_matrix
    one, own = (largest_matrix(model, of) for of in (run.on_mesh(), run))
    if one is None or own is None:
        return stored.largest_matrix
    check_recounts([Recount("memory", "all quantised weights", "largest matrix", one, stored.largest_matrix)])
    return own


def _with_graph(found: Fits, read: Operand) -> Fits:
    """Fill an unknown live peak in a result with those of exported graphs, if these can be computed."""
    target = read.exported.target if read.exported is not None else read.origin
    undecided = found.verdict == "not known" and found.is_known and found.certain_bytes is not None
    if not undecided or found.live_bytes is not None or not isinstance(target, Exportable):
        return found
    run = read.exported
    try:
        workload = found.workload.gathered
        same = run is not None and run.workload == workload
        said = silent if run is None else run.progress
        peaks = run.graph_peaks(workload) if run and same else graph_peaks(target, workload, said)
    except Incomplete as error:
        return replace(found, notes=(*found.notes, f"graph peak not known: {error.line}"))
    stages = tuple(replace(stage, live_bytes=peaks.get(stage.id)) for stage in found.stages)
    if (blocked := _blocked_cache(read.target, found.workload)) is not None:
        found = _in_blocks(found, blocked, peaks)
    for stage in stages:
        held = [size for of, size in peaks.items() if of == stage.id]
        check_recounts([Recount("memory", stage.id, "live_bytes", stage.live_bytes or 0, sum(n or 0 for n in held))])
    # A graph of all exports has the peak of stages that it runs inside, such as towers before a prompt.
    live = max(peaks.values(), default=None)
    notes = found.notes if live is None else tuple(note for note in found.notes if not note.startswith(_NO_FORMULA))
    return replace(found, stages=stages, live_bytes=live, live_source="graph", notes=notes)


_NO_FORMULA: Final = "live peak not known: "
"""First words of the note that the live peak has no formula; the note is dropped if the graph gives the peak."""


@dataclass(frozen=True, slots=True)
class _LiveMemory:
    """Live memory of a run by formulas, at the run's settings or at changed ones."""

    target: WithMemory
    workload: Workload
    blocked: BlockedCache | None = None

    def in_blocks(self, **changed: Any) -> int:
        """Return the largest peak of any stage, including the padding of a cache in blocks if there is one."""
        more = {} if self.blocked is None else self.blocked.surplus(replace(self.workload, **changed))
        return max(peak + more.get(stage, 0) for stage, peak in self.stages(**changed).items())

    def stages(self, **changed: Any) -> dict[str, int]:
        """Return the peak of live activations of each stage, over all of its calls."""
        peaks = live_peaks(self.target, replace(self.workload, **changed), inputs_held=False)
        found: dict[str, int] = {}
        for (stage, _, _), peak in peaks.items():
            found[stage] = max(peak, found.get(stage, 0))
        return found

    def with_last_logits(self) -> int | None:
        """Return the largest live peak with logits of the last position only; ``None`` if already so or refused."""
        last = replace(self.workload, logits="last")
        with suppress(CostproofError):
            self.target.check(last)
            return None if last == self.workload else max(self.stages(logits="last").values())
        return None


def _blocked_cache(target: Target | None, workload: Workload) -> BlockedCache | None:
    """Return the blocks of the key/value cache, if the workload requests blocks.

    Raises:
        BadInput: it does, and there is no target that gives them.
    """
    if KV_BLOCK not in workload.inputs:
        return None
    found = target.blocked_cache(workload) if isinstance(target, WithBlocks) else None
    if found is None:
        raise BadInput("cache blocks are counted only for decoders with formulas", where="--kv-block")
    return found


def _in_blocks(found: Fits, blocked: BlockedCache, live: Mapping[str, int | None]) -> Fits:
    """Return the result for a cache that is allocated in blocks.

    Args:
        live: live peak of each stage; empty if unknown.
    """
    rows = Padding(blocked.rows(found.workload))
    held, waste = max(rows.of_stage(row.stage) for row in rows.cache)
    more = blocked.surplus(found.workload)
    peaks = [None if (peak := live.get(stage)) is None else peak + more[stage] for stage in more]
    known = [peak for peak in peaks if peak is not None]
    return replace(
        found, held_cache_bytes=held, cache_waste_bytes=waste,
        blocked_live_bytes=max(known) if len(known) == len(peaks) else None,
    )  # fmt: skip


def _live_memory(target: Target | None, workload: Workload) -> tuple[_LiveMemory | None, tuple[str, ...]]:
    """Return the live memory by formulas, and notes on it; the memory is ``None`` if no formulas give it."""
    if not isinstance(target, WithMemory):
        return None, ()
    live = _LiveMemory(target, workload)
    try:
        live.stages()
    except Incomplete as error:
        return None, (f"{_NO_FORMULA}{error.line}",)
    return live, ()


def _further(read: Operand, modules: int) -> tuple[int, Parallel | None]:
    """Return the bytes of MTP modules on the counted rank, and on several devices those that each rank holds."""
    found, without = (_stored_weights(read.origin, n, plain=True)[0] for n in (modules, 0)) if modules else (None, None)
    if found is None or without is None or read.origin is None:
        return 0, None
    one, run, model = found.totals.bytes - without.totals.bytes, read.baseline.workload, sharded(read.target)
    if run.mesh.one or model is None:
        return one, None
    every = further_of_ranks(read.origin, model, run, modules, (one, found.params - without.params))
    return next(row.stages[""]["resident_bytes"] for row in every.ranks if run.rank in row.ranks), every


def _binding_ranks(target: Target | None, workload: Workload, further: Parallel | None = None) -> tuple[int, ...]:
    """Return the ranks with the most bytes of weights and cache; empty if the run is not sharded.

    Args:
        further: MTP modules on the ranks.
    """
    if workload.mesh.one or not isinstance(target, Sharded):
        return ()
    held: dict[int, list[int]] = {}
    for row in count_ranks(target, workload, evaluate_formulas(target, workload)).ranks:
        weights = row.stages[""]["weight_bytes"]
        cache = sum(costs.get("kv_cache_bytes", 0) for costs in row.stages.values())
        for rank in row.ranks:
            more = (m.stages[""]["resident_bytes"] for m in further.ranks if rank in m.ranks) if further else ()
            held.setdefault(weights + cache + sum(more), []).append(rank)
    found = tuple(sorted(held[max(held)]))
    check_recounts(binding({rank: size for size, ranks in held.items() for rank in ranks}, found))
    return found


def _token_bytes(along: Mapping[str, SettingCurve], batch: int) -> int | None:
    """Return the cache bytes that one more text token adds to one sequence."""
    of = along.get("text_tokens")
    if of is None:
        return None
    try:
        more = of.value(of.own + 1, CACHE) - of.value(of.own, CACHE)
    except BadInput:
        return None
    return more // batch if more % batch == 0 else None


def _reserve(reserve: int | str | None, whole: int) -> int:
    """Return the bytes of a memory that are reserved for the runtime, given as bytes, a size or a fraction.

    Raises:
        BadInput: it is neither a size nor a fraction, or as large as the memory.
    """
    if reserve is None or isinstance(reserve, int):
        found = reserve or 0
    elif _FRACTION.fullmatch(reserve):
        found = int(Fraction(reserve) * whole)
    else:
        found = parse_size(reserve, "--reserve", least=0)
    if not 0 <= found < whole:
        expected = f"less than the memory, {whole:,} B, or a fraction such as 0.1"
        raise BadInput(
            "the reserve is not smaller than the memory", where="--reserve", expected=expected, got=f"{found:,} B"
        )
    return found


def _cache_notes(workload: Workload, live: object) -> tuple[str, ...]:
    """Return a note that the live peak is an upper bound if the cache has fewer bits than the run's dtype."""
    kind = workload.inputs.get(KV_DTYPE)
    if kind is None or live is None:
        return ()
    return (f"the live peak has the cache in {workload.dtype}, not in {kind}: it is an upper bound here",)


def _without_unknown(notes: Iterable[str]) -> Iterator[str]:
    """Yield all notes but those on stored bytes without a formula: :func:`_stored_notes` or a file states them."""
    return (note for note in notes if not note.startswith(NOT_KNOWN))


def _stored_notes(found: StoredCheckpoint) -> Iterator[str]:
    """Yield notes on the assumptions behind the bytes of stored weights, and on tensors that they exclude."""
    if found.formats:
        yield (
            "quantised weights stay as they are stored and one matrix at a time is unpacked: a runtime that unpacks "
            "all of them holds those of the run's dtype"
        )
    if found.next_token_modules:
        yield f"the cache and activations of {plural(found.next_token_modules, 'MTP module')} are left out"
    yield from (f"assumed of the checkpoint: {text}" for text in found.assumed)
    yield from (f"of unknown size beside the weights: {text}" for text in found.undetermined)
    yield from (f"left out of the weights: {text}" for text in found.left_out)


def _stored_weights(
    target: Target | None, next_token: int, *, plain: bool = False
) -> tuple[StoredCheckpoint | None, tuple[str, ...]]:
    """Return the checkpoint of a target, quantised or with MTP modules, and notes; ``None`` if its layout is unknown.

    The layout of GGUF files is their own table of tensors. It needs torch, which builds the model.

    Args:
        next_token: number of MTP modules.
        plain: whether to return the checkpoint of a target that is not quantised too.
    """
    if target is None or ("weights" not in target.info().quantised and not next_token and not plain):
        return None, ()
    folder = Path(target.stored.folder) if isinstance(target, WithStorage) and target.stored.folder else None
    packed = folder is not None and not any(folder.glob("*.safetensors")) and any(folder.glob("*.gguf"))
    try:
        require("trace", "the tensors of a checkpoint")
        with count_lock():
            found = stored_checkpoint(target, next_token, folder if packed else None)
    except (Incomplete, BadInput) as error:
        if next_token or (not packed and isinstance(error, BadInput)):
            raise
        return None, (error.line,)
    if found.headers is not None and found.headers.differences:
        return None, ("the GGUF file has other tensors than the configuration: costproof stored --files lists them",)
    return found, ()


def _of_graph(run: GraphRun, certain: int, room: int, unpacked: int, *, cached: bool) -> Iterator[MemoryLimit]:
    """Yield the limits of the settings of a run without formulas, found by exported graphs.

    Args:
        cached: whether the run makes a cache.

    Branches: a batch of 1 is a number in a graph. The limit of the batch follows from equal parts of the cache, or else
    from the graphs of a batch of 2.
    """
    for setting in SETTINGS:
        yield from run.live_limit(setting, certain + unpacked, room)
        of = run
        if cached and setting == "batch" and run.workload.batch == 1 and certain <= room:
            parts = [*replace(run, in_parts=True).limits(setting, certain, room)]
            if all(limit.outcome != "not solved" for limit in parts):
                yield from parts
                continue
            with suppress(BadInput, Incomplete):  # otherwise the limit is not solved, for this reason
                of = export_target(run.target, replace(run.workload, batch=2), run.progress).exported or run
        if cached:
            yield from of.limits(setting, certain, room)


def given_cache(side: Baseline, folded: Folded) -> int | None:
    """Return the bytes of cache that a run receives as input, or 0 if it creates its cache itself.

    A prefill with a past reads all of it. If only one stage uses a cache and runs once, everything that it reads of
    it was there before.
    """
    if side.workload.past:
        return folded.total("kv_read_bytes", _PREFILL) if "kv_read_bytes" in folded.metrics else None
    cached = [s for s in folded.stages for m in _CACHES if folded.total(m, s) != 0]
    once = [call for call in side.calls if call.partition("/")[0] in cached]
    if len({*cached}) != 1 or len(once) != 1 or " x " in side.calls[once[0]].partition("[")[0]:
        return 0
    return folded.total("kv_read_bytes", cached[0]) if "kv_read_bytes" in folded.metrics else 0


def _peaks(calls: Iterable[CallPeaks], stage: str) -> tuple[int | None, int | None]:
    """Return (the largest known peak of a stage's calls without inputs, the sum of the peaks if all are known).

    A decode step that runs by itself has the previous cache as an argument in addition to the one that it makes; in a
    run each layer frees its old cache.
    """
    here = [call.eager for call in calls if call.stage == stage]
    own_bytes = [e.bytes - sum(t.bytes for t in e.alive if not t.operator) for e in here if e is not None]
    whole = exact_sum(None if eager is None else eager.bytes for eager in here) if here else None
    return max(own_bytes, default=None), whole


def _memory_limit(device: Device | None, memory: int | str | None) -> int:
    if isinstance(memory, str):
        return parse_size(memory, "--memory")
    if memory is not None:
        return memory
    if device is None:
        raise BadInput(
            "neither a device nor a memory size is given",
            where="costproof fits",
            expected="--on DEVICE or --memory SIZE",
        )
    if device.memory is None:
        raise BadInput("the memory of this device is not known", where=device.name, fix="--memory SIZE")
    return device.memory.value
