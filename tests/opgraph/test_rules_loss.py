"""Losses, by hand and by the primitives that they are made of."""

from __future__ import annotations

import pytest
import torch

from costproof.opgraph.rules.registry import UnknownCost, cost_of
from tests.opgraph.test_rules_vector import primitives
from tests.support.opcalls import call, counted, taken, value

X, Y = torch.rand(3, 8), torch.rand(3, 8)


def test_losses_of_differences_are_their_primitives() -> None:
    for name, definition in (("mse_loss", torch.square), ("l1_loss", torch.abs)):
        overload = getattr(torch.ops.aten, name).default
        whole = primitives(lambda of=definition: of(X - Y).sum())
        # 24 differences, each squared or without its sign, and added.
        assert counted(taken(overload, X, Y)[0]).vector == whole == 3 * 24
        assert counted(taken(overload, X, Y, 0)[0]).vector == 2 * 24
        python = call(name, [value(3, 8), value(3, 8)], [value(3, 8)], {"reduction": "none"})
        assert counted(python).vector == 2 * 24
    assert isinstance(cost_of(call("mse_loss", [value(3, 8), value(8)], [value()])), UnknownCost)


def test_cross_entropy_is_a_log_softmax_and_a_look_up() -> None:
    rows = torch.zeros(3, dtype=torch.long)
    overload = torch.ops.aten.cross_entropy_loss.default
    # A log-softmax is 6 per element: maximum, subtract, exp, sum, log, subtract. Three rows are added.
    assert counted(taken(overload, X, rows)[0]).vector == 6 * 24 + 3
    assert counted(taken(overload, X, rows, None, 0)[0]).vector == 6 * 24
    assert isinstance(cost_of(taken(overload, X, Y)[0]), UnknownCost)
    assert isinstance(cost_of(taken(overload, X, rows, None, 1, -100, 0.1)[0]), UnknownCost)
    assert isinstance(cost_of(taken(overload, X, rows, torch.rand(8))[0]), UnknownCost)


@pytest.mark.parametrize("drawn", [1, 5])
def test_drawing_by_weights_looks_at_each_once(drawn: int) -> None:
    op, _ = taken(torch.ops.aten.multinomial.default, X, drawn)
    assert counted(op).vector == 24
