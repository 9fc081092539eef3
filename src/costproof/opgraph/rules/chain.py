"""Products of several matrices in one operator, in the order in which torch multiplies them."""

from __future__ import annotations

from costproof.opgraph.graph import OpCall
from costproof.opgraph.rules.cost import OpCost, Uncountable
from costproof.opgraph.rules.matmul import mac
from costproof.opgraph.rules.operands import attr
from costproof.opgraph.rules.registry import operator_rule
from costproof.opgraph.rules.sizes import prod


@operator_rule("linalg_multi_dot", "chain_matmul")
def multi_dot(op: OpCall) -> OpCost:
    """2 * the fewest multiply-accumulates of any order, which is the one that torch takes.

    Rows and columns a_0 .. a_n; the best of factors i to j is the least of best(i, k) + best(k + 1, j) + the product
    of the two halves (Cormen et al., Introduction to Algorithms, matrix-chain multiplication).
    """
    shapes = [t.shape for t in op.tensors]
    # A vector stands for a row in front and for a column at the end.
    first, last = (1, *shapes[0])[-2:], (*shapes[-1], 1)[:2]
    sizes = [first[0], *(shape[0] for shape in shapes[1:-1]), last[0], last[1]]
    ends = [first[1], *(shape[1] for shape in shapes[1:-1])]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes) or ends != sizes[1:-1]:
        raise Uncountable("which order is best depends on sizes")
    best = {(i, i): 0 for i in range(len(shapes))}
    for length in range(1, len(shapes)):
        for i in range(len(shapes) - length):
            j = i + length
            best[i, j] = min(best[i, k] + best[k + 1, j] + known[i] * known[k + 1] * known[j + 1] for k in range(i, j))
    return OpCost(flops=mac(op) * best[0, len(shapes) - 1], role="matmul")


@operator_rule("matrix_power", "linalg_matrix_power")
def matrix_power(op: OpCall) -> OpCost:
    """A product for every square on the way, and one for every further bit of the exponent."""
    power, shape = attr(op, "n", "exponent"), op.tensors[0].shape
    if not isinstance(power, int) or power < 0:
        raise Uncountable("a power that is not a whole number from 0")
    products = max(power.bit_length() - 1, 0) + max(power.bit_count() - 1, 0)
    return OpCost(flops=prod((mac(op), products, *shape, shape[-1])), role="matmul")
