"""Norms of vectors, and distances between them.

A norm sums over elements: the 2-norm squares and adds, 2 per element, and takes a root per result; the norms 1, inf
and -inf take the absolute value and add or compare, 2 per element; 0 compares and adds, 2; any other order takes the
absolute value, a power and adds, 3, and a root per result. A distance is the norm of a difference.
"""

from __future__ import annotations

from typing import Any, Final

from costproof.opgraph.graph import OpCall, Size
from costproof.opgraph.rules.cost import Uncountable
from costproof.opgraph.rules.elementwise import vector_rule
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.operands import attr, complex_operands, out_elements, tensor
from costproof.opgraph.rules.sizes import broadcast, numel, prod, total

_WITHOUT_ROOT: Final = (0, 1, float("inf"), float("-inf"))


def norm_flops(order: Any, elements: Size, results: Size) -> Size:
    """Norms of one order over so many elements in all, with so many results."""
    if order == "fro":
        order = 2
    if not isinstance(order, int | float):
        raise Uncountable(f"a norm of order {order}")
    each = 2 if order == 2 or order in _WITHOUT_ROOT else 3
    return total((prod((each, elements)), 0 if order in _WITHOUT_ROOT else results))


def _norm(op: OpCall) -> Size:
    _real(op)
    return norm_flops(attr(op, "ord", "p", default=2), numel(op.tensors[0]), out_elements(op))


def _real(op: OpCall) -> None:
    """The norm of complex numbers is real, and another amount of work."""
    if complex_operands(op):
        raise Uncountable("complex arithmetic without a documented count")


@vector_rule("norm", "linalg_vector_norm", "frobenius_norm")
def vector_norm(op: OpCall) -> Size:
    """The 2-norm: square and sum, 2 per input element, and a root per result; other orders 2 or 3 per input element."""
    return _norm(op)


@vector_rule("linalg_norm", "linalg_matrix_norm")
def linalg_norm(op: OpCall) -> Size:
    """As a vector's norm; of matrices the Frobenius norm alone, which is the 2-norm of all their elements."""
    order, dims = attr(op, "ord"), attr(op, "dim")
    sides = len(op.tensors[0].shape) if dims is None else 1 if isinstance(dims, int) else len(dims)
    of_matrices = canonical(op.name) == "linalg_matrix_norm" or sides == 2
    if of_matrices and order not in (None, "fro"):
        raise Uncountable(f"a matrix norm of order {order}")
    return _norm(op)


@vector_rule("norm_except_dim")
def norm_except_dim(op: OpCall) -> Size:
    """A norm per slice, as a vector's norm."""
    _real(op)
    return norm_flops(attr(op, "pow", default=2), numel(op.tensors[0]), out_elements(op))


@vector_rule("_weight_norm", "_weight_norm_interface")
def weight_norm(op: OpCall) -> Size:
    """g v / |v|: 3 per element of v (square, add, multiply), 2 per element of g (a root, a division)."""
    _real(op)
    return total((prod((3, numel(tensor(op, "v", 0)))), prod((2, numel(tensor(op, "g", 1))))))


@vector_rule("dist")
def dist(op: OpCall) -> Size:
    """The norm of a difference: 1 per element more than the norm."""
    _real(op)
    pairs = broadcast(op.tensors[0].shape, op.tensors[1].shape)
    return total((prod(pairs), norm_flops(attr(op, "p", default=2), prod(pairs), 1)))


@vector_rule("pairwise_distance")
def pairwise_distance(op: OpCall) -> Size:
    """|x - y + eps|: subtract and add, 2 per element, and a norm."""
    _real(op)
    pairs = prod(broadcast(op.tensors[0].shape, op.tensors[1].shape))
    return total((prod((2, pairs)), norm_flops(attr(op, "p", default=2), pairs, out_elements(op))))


@vector_rule("cosine_similarity")
def cosine_similarity(op: OpCall) -> Size:
    """x.y / (max(|x|, eps) max(|y|, eps)): three sums of products, 6 per pair of elements, and 6 per result."""
    pairs = prod(broadcast(op.tensors[0].shape, op.tensors[1].shape))
    return prod((6, total((pairs, out_elements(op)))))


@vector_rule("cdist", "_cdist_forward", "_euclidean_dist")
def cdist(op: OpCall) -> Size:
    """All pairs of rows: a difference and a norm each, also where torch takes many of them through a product."""
    pairs = prod((out_elements(op), tensor(op, "x1", 0).shape[-1]))
    return total((pairs, norm_flops(attr(op, "p", default=2), pairs, out_elements(op))))


@vector_rule("pdist", "_pdist_forward")
def pdist(op: OpCall) -> Size:
    """Every pair of rows once: a difference and a norm."""
    pairs = prod((out_elements(op), tensor(op, "input", 0).shape[-1]))
    return total((pairs, norm_flops(attr(op, "p", default=2), pairs, out_elements(op))))
