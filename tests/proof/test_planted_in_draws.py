"""Mistakes in a field that every published model has alike: a draw of a proof shows each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import sympy

from costproof.analytic import compose, elementwise
from costproof.analytic.costs import costs_of
from costproof.analytic.feed_forward import ExpertMixture
from costproof.models.decoding import formulas as dense
from costproof.models.proof import Piece, WithProof
from costproof.run.proof_pieces import carry_out_piece
from tests.recorded import families

FAMILIES = families()


def smallest(family: str, fits: Callable[[Any], bool]) -> Piece[Any]:
    """Return the smallest draw of a proof as it is by default that fits."""
    target = FAMILIES[family]
    assert isinstance(target, WithProof)
    drawn = [p for p in target.proof(64, 1).pieces if p.phase == "draws" and fits(p)]
    return min(drawn, key=lambda p: sum(p.target.info().symbols.values()))


@pytest.fixture(autouse=True)
def no_formula_is_kept() -> Iterator[None]:
    """Formulas are computed once for equal layers; a planted mistake must be seen, and no later test see it."""
    costs_of.cache_clear()
    compose._module_costs.cache_clear()
    yield
    costs_of.cache_clear()
    compose._module_costs.cache_clear()


def test_an_inner_width_that_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding to 8 is right in every published mixture, and wherever experts are grouped GEMMs."""
    piece = smallest("mixtral", lambda p: p.workload.experts == "batched_mm" and p.target.config.intermediate % 8)

    def rounded(**fields: Any) -> ExpertMixture:
        return ExpertMixture(**{**fields, "inner": 8 * sympy.ceiling(fields["inner"] / 8)})

    monkeypatch.setattr(dense, "ExpertMixture", rounded)
    found = carry_out_piece(replace(piece, stages=("prefill",))).counterexamples
    assert {"flops", "params", "weight_bytes"} <= {c.metric for c in found}


@pytest.mark.parametrize("function", ["tanh", "sigmoid", "swish", "gelu_new"])
def test_what_an_activation_costs(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    piece = smallest("vit", lambda p: p.target.config.activation == function)
    monkeypatch.setitem(elementwise.ACTIVATION_FLOPS, function, elementwise.ACTIVATION_FLOPS[function] + 1)
    found = carry_out_piece(piece).counterexamples
    assert {c.metric for c in found} == {"vector_flops"}
    assert any(c.module.endswith("activation_fn") for c in found)
