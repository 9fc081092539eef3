"""Count the costs of linear systems, factorizations, vector norms, distances and Fourier transforms, as vector FLOPs.

None of this is a product of matrices, and torch's FlopCounterMode leaves it out too. An addition, a multiplication, a
division and a root are 1 each.

Systems and factorizations count the textbook algorithm, all n^3 of it (Golub and Van Loan, Matrix Computations,
chapters 3 and 4):

- triangular system: n^2 per right-hand side, n fewer where the diagonal is 1
- LU: n(n-1)/2 divisions and n(n-1)(2n-1)/6 multiplications and as many subtractions; pivoting only compares
- Cholesky: n(n+1)(2n+1)/6
- general system: LU, and two triangular systems per right-hand side, one of them with a diagonal of 1

A norm sums over elements: the 2-norm squares and adds, 2 per element, and takes a root per result; the norms 1, inf
and -inf take the absolute value and add or compare, 2 per element; 0 compares and adds, 2; any other order takes the
absolute value, a power and adds, 3, and a root per result. A distance is the norm of a difference.

A Fourier transform of n complex numbers is 5 n log2 n, half of it for real numbers. A transform over several dimensions
is one over each of them in turn. The logarithm is rounded up, so that counts stay integers: exact for powers of two, a
convention for other lengths. A symbolic length is uncountable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from costproof.opgraph.graph import OpCall, Size
from costproof.opgraph.rules.cost import (
    OpCost,
    Uncountable,
    attr,
    complex_operands,
    is_complex,
    out_elements,
    result,
    tensor,
)
from costproof.opgraph.rules.elementwise import vector_rule
from costproof.opgraph.rules.names import canonical
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import broadcast, numel, prod, tidy, total


def _square(op: OpCall, name: str, position: int = 0) -> tuple[Size, Size]:
    """Return the rows of a square matrix and the number of matrices in the batch."""
    if is_complex(op):
        raise Uncountable("complex arithmetic without a documented count")
    shape = tensor(op, name, position).shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise Uncountable("a matrix that is not square")
    return shape[-1], prod(shape[:-2])


def _sixth(*factors: Size) -> Size:
    """Return a sixth of the product of these factors, which is a multiple of six."""
    product = prod(factors)
    return product // 6 if isinstance(product, int) else tidy(product / 6)


def _lu(n: Size) -> Size:
    return _sixth(n, total((n, -1)), total((prod((4, n)), 1)))


def _two_sweeps(n: Size) -> Size:
    """Return the FLOPs per right-hand side element for two triangular systems, of which one has a diagonal of 1."""
    return total((prod((2, n)), -1))


@vector_rule("linalg_solve_triangular", "triangular_solve")
def solve_triangular(op: OpCall) -> Size:
    """Count n^2 FLOPs per right-hand side of a triangular system, n fewer if the diagonal is 1."""
    n, _ = _square(op, "A", 1) if "A" in op.names else _square(op, "self")
    return prod((total((n, -1)) if attr(op, "unitriangular", default=False) else n, out_elements(op)))


@vector_rule("linalg_solve", "linalg_solve_ex", "_linalg_solve_ex")
def solve(op: OpCall) -> Size:
    """Count an LU factorization of every matrix, then n(2n-1) per right-hand side."""
    n, matrices = _square(op, "A")
    return total((prod((_lu(n), matrices)), prod((_two_sweeps(n), out_elements(op)))))


@vector_rule("linalg_inv", "linalg_inv_ex", "inverse")
def inverse(op: OpCall) -> Size:
    """Count an LU factorization, then n(2n-1) for each of n right-hand sides."""
    n, matrices = _square(op, "A")
    return prod((total((_lu(n), prod((n, n, _two_sweeps(n))))), matrices))


@vector_rule("linalg_lu_factor", "linalg_lu_factor_ex")
def lu_factor(op: OpCall) -> Size:
    """Count n(n-1)(4n+1)/6 FLOPs per n x n matrix of an LU factorization."""
    n, matrices = _square(op, "A")
    return prod((_lu(n), matrices))


@vector_rule("linalg_det", "_linalg_det", "det")
def determinant(op: OpCall) -> Size:
    """Count an LU factorization of every matrix, and the product of its diagonal, n - 1."""
    n, matrices = _square(op, "A")
    # An empty matrix has no diagonal; a symbol is at least 1.
    return 0 if n == 0 else prod((total((_lu(n), n, -1)), matrices))


@vector_rule("linalg_cholesky", "linalg_cholesky_ex", "cholesky")
def cholesky(op: OpCall) -> Size:
    """Count n(n+1)(2n+1)/6 FLOPs per n x n matrix of a Cholesky factorization."""
    n, matrices = _square(op, "self")
    return prod((_sixth(n, total((n, 1)), total((prod((2, n)), 1))), matrices))


_WITHOUT_ROOT: Final = (0, 1, float("inf"), float("-inf"))


def norm_flops(order: Any, elements: Size, results: Size) -> Size:
    """Return the FLOPs of norms of ``order`` with ``results`` results, over ``elements`` elements in total."""
    if order == "fro":
        order = 2
    if not isinstance(order, int | float):
        raise Uncountable(f"a norm of order {order}")
    each = 2 if order == 2 or order in _WITHOUT_ROOT else 3
    return total((prod((each, elements)), 0 if order in _WITHOUT_ROOT else results))


def _norm(op: OpCall) -> Size:
    _require_real(op)
    return norm_flops(attr(op, "ord", "p", default=2), numel(op.tensors[0]), out_elements(op))


def _require_real(op: OpCall) -> None:
    """Raise ``Uncountable`` for complex operands, whose norm is real."""
    if complex_operands(op):
        raise Uncountable("complex arithmetic without a documented count")


@vector_rule("norm", "linalg_vector_norm", "frobenius_norm")
def vector_norm(op: OpCall) -> Size:
    """Count 2 FLOPs per input element (square, add), a root per result for the 2-norm; for others 2 or 3 an element."""
    return _norm(op)


@vector_rule("linalg_norm", "linalg_matrix_norm")
def linalg_norm(op: OpCall) -> Size:
    """Count as ``vector_norm``; the only matrix norm is Frobenius, the 2-norm of all elements."""
    order, dims = attr(op, "ord"), attr(op, "dim")
    sides = len(op.tensors[0].shape) if dims is None else 1 if isinstance(dims, int) else len(dims)
    of_matrices = canonical(op.name) == "linalg_matrix_norm" or sides == 2
    if of_matrices and order not in (None, "fro"):
        raise Uncountable(f"a matrix norm of order {order}")
    return _norm(op)


@vector_rule("norm_except_dim")
def norm_except_dim(op: OpCall) -> Size:
    """Count as ``vector_norm`` for each slice along the kept dimension."""
    _require_real(op)
    return norm_flops(attr(op, "pow", default=2), numel(op.tensors[0]), out_elements(op))


@vector_rule("_weight_norm", "_weight_norm_interface")
def weight_norm(op: OpCall) -> Size:
    """Count g v / |v|: 3 per element of v (square, add, multiply), 2 per element of g (a root, a division)."""
    _require_real(op)
    return total((prod((3, numel(tensor(op, "v", 0)))), prod((2, numel(tensor(op, "g", 1))))))


@vector_rule("dist")
def dist(op: OpCall) -> Size:
    """Count 1 FLOP per element (subtract), and the norm of the difference."""
    _require_real(op)
    pairs = broadcast(op.tensors[0].shape, op.tensors[1].shape)
    return total((prod(pairs), norm_flops(attr(op, "p", default=2), prod(pairs), 1)))


@vector_rule("pairwise_distance")
def pairwise_distance(op: OpCall) -> Size:
    """Count |x - y + eps|: 2 per element (subtract, add), and a norm."""
    _require_real(op)
    pairs = prod(broadcast(op.tensors[0].shape, op.tensors[1].shape))
    return total((prod((2, pairs)), norm_flops(attr(op, "p", default=2), pairs, out_elements(op))))


@vector_rule("cosine_similarity")
def cosine_similarity(op: OpCall) -> Size:
    """Count x.y / (max(|x|, eps) max(|y|, eps)): three sums of products, 6 per pair of elements, and 6 per result."""
    pairs = prod(broadcast(op.tensors[0].shape, op.tensors[1].shape))
    return prod((6, total((pairs, out_elements(op)))))


@vector_rule("cdist", "_cdist_forward", "_euclidean_dist")
def cdist(op: OpCall) -> Size:
    """Count 1 FLOP per element (subtract) and a norm for each pair of rows, also where torch uses a matrix product."""
    pairs = prod((out_elements(op), tensor(op, "x1", 0).shape[-1]))
    return total((pairs, norm_flops(attr(op, "p", default=2), pairs, out_elements(op))))


@vector_rule("pdist", "_pdist_forward")
def pdist(op: OpCall) -> Size:
    """Count 1 FLOP per element (subtract) and a norm for each unordered pair of rows."""
    pairs = prod((out_elements(op), tensor(op, "input", 0).shape[-1]))
    return total((pairs, norm_flops(attr(op, "p", default=2), pairs, out_elements(op))))


_KINDS: Final = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
_UNCHANGED: Final = -1
"""Value of a length argument that means the length of the input."""


def transform_flops(shape: Sequence[Size], dims: Sequence[int], *, real: bool) -> Size:
    """Return the FLOPs of Fourier transforms of ``shape`` over ``dims``; half, rounded up, if one side is real."""
    lengths = [shape[d] for d in dims]
    if not all(isinstance(n, int) for n in lengths):
        raise Uncountable("a Fourier transform over a length that is a symbol")
    logarithm = sum((n - 1).bit_length() for n in lengths if isinstance(n, int))
    rest = prod(size for d, size in enumerate(shape) if d not in {d % len(shape) for d in dims})
    each = 5 * logarithm * int(prod(lengths))
    return prod((-(-each // 2) if real else each, rest))


@operator_rule(*(f"fft_{kind}{dims}" for kind in _KINDS for dims in ("", "2", "n")), "_fft_c2c", "_fft_r2c", "_fft_c2r")
def transform(op: OpCall) -> OpCost:
    """Count 5 n log2 n vector FLOPs per Fourier transform of n complex numbers, half if one side is real."""
    before, after = tensor(op, "self", 0), result(op)
    real = before.dtype.startswith("complex") != after.dtype.startswith("complex")
    # The real side has all n numbers, the complex side half of them. A given length is that of the real side.
    shape = list((before if real and after.dtype.startswith("complex") else after).shape)
    dims, lengths = _dims(op, len(shape))
    if real and after.dtype.startswith("complex"):
        for d, n in zip(dims, lengths or (), strict=False):
            shape[d] = shape[d] if n == _UNCHANGED else n
    return OpCost(vector=transform_flops(shape, dims, real=real))


def _dims(op: OpCall, rank: int) -> tuple[list[int], Sequence[Size] | None]:
    """Return the dimensions of a Fourier transform, and their lengths if the call states them."""
    lengths, dims = attr(op, "n", "s"), attr(op, "dim")
    lengths = [lengths] if lengths is not None and not isinstance(lengths, list | tuple) else lengths
    name = op.name.split(".")[1] if op.name.startswith("aten.") else op.name
    if dims is None:
        each = len(lengths) if lengths is not None else rank
        dims = range(rank - each, rank) if name.endswith("n") else (-2, -1) if name.endswith("2") else (-1,)
    elif isinstance(dims, int):
        dims = (dims,)
    return [d % rank for d in dims], lengths


@operator_rule("stft")
def stft(op: OpCall) -> OpCost:
    """Count as ``fft`` for every frame, and 1 per element of a frame for the window."""
    signal, after = tensor(op, "self", 0), result(op)
    if not after.dtype.startswith("complex"):
        raise Uncountable("a short-time Fourier transform that returns pairs of real numbers")
    length = attr(op, "n_fft")
    frames = prod((*signal.shape[:-1], after.shape[-1]))
    real = not signal.dtype.startswith("complex")
    # A window that is shorter than a frame is padded with zeros to its length.
    windowed = "window" in op.names or attr(op, "win_length", default=length) != length
    window = prod((frames, length)) if windowed else 0
    return OpCost(vector=total((transform_flops((frames, length), (1,), real=real), window)))


@operator_rule("fft_fftshift", "fft_ifftshift")
def shift(op: OpCall) -> OpCost:
    """Count 0 FLOPs; elements are permuted."""
    return OpCost(role="move")


@operator_rule("fft_fftfreq", "fft_rfftfreq", "hann_window", "hamming_window", "blackman_window", "bartlett_window")
def frequencies(op: OpCall) -> OpCost:
    """Count 0 FLOPs; a tensor of frequencies or of a window is created from its size."""
    return OpCost(role="factory", reads=())
