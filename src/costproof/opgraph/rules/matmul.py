"""Matrix products. A product of a (.., K) with a (K, ..) costs 2*K per output element.

Bias additions are part of the operator and not counted apart. A complex multiply-accumulate is four
real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.cost import OpCost, Uncountable
from costproof.opgraph.rules.elementwise import vector_rule
from costproof.opgraph.rules.operands import (
    addition,
    attr,
    complex_operands,
    computes,
    is_complex,
    multiplication,
    out_elements,
    result,
    scaling,
    tensor,
)
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import prod, total

NONZERO: Final = "nonzero"
"""Option of a product of a sparse matrix with a full one: how many numbers of the first are not zero."""


def mac(op: OpCall) -> int:
    """FLOPs of one multiply-accumulate in the result's arithmetic."""
    return 8 if is_complex(op) else 2


def _product(op: OpCall, outputs: Size, inner: Size) -> OpCost:
    """Return the cost of a product; of complex numbers three real ones do in place of four."""
    spare = prod((2, outputs, inner)) if is_complex(op) else 0
    return OpCost(flops=prod((mac(op), outputs, inner)), role="matmul", skippable=spare)


def _inner(value: Value) -> Size:
    if not value.shape:
        raise Uncountable("a product with a scalar tensor")
    return value.shape[-1]


@operator_rule("linear")
def linear(op: OpCall) -> OpCost:
    """2 * outputs * in_features; weight (out_features, in_features)."""
    return _product(op, out_elements(op), _inner(tensor(op, "weight", 1)))


@operator_rule("mm", "bmm", "mv", "dot", "vdot", "inner", "matmul", "_int_mm")
def matmul(op: OpCall) -> OpCost:
    """2 * outputs * K, K the last dimension of the first operand, for every rank and broadcast."""
    return _product(op, out_elements(op), _inner(op.tensors[0]))


@operator_rule("rmatmul")
def rmatmul(op: OpCall) -> OpCost:
    """``a.__rmatmul__(b)`` is ``b @ a``: K is the last dimension of the second argument."""
    return _product(op, out_elements(op), _inner(tensor(op, "other", 1)))


@operator_rule("addmm", "addmv", "baddbmm", "_addmm_activation")
def addmm(op: OpCall) -> OpCost:
    """2 * outputs * K of the product; the added tensor, alpha and beta are part of the operator."""
    return _product(op, out_elements(op), _inner(op.tensors[1]))


@operator_rule("addbmm")
def addbmm(op: OpCall) -> OpCost:
    """(b, n, k) x (b, k, m) summed over b: 2 * b*n*k*m."""
    return _product(op, prod(op.tensors[1].shape), _inner(op.tensors[2]))


@operator_rule("_scaled_mm", "_weight_int8pack_mm", "_weight_int4pack_mm")
def quantized(op: OpCall) -> OpCost:
    """2 * outputs * K, K the last dimension of the first operand; scales are part of the operator."""
    return OpCost(flops=prod((2, out_elements(op), _inner(op.tensors[0]))), role="matmul")


@operator_rule("sparse.mm", "_sparse_mm", "_sparse_addmm", "_sparse_sparse_matmul", "hspmm", "sspaddmm")
def sparse_product(op: OpCall) -> OpCost:
    """2 * numbers that are not zero * columns, where a graph knows how many; else the full product is the bound."""
    first, known = op.tensors[1 if "add" in op.name else 0], attr(op, NONZERO)
    if known is not None:
        return _product(op, known, result(op).shape[1] if len(result(op).shape) > 1 else 1)
    bound = prod((2, *first.shape, result(op).shape[-1]))
    raise Uncountable("a sparse product: how many numbers are not zero is in a tensor's values", bound)


@operator_rule("bilinear")
def bilinear(op: OpCall) -> OpCost:
    """x W y for every output: the products of x with W, then with y: 2 * rows * out * (in_1 * in_2 + in_2)."""
    x, weight = tensor(op, "input1", 0), tensor(op, "weight", 2)
    out, first, second = weight.shape
    return OpCost(flops=prod((mac(op), *x.shape[:-1], out, second, total((first, 1)))), role="matmul")


@vector_rule("outer", "kron")
def outer(op: OpCall) -> Size:
    """One multiplication per output element: nothing is accumulated, so it is vector work; complex 6, by real 2."""
    return prod((multiplication(op, complex_operands(op)), out_elements(op)))


@vector_rule("addr")
def addr(op: OpCall) -> Size:
    """Outer product and addition: 2 per output element, 1 more for each scale other than 1; complex 6 and 2.

    With a ``beta`` of 0 nothing is added.
    """
    if is_complex(op) and complex_operands(op) < len(op.tensors):
        raise Uncountable("complex arithmetic without a documented count")
    alpha, beta = attr(op, "alpha", default=1), attr(op, "beta", default=1)
    added = 0 if beta == 0 else addition(op) + scaling(op, beta)
    return prod((multiplication(op) + scaling(op, alpha) + added, out_elements(op)))


@operator_rule("tensordot")
def tensordot(op: OpCall) -> OpCost:
    """2 * outputs * product of the contracted dimensions (``dims``: a count, or two lists).

    As torch does it: where a contracted dimension is 1 in one tensor alone, the other is summed over its own first
    (vector work, 1 per element; complex 2).
    """
    first, second = (list(t.shape) for t in op.tensors[:2])
    inner: list[Size] = []
    added: list[Size] = []
    for mine, other in zip(*_contracted(op), strict=True):
        for shape, dim, length in ((first, mine, second[other]), (second, other, first[mine])):
            if length == 1 and shape[dim] != 1:
                added.append(prod(shape))
                shape[dim] = 1
        inner.append(first[mine])
    vector = prod((addition(op), total(added))) if computes(op) else 0
    return replace(_product(op, out_elements(op), prod(inner)), vector=vector)


def _contracted(op: OpCall) -> tuple[Sequence[int], Sequence[int]]:
    """The dimensions that a tensordot sums over, of the first tensor and of the second."""
    first, second = attr(op, "dims_self"), attr(op, "dims_other")
    dims = attr(op, "dims", default=2) if first is None else (first, second)
    if isinstance(dims, int):
        rank = len(op.tensors[0].shape)
        return range(rank - dims, rank), range(dims)
    return dims[0], dims[1]


@operator_rule("einsum")
def einsum(op: OpCall) -> OpCost:
    """Pairwise contraction, in the order of ``path`` or left to right; one pair costs 2 * product of its index sizes.

    As torch does it: an index that only one operand has and the result lacks is summed out of that
    operand first (vector work, 1 per element; complex 2). An operand does not have an index of which its size is 1.
    With three and more operands an index is kept as long as another operand or the result has it. One operand alone
    is a reduction, or a mere view. torch passes a ``path`` where the package ``opt_einsum`` is installed.
    """
    equation = attr(op, "equation")
    if not isinstance(equation, str):
        raise Uncountable("an einsum without its equation")
    return contraction(equation, op.tensors, mac(op), addition(op) if computes(op) else 0, attr(op, "path"))


def contraction(
    equation: str, operands: tuple[Value, ...], per_mac: int, per_sum: int, path: Sequence[int] | None = None
) -> OpCost:
    """Cost of an einsum equation over operands; letters or an ellipsis, with or without an arrow.

    Args:
        per_mac: FLOPs of a multiply-accumulate.
        per_sum: vector FLOPs of an addition.
        path: which two operands are contracted, a pair of places after the other; their result becomes the last.
    """
    terms, out = _parse(equation, operands)
    sizes: dict[str, Size] = {}
    for term, operand in zip(terms, operands, strict=True):
        for index, size in zip(term, operand.shape, strict=True):
            if sizes.get(index, 1) == 1:
                sizes[index] = size
    if len(terms) == 1:
        distinct = set(terms[0])
        if distinct <= set(out):
            return OpCost(role="alias")
        return OpCost(vector=prod((per_sum, *(sizes[i] for i in sorted(distinct)))))
    flops: list[Size] = []
    vector: list[Size] = []
    left = [[i for i, n in zip(t, o.shape, strict=True) if n != 1] for t, o in zip(terms, operands, strict=True)]
    for first, second in _pairs(len(terms), path):
        both = left[first], left[second]
        left = [term for place, term in enumerate(left) if place not in (first, second)]
        later = set(out).union(*left)
        pair = []
        for mine, other in (both, both[::-1]):
            lone = [i for i in mine if i not in other and i not in later]
            if lone:
                vector.append(prod(sizes[i] for i in sorted(set(mine))))
            pair.append([i for i in mine if i not in lone])
        indices = sorted(set(pair[0]) | set(pair[1]))
        flops.append(prod((per_mac, *(sizes[i] for i in indices))))
        left.append([i for i in indices if i in later])
    return OpCost(flops=total(flops), vector=prod((per_sum, total(vector))), role="matmul")


def _pairs(count: int, path: Sequence[int] | None) -> list[tuple[int, int]]:
    """Places of the two operands of every contraction, whose result becomes the last operand."""
    if path is None:  # left to right: the result of all before, which is the last, with the next, which is the first
        return [(0, 1), *(((count - step - 1), 0) for step in range(1, count - 1))]
    pairs = list(zip(path[::2], path[1::2], strict=False))
    fits = all(a != b and min(a, b) >= 0 and max(a, b) < count - step for step, (a, b) in enumerate(pairs))
    if len(path) != 2 * count - 2 or not fits:
        raise Uncountable(f"an einsum of {count} operands in the order {path}")
    return pairs


def _parse(equation: str, operands: tuple[Value, ...]) -> tuple[list[list[str]], list[str]]:
    """Index lists of the operands and of the result; ellipsis dimensions are named ``.0``, ``.1``… from the right."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    raw = left.split(",")
    if len(raw) != len(operands):
        raise Uncountable(f"einsum {equation!r} with {len(operands)} operands")
    terms: list[list[str]] = []
    for text, operand in zip(raw, operands, strict=True):
        before, dots, after = text.partition("...")
        hidden = len(operand.shape) - len(before) - len(after)
        if hidden < 0 or (hidden and not dots):
            raise Uncountable(f"einsum {equation!r} does not fit its operands")
        terms.append([*before, *(f".{hidden - 1 - i}" for i in range(hidden)), *after])
    widest = max((i for t in terms for i in t if i[0] == "."), default="", key=lambda i: int(i[1:]))
    ellipsis = [f".{i}" for i in reversed(range(int(widest[1:]) + 1))] if widest else []
    if arrow:
        before, dots, after = right.partition("...")
        return terms, [*before, *(ellipsis if dots else ()), *after]
    letters = [i for t in terms for i in t if i[0] != "."]
    return terms, [*ellipsis, *sorted(i for i in set(letters) if letters.count(i) == 1)]
