"""Additions at indices, and random numbers by what tensors say; expected values by hand."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch

from costproof.opgraph.rules.registry import UnknownCost, cost_of
from tests.support.opcalls import call, counted, taken, value

aten = torch.ops.aten

TABLE = torch.zeros(5, 4)
ROWS = torch.tensor([0, 1, 1])
PLACES = torch.zeros(2, 3, dtype=torch.long)
"""Six places, of a source that has 6 rows of 3."""
SCATTERED = (torch.zeros(5, 3), 0, PLACES, torch.ones(6, 3))


@pytest.mark.parametrize(
    ("overload", "args", "options", "expected"),
    [
        # Only as many elements of the source as there are indices.
        (aten.scatter_add.default, SCATTERED, {}, 2 * 3),
        (aten.scatter.reduce, SCATTERED, {"reduce": "add"}, 2 * 3),
        (aten.scatter.value_reduce, (*SCATTERED[:3], 2.0), {"reduce": "multiply"}, 2 * 3),
        (aten.scatter.src, SCATTERED, {}, 0),
        *((aten.scatter_reduce.two, (*SCATTERED, how), {}, 2 * 3) for how in ("sum", "prod", "mean", "amax")),
        (aten.index_reduce.default, (TABLE, 0, ROWS, torch.ones(3, 4), "mean"), {}, 3 * 4),
        (aten.index_add.default, (TABLE, 0, ROWS, torch.ones(3, 4)), {}, 3 * 4),
        # Times 2, then added.
        (aten.index_add.default, (TABLE, 0, ROWS, torch.ones(3, 4)), {"alpha": 2}, 3 * 4 * 2),
        # One value, a row of values, all values: 3 rows of 4 are added to.
        (aten.index_put.default, (TABLE, [ROWS], torch.tensor(1.0), True), {}, 3 * 4),
        (aten.index_put.default, (TABLE, [ROWS], torch.ones(4), True), {}, 3 * 4),
        (aten.index_put.default, (TABLE, [ROWS], torch.ones(3, 4), True), {}, 3 * 4),
        (aten.index_put.default, (TABLE, [ROWS], torch.ones(4), False), {}, 0),
        # Indices (3, 1) and (2,) name 3 x 2 rows of 3.
        (aten.index_put.default, (torch.zeros(5, 4, 3), [ROWS[:, None], ROWS[:2]], torch.ones(3), True), {}, 6 * 3),
        # A mask with as many rows of values as it names.
        (aten.index_put.default, (TABLE, [torch.arange(5) < 3], torch.ones(3, 4), True), {}, 3 * 4),
        # All 5 rows, 3 columns of each; with the second dimension whole, 5 rows of 4, 3 places in each.
        (aten.index_put.default, (torch.zeros(5, 10), [None, ROWS], torch.ones(3), True), {}, 5 * 3),
        (aten.index_put.default, (torch.zeros(9, 4, 7), [ROWS, None, ROWS], torch.ones(4), True), {}, 3 * 4),
        # Columns by a mask, as many as the values have.
        (aten.index_put.default, (TABLE, [None, torch.arange(4) < 3], torch.ones(5, 3), True), {}, 5 * 3),
        (aten.put.default, (TABLE, ROWS, torch.ones(3), True), {}, 3),
        (aten.put.default, (TABLE, ROWS, torch.ones(3), False), {}, 0),
        (aten.masked_scatter.default, (TABLE, TABLE > 0, torch.ones(20)), {}, 0),
        (aten.bincount.default, (ROWS, torch.ones(3)), {}, 3),
        (aten.bincount.default, (ROWS,), {}, 0),
    ],
)
def test_additions_at_indices(overload: Any, args: tuple[Any, ...], options: dict[str, Any], expected: int) -> None:
    op, _ = taken(overload, *args, **options)
    assert counted(op).vector == expected


def test_integers_are_added_for_nothing() -> None:
    table, i = value(5, 4, dtype="int64"), value(3, dtype="int64")
    names = {"index": i, "source": table}
    for name in ("scatter_add", "index_add", "index_reduce"):
        assert counted(call(name, [table, i, table], [table], names=names)).vector == 0
    for index in (i, value(5, 4, dtype="bool")):
        assert counted(call("index_put", [table, index, table], [table], {"accumulate": True})).vector == 0


def test_values_may_stand_before_the_indices() -> None:
    table, i, row = value(5, 4), value(3, dtype="int64"), value(4)
    op = call("index_put", [table, row, i], [table], {"accumulate": True}, {"self": table, "values": row})
    assert counted(op).vector == 3 * 4


def test_how_many_a_mask_names_is_unknown() -> None:
    table, mask = value(5, 4), value(5, 4, dtype="bool")
    assert isinstance(cost_of(call("index_put", [table, mask, value()], [table], {"accumulate": True})), UnknownCost)


def test_additions_at_indices_in_symbols() -> None:
    n = sympy.Symbol("n", positive=True, integer=True)
    table, i = value(5, 4), value(n, dtype="int64")
    put = call("index_put", [table, i, value(4)], [table], {"accumulate": True})
    assert counted(put).vector == 4 * n
    add = call("index_add", [table, i, value(n, 4)], [table], {"alpha": 2})
    assert counted(add).vector == 8 * n


P = torch.full((3, 4), 0.5)


@pytest.mark.parametrize(
    ("overload", "args", "read", "expected"),
    [
        # A draw is compared with each probability.
        (aten.bernoulli.default, (P,), 1, 12),
        (aten.bernoulli.p, (P, 0.5), 0, 0),
        (aten.bernoulli_.float, (P.clone(), 0.5), 0, 0),
        (aten.bernoulli_.Tensor, (torch.zeros(3, 4), P), 1, 12),
        (aten.poisson.default, (P,), 1, 0),
        (aten.binomial.default, (P, P), 2, 0),
        # Times the deviation, plus the mean; a deviation that is one number belongs to the draw.
        (aten.normal.Tensor_Tensor, (P, P), 2, 24),
        (aten.normal.float_Tensor, (0.0, P), 1, 24),
        (aten.normal.Tensor_float, (P, 2.0), 1, 12),
        (aten.normal.float_float, (0.0, 1.0, [3, 4]), 0, 0),
        (aten.normal_.default, (P.clone(), 0.0, 1.0), 0, 0),
        (aten.rand_like.default, (P,), 0, 0),
        (aten._sample_dirichlet.default, (P,), 1, 0),
        (aten._standard_gamma.default, (P,), 1, 0),
    ],
)
def test_draws_read_what_they_go_by(overload: Any, args: tuple[Any, ...], read: int, expected: int) -> None:
    op, _ = taken(overload, *args)
    cost = counted(op)
    assert cost.vector == expected
    assert cost.reads is not None
    assert [v.shape for v in cost.reads] == [(3, 4)] * read
    assert (cost.role == "factory") == (read == 0)
