"""Convert a costed graph to ledger nodes: attribute every operator and byte to a stage, invocation and module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from costproof.algebra.symbols import text
from costproof.ledger.errors import Incomplete
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
from costproof.opgraph.reuse import AvoidableTraffic, floors
from costproof.opgraph.rules.names import canonical, source_kind
from costproof.opgraph.rules.registry import UnknownCost
from costproof.opgraph.rules.sizes import nbytes, prod, total
from costproof.opgraph.skippable import hidden_reads, skippable_flops

StageLocator = Callable[[str, int], tuple[str, str] | None]
"""(module path, call number) -> (stage, invocation), or ``None`` for scaffolding that is not counted."""

APPENDED: Final[tuple[Metric, ...]] = ("kv_cache_bytes", UNFUSED)
"""Metrics of cache bytes that a module appends."""

NOT_KEPT: Final = "kept scores are not counted: the content of a mask is not known in"
_MOST_NAMED: Final = 3
_Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class AccountedGraph:
    """Nodes and unknown operators that one graph adds to a ledger."""

    nodes: tuple[CostNode, ...]
    unknown: tuple[UnknownOp, ...]


def account(
    costed: CostedGraph,
    place: StageLocator,
    inside: Collection[str] = (),
    run_dtype: str | None = None,
    pairs: PairCounter | None = None,
) -> AccountedGraph:
    """Sum the costs of a graph by stage, invocation, module and operator kind.

    Kind nodes have ``flops`` and ``vector_flops``, and, for time bounds, FLOPs in other dtypes and FLOPs that can be
    skipped
    (:data:`~costproof.ledger.metrics.OF_BOUNDS`). Nodes with an empty kind have ``calls``, ``weight_read_bytes``,
    ``input_bytes``, ``output_bytes``, ``kv_read_bytes`` and ``unfused_bytes``; the root node has the ``floor_bytes`` of
    each
    stage and invocation. Zeros are omitted, and so are calls that run no operator, such as ``Identity``, since exports
    have
    none of them. Numbers are in ``costs``. For a graph with symbolic shapes every quantity is also in ``exprs``, and
    quantities that are not constant are only there. Parameters and the cache are not counted here.

    Args:
        inside: tensors that pass between two graphs of one stage; see :func:`~costproof.opgraph.reuse.floors`.
        run_dtype: dtype of the run, in which all other FLOPs run; ``None`` omits the metrics of bounds.
        pairs: counts the scores that masks leave; ``None`` omits ``kept_flops`` and ``kept_scores``.

    Raises:
        Incomplete: an operator of the scaffolding computes.
    """
    graph, located = costed.graph, cache(place)
    sums: dict[_Key, dict[Metric, list[Size | None]]] = {}
    labels: dict[_Key, list[str]] = {}
    unknown: list[UnknownOp] = []

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
    for at, moved in costed.alone.items():
        here = located(graph.ops[at].module, graph.ops[at].call)
        if here is not None:
            add((*here, graph.ops[at].module, ""), {UNFUSED: moved.bytes})
    for (module, number), traffic in costed.traffic.items():
        here = located(module, number)
        if here is not None:
            key = (*here, module, "")
            add(key, {"weight_read_bytes": traffic.weight_read_bytes, "kv_read_bytes": traffic.kv_read_bytes})
            add(key, {"input_bytes": traffic.input_bytes, "output_bytes": traffic.output_bytes})
            add(key, {SPARED: 0 if spared is None else spared.bytes(traffic)})
    regions = [located(op.module, op.call) for op in graph.ops]
    for metric, which in ((FLOOR, None), *(((SPARED_AT_FLOOR, spared),) if spared is not None else ())):
        for region, moved_once in floors(costed, regions, inside, which).items():
            if region is not None:
                add((*region, "", ""), {metric: moved_once})
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


def _avoidable_traffic(costed: CostedGraph, kept: Mapping[int, KeptWork]) -> AvoidableTraffic | None:
    """Return the bytes that another implementation of the same result need not move; ``None`` if all are needed."""
    ops = costed.graph.ops
    cast = any(op.attrs.get(AUTOCAST) for op in ops)
    halved = frozenset(v.id for op in ops for v in op.outputs if v.floating) if cast else frozenset()
    hidden = hidden_reads(costed, kept)
    return AvoidableTraffic(hidden, halved) if halved or hidden else None


def arithmetic_dtype(op: OpCall) -> str:
    """Return the dtype that an operator multiplies in: the narrowest of its floating-point tensors.

    Under autocast an export has tensors before the cast and results after it.
    """
    if not any(v.floating for v in op.tensors):
        return ARITHMETIC[-1]
    widths = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}
    found = [widths.get(v.dtype, v.dtype.partition("_")[0]) for v in (*op.tensors, *op.outputs) if v.floating]
    if "float64" not in found and op.attrs.get(AUTOCAST):
        found.append(op.attrs[AUTOCAST])
    known = [dtype for dtype in ARITHMETIC if dtype in found]
    return known[-1] if known and len(known) == len({*found}) else ARITHMETIC[-1]


def _uncounted_module_error(op: OpCall) -> Incomplete:
    return Incomplete(
        "an operator with a cost runs outside the modules that the export job names",
        where=f"{op.label} in {op.module or '(root)'}",
        expected="work inside the modules of the target",
        got=op.name,
        fix="add its module to prefix of the export job",
    )


def settle_kept(ledger: Ledger) -> Ledger:
    """Return the ledger without ``kept_flops`` and ``kept_scores`` if either is unknown for some node.

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
"""(module path, call of its outermost repeated ancestor, from 1) -> (stage, invocation)."""


def cache_nodes(locate: InvocationLocator, graph: Graph, cache_inputs: Iterable[Value]) -> list[CostNode]:
    """Return nodes with the growth of the cache, on the modules that write or read it."""
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
    """Return (module, bytes) for each module that wrote part of a cache tensor.

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
    """Return the nodes of cache growth: appended bytes on the module, floor bytes on the root; empty without growth."""
    found = []
    for path, metrics in ((module, APPENDED), ("", (FLOOR,))) if grown != 0 else ():
        known: dict[Metric, int | None] = dict.fromkeys(metrics, grown) if isinstance(grown, int) else {}
        exprs = {} if known else dict.fromkeys(metrics, text(grown))
        found.append(CostNode(stage, invocation, path, "", known, exprs))
    return found


def locator(locate: InvocationLocator, calls: Iterable[ModuleCall]) -> InvocationLocator:
    """Return a function (module, call) -> (stage, invocation) that decides by the outermost repeated enclosing call."""
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
