"""Operators of a forward, made again alone, or made without it."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from costproof.models.specs import Run
from costproof.tracers import replay
from costproof.tracers.replay import ReplayedCall, predict_operators, replay_operators


class Two(nn.Module):
    """Two equal products and a look-up in one stage, a mask in another."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.first = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False))
        self.last = nn.Softmax(-1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.first(self.table(tokens))
        result: torch.Tensor = self.last(x.masked_fill(tokens[:, None] > 3, 0.0))
        return result


def run() -> Run:
    def locate(path: str, call: int) -> tuple[str, str]:
        return ("first", "") if path.startswith("first") else ("rest", "")

    return Run("once", Two(), {"tokens": torch.tensor([6, 0, 5, 2])}, locate)


def found() -> dict[tuple[str, str], ReplayedCall]:
    return {(r.module, r.operator): r for r in replay_operators(run(), 3)}


def test_distinct_calls_by_stage_and_module() -> None:
    seen = found()
    # Two products of the same form are one call that is made twice; each has a weight of its own.
    first, second = seen["first.0", "aten.mm.default"], seen["first.1", "aten.mm.default"]
    assert (first.calls, first.shapes, first.alone and len(first.alone.runs)) == (1, ((4, 6), (6, 6)), 3)
    assert (first.stage, first.alone, second.shapes) == (("first", ""), second.alone, first.shapes)
    table, last, root = (seen[name] for name in (
        ("table", "aten.embedding.default"), ("last", "aten._softmax.default"), ("", "aten.masked_fill.Scalar"),
    ))  # fmt: skip
    assert (table.shapes, last.calls, root.calls) == (((7, 6), (4,)), 1, 1)
    assert {r.stage for r in (table, last, root)} == {("rest", "")}
    assert all(t > 0 for r in seen.values() for t in (r.alone.runs if r.alone else (0,)))


def test_nothing_is_left_behind() -> None:
    one = run()
    before, numbers = [p.clone() for p in one.model.parameters()], torch.get_rng_state()
    replay_operators(one, 1)
    assert torch.equal(numbers, torch.get_rng_state())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in one.model.modules())
    assert all(torch.equal(a, b) for a, b in zip(before, one.model.parameters(), strict=True))


def test_operators_that_write_into_their_inputs_leave_weights_alone() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight).add_(1).mul_(2)

    one = Run("once", InPlace(), {"x": torch.zeros(3)}, lambda path, call: ("rest", ""))
    names = {r.operator for r in replay_operators(one, 2)}
    assert {"aten.mul.Tensor", "aten.add_.Tensor", "aten.mul_.Tensor"} <= names
    assert torch.equal(one.model.get_parameter("weight"), torch.ones(3))


def test_indices_are_those_that_the_operator_had() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(3, 2)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.table(tokens)
            tokens.add_(100)  # beyond the table, if it were looked up again
            return result

    one = Run("once", Counts(), {"tokens": torch.tensor([2, 1])}, lambda path, call: ("rest", ""))
    assert "aten.embedding.default" in {r.operator for r in replay_operators(one, 1)}


def on_meta(model: nn.Module, **kwargs: torch.Tensor) -> Run:
    return Run("once", model.to("meta"), {k: v.to("meta") for k, v in kwargs.items()}, run().locate)


def test_a_forward_that_never_ran() -> None:
    ran = {(r.stage, r.module, r.operator, r.shapes, r.calls) for r in replay_operators(run(), 1)}
    runs = [on_meta(Two(), tokens=torch.tensor([6, 0, 5, 2]))]
    found = predict_operators([*runs, replace(runs[0], id="again")], "cpu", 3)
    assert found["once"] == found["again"]  # the same calls, made once
    assert {(r.stage, r.module, r.operator, r.shapes, r.calls) for r in found["once"]} == ran
    assert all(r.alone is not None and len(r.alone.runs) == 3 and r.why == "" for r in found["once"])


def test_an_operator_that_cannot_be_made_is_named() -> None:
    class Odd(nn.Module):
        """What it looks up, only it knows: the table has no row for it."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(0, 2))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = nn.functional.embedding(tokens, self.table) + 1
            return result

    found = {r.operator: r for r in predict_operators([on_meta(Odd(), tokens=torch.tensor([0]))], "cpu", 1)["once"]}
    assert found["aten.embedding.default"].alone is None
    assert "index" in found["aten.embedding.default"].why
    assert found["aten.add.Tensor"].alone is not None


def test_what_is_larger_than_the_memory_is_not_made() -> None:
    wide = nn.Linear(2**22, 2**22, bias=False, device="meta")  # 64 TiB
    found = {r.operator: r for r in predict_operators([on_meta(wide, input=torch.ones(1, 2**22))], "cpu", 1)["once"]}
    product = found["aten.mm.default"]
    # The weights, and a row in and out, of 4 bytes each.
    assert product.alone is None
    assert product.why.startswith(f"it takes {4 * (2**44 + 2 * 2**22):,} bytes, more than four fifths of the ")


def test_only_one_calls_tensors_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    before: list[weakref.ref[torch.Tensor]] = []
    bound = replay._bind_tensors

    def watched(*args: Any) -> Any:
        assert not any(held() is not None for held in before)
        one: Any = bound(*args)
        before[:] = [weakref.ref(given) for given in one.args if isinstance(given, torch.Tensor)]
        return one

    monkeypatch.setattr(replay, "_bind_tensors", watched)
    found = predict_operators([on_meta(Two(), tokens=torch.tensor([6, 0, 5, 2]))], "cpu", 3)["once"]
    assert {call.why for call in found} == {""}
