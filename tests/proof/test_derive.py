"""Closed forms of models that have no formulas here, checked by hand and against runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from costproof.compare.proof.closed_form import closed_form
from costproof.ledger.errors import BadInput, Incomplete
from costproof.models.encoding import STAGE
from costproof.models.generic.factories import Given
from costproof.models.generic.huggingface import HuggingFace, numbers
from costproof.models.generic.module import GenericTarget
from costproof.models.specs import ExportJob, SymbolicSize
from costproof.tracers.derive import closed as fresh_module
from costproof.tracers.derive.closed import derive, fresh_flops
from costproof.tracers.derive.subject import Subject, of_tokens
from costproof.tracers.derive.subject import subject as subject_of
from tests.support.running import costproof

LLAMA = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip


class Two(nn.Module):
    """Two linear layers on [B, 6]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 10), nn.Linear(10, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 6] -> [B, 5]."""
        result: torch.Tensor = self.second(self.first(x).relu())
        return result

    def example_inputs(self) -> dict[str, torch.Tensor]:
        """On meta."""
        return {"x": torch.empty(3, 6, device="meta")}


def of_module(model: nn.Module, name: str) -> Subject:
    """The whole module as a subject."""
    own = getattr(model, "example_inputs", None)
    return subject_of(GenericTarget(name, Given(name, name, model, own and own())), STAGE)


def of_config(data: dict[str, Any]) -> GenericTarget:
    """A configuration without a family."""
    made = HuggingFace(json.dumps(data), "here")
    return GenericTarget(made.name, made)


def two() -> Two:
    """The module on meta."""
    with torch.device("meta"):
        return Two().eval()


def test_two_layers() -> None:
    subject = of_module(two(), "two")
    found = derive(subject)
    assert closed_form("two", found.nodes, {}).total == "220*B"  # 2 (6 10 + 10 5)
    assert len(found.points) == 5
    assert all(p.equal and p.derived == 220 * p.sizes["B"] for p in found.points)
    assert found.holds == ()


def test_grouped_query_attention() -> None:
    found = derive(subject_of(of_config(LLAMA), "prefill"), points=1)
    # Per layer and token: q and o 2*32*32 each, k and v 2*32*16 each, three of 2*32*48; scores and values 2*2*S*32;
    # and the head, 2*32*64 a token.
    per_token = 2 * (2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)) + 2 * 32 * 64
    form = closed_form("llama", found.nodes, {})
    assert form.total == f"256*B*S*(S + {per_token // 256})"
    assert 2 * 4 * 32 == 256
    assert all(p.equal for p in found.points)


def test_a_wrong_formula_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = of_module(two(), "two")
    other = replace(subject.job, args={"x": torch.empty(2, 6, device="meta")})
    monkeypatch.setattr("costproof.tracers.derive.closed.with_sizes", lambda made, sizes: other)
    (point,) = derive(subject, points=1).points
    assert not point.equal or point.sizes["B"] == 2


def test_hooks_are_gone_after_an_exception() -> None:
    model = two()
    with pytest.raises(RuntimeError):
        fresh_flops(model, {"x": torch.empty(3, 7, device="meta")})
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in model.modules())


class Looks(nn.Module):
    """A linear layer that runs twice where the positions are more than 3, which it finds out from values."""

    def __init__(self, *, asks_input: bool) -> None:
        super().__init__()
        self.asks_input, self.layer = asks_input, nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, S, 6] -> the same."""
        positions = torch.arange(x.shape[1], device=x.device)
        many = (x.long() if self.asks_input else positions).max() > 2
        result: torch.Tensor = self.layer(self.layer(x)) if many else self.layer(x)
        return result


def test_values_that_follow_from_shapes_are_known() -> None:
    with torch.device("meta"):
        model, blind = Looks(asks_input=False), Looks(asks_input=True)
    for length, runs in ((3, 1), (4, 2)):
        flops, unknown = fresh_module._count_forward(model, {"x": torch.empty(5, length, 6, device="meta")})
        assert (flops, unknown) == ({"layer": runs * 2 * 5 * length * 6 * 6}, {})
    with pytest.raises(RuntimeError, match="meta"):
        fresh_module._count_forward(blind, {"x": torch.empty(5, 4, 6, device="meta")})


def test_a_loop_over_a_size_is_named() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            x = input_ids.float()[..., None].expand(-1, -1, 6)
            return torch.stack([self.layer(x[:, i]) for i in range(x.shape[1])])

    with torch.device("meta"):
        model = Loop().eval()
    with pytest.raises(Incomplete, match=r"fixes dimension 1 of input_ids \(here 37\): a Python loop"):
        derive(of_module(model, "loop"))


def test_what_cannot_be_derived_says_why() -> None:
    class Odd(nn.Module):
        def forward(self, anything: torch.Tensor) -> torch.Tensor:
            return anything

    with pytest.raises(Incomplete, match="inputs of this model are not known"):
        of_module(Odd(), "odd")
    with pytest.raises(BadInput, match="cannot read this configuration"):
        of_config({"model_type": "no such model"}).info()


def test_numbers_of_a_configuration() -> None:
    data = {"a": 3, "b": {"c": 4, "d": True}, "e": 1, "bos_token_id": 7, "f": "x"}
    assert numbers(data) == {"a": 3, "b_c": 4}


def test_names_are_for_tokens() -> None:
    # [B, S, 6] has one width; an image of 8 x 8 a number of positions, and so has a spectrum of fixed length.
    def job(*shape: int, symbolic: int) -> ExportJob:
        sizes = [SymbolicSize(("x",), dim, name) for dim, name in zip(range(symbolic), ("B", "S"), strict=False)]
        return ExportJob("j", "s", ("i",), two(), {"": ""}, {"x": torch.empty(shape, device="meta")}, sizes)

    assert of_tokens(job(3, 37, symbolic=2))
    assert of_tokens(job(3, 37, 6, symbolic=2))
    assert not of_tokens(job(3, 3, 8, 8, symbolic=1))
    assert not of_tokens(job(3, 80, 100, symbolic=1))


def test_the_side_of_a_view_is_a_symbol(tmp_path: Path) -> None:
    found = costproof("derive", "deepseek-ocr", "projector", "--points", "1", cwd=tmp_path)
    # 2 (1024 + 1024) 1280 for each of (H/64)**2 positions.
    assert found.stdout.splitlines()[3] == f"total = {2 * 2048 * 1280 // 64**2}*H**2*n"
    # The drawn side, and the least one.
    assert found.stderr.splitlines()[-1] == "checked: equal to a fresh count at 2 of 2 points"
