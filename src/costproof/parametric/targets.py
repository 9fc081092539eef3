"""Evaluate the closed formulas of a target at one workload, without any graph or run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import Any, Final, Protocol, Self

import sympy

from costproof.algebra.evaluation import SymbolValues, evaluate, shared_values
from costproof.algebra.identity import free_symbols
from costproof.algebra.series import CONTEXT, STEPS
from costproof.algebra.symbols import parse, sym, text, version
from costproof.compare.diff.changes import SETTINGS, WORKLOAD, settings
from costproof.compare.proof.certificate import Claim, Counterexample
from costproof.compare.proof.judge import Answer
from costproof.estimate.links import Devices, share_of_experts
from costproof.estimate.routing import (
    EXPERTS,
    NODES_OF,
    RoutedCall,
    RoutedLayers,
    RoutedRank,
    TouchedExperts,
    check_stages,
    copies_by_call,
    dispatch_rows,
    expert_loads,
    is_table,
    node_size,
    routing_data,
    stored_routing,
    touched_of_rank,
    with_reads,
)
from costproof.ledger.baseline import Baseline, Folded
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, Bug, Recount, check_recounts
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.mesh import (
    AXES,
    CP_PLAN,
    DISPATCH,
    PAIRS,
    RANK,
    Collectives,
    Dispatch,
    Duplicate,
    Mesh,
    Parallel,
    RankCosts,
    bytes_of,
    on_one_device,
    own_batch,
)
from costproof.ledger.metrics import FLOOR, KEPT, STORAGE, Metric
from costproof.ledger.node import CostNode, Ledger, bearing
from costproof.ledger.workload import FLOAT_BYTES, Invocation, SettingValue, TargetInfo, Workload, folded_path
from costproof.models.native import GivesFormulas, stored_formulas
from costproof.models.target import (
    DATA_COPIES,
    OF_MEMORY,
    SEQUENCE_COPIES,
    Sharded,
    Sharing,
    WithKeys,
    WithMemory,
    WithWholePrompt,
)
from costproof.parametric.copy_checks import PAYLOAD, RanksByRole, RoleCosts, copy_recounts
from costproof.parametric.rank_checks import places, recounts


class HasFormulas(GivesFormulas, Protocol):
    """Protocol of targets that have closed formulas."""

    def info(self) -> TargetInfo:
        """Return the description of the target, with the values of its configuration symbols."""

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the calls of all stages in a run, with the values of their symbols."""


class Configurable(HasFormulas, Protocol):
    """Protocol of targets that have closed formulas for any configuration.

    :class:`~costproof.parametric.evaluator.Evaluator` needs nothing else of a target."""

    @property
    def config(self) -> Any:
        """The configuration: a frozen dataclass of everything that decides a cost."""

    def with_keys(self, changes: Mapping[str, Any]) -> Self:
        """Return the same model with other values of some configuration keys."""

    def workload(self, preset: str | None = None, **settings: Any) -> Workload:
        """Return a preset with changed settings."""


def evaluate_formulas(target: HasFormulas, workload: Workload) -> Ledger:
    """Return the analytic ledger of a workload, with every symbol replaced by its value."""
    calls = target.invocations(workload)
    values, config = {(i.stage, i.id): i.symbols for i in calls}, target.info().symbols
    found = evaluate_ledger(stored_formulas(target, workload), values, config)
    check_recounts(_symbol_recounts(found, calls, workload, config))
    if "text_kv_rank" in config and workload.mesh.one and not workload.rows:
        check_recounts(_latent_recounts(found, values, config))
    return found


def _latent_recounts(
    found: Ledger, values: Mapping[tuple[str, str], SymbolValues], config: SymbolValues
) -> Iterator[Recount]:
    """Yield second counts of the FLOPs that a kernel skips which absorbs the expansion of latents, step by step.

    It does not expand the latents of the past, but scores and sums of the latents are wider than those of a head: of a
    past of p, t queries have t p + t (t + 1) / 2 pairs. Heads wider than two latents skip the rest in the attention.
    """
    rank, heads = config["text_kv_rank"], config["text_heads"]
    both = config["text_nope"] + config["text_value"]
    expanded = {(n.stage, n.invocation, n.module.rpartition(".")[0]) for n in found.nodes
                if n.role.endswith(".kv_up") and n.cost("flops")}  # fmt: skip
    known: dict[tuple[str, str], int] = {}
    for n in found.nodes:
        of = values.get((n.stage, n.invocation), {})
        if n.role.endswith("attention.kv_up") and n.kind == "linear":
            first, tokens = (of["P"], 1) if "N" in of else (of.get("C", 0), of["S"])
            pasts = range(first, first + of.get("N", 1)) if (n.stage, n.invocation) not in known else ()
            for past in pasts:
                saved = 2 * rank * heads * both * past
                if past and 4 <= both <= 2 * rank:
                    saved -= heads * (2 * tokens * past + tokens * (tokens + 1)) * (2 * rank - both)
                saved = of["B"] * (saved if tokens == 1 else max(0, saved))
                known[n.stage, n.invocation] = known.get((n.stage, n.invocation), 0) + saved
            again = known.get((n.stage, n.invocation), 0)
            yield Recount(n.stage, n.module, "skippable_flops", n.cost("skippable_flops") or 0, again)
        elif n.kind == "attention" and (n.stage, n.invocation, n.module) in expanded:
            again = 2 * (n.cost("kept_scores") or 0) * max(0, both - 2 * rank)
            yield Recount(n.stage, n.module, "skippable_flops", n.cost("skippable_flops") or 0, again)


def _symbol_recounts(
    found: Ledger, calls: Sequence[Invocation], workload: Workload, config: SymbolValues
) -> Iterator[Recount]:
    """Yield second counts of symbols that no formula of their call contains, so that no comparison checks their values.

    A symbol of several calls has the value that costs of another call depend on. Positions with logits follow from the
    FLOPs of ``lm_head``, vision tokens from the length of the prompt, and the context of a step from both lengths.
    """
    used: dict[tuple[str, str], frozenset[str]] = {}
    head: dict[tuple[str, str], int] = {}
    for node in found.nodes:
        place = (node.stage, node.invocation)
        used[place] = used.get(place, frozenset()).union(*map(free_symbols, node.exprs.values()))
        if node.role == "lm_head":
            head[place] = head.get(place, 0) + (node.cost("flops") or 0)
    known: dict[str, set[int]] = {}
    for call in calls:
        for name in call.symbols.keys() & used.get((call.stage, call.id), frozenset()):
            known.setdefault(name, set()).add(call.symbols[name])
    prompt = next((call.symbols for call in calls if "L" in call.symbols), {})
    for call in calls:
        place, of = (call.stage, call.id), call.symbols
        for name in of.keys() - used.get(place, of.keys()):
            if name in known:
                yield Recount(call.stage, call.id, f"{name} is that of a cost", of[name] in known[name], True)
            elif name == "L" and head.get(place) and workload.mesh.one:
                each = 2 * of["B"] * config["text_hidden"] * config["text_vocab"]
                yield Recount(call.stage, call.id, name, of[name], Fraction(head[place], each))
            elif name == "V" and not workload.rows:
                yield Recount(call.stage, call.id, name, of[name], of["S"] - workload.text_tokens)
            elif name == CONTEXT.name and prompt and workload.mesh.one:
                yield Recount(call.stage, call.id, name, of[name], workload.past + prompt["S"])


def live_peaks(model: WithMemory, workload: Workload, *, inputs_held: bool = True) -> dict[tuple[str, str, str], int]:
    """Return the live peak of each call by formula, by (stage, invocation, part); for decode, of the last step.

    Args:
        model: the target.
        workload: the workload.
        inputs_held: whether inputs stay alive to the end of a call.

    Raises:
        Incomplete: values of the input decide what the run allocates.
    """
    config, calls = model.info().symbols, {(call.stage, call.id): call for call in model.invocations(workload)}
    found = {}
    for (stage, invocation, part), tape in model.memory(workload).items():
        values = {**config, **calls[stage, invocation].symbols}
        if CONTEXT.name in values and STEPS.name in values:
            values[CONTEXT.name] += values[STEPS.name] - 1
        found[stage, invocation, part] = tape.peak_bytes(values, inputs_held=inputs_held)
    return found


HELD: Final[tuple[Metric, ...]] = ("params", "weight_bytes", "buffer_bytes")
DONE: Final[tuple[Metric, ...]] = ("flops", *KEPT, "kv_cache_bytes")
"""Metrics of memory and work whose excess over one device, summed over ranks, is explained by named duplicates."""


_Terms = Counter[tuple[str, str, str, Metric, str]]
"""Nodes with the same formula in one call, by (stage, invocation, role, metric, formula)."""


def count_ranks(target: Sharded, workload: Workload, counted: Ledger) -> Parallel:
    """Count every rank of a mesh by the formulas, and name the duplicates by which their sum exceeds one device.

    Args:
        counted: analytic ledger of the rank that the workload counts.

    Raises:
        Bug: the ranks do not sum to one device and the named copies, or something that is counted again differs.
    """
    check_recounts(places(whole_prompt(target, workload), target.info().symbols))
    found, again = _count_ranks(target, workload, counted)
    for problem in found.problems():
        raise Bug(problem.what, where=problem.where, expected=problem.expected, got=problem.got)
    check_recounts(again)
    return found


def _count_ranks(target: Sharded, workload: Workload, counted: Ledger) -> tuple[Parallel, Iterator[Recount]]:
    """Return the costs of every rank, and second counts of these costs."""
    mesh, sharing, info = workload.mesh, target.shares(workload), target.info()
    config, undivided = info.symbols, None
    equal: dict[str, list[int]] = {}
    costs: dict[str, dict[str, dict[str, int]]] = {}

    def on_mesh(run: Workload) -> Sequence[RoleCosts]:
        return _costs_of_ranks(target, run, counted)

    each = on_mesh(workload)
    for rank, by_role in enumerate(each):
        of_all = _sums(by_role, counted)
        of_rank = repr(of_all)
        costs[of_rank] = of_all
        equal.setdefault(of_rank, []).append(rank)
    rows = [RankCosts(tuple(ranks), costs[of_rank]) for of_rank, ranks in equal.items()]
    one = evaluate_formulas(target, replace(workload, inputs=_of_one(workload)))
    if mesh.pp > 1:
        inputs = {name: value for name, value in workload.inputs.items() if name != "pp"}
        run = replace(workload, inputs={**inputs, RANK: workload.rank % (mesh.world // mesh.pp)})
        values = {(c.stage, c.id): c.symbols for c in target.invocations(run)}
        undivided = _sums(_rank_costs(_terms(stored_formulas(target, run)), counted, values, config), counted)
    held, done = sharing.by_terms()
    copies = (*_duplicates(one, workload, sharing),)
    if mesh.fsdp > 1 and set(STORAGE) <= {*counted.metrics, *one.metrics}:
        held, copies = (*held, *STORAGE), (*copies, *_of_stored_parts(one, copies, mesh))
    stored = sum(d.amount for d in copies if (d.stage, d.metric) == ("", "weight_bytes"))
    stored += one.total("weight_bytes") or 0
    found = Parallel(
        mesh, workload.rank, sharing.origin, tuple(rows), tuple(_collectives(counted, workload, sharing)),
        {"": {m: cost for m in (*HELD, *held) if m in counted.metrics and (cost := one.total(m)) is not None},
         **{s: {m: cost for m in (*DONE, *done)
                if m in counted.metrics and (cost := one.stage_total(s, m)) is not None}
            for s in one.stages if s in rows[0].stages}},
        tuple(d for d in (*copies, *_of_terms(target, one, workload, sharing, copies, stored))
              if d.metric in counted.metrics),
        tuple(_dispatches(target, workload, sharing)),
        *((asdict(sharing.routed), NODES_OF) if sharing.routed is not None and has_forms(mesh) else ()),
    )  # fmt: skip
    whole = whole_prompt(target, workload)
    alone = _values(target, replace(workload, inputs=_of_one(workload)))
    ranks = RanksByRole(workload, each, on_mesh, _rank_costs(_terms(one), one, alone, config), alone)
    return found, chain(
        recounts(found, whole, counted, one, info, sharing.routed, undivided),
        copy_recounts(found, whole, one, info, ranks),
    )


def _of_stored_parts(one: Ledger, copies: Sequence[Duplicate], mesh: Mesh) -> Iterator[Duplicate]:
    """Yield the duplicates of what ranks store and load if each stores parts of parameters: those of parameters.

    Buffers, which are not in parts, each rank of a pipeline stage has whole.
    """
    params, elements, size = (one.total(m) or 0 for m in ("params", "stored_elements", "stored_bytes"))
    # Bytes of an element of the weights, which are in one dtype: stored bytes of quantised ones are unknown here. All
    # buffers together have fewer bytes than there are parameters.
    item, others = size // params, mesh.world // mesh.pp - 1
    found: Counter[tuple[str, Metric]] = Counter({
        ("buffers", "stored_elements"): others * (elements - params),
        ("buffers", "stored_bytes"): others * (size - params * item),
    })  # fmt: skip
    for d in copies:
        if not d.stage and d.metric == "params":
            found[d.what, "stored_elements"] += d.amount
            found[d.what, "stored_bytes"] += d.amount * item
        elif not d.stage and d.metric in ("weight_bytes", "buffer_bytes"):
            found[d.what, "resident_bytes"] += d.amount
    for (what, metric), amount in found.items():
        if amount:
            yield Duplicate(what, "", metric, amount, bytes_of(metric, amount))


OF_FURTHER: Final[tuple[Metric, ...]] = (*HELD, "stored_bytes", "stored_elements", "resident_bytes")
"""Metrics of MTP modules, of which only memory is counted."""


@dataclass(frozen=True, slots=True)
class FurtherLayout:
    """Tensors of an MTP module besides those of a decoder layer; none of them is quantised."""

    modules: int
    norms: int
    columns: int
    """Columns of the projection to the hidden width, as a multiple of that width."""
    tables: bool
    """Whether a module has copies of the embedding and of the output projection."""
    item: int
    """Bytes of a stored element."""


def count_further(target: Sharded, workload: Workload, layout: FurtherLayout) -> Parallel:
    """Count the MTP modules that each rank of a mesh holds, and name the copies by which ranks exceed one device.

    A module has the last layer of the decoder as the plan divides it, tables divided as those of the decoder, and norms
    and a projection that each rank has whole. All of them are on the last stage of a pipeline. Source: vLLM,
    ``DeepSeekMultiTokenPredictorLayer`` (``nn.Linear``, ``VocabParallelEmbedding``, ``ParallelLMHead``,
    ``DeepseekV2DecoderLayer``), and ``GPUModelRunner`` ("the entire draft model on the last PP rank"); SGLang,
    ``DeepseekModelNextN``.

    Raises:
        BadInput: ranks store parts of parameters.
        Bug: the ranks do not sum to one device and the named copies.
    """
    mesh = workload.mesh
    if mesh.fsdp > 1:
        what = "no source says how ranks store parts of MTP modules: fully_shard divides what transformers builds"
        raise BadInput(what, where="--mtp, --fsdp", expected="--fsdp 1", got=mesh.fsdp)
    flat = {name: value for name, value in workload.inputs.items() if name not in ("pp", DISPATCH, PAIRS)}
    size, known = mesh.world // mesh.pp, dict[object, dict[str, int]]()
    equal: dict[str, tuple[list[int], dict[str, int]]] = {}
    for rank in range(mesh.world):
        held: dict[str, int] = dict.fromkeys(OF_FURTHER, 0)
        if rank >= mesh.world - size:
            run = replace(workload, inputs={**flat, RANK: rank % size})
            key = tuple((c.stage, c.id, *sorted(c.symbols.items())) for c in target.invocations(run))
            if key not in known:
                ledger = _further_ledger(target, run, layout)
                known[key] = {metric: ledger.total(metric) or 0 for metric in OF_FURTHER}
            held = known[key]
        equal.setdefault(repr(held), ([], held))[0].append(rank)
    one = _further_ledger(target, replace(workload, inputs=_of_one(workload)), layout)
    last = replace(workload, inputs={**flat, RANK: 0})
    copies = [*_duplicates(one, last, target.shares(last))]
    copies += _of_terms(target, one, last, target.shares(last), copies, 0)
    found = Parallel(
        mesh, workload.rank, target.shares(workload).origin,
        tuple(RankCosts(tuple(ranks), {"": held}) for ranks, held in equal.values()), (),
        {"": {m: one.total(m) or 0 for m in OF_FURTHER}}, tuple(copies),
    )  # fmt: skip
    for problem in found.problems():
        raise Bug(problem.what, where=f"MTP modules, {problem.where}", expected=problem.expected, got=problem.got)
    return found


def _further_ledger(target: Sharded, run: Workload, layout: FurtherLayout) -> Ledger:
    """Return the memory of the MTP modules of one device, or of a rank of one stage, as formulas with numbers."""
    ledger = stored_formulas(target, run)
    held = [n for n in ledger.nodes if not n.invocation and n.stage == ledger.stages[0]]
    layers = [int(m[1]) for n in held if (m := _LAYER.search(n.module))]
    own = [n for n in held if (m := _LAYER.search(n.module)) and int(m[1]) == max(layers)]
    parts = [("text.norm", f"norms.{i}", "text_hidden") for i in range(layout.norms)]
    parts.append(("text.further", "projection", f"{layout.columns}*text_hidden**2"))
    for node in held if layout.tables else ():
        if node.role == "text.embedding":  # which a tied output projection has no parameters beside
            rows = node.exprs["params"]
            parts += [(role, role.rpartition(".")[2], rows) for role in ("text.embedding", "lm_head")]
    for role, name, params in parts:
        sizes: dict[Metric, str] = {"params": params, "stored_elements": params}
        sizes |= dict.fromkeys(("weight_bytes", "resident_bytes"), f"b*({params})")
        sizes["stored_bytes"] = f"{layout.item}*({params})"
        canonical = {metric: text(sympy.expand(parse(expr))) for metric, expr in sizes.items()}
        own.append(replace(own[0], module=f"further.{name}", costs={}, exprs=canonical, role=role))
    nodes = []
    for i in range(layout.modules):
        for n in own:
            kept = {metric: n.exprs[metric] for metric in OF_FURTHER if metric in n.exprs}
            nodes.append(replace(n, module=f"mtp.{i}.{n.module}", exprs=kept, costs={}))
    known = replace(ledger, nodes=tuple(nodes), metrics=tuple(m for m in OF_FURTHER if m in ledger.metrics))
    calls = target.invocations(run)
    return evaluate_ledger(known, {(c.stage, c.id): c.symbols for c in calls}, target.info().symbols)


_LAYER: Final = re.compile(r"\.layers\.(\d+)\.")


def whole_prompt(target: object, workload: Workload) -> Workload:
    """Return the workload with all tokens that the decoder processes, those of images included."""
    return target.whole_prompt(workload) if isinstance(target, WithWholePrompt) else workload


def _kind_of(run: Workload) -> tuple[int, int, bool]:
    """Return the properties of a rank that select its formulas: batch, pipeline stage, whether it caches new tokens."""
    return run.own_batch, run.mesh.coordinates(run.rank).pp, run.keeps_new_tokens


def _terms(ledger: Ledger) -> _Terms:
    held = Counter(("", "", n.role, m, n.exprs[m]) for m in (*HELD, *OF_MEMORY) for n in bearing(ledger.nodes, m)
                   if m in n.exprs)  # fmt: skip
    return held + Counter(
        (n.stage, n.invocation, f"{n.role} {n.kind}" if m == PAYLOAD else n.role, m, e)
        for n in ledger.nodes
        for m, e in n.exprs.items()
    )


def _costs_of_ranks(target: Sharded, workload: Workload, counted: Ledger) -> Sequence[RoleCosts]:
    """Return the costs of each rank of a workload's mesh, by stage, role and metric; equal ranks share them."""
    terms: dict[object, _Terms] = {}
    known: dict[object, RoleCosts] = {}
    found, config = [], target.info().symbols
    for rank in range(workload.mesh.world):
        run = replace(workload, inputs={**workload.inputs, RANK: rank})
        calls, which = target.invocations(run), _kind_of(run)
        if which not in terms:
            terms[which] = _terms(stored_formulas(target, run))
        key = (which, tuple((c.stage, c.id, *sorted(c.symbols.items())) for c in calls))
        if key not in known:
            values = {(c.stage, c.id): c.symbols for c in calls}
            known[key] = _rank_costs(terms[which], counted, values, config)
        found.append(known[key])
    return found


def _of_one(workload: Workload) -> dict[str, SettingValue]:
    more = (*AXES, RANK, CP_PLAN, DISPATCH, PAIRS)
    return {name: value for name, value in workload.inputs.items() if name not in more}


def _rank_costs(
    terms: _Terms,
    ledger: Ledger,
    values: Mapping[tuple[str, str], SymbolValues],
    config: SymbolValues,
) -> RoleCosts:
    """Return the costs of one rank by stage, role and metric; memory of the whole rank has an empty stage name."""
    common = {**config, **shared_values(values.values())}
    found: Counter[tuple[str, str, str]] = Counter()
    for (stage, call, role, metric, expr), times in terms.items():
        # The counted ledger lacks stages that are never called; formulas of another rank have them.
        if (not stage or stage in ledger.stages) and metric in ledger.metrics and (not call or (stage, call) in values):
            known = {**config, **values[stage, call]} if call else common
            found[stage, role, metric] += times * evaluate(expr, known)
    return found


def _sums(costs: RoleCosts, ledger: Ledger) -> dict[str, dict[str, int]]:
    """Return the costs of all roles by stage and metric."""
    found: dict[str, dict[str, int]] = {s: dict.fromkeys(ledger.metrics, 0) for s in ledger.stages}
    found[""] = {m: 0 for m in (*HELD, *OF_MEMORY) if m in ledger.metrics}
    for (stage, _, metric), cost in costs.items():
        found[stage][metric] += cost
    return found


_EXCHANGED: Final[tuple[Metric, ...]] = ("messages", "comm_payload_bytes", "comm_bytes")


def _collectives(ledger: Ledger, workload: Workload, sharing: Sharing) -> Iterator[Collectives]:
    """Yield the collectives in an evaluated ledger, with equal ones merged."""
    found: dict[tuple[str, str, str, str, str], list[CostNode]] = {}
    for n in ledger.nodes:
        if n.cost("messages"):
            place = (n.stage, n.invocation, n.kind, sharing.axis_of(n.role, n.kind), folded_path(n.module))
            found.setdefault(place, []).append(n)
    for (stage, call, kind, axis, module), nodes in found.items():
        count, payload, sent = (sum(n.cost(m) or 0 for n in nodes) for m in _EXCHANGED)
        ranks = workload.mesh.ranks_of(kind, axis, workload.rank)
        dtype = ", ".join(sharing.dtypes(axis, kind, workload.dtype, nodes[0].role))
        yield Collectives(stage, call, kind, axis, ranks, dtype, count, payload, sent, module)


def has_forms(mesh: Mesh) -> bool:
    """Return whether the forms of dispatch to experts are compared: ranks with all layers have several batches."""
    return mesh.batches > 1 and mesh.pp == 1


def _dispatches(target: Sharded, workload: Workload, sharing: Sharing) -> Iterator[Dispatch]:
    """Yield what each method of sending tokens to the experts of other ranks costs the counted rank.

    None if ranks do not divide the experts, if those that do share one batch, if stages of a pipeline have some of the
    layers each, or if the run is given only numbers of pairs, which do not say how many copies of a token a method
    sends.
    """
    pairs = str(workload.inputs.get(PAIRS, ""))
    if not has_forms(workload.mesh) or sharing.routed is None or (pairs and is_table(pairs)):
        return
    every = _routed_calls(target.invocations(workload), workload)
    yield from dispatch_rows(
        sharing.routed, workload.mesh, workload.rank, every, FLOAT_BYTES[workload.dtype], pairs, node_size()
    )


def _routed_calls(calls: Iterable[Invocation], workload: Workload) -> Iterator[RoutedCall]:
    mesh = workload.mesh
    for call in calls:
        if call.stage not in ("prefill", "decode"):  # towers, which have no routed experts
            continue
        known = call.symbols
        length = known["B"] * known.get("S", 1) // workload.own_batch
        tokens = tuple(length * own_batch(workload.batch, mesh, rank) for rank in range(mesh.world // mesh.pp))
        yield RoutedCall(call.stage, call.id, tokens, known.get("N", 1))


@dataclass(frozen=True, slots=True)
class GivenRank:
    """Counts of one rank under a given routing, and the load of its routed experts."""

    folded: Folded
    experts: tuple[TouchedExperts, ...]
    loads: tuple[RoutedRank, ...]
    """One entry for each stage with routed experts."""


def count_given(target: Sharded, run: Workload, folded: Folded, routing: str, node: int | None) -> GivenRank:
    """Count the counted rank of a mesh with ``ep`` as a routing file has it, of the tokens of the whole batch.

    Its experts multiply the rows that the routing sends to them, and read the weights that these touch. A rank that
    sends pairs (``--dispatch all-to-all``) has its rows by formula already.

    Args:
        folded: counts of the rank by formulas, with the rows of all ranks that share the experts.
        routing: as :func:`~costproof.estimate.routing.stored_routing` returns it.
        node: number of devices per node; ``None`` for one node.

    Raises:
        BadInput: the routing does not match the run.
    """
    layers, info, mesh = target.shares(run).routed, target.info(), run.mesh
    if mesh.cp > 1 or (max(mesh.pp, mesh.fsdp) > 1 and DISPATCH not in run.inputs):
        what = "a routing is counted on ranks with all layers, whole sequences and whole parameters"
        raise BadInput(what, where="--routing", expected="--pp 1, --cp 1, --fsdp 1", got=mesh.text)
    assert layers is not None
    ledger, invocations = stored_formulas(target, run), target.invocations(run)
    stages = {n.stage for n in ledger.nodes if n.role.rpartition(".")[2] == EXPERTS}
    calls = [*_routed_calls((c for c in invocations if c.stage in stages), run)]
    check_stages(routing_data(routing), [call.stage for call in calls], routing.partition(" sha256:")[0])
    values = {(c.stage, c.id): {**info.symbols, **c.symbols} for c in invocations}
    alike, own = replace(mesh, pp=1), target.shares(run).own_mixtures
    mine = {
        c.stage: [
            [call[i][run.rank % alike.world] for i in own] for call in expert_loads(routing, c, layers, alike)
        ]
        for c in calls
    }  # fmt: skip
    item, group = FLOAT_BYTES[run.dtype], alike.group("ep", run.rank % alike.world)
    tokens = {call.stage: sum(call.sends(alike)[rank] for rank in group) for call in calls}
    experts = touched_of_rank(ledger, values, layers, mine, tokens, own.start)
    shares, loads = dict[str, Fraction](), []
    sent: dict[str, dict[str, int]] = {}
    for d in dispatch_rows(layers, mesh, run.rank, calls, item, routing, node) if has_forms(mesh) else ():
        if d.routing == "given":
            sent.setdefault(d.stage, {})[d.form] = d.sent_bytes
    for call in calls:
        every = [load for of_call in mine[call.stage] for load in of_call]
        pairs, read_by = sum(load.pairs for load in every), [t for t in experts if t.stage == call.stage]
        if DISPATCH not in run.inputs:
            shares[call.stage] = Fraction(pairs, layers.layers * call.calls * tokens[call.stage] * layers.top_k)
        if DISPATCH in run.inputs and not has_forms(mesh):
            pairs_moved = _pairs_moved(copies_by_call(routing, call, layers, alike, "expert"), own, run)
            sent[call.stage] = {str(run.inputs[DISPATCH]): pairs_moved * layers.hidden * item}
        touched = Fraction(sum(load.touched for load in every), len(every))
        read, work = sum(t.bytes for t in read_by), 6 * layers.hidden * layers.inner * pairs
        loads.append(RoutedRank(call.stage, run.rank, pairs, str(touched), read, work, sent.get(call.stage, {})))
    return GivenRank(with_reads(share_of_experts(folded, shares), experts), tuple(experts), tuple(loads))


def _pairs_moved(calls: Iterable[Sequence[Sequence[Sequence[int]]]], layers: Iterable[int], run: Workload) -> int:
    """Return the pairs that a rank sends to other ranks in its layers, and the results of theirs that it returns.

    Args:
        calls: call -> layer with experts -> rank of a pipeline stage -> rank of its ``ep`` group -> pairs.
    """
    mesh = replace(run.mesh, pp=1)
    rank = run.rank % mesh.world
    place, others = mesh.coordinates(rank).ep, [r for r in mesh.group("ep", rank) if r != rank]
    found = 0
    for call in calls:
        for pairs in (call[i] for i in layers):
            found += sum(pairs[rank]) - pairs[rank][place] + sum(pairs[other][place] for other in others)
    return found


def with_nodes(capture: Capture, devices: Devices) -> Capture:
    """Return a capture whose dispatch between nodes is that of named devices, in the nodes of ``--on`` or their file.

    All are taken as one node if no source gives its size. Without the routing file of the run, only the mean and the
    bound are left.
    """
    found, workload = capture.parallel, capture.workload
    if found is None or not found.mixtures:
        return capture
    routing = str(workload.inputs.get(PAIRS, ""))
    try:
        routing = routing and stored_routing(routing)
    except BadInput:
        routing = ""
    kept = [d for d in found.dispatches if d.node is None]
    stages, run = {d.stage for d in kept}, (found.mesh, found.rank)
    every: list[Dispatch] = []
    for call in _routed_calls((c for c in capture.invocations if c.stage in stages), workload):
        rows = dispatch_rows(
            RoutedLayers(**found.mixtures), *run, [call], FLOAT_BYTES[workload.dtype], routing, devices.node_size
        )
        every += [d for d in kept if (d.stage, d.invocation) == (call.stage, call.invocation)]
        every += [d for d in rows if d.node is not None]
    return replace(capture, parallel=replace(found, dispatches=tuple(every), nodes_of=devices.name))


def _duplicates(one: Ledger, workload: Workload, sharing: Sharing) -> Iterator[Duplicate]:
    """Yield the work and memory that ranks duplicate: along ``tp`` by cause, and along ``dp``."""
    item = FLOAT_BYTES[workload.dtype]
    for stage, metric in (*(("", m) for m in HELD), *((s, m) for s in one.stages for m in DONE)):
        if (one.stage_total(stage, metric) if stage else one.total(metric)) is None:
            continue
        copies: Counter[str] = Counter()
        nodes = bearing((n for n in one.nodes if not stage or n.stage == stage), metric)
        for (role, kind, cost), alike in Counter((n.role, n.kind, n.cost(metric) or 0) for n in nodes).items():
            times, why = sharing.held_by(role, metric)
            more, what = sharing.added(role) if metric in ("params", "weight_bytes") else (0, "")
            added = more * (item if metric == "weight_bytes" else 1)
            padding, rows = sharing.padding_of(role, metric, cost)
            copies[why] += alike * (times - 1) * cost
            copies[what] += alike * added
            copies[rows] += alike * padding
            if stage:
                further, reason = sharing.along_sequence(stage, role, kind, metric, times * cost + padding)
                copies[reason] += alike * further
            else:
                once, again = times * cost + added + padding, sharing.copies_of_batches(role, metric) - 1
                along = sharing.copies_of_sequences(metric)
                copies[SEQUENCE_COPIES] += alike * (along - 1) * once
                copies[DATA_COPIES] += alike * again * along * once
        for why, amount in copies.items():
            if amount:
                yield Duplicate(why, stage, metric, amount, bytes_of(metric, amount))


def _of_terms(
    target: Sharded, one: Ledger, workload: Workload, sharing: Sharing, duplicates: Sequence[Duplicate], stored: int
) -> Iterator[Duplicate]:
    """Yield the duplicates in metrics of which some terms of a module's formula are divided and others are not.

    A rank evaluates the formula of one device with its own numbers of the sizes that ranks divide, such as heads. What
    is left of it without any of these sizes, every rank has in full. :meth:`Sharing.moved` and
    :meth:`Sharing.added_by_collectives` give what exchanges with other ranks add.

    Args:
        duplicates: those of other metrics.
        stored: bytes of parameters that all ranks together store.
    """
    mesh, config = workload.mesh, target.info().symbols
    alone = _values(target, replace(workload, inputs=_of_one(workload)))
    every = [
        _values(target, replace(workload, inputs={**workload.inputs, RANK: r})) for r in range(mesh.world // mesh.pp)
    ]
    each = every[:: mesh.tp]  # the first rank of each group with one batch
    held, done = sharing.by_terms()
    common = {**config, **shared_values(alone.values())}

    def known(stage: str, call: str, ranks: Sequence[Mapping[tuple[str, str], SymbolValues]]) -> list[SymbolValues]:
        return [{**config, **of[stage, call]} for of in ranks if (stage, call) in of]

    def copies_of(stage: str, metric: Metric, of: Callable[[str], bool] = bool) -> Counter[str]:
        """Return the duplicates by cause, of modules with some roles."""
        copies: Counter[str] = Counter()
        nodes = bearing((n for n in one.nodes if (not stage or n.stage == stage) and of(n.role)), metric)
        terms = Counter((n.role, n.invocation, n.exprs[metric]) for n in nodes if metric in n.exprs)
        for (role, call, expr), alike in terms.items():
            whole, parts = (alone[stage, call], known(stage, call, each)) if stage else (common, [common] * len(each))
            for why, amount in sharing.excess(role, metric, expr, {**config, **whole}, parts):
                copies[why] += alike * amount
        called = (n for n in one.nodes if n.stage == stage and n.invocation and not n.kind and of(n.role))
        for (role, call), modules in Counter((n.role, n.invocation) for n in called).items():
            for why, amount in sharing.moved(
                role, metric, {**config, **alone[stage, call]}, known(stage, call, every), modules
            ):
                copies[why] += amount
        for why, amount in sharing.added_by_collectives(one, stage, metric, FLOAT_BYTES[workload.dtype], stored):
            copies[why] += amount
        return copies

    def at_floor(stage: str) -> Counter[str]:
        """Return the duplicates of the floor of a decoder, the sum of what crosses its boundary and of what lasts."""
        copies = Counter({d.what: d.amount for d in duplicates if (d.stage, d.metric) == (stage, "kv_cache_bytes")})
        again = sharing.counted_once
        for found in (
            copies_of(stage, "weight_read_bytes", lambda role: role not in again),
            copies_of(stage, "kv_read_bytes"),
            copies_of(stage, "input_bytes", lambda role: role in ("text.rotary", "text.embedding")),
        ):
            copies.update(found)
        for call in {n.invocation for n in one.nodes if n.stage == stage and n.invocation}:
            nodes = [n for n in one.nodes if n.stage == stage and n.invocation in ("", call)]
            for why, amount in sharing.at_floor(nodes, {**config, **alone[stage, call]}, known(stage, call, every)):
                copies[why] += amount
        return copies

    for stage, metric in (*(("", m) for m in held), *((s, m) for s in one.stages for m in done)):
        if (one.stage_total(stage, metric) if stage else one.total(metric)) is None:
            continue
        decoder = any(n.stage == stage and n.role == "text" for n in one.nodes)
        copies = at_floor(stage) if metric == FLOOR and decoder else copies_of(stage, metric)
        for why, amount in copies.items():
            if amount:
                yield Duplicate(why, stage, metric, amount, bytes_of(metric, amount))


def _values(target: Sharded, run: Workload) -> dict[tuple[str, str], SymbolValues]:
    return {(c.stage, c.id): c.symbols for c in target.invocations(run)}


def compare_ranks(target: Sharded, workload: Workload, *, symbolic: bool) -> Answer:
    """Compare the ranks' sums with one device plus duplicates, and with separate code, for a piece of a proof.

    Args:
        symbolic: whether the sums over ranks are compared in symbols; then equal numbers are claims.
    """
    placed = [*places(whole_prompt(target, workload), target.info().symbols)]
    if misplaced := [one for one in placed if one.found != one.again]:  # nothing else can be counted then
        stage = target.invocations(workload)[0].stage
        return Answer({stage: len(placed)}, (), tuple(_refuted(stage, one) for one in misplaced))
    found, again = _count_ranks(target, workload, evaluate_formulas(target, workload))
    stage = next(s for s in found.one_device if s)
    counts: dict[tuple[str, str], list[Recount]] = {}
    wrong = []
    for one in (*placed, *_as_recounts(found), *again):
        counts.setdefault((one.stage or stage, one.metric), []).append(one)
        if one.found != one.again:
            wrong.append(_refuted(one.stage or stage, one))
    claims = []
    for (of, metric), same in counts.items():
        total = str(sum(one.again for one in same))
        claims.append(Claim(of, "", "ranks", "", metric, len(same), (), "recount", (), "", total, total))
    rows: Counter[str] = Counter()
    for (of, _), same in counts.items():
        rows[of] += len(same)
    for of, metric, left, right in _sums_in_symbols(target, workload) if symbolic else ():
        rows[of or stage] += 1
        rest = sympy.expand(left - right)
        formula = text(sympy.expand(right))
        if rest != 0:
            wrong.append(_differs(of or stage, "all ranks", metric, (text(sympy.expand(left)), formula, text(rest))))
        free = tuple(sorted(s.name for s in right.free_symbols))
        claims.append(Claim(of or stage, "", "all ranks", "", metric, 1, (), "identity of ranks", free,
                            version(right), formula, formula))  # fmt: skip
    return Answer(dict(rows), tuple(claims) if symbolic and not wrong else (), tuple(wrong))


def _as_recounts(found: Parallel) -> Iterator[Recount]:
    """Yield the number of inconsistencies in the result for all ranks as a second count, which must be 0."""
    yield Recount("", "$.parallel", "problems", len(found.problems()), 0)


def _refuted(stage: str, one: Recount) -> Counterexample:
    return _differs(stage, one.where, one.metric, (str(one.found), str(one.again), str(one.found - one.again)))


def _differs(stage: str, module: str, metric: str, sides: tuple[str, str, str]) -> Counterexample:
    left, right, rest = sides
    return Counterexample("", stage, "", module, "", metric, left, left, right, rest, {}, {})


_Sums = dict[tuple[str, Metric], sympy.Expr]


def _sums_in_symbols(target: Sharded, workload: Workload) -> Iterator[tuple[str, Metric, sympy.Expr, sympy.Expr]]:
    """Yield (stage, metric, sum over ranks, one device plus duplicates), the latter two as expressions in symbols.

    B, S and P are the batch, the positions and the context of one rank of equal ones, so that one device has dp fsdp B
    sequences of cp S positions, after cp P, or after P if ranks cache heads at all positions.
    """
    mesh, sharing, config = workload.mesh, target.shares(workload), target.info().symbols
    item, kept = FLOAT_BYTES[workload.dtype], {sym("cp_tokens"): sym("P")}
    left: _Sums = {}
    right: _Sums = {}
    for rank in range(mesh.world):
        run = replace(workload, inputs={**workload.inputs, RANK: rank})
        own = {name: n for call in target.invocations(run) for name, n in call.symbols.items()
               if name in on_one_device(call.symbols) and name != "cp_tokens"}  # fmt: skip
        for (stage, _, _, metric, expr), times in _terms(stored_formulas(target, run)).items():
            if metric in (DONE if stage else HELD):
                add = times * _put_in(expr, {**config, **own, "b": item}).xreplace(kept)
                left[stage, metric] = left.get((stage, metric), sympy.Integer(0)) + add
    nodes = stored_formulas(target, replace(workload, inputs=_of_one(workload))).nodes
    sizes = (("B", mesh.dp * mesh.fsdp), ("S", mesh.cp), ("P", 1 if sharing.by_heads else mesh.cp))
    whole = {sym(n): k * sym(n) for n, k in sizes}
    for stage, metric in left:
        every: Counter[tuple[str, sympy.Rational, int, int]] = Counter()
        for node in bearing((n for n in nodes if not stage or n.stage == stage), metric):
            if metric in node.exprs:
                times, _ = sharing.held_by(node.role, metric)
                more, _ = sharing.added(node.role) if metric in ("params", "weight_bytes") else (0, "")
                of_both = sharing.copies_of_sequences(metric) * sharing.copies_of_batches(node.role, metric)
                groups = of_both if not stage else 1
                pad, vocabulary = sharing.padding_of(node.role, metric, 0)[0], config["text_vocab"]
                share = times + sympy.Rational(sharing.padding_of(node.role, metric, vocabulary)[0] - pad, vocabulary)
                if stage:  # of a cost that all parts of a sequence divide
                    parts = 2 * mesh.cp * share.q
                    cost = int(share * parts)
                    share += sympy.Rational(sharing.along_sequence(stage, node.role, node.kind, metric, cost)[0], parts)
                added = more * (item if metric == "weight_bytes" else 1) + pad
                every[node.exprs[metric], share, added, groups] += 1
        total = sympy.Integer(0)
        for (expr, share, added, groups), alike in every.items():
            total += alike * groups * (_put_in(expr, {**config, "b": item}) * share + added)
        right[stage, metric] = total.xreplace(whole) if stage else total
    for key, sums in left.items():
        yield *key, sums, right[key]


def _put_in(expr: str, numbers: Mapping[str, int]) -> sympy.Expr:
    found = parse(expr)
    return found.xreplace({s: sympy.Integer(numbers[s.name]) for s in found.free_symbols if s.name in numbers})


@dataclass(frozen=True, slots=True)
class BlendedTarget:
    """Target whose workloads mix the settings of two runs, base and head, for a diff."""

    model: WithKeys
    base: Baseline
    """Run that provides all settings that are not given."""
    head: Baseline
    kernels: bool = False
    """Whether attention and expert kernels are those of the head instead of the base."""
    without: frozenset[str] = frozenset()
    """Roles whose nodes are removed from the formulas."""

    @property
    def config(self) -> Any:
        """The configuration of the model."""
        return self.model.config

    def with_keys(self, changes: Mapping[str, Any]) -> BlendedTarget:
        """Return the same target with other values of some configuration keys."""
        return replace(self, model=self.model.with_keys(changes))

    def info(self) -> TargetInfo:
        """Return the description of the model."""
        return self.model.info()

    def invocations(self, workload: Workload) -> tuple[Invocation, ...]:
        """Return the calls of the model's stages."""
        return self.model.invocations(workload)

    def formulas(self, workload: Workload) -> Ledger:
        """Return the formulas of the model, without the nodes of roles that are left out."""
        ledger = self.model.formulas(workload)
        if not self.without:
            return ledger
        return replace(ledger, nodes=tuple(n for n in ledger.nodes if n.role not in self.without))

    def workload(self, preset: str | None = None, **changed: Any) -> Workload:
        """Return the workload of the base with changed settings.

        Raises:
            BadInput: the model refuses it, or it has a combination of inputs that neither side has.
        """
        values = {**settings(self.base), **changed}
        given = {key.removeprefix(WORKLOAD): value for key, value in values.items() if value is not None}
        own = {name: given.pop(name) for name in SETTINGS}
        sides = [self.base.workload, self.head.workload]
        if given.keys() not in [side.inputs.keys() for side in sides]:
            raise BadInput(
                "neither side of the diff has this combination of settings",
                where="a workload with settings from both sides",
                expected=" or ".join(", ".join(side.inputs) or "none" for side in sides),
                got=", ".join(given) or "none",
            )  # fmt: skip
        kernels = sides[self.kernels]
        blend = replace(sides[0], **own, inputs=given, attention=kernels.attention, experts=kernels.experts)
        self.model.check(blend)
        return blend
