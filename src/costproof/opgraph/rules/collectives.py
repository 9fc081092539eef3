"""Count the costs of collectives: operators in which the ranks of a group exchange tensors.

The bytes sent are those of a ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009; NCCL's and
gloo's large messages). A tensor that n ranks do not divide is cut into n equal chunks, the last one padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import sympy

from costproof.ledger.workload import ITEM_BYTES
from costproof.opgraph.graph import Graph, OpCall, Size, Value
from costproof.opgraph.rules.cost import OpCost, Uncountable, attr
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import nbytes, numel, prod, total

GROUP_SIZE: Final = "group_size"
"""Key in ``OpCall.attrs`` of the number of ranks in a collective's group, if the source knows it."""
GROUP_RANK: Final = "group_rank"
"""Key in ``OpCall.attrs`` of the counted rank's index in a collective's group."""
OF_RING: Final = "of_ring"
"""Key in ``OpCall.attrs`` that is true for calls in a ring of ranks that share a sequence."""

PARTS_GROUP: Final = "fsdp"
"""Name prefix of groups whose ranks gather the sharded parameters (FSDP)."""


def with_gathered_parameters(graph: Graph) -> Graph:
    """Turn sharded parameters that ranks have gathered in an exported graph back into parameters.

    One collective gathers the joined parts, whose copies are put together: ``cat``, ``all_gather_into_tensor``,
    ``split_with_sizes_copy``. The parameters are views of these results, and have the names of the parts.
    """
    made = {out.id: (op, i) for op in graph.ops for i, out in enumerate(op.outputs)}

    def source(value: Value, *names: str) -> OpCall | None:
        """Return the operator of one of these names that created a value or what it is a view of; else ``None``."""
        while value.id in made:
            op, _ = made[value.id]
            if canonical(op.name) in names:
                return op
            if canonical(op.name) not in _VIEWS:
                return None
            value = op.tensors[0]
        return None

    gathered: dict[str, Value] = {}
    """Parameter shard behind a gathered result, or behind a view of it in the same module, by id of the result."""
    named: dict[str, Value] = {}
    left_out: set[str] = set()
    for op in graph.ops:
        if canonical(op.name) == "split_with_sizes_copy":
            gather = source(op.tensors[0], "_c10d_functional.all_gather_into_tensor")
            if gather is None or not str(attr(gather, "group_name", default="")).startswith(f"{PARTS_GROUP}:"):
                continue
            joined = source(gather.tensors[0], "cat")
            parts = [gather.tensors[0]] if joined is None else joined.tensors
            for out, part in zip(op.outputs, parts, strict=True):
                while part.id in made:
                    part = made[part.id][0].tensors[0]
                gathered[out.id] = part
        elif canonical(op.name) in _VIEWS and op.tensors[0].id in gathered:
            of = made[op.tensors[0].id][0]
            if (of.module, of.call) == (op.module, op.call):
                (out,) = op.outputs
                gathered[out.id] = part = gathered[op.tensors[0].id]
                named[out.id] = replace(out, origin="param", name=part.name)
                left_out.add(op.label)
    if not named:
        return graph

    def call(op: OpCall) -> OpCall:
        copies = bool(op.outputs) and op.outputs[0].id in gathered
        return replace(op.reading(lambda v: named.get(v.id, v)), name=_COPY_OUT if copies else op.name)

    return replace(graph, ops=tuple(call(op) for op in graph.ops if op.label not in left_out))


_COPY_OUT: Final = "fsdp.split_with_sizes_copy"
_VIEWS: Final = frozenset({"view", "reshape", "slice", "_c10d_functional.wait_tensor"})


def ranks_of(op: OpCall) -> int:
    """Return the number of ranks in the group of a collective.

    Raises:
        Uncountable: neither the arguments nor the name of the group (``tp:4``) contain it.
    """
    known = attr(op, GROUP_SIZE)
    if isinstance(known, int):
        return known
    _, _, place = str(attr(op, "group_name", default="")).partition(":")
    size = place.partition("@")[0]
    if not size.isdecimal():
        raise Uncountable("the size of the group is not known")
    return int(size)


def _collective(source: Value, kind: str, payload: Size, sent: Size, ranks: int) -> OpCost:
    """Return the cost of a collective on a tensor; in a group of one rank no bytes are sent."""
    if ranks == 1:
        return OpCost(role="alias")
    return OpCost(role="move", reads=(source,), comm=(kind, payload, sent))


def _first(op: OpCall) -> Value:
    if not op.tensors:
        raise Uncountable("the collective has no tensor")
    return op.tensors[0]


def _chunk(value: Value, ranks: int) -> Size:
    """Return the bytes of one of ``ranks`` equal chunks of a tensor, the last one padded."""
    elements = numel(value)
    if isinstance(elements, int):
        return -(-elements // ranks) * ITEM_BYTES[value.dtype]
    return prod((sympy.ceiling(elements / ranks), ITEM_BYTES[value.dtype]))


@operator_rule("_c10d_functional.all_reduce", "_c10d_functional.all_reduce_", "c10d.allreduce_")
def all_reduce(op: OpCall) -> OpCost:
    """Count 0 FLOPs; a ring sends 2(n-1) chunks of the tensor: n-1 to reduce, n-1 to distribute."""
    n, whole = ranks_of(op), _first(op)
    return _collective(whole, "all_reduce", nbytes(whole), prod((2 * (n - 1), _chunk(whole, n))), n)


@operator_rule(
    "_c10d_functional.all_gather_into_tensor", "_c10d_functional.all_gather_into_tensor_out", "c10d._allgather_base_",
)  # fmt: skip
def all_gather(op: OpCall) -> OpCost:
    """Count 0 FLOPs; in a ring a rank sends n-1 local tensors."""
    n = ranks_of(op)
    local = op.names.get("input") or op.names.get("self") or op.tensors[-1]
    return _collective(local, "all_gather", prod((n, nbytes(local))), prod((n - 1, nbytes(local))), n)


@operator_rule("costproof.all_gather_v", "c10d.allgather_")
def all_gather_v(op: OpCall) -> OpCost:
    """Count 0 FLOPs for a gather of unequal parts; in a ring a rank sends all parts but that of the next rank."""
    *parts, local = op.tensors if attr(op, "parts") is None else (*_parts(op), op.tensors[0])
    return _of_parts(op, "all_gather", local, parts, behind=1)


@operator_rule("costproof.reduce_scatter_v", "c10d.reduce_scatter_")
def reduce_scatter_v(op: OpCall) -> OpCost:
    """Count 0 FLOPs for a reduce-scatter of unequal parts; in a ring a rank sends the sums of all parts but its own."""
    parts = _parts(op) if attr(op, "parts") is not None else op.tensors[1:]
    return _of_parts(op, "reduce_scatter", op.tensors[0] if attr(op, "parts") is not None else None, parts, behind=0)


def _parts(op: OpCall) -> list[Value]:
    """Return tensors with the shapes of all ranks' parts, whose rows an argument of the call lists."""
    local = op.tensors[0]
    return [replace(local, shape=(rows, *local.shape[1:])) for rows in attr(op, "parts")]


def _of_parts(op: OpCall, kind: str, local: Value | None, parts: Sequence[Value], *, behind: int) -> OpCost:
    """Return the cost of a collective in which a rank sends all parts but that of the ``behind``-th rank after it."""
    place = attr(op, "place", GROUP_RANK)
    if not isinstance(place, int) or len(parts) != ranks_of(op):
        raise Uncountable("the place in the group, or the part of each rank, is not known")
    sizes = [nbytes(part) for part in parts]
    sent = total(size for i, size in enumerate(sizes) if i != (place + behind) % len(parts))
    reads = tuple(parts) if local is None else (local,)
    return OpCost(role="move", reads=reads, comm=(kind, total(sizes), sent))


@operator_rule("fsdp.all_gather_copy_in")
def copy_in(op: OpCall) -> OpCost:
    """Count 0 FLOPs; the parameter shards of a rank are copied into one buffer, the last argument."""
    return OpCost(role="move", reads=op.tensors[:-1])


@operator_rule(_COPY_OUT)
def copy_out(op: OpCall) -> OpCost:
    """Count 0 FLOPs; the gathered shards of all ranks, the first argument, are joined to whole parameters."""
    return OpCost(role="move", reads=op.tensors[:1])


@operator_rule("_c10d_functional.reduce_scatter_tensor", "c10d._reduce_scatter_base_")
def reduce_scatter(op: OpCall) -> OpCost:
    """Count 0 FLOPs; a ring sends n-1 chunks of the whole tensor."""
    n = ranks_of(op)
    whole = op.names.get("input") or op.names.get("input_tensor") or op.tensors[-1]
    return _collective(whole, "reduce_scatter", nbytes(whole), prod((n - 1, _chunk(whole, n))), n)


@operator_rule("_c10d_functional.all_to_all_single", "c10d.alltoall_base_")
def all_to_all(op: OpCall) -> OpCost:
    """Count 0 FLOPs; a rank sends all of its local tensor but the part for itself.

    Of unequal parts the rank's own must be known: its place in the group is an attribute, or in its name (``ep:4@1``).
    In torch's ring of ranks that share a sequence, a tensor that goes to one other rank is sent. Pairs of a token and
    an expert that all go to one rank have the same parts, so the source must say which it is.
    """
    n = ranks_of(op)
    local = op.names.get("input") or op.tensors[-1]
    parts = attr(op, "input_split_sizes", "input_splits", default=())
    if len({*map(str, parts)}) > 1:
        _, _, place = str(attr(op, "group_name", default="")).partition("@")
        own = attr(op, GROUP_RANK) if isinstance(attr(op, GROUP_RANK), int) else place
        if not str(own).isdecimal() or int(own) >= len(parts):
            raise Uncountable("the parts that each rank receives differ, and no plan of the routing is given")
        one_other = parts[int(own)] == 0 and sum(part != 0 for part in parts) == 1
        if one_other and attr(op, OF_RING, default=False):
            return OpCost(role="move", reads=(local,), comm=("send", nbytes(local), nbytes(local)))
        row = prod((nbytes(local), sympy.Rational(1, sum(parts))))
        return _collective(local, "all_to_all", nbytes(local), prod((sum(parts) - parts[int(own)], row)), n)
    return _collective(local, "all_to_all", nbytes(local), prod((n - 1, _chunk(local, n))), n)


@operator_rule("_c10d_functional.isend", "c10d.send")
def send(op: OpCall) -> OpCost:
    """Count 0 FLOPs; the tensor is sent to one rank."""
    whole = _first(op)
    return OpCost(role="move", reads=(whole,), comm=("send", nbytes(whole), nbytes(whole)))


@operator_rule("_c10d_functional.irecv", "c10d.recv_", "c10d.recv")
def receive(op: OpCall) -> OpCost:
    """Count 0 FLOPs and no bytes, which are counted at the sender."""
    return OpCost(role="factory", reads=())


@operator_rule("_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd")
def wait(op: OpCall) -> OpCost:
    """Count 0 FLOPs; the call returns the result of a collective after waiting for it."""
    return OpCost(role="alias")
