"""What a proof about a decoder ranges over, on Llama: identities, and draws of its family."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from costproof.ledger.errors import BadInput
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.families.llama import Llama
from costproof.models.families.mistral import Mistral, MistralConfig
from costproof.models.proof import Piece, WithProof
from costproof.run.proof_pieces import assemble_certificate, carry_out_piece
from costproof.run.request import request
from tests.models.test_llama import PLAIN

SMALL = Llama(PLAIN)
IDENTITIES = (
    "chunks 2 and 35+2 are a prompt of 37",
    "35+2 is a prompt of 37 less the pairs of 2",
    "chunks 2 and 1+2 are a prompt of 3",
    "3x1+2 and 1+3 are steps at 2 and 3",
    "1+2 is a step at 2",
)


@dataclass(frozen=True, slots=True)
class Wrong(Llama):
    """Its formulas have as many key/value heads as heads."""

    def formulas(self, workload: Workload) -> Ledger:
        found = Llama.formulas(self, workload)
        nodes = (
            replace(n, exprs={m: e.replace("text_kv_heads", "text_heads") for m, e in n.exprs.items()})
            if n.module.endswith("k_proj")
            else n
            for n in found.nodes
        )
        return replace(found, nodes=tuple(nodes))


def test_the_pieces_of_a_proof() -> None:
    assert isinstance(SMALL, WithProof)
    made = SMALL.proof(7, 1)
    assert [p.id for p in made.pieces] == [
        "identity: text",
        "identity: text, eager, last logits",
        *(f"draws: {number}" for number in range(7)),
        *(f"rows: {name}, {run}" for run in ("text", "text, eager, last logits") for name in IDENTITIES),
        *(f"rows: of draw {number}" for number in range(7)),
    ]
    assert made.settings.samples == 7
    assert Llama.from_normalised(made.settings.config) == SMALL


def test_draws_are_configurations_that_run_and_are_the_same_again() -> None:
    made, again = SMALL.proof(60, 3), SMALL.proof(60, 3)
    runs = [piece for piece in made.pieces if piece.sizes]
    assert len(runs) == 60
    assert made.pieces == again.pieces
    configs = [run.target.config for run in runs if isinstance(run.target, Llama)]
    assert [c for c in configs if c.contradictions()] == []
    assert (
        {c.tied for c in configs}
        == {c.attention_bias for c in configs}
        == {c.mlp_bias for c in configs}
        == {False, True}
    )
    assert len(made.choices) == 9


@pytest.mark.parametrize(("prompt", "masked"), [(6, False), (7, False), (8, True)])
def test_only_a_prompt_as_long_as_the_window_has_a_mask(prompt: int, masked: bool) -> None:
    # A window of 8 keeps 7 keys in the cache: a prompt of 7 fills it, and none of its queries misses a key.
    target = Mistral(MistralConfig(64, 96, 1, 4, 2, 16, 50, 64, window=8))
    run = Workload("text", prompt, 0)
    (job,) = target.export_jobs(target.build(run), run)
    assert ("window_mask" in job.args) == masked


def test_there_is_no_size_to_enumerate() -> None:
    mesh = ["tp", "ep", "pp", "dp", "cp", "fsdp", "dispatch", "plan", "cp_plan"]
    assert [setting.name for setting in Llama.proof_settings()] == mesh
    with pytest.raises(BadInput, match="no such setting"):
        request("llama", verb="prove", sides="64-128")


@pytest.mark.slow
def test_identities_and_draws_hold() -> None:
    made = SMALL.proof(1, 1)
    text, _, *draws = (piece for piece in made.pieces if piece.phase != "rows")
    found = carry_out_piece(text)
    assert {c.method for c in found.claims} == {"identity"}
    assert found.counterexamples == ()
    for drawn in map(carry_out_piece, draws):
        assert (drawn.claims, drawn.counterexamples) == ((), ())
        assert min(drawn.rows.values()) > 50


def test_where_a_graph_is_not_the_model_nothing_is_claimed() -> None:
    # A window of 128 takes part in a prompt of 127 or more: it keeps 127 keys beside the newest.
    windowed = Mistral(MistralConfig(64, 96, 1, 4, 2, 16, 50, 256, window=128))
    proof = windowed.proof(0, 1)
    answers = [(p.phase, p.id, carry_out_piece(p)) for p in proof.pieces[:1]]
    (condition,) = answers[0][2].conditions
    assert condition == "text: prefill at sizes where not -1 * S <= -127"
    assert condition in assemble_certificate(answers, windowed, proof).not_claimed


@pytest.mark.slow
def test_a_wrong_formula_is_refuted_with_its_term() -> None:
    wrong = Piece("identity: text", "identities", Wrong(PLAIN), Workload("text", 64, 4))
    bad = [c for c in carry_out_piece(wrong).counterexamples if c.metric == "flops"]
    assert {j.stage for j in bad} == {"prefill", "decode"}
    assert all("k_proj" in j.module for j in bad)
    # 32 * 12 * (4 - 2) weights too many, 2 FLOPs each
    assert "1536*B*S" in {j.difference for j in bad}
