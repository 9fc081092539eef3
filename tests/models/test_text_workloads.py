"""Workloads on text alone: presets, changes, and everything that is wrong at once."""

from __future__ import annotations

import pytest

from costproof.ledger.errors import BadInput
from costproof.ledger.workload import Workload
from costproof.models import causal
from costproof.models.causal_target import PRESETS
from costproof.models.settings import text_problems, text_workload


def test_a_preset_and_changes_of_it() -> None:
    assert text_workload(None, PRESETS) == Workload("chat", 512)
    assert text_workload("document", PRESETS, batch=None) == Workload("document", 8192)
    made = text_workload("chat", PRESETS, batch=3, attention="eager", new_tokens=7)
    assert made == Workload("custom", 512, 7, 3, attention="eager")


def test_there_is_no_such_preset() -> None:
    with pytest.raises(BadInput, match="no such workload") as caught:
        text_workload("chap", PRESETS)
    assert (caught.value.got, caught.value.fix) == ("chap", "did you mean chat?")


@pytest.mark.parametrize(
    ("workload", "where"),
    [
        (Workload("w", 0), "--text-tokens"),
        (Workload("w", 5, 0), "--new-tokens"),
        (Workload("w", 5, 1, 0), "--batch"),
        (Workload("w", 96, 5), "--text-tokens, --new-tokens"),
    ],
)
def test_what_keeps_a_model_from_a_run(workload: Workload, where: str) -> None:
    (problem,) = text_problems(workload, 100)
    assert isinstance(problem, BadInput)
    assert problem.where == where


def test_a_run_as_long_as_the_context() -> None:
    assert text_problems(Workload("w", 96, 4), 100) == []


def test_first_middle_and_last_step() -> None:
    assert causal.contexts(10, 7) == (10, 13, 16)
    assert causal.contexts(10, 2) == (10, 11)
    assert causal.contexts(10, 0) == ()
