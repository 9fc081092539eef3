"""Proofs over meshes: ranks in symbols, random configurations on random meshes, sums over ranks, planted mistakes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from costproof.compare.proof.judge import Answer
from costproof.ledger.errors import BadInput, Problems
from costproof.models.decoding.sharding import Shards
from costproof.models.proof import Proof
from costproof.models.registry import TARGETS, load_target
from costproof.run.proof_pieces import carry_out_piece

SMALL: dict[str, Any] = {
    "hidden": 64, "intermediate": 96, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 102,
}  # fmt: skip


def proof(family: str = "llama", samples: int = 0, **mesh: Any) -> Proof:
    target: Any = load_target(family)
    return cast(Proof, replace(target, config=replace(target.config, **SMALL)).proof(samples, 1, **mesh))


def answers(made: Proof, phase: str) -> list[Answer]:
    return [carry_out_piece(piece) for piece in made.pieces if piece.phase == phase]


def test_uneven_ranks_are_claimed_each_and_sum_to_one_device() -> None:
    """Of 102 entries four ranks have 26, 26, 26 and 24: two kinds of ranks."""
    made = proof(tp=4)
    assert [p.workload.rank for p in made.pieces if p.phase == "identities"] == [0, 3, 0]
    first, *_ = answers(made, "ranks")
    assert first.counterexamples == ()
    claims = {(c.stage, c.metric): c for c in first.claims if c.method == "identity of ranks"}
    # 2 layers, q and o 64 x 64, k and v 64 x 32 on two ranks each (twice), gate, up and down 64 x 96; tables of 102.
    layer = 2 * 64 * 64 + 2 * (2 * 64 * 32) + 3 * 64 * 96 + 4 * 2 * 64
    assert claims["prefill", "params"].formula == str(2 * layer + 2 * 102 * 64 + 4 * 64)
    assert claims["prefill", "kv_cache_bytes"].formula == "512*B*S"  # 2 layers x 2 x 2 heads x 16 x 2 bytes, twice


def test_random_configurations_equal_their_graphs() -> None:
    made = proof(samples=2, tp=2, dp=2)
    assert made.settings.chosen == {"tp": "2", "dp": "2"}
    found = [*answers(made, "draws"), *(a for a in answers(made, "ranks") if not a.claims)]
    assert len(found) == 4
    assert not any(a.counterexamples for a in found)


def test_a_planted_copy_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shards, "held_by", lambda self, role, metric: (1, ""))
    (wrong, *_) = answers(proof(tp=4), "ranks")
    assert {c.metric for c in wrong.counterexamples} >= {"params", "kv_cache_bytes"}


def test_a_planted_replica_is_refuted_in_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shards, "copies_of_batches", lambda self, role, metric: 1)
    (wrong, *_) = answers(proof(dp=2), "ranks")
    assert {c.metric for c in wrong.counterexamples if c.module == "all ranks"} >= {"params", "weight_bytes"}


def test_a_mesh_that_does_not_fit_is_refused() -> None:
    with pytest.raises(Problems, match="cannot be run"):
        proof(tp=3)
    with pytest.raises(BadInput, match="no such plan"):
        proof(tp=2, plan="vlm")


def test_a_certificate_repeats_its_mesh() -> None:
    made = proof(samples=1, tp=2, plan="vllm")
    factory: Any = TARGETS.load("llama")
    config = json.dumps(json.loads(made.settings.config))
    again = factory.from_normalised(config).proof(1, 1, **made.settings.chosen)
    assert [p.id for p in again.pieces] == [p.id for p in made.pieces]
    assert again.usual == made.usual
