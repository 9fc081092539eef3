"""Where a form that was read off a graph holds: windows, branches, roundings; and that its claims say so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from costproof.claims import claims_from_text, judge_claims
from costproof.claims.effects import Mistakes
from costproof.compare.proof.closed_form import closed_form, render
from costproof.ledger.errors import BadInput, Incomplete
from costproof.models.encoding import STAGE
from costproof.models.families.gemma3 import Gemma3, Gemma3Config
from costproof.models.generic.factories import Given
from costproof.models.generic.module import GenericTarget
from costproof.tracers.derive.closed import Derived, derive, fresh_flops
from costproof.tracers.derive.subject import subject


class Way(nn.Module):
    """6 to 6, once or twice by its sizes: 72 FLOPs a row each time."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.table, self.layer = way, nn.Embedding(11, 6), nn.Linear(6, 6)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[B, S] -> [B, S', 6]."""
        (batch, length), x = ids.shape, self.table(ids)
        if self.way == "float":
            return self.one(functional.interpolate(x.mT, scale_factor=1.5).mT)
        if self.way == "inexact":
            return self.one(functional.interpolate(x.mT, scale_factor=0.3).mT)
        if self.way == "single" and batch == 1:
            return self.one(self.one(x))
        if (self.way == "length" and length > 100) or (self.way == "rows" and batch * length > 400):
            return self.one(self.one(x))
        return self.one(x)

    def one(self, x: torch.Tensor) -> torch.Tensor:
        """The layer."""
        result: torch.Tensor = self.layer(x)
        return result


def derived(way: str) -> Derived:
    """The module at three texts of ten."""
    with torch.device("meta"):
        target = GenericTarget("way", Given("way", "way", Way(way), {"ids": torch.zeros(3, 10, dtype=torch.long)}))
        return derive(subject(target, STAGE))


@pytest.mark.parametrize(
    ("way", "said", "end"),
    [
        ("length", ["S <= 100"], {"S": 100}),
        ("rows", ["B*S <= 400"], {}),
        ("single", ["B >= 2"], {}),
        ("none", [], {}),
    ],
)
def test_a_branch_is_said_and_counted_at_its_end(way: str, said: list[str], end: dict[str, int]) -> None:
    found = derived(way)
    assert [limit.text for limit in found.holds] == said
    assert all(p.equal and p.derived == 72 * p.sizes["B"] * p.sizes["S"] for p in found.points)
    assert any(end.items() <= p.sizes.items() for p in found.points)
    if way in ("none", "single"):
        assert max(p.sizes["S"] for p in found.points) >= 500
    form = closed_form("way", found.nodes, {}, {}, found.holds)
    assert all(f"holds where {text}" in render(form, "text") for text in said)


def test_a_function_refuses_what_is_beyond() -> None:
    found = derived("length")
    names: dict[str, object] = {}
    exec(render(closed_form("way", found.nodes, {}, {}, found.holds), "python"), names)
    flops = names["way_flops"]
    assert callable(flops)
    assert flops(B=2, S=100) == 72 * 2 * 100
    with pytest.raises(ValueError, match="S <= 100"):
        flops(B=2, S=101)


def test_rounding_of_exact_products_and_of_others() -> None:
    found = derived("float")
    for point in found.points:
        assert point.derived == 72 * point.sizes["B"] * (3 * point.sizes["S"] // 2)
        assert point.equal
    with pytest.raises(Incomplete, match="no exact form"):
        derived("inexact")


def gemma_like(text_tokens: int) -> Derived:
    """A step after so many tokens: one layer sees a window of 20 keys."""
    usual = replace(
        Gemma3Config(), hidden=32, intermediate=48, layers=2, heads=4, kv_heads=2, head_dim=8, vocab=64, window=20,
        pattern="wf",
    )  # fmt: skip
    target = Gemma3(config=usual)
    asked = subject(target, "decode")
    found = derive(asked)
    made = asked.at({"B": 3, "P": text_tokens})
    assert made is not None
    counted, _ = fresh_flops(made.module, made.args)
    # Per row: q, o, k, v, the three of the MLP, in two layers; the head; 4 x 32 for each key seen.
    weights = 2 * 2 * (32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48) + 2 * 32 * 64
    keys = text_tokens + 1 + min(text_tokens + 1, 20)
    assert sum(counted.values()) == 3 * (weights + 4 * 32 * keys)
    return found


def test_a_filled_window_is_a_range() -> None:
    # 512 tokens fill the window of 20: the form is that of 19 others and more, and the model is another one at 10.
    for tokens in (10, 60):
        found = gemma_like(tokens)
        assert [limit.text for limit in found.holds] == ["P >= 19"]
        assert all(p.equal and p.sizes["P"] >= 19 for p in found.points)
        assert any(p.sizes["P"] == 19 for p in found.points)


def test_claims_are_not_held_against_other_workloads() -> None:
    from costproof import api

    text = (
        "costproof_claims: 1\nholds: ['P - 100']\nclaims:\n"
        "- {stage: decode, module: lm_head, flops: 2*B*N*text_hidden*text_vocab}\n"
    )
    claims = claims_from_text(text, where="f")
    for tokens, held in ((100, True), (99, False)):
        capture = api.capture("llama-3.1-8b", sources=("analytic",), text_tokens=tokens)
        if held:
            (judged,) = judge_claims(claims, capture, Mistakes(), truth="t").judgements
            assert judged.status == "right"
            continue
        with pytest.raises(BadInput, match="holds only at other workloads"):
            judge_claims(claims, capture, Mistakes(), truth="t")
