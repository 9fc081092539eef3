"""Registered buffers: what the formulas of every family say is what the built model has, each buffer once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costproof.models.configured import Configured
from costproof.models.registry import TARGETS, load_target
from costproof.run.formulas import analytic_ledger

FAMILIES = [name for name, item in TARGETS.all().items() if not item.what.endswith("parameters")]


@pytest.mark.parametrize("name", FAMILIES)
def test_formulas_say_what_the_buffers_of_the_model_take(name: str) -> None:
    target: Any = load_target(name)
    assert isinstance(target, Configured)
    cut: Any = target.with_options(replace(target.options, layers=6))
    for dtype in ("bfloat16", "float32"):
        workload = cut.workload(dtype=dtype)
        unique = {id(b): b for b in cut.build(workload).buffers()}.values()
        assert analytic_ledger(cut, workload).total("buffer_bytes") == sum(b.numel() * b.element_size() for b in unique)
