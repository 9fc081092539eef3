"""Count a second time, by separate code, the figures of a mesh's ranks that all sources take from the same code.

All sources read one mesh, one plan of an engine, and one division of the batch; the table of dispatch forms has a
single source. Here the same numbers are made in another way: ranks are placed and sequences are dealt one by one,
chunks are passed around step by step, sets of experts are enumerated, and an engine's layers are described by the names
of its classes. A difference is a defect of costproof.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import combinations, product
from math import ceil, comb
from pathlib import Path
from typing import Any, Final, cast

from costproof.estimate.routing import RoutedLayers, routing_data, splits_of
from costproof.ledger.errors import Recount
from costproof.ledger.mesh import (
    AXES,
    CP_PLAN,
    DISPATCH,
    EP_BATCHES,
    FSDP_CP,
    PAIRS,
    PLAN,
    RANK,
    Collectives,
    Mesh,
    Parallel,
    own_batch,
    shard,
    stage_layers,
)
from costproof.ledger.metrics import FLOOR, STAGE_WIDE, UNFUSED, UNPACKED, UNPACKING
from costproof.ledger.node import Ledger, total
from costproof.ledger.workload import FLOAT_BYTES, TargetInfo, Workload
from costproof.parametric.access_checks import BY_TERMS, ENGINES, access_recounts, batch_of, padded_rows, rows_of

_MOST_REMAINDERS: Final = 64
EXCHANGED: Final = ("messages", "comm_payload_bytes", "comm_bytes")


def recounts(
    found: Parallel,
    workload: Workload,
    counted: Ledger,
    one: Ledger,
    info: TargetInfo,
    routed: RoutedLayers | None,
    undivided: Mapping[str, Mapping[str, int]] | None,
) -> Iterator[Recount]:
    """Yield second counts of all figures of a run on several devices.

    Args:
        found: the result for all ranks.
        workload: the run, with the rank that is counted.
        counted: the evaluated formulas of that rank.
        one: those of the same batch on one device.
        info: the target, with the numbers of its configuration.
        routed: mixtures of experts that ranks share.
        undivided: costs of the counted rank on the mesh without pipeline stages, as in :class:`RankCosts`, if this one
            has several.
    """
    symbols = info.symbols
    yield from _sums(found, workload)
    yield from _identity(found, workload, counted, one)
    yield from _merged(found, counted)
    yield from access_recounts(found, workload, one, symbols)
    yield from _along_stages(found, workload, undivided or {}, symbols)
    yield from _steps(found, workload, symbols)
    yield from _gathered_parts(found, workload)
    yield from _of_plan(found, workload, counted, one, symbols)
    given = str(workload.inputs.get(PAIRS, ""))
    spread = routed is not None and workload.mesh.batches > 1 == workload.mesh.pp and (not given or " sha256:" in given)
    yield Recount("", "methods of dispatch", "are given", bool(found.dispatches), spread)
    if routed is not None and found.dispatches:
        yield from _mixtures(routed, one, info)
        yield from _dispatched(found, workload, routed)


def note_recounts(notes: Iterable[str], workload: Workload, symbols: Mapping[str, int]) -> Iterator[Recount]:
    """Yield second counts of the numbers in notes on what a rank's model got before transformers split it.

    An engine's plan pads the vocabulary, which no other plan does.

    Args:
        notes: of the dynamic source.
        symbols: numbers of the configuration.
    """
    plan, mesh, size = str(workload.inputs.get(PLAN, "")), workload.mesh, symbols.get("text_vocab", 0)
    padded = plan in ENGINES and mesh.tp > 1
    unit = padded_rows(plan, 1, mesh.tp) if padded else 1
    said = [note.partition(": ")[2] for note in notes if note.startswith("the vocabulary is padded before")]
    yield Recount("", "the vocabulary", "notes on its padding", len(said), padded and size % unit > 0)
    for text in said:
        for what, number, again in zip(("entries", "unit"), re.findall(r"\d+", text), (size, unit), strict=True):
            yield Recount("", "the note on the padded vocabulary", what, int(number), again)
    copied = [note.partition(": ")[2] for note in notes if note.startswith("key/value heads are copied before")]
    for text in copied:
        own = symbols.get("text_kv_heads", 0), mesh.tp
        for what, number, again in zip(("heads", "ranks"), re.findall(r"\d+", text), own, strict=True):
            yield Recount("", "the note on copied heads", what, int(number), again)


# --- Places of ranks, and their parts of the batch -------------------------------------------------------------------


def places(workload: Workload, symbols: Mapping[str, int]) -> Iterator[Recount]:
    """Yield second counts of the coordinates, groups and shares of all ranks, enumerating ranks one by one.

    Everything else that is counted of a rank depends on these, so they are compared first. Shares are those of the
    run's own batch, vocabulary and layers and of the sizes above, one for each remainder.

    Args:
        symbols: numbers of the configuration.
    """
    mesh, place = workload.mesh, _enumerated(workload.mesh)
    yield Recount("", "ranks", "number", mesh.world, len(place))
    yield from _shares(workload, symbols, place)
    stage = len(place) // mesh.pp
    for rank, at in place.items():
        of = mesh.coordinates(rank)
        for axis, index in at.items():
            yield Recount("", f"rank {rank}", f"index along {axis}", int(getattr(of, axis)), index)
            alike = tuple(r for r, x in place.items() if {**x, axis: 0} == {**at, axis: 0})
            yield Recount(
                "", f"rank {rank}, group along {axis}", "ranks", _packed(mesh.group(axis, rank)), _packed(alike)
            )
        for axis, ahead in (("pp", at["pp"] + 1), ("cp", (at["cp"] + 1) % mesh.cp)):
            following = [r for r, x in place.items() if x == {**at, axis: ahead}]
            if getattr(mesh, axis) > 1 and following and rank in mesh.group(axis, rank):
                partner = mesh.ranks_of("send", axis, rank)[1:]
                yield Recount("", f"rank {rank} sends along {axis}", "ranks", _packed(partner), _packed(following))
        if mesh.fsdp > 1:
            alike = tuple(r for r, x in place.items() if {**x, "fsdp": 0, "cp": 0} == {**at, "fsdp": 0, "cp": 0})
            found = mesh.stored_part(rank), mesh.stored_parts, *mesh.group("fsdp*cp", rank)
            again = alike.index(rank), len(alike), *alike
            yield Recount("", f"rank {rank}, its part of parameters", "ranks", _packed(found), _packed(again))
            yield from gathered_places(replace(workload, inputs={**workload.inputs, RANK: rank}))
        first = rank - rank % stage % mesh.ep
        shared = range(first, first + mesh.ep)
        yield Recount("", f"rank {rank}", "index along ep", of.ep, rank - first)
        yield Recount("", f"rank {rank}, group along ep", "ranks", _packed(mesh.group("ep", rank)), _packed(shared))
        apart = [r for r in shared if place[r]["tp"] == at["tp"]]
        if mesh.ep > 1:
            among = _packed(mesh.group("ep/tp", rank)), _packed(apart)
            yield Recount("", f"rank {rank}, group along ep/tp", "ranks", *among)
            yield Recount("", "experts of a rank", "batches", mesh.batches, len(apart))
        known = mesh.group("ep", rank) == (*shared,) and of.ep == rank - first
        if DISPATCH in workload.inputs and known:
            yield from _pairs(workload, symbols, rank, shared)


def _pairs(workload: Workload, symbols: Mapping[str, int], rank: int, shared: Sequence[int]) -> Iterator[Recount]:
    """Yield second counts of the pairs that a rank sends to those that share experts with it, and gets from them."""
    mesh, experts, top_k, file = workload.mesh, symbols["text_experts"], symbols["text_topk"], _file_of(workload)
    layers = 1 if file is None else len(file["prefill"][0])

    def of(place: int, stage: str) -> tuple[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], ...]:
        return splits_of(replace(workload, inputs={**workload.inputs, RANK: place}), layers, experts, top_k, stage)

    for stage, length in (("prefill", workload.text_tokens), ("decode", 1))[: 2 if workload.new_tokens else 1]:
        # Ranks of a stage one after another, each with its slice of the tokens that those along tp share.
        behind, at = [0], rank % (mesh.world // mesh.pp)
        for place in range(mesh.world // mesh.pp):
            batch = batch_of(workload.batch, mesh.dp * mesh.fsdp, place // mesh.tp)
            chunk = -(-batch * length // mesh.tp)
            behind.append(behind[-1] + len(range(batch * length)[place % mesh.tp * chunk :][:chunk]))
        first, last = behind[at : at + 2]
        calls = [None] if file is None else file[stage]
        for step, (call, layers_sent) in enumerate(zip(calls, of(rank, stage), strict=True)):
            for layer, (sent, _) in enumerate(layers_sent):
                if call is None:
                    given = [*map(int, str(workload.inputs[PAIRS]).replace("+", ",").split(";")[at].split(","))]
                else:
                    own = Counter(e * mesh.ep // experts for row in call[layer][first:last] for e in row)
                    given = [own[i] for i in range(mesh.ep)]
                yield Recount("", f"rank {rank} to all, {stage}", "pairs", sum(sent), (last - first) * top_k)
                for i, other in enumerate(shared):
                    got = of(other, stage)[step][layer][1][rank - shared[0]]
                    yield Recount("", f"rank {rank} to {other}, {stage}", "pairs", sent[i], got)
                    yield Recount("", f"rank {rank} to {other}, {stage}", "pairs as given", sent[i], given[i])


def _enumerated(mesh: Mesh) -> dict[int, dict[str, int]]:
    """Return the index of each rank along each axis but ``ep``, with the last axis fastest."""
    axes = "pp", "dp", "fsdp", "cp", "tp"
    every = product(*(range(getattr(mesh, axis)) for axis in axes))
    return {rank: dict(zip(axes, at, strict=True)) for rank, at in enumerate(every)}


def gathered_places(run: Workload) -> Iterator[Recount]:
    """Yield second counts of the run of a rank once parameters are gathered: among the ranks with its sequences."""
    if run.mesh.fsdp == 1 or DISPATCH in run.inputs:
        return
    found, place = run.gathered, _enumerated(run.mesh)
    same = [r for r, at in place.items() if all(at[x] == place[run.rank][x] for x in ("dp", "fsdp"))]
    where = f"rank {run.rank}, with gathered parameters"
    yield Recount("", where, "rank", found.rank, same.index(run.rank))
    yield Recount("", where, "ranks", found.mesh.world, len(same))
    for axis in ("tp", "ep", "pp", "cp"):
        yield Recount("", where, axis, getattr(found.mesh, axis), getattr(run.mesh, axis))
    for what in ("own_batch", "own_tokens", "sequence_parts", "keeps_new_tokens", "text_tokens", "new_tokens"):
        yield Recount("", where, what, getattr(found, what), getattr(run, what))
    settings = [{**of.inputs, RANK: 0, **dict.fromkeys(AXES, 1)} for of in (found, run)]
    yield Recount("", where, "has the same other settings", settings[0] == settings[1], True)


def _shares(workload: Workload, symbols: Mapping[str, int], place: Mapping[int, dict[str, int]]) -> Iterator[Recount]:
    """Yield second counts of each rank's sequences, vocabulary entries and layers, distributed one by one."""
    mesh = workload.mesh
    sharing = mesh.dp * mesh.fsdp
    for batch in range(workload.batch, workload.batch + min(sharing, _MOST_REMAINDERS)):
        dealt = Counter(sequence % sharing for sequence in range(batch))
        for rank, at in place.items():
            if batch > workload.batch and (at["tp"] or at["cp"] or at["pp"]):  # which share the same sequences
                continue
            found, again = own_batch(batch, mesh, rank), dealt[at["dp"] * mesh.fsdp + at["fsdp"]]
            if batch == workload.batch:
                again -= replace(workload, inputs={**workload.inputs, RANK: rank}).own_batch - found
            yield Recount("", f"rank {rank}, batch {batch}", "sequences", found, again)
    vocabulary, layers = symbols.get("text_vocab", 0), symbols.get("text_layers", 0)
    for size in range(vocabulary, vocabulary + mesh.tp) if mesh.tp > 1 and vocabulary else ():
        chunk = ceil(Fraction(size, mesh.tp))
        for rank in range(mesh.tp):
            held, own = shard(size, mesh.tp, rank), (min(chunk * rank, size), min(chunk * rank + chunk, size))
            yield Recount("", f"rank {rank} of {size} entries", "entries", _packed(held), _packed(own))
    if mesh.cp > 1:
        zigzag = workload.inputs.get(CP_PLAN, "zigzag") == "zigzag"
        parts = [*range(mesh.cp), *reversed(range(mesh.cp))] if zigzag else [*range(mesh.cp)]  # part -> its rank
        yield Recount("", "a sequence", "parts", workload.sequence_parts, len(parts))
        for rank, at in place.items():
            run = replace(workload, inputs={**workload.inputs, RANK: rank})
            tokens = Fraction(parts.count(at["cp"]) * workload.text_tokens, len(parts))
            yield Recount("", f"rank {rank}", "tokens of a prompt", run.own_tokens, tokens)
            yield Recount("", f"rank {rank}", "keeps new tokens", run.keeps_new_tokens, at["cp"] == mesh.cp - 1)
    for depth in range(layers, layers + mesh.pp) if mesh.pp > 1 and layers else ():
        counts, stage = [depth // mesh.pp] * mesh.pp, mesh.pp - 1
        for _ in range(depth % mesh.pp):  # to the stage before the last, then to the ones before it
            stage -= 1
            counts[stage] += 1
        for stage in range(mesh.pp):
            own, of = (sum(counts[:stage]), sum(counts[: stage + 1])), stage_layers(depth, mesh.pp, stage)
            yield Recount("", f"stage {stage} of {depth} layers", "layers", _packed((of.start, of.stop)), _packed(own))


def _packed(ranks: Iterable[int]) -> int:
    """Encode a sequence of ranks, or of other integers below a billion, as one integer."""
    return sum((rank + 1) * 10 ** (9 * i) for i, rank in enumerate(ranks))


# --- Sums of the report ----------------------------------------------------------------------------------------------


def _sums(found: Parallel, workload: Workload) -> Iterator[Recount]:
    """Yield checks of the sums and extremes within a report, and that floor bytes do not exceed unfused bytes."""
    mesh = workload.mesh
    for axis in ("tp", "ep", "pp", "dp", "cp", "fsdp"):
        yield Recount("", "$.parallel", axis, getattr(found.mesh, axis), getattr(mesh, axis))
    costs = {rank: row.stages for row in found.ranks for rank in row.ranks}
    own = costs[workload.rank]
    for stage, metric in ((stage, metric) for stage, of in own.items() for metric in of):
        known = {rank: of[stage][metric] for rank, of in costs.items() if metric in of.get(stage, {})}
        for (cost, who), most in zip(found.extremes(stage, metric), (False, True), strict=True):
            first = sorted(known.values())[-most]
            yield Recount(stage, f"the {'largest' if most else 'smallest'} of all ranks", metric, cost, first)
            yield Recount(stage, f"{metric} of {first}", "ranks", len(who), sum(n == first for n in known.values()))
    for stage in own:
        here = [c for c in found.collectives if c.stage == stage]
        if stage and own[stage].get("messages") is not None:
            sums = sum(c.count for c in here), sum(c.bytes for c in here), sum(c.sent_bytes for c in here)
            for metric, total in zip(EXCHANGED, sums, strict=True):
                yield Recount(stage, "sum of the collectives", metric, total, own[stage][metric])
    for rank, stages in costs.items():
        for stage, of in stages.items():
            if FLOOR in of and UNFUSED in of and mesh.cp == 1:  # of a shared sequence they are not known
                yield Recount(stage, f"rank {rank}", "floor above unfused bytes", max(0, of[FLOOR] - of[UNFUSED]), 0)
            for metric in EXCHANGED:
                # All take part in the same collectives; parts of uneven tables are gathered along fsdp only.
                # Each rank along tp sends the pairs of its own slice.
                alike = mesh.fsdp == 1 and DISPATCH not in workload.inputs
                if metric in of and mesh.tp > 1 and (alike or metric == "messages"):
                    first = costs[rank - rank % mesh.tp][stage][metric]
                    yield Recount(stage, f"rank {rank} and the first of its group along tp", metric, of[metric], first)


def _identity(found: Parallel, workload: Workload, counted: Ledger, one: Ledger) -> Iterator[Recount]:
    """Yield checks that copies are named of all metrics but those of communication and of unpacking.

    Of ranks along ``tp`` that send pairs of their own, only metrics without single terms have copies.
    """
    left = {*EXCHANGED, UNPACKED, UNPACKING}
    left |= BY_TERMS - STAGE_WIDE if found.mesh.tp > 1 and DISPATCH in workload.inputs else set()
    placed = {(stage if metric not in STAGE_WIDE else "", metric) for stage in one.stages for metric in counted.metrics}
    for stage, metric in sorted(placed):
        known = one.stage_total(stage, metric) if stage else one.total(metric)
        if metric in left or known is None or stage not in found.ranks[0].stages:
            continue
        yield Recount(stage, metric, "has copies by name", metric in found.one_device.get(stage, {}), True)
        yield Recount(stage, metric, "of one device", found.one_device.get(stage, {}).get(metric, 0), known)


def _merged(found: Parallel, counted: Ledger) -> Iterator[Recount]:
    """Yield second counts of the collectives of modules whose paths differ in numbers only, as one row each."""
    rows: Counter[tuple[str, ...]] = Counter()
    every: dict[tuple[str, ...], Counter[str]] = {}
    for n in counted.nodes:
        if n.cost("messages"):
            name = ".".join("*" if part.isdecimal() else part for part in n.module.split(".")) or "(root)"
            every.setdefault((n.stage, n.invocation, n.kind, name), Counter()).update(
                {metric: n.cost(metric) or 0 for metric in EXCHANGED}
            )
    for c in found.collectives:
        place = (c.stage, c.invocation, c.kind, c.module)
        rows[place] += 1
        sums = every.get(place, Counter())
        for metric, own in zip(EXCHANGED, (c.count, c.bytes, c.sent_bytes), strict=True):
            yield Recount(c.stage, f"{c.kind} of {c.module}", metric, own, sums[metric])
    for stage, _, kind, name in every:
        again = sum(of == name and s == stage and k == kind for s, _, k, of in every)
        mine = sum(n for (s, _, k, of), n in rows.items() if (s, k, of) == (stage, kind, name))
        yield Recount(stage, f"{kind} of {name}", "rows", mine, again)


def _steps(found: Parallel, workload: Workload, symbols: Mapping[str, int]) -> Iterator[Recount]:
    """Yield second counts of the bytes that a rank sends in each collective, simulating a ring step by step."""
    item = FLOAT_BYTES[workload.dtype]
    for c in found.collectives:
        where = f"{c.kind} of {c.module}"
        n = len(c.ranks)
        if workload.rank not in c.ranks:
            yield Recount(c.stage, where, f"groups that hold rank {workload.rank}", 0, 1)
            continue
        at = c.ranks.index(workload.rank)
        exchanges = DISPATCH in workload.inputs
        axis, dtypes = _axis(c, workload.mesh, exchanges=exchanges), c.dtype.split(", ")
        yield Recount(c.stage, where, f"is of the group {c.group}", c.group == axis, True)
        yield Recount(c.stage, where, "dtypes", c.dtype == ", ".join(_on_the_wire(c, workload, symbols)), True)
        among = c.ranks if c.kind == "send" else workload.mesh.group(axis, workload.rank)
        if c.ranks != among:
            yield Recount(c.stage, f"{where}, along {axis}", "ranks", _packed(c.ranks), _packed(among))
        if c.group == "cp" and c.kind == "all_gather":  # a number for each query and head, of all parts of its keys
            split = any(x.group == "tp" and x.module.endswith(".o_proj") for x in found.collectives)
            heads = symbols["text_heads"] // (workload.mesh.tp if split else 1)
            numbers = c.count * n * workload.own_batch * heads
            if workload.inputs.get(CP_PLAN) == "ulysses" and "text_kv_rank" not in symbols:  # or results of own heads
                numbers = numbers * symbols["text_head_dim"] // n
            yield Recount(c.stage, where, "comm_payload_bytes", c.bytes, numbers * FLOAT_BYTES.get(dtypes[0], 0))
        uneven = axis == EP_BATCHES and c.kind != "all_to_all"
        sizes = [own_batch(workload.batch, workload.mesh, r) for r in c.ranks] if uneven else []
        if len({*sizes}) > 1:  # parts as large as the batches
            passed = gathered(n, at, sizes) if c.kind == "all_gather" else scattered(n, at, sizes)
            yield Recount(c.stage, where, "comm_bytes", c.sent_bytes, Fraction(c.bytes * passed, sum(sizes)))
        elif c.kind in ("all_gather", "reduce_scatter", "all_reduce") and c.bytes % c.count == 0:
            each, mixed = c.bytes // c.count, "," in c.dtype
            if c.kind == "all_gather":  # the full tensor has n equal chunks, with padding
                if c.bytes % n == 0:
                    yield Recount(c.stage, where, "comm_bytes", c.sent_bytes, c.bytes // n * gathered(n, at))
            elif not mixed:
                chunk = ceil(Fraction(each, item * n)) * item
                passed = scattered(n, at) + (gathered(n, at) if c.kind == "all_reduce" else 0)
                yield Recount(c.stage, where, "comm_bytes", c.sent_bytes, c.count * chunk * passed)
        elif c.kind == "send":
            yield Recount(c.stage, where, "comm_bytes", c.sent_bytes, c.bytes)


def _along_stages(
    found: Parallel, workload: Workload, undivided: Mapping[str, Mapping[str, int]], symbols: Mapping[str, int]
) -> Iterator[Recount]:
    """Yield second counts of the communication of all pipeline stages together.

    It is that of a rank with all layers, and the hidden states that each stage but the last sends. Gathers of
    parameters, which each stage begins with its own, are as large as all parts of them.
    """
    mesh, costs = workload.mesh, {rank: row.stages for row in found.ranks for rank in row.ranks}
    state = workload.own_batch * symbols.get("text_hidden", 0) * FLOAT_BYTES[workload.dtype]
    steps = {"prefill": (1, workload.own_tokens), "decode": (workload.new_tokens, 1)}
    for stage, (calls, tokens) in steps.items():
        sent = (mesh.pp - 1) * calls, *[(mesh.pp - 1) * calls * tokens * state] * 2
        for metric, more in zip(EXCHANGED, sent, strict=True):
            parts = mesh.stored_parts * calls if mesh.fsdp > 1 else 0
            if metric not in undivided.get(stage, {}) or (parts and metric != "comm_payload_bytes"):
                continue
            each = [costs[rank] for rank in mesh.group("pp", workload.rank)]
            apart = [of[stage][metric] - parts * of[""]["weight_bytes"] for of in (*each, undivided)]
            yield Recount(stage, "all stages of the pipeline", metric, sum(apart[:-1]), apart[-1] + more)


def _on_the_wire(c: Collectives, workload: Workload, symbols: Mapping[str, int]) -> Iterator[str]:
    """Yield the dtypes of the tensors in a collective, beginning with the largest.

    Besides tokens, ranks with batches of their own gather numbers of experts and weights, whose dtype decides the bytes
    that are counted again elsewhere; or they send numbers of pairs.
    """
    by_heads = workload.inputs.get(CP_PLAN) == "ulysses" and "text_kv_rank" not in symbols
    logarithms = c.group == "cp" and c.kind == "all_gather" and not by_heads
    weighted = c.module.endswith(".experts") and c.kind == "all_gather" and DISPATCH in workload.inputs
    tokens = workload.own_batch * (workload.text_tokens if c.stage == "prefill" else 1)
    elements = c.count * workload.mesh.tp * ceil(Fraction(tokens, workload.mesh.tp)) * symbols.get("text_hidden", 0)
    yield "float32" if logarithms or (weighted and c.bytes == 4 * elements) else workload.dtype
    gathers = c.kind == "all_gather" and DISPATCH not in workload.inputs
    if c.module.endswith(".experts") and (gathers or c.kind == "all_to_all"):
        yield "int64"
        yield from ["float32"] if c.kind == "all_gather" and c.dtype.endswith(", float32") else []


def _gathered_parts(found: Parallel, workload: Workload) -> Iterator[Recount]:
    """Yield second counts of all-gathered parameters: each call gathers the shards of all ranks once."""
    if workload.mesh.fsdp == 1:
        return
    parts = workload.mesh.fsdp * workload.mesh.cp
    own = next(row.stages[""]["weight_bytes"] for row in found.ranks if workload.rank in row.ranks)
    for stage, calls in (("prefill", 1), ("decode", workload.new_tokens)):
        gathers = [c for c in found.collectives if c.stage == stage and c.group in ("fsdp", "fsdp*cp")]
        brought = sum(c.bytes for c in gathers)
        yield Recount(stage, "gathered parameters", "comm_payload_bytes", brought, calls * parts * own)
        for c in gathers:
            yield Recount(stage, f"gather before {c.module}", "ranks", len(c.ranks), parts)


def _axis(c: Collectives, mesh: Mesh, *, exchanges: bool = False) -> str:
    """Return the mesh axes along which the ranks of a collective differ, from its kind and the name of its module.

    Args:
        exchanges: whether ranks send pairs of a token and an expert, and gather the results of slices.
    """
    leaf = c.module.rpartition(".")[2]
    if mesh.fsdp > 1 and leaf in ("*", "(root)"):  # before a layer, and before the model
        return "fsdp" if mesh.cp == 1 else FSDP_CP
    if leaf == "self_attn":  # its projections are modules of their own
        return "cp"
    if leaf == "experts" and mesh.ep > 1:
        if c.kind == "all_to_all":
            return "ep" if mesh.tp > 1 else EP_BATCHES
        if mesh.batches == 1:
            return "tp" if c.kind == "all_gather" else "ep"
        return "tp" if c.kind == "all_reduce" or exchanges else EP_BATCHES
    return "pp" if c.kind == "send" else "tp"


def gathered(ranks: int, rank: int, sizes: Sequence[int] = ()) -> int:
    """Return the number of chunks that a rank sends in a ring all-gather, by simulation.

    Args:
        sizes: of the chunks; without them each is 1.
    """
    has, sent = [{r} for r in range(ranks)], 0
    newest = list(range(ranks))
    while any(len(chunks) < ranks for chunks in has):
        sent += sizes[newest[rank]] if sizes else 1
        newest = [newest[(r - 1) % ranks] for r in range(ranks)]  # each passes on what it got last
        for r in range(ranks):
            has[r].add(newest[r])
    return sent if rank in range(ranks) else 0


def scattered(ranks: int, rank: int, sizes: Sequence[int] = ()) -> int:
    """Return the number of partial sums that a rank sends in a ring reduce-scatter, by simulation.

    Rank r - 1 has the sum of chunk r at the end, and adds to it last.

    Args:
        sizes: of the sums that each rank has at the end; without them each is 1.
    """
    parts = [[{r} for _ in range(ranks)] for r in range(ranks)]
    sent = step = 0
    while not all(any(len(parts[r][chunk]) == ranks for r in range(ranks)) for chunk in range(ranks)):
        moved = [(r, (r - step) % ranks, set(parts[r][(r - step) % ranks])) for r in range(ranks)]
        for r, chunk, terms in moved:
            parts[(r + 1) % ranks][chunk] |= terms
        sent += sum(sizes[chunk - 1] if sizes else 1 for r, chunk, _ in moved if r == rank)
        step += 1
    return sent


# --- Plans of engines and of users ------------------------------------------------------------------------------------

_CLASSES: Final[Mapping[str, str]] = {
    "embed_tokens": "VocabParallelEmbedding", "lm_head": "ParallelLMHead",
    "q_proj": "QKVParallelLinear", "k_proj": "QKVParallelLinear, keys", "v_proj": "QKVParallelLinear, values",
    "q_b_proj": "ColumnParallelLinear", "kv_b_proj": "ColumnParallelLinear",
    "gate_proj": "MergedColumnParallelLinear", "up_proj": "MergedColumnParallelLinear",
    "o_proj": "RowParallelLinear", "down_proj": "RowParallelLinear",
    "experts": "FusedMoE", "self_attn": "of each head",
}  # fmt: skip
"""Classes by which engines split a module, by last component of the module path; all other modules are replicated.

Sources: vLLM ``model_executor/models/llama.py``, ``deepseek_v2.py``, ``qwen3_moe.py``, ``gpt_oss.py``; Megatron-LM
``core/models/gpt/gpt_layer_specs.py``, whose ColumnParallelLinear and RowParallelLinear divide the same dimensions.
"""


def _class_of(plan: str, module: str) -> str:
    """Return the class by which a plan splits a module, one of those of :data:`_CLASSES`; empty for a whole module."""
    leaf = module.rpartition(".")[2]
    if plan in ENGINES:
        return _CLASSES.get(leaf, "")
    layouts = [pair.rsplit(": ", 1) for pair in plan.split("; ")]

    def given(path: str) -> str:
        found = (layout for pattern, layout in layouts if fnmatchcase(path, pattern.replace("*", "?*")))
        return next((layout for layout in found if layout != "replicated"), "")

    names = {"experts": (module, f"{module}.gate_up_proj"), "self_attn": (f"{module}.q_proj",)}.get(leaf, (module,))
    layout = next(filter(None, map(given, names)), "")
    usual = {"column": "ColumnParallelLinear", "by_head": _CLASSES.get(leaf, ""), "row": "RowParallelLinear",
             "vocabulary": "VocabParallelEmbedding", "by_expert": "FusedMoE"}  # fmt: skip
    return "FusedMoE" if layout and leaf == "experts" else usual.get(layout, "")


def _of_plan(
    found: Parallel, workload: Workload, counted: Ledger, one: Ledger, symbols: Mapping[str, int]
) -> Iterator[Recount]:
    """Yield second counts of parameters and collectives under a named or given plan, and of the plan that is reported.

    The plan is that of the settings, read apart: an engine's by its own parallel classes, a user's by its layouts,
    without padding, sequence parallelism and common sums of experts, which a file cannot ask for.
    """
    plan, mesh = str(workload.inputs.get(PLAN, "")), workload.mesh
    if not plan or mesh.tp == 1:
        engines = any(source in found.plan for source in ENGINES.values()) or "the given plan" in found.plan
        yield Recount("", "a run without a plan", "is split by one", engines, False)
        return
    yield Recount("", f"the plan {plan}", "is reported", ENGINES.get(plan, f"({plan})") in found.plan, True)
    whole = {(n.stage, n.module): n.cost("params") or 0 for n in one.nodes if n.cost("params")}
    for n in counted.nodes:
        params, all_of_it = n.cost("params"), whole.get((n.stage, n.module))
        if params and all_of_it:
            again = _own_params(plan, n.module, all_of_it, workload, symbols)
            yield Recount(n.stage, n.module, "params", params, again)
    if mesh.batches == 1 and mesh.cp == 1:
        yield from _plan_collectives(plan, workload, counted, symbols)


def _own_params(plan: str, module: str, whole: int, workload: Workload, symbols: Mapping[str, int]) -> int | Fraction:
    """Return a rank's number of parameters in a module that has ``whole`` parameters on one device."""
    mesh, kind, hidden = workload.mesh, _class_of(plan, module), symbols["text_hidden"]
    n = mesh.tp
    if kind in ("VocabParallelEmbedding", "ParallelLMHead"):
        rows, share = rows_of(plan, symbols["text_vocab"], n)
        return min(share, max(0, rows - workload.rank % n * share)) * hidden
    if kind.startswith("QKVParallelLinear,"):
        heads = symbols["text_kv_heads"]
        return Fraction(whole, heads) * (1 if n >= heads else Fraction(heads, n))
    if kind == "RowParallelLinear":  # each output has its inputs, and perhaps a bias, which all ranks have
        inputs, bias = divmod(whole // hidden, n)
        return hidden * (inputs + bias)
    if kind == "FusedMoE" and mesh.ep > 1:
        return Fraction(whole, mesh.ep)
    if kind == "FusedMoE":
        experts, inner = symbols["text_experts"], symbols.get("text_moe", symbols.get("text_intermediate", 0))
        bias = experts * hidden if whole > 3 * experts * hidden * inner else 0
        return Fraction(whole - bias, n) + bias
    return Fraction(whole, n) if kind else whole


def _plan_collectives(plan: str, workload: Workload, counted: Ledger, symbols: Mapping[str, int]) -> Iterator[Recount]:
    """Yield second counts of a rank's messages and payloads by kind, from the layers of its pipeline stage.

    vLLM: an all-reduce for the embedding, the attention and the MLP or the experts of each layer, shared ones included,
    and an all-gather of logits (VocabParallelEmbedding, RowParallelLinear, ``reduce_results=False`` of shared experts,
    LogitsProcessor). Megatron-LM with sequence parallelism: reduce-scatters in place of all-reduces, an all-gather
    before the attention, before the MLP and before the logits; a step of one token has all-reduces. A user's plan: an
    all-reduce for each split embedding, each module with the layout ``row``, and the experts of each layer, and an
    all-gather of logits that ranks divide, in equal chunks.
    """
    mesh, item = workload.mesh, FLOAT_BYTES[workload.dtype]
    batch, (rows, share) = workload.own_batch, rows_of(plan, symbols["text_vocab"], mesh.tp)
    for stage, tokens, calls in (("prefill", workload.text_tokens, 1), ("decode", 1, workload.new_tokens)):
        nodes = [n for n in counted.nodes if n.stage == stage]
        names = {n.module for n in nodes if n.cost("params")}
        layers = sum(name.endswith(".o_proj") for name in names)
        first, last = any(name.endswith("embed_tokens") for name in names), any(n.module == "lm_head" for n in nodes)
        if not calls or not names:
            continue
        state = batch * tokens * symbols["text_hidden"] * item
        sums, gathers, kind = 2 * layers + first, 0, "all_reduce"
        if plan == "megatron" and tokens > 1:
            kind, gathers = "reduce_scatter", 2 * layers + 1
        elif plan not in ENGINES:
            classes = Counter(_class_of(plan, name) for name in names - {"lm_head"})
            sums = sum(classes[name] for name in ("VocabParallelEmbedding", "RowParallelLinear", "FusedMoE"))
            last, rows = last and _class_of(plan, "lm_head") != "", share * mesh.tp
        positions = tokens if workload.logits == "all" else 1
        logits = batch * positions * rows * item if last else 0
        expected = {kind: (sums, sums * state), "all_gather": (gathers + last, gathers * state + logits)}
        for name in ("all_reduce", "reduce_scatter", "all_gather"):
            messages, payload = expected.get(name, (0, 0))
            for metric, again in (("messages", messages), ("comm_payload_bytes", payload)):
                found = total((n for n in nodes if n.kind == name), metric) or 0
                yield Recount(stage, f"all {name} by the plan {plan}", metric, found, calls * again)


# --- Tokens for experts of other ranks -------------------------------------------------------------------------------

_HEADERS: Final[Mapping[str, int]] = {"all-gather": 0, "all-to-all": 0, "low-latency": 16, "by-rank": 0, "by-node": 0}
"""Bytes before the hidden state in each sent copy of a token, by dispatch method.

DeepEP low-latency: source of the token, an int4.
"""
_ON_A_NODE: Final = 8
_MOST_SETS: Final = 20_000
"""Maximum number of sets of expert groups that are enumerated."""


def _mixtures(sizes: RoutedLayers, one: Ledger, info: TargetInfo) -> Iterator[Recount]:
    """Yield second counts of the sizes of mixtures of experts, from configuration and one device's formulas.

    Those of a router name the groups of experts only if these limit the choice.
    """
    stage, symbols = one.stages[-1], info.symbols
    nodes = [n for n in one.nodes if n.stage == stage and n.role.endswith(".experts") and n.cost("params")]
    yield Recount("", "mixtures of experts", "layers", sizes.layers, len(nodes))
    if not nodes:
        return
    routers = [cost for n in one.nodes if n.role.endswith(".router") for cost in n.exprs.values()]
    limited = any("text_router_groups" in cost for cost in routers)
    for name, size in (("groups", sizes.groups), ("best_groups", sizes.best_groups)):
        again = cast(int, (info.config or {}).get(name, 0)) if limited else 1
        yield Recount("", "mixtures of experts", name, size, again)
    for name, found in (("text_experts", sizes.experts), ("text_topk", sizes.top_k), ("text_hidden", sizes.hidden)):
        yield Recount("", "mixtures of experts", name, found, symbols[name])
    each, hidden = (nodes[0].cost("params") or 0) // symbols["text_experts"], symbols["text_hidden"]
    weights = 3 * hidden * sizes.inner
    again = weights if each != weights + 2 * sizes.inner + hidden else each  # with biases
    yield Recount("", "mixtures of experts", "parameters of an expert", each, again)


def _dispatched(found: Parallel, workload: Workload, sizes: RoutedLayers) -> Iterator[Recount]:
    """Yield second counts of the copies, bytes and FLOPs of every dispatch method."""
    mesh, item = workload.mesh, FLOAT_BYTES[workload.dtype]
    wide = sizes.hidden * item
    narrow = sum(min(128, sizes.hidden - i) + 4 for i in range(0, sizes.hidden, 128))
    steps = {"prefill": (workload.text_tokens, 1), "decode": (1, workload.new_tokens)}
    given = _file_of(workload)
    forms = [("all-gather", "any", 0)]
    for name, units in (("all-to-all", mesh.ep), ("low-latency", mesh.ep), ("by-rank", mesh.ep),
                        *((("by-node", mesh.ep // _ON_A_NODE),) if mesh.ep % _ON_A_NODE == 0 else ())):  # fmt: skip
        assumed = ("bound", "uniform", *(("given",) if given else ()))
        forms += [(name, routing, units) for routing in assumed] if units > 1 else []
    first = workload.rank // mesh.ep * mesh.ep
    near = range(first, first + mesh.ep)
    experts, groups = sizes.experts, sizes.groups
    for stage, (length, calls) in steps.items():
        if not calls:
            continue
        batches = {r: length * batch_of(workload.batch, mesh.dp, r // mesh.tp) for r in range(mesh.world)}
        slices = {r: len(range(n)[(r % mesh.tp) * -(-n // mesh.tp) :][: -(-n // mesh.tp)]) for r, n in batches.items()}
        every, times = sum(slices[r] for r in near), calls * sizes.layers
        alike = [batches[r] for r in near if r % mesh.tp == workload.rank % mesh.tp]
        mine = (workload.rank - first) // mesh.tp
        rows = {(d.form, d.routing): d for d in found.dispatches if d.stage == stage}
        for form, routing, units in forms:
            d = rows.pop((form, routing), None)
            crosses = not (_within(experts, units, groups) or _within(experts, groups, units or 1))
            if d is None:
                left_out = routing == "uniform" and form in ("by-rank", "by-node") and crosses
                yield Recount(stage, f"{form}, {routing}", "rows", 0, 0 if left_out else 1)
                continue
            where, step = f"{form}, {routing}", _ON_A_NODE if form == "by-node" else 1
            others = [r for r in near if r != workload.rank and r % step == workload.rank % step]
            pairs = Fraction(times * every * min(sizes.top_k, experts // mesh.ep))
            if routing == "given":
                to, held = _chosen(given, stage, slices, sizes, form, units, mesh)
                unit = (workload.rank - first) // (mesh.ep // units)
                out = Fraction(sum(n for (r, u), n in to.items() if r == workload.rank and u != unit))
                back = Fraction(sum(n for (r, u), n in to.items() if r in others and u == unit))
                copies = out / (times * slices[workload.rank] or 1)
                for u in range(units):
                    yield Recount(stage, f"{where}, to {u}", "copies", d.sent_to[u], to[workload.rank, u])
                pairs = Fraction(held[workload.rank])
            elif form == "all-gather":
                copies, pairs = Fraction(len(alike) - 1), Fraction(times * every * sizes.top_k)
                following = alike[(mine + 1) % len(alike)]
                out, back = (Fraction(times * (sum(alike) - n)) for n in (following, alike[mine]))
            else:
                uniform = routing == "uniform"
                counted = copies_by_sets(sizes, mesh, form, units, uniform=uniform)
                if counted is None:
                    continue
                copies = counted
                if crosses and Fraction(d.copies) > copies:  # then the bound is not the least one
                    copies = Fraction(d.copies)
                back = Fraction(times * sum(slices[r] for r in others))
                if uniform:
                    back, pairs = back * copies / (units - 1), Fraction(times * every * sizes.top_k, mesh.ep)
                elif form in ("all-to-all", "low-latency"):
                    back *= min(sizes.top_k, len(_held(experts, units, 0)))
                out = times * slices[workload.rank] * copies
            yield Recount(stage, where, "copies of a token", Fraction(d.copies), copies)
            ahead = _HEADERS[form]
            yield Recount(stage, where, "sent_bytes", d.sent_bytes, ceil(out * (wide + ahead) + back * wide))
            yield Recount(stage, where, "fp8_bytes", d.fp8_bytes, ceil(out * (narrow + ahead) + back * wide))
            if form == "all-gather":  # what the one before has not sent, its own sums and the rank's tokens
                back, out = (Fraction(times * (sum(alike) - n)) for n in (alike[mine], alike[mine - 1]))
            yield Recount(
                stage, where, "received_bytes", d.received_bytes or 0, ceil(back * (wide + ahead) + out * wide)
            )
            work = ceil(pairs * (3 * 2 * sizes.hidden * sizes.inner))
            yield Recount(stage, where, "expert_flops", d.expert_flops, work)
        yield Recount(stage, "other forms of dispatch", "rows", len(rows), 0)
        for form in _HEADERS:
            kinds = {d.routing: d for d in found.dispatches if (d.stage, d.form) == (stage, form)}
            bound = kinds.get("bound")
            for routing, row in kinds.items() if bound is not None else ():
                for metric in ("sent_bytes", "fp8_bytes", "received_bytes", "expert_flops"):
                    above = max(0, getattr(row, metric) - getattr(bound, metric))
                    yield Recount(stage, f"{form}, {routing} above bound", metric, above, 0)
        group = ("ep/tp", "ep") if DISPATCH in workload.inputs else ("ep/tp",)
        exchanged = [c for c in found.collectives if c.stage == stage and c.group in group]
        if DISPATCH in workload.inputs:  # in 8 bytes, how many pairs come for each expert of another rank
            numbers = times * 8 * (experts - len(_held(experts, mesh.ep, 0)))
            pairs_sent = sum(d.sent_bytes for d in found.dispatches
                             if (d.stage, d.form, d.routing) == (stage, "all-to-all", "given"))  # fmt: skip
            both = pairs_sent + numbers, sum(c.sent_bytes for c in exchanged)
            yield Recount(stage, "all-to-all, and its collectives", "sent_bytes", *both)
            continue
        weight = 4 if any("float32" in c.dtype.split(", ")[1:] for c in exchanged) else item
        named = times * (sum(alike) - alike[(mine + 1) % len(alike)]) * sizes.top_k * (8 + weight)
        gathered = next(d for d in found.dispatches if (d.stage, d.form) == (stage, "all-gather"))
        hidden_alone = sum(c.sent_bytes for c in exchanged) - named
        yield Recount(stage, "all-gather, and its collectives", "sent_bytes", gathered.sent_bytes, hidden_alone)


def expert_choices(run: Workload, stage: str, routing: str) -> list[list[list[tuple[int, list[int]]]]]:
    """Return the choices of a routing file, read once more: call -> layer -> (rank that sends the token, its experts).

    Ranks are those of a pipeline stage.

    Args:
        run: with all tokens of a prompt.
    """
    mesh, length, senders = run.mesh, run.text_tokens if stage == "prefill" else 1, []
    for rank in range(mesh.world // mesh.pp):
        tokens = batch_of(run.batch, mesh.dp * mesh.fsdp, rank // mesh.tp) * length
        chunk = -(-tokens // mesh.tp)
        senders += [rank] * len(range(tokens)[rank % mesh.tp * chunk :][:chunk])
    return [[[*zip(senders, layer, strict=True)] for layer in call] for call in _file_of(run, routing)[stage]]


def _file_of(workload: Workload, routing: str = "") -> Any:
    """Return the content of the routing file of a run, read once more; ``None`` without one, or if it was a pipe."""
    path, _, digest = str(routing or workload.inputs.get(PAIRS, "")).partition(" sha256:")
    if not digest:
        return None
    file = Path(path)
    return json.loads(file.read_text("utf-8-sig")) if file.is_file() else routing_data(f"{path} sha256:{digest}")


def _chosen(
    given: Any, stage: str, slices: Mapping[int, int], sizes: RoutedLayers, form: str, units: int, mesh: Mesh
) -> tuple[Counter[tuple[int, int]], Counter[int]]:
    """Return the copies by (rank, receiver in its group) and the pairs by rank, token after token of a routing file."""
    copies, pairs = Counter[tuple[int, int]](), Counter[int]()
    holder = {expert: rank for rank in range(mesh.ep) for expert in _held(sizes.experts, mesh.ep, rank)}
    for call in given[stage]:
        for layer in call:
            tokens = iter(layer)
            for rank, own in slices.items():
                for _, chosen in zip(range(own), tokens, strict=False):
                    ranks = [holder[expert] for expert in chosen]
                    pairs.update(rank // mesh.ep * mesh.ep + i for i in ranks)
                    reached = [i * units // mesh.ep for i in ranks]
                    copies.update((rank, u) for u in (reached if form in ("all-to-all", "low-latency") else {*reached}))
    return copies, pairs


def _held(experts: int, units: int, unit: int) -> range:
    """Return the experts in one of ``units`` equal shares."""
    return range(unit * experts // units, (unit + 1) * experts // units)


def _within(experts: int, units: int, groups: int) -> bool:
    """Return whether each of ``units`` equal shares of the experts lies within one of ``groups`` equal shares."""
    return all(len({e * groups // experts for e in _held(experts, units, u)}) == 1 for u in range(units))


def copies_by_sets(sizes: RoutedLayers, mesh: Mesh, form: str, units: int, *, uniform: bool) -> Fraction | None:
    """Return the copies of a token that leave the first share of the experts, enumerating all sets of groups.

    Of each set of :attr:`RoutedLayers.best_groups` groups ``top_k`` experts are drawn one after another. ``None`` if
    there are too many sets.
    """
    if form == "all-gather":
        return Fraction(sum(1 for rank in range(mesh.ep) if rank % mesh.tp == 0) - 1)
    if comb(sizes.groups, sizes.best_groups) > _MOST_SETS:
        return None
    of_unit = [e * units // sizes.experts for e in range(sizes.experts)]
    total, most, sets = Fraction(0), 0, 0
    for groups in combinations(range(sizes.groups), sizes.best_groups):
        open_to = Counter(of_unit[e] for g in groups for e in _held(sizes.experts, sizes.groups, g))
        every, sets = sum(open_to.values()), sets + 1
        away = {unit: count for unit, count in open_to.items() if unit}
        if form in ("all-to-all", "low-latency"):
            most = max(most, min(sizes.top_k, sum(away.values())))
            total += Fraction(sizes.top_k * sum(away.values()), every)
        else:
            most = max(most, min(sizes.top_k, len(away)))
            for count in away.values():
                missed = Fraction(1)
                for drawn in range(sizes.top_k):
                    missed *= Fraction(max(0, every - count - drawn), every - drawn)
                total += 1 - missed
    return total / sets if uniform else Fraction(most)
