"""Layers are found by their names, wherever they are defined."""

from __future__ import annotations

from typing import ClassVar

import pytest

from costproof.analytic.costs import LayerCosts, Size, find_layer, formula_docs, layer
from costproof.analytic.linear import Linear
from costproof.ledger.errors import BadInput
from costproof.ledger.node import CostNode


def test_a_layer_is_found_by_its_name() -> None:
    assert find_layer("linear") is Linear


def test_a_clash_names_both() -> None:
    with pytest.raises(BadInput, match="two layers have the same name") as caught:

        @layer
        class Other:
            name: ClassVar[str] = "linear"
            title: ClassVar[str] = ""
            source: ClassVar[str] = ""
            rows: Size

            def costs(self) -> LayerCosts:
                return LayerCosts()

    assert caught.value.expected == "the one of costproof.analytic.linear:Linear"
    assert "test_layer_names" in str(caught.value.got)


def test_an_unknown_layer_lists_the_known_ones() -> None:
    with pytest.raises(BadInput, match="no such layer") as caught:
        find_layer("linaer")
    assert "linear" in str(caught.value.expected)


def test_a_layer_of_ones_own_is_documented() -> None:
    @layer
    class Twice:
        """Twice the rows."""

        name: ClassVar[str] = "twice"
        title: ClassVar[str] = "Twice"
        source: ClassVar[str] = "hand"
        rows: Size

        def costs(self) -> LayerCosts:
            return LayerCosts(flops={"linear": 2 * self.rows})

    assert Twice(3).costs().flops == {"linear": 6}
    docs = formula_docs([CostNode("s", "", "m", "", {}, owner="twice")])
    assert docs["twice"].derivation == "Twice the rows."
