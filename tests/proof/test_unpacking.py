"""The vector work of formats of weights is proved like every other quantity, and a wrong formula of it is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sympy import expand, symbols, sympify

from costproof.analytic import quantised
from costproof.compare.proof.certificate import LATER, Certificate, Claim
from costproof.run import proof as proving
from costproof.run.proof_pieces import assemble_certificate, carry_out_piece
from costproof.run.request import request
from costproof.storage import formats

CONFIG = {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64,
    "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 512, "dtype": "bfloat16",
}  # fmt: skip
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [16, 16]}
Q, EXPERTS = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.experts"


def proved(folder: Path, **more: object) -> Certificate:
    """The identity alone."""
    (folder / "config.json").write_text(json.dumps(CONFIG | more), encoding="utf-8")
    target, proof = proving.prepare_proof(request(f"hf:{folder}", verb="prove", samples=0))
    pieces = [p for p in proof.pieces if p.id == "identity: text"]
    return assemble_certificate([(p.phase, p.id, carry_out_piece(p)) for p in pieces], target, proof)


def claims(found: Certificate) -> dict[tuple[str, str], Claim]:
    return {(c.stage, c.module): c for c in found.claims if c.metric == "unpacking_flops"}


def test_weights_are_unpacked_once_in_a_call(tmp_path: Path) -> None:
    found = proved(tmp_path, quantization_config=AWQ)
    assert found.verdict == "proved"
    of = claims(found)
    # [32, 32]; a call passes two of four experts for each token, of three matrices of [64, 32].
    assert {key: (c.free, c.at_config, c.method) for key, c in of.items() if key[1] in (Q, EXPERTS)} == {
        ("prefill", Q): ((), "1024", "identity"),
        ("decode", Q): (("N",), "1024*N", "identity"),
        ("prefill", EXPERTS): (("B", "S"), "6144*Min(4, 2*B*S)", "identity"),
        ("decode", EXPERTS): (("B", "N"), "6144*N*Min(4, 2*B)", "identity"),
    }
    assert not {*LATER} & {*found.every_not_claimed}


def test_inputs_are_quantised_and_products_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = proved(tmp_path, quantization_config=FP8)
    # 3 for each of 32 inputs, 1 for each of 2 scales, and 3 for 2 partial sums of each of 32 results.
    assert (found.verdict, claims(found)["prefill", Q].at_config) == ("proved", "290*B*S")
    right: Any = quantised._SCALING[formats.Fp8]
    monkeypatch.setitem(quantised._SCALING, formats.Fp8, lambda of, m: right(of, m) + m.i)
    from costproof.analytic import storage

    storage._work.cache_clear()
    wrong = proved(tmp_path, quantization_config=FP8)
    storage._work.cache_clear()
    assert wrong.verdict == "refuted"
    assert {c.metric for c in wrong.counterexamples} == {"unpacking_flops"}
    assert "32*B*S" in {c.difference for c in wrong.counterexamples}


def test_latents_of_all_positions_are_expanded_in_each_step(tmp_path: Path) -> None:
    latent = {
        "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "num_key_value_heads": 2,
        "moe_intermediate_size": 32, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16, "v_head_dim": 16, "quantization_config": FP8,
    }  # fmt: skip
    found = proved(tmp_path, **latent)
    assert found.verdict == "proved"
    # Of [2 x (16 + 16), 16]: 3 for each of 16 inputs, 1 for the scale, and 3 for a partial sum of each of 64 results.
    # Step i of N expands P + i positions, N P + N (N - 1) / 2 of N steps, and the new one.
    claim = claims(found)["decode", "model.layers.0.self_attn.kv_b_proj"]
    n, p = symbols("N P")
    rows = sympify(claim.at_config, {"N": n, "P": p, "B": 1}) / (3 * 16 + 1 + 3 * 64)
    assert expand(rows - n * p - n * (n + 1) / 2) == 0


def test_without_a_format_nothing_is_claimed(tmp_path: Path) -> None:
    found = proved(tmp_path)
    assert (found.verdict, claims(found)) == ("proved", {})
    assert {*LATER} <= {*found.not_claimed}
