"""Convert a costed graph to ledger nodes: attribute every operator and byte to a stage, invocation and module.

FLOPs and bytes that another algorithm for the same result can skip are counted beside; lower time bounds exclude them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import sympy

from costproof.algebra.series import CONTEXT
from costproof.algebra.symbols import text
from costproof.ledger.errors import Incomplete, Recount, check_recounts
from costproof.ledger.metrics import (
    ARITHMETIC,
    FLOOR,
    KEPT,
    KEPT_FLOPS,
    KEPT_SCORES,
    SKIPPABLE,
    SPARED,
    SPARED_AT_FLOOR,
    UNFUSED,
    Metric,
)
from costproof.ledger.node import CostNode, Ledger, UnknownOp
from costproof.opgraph.costed import CostedGraph
from costproof.opgraph.graph import AUTOCAST, Graph, ModuleCall, OpCall, Size, Value
from costproof.opgraph.kept import KeptWork, PairCounter, kept_work
from costproof.opgraph.merge import evidence, merge_unknown
from costproof.opgraph.regions import RegionTraffic
from costproof.opgraph.reuse import AvoidableTraffic, PackedReads, avoidable_recounts, floors, hidden_again
from costproof.opgraph.rules.attention import is_flash
from costproof.opgraph.rules.collectives import ranks_of
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.names import canonical, overwrites, source_kind
from costproof.opgraph.rules.registry import UnknownCost
from costproof.opgraph.rules.sizes import in_numbers, nbytes, numel, prod, total

StageLocator = Callable[[str, int], tuple[str, str] | None]
"""Function from (module path, call number) to (stage, invocation); ``None`` for wrapper code that is not counted."""

APPENDED: Final[tuple[Metric, ...]] = ("kv_cache_bytes", UNFUSED)
"""Metrics of the cache bytes that a module appends."""

NOT_KEPT: Final = "kept scores are not counted: the content of a mask is not known in"
_MOST_NAMED: Final = 3
_Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class AccountedGraph:
    """Cost nodes and unknown operators that one graph adds to a ledger."""

    nodes: tuple[CostNode, ...]
    unknown: tuple[UnknownOp, ...]


def account(
    costed: CostedGraph,
    place: StageLocator,
    inside: Collection[str] = (),
    run_dtype: str | None = None,
    pairs: PairCounter | None = None,
    packed: PackedReads | None = None,
) -> AccountedGraph:
    """Sum the costs of a graph by stage, invocation, module and operator kind.

    Kind nodes have ``flops`` and ``vector_flops``, and, for time bounds, FLOPs in other dtypes and FLOPs that can be
    skipped (:data:`~costproof.ledger.metrics.OF_BOUNDS`). Nodes with an empty kind have ``calls``,
    ``weight_read_bytes``, ``input_bytes``, ``output_bytes``, ``kv_read_bytes`` and ``unfused_bytes``; the root node has
    the ``floor_bytes`` of each stage and invocation. Zeros are omitted, and so are calls that run no operator, such as
    ``Identity``, since exports have none of them. Numbers are in ``costs``. For a graph with symbolic shapes every
    quantity is also in ``exprs``, and quantities that are not constant are only there. Parameters and the cache are not
    counted here.

    Args:
        inside: tensors that pass between two graphs of one stage; see :func:`~costproof.opgraph.reuse.floors`.
        run_dtype: dtype of the run, in which all other FLOPs run; ``None`` omits the metrics of bounds.
        pairs: counts the scores that masks leave; ``None`` omits ``kept_flops`` and ``kept_scores``.
        packed: reads of graphs that are one call with this one, which has no symbols then.

    Raises:
        Incomplete: an operator of the scaffolding computes.
    """
    graph, located = costed.graph, cache(place)
    sums: dict[_Key, dict[Metric, list[Size | None]]] = {}
    labels: dict[_Key, list[str]] = {}
    unknown: list[UnknownOp] = []
    unread: set[str] = set()
    by_module: list[tuple[str, RegionTraffic, Size]] = []

    def add(key: _Key, costs: Mapping[Metric, Size | None]) -> None:
        for metric, size in costs.items():
            if size != 0:
                sums.setdefault(key, {}).setdefault(metric, []).append(size)

    kept = {} if pairs is None else kept_work(costed, pairs)
    left_out = {} if run_dtype is None else skippable_flops(costed, kept)
    spared = None if run_dtype is None else _avoidable_traffic(costed, kept)
    for i, (op, cost) in enumerate(zip(graph.ops, costed.costs, strict=True)):
        here = located(op.module, op.call)
        if isinstance(cost, UnknownCost):
            bound = cost.bound if isinstance(cost.bound, int) else None
            stage = here[0] if here else "[unattributed]"
            unknown.append(UnknownOp(source_kind(op.name), stage, op.module, 1, bound, cost.why))
            if op.name == "vmap":  # a trace does not see what its function reads besides its arguments
                parts = op.module.split(".")
                unread |= {".".join(parts[:i]) for i in range(len(parts) + 1)}
        elif cost.comm is not None:
            if here is None:
                raise _uncounted_module_error(op)
            kind, payload, sent = cost.comm
            key = (*here, op.module, kind)
            add(key, {"comm_bytes": sent, "comm_payload_bytes": payload, "messages": 1})
            labels.setdefault(key, []).append(op.label)
        elif cost.flops != 0 or cost.vector != 0:
            if here is None:
                raise _uncounted_module_error(op)
            key = (*here, op.module, source_kind(op.name))
            add(key, {"flops": cost.flops, "vector_flops": cost.vector, SKIPPABLE: left_out.get(i, 0)})
            if pairs is not None:
                work = kept.get(i, KeptWork(cost.flops))
                add(key, {KEPT_FLOPS: work.flops, KEPT_SCORES: work.scores})
            if run_dtype is not None and (dtype := arithmetic_dtype(op)) != run_dtype:
                add(key, {f"{dtype}_flops": cost.flops})
            labels.setdefault(key, []).append(op.label)
    working = graph.working()
    for call in graph.calls:
        here = located(call.module, call.call)
        if here is not None and (call.module, call.call) in working:
            add((*here, call.module, ""), {"calls": 1})
    ops: Counter[tuple[str, int]] = Counter()
    for at, moved in costed.alone.items():
        op = graph.ops[at]
        here = located(op.module, op.call)
        ops[op.module, op.call] += 1
        again = 0 if packed is None else packed.again((op.module, op.call, ops[op.module, op.call]), moved.every)
        if here is not None:
            add((*here, op.module, ""), {UNFUSED: total((moved.bytes, -again))})
    for (module, number), traffic in costed.traffic.items():
        here = located(module, number)
        if here is not None:
            key = (*here, module, "")
            read = ("weight_read_bytes", traffic.weights), ("input_bytes", traffic.inputs)
            for metric, tensors in read:
                again = 0 if packed is None else packed.again((module, number), tensors)
                bytes_read = total((*(t.nbytes for t in tensors), -again))
                add(key, {metric: None if module in unread else bytes_read})
            add(key, {"kv_read_bytes": traffic.kv_read_bytes, "output_bytes": traffic.output_bytes})
            saved = 0 if spared is None else spared.bytes(traffic)
            add(key, {SPARED: saved})
            by_module.append((module, traffic, saved))
    regions, once = [located(op.module, op.call) for op in graph.ops], list[Size]()
    for metric, which in ((FLOOR, None), *(((SPARED_AT_FLOOR, spared),) if spared is not None else ())):
        for region, moved_once in floors(costed, regions, inside, which, packed if which is None else None).items():
            if region is not None:
                add((*region, "", ""), {metric: None if "" in unread else moved_once})
                once += [moved_once] if metric == SPARED_AT_FLOOR else []
    if spared is not None:
        check_recounts(avoidable_recounts(spared, by_module, once))
    if run_dtype is not None:
        check_recounts(_dtype_recounts(costed, sums.values(), run_dtype))
    owners = {call.module: call.class_name for call in graph.calls}
    values = (v for op in graph.ops for v in (*op.tensors, *op.outputs))
    symbolic = any(not isinstance(size, int) for value in values for size in value.shape)
    nodes = []
    for key, terms in sums.items():
        known = {metric: [size for size in parts if size is not None] for metric, parts in terms.items()}
        sizes = {metric: total(parts) for metric, parts in known.items() if len(parts) == len(terms[metric])}
        costs: dict[Metric, int | None] = {metric: size for metric, size in sizes.items() if isinstance(size, int)}
        costs |= dict.fromkeys(metric for metric in terms if metric not in sizes)
        exprs = {metric: text(size) for metric, size in sizes.items()} if symbolic else {}
        owner = owners.get(key[2], "")
        nodes.append(CostNode(*key, costs, exprs, owner, evidence=evidence(labels.get(key, ()))))
    return AccountedGraph(tuple(nodes), merge_unknown(unknown))


def _dtype_recounts(
    costed: CostedGraph, found: Iterable[Mapping[Metric, list[Size | None]]], run_dtype: str
) -> Iterator[Recount]:
    """Yield second counts of the FLOPs in each dtype besides the run's, over all operators, in place of by node.

    The dtype of each operator is read again, by :func:`_multiplied_in`.
    """
    again: dict[str, list[Size]] = {}
    for op, cost in zip(costed.graph.ops, costed.costs, strict=True):
        if not isinstance(cost, UnknownCost) and cost.comm is None:
            again.setdefault(_multiplied_in(op), []).append(cost.flops)
    again.pop(run_dtype, None)
    nodes = [*found]
    for dtype in ARITHMETIC:
        counted = [size for node in nodes for size in node.get(f"{dtype}_flops", ()) if size is not None]
        sums = (in_numbers(total(sizes)) for sizes in (counted, again.get(dtype, ())))
        yield Recount("graph", "all nodes", f"{dtype}_flops", *sums)


def _avoidable_traffic(costed: CostedGraph, kept: Mapping[int, KeptWork]) -> AvoidableTraffic | None:
    """Find the bytes that another implementation of the same result need not move; ``None`` if all must be moved."""
    ops = costed.graph.ops
    cast = any(op.attrs.get(AUTOCAST) for op in ops)
    halved = frozenset(v.id for op in ops for v in op.outputs if v.floating) if cast else frozenset()
    hidden = hidden_reads(costed, kept)
    apart = len(hidden ^ hidden_again(costed, kept, hidden))
    check_recounts([Recount("graph", "tensors read only as keys or values", "differ by reader", apart, 0)])
    return AvoidableTraffic(hidden, halved) if halved or hidden else None


def arithmetic_dtype(op: OpCall) -> str:
    """Return the dtype in which an operator multiplies: the narrowest of its floating-point tensors, or int8.

    Under autocast an export has tensors before the cast and results after it.
    """
    if not any(v.floating for v in op.tensors):
        return "int8" if {v.dtype for v in op.tensors} <= {"int8", "uint8"} else ARITHMETIC[-1]
    widths = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}
    found = [widths.get(v.dtype, v.dtype.partition("_")[0]) for v in (*op.tensors, *op.outputs) if v.floating]
    if "float64" not in found and op.attrs.get(AUTOCAST):
        found.append(op.attrs[AUTOCAST])
    known = [dtype for dtype in ARITHMETIC if dtype in found]
    return known[-1] if known and len(known) == len({*found}) else ARITHMETIC[-1]


_OPERANDS: Final = {"_scaled_mm": 2, "_int_mm": 2}
"""Number of leading arguments that an operator multiplies, by the schemas of torch; the others are scales."""
_FLOATING: Final = re.compile(r"(b?float|complex)(\d+)")
_OF_BITS: Final = {64: "float64", 32: "float32", 16: "float16", 8: "float8", 4: "float4"}


def _multiplied_in(op: OpCall) -> str:
    """Return the dtype in which an operator multiplies, read apart from :func:`arithmetic_dtype`.

    It compares the bits in names of dtypes, without the order of :data:`ARITHMETIC`; of operators with scales it reads
    the operands alone.
    """
    kind = canonical(op.name)
    operands = [v.dtype for v in op.tensors[: _OPERANDS.get(kind)]]
    if not any(map(_FLOATING.match, operands)):
        return "int8" if all(re.fullmatch("u?int8", dtype) for dtype in operands) else "other"
    every = operands if kind in _OPERANDS else [*operands, *(v.dtype for v in op.outputs)]
    read = [found for dtype in every if (found := _FLOATING.match(dtype))]
    if {"float64", "complex128"}.isdisjoint(every):  # which autocast leaves as they are
        read += [found for found in (_FLOATING.match(op.attrs.get(AUTOCAST) or ""),) if found]
    kinds: dict[int, set[str]] = {}
    for found in read:  # a complex number is two
        kinds.setdefault(int(found[2]) // (2 if found[1] == "complex" else 1), set()).add(found[1])
    names = {**_OF_BITS, 16: "bfloat16" if kinds.get(16) == {"bfloat"} else "float16"}
    return names[min(kinds)] if kinds.keys() <= names.keys() else "other"


def _uncounted_module_error(op: OpCall) -> Incomplete:
    return Incomplete(
        "an operator with a cost runs outside the modules that the export job names",
        where=f"{op.label} in {op.module or '(root)'}",
        expected="work inside the modules of the target",
        got=op.name,
        fix="add its module to prefix of the export job",
    )


def settle_kept(ledger: Ledger) -> Ledger:
    """Remove ``kept_flops`` and ``kept_scores`` from a ledger if either is unknown for some node.

    Bounds leave out what a mask hides or may hide in any case: it becomes part of the FLOPs that can be skipped.
    """
    unknown = [n for n in ledger.nodes if any(m in n.costs and n.costs[m] is None for m in KEPT)]
    if not unknown:
        return ledger

    def node(n: CostNode) -> CostNode:
        if KEPT_FLOPS not in n.costs and KEPT_FLOPS not in n.exprs:
            return n
        flops, kept, spare = (n.cost(m) for m in ("flops", KEPT_FLOPS, SKIPPABLE))
        hidden = flops if None in (flops, kept, spare) else (flops or 0) - (kept or 0) + (spare or 0)
        exprs = {m: e for m, e in n.exprs.items() if m != SKIPPABLE}
        costs = {m: c for m, c in n.costs.items() if m != SKIPPABLE} | ({SKIPPABLE: hidden} if hidden != 0 else {})
        return replace(n, costs=costs, exprs=exprs)

    where = dict.fromkeys(n.module or "(root)" for n in unknown)
    more = f" and {len(where) - _MOST_NAMED} more" if len(where) > _MOST_NAMED else ""
    note = f"{NOT_KEPT} {', '.join(list(where)[:_MOST_NAMED])}{more}"
    return replace(replace(ledger, nodes=tuple(map(node, ledger.nodes))).without(KEPT), notes=(*ledger.notes, note))


InvocationLocator = Callable[[str, int], tuple[str, str]]
"""Function from (module path, call number of its outermost repeated ancestor) to (stage, invocation)."""


def cache_nodes(locate: InvocationLocator, graph: Graph, cache_inputs: Iterable[Value]) -> list[CostNode]:
    """Return nodes for the growth of the key/value cache, at the modules that write or read it."""
    before = tuple(cache_inputs)
    same = len(before) == len(graph.cache_outputs)
    if same and all(a.shape == b.shape for a, b in zip(before, graph.cache_outputs, strict=True)):
        return []  # states that others take the place of, whoever reads the old and writes the new
    writer = {v.id: op for op in graph.ops for v in op.outputs}
    reader: dict[str, str] = {}
    for op in graph.ops:
        for value in op.tensors:
            reader.setdefault(value.id, op.module)
    growth: dict[str, list[Size]] = {}
    for sign, values in ((1, graph.cache_outputs), (-1, before)):
        for value in values:
            for module, size in _bytes_by_writer(value, writer) or [("", nbytes(value))]:
                growth.setdefault(module or reader.get(value.id, ""), []).append(prod((sign, size)))
    nodes: list[CostNode] = []
    for module, parts in growth.items():
        nodes += cache_growth_nodes(*locate(module, 1), module, total(parts))
    return nodes


def _bytes_by_writer(value: Value, writer: Mapping[str, OpCall]) -> list[tuple[str, Size]]:
    """Return (module, bytes) for each module that wrote a part of a cache tensor.

    Behind ``cat``, only what it appended.
    """
    op = writer.get(value.id)
    if op is None:
        return []
    before = op.tensors[0] if op.tensors and canonical(op.name) == "cat" else None
    if before is None or before.id not in writer or canonical(writer[before.id].name) != "cat":
        return [(op.module, nbytes(value))]
    return [*_bytes_by_writer(before, writer), (op.module, total((nbytes(value), prod((-1, nbytes(before))))))]


def cache_growth_nodes(stage: str, invocation: str, module: str, grown: Size) -> list[CostNode]:
    """Return nodes for appended cache bytes, at the module and as floor bytes at the root; empty without growth."""
    found = []
    for path, metrics in ((module, APPENDED), ("", (FLOOR,))) if grown != 0 else ():
        known: dict[Metric, int | None] = dict.fromkeys(metrics, grown) if isinstance(grown, int) else {}
        exprs = {} if known else dict.fromkeys(metrics, text(grown))
        found.append(CostNode(stage, invocation, path, "", known, exprs))
    return found


def locator(locate: InvocationLocator, calls: Iterable[ModuleCall]) -> InvocationLocator:
    """Return a function from (module, call) to (stage, invocation), which the outermost repeated call decides."""
    parents = {(c.module, c.call): c.parent for c in calls}
    repeated = {module for module, call in parents if call > 1}

    def place(module: str, call: int) -> tuple[str, str]:
        number, here = 1, (module, call) if (module, call) in parents else None
        while here is not None:
            if here[0] in repeated:
                number = here[1]
            here = parents[here]
        return locate(module, number)

    return place


_LINEAR: Final = frozenset({"linear", "mm", "matmul", "addmm"})
_FUSED: Final = "attention"
_NARROWEST: Final = 4
"""Least width of a head's key plus value at which absorbed latent attention saves work with two or more keys."""


def skippable_flops(costed: CostedGraph, kept: Mapping[int, KeptWork]) -> Mapping[int, Size]:
    """Return the headline FLOPs that another algorithm can skip, apart from masks, by index of the operator.

    Args:
        kept: result of :func:`~costproof.opgraph.kept.kept_work`; without it, attention skips nothing.
    """
    ops, costs = costed.graph.ops, costed.costs
    found = {i: c.skippable for i, c in enumerate(costs) if isinstance(c, OpCost) and c.skippable != 0}
    writer = {v.id: i for i, op in enumerate(ops) for v in op.outputs}
    kept_rows = {costed.roots.get(v.id, v).id for v in costed.graph.cache_outputs}
    for i, (op, cost) in enumerate(zip(ops, costs, strict=True)):
        multiplies = isinstance(cost, OpCost) and cost.role == "matmul" and cost.flops != 0
        if not multiplies or canonical(op.name) not in _LINEAR or not op.outputs:
            continue
        parts = _mapped_parts(op, costed, writer)
        pasts = [past for _, past in parts if past is not None]
        latents = next(iter(pasts), None) or next(
            (v for v in op.tensors if costed.roots.get(v.id, v).id in kept_rows), None
        )
        if latents is None:
            continue
        rank, out = latents.shape[-1], op.outputs[0].shape[-1]
        # New latents are multiplied by the weights in either form.
        saved = [0 if past is None else prod((2, numel(past), out)) for _, past in parts]
        if pasts:
            found[i] = total(saved)
        calls = _calls_behind(i, costed, kept)
        paired = len(parts) > 1 and _read_in_order(calls, parts, ops)
        for number, at in enumerate(calls):
            k = number if paired else 0
            past = parts[k][1] if paired or len(parts) == 1 else None
            scores, wider = kept[at].scores, _wider(ops[at], rank, out, _sharing_heads(costed, i, at))
            if scores is None or wider is None:
                continue
            if wider > 0 and past is not None:  # scores and sums of latents are more work than those of keys and values
                saved[k] = _not_negative(total((saved[k], prod((-2, scores, wider)))))
                found[i] = total(saved)
            elif wider < 0:
                found[at] = prod((2, scores, -wider))
    return found


def _calls_behind(start: int, costed: CostedGraph, kept: Mapping[int, KeptWork]) -> list[int]:
    """Return the attention calls in the enclosing module that read a product's result; all of them if none does."""
    ops, roots = costed.graph.ops, costed.roots
    outer = ops[start].module.rpartition(".")[0]
    reached = {v.id for v in ops[start].outputs}
    found = []
    for at in range(start + 1, len(ops)):
        op = ops[at]
        if op.module != outer or not any({v.id, roots.get(v.id, v).id} & reached for v in op.tensors):
            continue
        if at in kept and kept[at].scores != 0:
            found.append(at)
            continue
        written = (*op.outputs, *(op.tensors[:1] if overwrites(op) else ()))
        reached |= {key for v in written for key in (v.id, roots.get(v.id, v).id)}
    return found or [at for at, work in kept.items() if ops[at].module == outer and work.scores != 0]


_Part = tuple[Value, Value | None]
"""Latents of a sequence that a call multiplies by a weight, and the cached ones among them."""


def _read_in_order(calls: Sequence[int], parts: Sequence[_Part], ops: Sequence[OpCall]) -> bool:
    """Return whether the n-th attention call reads keys computed from the n-th of these latents, for all n."""

    def keys(at: int) -> tuple[Size, ...]:
        shape = ops[at].tensors[1].shape if len(ops[at].tensors) > 1 else ()
        # Keys, or their transpose as the second factor of a product; heads of FlashAttention follow tokens.
        places = (-3,) if is_flash(ops[at].name) else (-2, -1)
        return tuple(prod((*shape[:1], shape[i])) for i in places) if len(shape) > 2 else ()

    same = len(calls) == len(parts)
    return same and all(prod(part.shape[:-1]) in keys(at) for at, (part, _) in zip(calls, parts, strict=True))


def _not_negative(saved: Size) -> Size:
    """Return the FLOPs, or 0 if negative; a formula in the context length is never negative and stays unchanged."""
    if isinstance(saved, int):
        return max(0, saved)
    return saved if CONTEXT in saved.free_symbols else sympy.Max(0, sympy.expand(saved))


def _sharing_heads(costed: CostedGraph, start: int, end: int) -> int:
    """Return the number of ranks to which an all-to-all before the attention gives different key/value heads."""
    module = costed.graph.ops[end].module
    exchanges = (
        op
        for op, cost in zip(costed.graph.ops[start:end], costed.costs[start:end], strict=True)
        if op.module == module and isinstance(cost, OpCost) and cost.comm is not None and cost.comm[0] == "all_to_all"
    )
    return max(map(ranks_of, exchanges), default=1)


def _wider(op: OpCall, rank: Size, out: Size, sharing: int) -> int | None:
    """Return how many elements two latents are wider than the key and value of one head together.

    0 if key and value together are narrower than ``_NARROWEST`` and not wider than two latents: attention on latents
    then skips at most the expansion. ``None`` if a size is a symbol.

    Args:
        op: the operator that computes the scores of the heads.
        rank: width of a latent.
        out: width of the keys and values of all heads.
        sharing: ranks that each have a part of these heads when scores are computed.
    """
    shape = op.tensors[0].shape if _FUSED in canonical(op.name) else op.outputs[0].shape
    heads = 1 if len(shape) < 3 else shape[-3]
    if is_flash(op.name):
        heads = op.tensors[0].shape[-2]
    heads = prod((heads, sharing))
    if not (isinstance(heads, int) and isinstance(rank, int) and isinstance(out, int)) or out % heads:
        return None
    both = out // heads
    return 2 * rank - both if both >= _NARROWEST or both > 2 * rank else 0


def _mapped_parts(op: OpCall, costed: CostedGraph, writer: Mapping[str, int]) -> list[_Part]:
    """Return (latents, their cached part) for each row of a batch whose latents a call multiplies by a weight.

    The latents of one row are those of its cache joined with new ones, or alone if the cache does not grow. Those of
    several rows are joined once more. Empty if nothing is cached.
    """
    if not any(v.origin == "param" or costed.roots.get(v.id, v).origin == "param" for v in op.tensors):
        return []

    def joined(value: Value) -> tuple[Value, ...]:
        at = writer.get(costed.roots.get(value.id, value).id)
        return () if at is None or canonical(costed.graph.ops[at].name) != "cat" else costed.graph.ops[at].tensors

    def cached(value: Value, width: Size) -> Value | None:
        return next(
            (p for p in joined(value) if costed.roots.get(p.id, p).origin == "cache" and p.shape[-1] == width), None
        )

    for value in op.tensors:
        width = value.shape[-1]
        if costed.roots.get(value.id, value).origin == "cache":
            return [(value, value)]
        if (past := cached(value, width)) is not None:
            return [(value, past)]
        rows: list[_Part] = [(part, cached(part, width)) for part in joined(value)]
        if any(past is not None for _, past in rows):
            return rows
    return []


def hidden_reads(costed: CostedGraph, kept: Mapping[int, KeptWork]) -> frozenset[str]:
    """Return the ids of tensors that are read only as keys or values of attention with masks, which may hide them."""
    graph, roots = costed.graph, costed.roots

    def root(value: Value) -> str:
        return roots.get(value.id, value).id

    cached = {v.id for v in graph.cache_outputs}
    needed = {root(v) for v in graph.outputs if v.id not in cached}
    hidden = set[str]()
    for i, (op, cost) in reversed(list(enumerate(zip(graph.ops, costed.costs, strict=True)))):
        role = cost.role if isinstance(cost, OpCost) else "vector"
        if role in ("alias", "factory", "free"):  # such as an assertion on the dtype, which a trace does not have
            continue
        moved = role == "move" and {root(v) for v in op.outputs} <= hidden - needed
        masked = i in kept and kept[i].hides_keys and not any(v.origin == "param" for v in op.tensors)
        for place, value in enumerate(op.tensors):
            (hidden if moved or (masked and place > 0) else needed).add(root(value))
    return frozenset(hidden - needed)
