"""Integers and masks for operators that are called alone, by hand; and torch takes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from costproof.tracers.operator_log import TensorForm
from costproof.tracers.replay import can_make_integers, integer_maker, routed

aten = torch.ops.aten
CPU = torch.device("cpu")


def form(*shape: int, dtype: torch.dtype = torch.float32, stride: tuple[int, ...] | None = None) -> TensorForm:
    return TensorForm(shape, stride or torch.empty(shape).stride(), dtype, weight=False)


def ids(*shape: int) -> TensorForm:
    return form(*shape, dtype=torch.int64)


def mask(*shape: int, stride: tuple[int, ...] | None = None) -> TensorForm:
    return form(*shape, dtype=torch.bool, stride=stride)


def made(function: Any, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """The integers and masks of a call, after torch made it with them."""
    make = integer_maker(function, args, kwargs, CPU)

    def tensor(leaf: Any) -> Any:
        if not isinstance(leaf, TensorForm):
            return leaf
        return torch.ones(leaf.shape).to(leaf.dtype) if leaf.dtype.is_floating_point else make(leaf)

    given, named = tree_map(tensor, (args, kwargs))
    function(*given, **named)
    return [t for t in tree_leaves((given, named)) if isinstance(t, torch.Tensor) and not t.is_floating_point()]


@pytest.mark.parametrize(
    ("function", "args", "length"),
    [
        (aten.embedding.default, (form(50, 3), ids(2, 400)), 50),
        (aten.index_select.default, (form(4, 60), 1, ids(500)), 60),
        (aten.index_select.default, (form(4, 60), -1, ids(500)), 60),
        (aten.gather.default, (form(70, 5), 0, ids(600, 5)), 70),
        (aten.scatter.value, (form(3, 40), -1, ids(3, 40), 1.0), 40),
        (aten.scatter_.value, (form(3, 40), -1, ids(3, 40), 1.0), 40),
        (aten.scatter_add_.default, (form(30, 5), 0, ids(300, 5), form(300, 5)), 30),
        (aten.index_add_.default, (form(30, 5), 0, ids(300), form(300, 5)), 30),
        (aten.index.Tensor, (form(2, 90), [None, ids(700)]), 90),
        (aten.index_put_.default, (form(80, 5), [ids(900)], form(900, 5)), 80),
        (aten._unsafe_index.Tensor, (form(90, 2), [ids(700)]), 90),
        (aten.take.default, (form(5, 9), ids(400)), 45),
        (aten.nll_loss_forward.default, (form(300, 20), ids(300), None, 1, -100), 20),
        (aten.sort.default, (ids(64),), 64),
    ],
)  # fmt: skip
def test_indices_lie_all_over_the_dimension_that_they_look_into(function: Any, args: Any, length: int) -> None:
    (indices,) = made(function, *args)
    assert 0 <= indices.min() < length / 4
    assert length * 3 / 4 < indices.max() < length


def test_indices_of_a_list_look_into_their_own_dimensions() -> None:
    first, last = made(aten.index.Tensor, form(500, 4, 20), [ids(900), None, ids(900)])
    assert first.max() > 400
    assert last.max() < 20
    # A mask of two dimensions stands for both: the list's second entry looks into the third.
    _, third = made(aten.index.Tensor, form(3, 4, 500), [mask(3, 4), ids(12)])
    assert third.max() > 100


def test_rows_are_routed_uniformly() -> None:
    # 8 rows touch 128 (1 - (127/128)^8) = 7.79 of 128 groups, 72 rows 55.2 of them, 500 rows all of 4.
    assert [len(set(routed(rows, 128)) - {0}) for rows in (8, 72)] == [8, 55]
    assert routed(500, 4) == [125, 250, 375, 500]
    assert routed(1, 4) == [0, 0, 0, 1]
    assert routed(0, 3) == [0, 0, 0]
    ends = form(4, dtype=torch.int32)
    for a, b, rows in (
        (form(40, 8), form(4, 8, 16), 40),
        (form(4, 5, 8), form(8, 48), 48),
        (form(3, 32), form(32, 8), 32),
    ):
        (found,) = made(aten._grouped_mm.default, a, b, ends)
        assert found.tolist() == [rows // 4, rows // 2, rows * 3 // 4, rows], (a.shape, b.shape)


def test_lengths_of_sequences_share_their_rows() -> None:
    function, query = aten._flash_attention_forward.default, form(90, 2, 8)
    given = {"query": query, "key": form(60, 2, 8), "cum_seq_q": ids(4), "cum_seq_k": ids(4)}
    make = integer_maker(function, (), given, CPU)
    assert [make(given[name]).tolist() for name in ("cum_seq_q", "cum_seq_k")] == [[0, 30, 60, 90], [0, 20, 40, 60]]


def test_masks_hide_nothing() -> None:
    (found,) = made(aten.where.self, mask(3, 4), form(3, 4), form(3, 4))
    assert found.all()
    (found,) = made(aten.masked_fill.Scalar, form(3, 4), mask(3, 4), 0.0)
    assert found.all()
    assert made(aten.index_put_.default, form(3, 4), [mask(3)], form(1))[0].all()


def test_a_mask_picks_as_many_elements_as_there_are_values() -> None:
    (found,) = made(aten.masked_scatter.default, form(2, 6), mask(2, 6), form(7))
    assert found.sum() == 7
    # One of rows, spread over 6 features without memory of its own: 4 rows of values.
    (found,) = made(aten.masked_scatter.default, form(2, 5, 6), mask(2, 5, 6, stride=(5, 1, 0)), form(4, 6))
    assert [int(found.sum()), int(found[..., 0].sum())] == [24, 4]
    (found,) = made(aten.index_put_.default, form(9, 4), [mask(9)], form(5, 4))
    assert found.sum() == 5


def test_all_other_integers_are_0_and_divisors_1() -> None:
    a, b = made(aten.floor_divide.default, ids(3), ids(3))
    assert (a.tolist(), b.tolist()) == ([0, 0, 0], [1, 1, 1])
    assert made(aten.add.Tensor, ids(2), ids(2))[1].tolist() == [0, 0]


def test_only_torchs_own_operators_are_known() -> None:
    with torch.library._scoped_library("costproof_test", "FRAGMENT") as library:
        library.define("theirs(Tensor rows) -> Tensor")
        theirs = torch.ops.costproof_test.theirs.default
        assert can_make_integers(theirs, [form(3), 1])
        assert not can_make_integers(theirs, [ids(3)])
    assert can_make_integers(aten.add.Tensor, [ids(3)])
