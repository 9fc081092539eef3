"""Attributes of objects that refuse to be read."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

from costproof.ledger.attributes import attribute, has_attribute, own_attributes
from costproof.tracers.fingerprint import _Serializer


class Slotted:
    """Has an empty slot, and one that is filled."""

    __slots__ = ("empty", "filled")

    def __init__(self) -> None:
        self.filled = 1


def test_a_configuration_whose_layers_differ() -> None:
    """As every published Gemma 4: two widths of heads. Reading the one of the whole raises a RuntimeError."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8, "global_head_dim": 16}
    config: Any = AutoConfig.for_model("gemma4_text", **sizes, layer_types=["sliding_attention", "full_attention"])
    raised = False
    try:
        hasattr(config, "head_dim")
    except RuntimeError:
        raised = True
    assert raised
    assert attribute(config, "head_dim", 5) == 5
    assert not has_attribute(config, "head_dim")
    assert dict(own_attributes(config, ["head_dim", "hidden_size", "none"])) == {"head_dim": 8, "hidden_size": 32}
    assert "head_dim" in str(_Serializer()(config))


def test_slots_are_read_where_they_are_filled() -> None:
    assert dict(own_attributes(Slotted(), ["empty", "filled"])) == {"filled": 1}
