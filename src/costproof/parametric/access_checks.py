"""Count a second time what ranks hold, read, write and compute more than one device, tensor by tensor.

Here it follows from shapes: of weights that modules have by name, and of tensors that collectives exchange.
:mod:`copy_checks` counts the same from the costs of ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import ceil
from typing import Final

from costproof.ledger.errors import Recount
from costproof.ledger.mesh import CP_PLAN, DISPATCH, PLAN, RANK, Collectives, Mesh, Parallel
from costproof.ledger.metrics import FLOOR, KEPT_FLOPS, UNFUSED
from costproof.ledger.node import CostNode, Ledger, bearing
from costproof.ledger.workload import FLOAT_BYTES, Workload
from costproof.models.target import DATA_COPIES, SEQUENCE_COPIES

ENGINES: Final[Mapping[str, str]] = {"vllm": "vLLM: ", "megatron": "Megatron-LM: "}
"""Beginning of the source of an engine's plan in a report, by name of the plan."""


def padded_rows(engine: str, vocabulary: int, ranks: int) -> int:
    """Return the rows of a vocabulary table including the padding that an engine adds.

    vLLM ``pad_vocab_size(vocab_size, pad_to=64)``; Megatron-LM ``_vocab_size_with_padding``, which counts up to a
    multiple of make_vocab_size_divisible_by (128) x tensor_model_parallel_size.
    """
    unit = 64 if engine == "vllm" else 128 * ranks
    return vocabulary + -vocabulary % unit


def rows_of(plan: str, vocabulary: int, ranks: int) -> tuple[int, int]:
    """Return the rows of a vocabulary table on all ranks together, and on a rank with a full share, under a plan.

    Only engines pad tables. Without padding the last ranks have fewer rows, or none.
    """
    padded = padded_rows(plan, vocabulary, ranks) if plan in ENGINES else vocabulary
    return padded, ceil(Fraction(padded, ranks))


def batch_of(batch: int, parts: int, index: int) -> int:
    """Return the number of sequences of one of several parts of a batch, dealt out one by one."""
    return len(range(batch)[index::parts])


def access_recounts(found: Parallel, workload: Workload, one: Ledger, symbols: Mapping[str, int]) -> Iterator[Recount]:
    """Yield second counts of the copies of tensors and of work, and of what exchanges read and write.

    Args:
        found: the result for all ranks.
        workload: the run, with the rank that is counted.
        one: evaluated formulas of the same batch on one device.
        symbols: numbers of the configuration.
    """
    yield from _copies(found, workload, one, symbols)
    yield from _whole_parts(found, workload, one, symbols)
    yield from _copies_of_reads(found, workload, one, symbols)
    yield from _accesses(found, workload, one, symbols)
    yield from _rings(found, workload, symbols)


def _copies(found: Parallel, workload: Workload, one: Ledger, symbols: Mapping[str, int]) -> Iterator[Recount]:
    """Yield second counts of the costs that several ranks have, by cause.

    Copies along ``dp`` and ``cp`` follow from ranks that differ along one axis only, copies along ``tp`` from the names
    of modules. What is left of a step's work along ``cp`` has one cause.
    """
    mesh, held = workload.mesh, {rank: row.stages[""] for row in found.ranks for rank in row.ranks}
    of = {(d.what, d.metric): d.amount for d in found.duplicates if not d.stage}

    def total(metric: str, *axes: str) -> int:
        first = (r for r in held if not any(getattr(mesh.coordinates(r), axis) for axis in axes))
        return sum(held[r].get(metric, 0) for r in first)

    for metric in ("params", "weight_bytes", "buffer_bytes") if mesh.batches == 1 or mesh.cp == 1 else ():
        parts = mesh.fsdp > 1 and metric != "buffer_bytes"
        data = ("dp",) if parts else ("dp", "fsdp")
        # The first ranks along ``dp`` have a part of the experts that batches share; all of them count once.
        known = bearing(one.nodes, metric) if metric in found.one_device.get("", {}) else ()
        experts = sum(n.cost(metric) or 0 for n in known if n.role.endswith(".experts"))
        elsewhere = Fraction(experts * (mesh.batches - 1), mesh.batches)
        again: int | Fraction = total(metric) - total(metric, *data) - elsewhere
        yield Recount("", DATA_COPIES, metric, of.get((DATA_COPIES, metric), 0), again)
        again = 0 if parts else total(metric, *data) - total(metric, *data, "cp")
        yield Recount("", SEQUENCE_COPIES, metric, of.get((SEQUENCE_COPIES, metric), 0), again)
    yield from _stored_copies(found, one)
    split = any(c.group == "tp" and c.module.endswith(".o_proj") for c in found.collectives)
    for stage, metric in ((stage, metric) for stage, of_stage in found.one_device.items() for metric in of_stage):
        if metric == "buffer_bytes" or metric in BY_TERMS:
            continue
        amounts = {d.what: d.amount for d in found.duplicates if (d.stage, d.metric) == (stage, metric)}
        causes: dict[str, int | Fraction] = dict.fromkeys(_CAUSES, 0)
        for n in bearing((n for n in one.nodes if not stage or n.stage == stage), metric):
            cause, more = _cause(n, metric, workload, symbols, split=split)
            causes[cause] += more * (n.cost(metric) or 0)
        for cause, amount in causes.items():
            yield Recount(stage, cause, metric, amounts.pop(cause, 0), amount)
        for what in amounts if stage else ():
            left = what == SEQUENCE_COPIES and stage != "prefill" and mesh.cp > 1
            left = left or (what.endswith(("leaves whole", "padding of the vocabulary")) and (what, "params") in of)
            yield Recount(stage, what, f"is a cause of more {metric}", left, True)


def _stored_copies(found: Parallel, one: Ledger) -> Iterator[Recount]:
    """Yield checks that stored and resident bytes have the copies of parameters, where they are stored as they run."""
    wanted = found.one_device[""]
    named = Counter({(d.what, d.metric): d.amount for d in found.duplicates if not d.stage})
    for metric, plain in (("stored_elements", "params"), ("stored_bytes", "weight_bytes")):
        padded = plain == "weight_bytes" and found.mesh.fsdp > 1  # by rows that are held, not stored
        if metric in wanted and one.total(metric) == one.total(plain) and not padded:
            for what in {what for what, of in named if of in (metric, plain)}:
                yield Recount("", what, metric, named[what, metric], named[what, plain])
    held, buffers = one.total("weight_bytes"), one.total("buffer_bytes")
    if "resident_bytes" in wanted and held is not None and one.total("resident_bytes") == held + (buffers or 0):
        for what in {what for what, of in named if of in ("resident_bytes", "weight_bytes")} - _OF_BUFFERS:
            if what.endswith("leaves whole"):  # with their buffers
                continue
            again = named[what, "weight_bytes"] + named[what, "buffer_bytes"]
            yield Recount("", what, "resident_bytes", named[what, "resident_bytes"], again)


_OF_BUFFERS: Final = frozenset({"tables of rotary embedding", "routers", "buffers"})
"""Causes of copies that buffers have, some of which are called buffers in their own metric."""


_CAUSES: Final = (
    "", "norms", "routers", "tables of rotary embedding", "latents of MLA, and the projections to them",
    "key/value heads that several ranks hold", "rows of experts of other ranks, which the kernel gets and skips",
    "pairs with keys after a rank's own positions, which it skips",
)  # fmt: skip


def _cause(
    n: CostNode, metric: str, workload: Workload, symbols: Mapping[str, int], *, split: bool
) -> tuple[str, int | Fraction]:
    """Return why ranks with one batch have more of a node's cost than one device, and how much more, relative to it.

    Args:
        split: whether ranks along ``tp`` divide the heads of attention.
    """
    mesh, leaf = workload.mesh, n.module.rpartition(".")[2]
    cached, latent = metric == "kv_cache_bytes", "text_kv_rank" in symbols
    if not n.role.startswith("text."):
        return "", 0
    if leaf in _LATENT_MODULES or (cached and latent):
        return "latents of MLA, and the projections to them", mesh.tp - 1
    if leaf == "rotary_emb":
        return "tables of rotary embedding", mesh.tp - 1
    if "norm" in leaf:
        return "norms", mesh.tp - 1
    if n.role.endswith(".router"):
        return "routers", mesh.tp - 1
    if leaf in ("k_proj", "v_proj") or cached:
        copies = Fraction(max(mesh.tp, symbols["text_kv_heads"]), symbols["text_kv_heads"])
        return "key/value heads that several ranks hold", copies - 1 if split else 0
    if leaf == "experts" and metric in ("flops", KEPT_FLOPS) and DISPATCH not in workload.inputs:
        return "rows of experts of other ranks, which the kernel gets and skips", mesh.ep - 1
    core = leaf == "self_attn" and n.kind != "matmul" and metric == "flops"
    if core and n.stage == "prefill" and mesh.cp > 1 and workload.inputs.get(CP_PLAN) != "ulysses":
        skipped = sum(key > query for query, key in product(range(mesh.cp), repeat=2))
        skipped *= 1 if split else mesh.tp
        return "pairs with keys after a rank's own positions, which it skips", Fraction(-skipped, mesh.cp**2)
    return "", 0


BY_TERMS: Final = frozenset({
    "params_active", "stored_bytes", "stored_elements", "resident_bytes", "calls", "vector_flops", "weight_read_bytes",
    "input_bytes", "output_bytes", "kv_read_bytes", UNFUSED, FLOOR,
})  # fmt: skip
"""Metrics whose copies :func:`_whole_parts` counts again, and :func:`_accesses` those of the bytes of all operands."""


_STORED: Final = ("stored_bytes", "stored_elements", "resident_bytes")
_COLUMNS: Final = {
    "q_proj": "o_proj", "k_proj": "o_proj", "v_proj": "o_proj", "gate_proj": "down_proj", "up_proj": "down_proj",
    "lm_head": "lm_head",
}  # fmt: skip
"""Modules whose outputs ranks divide by the plans of transformers, with the module whose collective follows, by last
name; each rank reads the whole input.
"""


def _whole_parts(found: Parallel, workload: Workload, one: Ledger, symbols: Mapping[str, int]) -> Iterator[Recount]:
    """Yield second counts of the copies of tensors and of work that are whole on several ranks.

    Each tensor is counted by its shape, where a module's name says which tensors it reads and writes; costs of modules
    that are whole are those of one device. Calls are counted module by module.
    """
    mesh, item, hidden = workload.mesh, FLOAT_BYTES[workload.dtype], symbols["text_hidden"]
    others, after = mesh.tp - 1, {c.module.rpartition(".")[2] for c in found.collectives if c.group in ("tp", "ep")}
    calls, modules = {"prefill": 1, "decode": workload.new_tokens}, {n.module for n in one.nodes}
    for stage, metric in ((s, m) for s, of in found.one_device.items() for m in of if m in BY_TERMS - {UNFUSED, FLOOR}):
        amounts = {d.what: d.amount for d in found.duplicates if (d.stage, d.metric) == (stage, metric)}
        nodes = bearing((n for n in one.nodes if not stage or n.stage == stage), metric)
        if metric == "calls":
            runs = mesh.world // mesh.pp
            more = sum(
                (n.cost("calls") or 0) * ((mesh.world if n.role in ("root", "text", "text.rotary") else runs) - 1)
                for n in nodes
            )
            if stage in calls:
                yield Recount(stage, "all copies", metric, sum(amounts.values()), more)
                for cause, amount in _copies_of_calls(nodes, workload).items():
                    yield Recount(stage, cause, metric, amounts.get(cause, 0), amount)
            continue
        causes: Counter[str] = Counter()
        unclear = False
        rows = workload.batch * (workload.text_tokens if stage == "prefill" else calls.get(stage, 0))
        state = rows * hidden * (1 if metric == "vector_flops" else item)
        exchanges = DISPATCH in workload.inputs
        apart = exchanges or mesh.cp > 1 or mesh.pp > 1 or PLAN in workload.inputs
        for n in nodes:
            leaf, cost = n.module.rpartition(".")[2], n.cost(metric) or 0
            if not n.role.startswith("text.") and n.role != "lm_head":
                continue
            if "norm" in leaf and leaf not in _LATENT_MODULES:
                of_heads = leaf in ("q_norm", "k_norm") and "o_proj" in after and metric in _OF_TOKENS
                causes["norms"] += 0 if of_heads else others * cost
                unclear |= of_heads and metric == "vector_flops"  # some add 1 to weights, which all have
            elif n.role.endswith(".router"):
                # Of ranks that store parts of parameters, buffers have a cause of their own.
                params = n.cost("params") if mesh.fsdp > 1 and metric in _STORED else None
                causes["routers"] += others * (cost // params * params if params else cost)
            elif apart or metric not in ("input_bytes", "output_bytes", "vector_flops"):
                continue
            elif leaf.isdecimal():  # a layer, which adds twice to the hidden states
                times = {"input_bytes": 3, "output_bytes": 2, "vector_flops": 2}[metric]
                causes["additions and other work between modules"] += others * times * state
            elif (
                leaf == "mlp" and f"{n.module}.shared_experts.down_proj" in modules
            ):  # which adds routed and shared ones
                causes["additions and other work between modules"] += others * (1 + (metric == "input_bytes")) * state
            elif metric == "input_bytes" and leaf in ("q_b_proj", "kv_b_proj", "embed_tokens"):  # latents, a scale
                split = ("embed_tokens" if leaf == "embed_tokens" else "o_proj") in after
                causes["inputs of split modules, which every rank reads"] += others * cost if split else 0
            elif metric == "input_bytes" and _COLUMNS.get(leaf) in after:
                last = leaf == "lm_head" and workload.logits == "last" and stage == "prefill"
                columns = state // workload.text_tokens if last else state
                causes["inputs of split modules, which every rank reads"] += others * columns
            elif metric == "output_bytes" and leaf in after & {"o_proj", "down_proj", "embed_tokens"}:
                causes["results of split modules, which every rank writes"] += others * state
            elif leaf == "experts" and _gets_states(mesh) and leaf in after and metric != "vector_flops":
                weights = rows * symbols["text_topk"] * (4 if _wide(one) else item) if metric == "input_bytes" else 0
                name = ("inputs of split modules, which every rank reads" if metric == "input_bytes"
                        else "results of split modules, which every rank writes")  # fmt: skip
                causes[name] += others * (state + weights)
        if mesh.cp == 1 and workload.inputs.get(PLAN) != "megatron":
            for cause, amount in causes.items() if not unclear else ():
                yield Recount(stage, cause, metric, amounts.get(cause, 0), amount)
        if metric in _OF_TOKENS and mesh.ep > 1 and mesh.cp == 1 and not exchanges:
            more = 0
            weights = rows * symbols["text_topk"] * (4 if _wide(one) else item)
            alone = {"input_bytes": state + weights, "output_bytes": state}.get(metric, 0)
            for n in nodes:  # a kernel gets the rows of all, and a rank besides, of several batches, its own tokens
                if n.role.startswith("text.layer.experts"):  # with the activation, if that is a module
                    own = alone if mesh.batches > 1 and n.role == "text.layer.experts" else 0
                    more += (mesh.ep - 1) * ((n.cost(metric) or 0) - own)
            yield Recount(stage, _ELSEWHERE, metric, amounts.get(_ELSEWHERE, 0), more)
        if metric == "params_active" and mesh.ep > 1:
            of_experts = [n for n in one.nodes if n.role == "text.layer.experts" and n.cost("params")]
            every, top_k = symbols["text_experts"], symbols["text_topk"]
            params = sum(n.cost("params") or 0 for n in bearing(of_experts, "params"))
            again = Fraction(params, every) * (mesh.ep * min(every // mesh.ep, top_k) - top_k)
            yield Recount(stage, _CHOSEN, metric, amounts.get(_CHOSEN, 0), again)
        if metric == "kv_read_bytes" and "text_kv_rank" in symbols and mesh.cp == 1:
            name = _LATENTS if "o_proj" in after else "attention, which the plan leaves whole"
            yield Recount(stage, name, metric, amounts.get(name, 0), others * sum(n.cost(metric) or 0 for n in nodes))
        copies = max(1, mesh.tp // symbols.get("text_kv_heads", mesh.tp)) if "o_proj" in after else 1
        if metric in ("output_bytes", "kv_read_bytes", "weight_read_bytes") and "text_kv_rank" not in symbols:
            held = {"output_bytes": ("k_proj", "v_proj", "k_norm"), "weight_read_bytes": ("k_proj", "v_proj"),
                    "kv_read_bytes": ("self_attn",)}[metric]  # fmt: skip
            of_text = [n for n in nodes if n.role.startswith("text.") and n.module.rpartition(".")[2] in held]
            more = sum((copies - 1) * (n.cost(metric) or 0) for n in of_text)
            yield Recount(stage, _OF_HEADS, metric, amounts.get(_OF_HEADS, 0), more)


_ELSEWHERE: Final = "rows of experts of other ranks, which the kernel gets and skips"


_CHOSEN: Final = "experts that tokens of a rank choose at most"


_LATENTS: Final = "latents of MLA, and the projections to them"


def _gets_states(mesh: Mesh) -> bool:
    """Return whether the experts of a rank get hidden states of its own tokens, not rows of all."""
    return mesh.ep == 1 or mesh.batches > 1


def _copies_of_calls(nodes: Iterable[CostNode], workload: Workload) -> Counter[str]:
    """Return the calls that ranks have more than one device, by cause, module by module.

    All stages of a pipeline call the model, the decoder and its rotary embedding. A mixture whose experts batches share
    has one cause, unless ranks send pairs.
    """
    mesh = workload.mesh
    found, groups = Counter[str](), mesh.dp * mesh.fsdp
    shared = mesh.batches > 1 and DISPATCH not in workload.inputs
    for n in nodes:
        calls = n.cost("calls") or 0
        group = mesh.tp * (mesh.pp if n.role in ("root", "text", "text.rotary") else 1)
        if n.role.startswith("text.layer.experts") and shared:
            found["calls of modules that several ranks run"] += (group * mesh.cp * groups - 1) * calls
            continue
        found["calls of modules that several ranks run"] += (group - 1) * calls
        found[SEQUENCE_COPIES] += group * (mesh.cp - 1) * calls
        found[DATA_COPIES] += group * mesh.cp * (groups - 1) * calls
    return found


def _copies_of_reads(found: Parallel, workload: Workload, one: Ledger, symbols: Mapping[str, int]) -> Iterator[Recount]:
    """Yield second counts of the weights that data-parallel ranks and those that share a sequence read again.

    Without experts only the looked-up rows of the embedding depend on tokens. All other weights are read by ranks that
    differ in their tokens alone as they are by the first of them.
    """
    mesh, metric, item = workload.mesh, "weight_read_bytes", FLOAT_BYTES[workload.dtype]
    costs = {rank: row.stages for row in found.ranks for rank in row.ranks}
    for stage, calls in (("prefill", 1), ("decode", workload.new_tokens)):
        of = {d.what: d.amount for d in found.duplicates if (d.stage, d.metric) == (stage, metric)}
        if metric not in found.one_device.get(stage, {}):
            continue
        stored = calls * sum(costs[rank][""]["weight_bytes"] for rank in costs) if mesh.fsdp > 1 else 0
        for kind in (metric, *((UNFUSED,) if UNFUSED in found.one_device[stage] else ())):
            named = {d.what: d.amount for d in found.duplicates if (d.stage, d.metric) == (stage, kind)}
            yield Recount(stage, _GATHERED, kind, named.get(_GATHERED, 0), stored)
        text = all(n.role.startswith(("text", "lm_head")) for n in one.nodes if n.stage == stage and n.cost(metric))
        if "text_experts" in symbols or not text:
            continue
        first = 0
        for rank in costs:
            at = mesh.coordinates(rank)
            if at.dp or at.fsdp or at.cp:
                continue
            run = replace(workload, inputs={**workload.inputs, RANK: rank})
            rows = 0 if at.pp else run.own_batch * (run.own_tokens if stage == "prefill" else calls)
            read = costs[rank][stage][metric] - rows * symbols["text_hidden"] * item
            first += read - (calls * costs[rank][""]["weight_bytes"] if mesh.fsdp > 1 else 0)
        tokens = calls * workload.batch if stage == "decode" else 0  # which all that share a sequence look up
        again = mesh.tp * tokens * symbols["text_hidden"] * item
        yield Recount(stage, SEQUENCE_COPIES, metric, of.get(SEQUENCE_COPIES, 0), (mesh.cp - 1) * (first + again))
        copies = mesh.cp * (mesh.dp * mesh.fsdp - 1) * first
        yield Recount(stage, DATA_COPIES, metric, of.get(DATA_COPIES, 0), copies)


_GATHERED: Final = "parts of parameters that ranks read to gather them"


def _accesses(found: Parallel, workload: Workload, one: Ledger, symbols: Mapping[str, int]) -> Iterator[Recount]:
    """Yield second counts of what exchanges with other ranks add to bytes and vector FLOPs.

    A collective's accesses follow from its payload, the bytes of the full tensor on the wire. All collectives of the
    counted rank are scaled by the tokens of all ranks to those of this rank.
    """
    mesh, item = workload.mesh, FLOAT_BYTES[workload.dtype]
    runs = [replace(workload, inputs={**workload.inputs, RANK: r}) for r in range(mesh.world)]
    batches = [run.own_batch for run in runs]
    of = {(d.stage, d.metric, d.what): d.amount for d in found.duplicates}
    hidden, latent = symbols["text_hidden"], "text_kv_rank" in symbols
    for stage, calls in (("prefill", 1), ("decode", workload.new_tokens)):
        if not calls or UNFUSED not in found.one_device.get(stage, {}):
            continue
        tokens = [
            batch * (run.own_tokens if stage == "prefill" else calls) for batch, run in zip(batches, runs, strict=True)
        ]
        state = Fraction(sum(tokens) * hidden * item, mesh.pp)

        def recount(what: str, metric: str, again: int | Fraction, stage: str = stage) -> Recount:
            return Recount(stage, what, metric, of.get((stage, metric, what), 0), again)

        for metric, times in (("input_bytes", 1), (UNFUSED, 1), (FLOOR, 2)):  # a floor has what enters, too
            yield recount("hidden states that stages send", metric, times * (mesh.pp - 1) * state)
        stored = calls * sum(len(row.ranks) * row.stages[""]["weight_bytes"] for row in found.ranks)
        gathered = 2 * stored * (1 + mesh.fsdp * mesh.cp) if mesh.fsdp > 1 else 0  # copied, read, all written and read
        yield recount("copies of gathered parameters", UNFUSED, gathered)
        whole_text = [n for n in one.nodes if n.stage == stage and n.role.startswith("text.")]
        norms = [
            n for n in whole_text if "norm" in (leaf := n.module.rpartition(".")[2]) and leaf not in _LATENT_MODULES
        ]
        if mesh.cp == 1 and workload.inputs.get(PLAN) != "megatron":
            if not any(n.module.endswith(("q_norm", "k_norm")) for n in norms):  # whose rows may be heads
                more = (mesh.tp - 1) * sum(n.cost(UNFUSED) or 0 for n in norms)
                yield recount("norms", UNFUSED, more)
            more = (mesh.tp - 1) * sum(n.cost("weight_read_bytes") or 0 for n in norms)
            yield recount("norms", FLOOR, more)
        if workload.attention == "eager" and "text_window" not in symbols:
            yield recount("masks that every rank reads", FLOOR, item * _masks(workload, stage, batches))
        if mesh.pp > 1:  # then the counted rank has a part of the layers
            continue
        here = [c for c in found.collectives if c.stage == stage]
        scale = Fraction(sum(tokens), tokens[workload.rank])

        def payload(kind: str, groups: Sequence[str], leaf: str = "", here: Sequence[Collectives] = here) -> int:
            return sum(c.bytes for c in here if c.kind == kind and c.group in groups and c.module.endswith(leaf))

        parts = payload("reduce_scatter", ["tp"])
        several = {batch > 1 for batch in batches}
        if not parts or len(several) == 1:  # parts of several sequences are put in order
            moved = 2 * payload("all_reduce", ["tp", "ep"]) + (4 if True in several else 2) * parts
            yield recount("tensors that ranks add up, read and written by the collective", UNFUSED, scale * moved)
        what = "sums for tokens of other ranks, which a rank does not get"
        yield recount(what, UNFUSED, -scale * parts * (1 - Fraction(1, mesh.tp)))
        if not mesh.tp > 1 or len(several) == 1:
            whole = payload("all_gather", ["tp"])
            whole -= payload("all_gather", ["tp"], "lm_head") + payload("all_gather", ["tp"], ".experts")
            states = whole * (3 if True in several else 1) + Fraction(whole, mesh.tp)
            yield recount("hidden states of other ranks that a rank gathers", UNFUSED, scale * states)
        looked_up = sum(payload(kind, ["tp"], "embed_tokens") for kind in ("all_reduce", "reduce_scatter"))
        zeros = mesh.world * calls * item if looked_up else 0  # one of them is read by each call
        yield recount("looked-up rows of other ranks, overwritten with zeros", UNFUSED, 2 * (scale * looked_up + zeros))
        yield recount(
            "rows that every rank looks up", FLOOR, _looked_up(workload, one, stage, symbols, split=looked_up > 0)
        )
        yield from (recount(*row) for row in _of_logits(workload, stage, payload, symbols, batches))
        if latent:
            split = (
                any(c.group == "tp" and c.module.endswith(".o_proj") for c in here)
                and workload.inputs.get(PLAN, "transformers") == "transformers"
            )
            down = [n for n in one.nodes if n.stage == stage and n.module.endswith("kv_a_proj_with_mqa")]
            made = 2 * mesh.tp * sum(n.cost("output_bytes") or 0 for n in down) * split
            made *= mesh.cp if stage == "decode" else 1
            yield recount("latents that are joined again behind a divided projection", UNFUSED, made)
            yield recount("tables and masks that the attention of every rank reads", UNFUSED, 0)
        yield from (recount(*row) for row in _of_exchanged_experts(workload, one, stage, here, symbols, batches))
        if DISPATCH in workload.inputs:
            layers = len({n.module for n in one.nodes if n.stage == stage and n.role == "text.layer.experts"})
            # There, and as many back; a table has those of one call, a file those of all.
            pairs = 2 * layers * sum(tokens[:: mesh.tp]) * symbols["text_topk"] * hidden * item
            yield recount("pairs of tokens and experts, copied, exchanged and put in order", UNFUSED, 6 * pairs)
            yield recount(
                "results that a rank weighs and adds behind the exchange", "vector_flops", Fraction(pairs, item)
            )
            yield from (recount(*row) for row in _of_slices(workload, one, stage, symbols, layers * calls))
        if mesh.cp == 1:
            continue
        given = payload("all_to_all", ["cp"], "self_attn")
        yield recount("heads that ranks exchange for positions", UNFUSED, 6 * scale * given)
        brought, added = (payload(kind, ["cp"], "self_attn") for kind in ("all_gather", "all_reduce"))
        if workload.inputs.get(CP_PLAN) == "ulysses" and not latent:
            what = "results of heads that ranks gather"  # a part is written and read, all of it written and read
            yield recount(what, "output_bytes", scale * brought * (1 - Fraction(1, mesh.cp)))
            yield recount(what, UNFUSED, scale * brought * (3 + Fraction(1, mesh.cp)))
        elif stage == "decode":
            what, rows = "partial results of attention that ranks merge", Fraction(brought, 4 * mesh.cp)
            merged = rows * (4 * mesh.cp + 4) + Fraction(added, item)
            yield recount(what, "vector_flops", scale * merged)
            yield recount(what, UNFUSED, scale * (4 * added + rows * (36 + 8 * mesh.cp)))


def _masks(workload: Workload, stage: str, batches: Sequence[int]) -> int:
    """Return the elements by which masks of all ranks exceed those of one device, call by call."""
    found = 0
    for step in range(1 if stage == "prefill" else workload.new_tokens):
        queries = workload.text_tokens if stage == "prefill" else 1
        keys = workload.past + workload.text_tokens + (0 if stage == "prefill" else step + 1)
        found += queries * keys * (sum(batches) - workload.batch)
    return found


def _looked_up(workload: Workload, one: Ledger, stage: str, symbols: Mapping[str, int], *, split: bool) -> int:
    """Return the bytes of table rows that a floor of all ranks has more than one device, each row read once at most."""
    mesh, calls = workload.mesh, 1 if stage == "prefill" else workload.new_tokens
    if not sum(n.cost("params") or 0 for n in one.nodes if n.role == "lm_head"):
        return 0  # it reads the table of the embedding, whole
    padded, share = rows_of(str(workload.inputs.get(PLAN, "")), symbols["text_vocab"], mesh.tp)
    found = -min(workload.batch * (workload.text_tokens if stage == "prefill" else 1), symbols["text_vocab"])
    for rank in range(mesh.world):
        run = replace(workload, inputs={**workload.inputs, RANK: rank})
        entries = len(range(padded)[rank % mesh.tp * share :][:share]) if split else symbols["text_vocab"]
        found += min(run.own_batch * (run.own_tokens if stage == "prefill" else 1), entries)
    return found * calls * symbols["text_hidden"] * FLOAT_BYTES[workload.dtype]


def _of_logits(
    workload: Workload, stage: str, payload: Callable[..., int], symbols: Mapping[str, int], batches: Sequence[int]
) -> Iterator[tuple[str, str, int | Fraction]]:
    """Yield (cause, metric, amount) of logits that ranks gather, from the chunks of their columns."""
    mesh, item, name = workload.mesh, FLOAT_BYTES[workload.dtype], "logits that every rank gathers"
    plan, calls = str(workload.inputs.get(PLAN, "")), 1 if stage == "prefill" else workload.new_tokens
    if not payload("all_gather", ["tp"], "lm_head"):
        return
    padded, share = rows_of(plan, symbols["text_vocab"], mesh.tp)
    positions, found = 0, 0
    one_each = stage == "decode" or workload.logits == "last"
    for rank, batch in enumerate(batches):
        run = replace(workload, inputs={**workload.inputs, RANK: rank})
        kept = 1 if one_each else run.own_tokens
        place = rank % mesh.tp
        own = len(range(padded)[place * share :][:share])
        accesses = share + mesh.tp * share  # of a call, for each position: a chunk is read, all are written
        accesses += 2 * mesh.tp * share if batch * kept > 1 else 0
        accesses += own + share if own < share else 0
        found += calls * batch * kept * accesses
        positions += calls * batch * kept
    yield name, UNFUSED, found * item
    # Ranks write the padded columns of all, of which each has written its own before.
    yield name, "output_bytes", Fraction((mesh.tp - 1) * positions * padded * item, mesh.tp)
    # A floor has the logits of each rank, of which one device has those of a tp-th of the positions.
    yield name, FLOOR, Fraction((mesh.tp - 1) * positions * symbols["text_vocab"] * item, mesh.tp)


def _of_exchanged_experts(
    workload: Workload, one: Ledger, stage: str, here: Sequence[Collectives], symbols: Mapping[str, int],
    batches: Sequence[int],
) -> Iterator[tuple[str, str, int | Fraction]]:  # fmt: skip
    """Yield (cause, metric, amount) of rows that experts of several ranks get, overwrite and return."""
    mesh, item = workload.mesh, FLOAT_BYTES[workload.dtype]
    nodes = [n for n in one.nodes if n.stage == stage and n.role == "text.layer.experts"]
    layers = len({n.module for n in nodes})
    if mesh.ep == 1 or not layers or DISPATCH in workload.inputs:
        return
    hidden, top_k, inner = symbols["text_hidden"], symbols["text_topk"], symbols["text_moe"]
    weight = 4 if _wide(one) else item
    runs = [replace(workload, inputs={**workload.inputs, RANK: r}) for r in range(mesh.world)]
    length = [run.own_tokens if stage == "prefill" else workload.new_tokens for run in runs]
    own = [batch * n for batch, n in zip(batches, length, strict=True)]
    alike = [
        [r // mesh.ep * mesh.ep + i for i in range(mesh.ep) if i % mesh.tp == r % mesh.tp] for r in range(mesh.world)
    ]
    every = [sum(own[r] for r in ranks) if mesh.batches > 1 else own[i] for i, ranks in enumerate(alike)]
    narrow = workload.experts == "batched_mm"
    accesses = weight + (weight if narrow else (2 * hidden + 2 * inner) * item)
    yield "rows of experts of other ranks, overwritten with zeros", UNFUSED, 2 * layers * sum(every) * top_k * accesses
    if mesh.batches == 1:
        return
    sums = sum(c.bytes for c in here if c.kind == "reduce_scatter" and c.module.endswith(".experts"))
    scale = Fraction(sum(every), every[workload.rank])
    weights = layers * top_k * weight
    # All tokens are written by the gather and read, their results written and read, and so are weights.
    what = "tokens, results and weights of experts that ranks gather"
    yield what, UNFUSED, 4 * scale * sums + 2 * weights * sum(every)
    others = sum(every) - sum(own)
    outside = 2 * sums * Fraction(others, every[workload.rank]) + weights * others
    yield "rows of other ranks, which do not enter or leave a mixture", UNFUSED, -outside


def _of_slices(
    workload: Workload, one: Ledger, stage: str, symbols: Mapping[str, int], modules: int
) -> Iterator[tuple[str, str, int]]:
    """Yield (cause, metric, amount) of gathering results of slices, token by token of a rank's batch.

    Args:
        modules: calls of mixtures in the stage.
    """
    mesh, item = workload.mesh, FLOAT_BYTES[workload.dtype]
    slices = padded = missing = 0
    for rank in range(mesh.world if mesh.tp > 1 else 0):
        batch = batch_of(workload.batch, mesh.dp * mesh.fsdp, rank % (mesh.world // mesh.pp) // mesh.tp)
        tokens = [*range(batch * (workload.text_tokens if stage == "prefill" else 1))]
        chunk = -(-len(tokens) // mesh.tp)
        own = tokens[rank % mesh.tp * chunk :][:chunk]
        slices, missing = slices + len(own), missing + mesh.tp * chunk - len(tokens)
        padded += 2 * chunk if len(own) < chunk else 0  # the padded part is written, and the collective reads more
    row = modules * symbols["text_hidden"]
    weight = 4 if _wide(one) else item
    yield "weighted results of slices that ranks gather", UNFUSED, 2 * slices * row * weight
    yield "padding of uneven slices of tokens", UNFUSED, padded * row * weight + missing * row * item
    yield "padding of uneven slices of tokens", "output_bytes", missing * row * item


def _rings(found: Parallel, workload: Workload, symbols: Mapping[str, int]) -> Iterator[Recount]:
    """Yield second counts of a prompt's attention in a ring, part by part: a query sees its own part and earlier ones.

    A rank has one part, or one from each end of the sequence. Of the keys that come from a rank it reads those parts
    that a part of its queries sees, with these queries, whose partial results are merged.
    """
    mesh, item, plan = workload.mesh, FLOAT_BYTES[workload.dtype], workload.inputs.get(CP_PLAN, "zigzag")
    if mesh.cp == 1 or plan == "ulysses" or UNFUSED not in found.one_device.get("prefill", {}):
        return
    of = {d.what: d.amount for d in found.duplicates if (d.stage, d.metric) == ("prefill", UNFUSED)}
    vector = {d.what: d.amount for d in found.duplicates if (d.stage, d.metric) == ("prefill", "vector_flops")}
    every = 2 * mesh.cp if plan == "zigzag" else mesh.cp
    parts = [[r, every - 1 - r] if plan == "zigzag" else [r] for r in range(mesh.cp)]
    read_queries = read_keys = merged = passed = 0  # parts that all ranks read, merge and pass on
    for rank, mine in enumerate(parts):
        for step in range(1, mesh.cp):
            theirs = parts[(rank - step) % mesh.cp]
            queries = sum(any(key <= query for key in theirs) for query in mine)
            keys = sum(any(key <= query for query in mine) for key in theirs)
            read_queries, read_keys, merged = read_queries + queries, read_keys + keys, merged + queries
            used = step < mesh.cp - 1 or keys > 0  # to attend, or to pass on
            passed += (3 + used) * len(mine)  # joined and sent on, received, and read
    latent = "text_kv_rank" in symbols
    key = symbols["text_nope"] + symbols["text_rope"] if latent else symbols["text_head_dim"]
    value = symbols["text_value"] if latent else key
    split = any(c.group == "tp" and c.module.endswith(".o_proj") for c in found.collectives)
    heads = symbols["text_heads"] * (1 if split else mesh.tp)
    kv_heads = symbols["text_kv_heads"] if not latent else heads
    kv_heads *= 1 if latent else max(1, mesh.tp // kv_heads) if split else mesh.tp
    tokens = Fraction(workload.batch * workload.text_tokens * symbols["text_layers"], every)  # of a part
    read = (read_queries * heads * key + read_keys * kv_heads * (key + value)) * tokens * item
    for what, amount in (
        ("queries, keys and values read again for each part", read),
        ("keys and values that ranks pass around a ring", passed * kv_heads * (key + value) * tokens * item),
    ):
        yield Recount("prefill", what, UNFUSED, of.get(what, 0), amount)
    what = "partial results of attention that ranks merge"
    yield Recount("prefill", what, "vector_flops", vector.get(what, 0), merged * tokens * heads * (3 * value + 8))


_OF_HEADS: Final = "key/value heads that several ranks hold"


_OF_TOKENS: Final = frozenset({"vector_flops", "input_bytes", "output_bytes"})


def _wide(one: Ledger) -> bool:
    """Return whether a router gives weights in float32, by the bytes that it writes for each of them."""
    routers = (n for n in one.nodes if n.role.endswith(".router") and "output_bytes" in n.exprs)
    return any(n.exprs["output_bytes"].startswith("4*") for n in routers)


_LATENT_MODULES: Final = frozenset({"q_a_proj", "q_a_layernorm", "kv_a_proj_with_mqa", "kv_a_layernorm"})
"""Last names of the modules of DeepSeek's attention before and behind which latents are whole."""
