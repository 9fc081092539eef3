"""Errors that the benchmark plants into rules and accounting: each fits its function; the judge finds some of them."""

from __future__ import annotations

import importlib
import inspect

import pytest

from costproof.compare.compare import compare
from costproof.opgraph.rules.registry import registered
from tests.oracles.rule_mutations import Error, errors, judge, planted
from tests.oracles.rule_subjects import subjects


def test_every_error_fits_its_function_and_is_undone() -> None:
    registered()
    planted_ = errors()
    assert len(planted_) >= 60
    for error in planted_:
        module, _, name = error.where.partition(":")
        function = inspect.unwrap(getattr(importlib.import_module(f"costproof.{module}"), name))
        right = function.__code__
        with planted(error):
            assert function.__code__ != right, error.name
        assert function.__code__ is right


def test_an_error_that_does_not_fit_is_said() -> None:
    with (
        pytest.raises(SystemExit, match="occurs 0 times"),
        planted(Error("factor", "opgraph.rules.matmul:mac", "3", "4")),
    ):
        pass


@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_the_judge_alone_finds_errors_in_products_that_both_graph_sources_share() -> None:
    module = subjects()[-1]
    clean = module.capture()
    assert compare(clean).verdict == "exact"
    wanted = ("group counts", "GQA heads", "dilation", "wrong transpose", "complex")
    kinds = {e.kind: e for e in errors() if e.kind in wanted and "experts" not in e.where}
    assert kinds.keys() == set(wanted)
    for error in kinds.values():
        outcome = judge(module, clean, error)
        assert (outcome.there, outcome.judge) == (True, True), error.name
