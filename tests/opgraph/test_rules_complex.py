"""Vector work on complex numbers: an addition is 2 real operations, a product 6, by a real number 2."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from costproof.opgraph.rules.registry import UnknownCost, cost_of
from tests.support.opcalls import call, counted, taken, value

aten = torch.ops.aten


def numbers(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.complex64)


Z = numbers(3, 4)
"""12 complex numbers."""
X = torch.ones(3, 4)
ROWS = torch.tensor([0, 1, 1])
PLACES = torch.zeros(2, 4, dtype=torch.long)


@pytest.mark.parametrize(
    ("overload", "args", "options", "expected"),
    [
        (aten.add.Tensor, (Z, Z), {}, 12 * 2),
        (aten.neg.default, (Z,), {}, 12 * 2),
        (aten.sum.dim_IntList, (Z, [1]), {}, 12 * 2),
        (aten.mean.default, (Z,), {}, 12 * 2),
        (aten.cumsum.default, (Z, 0), {}, 12 * 2),
        (aten.trace.default, (numbers(3, 3),), {}, 3 * 2),  # the diagonal
        (aten.prod.default, (Z,), {}, 12 * 6),
        (aten.prod.dim_int, (Z, 1), {}, 12 * 6),
        (aten.cumprod.default, (Z, 0), {}, 12 * 6),
        (aten.mul.Tensor, (Z, Z), {}, 12 * 6),
        (aten.mul.Tensor, (Z, 1j), {}, 12 * 6),
        (aten.mul.Tensor, (X, 1j), {}, 12 * 2),
        (aten.mul.Tensor, (Z, 3.0), {}, 12 * 2),
        (aten.mul.Tensor, (X, Z), {}, 12 * 2),
        (aten.outer.default, (numbers(3), numbers(4)), {}, 12 * 6),
        (aten.outer.default, (torch.ones(3), numbers(4)), {}, 12 * 2),
        # (3, 2) and (4, 2) make (12, 4).
        (aten.kron.default, (numbers(3, 2), numbers(4, 2)), {}, 48 * 6),
        # A product and an addition.
        (aten.addr.default, (Z, numbers(3), numbers(4)), {}, 12 * (6 + 2)),
        # Two passes over rows of 4: 3 and 2 differences in each of 3 rows.
        (aten.diff.default, (Z, 2), {}, 3 * (3 + 2) * 2),
        (aten.einsum.default, ("ij->i", [Z]), {}, 12 * 2),
        # 3 rows of 4 are added.
        (aten.index_add.default, (numbers(5, 4), 0, ROWS, Z), {}, 12 * 2),
        # As many are added as there are indices: 2 * 4.
        (aten.scatter_add.default, (numbers(5, 4), 0, PLACES, Z), {}, 8 * 2),
        (aten.scatter.reduce, (numbers(5, 4), 0, PLACES, Z), {"reduce": "add"}, 8 * 2),
        (aten.scatter.reduce, (numbers(5, 4), 0, PLACES, Z), {"reduce": "multiply"}, 8 * 6),
        (aten.scatter.value_reduce, (numbers(5, 4), 0, PLACES, 2.0), {"reduce": "multiply"}, 8 * 2),
        (aten.scatter.value_reduce, (numbers(5, 4), 0, PLACES, 2j), {"reduce": "multiply"}, 8 * 6),
        (aten.index_put.default, (numbers(5, 4), [ROWS], Z, True), {}, 12 * 2),
        (aten.put.default, (numbers(5, 4), ROWS, numbers(3), True), {}, 3 * 2),
        # 12 numbers of each of 9 windows.
        (aten.col2im.default, (numbers(1, 12, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]), {}, 108 * 2),
    ],
)  # fmt: skip
def test_vector_work(overload: Any, args: tuple[Any, ...], options: dict[str, Any], expected: int) -> None:
    op, _ = taken(overload, *args, **options)
    assert counted(op).vector == expected


def test_a_scale_is_a_product_more() -> None:
    for overload, args in ((aten.add.Tensor, (Z, Z)), (aten.index_add.default, (numbers(5, 4), 0, ROWS, Z))):
        for alpha, each in ((2, 2 + 2), (2j, 2 + 6)):  # an addition, and a product by a real or a complex number
            op, _ = taken(overload, *args, alpha=alpha)
            assert counted(op).vector == 12 * each, (overload, alpha)
    # Which of the two is real is not known from the result.
    z, x = value(3, 4, dtype="complex64"), value(3, 4)
    assert isinstance(cost_of(call("add", [z, x], [z], {"alpha": 2})), UnknownCost)


def test_without_a_documented_count_it_is_unknown() -> None:
    z, x = value(3, 4, dtype="complex64"), value(3, 4)
    for name in ("lerp", "addcmul", "addcdiv", "reciprocal", "logcumsumexp", "nan_to_num", "index_reduce"):
        assert isinstance(cost_of(call(name, [z, z, z], [z])), UnknownCost), name
    for name in ("var", "std", "norm", "dist", "pairwise_distance", "l1_loss"):  # what they return is real
        assert isinstance(cost_of(call(name, [z, z], [x])), UnknownCost), name
