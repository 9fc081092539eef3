"""From a costed graph to the nodes of a ledger: every operator placed, every byte too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from costproof.ledger.errors import Incomplete
from costproof.ledger.metrics import ARITHMETIC, FLOOR, SKIPPABLE, SPARED, SPARED_AT_FLOOR, UNFUSED, Metric
from costproof.ledger.node import CostNode, UnknownOp
from costproof.ledger.symbols import text
from costproof.opgraph.costed import Costed
from costproof.opgraph.graph import AUTOCAST, Graph, ModuleCall, OpCall, Size, Value
from costproof.opgraph.merge import evidence, merge_unknown
from costproof.opgraph.reuse import Spared, floors
from costproof.opgraph.rules.names import canonical, source_kind
from costproof.opgraph.rules.registry import UnknownCost
from costproof.opgraph.rules.sizes import nbytes, prod, total
from costproof.opgraph.skippable import hidden_reads, skippable

Place = Callable[[str, int], tuple[str, str] | None]
"""(module path, number of its call) -> (stage, invocation), or ``None`` for scaffolding that is not counted."""

APPENDED: Final[tuple[Metric, ...]] = ("kv_cache_bytes", UNFUSED)
"""What grows on the module that appends to a cache: what is appended is written under every model of reuse."""

_Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Accounted:
    """Nodes and unknown operators of one graph."""

    nodes: tuple[CostNode, ...]
    unknown: tuple[UnknownOp, ...]


def account(costed: Costed, place: Place, inside: Collection[str] = (), run_dtype: str | None = None) -> Accounted:
    """Sum the costs of a graph by stage, invocation, module and operator kind.

    Kind nodes carry ``flops`` and ``vector_flops``, and what bounds know of the former: another dtype that they are
    multiplied in, and those that may be left out (:data:`~costproof.ledger.metrics.OF_BOUNDS`). Nodes with an empty
    kind carry ``calls``, ``weight_read_bytes``, ``input_bytes``, ``output_bytes``, ``kv_read_bytes`` and
    ``unfused_bytes``; that of the root has the ``floor_bytes`` of each stage and invocation. Zeros are left out, and so
    are calls that run no operator, of ``Identity`` for one: an export has none of them. Numbers stand in ``costs``; for
    a graph with symbolic shapes every quantity also stands in ``exprs``, and what is not constant only there.
    Parameters and the cache are not a matter of operators and not counted here.

    Args:
        inside: what passes between two graphs of one stage, as of :func:`~costproof.opgraph.reuse.floors`.

        run_dtype: that of the run, in which FLOPs are of which no other is said; ``None``: bounds know nothing.

    Raises:
        Incomplete: an operator of the scaffolding computes.
    """
    graph, located = costed.graph, cache(place)
    sums: dict[_Key, dict[Metric, list[Size]]] = {}
    labels: dict[_Key, list[str]] = {}
    unknown: list[UnknownOp] = []

    def add(key: _Key, costs: Mapping[Metric, Size]) -> None:
        for metric, size in costs.items():
            if size != 0:
                sums.setdefault(key, {}).setdefault(metric, []).append(size)

    left_out = {} if run_dtype is None else skippable(costed)
    spared = None if run_dtype is None else _spared(costed, left_out)
    for i, (op, cost) in enumerate(zip(graph.ops, costed.costs, strict=True)):
        here = located(op.module, op.call)
        if isinstance(cost, UnknownCost):
            bound = cost.bound if isinstance(cost.bound, int) else None
            stage = here[0] if here else "[unattributed]"
            unknown.append(UnknownOp(source_kind(op.name), stage, op.module, 1, bound, cost.why))
        elif cost.flops != 0 or cost.vector != 0:
            if here is None:
                raise _stray(op)
            key = (*here, op.module, source_kind(op.name))
            add(key, {"flops": cost.flops, "vector_flops": cost.vector, SKIPPABLE: left_out.get(i, 0)})
            if run_dtype is not None and (dtype := multiplied_in(op)) != run_dtype:
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
        sizes = {metric: total(parts) for metric, parts in terms.items()}
        costs: dict[Metric, int | None] = {metric: size for metric, size in sizes.items() if isinstance(size, int)}
        exprs = {metric: text(size) for metric, size in sizes.items()} if symbolic else {}
        owner = owners.get(key[2], "")
        nodes.append(CostNode(*key, costs, exprs, owner, evidence=evidence(labels.get(key, ()))))
    return Accounted(tuple(nodes), merge_unknown(unknown))


def _spared(costed: Costed, left_out: Mapping[int, Size]) -> Spared | None:
    """Return which bytes a run need not move; ``None``: all are needed."""
    ops = costed.graph.ops
    cast = any(op.attrs.get(AUTOCAST) for op in ops)
    halved = frozenset(v.id for op in ops for v in op.outputs if v.floating) if cast else frozenset()
    hidden = hidden_reads(costed, left_out)
    return Spared(hidden, halved) if halved or hidden else None


def multiplied_in(op: OpCall) -> str:
    """Return the dtype that an operator multiplies in: of its floating-point tensors the narrowest.

    Under autocast an export has the tensors before they are cast, and results after.
    """
    if not any(v.floating for v in op.tensors):
        return ARITHMETIC[-1]
    widths = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}
    found = [widths.get(v.dtype, v.dtype.partition("_")[0]) for v in (*op.tensors, *op.outputs) if v.floating]
    if "float64" not in found and op.attrs.get(AUTOCAST):
        found.append(op.attrs[AUTOCAST])
    known = [dtype for dtype in ARITHMETIC if dtype in found]
    return known[-1] if known and len(known) == len({*found}) else ARITHMETIC[-1]


def _stray(op: OpCall) -> Incomplete:
    return Incomplete(
        "an operator outside all counted modules computes",
        where=f"{op.label} in {op.module or '(root)'}",
        expected="work inside the modules of the target",
        got=op.name,
        fix="give the module a prefix in the export job",
    )


Locate = Callable[[str, int], tuple[str, str]]
"""(module path, call of its outermost repeated ancestor counted from 1) -> (stage, invocation)."""


def cache_nodes(locate: Locate, graph: Graph, cache_inputs: Iterable[Value]) -> list[CostNode]:
    """What the cache holds after the run less what it held before, on the module that writes or reads it."""
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
            for module, size in _written(value, writer) or [("", nbytes(value))]:
                growth.setdefault(module or reader.get(value.id, ""), []).append(prod((sign, size)))
    nodes: list[CostNode] = []
    for module, parts in growth.items():
        nodes += appended(*locate(module, 1), module, total(parts))
    return nodes


def _written(value: Value, writer: Mapping[str, OpCall]) -> list[tuple[str, Size]]:
    """Bytes of a tensor by the modules that wrote them: one may append to what another has put into the cache."""
    op = writer.get(value.id)
    if op is None:
        return []
    before = op.tensors[0] if op.tensors and canonical(op.name) == "cat" else None
    if before is None or before.id not in writer or canonical(writer[before.id].name) != "cat":
        return [(op.module, nbytes(value))]
    return [*_written(before, writer), (op.module, total((nbytes(value), prod((-1, nbytes(before))))))]


def appended(stage: str, invocation: str, module: str, grown: Size) -> list[CostNode]:
    """Bytes that a module appends to the cache, of it and of the floor on the root; nothing for none."""
    found = []
    for path, metrics in ((module, APPENDED), ("", (FLOOR,))) if grown != 0 else ():
        known: dict[Metric, int | None] = dict.fromkeys(metrics, grown) if isinstance(grown, int) else {}
        exprs = {} if known else dict.fromkeys(metrics, text(grown))
        found.append(CostNode(stage, invocation, path, "", known, exprs))
    return found


def placer(locate: Locate, calls: Iterable[ModuleCall]) -> Locate:
    """(module, call) -> (stage, invocation), by the call of the outermost repeated ancestor."""
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
