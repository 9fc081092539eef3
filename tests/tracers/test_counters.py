"""What counters need around a model is made and undone; their names have one owner."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import torch
from torch import nn

from costproof.ledger.errors import BadInput
from costproof.tracers.counters.registry import counter, counters
from costproof.tracers.counters.surroundings import jit_on_meta, positional


def test_a_convolution_traced_on_meta_is_that_of_the_cpu() -> None:
    totals = set()
    for device in ("meta", "cpu"):
        conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, device=device)
        model, args = positional(conv, {"input": torch.zeros(1, 3, 8, 8, device=device)})
        totals.add(counter("fvcore").count(model, args).total)
    assert totals == {16 * 4 * 3 * 9}


def test_surroundings_are_undone() -> None:
    before = torch._check, nn.functional.conv2d
    with pytest.raises(KeyboardInterrupt), jit_on_meta():
        raise KeyboardInterrupt
    assert (torch._check, nn.functional.conv2d) == before


def test_a_name_with_two_owners() -> None:
    with pytest.raises(BadInput, match="same counter") as error:
        counters([EntryPoint("fvcore", "mine:COUNTER", "costproof.counters")])
    assert error.value.got == "costproof and mine:COUNTER"
