"""Collect the graphs of one source into the nodes of its ledger, with parameters and active parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import sympy

from costproof.ledger.metrics import FVCORE, METRICS, Metric
from costproof.ledger.node import CostNode, UnknownOp
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import ITEM_BYTES
from costproof.opgraph.costed import Costed
from costproof.opgraph.graph import Graph, OpCall, Size, Value
from costproof.opgraph.merge import Step, merge_nodes, merge_unknown, over_steps
from costproof.opgraph.regions import Region
from costproof.opgraph.reuse import partly_read
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.sizes import numel, total


def active_elements(costed: Costed) -> dict[str, int | None]:
    """Parameter -> elements that one token passes, for every stack that is read by rows.

    ``None`` where the graph does not show it: no activation of the stack's width enters the module, or several of
    other lengths do, or the share is not a whole number of elements, or more than all.
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
    # What comes back in, from the activation function for each expert, is made after the module's first operator.
    traffic = costed.traffic if reads else {}
    made = {out.id: i for i, op in enumerate(costed.graph.ops) for out in op.outputs} if reads else {}
    begins: dict[Region, int] = {}
    for i, op in enumerate(costed.graph.ops if reads else ()):
        begins.setdefault((op.module, op.call), i)
    found: dict[str, int | None] = {}
    shares: dict[tuple[str, int, Size], tuple[Size, Size]] = {}
    for (module, call, name), (stack, rows) in reads.items():
        entering = [t.value for t in traffic[module, call].inputs if made.get(t.value.id, -1) < begins[module, call]]
        tokens = _tokens(entering, stack.shape[1:])
        found[name] = None if tokens is None else _share(numel(stack), total(rows), tokens, stack.shape[0])
        if tokens is not None:
            shares[module, call, stack.shape[0]] = (total(rows), tokens)
    for (module, call, name), table in tables.items():
        if (share := shares.get((module, call, table.shape[0]))) is not None:
            found[name] = _share(numel(table), *share, table.shape[0])
    return found


def _row_of(op: OpCall) -> Value | None:
    """The parameter of which a call shows one row."""
    table = op.tensors[0] if op.tensors and op.outputs else None
    if table is None or table.origin != "param" or not table.shape:
        return None
    return table if op.outputs[0].shape == table.shape[1:] else None


def _tokens(entering: Iterable[Value], widths: Iterable[Size]) -> Size | None:
    """Rows of the activations of one of these widths; ``None`` where they have not the same."""
    wide = set(widths)
    rows = {
        sympy.cancel(sympy.sympify(numel(value)) / value.shape[-1])
        for value in entering
        if value.shape and value.shape[-1] in wide
    }
    return rows.pop() if len(rows) == 1 else None


def _share(elements: Size, rows: Size, tokens: Size, experts: Size) -> int | None:
    """What one token passes of a stack; ``None`` where it would be more than all of it: the tokens are others."""
    share = sympy.cancel(sympy.sympify(elements) * rows / (tokens * experts))
    whole = share.is_Integer and not bool(sympy.sympify(elements) < share)
    return int(share) if whole else None


Parameters = Mapping[str, tuple[tuple[int, ...], str]]
"""Full name -> shape and dtype."""


def held_nodes(
    parameters: Parameters,
    buffers: Mapping[str, int | None],
    stages: Callable[[str], Iterable[str]],
    owners: Mapping[str, str],
    active: Mapping[str, int | None],
) -> list[CostNode]:
    """Return stage-wide nodes: elements and bytes of the parameters, and bytes of the buffers, that each module owns.

    Args:
        buffers: full name -> bytes that are not counted under another name; ``None``: not known.
        stages: module path -> stages that the module works in.
        owners: module path -> class name.
        active: full name -> elements that one token passes, where that is not all of them.
    """
    works_in = cache(stages)
    held: list[tuple[str, dict[Metric, int | None]]] = []
    for name, (shape, dtype) in parameters.items():
        count = math.prod(shape)
        costs: dict[Metric, int | None] = {
            "params": count, "params_active": active.get(name, count), "weight_bytes": count * ITEM_BYTES[dtype],
        }  # fmt: skip
        held.append((name, costs))
    held += [(name, {"buffer_bytes": size}) for name, size in buffers.items() if size != 0]
    return list(
        merge_nodes(
            CostNode(stage, "", module, "", costs, owner=owners.get(module, ""))
            for name, costs in held
            for module in (name.rpartition(".")[0],)
            for stage in works_in(module)
        )
    )


def read_parameters(graph: Graph) -> frozenset[str]:
    """Full names of the parameters that operators of a graph take."""
    return frozenset(v.name for op in graph.ops for v in op.tensors if v.origin == "param")


def unread_modules(parameters: Iterable[str], read: Collection[str]) -> tuple[str, ...]:
    """The outermost modules that own parameters, inside them or in their parts, of which none was read."""
    used = {path for name in read for path in _around(name)}
    found = dict.fromkeys(
        next((path for path in _around(name) if path not in used), "") for name in parameters if name not in read
    )
    return tuple(path for path in found if path)


def _around(name: str) -> list[str]:
    """Paths of the modules around a parameter, the outermost first."""
    parts = name.split(".")[:-1]
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def with_owners(nodes: Iterable[CostNode], owners: Mapping[str, str]) -> tuple[CostNode, ...]:
    """The nodes with their modules' class names, which a structure-only trace does not have."""
    return tuple(node if node.owner else replace(node, owner=owners.get(node.module, "")) for node in nodes)


def graph_metrics(options: RunOptions) -> tuple[Metric, ...]:
    """What a graph can tell: every metric of ours, and those of the convention that is counted beside."""
    return (*METRICS, *FVCORE) if options.convention else tuple(METRICS)


@dataclass(slots=True)
class Tally:
    """Nodes and unknown operators of several graphs of one model, decode steps apart."""

    nodes: list[CostNode] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    unknown: list[UnknownOp] = field(default_factory=list)
    parameters: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Full name -> shape and dtype."""
    buffers: dict[str, int | None] = field(default_factory=dict)
    """Full name -> bytes that are not counted under another name."""
    active: dict[str, int | None] = field(default_factory=dict)
    """Full name -> elements that one token passes, where that is not all of them."""

    def add(
        self, costed: Costed, nodes: Iterable[CostNode], unknown: Iterable[UnknownOp], context: int | None = None
    ) -> None:
        """Add what one graph costs.

        Args:
            context: tokens in the cache before it, if it is one of several decode steps.
        """
        if context is None:
            self.nodes += nodes
        else:
            self.steps.append(Step(context, tuple(nodes), partly_read(costed)))
        self.unknown += unknown
        self.active |= active_elements(costed)

    def merge(self, other: Tally) -> None:
        """Add what another tally holds."""
        self.nodes += other.nodes
        self.steps += other.steps
        self.unknown += other.unknown
        self.parameters |= other.parameters
        self.buffers |= other.buffers
        self.active |= other.active

    def summed(self, new_tokens: int) -> tuple[tuple[CostNode, ...], tuple[str, ...]]:
        """All nodes, each once, with the sum over the decode steps; and notes where there is no such sum."""
        decode, bent = over_steps(self.steps, new_tokens)
        return merge_nodes((*self.nodes, *decode)), tuple(bent)

    def owned(self, stages: Callable[[str], Iterable[str]], owners: Mapping[str, str]) -> list[CostNode]:
        """Nodes of parameters and buffers, as of :func:`~costproof.opgraph.tally.held_nodes`."""
        return held_nodes(self.parameters, self.buffers, stages, owners, self.active)

    def missing(self) -> tuple[UnknownOp, ...]:
        """Unknown operators, each stage, module and operator once."""
        return merge_unknown(self.unknown)
