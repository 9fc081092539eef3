"""A proof counts every decode step of some runs, so that the sum over steps is not taken on trust."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from costproof.algebra import series
from costproof.analytic.attention import Attention
from costproof.models.proof import Piece, Provable, WithProof
from costproof.models.registry import load_target
from costproof.patches import flash_attention
from costproof.patches.flash_attention import FLASH
from costproof.run.proof import RUN_STEPS, with_runs
from costproof.run.proof_pieces import carry_out_piece
from costproof.tracers.equal_layers import count_every_step
from tests.support.planted import planted
from tests.tracers.realistic import small_ocr
from tests.tracers.small import PAGE


def test_every_step_is_run_and_added() -> None:
    ledger = count_every_step(small_ocr(), replace(PAGE, new_tokens=3, inputs={}), "static")
    # Text alone: 7 tokens, then contexts 7, 8, 9, each with its own token: 8 + 9 + 10 keys of 5 heads, 16 + 16 wide.
    flops = {n.module: n.costs["flops"] for n in ledger.nodes if n.stage == "decode" and "flops" in n.costs}
    attention = "model.language_model.layers.0.self_attn"
    assert flops[attention] == 2 * 5 * (8 + 9 + 10) * (16 + 16)
    assert flops["lm_head"] == 3 * 2 * 80 * 96
    # Keys and values of 5 heads of 16 in 2 bytes: 7 tokens of the prompt, one in each step.
    grown = {(n.stage, n.module): n.costs["kv_cache_bytes"] for n in ledger.nodes if "kv_cache_bytes" in n.costs}
    assert grown["prefill", attention] == 7 * 2 * 5 * 16 * 2
    assert grown["decode", attention] == 3 * 2 * 5 * 16 * 2


@pytest.mark.skipif(bool(flash_attention.missing()), reason="draws take FlashAttention where its package is")
def test_a_proof_has_runs_of_more_than_two_steps() -> None:
    proof = with_runs(small_ocr().proof(4, 1, sides="64"))
    runs = [p for p in proof.pieces if p.phase == "runs"]
    assert [p.workload.new_tokens for p in runs] == [3, 2, 5]
    assert [p.target for p in runs] == [
        p.target for p in proof.pieces if p.phase == "draws" and p.workload.attention != FLASH
    ]
    assert sorted(set(RUN_STEPS))[:3] == [2, 3, 4]
    assert RUN_STEPS[0] > 2


def test_what_has_no_steps_has_no_runs() -> None:
    target = load_target("vit")
    assert isinstance(target, WithProof)
    assert [p.id for p in with_runs(target.proof(3, 1)).pieces if p.phase == "runs"] == []


def in_runs() -> Piece[Provable]:
    target = small_ocr()
    return cast(Piece[Provable], Piece("runs: text", "runs", target, replace(PAGE, new_tokens=4, inputs={})))


def test_a_wrong_sum_over_steps_is_refuted_though_formula_and_graph_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert carry_out_piece(in_runs()).counterexamples == ()
    right = series._faulhaber

    def one_step_too_many(j: int) -> object:
        return right(j).subs(series.STEPS, series.STEPS + 1)

    monkeypatch.setattr(series, "_faulhaber", one_step_too_many)
    series.sum_over_steps.cache_clear()
    try:
        with planted(Attention, lambda layer: layer):  # no mistake there, but formulas that are kept begin anew
            found = carry_out_piece(in_runs()).counterexamples
    finally:
        series.sum_over_steps.cache_clear()
    # Four steps after 7 tokens: 8 + 9 + 10 + 11 keys; with a fifth 12 more, in each of 2 layers.
    (attention,) = [c for c in found if (c.stage, c.kind, c.metric) == ("decode", "attention", "flops")]
    assert attention.module == "model.language_model.layers.[0-1].self_attn"
    assert attention.difference == str(2 * 5 * 12 * (16 + 16))
