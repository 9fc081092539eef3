"""What counters need around a model is made and undone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from costproof.patches.patch import patched
from costproof.patches.tensor import JIT_ON_META
from costproof.tracers.counters.protocol import COUNTERS
from costproof.tracers.counters.tools import own_rows, positional


def test_a_convolution_traced_on_meta_is_that_of_the_cpu() -> None:
    totals = set()
    for device in ("meta", "cpu"):
        conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, device=device)
        model, args = positional(conv, {"input": torch.zeros(1, 3, 8, 8, device=device)})
        totals.add(COUNTERS.load("fvcore").count(model, args).total)
    assert totals == {16 * 4 * 3 * 9}


def test_surroundings_are_undone() -> None:
    before = torch._check, nn.functional.conv2d
    with pytest.raises(KeyboardInterrupt), patched(*JIT_ON_META):
        raise KeyboardInterrupt
    assert (torch._check, nn.functional.conv2d) == before


def test_a_figure_without_those_below() -> None:
    """The root does 3 by itself; `a` is a list without figures of its own, so `a.0` belongs to the root."""
    figures = {
        "inner": {"mm": 20}, "inner.a.0": {"mm": 7, "conv": 2}, "inner.a.0.b": {"mm": 5}, "inner.c": {"mm": 10},
    }  # fmt: skip
    assert [(row.module, row.kind, row.value) for row in own_rows(figures)] == [
        ("", "mm", 20 - 7 - 10), ("a.0", "mm", 7 - 5), ("a.0", "conv", 2), ("a.0.b", "mm", 5), ("c", "mm", 10),
    ]  # fmt: skip
