"""Cost collectives: operators in which the ranks of a group exchange tensors.

The bytes sent are those of a ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009; NCCL's and
gloo's large messages). A tensor that n ranks do not divide is cut into n equal chunks, the last one padded.
"""

from __future__ import annotations

from typing import Final

import sympy

from costproof.ledger.workload import ITEM_BYTES
from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.cost import OpCost, Uncountable, attr
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import nbytes, numel, prod

GROUP_SIZE: Final = "group_size"
"""Key in ``OpCall.attrs`` with the number of ranks in the group, if the source knows the group itself."""
GROUP_RANK: Final = "group_rank"
"""The same with the place of the counted rank in the group."""


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
    """Return the cost of a collective on a tensor; in a group of one rank nothing is exchanged."""
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
    """Count 0 FLOPs; a ring passes n-1 local tensors on."""
    n = ranks_of(op)
    local = op.names.get("input") or op.names.get("self") or op.tensors[-1]
    return _collective(local, "all_gather", prod((n, nbytes(local))), prod((n - 1, nbytes(local))), n)


@operator_rule("_c10d_functional.reduce_scatter_tensor", "c10d._reduce_scatter_base_")
def reduce_scatter(op: OpCall) -> OpCost:
    """Count 0 FLOPs; a ring sends n-1 chunks of the whole tensor."""
    n = ranks_of(op)
    whole = op.names.get("input") or op.names.get("input_tensor") or op.tensors[-1]
    return _collective(whole, "reduce_scatter", nbytes(whole), prod((n - 1, _chunk(whole, n))), n)


@operator_rule("_c10d_functional.all_to_all_single", "c10d.alltoall_base_")
def all_to_all(op: OpCall) -> OpCost:
    """Count 0 FLOPs; a rank sends all but its own part of the local tensor.

    Of unequal parts the rank's own must be known: its place in the group is an attribute, or in its name (``ep:4@1``).
    """
    n = ranks_of(op)
    local = op.names.get("input") or op.tensors[-1]
    parts = attr(op, "input_split_sizes", "input_splits", default=())
    if len({*map(str, parts)}) > 1:
        _, _, place = str(attr(op, "group_name", default="")).partition("@")
        own = attr(op, GROUP_RANK) if isinstance(attr(op, GROUP_RANK), int) else place
        if not str(own).isdecimal() or int(own) >= len(parts):
            raise Uncountable("the parts that each rank receives differ, and no plan of the routing is given")
        if [part != 0 for part in parts].count(True) == 1 and parts[int(own)] == 0:  # each sends to one rank
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
    """Count 0: the bytes are counted where they are sent."""
    return OpCost(role="factory", reads=())


@operator_rule("_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd")
def wait(op: OpCall) -> OpCost:
    """Count 0: the result of a collective, once it is there."""
    return OpCost(role="alias")
