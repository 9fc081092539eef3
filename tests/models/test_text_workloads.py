"""Workloads on text alone: presets, changes, and everything that is wrong at once."""

from __future__ import annotations

from typing import Any

import pytest

from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.workload import Workload
from costproof.models.decoding.exports import contexts
from costproof.models.families.llama import Llama, LlamaConfig


def test_a_preset_and_changes_of_it() -> None:
    target = Llama()
    assert target.workload() == Workload("chat", 512)
    assert target.workload("document", batch=None) == Workload("document", 8192)
    made = target.workload("chat", batch=3, attention="eager", new_tokens=7)
    assert made == Workload("custom", 512, 7, 3, attention="eager")


def test_a_preset_that_ranks_share_keeps_its_name() -> None:
    """What is run is that of the preset, however many devices run it; another batch on them is another run."""
    for mesh in ({"tp": 2}, {"tp": 2, "rank": 1}, {"dp": 1}, {"tp": 2, "plan": "vllm"}, {"cp": 2, "cp_plan": "ring"}):
        made = Llama().workload("document", **mesh)
        assert (made.name, made.text_tokens) == ("document", 8192)
    assert Llama().workload(tp=2).name == "chat"
    assert Llama().workload(tp=2, dp=2, batch=2).name == "custom"


def test_there_is_no_such_preset() -> None:
    with pytest.raises(BadInput, match="no such workload") as caught:
        Llama().workload("chap")
    assert (caught.value.got, caught.value.fix) == ("chap", "did you mean chat?")


def test_settings_that_do_not_exist_are_told_at_once() -> None:
    with pytest.raises(Problems) as caught:
        Llama().workload(grid="2x2", attention="flex_attention")
    assert [(p.what, p.where) for p in caught.value.problems] == [
        ("no such setting", "--grid"),
        ("invalid choice", "--attention"),
    ]


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"text_tokens": 0}, "--text-tokens"),
        ({"text_tokens": 5, "new_tokens": -1}, "--new-tokens"),
        ({"text_tokens": 5, "batch": 0}, "--batch"),
        ({"text_tokens": 96, "new_tokens": 5}, "--text-tokens, --seq-len, --new-tokens"),
    ],
)
def test_what_keeps_a_model_from_a_run(settings: dict[str, Any], where: str) -> None:
    target = Llama(LlamaConfig(max_positions=100))
    with pytest.raises(Problems) as caught:
        target.check(target.workload(**settings))
    assert [p.where for p in caught.value.problems] == [where]


def test_a_run_as_long_as_the_context() -> None:
    target = Llama(LlamaConfig(max_positions=100))
    target.check(target.workload(text_tokens=96, new_tokens=4))


def test_first_middle_and_last_step() -> None:
    assert contexts(Workload("w", 10, 7), 10) == (10, 13, 16)
    assert contexts(Workload("w", 10, 2), 10) == (10, 11)
    assert contexts(Workload("w", 10, 0), 10) == ()
