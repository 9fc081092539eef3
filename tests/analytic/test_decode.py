"""Sums over decode steps against adding the steps up."""

from __future__ import annotations

from typing import get_args

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from costproof.algebra.evaluation import evaluate
from costproof.algebra.series import sum_over_steps
from costproof.algebra.symbols import sym
from costproof.ledger.errors import BadInput
from costproof.ledger.metrics import METRICS
from costproof.ledger.workload import AttentionKind
from costproof.models.pages.formulas import PageStructure
from tests.analytic.published import counted

P, N, B = sym("P"), sym("N"), sym("B")


@given(
    coefficients=st.lists(st.integers(-9, 9), min_size=1, max_size=6),
    context=st.integers(1, 50),
    steps=st.integers(1, 30),
)
@settings(max_examples=60)
def test_closed_form_is_the_sum(coefficients: list[int], context: int, steps: int) -> None:
    expr = sum((c * P**k for k, c in enumerate(coefficients)), sympy.Integer(0))
    by_adding = sum(sum(c * (context + i) ** k for k, c in enumerate(coefficients)) for i in range(steps))
    assert evaluate(sum_over_steps(expr), {"P": context, "N": steps}) == by_adding


def test_coefficients_may_be_anything_without_the_context() -> None:
    expr = sympy.Min(64, 6 * B) * P + sympy.Min(3, B)
    # Min(64, 12) * (5 + 6 + 7) + 3 * 2 at B = 2
    assert evaluate(sum_over_steps(expr), {"P": 5, "N": 3, "B": 2}) == 12 * 18 + 3 * 2


@given(most=st.integers(1, 40), ahead=st.integers(0, 3), context=st.integers(1, 30), steps=st.integers(1, 30))
@settings(max_examples=60)
def test_what_grows_until_it_is_full_has_a_closed_form(most: int, ahead: int, context: int, steps: int) -> None:
    expr = 3 * B * sympy.Min(sym("m"), P + ahead) + P
    by_adding = sum(3 * 2 * min(most, context + i + ahead) + context + i for i in range(steps))
    assert evaluate(sum_over_steps(expr), {"P": context, "N": steps, "B": 2, "m": most}) == by_adding


@pytest.mark.parametrize(
    "expr",
    [1 / P, sympy.Max(P, 8), sympy.Min(2 * P, 8), P * sympy.Min(P, 8), sympy.ceiling(P / 2), 2**P, P * sympy.Max(P, B)],
)
def test_what_is_no_polynomial_is_refused(expr: sympy.Expr) -> None:
    with pytest.raises(BadInput, match="no closed sum over the steps"):
        sum_over_steps(expr)


def test_a_cost_per_step_must_not_contain_the_steps() -> None:
    with pytest.raises(BadInput, match="number of steps"):
        sum_over_steps(N * P)


@pytest.mark.parametrize("attention", get_args(AttentionKind))
def test_decode_is_the_sum_of_single_steps(attention: AttentionKind) -> None:
    structure = PageStructure(attention=attention, text_layers=2)
    together = counted(structure, context=100, steps=4, batch=2)
    singly = [counted(structure, context=100 + i, steps=1, batch=2) for i in range(4)]
    for metric, info in METRICS.items():
        if not info.stage_wide and metric != "unpacking_flops":  # which the format of a checkpoint adds later
            parts = [s.stage_total("decode", metric) for s in singly]
            total = None if None in parts else sum(p for p in parts if p is not None)
            assert together.stage_total("decode", metric) == total, metric
