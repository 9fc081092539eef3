"""Proofs over meshes: ranks in symbols, random configurations on random meshes, sums over ranks, planted mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, cast

import pytest

from costproof.analytic import collectives, compose, shared_sequence
from costproof.analytic.costs import LayerCosts, costs_of
from costproof.compare.proof.judge import Answer
from costproof.ledger.errors import BadInput, Problems
from costproof.models.decoding.copies import RankCopies
from costproof.models.proof import Proof
from costproof.models.registry import TARGETS, load_target
from costproof.run.proof_pieces import carry_out_piece
from tests.tracers.test_ranks import but_thorough

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
    monkeypatch.setattr(RankCopies, "held_by", lambda self, role, metric: (1, ""))
    (wrong, *_) = answers(proof(tp=4), "ranks")
    assert {c.metric for c in wrong.counterexamples} >= {"params", "kv_cache_bytes"}


def test_a_planted_replica_is_refuted_in_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RankCopies, "copies_of_batches", lambda self, role, metric: 1)
    (wrong, *_) = answers(proof(dp=2), "ranks")
    assert {c.metric for c in wrong.counterexamples if c.module == "all ranks"} >= {"params", "weight_bytes"}


@pytest.fixture
def uncached() -> Iterator[Callable[[], None]]:
    """Clear the memoized costs of layers, now and after the test."""

    def clear() -> None:
        costs_of.cache_clear()
        compose._module_costs.cache_clear()

    yield clear
    clear()


SHARED: Final = {
    "ring": ("llama", {"cp": 2, "cp_plan": "ring"}, shared_sequence.RingAttention),
    "zigzag": ("llama", {"cp": 2, "tp": 2}, shared_sequence.RingAttention),
    "ulysses": ("llama", {"cp": 2, "cp_plan": "ulysses"}, shared_sequence.UlyssesAttention),
    "gathers": ("llama", {"fsdp": 2, "cp": 2}, collectives.GatheredParameters),
    "pairs": ("qwen3-moe", {"ep": 2, "dp": 2, "dispatch": "all-to-all"}, collectives.ExchangedPairs),
    "slices": ("qwen3-moe", {"ep": 2, "tp": 2, "dispatch": "all-to-all"}, collectives.ExchangedPairs),
}


IMPLIED: Final = {"ring"}
"""Zigzag is a ring too, and has ``tp`` beside."""


@pytest.mark.parametrize(("family", "mesh", "layer"), but_thorough(SHARED, IMPLIED))
def test_exchanges_are_claimed_and_a_wrong_one_is_refuted(
    family: str, mesh: dict[str, Any], layer: Any, monkeypatch: pytest.MonkeyPatch, uncached: Callable[[], None]
) -> None:
    made = proof(family, **mesh)
    assert made.settings.chosen == {name: str(value) for name, value in mesh.items()}
    first = replace(next(p for p in made.pieces if p.phase == "identities"), stages=("prefill",))
    right = carry_out_piece(first)
    assert right.counterexamples == ()
    assert {"comm_bytes", "comm_payload_bytes", "messages"} <= {c.metric for c in right.claims}
    assert all(a.claims and not a.counterexamples for a in answers(made, "ranks"))

    def wrong(self: Any) -> LayerCosts:
        """Send to one more rank than there are others."""
        found: LayerCosts = costs(self)
        more = self.ranks / (self.ranks - 1)
        return replace(
            found, exchanges={k: replace(x, sent_bytes=x.sent_bytes * more) for k, x in found.exchanges.items()}
        )

    costs = layer.costs
    monkeypatch.setattr(layer, "costs", wrong)
    uncached()
    assert {c.metric for c in carry_out_piece(first).counterexamples} == {"comm_bytes"}


@pytest.mark.parametrize(
    ("mesh", "method", "planted", "metric"),
    [
        ({"cp": 2}, "along_sequence", (0, ""), "flops"),
        ({"fsdp": 3}, "padding_of", (0, ""), "weight_bytes"),
        ({"fsdp": 2}, "copies_of_batches", 1, "buffer_bytes"),
        ({"fsdp": 2, "cp": 2}, "copies_of_sequences", 2, "weight_bytes"),
    ],
)
def test_a_wrong_copy_of_shared_sequences_or_parameters_is_refuted_in_symbols(
    mesh: dict[str, Any], method: str, planted: object, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RankCopies, method, lambda *_: planted)
    (wrong, *_) = answers(proof(**mesh), "ranks")
    assert metric in {c.metric for c in wrong.counterexamples if c.module == "all ranks"}


def test_random_parts_of_a_mesh_share_sequences_parameters_and_pairs() -> None:
    """Each draw equals its graph, with contexts of a rank's own; together they have every way to share."""
    made = [proof("qwen3-moe", 6, ep=2, dp=2, dispatch="all-to-all"), proof(samples=6, cp=4), proof(samples=2, fsdp=4)]
    inputs = [dict(p.workload.inputs) for x in made for p in x.pieces if p.phase == "draws"]
    assert {"pairs", "cp_plan", "fsdp"} <= {name for given in inputs for name in given}
    assert {"ring", "ulysses"} <= {given.get("cp_plan") for given in inputs}
    for one in made:
        for piece in [p for p in one.pieces if p.sizes is not None and p.phase == "draws"][:1]:
            assert carry_out_piece(piece).counterexamples == ()


def test_a_mesh_that_does_not_fit_is_refused() -> None:
    with pytest.raises(Problems, match="cannot be run"):
        proof(tp=3)
    with pytest.raises(BadInput, match="no such plan"):
        proof(tp=2, plan="vlm")
    for family, mesh, why in (
        ("llama", {"dispatch": "all-to-all"}, "one rank has all experts"),
        ("llama", {"cp_plan": "ring"}, "each rank has whole sequences"),
        ("llama", {"cp": 2, "cp_plan": "ulysses", "tp": 2}, "ranks would share key/value heads"),
        ("llama", {"cp": 0}, "needs a rank on each axis"),
    ):
        with pytest.raises(Problems, match=why):
            proof(family, **mesh)


def test_a_prompt_fits_into_a_short_context() -> None:
    """Of 256 positions 4 are of decode steps; ranks that share tokens in zigzag order divide a multiple of 8."""
    target: Any = load_target("llama")
    for context, mesh, length in ((256, {"tp": 2}, 252), (256, {"tp": 2, "cp": 2}, 248), (16, {"tp": 2}, 12)):
        short = replace(target, config=replace(target.config, **SMALL, max_positions=context))
        made = cast(Proof, short.proof(0, 1, **mesh))
        assert {p.workload.text_tokens for p in made.pieces} == {length}
    assert all(not a.counterexamples for a in answers(made, "ranks"))
    none = replace(target, config=replace(target.config, **SMALL, max_positions=5))
    with pytest.raises(BadInput, match=r"no room for a prompt that these ranks can share") as caught:
        none.proof(0, 1, tp=2)
    assert (caught.value.expected, caught.value.got) == ("at least 6 positions", "5")


def test_a_certificate_repeats_its_mesh() -> None:
    """The pairs of ranks are drawn again, from the seed."""
    for family, mesh in (("llama", {"tp": 2, "plan": "vllm"}), ("qwen3-moe", cast(dict[str, Any], SHARED["pairs"][1]))):
        repeat(family, mesh)


def repeat(family: str, mesh: dict[str, Any]) -> None:
    made = proof(family, 1, **mesh)
    factory: Any = TARGETS.load(family)
    config = json.dumps(json.loads(made.settings.config))
    again = factory.from_normalised(config).proof(1, 1, **made.settings.chosen)
    assert [p.id for p in again.pieces] == [p.id for p in made.pieces]
    assert again.usual == made.usual
