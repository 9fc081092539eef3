"""Collect the costs of several graphs into ledger nodes, with parameters and active parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType

import sympy

from costproof.ledger.metrics import FVCORE, METRICS, OF_CHECKPOINT, Metric
from costproof.ledger.node import CostNode, UnknownOp
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import ITEM_BYTES
from costproof.opgraph.costed import CostedGraph
from costproof.opgraph.graph import Graph, OpCall, Size, Value
from costproof.opgraph.merge import DecodeStep, merge_nodes, merge_unknown, sum_traced_steps
from costproof.opgraph.regions import Region
from costproof.opgraph.reuse import partly_read
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.sizes import numel, total


def active_elements(costed: CostedGraph) -> dict[str, int | None]:
    """Return the elements that one token uses of each parameter with stacked expert matrices, by name.

    A router sends every token to k of E experts. The graph shows k although no value is known: the rows that meet the
    stack
    are tokens x k, and the tokens are in the tensor that enters the module. So k n / E of a stack of E matrices with n
    elements are active per token. A table of E rows that is looked up together with the stack, such as biases of
    experts,
    has the stack's share, and so has a row that is a view of it.

    The number is ``None`` if the graph does not show it: no activation of the stack's width enters the module, several
    of
    different lengths enter it, the share is not an integer, or it exceeds the stack. If the experts are shared with
    other ranks, a token may pass all of this rank's, and a larger share is that of the whole stack.
    """
    # A loop over experts reads the stack in several operators: its rows are those of all of them.
    reads: dict[tuple[str, int, str], tuple[Value, list[Size]]] = {}
    tables: dict[tuple[str, int, str], Value] = {}
    for op, cost in zip(costed.graph.ops, costed.costs, strict=True):
        for read in cost.partial if isinstance(cost, OpCost) else ():
            stack = costed.roots.get(read.value.id, read.value)
            if stack.origin == "param" and read.rows is not None:
                # In the form that meets the rows: the parameter may hold the matrices in one.
                reads.setdefault((op.module, op.call, stack.name), (read.value, []))[1].append(read.rows)
            elif stack.origin == "param":
                tables[op.module, op.call, stack.name] = stack
        if isinstance(cost, OpCost) and cost.role == "alias" and (row := _row_of(op)) is not None:
            tables[op.module, op.call, row.name] = row
    # Results of the activation function of each expert come back in after the module's first operator.
    traffic = costed.traffic if reads else {}
    made = {out.id: i for i, op in enumerate(costed.graph.ops) for out in op.outputs} if reads else {}
    begins: dict[Region, int] = {}
    for i, op in enumerate(costed.graph.ops if reads else ()):
        begins.setdefault((op.module, op.call), i)
    found: dict[str, int | None] = {}
    exchanged = [op for op, cost in zip(costed.graph.ops, costed.costs, strict=True) if _collective(cost)]
    partial = bool(exchanged)
    # Experts of several ranks run on the tokens of all of them, which a collective gathers.
    roots = costed.roots
    gathered = {roots.get((x := op.tensors[-1]).id, x).id: _joined(op.outputs) for op in exchanged if op.outputs}
    # Or they run on pairs of a token and an expert that other ranks send; a token has as many as results are added.
    chosen: dict[Region, Size] = {}
    for op, cost in zip(costed.graph.ops, costed.costs, strict=True):
        region = op.module, op.call
        if isinstance(cost, OpCost) and cost.comm is not None and cost.comm[0] == "all_to_all" and _activations(op):
            chosen[region] = 1
        elif region in chosen and canonical(op.name) == "sum" and len(op.tensors[0].shape) == 3:
            chosen[region] = op.tensors[0].shape[1]
    shares: dict[tuple[str, int, Size], tuple[Size, Size]] = {}
    for (module, call, name), (stack, rows) in reads.items():
        entering = [t.value for t in traffic[module, call].inputs if made.get(t.value.id, -1) < begins[module, call]]
        own = (gathered.get(roots.get(x.id, x).id, x) for x in entering)
        tokens = _tokens(own, stack.shape[1:])
        if (pairs := chosen.get((module, call))) is not None:
            rows, tokens = [pairs], 1
        found[name] = (
            None if tokens is None else _share(numel(stack), total(rows), tokens, stack.shape[0], partial=partial)
        )
        if tokens is not None:
            shares[module, call, stack.shape[0]] = (total(rows), tokens)
    for (module, call, name), table in tables.items():
        if (share := shares.get((module, call, table.shape[0]))) is not None:
            found[name] = _share(numel(table), *share, table.shape[0], partial=partial)
    return found


def _joined(parts: tuple[Value, ...]) -> Value:
    """Return a tensor with the rows of all tensors that a collective returns."""
    first, *others = parts
    return replace(first, shape=(total(part.shape[0] for part in parts), *first.shape[1:])) if others else first


def _activations(op: OpCall) -> bool:
    return bool(op.outputs) and op.outputs[0].floating


def _collective(cost: object) -> bool:
    return isinstance(cost, OpCost) and cost.comm is not None


def _row_of(op: OpCall) -> Value | None:
    """Return the parameter if a call returns a view of one of its rows; ``None`` for other calls."""
    table = op.tensors[0] if op.tensors and op.outputs else None
    if table is None or table.origin != "param" or not table.shape:
        return None
    return table if op.outputs[0].shape == table.shape[1:] else None


def _tokens(entering: Iterable[Value], widths: Iterable[Size]) -> Size | None:
    """Return the rows (tokens) of the activations with one of these widths; ``None`` unless all have equally many."""
    wide = set(widths)
    rows = {
        sympy.cancel(sympy.sympify(numel(value)) / value.shape[-1])
        for value in entering
        if value.shape and value.shape[-1] in wide
    }
    return rows.pop() if len(rows) == 1 else None


def _share(elements: Size, rows: Size, tokens: Size, experts: Size, *, partial: bool) -> int | None:
    """Return the elements of an expert stack that one token uses; ``None`` if not an integer or more than the stack.

    Args:
        partial: whether other ranks may have further experts; then the share is at most the whole stack.
    """
    share = sympy.cancel(sympy.sympify(elements) * rows / (tokens * experts))
    if partial and isinstance(elements, int) and bool(share > elements):
        return elements
    whole = share.is_Integer and not bool(sympy.sympify(elements) < share)
    return int(share) if whole else None


ParameterShapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of parameters, by full name."""
Storage = Mapping[str, Mapping[Metric, int | None]]
"""Metrics of a module's stored tensors and of those that a loaded model holds, by module path."""


def parameter_nodes(
    parameters: ParameterShapes,
    buffers: Mapping[str, int | None],
    stages: Callable[[str], Iterable[str]],
    owners: Mapping[str, str],
    active: Mapping[str, int | None],
    storage: Storage = MappingProxyType({}),
    sizes: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> list[CostNode]:
    """Return nodes with the parameters and buffers that each module owns, one for each stage that the module works in.

    Args:
        buffers: bytes by full name, which are not counted under another name; ``None`` if unknown.
        stages: returns the stages that a module works in, from its path.
        owners: class names by module path.
        active: elements that one token uses, by full name, if not all.
        storage: metrics of storage of each module.
        sizes: elements and bytes of parameters by full name; by default computed from shape and dtype.
    """
    works_in = cache(stages)
    held: list[tuple[str, dict[Metric, int | None]]] = []
    for name, (shape, dtype) in parameters.items():
        count, size = sizes[name] if name in sizes else (math.prod(shape), math.prod(shape) * ITEM_BYTES[dtype])
        costs: dict[Metric, int | None] = {
            "params": count, "params_active": active.get(name, count), "weight_bytes": size,
        }  # fmt: skip
        held.append((name, costs))
    held += [(name, {"buffer_bytes": size}) for name, size in buffers.items() if size != 0]
    by_module = [(name.rpartition(".")[0], costs) for name, costs in held]
    by_module += [(module, dict(costs)) for module, costs in storage.items()]
    return list(
        merge_nodes(
            CostNode(stage, "", module, "", costs, owner=owners.get(module, ""))
            for module, costs in by_module
            for stage in works_in(module)
        )
    )


def read_parameters(graph: Graph) -> frozenset[str]:
    """Return the full names of the parameters that operators of a graph take as arguments."""
    return frozenset(v.name for op in graph.ops for v in op.tensors if v.origin == "param")


def unread_modules(parameters: Iterable[str], read: Collection[str]) -> tuple[str, ...]:
    """Return the outermost modules whose parameters no operator reads."""
    used = {path for name in read for path in _enclosing_modules(name)}
    found = dict.fromkeys(
        next((path for path in _enclosing_modules(name) if path not in used), "")
        for name in parameters
        if name not in read
    )
    return tuple(path for path in found if path)


def _enclosing_modules(name: str) -> list[str]:
    """Return the paths of the modules around a parameter, the outermost first."""
    parts = name.split(".")[:-1]
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def with_owners(nodes: Iterable[CostNode], owners: Mapping[str, str]) -> tuple[CostNode, ...]:
    """Add the class names of modules to the nodes of a trace, which lack them."""
    return tuple(node if node.owner else replace(node, owner=owners.get(node.module, "")) for node in nodes)


def graph_metrics(options: RunOptions, storage: Collection[Metric] = ()) -> tuple[Metric, ...]:
    """Return the metrics that a graph gives, including those in fvcore's convention if requested.

    Args:
        storage: metrics of storage that are known.
    """
    own = tuple(m for m in METRICS if m in storage or m not in OF_CHECKPOINT)
    return (*own, *FVCORE) if options.convention else own


@dataclass(slots=True)
class LedgerBuilder:
    """Accumulates the cost nodes and unknown operators of several graphs of one model; decode steps stay separate."""

    nodes: list[CostNode] = field(default_factory=list)
    steps: list[DecodeStep] = field(default_factory=list)
    unknown: list[UnknownOp] = field(default_factory=list)
    parameters: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Shape and dtype of parameters, by full name."""
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Elements and bytes of parameters, by full name, if the source does not compute them from the shape."""
    buffers: dict[str, int | None] = field(default_factory=dict)
    """Bytes of buffers, by full name, that are not counted under another name."""
    active: dict[str, int | None] = field(default_factory=dict)
    """Elements that one token uses of a parameter, by full name, if not all."""

    def add(
        self, costed: CostedGraph, nodes: Iterable[CostNode], unknown: Iterable[UnknownOp], context: int | None = None
    ) -> None:
        """Add the costs of one graph.

        Args:
            context: tokens in the cache before it, if it is one of several decode steps.
        """
        if context is None:
            self.nodes += nodes
        else:
            self.steps.append(DecodeStep(context, tuple(nodes), partly_read(costed)))
        self.unknown += unknown
        self.active |= active_elements(costed)

    def merge(self, other: LedgerBuilder) -> None:
        """Add the contents of another builder to this one."""
        self.nodes += other.nodes
        self.steps += other.steps
        self.unknown += other.unknown
        self.parameters |= other.parameters
        self.buffers |= other.buffers
        self.active |= other.active

    def summed(self, new_tokens: int) -> tuple[tuple[CostNode, ...], tuple[str, ...]]:
        """Return all nodes with decode steps added up, and notes on costs that cannot be added up."""
        decode, bent = sum_traced_steps(self.steps, new_tokens)
        return merge_nodes((*self.nodes, *decode)), tuple(bent)

    def owned(
        self, stages: Callable[[str], Iterable[str]], owners: Mapping[str, str], storage: Storage = MappingProxyType({})
    ) -> list[CostNode]:
        """Return the nodes with parameters and buffers; see :func:`parameter_nodes`."""
        return parameter_nodes(self.parameters, self.buffers, stages, owners, self.active, storage, self.sizes)

    def store_parts(self, parts: Mapping[str, tuple[int, int, int]]) -> None:
        """Record that a rank stores parts of parameters, while a token uses the whole parameters.

        Args:
            parts: elements of the part, its bytes, and elements of the whole parameter, by full name.
        """
        self.sizes |= {name: (own, size) for name, (own, size, _) in parts.items()}
        self.active = {**{name: whole for name, (_, _, whole) in parts.items()}, **self.active}

    def missing(self) -> tuple[UnknownOp, ...]:
        """Return the unknown operators, one entry per stage, module and operator."""
        return merge_unknown(self.unknown)
