"""The registry of layers."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from costproof.analytic import registry
from costproof.analytic.linear import Linear
from costproof.analytic.registry import ENTRY_POINT_GROUP, LAYERS, LayerRegistry
from costproof.ledger.errors import BadInput


def test_layers_are_found_by_name() -> None:
    assert LAYERS.get("linear") is Linear
    assert LAYERS.owner("linear") == "costproof"
    assert all(LAYERS.get(name).name == name for name in LAYERS.names())


def test_a_clash_names_both_owners() -> None:
    layers = LayerRegistry()
    layers.register("linear", lambda: Linear, owner="costproof")
    with pytest.raises(BadInput) as caught:
        layers.register("linear", lambda: Linear, owner="other-package")
    assert str(caught.value) == (
        "two layers have the same name\n"
        "  where:    layer 'linear'\n"
        "  expected: the one of costproof\n"
        "  got:      another one of other-package\n"
        "  fix:      rename one of them"
    )


def test_an_unknown_layer_lists_the_known_ones() -> None:
    layers = LayerRegistry()
    layers.register("linear", lambda: Linear, owner="costproof")
    with pytest.raises(BadInput, match="no such layer") as caught:
        layers.get("linaer")
    assert caught.value.expected == "one of linear"


def test_other_distributions_add_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "costproof.analytic.linear:Linear", ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == ENTRY_POINT_GROUP else [])
    layers = LayerRegistry()
    assert layers.names() == ("mine",)
    assert layers.get("mine") is Linear
    assert layers.owner("mine") == "costproof.analytic.linear:Linear"


def test_a_layer_is_loaded_only_when_asked_for() -> None:
    def fail() -> type[Linear]:
        raise AssertionError("loaded too early")

    layers = LayerRegistry()
    layers.register("late", fail, owner="test")
    assert "late" in layers.names()
