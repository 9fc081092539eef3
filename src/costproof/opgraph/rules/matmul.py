"""Count the costs of matrix products, chains of them, and recurrent layers.

A product of a (.., K) with a (K, ..) costs 2*K per output element. Bias additions are part of the operator and are not
counted separately. A complex multiply-accumulate is four real ones.

Recurrent layers: every weight matrix meets every row once; gates are vector work.
FLOPs: 2 * rows * elements of each matrix, rows = batch * steps, in each direction. Biases are part of the products.
Vector FLOPs per row and hidden unit, by the definitions in torch.nn (sums of the two products included):

- LSTM 13: four gates (add), three sigmoids, tanh; c = f c + i g (3), tanh(c), times o
- GRU 11: two gates (add, sigmoid), n = tanh(a + r b) (3), h = (1 - z) n + z h (4)
- RNN 2: add, tanh or relu
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from costproof.ledger.workload import PAIRS_OF_4_BITS
from costproof.opgraph.graph import OpCall, Size, Value
from costproof.opgraph.rules.cost import (
    OpCost,
    Uncountable,
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
from costproof.opgraph.rules.elementwise import vector_rule
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import numel, prod, total

NONZERO: Final = "nonzero"
"""Option of a sparse matrix product: number of nonzero elements of the sparse operand."""


def mac(op: OpCall) -> int:
    """Return the FLOPs of one multiply-accumulate of a call: 2 for real results, 8 for complex ones."""
    return 8 if is_complex(op) else 2


def _product(op: OpCall, outputs: Size, inner: Size) -> OpCost:
    """Return the cost of a matrix product; a complex product could do with three real ones in place of four."""
    spare = prod((2, outputs, inner)) if is_complex(op) else 0
    return OpCost(flops=prod((mac(op), outputs, inner)), role="matmul", skippable=spare)


def _inner(value: Value) -> Size:
    if not value.shape:
        raise Uncountable("a product with a scalar tensor")
    return value.shape[-1]


@operator_rule("linear")
def linear(op: OpCall) -> OpCost:
    """Count 2 * outputs * in_features FLOPs; weight (out_features, in_features)."""
    return _product(op, out_elements(op), _inner(tensor(op, "weight", 1)))


@operator_rule("mm", "bmm", "mv", "dot", "vdot", "inner", "matmul", "_int_mm")
def matmul(op: OpCall) -> OpCost:
    """Count 2 * outputs * K FLOPs, where K is the last dimension of the first operand, for all ranks and broadcasts."""
    return _product(op, out_elements(op), _inner(op.tensors[0]))


@operator_rule("rmatmul")
def rmatmul(op: OpCall) -> OpCost:
    """Count ``a.__rmatmul__(b)`` as ``b @ a``: K is the last dimension of the second argument."""
    return _product(op, out_elements(op), _inner(tensor(op, "other", 1)))


@operator_rule("addmm", "addmv", "baddbmm", "_addmm_activation")
def addmm(op: OpCall) -> OpCost:
    """Count 2 * outputs * K FLOPs of the product; the added tensor, alpha and beta are part of the operator."""
    return _product(op, out_elements(op), _inner(op.tensors[1]))


@operator_rule("addbmm")
def addbmm(op: OpCall) -> OpCost:
    """Count 2 * b*n*k*m FLOPs for (b, n, k) x (b, k, m) summed over b."""
    return _product(op, prod(op.tensors[1].shape), _inner(op.tensors[2]))


@operator_rule("_scaled_mm", "_weight_int8pack_mm", "_weight_int4pack_mm")
def quantized(op: OpCall) -> OpCost:
    """Count 2 * outputs * K FLOPs, where K is the last dimension of the first operand; scales are part of the operator.

    An element of 4-bit floats is two numbers.
    """
    first = op.tensors[0]
    numbers = 2 if first.dtype == PAIRS_OF_4_BITS else 1
    return OpCost(flops=prod((2, out_elements(op), numbers, _inner(first))), role="matmul")


@operator_rule("sparse.mm", "_sparse_mm", "_sparse_addmm", "_sparse_sparse_matmul", "hspmm", "sspaddmm")
def sparse_product(op: OpCall) -> OpCost:
    """Count 2 * nonzero elements * columns FLOPs if the number of nonzero elements is known.

    Else unknown, bounded by the dense product.
    """
    first, known = op.tensors[1 if "add" in op.name else 0], attr(op, NONZERO)
    if known is not None:
        return _product(op, known, result(op).shape[1] if len(result(op).shape) > 1 else 1)
    bound = prod((2, *first.shape, result(op).shape[-1]))
    raise Uncountable("a sparse product: how many numbers are not zero is in a tensor's values", bound)


@operator_rule("bilinear")
def bilinear(op: OpCall) -> OpCost:
    """Count x W y for every output: products of x with W, then with y, 2 * rows * out * (in_1 * in_2 + in_2) FLOPs."""
    x, weight = tensor(op, "input1", 0), tensor(op, "weight", 2)
    out, first, second = weight.shape
    return OpCost(flops=prod((mac(op), *x.shape[:-1], out, second, total((first, 1)))), role="matmul")


@vector_rule("outer", "kron")
def outer(op: OpCall) -> Size:
    """Count one multiplication per output element, as vector FLOPs; 6 for complex by complex, 2 for complex by real."""
    return prod((multiplication(op, complex_operands(op)), out_elements(op)))


@vector_rule("addr")
def addr(op: OpCall) -> Size:
    """Count an outer product and addition: 2 per output element, 1 more for each scale other than 1; complex 6 and 2.

    With a ``beta`` of 0 nothing is added.
    """
    if is_complex(op) and complex_operands(op) < len(op.tensors):
        raise Uncountable("complex arithmetic without a documented count")
    alpha, beta = attr(op, "alpha", default=1), attr(op, "beta", default=1)
    added = 0 if beta == 0 else addition(op) + scaling(op, beta)
    return prod((multiplication(op) + scaling(op, alpha) + added, out_elements(op)))


@operator_rule("tensordot")
def tensordot(op: OpCall) -> OpCost:
    """Count 2 * outputs * product of the contracted dimensions (``dims``: a count, or two lists) FLOPs.

    As in torch: if a contracted dimension is 1 in only one of the tensors, the other tensor is summed over it first
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
    """Return the contracted dimensions of the first and of the second tensor of a tensordot."""
    first, second = attr(op, "dims_self"), attr(op, "dims_other")
    dims = attr(op, "dims", default=2) if first is None else (first, second)
    if isinstance(dims, int):
        rank = len(op.tensors[0].shape)
        return range(rank - dims, rank), range(dims)
    return dims[0], dims[1]


@operator_rule("einsum")
def einsum(op: OpCall) -> OpCost:
    """Count pairwise contractions in the order of ``path``, or left to right; each is 2 * product of its index sizes.

    As in torch: an index that occurs in only one operand and not in the result is summed out of that operand first
    (vector work, 1 per element; complex 2). Indices of size 1 are dropped from an operand. With three or more operands
    an index remains as long as another operand or the result has it. An einsum of one operand is a reduction or a view.
    torch passes a ``path`` if the package ``opt_einsum`` is installed.
    """
    equation = attr(op, "equation")
    if not isinstance(equation, str):
        raise Uncountable("an einsum without its equation")
    return contraction(equation, op.tensors, mac(op), addition(op) if computes(op) else 0, attr(op, "path"))


def contraction(
    equation: str, operands: tuple[Value, ...], per_mac: int, per_sum: int, path: Sequence[int] | None = None
) -> OpCost:
    """Return the cost of an einsum equation with letters and ellipses, with or without an arrow.

    Args:
        per_mac: FLOPs of a multiply-accumulate.
        per_sum: vector FLOPs of an addition.
        path: positions of the two operands of each contraction, flattened; each result becomes the last operand.
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
    """Return the positions of the two operands of each contraction; the result becomes the last operand."""
    if path is None:  # left to right: the last operand (the result so far) with the first (the next one)
        return [(0, 1), *(((count - step - 1), 0) for step in range(1, count - 1))]
    pairs = list(zip(path[::2], path[1::2], strict=False))
    fits = all(a != b and min(a, b) >= 0 and max(a, b) < count - step for step, (a, b) in enumerate(pairs))
    if len(path) != 2 * count - 2 or not fits:
        raise Uncountable(f"an einsum of {count} operands in the order {path}")
    return pairs


def _parse(equation: str, operands: tuple[Value, ...]) -> tuple[list[list[str]], list[str]]:
    """Parse an einsum equation into the indices of each operand and of the result.

    Dimensions of an ellipsis are ``.0``, ``.1``… from the right.
    """
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


@operator_rule("linalg_multi_dot", "chain_matmul")
def multi_dot(op: OpCall) -> OpCost:
    """Count 2 FLOPs per multiply-accumulate in the cheapest order of the products, which torch uses.

    Rows and columns a_0 .. a_n; the best of factors i to j is the least of best(i, k) + best(k + 1, j) + the product
    of the two halves (Cormen et al., Introduction to Algorithms, matrix-chain multiplication).
    """
    shapes = [t.shape for t in op.tensors]
    # A vector is a row as the first operand and a column as the last.
    first, last = (1, *shapes[0])[-2:], (*shapes[-1], 1)[:2]
    sizes = [first[0], *(shape[0] for shape in shapes[1:-1]), last[0], last[1]]
    ends = [first[1], *(shape[1] for shape in shapes[1:-1])]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes) or ends != sizes[1:-1]:
        raise Uncountable("the best order of the products depends on symbolic sizes")
    best = {(i, i): 0 for i in range(len(shapes))}
    for length in range(1, len(shapes)):
        for i in range(len(shapes) - length):
            j = i + length
            best[i, j] = min(best[i, k] + best[k + 1, j] + known[i] * known[k + 1] * known[j + 1] for k in range(i, j))
    return OpCost(flops=mac(op) * best[0, len(shapes) - 1], role="matmul")


@operator_rule("matrix_power", "linalg_matrix_power")
def matrix_power(op: OpCall) -> OpCost:
    """Count repeated squaring: a product for each squaring, and one for each further set bit of the exponent."""
    power, shape = attr(op, "n", "exponent"), op.tensors[0].shape
    if not isinstance(power, int) or power < 0:
        raise Uncountable("a power that is not a whole number from 0")
    products = max(power.bit_length() - 1, 0) + max(power.bit_count() - 1, 0)
    return OpCost(flops=prod((mac(op), products, *shape, shape[-1])), role="matmul")


_CELLS: Final = {"lstm": (4, 13, 2), "gru": (3, 11, 1), "rnn_tanh": (1, 2, 1), "rnn_relu": (1, 2, 1)}
"""(gates, vector FLOPs per row and hidden unit, state tensors) of a recurrent cell, by name of the cell."""


@operator_rule(*_CELLS, *(f"{name}_cell" for name in _CELLS))
def recurrent(op: OpCall) -> OpCost:
    """Count 2 * rows * elements of every weight matrix; per row and hidden unit LSTM 13, GRU 11, RNN 2 vector FLOPs."""
    gates, each, states = _CELLS[canonical(op.name).removesuffix("_cell")]
    if attr(op, "train", default=False) and attr(op, "dropout", default=0.0):
        raise Uncountable("a recurrent layer with dropout in training")
    given = [t for t in op.tensors if t.floating]
    data, state = given[0], given[1 : 1 + states]
    matrices = [t for t in given[1 + states :] if len(t.shape) == 2]
    rows = prod(data.shape[:-1])
    hidden = [t.shape[0] for t in _input_matrices(matrices, state)]
    units = [h // gates if isinstance(h, int) else h / gates for h in hidden]
    return OpCost(
        flops=total(prod((2, rows, numel(t))) for t in matrices),
        vector=total(prod((each, rows, u)) for u in units),
        role="matmul",
    )


def _input_matrices(matrices: Sequence[Value], state: Sequence[Value]) -> Sequence[Value]:
    """Return the input weights of each layer and direction.

    Matrices come in groups: input, hidden and, if the state is narrower than the cell, a projection.
    """
    group = 3 if len(state) == 2 and state[0].shape[-1] != state[1].shape[-1] else 2
    if not matrices or len(matrices) % group:
        raise Uncountable("the weights of a recurrent layer do not form whole groups")
    return matrices[::group]


@operator_rule("_pack_padded_sequence", "_pad_packed_sequence")
def pack(op: OpCall) -> OpCost:
    """Count 0 FLOPs: rows are copied."""
    return OpCost(role="move")
