"""Systems of equations and factorisations, counted as the textbook's algorithm does them, all n^3 of it.

They are vector work: no product of matrices, and torch's own counter leaves them out too. An addition, a
multiplication, a division and a root are 1 each (Golub and Van Loan, Matrix Computations, chapters 3 and 4):

- triangular system: n^2 per right-hand side, n fewer where the diagonal is 1
- LU: n(n-1)/2 divisions and n(n-1)(2n-1)/6 multiplications and as many subtractions; pivoting only compares
- Cholesky: n(n+1)(2n+1)/6
- general system: LU, and two triangular systems per right-hand side, one of them with a diagonal of 1
"""

from __future__ import annotations

from costproof.opgraph.graph import OpCall, Size
from costproof.opgraph.rules.cost import Uncountable
from costproof.opgraph.rules.elementwise import vector_rule
from costproof.opgraph.rules.operands import attr, is_complex, out_elements, tensor
from costproof.opgraph.rules.sizes import prod, tidy, total


def _square(op: OpCall, name: str, position: int = 0) -> tuple[Size, Size]:
    """Rows of a square matrix, and how many matrices there are."""
    if is_complex(op):
        raise Uncountable("complex arithmetic without a documented count")
    shape = tensor(op, name, position).shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise Uncountable("a matrix that is not square")
    return shape[-1], prod(shape[:-2])


def _sixth(*factors: Size) -> Size:
    """A sixth of a product that is a multiple of six."""
    product = prod(factors)
    return product // 6 if isinstance(product, int) else tidy(product / 6)


def _lu(n: Size) -> Size:
    return _sixth(n, total((n, -1)), total((prod((4, n)), 1)))


def _two_sweeps(n: Size) -> Size:
    """Of one number on the right-hand side: a triangular system, and one with a diagonal of 1."""
    return total((prod((2, n)), -1))


@vector_rule("linalg_solve_triangular", "triangular_solve")
def solve_triangular(op: OpCall) -> Size:
    """n^2 per right-hand side, n fewer where the diagonal is 1."""
    n, _ = _square(op, "A", 1) if "A" in op.names else _square(op, "self")
    return prod((total((n, -1)) if attr(op, "unitriangular", default=False) else n, out_elements(op)))


@vector_rule("linalg_solve", "linalg_solve_ex", "_linalg_solve_ex")
def solve(op: OpCall) -> Size:
    """LU of every matrix, then n(2n-1) per right-hand side."""
    n, matrices = _square(op, "A")
    return total((prod((_lu(n), matrices)), prod((_two_sweeps(n), out_elements(op)))))


@vector_rule("linalg_inv", "linalg_inv_ex", "inverse")
def inverse(op: OpCall) -> Size:
    """A system with n right-hand sides: LU, then n(2n-1) for each of them."""
    n, matrices = _square(op, "A")
    return prod((total((_lu(n), prod((n, n, _two_sweeps(n))))), matrices))


@vector_rule("linalg_lu_factor", "linalg_lu_factor_ex")
def lu_factor(op: OpCall) -> Size:
    """n(n-1)(4n+1)/6 per matrix."""
    n, matrices = _square(op, "A")
    return prod((_lu(n), matrices))


@vector_rule("linalg_det", "_linalg_det", "det")
def determinant(op: OpCall) -> Size:
    """LU of every matrix, and the product of its diagonal, n - 1."""
    n, matrices = _square(op, "A")
    # An empty matrix has no diagonal to multiply; a symbol is at least 1.
    return 0 if n == 0 else prod((total((_lu(n), n, -1)), matrices))


@vector_rule("linalg_cholesky", "linalg_cholesky_ex", "cholesky")
def cholesky(op: OpCall) -> Size:
    """n(n+1)(2n+1)/6 per matrix."""
    n, matrices = _square(op, "self")
    return prod((_sixth(n, total((n, 1)), total((prod((2, n)), 1))), matrices))
