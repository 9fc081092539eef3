"""Matrix products against torch's own counter and against counting every multiplication."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import sym
from costproof.opgraph.rules.registry import UnknownCost, cost_of
from tests.support.opcalls import call, counted, taken, torch_count, value

aten = torch.ops.aten
side = st.integers(1, 5)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


@settings(max_examples=25)
@given(side, side, side, side)
def test_products_agree_with_torch(b: int, n: int, k: int, m: int) -> None:
    cases: list[tuple[Any, tuple[torch.Tensor, ...]]] = [
        (aten.mm.default, (ones(n, k), ones(k, m))),
        (aten.bmm.default, (ones(b, n, k), ones(b, k, m))),
        (aten.addmm.default, (ones(m), ones(n, k), ones(k, m))),
        (aten.baddbmm.default, (ones(b, n, m), ones(b, n, k), ones(b, k, m))),
        (aten.linear.default, (ones(b, n, k), ones(m, k))),
        (aten.linear.default, (ones(b, n, k), ones(m, k), ones(m))),
        (aten.matmul.default, (ones(b, 1, n, k), ones(1, 3, k, m))),
        (aten.matmul.default, (ones(b, n, k), ones(k, m))),
    ]
    for overload, args in cases:
        op, _ = taken(overload, *args)
        assert counted(op).flops == torch_count(overload, *args), overload
        assert counted(op).vector == 0


@pytest.mark.parametrize(
    ("name", "shapes", "out", "expected"),
    [
        ("aten.dot.default", [(7,), (7,)], (), 14),  # 7 multiply-accumulates
        ("mv", [(3, 7), (7,)], (3,), 42),  # 3 rows of 7
        ("aten.matmul.default", [(7,), (7, 3)], (3,), 42),
        ("__matmul__", [(7,), (7,)], (), 14),
        ("__rmatmul__", [(7, 5), (2, 7)], (2, 5), 140),  # (2,7) @ (7,5): 2*5 results of 7
        ("aten.addmv.default", [(3,), (3, 7), (7,)], (3,), 42),
        ("torch.addbmm", [(2, 5), (4, 2, 7), (4, 7, 5)], (2, 5), 560),  # 4 products of 2*5*7
        ("inner", [(3, 7), (2, 7)], (3, 2), 84),
    ],
)
def test_ranks_by_hand(name: str, shapes: list[tuple[int, ...]], out: tuple[int, ...], expected: int) -> None:
    assert counted(call(name, [value(*s) for s in shapes], [value(*out)])).flops == expected


def test_tensordot_contracts_the_named_dimensions() -> None:
    # (2,3,4) x (4,3,5) over (3,4): 2*5 results of 12 terms
    op = call("tensordot", [value(2, 3, 4), value(4, 3, 5)], [value(2, 5)], {"dims": ([1, 2], [1, 0])})
    assert counted(op).flops == 2 * 10 * 12


@pytest.mark.parametrize(
    ("first", "second", "dims", "flops", "vector"),
    [
        # The 20 numbers of the second are summed to (1, 5), then 3 x 5 products of one number each.
        ((3, 1), (4, 5), ([1], [0]), 2 * 15, 20),
        ((3, 4), (1, 5), ([1], [0]), 2 * 15, 12),
        ((3, 1), (1, 5), ([-1], [0]), 2 * 15, 0),
        # (3, 4, 6) is summed over the 4, 72 numbers, then over the 6, 18 of them.
        ((3, 4, 6), (1, 1, 5), ([1, 2], [0, 1]), 2 * 15, 72 + 18),
        # Only the 4 is summed; 3 x 5 sums of 6 products.
        ((3, 4, 6), (1, 6, 5), ([1, 2], [0, 1]), 2 * 15 * 6, 72),
    ],
)
def test_tensordot_sums_what_meets_a_single_number(
    first: tuple[int, ...], second: tuple[int, ...], dims: tuple[list[int], list[int]], flops: int, vector: int
) -> None:
    args = (ones(*first), ones(*second), *dims)
    cost = counted(taken(aten.tensordot.default, *args)[0])
    assert (cost.flops, cost.vector) == (flops, vector)
    assert torch_count(aten.tensordot.default, *args) == flops


def test_complex_tensordot() -> None:
    a, b = (ones(*shape).to(torch.complex64) for shape in ((3, 1), (4, 5)))
    cost = counted(taken(aten.tensordot.default, a, b, [1], [0])[0])
    assert (cost.flops, cost.vector) == (8 * 15, 2 * 20)


def test_addr_with_scales() -> None:
    # A product and an addition; each scale is a product more, and times 0 nothing is added.
    for scales, each in (({}, 2), ({"alpha": 2}, 3), ({"alpha": 2, "beta": 3}, 4), ({"beta": 0}, 1)):
        op, _ = taken(aten.addr.default, ones(3, 4), ones(3), ones(4), **scales)
        assert counted(op).vector == 12 * each


def test_complex_multiplication_is_four_real_ones() -> None:
    a, b, c = value(2, 3, dtype="complex64"), value(3, 4, dtype="complex64"), value(2, 4, dtype="complex64")
    assert counted(call("mm", [a, b], [c])).flops == 4 * (2 * 2 * 3 * 4)


def test_three_real_products_do_for_a_complex_one() -> None:
    """(a + ib)(c + id): ac, bd and (a + b)(c + d); 2 x 3 x 4 products of 8 FLOPs, of which 6 are needed."""
    a, b, c = value(2, 3, dtype="complex64"), value(3, 4, dtype="complex64"), value(2, 4, dtype="complex64")
    cost = counted(call("mm", [a, b], [c]))
    assert (cost.flops, cost.skippable) == (8 * 24, 2 * 24)
    assert counted(call("mm", [value(2, 3), value(3, 4)], [value(2, 4)])).skippable == 0


def test_outer_product_accumulates_nothing() -> None:
    cost = counted(call("outer", [value(3), value(4)], [value(3, 4)]))
    assert (cost.flops, cost.vector) == (0, 12)


def _multiplications(equation: str, sizes: dict[str, int]) -> int:
    """Walk through all index values of a two-operand einsum, one multiply-accumulate each."""
    left, right = equation.partition("->")[0].split(",")
    letters = sorted(set(left) | set(right))
    return sum(1 for _ in product(*(range(sizes[i]) for i in letters)))


@settings(max_examples=30)
@given(
    st.sampled_from(["bhwc,hkc->bhwk", "bhwc,wkc->bhwk", "ik,kj->ij", "bij,bjk->bik", "ij,ij->", "i,j->ij", "bi,i->b"]),
    st.lists(side, min_size=8, max_size=8),
)
def test_einsum_of_two(equation: str, drawn: list[int]) -> None:
    letters = sorted(set(equation) - set(",->"))
    sizes = dict(zip(letters, drawn, strict=False))
    operands = [ones(*(sizes[i] for i in term)) for term in equation.partition("->")[0].split(",")]
    op, _ = taken(aten.einsum.default, equation, operands)
    assert counted(op).flops == 2 * _multiplications(equation, sizes)


def test_einsum_shapes_of_equations() -> None:
    def flops(equation: str, *shapes: tuple[int, ...], out: tuple[int, ...]) -> tuple[int, int]:
        cost = counted(call("einsum", [value(*s) for s in shapes], [value(*out)], {"equation": equation}))
        assert isinstance(cost.flops, int)
        assert isinstance(cost.vector, int)
        return cost.flops, cost.vector

    # ellipsis with broadcast: 5*2 matrices, each 3x4 by 4x6
    assert flops("...ij,...jk->...ik", (5, 1, 3, 4), (2, 4, 6), out=(5, 2, 3, 6)) == (2 * 10 * 3 * 4 * 6, 0)
    # no arrow: letters that stand once, sorted
    assert flops("ij,jk", (3, 4), (4, 6), out=(3, 6)) == (2 * 3 * 4 * 6, 0)
    # i is summed out of the first operand first: 3*4 additions, then 4*6 products
    assert flops("ij,jk->jk", (3, 4), (4, 6), out=(4, 6)) == (2 * 4 * 6, 12)
    # j is 1 in the first operand, so it is summed out of the second: 4*6 additions, 3*6 products
    assert flops("ij,jk->ik", (3, 1), (4, 6), out=(3, 6)) == (2 * 3 * 6, 24)
    # and nothing is added up where it is 1
    assert flops("ij,kl->il", (3, 1), (4, 6), out=(3, 6)) == (2 * 3 * 6, 24)
    # three operands, left to right: ij,jk -> ik (3*4*5), then ik,kl -> il (3*5*6)
    assert flops("ij,jk,kl->il", (3, 4), (4, 5), (5, 6), out=(3, 6)) == (2 * 60 + 2 * 90, 0)
    # one operand: a transposition is a view, a sum is a reduction
    assert flops("ij->ji", (3, 4), out=(4, 3)) == (0, 0)
    assert flops("ij->i", (3, 4), out=(3,)) == (0, 12)


@pytest.mark.parametrize(
    ("path", "flops"),
    [
        # a(ij) b(jk) c(k) of i 10, j 9, k 8. b c: 9*8 products, then a with their 9: 10*9.
        ([1, 2, 0, 1], 2 * (72 + 90)),
        ([2, 1, 1, 0], 2 * (72 + 90)),
        # a b: 10*9*8 products, then their 10*8 with c; and so it is where no path is given.
        ([0, 1, 0, 1], 2 * (720 + 80)),
        (None, 2 * (720 + 80)),
        # a c have no index in common: 10*9*8 products are kept, and meet the 9*8 of b.
        ([0, 2, 0, 1], 2 * (720 + 720)),
    ],
)
def test_einsum_of_three_in_any_order(path: list[int] | None, flops: int) -> None:
    args = ("ij,jk,k->i", [ones(10, 9), ones(9, 8), ones(8)])
    assert counted(taken(aten.einsum.default, *args, path=path)[0]).flops == flops
    if path != [0, 2, 0, 1]:  # torch multiplies the 720 number by number, which its counter does not see
        assert torch_count(aten.einsum.default, *args, path=path) == flops


def test_einsum_sums_where_an_index_is_needed_no_more() -> None:
    # a(ij) b(jk) c(kl) of 3, 4, 5, 6. From the left: 3*4*5, then l is summed out of the 5*6, then 3*5.
    op, _ = taken(aten.einsum.default, "ij,jk,kl->i", [ones(3, 4), ones(4, 5), ones(5, 6)])
    assert (counted(op).flops, counted(op).vector) == (2 * (60 + 15), 30)
    # b and c first: l is summed out of c, 4*5; then 3*4.
    op, _ = taken(aten.einsum.default, "ij,jk,kl->i", [ones(3, 4), ones(4, 5), ones(5, 6)], path=[1, 2, 0, 1])
    assert (counted(op).flops, counted(op).vector) == (2 * (20 + 12), 30)
    # a and c first: nothing but l is summed, and 3*4 meet 5: 60 products; these meet the 4*5 of b.
    op, _ = taken(aten.einsum.default, "ij,jk,kl->i", [ones(3, 4), ones(4, 5), ones(5, 6)], path=[0, 2, 0, 1])
    assert (counted(op).flops, counted(op).vector) == (2 * (60 + 60), 30)


@pytest.mark.parametrize("path", [[0, 1], [0, 1, 0, 1, 0, 1], [0, 3, 0, 1], [1, 1, 0, 1], [0, 1, 0, 2], [0, -1, 0, 1]])
def test_an_order_that_contracts_no_three_operands_is_unknown(path: list[int]) -> None:
    op = call("einsum", [value(2, 3), value(3, 4), value(4)], [value(2)], {"equation": "ij,jk,k->i", "path": path})
    assert isinstance(cost_of(op), UnknownCost)


def test_einsum_that_does_not_fit_is_unknown() -> None:
    for equation, operands in (("ij,jk->ik", [value(3, 4)]), ("ijk->i", [value(3, 4)])):
        assert isinstance(cost_of(call("einsum", operands, [value(3)], {"equation": equation})), UnknownCost)
    assert isinstance(cost_of(call("einsum", [value(3, 4)], [value(3)])), UnknownCost)


@pytest.mark.parametrize(
    ("first", "second", "out", "expected"),
    [
        ((10, 4), (3, 4, 6), (10, 6), 2 * 10 * 4 * 6),  # each of 10 rows meets one 4x6 matrix
        ((3, 5, 4), (3, 4, 6), (3, 5, 6), 2 * 3 * 5 * 4 * 6),
        ((5, 10), (10, 6), (3, 5, 6), 2 * 5 * 10 * 6),  # the 10 is split among 3 groups
        ((3, 5, 4), (4, 10), (5, 10), 2 * 5 * 4 * 10),  # each of 10 columns meets one 5x4 matrix
    ],
)
def test_grouped_products(first: tuple[int, ...], second: tuple[int, ...], out: tuple[int, ...], expected: int) -> None:
    cost = counted(
        call("aten._grouped_mm.default", [value(*first), value(*second), value(3, dtype="int32")], [value(*out)])
    )
    assert cost.flops == expected


def test_grouped_fallback_equals_a_loop_of_products() -> None:
    rows = [2, 0, 5]  # rows per group
    looped = sum(torch_count(aten.mm.default, ones(r, 4), ones(4, 6)) for r in rows if r)
    op = call(
        "transformers.grouped_mm_fallback.default",
        [value(7, 4), value(3, 4, 6), value(3, dtype="int32")],
        [value(7, 6)],
    )
    assert counted(op).flops == looped


@settings(max_examples=20)
@given(side, side, side, side)
def test_symbolic_equals_integer(b: int, n: int, k: int, m: int) -> None:
    names = {"b": b, "n": n, "k": k, "m": m}
    sb, sn, sk, sm = (sym(x) for x in names)
    symbolic = [
        call("linear", [value(sb, sn + 1, sk), value(sm, sk)], [value(sb, sn + 1, sm)]),
        call("einsum", [value(sb, sn, sk), value(sn, sm, sk)], [value(sb, sn, sm)], {"equation": "bnk,nmk->bnm"}),
        call("_grouped_mm", [value(sn, sk), value(8, sk, sm)], [value(sn, sm)]),
    ]
    integer = [
        call("linear", [value(b, n + 1, k), value(m, k)], [value(b, n + 1, m)]),
        call("einsum", [value(b, n, k), value(n, m, k)], [value(b, n, m)], {"equation": "bnk,nmk->bnm"}),
        call("_grouped_mm", [value(n, k), value(8, k, m)], [value(n, m)]),
    ]
    for ours, theirs in zip(symbolic, integer, strict=True):
        assert isinstance(counted(ours).flops, sympy.Expr)
        assert evaluate(counted(ours).flops, names) == counted(theirs).flops
