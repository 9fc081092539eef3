"""Families with latent attention: their numbers by hand, and the same three ways."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import pytest

import costproof
from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.decoding.target import CausalTarget
from costproof.models.families.deepseek_v2 import DeepseekV2, DeepseekV2Config
from costproof.models.families.deepseek_v3 import DeepseekV3, DeepseekV3Config
from costproof.models.registry import load_target
from costproof.parametric.targets import evaluate_formulas
from costproof.weights.stored import without
from tests.models.test_families import SOURCES, exact
from tests.models.test_mixtures import read, total
from tests.oracles.mutations import run as planted
from tests.support.variants import with_variants

SIZES: Final = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096, "kv_lora_rank": 10, "qk_nope_head_dim": 7, "qk_rope_head_dim": 6, "v_head_dim": 9,
    "moe_intermediate_size": 16, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}  # fmt: skip
GROUPS: Final = {"n_group": 4, "topk_group": 2}
V3: Final = {"model_type": "deepseek_v3", **SIZES, **GROUPS, "q_lora_rank": 5}
V2: Final = {"model_type": "deepseek_v2", **SIZES, "qk_nope_head_dim": 8, "q_lora_rank": None}

# The file, and the run.
CASES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "v3, no latents of queries": (
        {**V3, "num_hidden_layers": 1, "norm_topk_prob": False, "q_lora_rank": None, "first_k_dense_replace": 0},
        {"dtype": "float32", "logits": "last"},
    ),
    "v2": ({**V2, "num_hidden_layers": 1, "first_k_dense_replace": 0}, {"batch": 2}),
    "v2, groups, biases, eager, batched": (
        {**V2, **GROUPS, "topk_method": "group_limited_greedy", "q_lora_rank": 5, "attention_bias": True},
        {"attention": "eager", "experts": "batched_mm"},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", with_variants(CASES, ("v2, groups, biases, eager, batched",)))
@pytest.mark.usefixtures("one_process")
def test_three_sources_agree(case: str, tmp_path: Path, *, thorough: bool) -> None:
    """Where time is short test_absorbed.py runs them."""
    exact(*CASES[case], tmp_path, SOURCES if thorough else SOURCES[:2])


@pytest.mark.thorough
@pytest.mark.usefixtures("one_process")
def test_planted_errors_are_found(tmp_path: Path) -> None:
    capture = exact({**V3, "num_hidden_layers": 1, "first_k_dense_replace": 0}, {"batch": 2}, tmp_path)
    outcomes = planted("deepseek-v3", capture, 1)
    assert [(o.planted.operation, o.planted.what, o.said) for o in outcomes if not o.located] == []
    assert {"router", "experts", "latent_attention"} <= {o.planted.site.owner for o in outcomes}


def test_work_by_hand() -> None:
    # Layer 0 has an MLP, layer 1 eight experts and two shared ones of 16.
    target = DeepseekV3(read(DeepseekV3Config, V3))
    ledger = evaluate_formulas(target, target.workload(text_tokens=20, new_tokens=3, batch=2))
    # A token: q down and up, to the latent and the rotated key, out. Keys and values of 7 and 9 in 4 heads.
    attention, expansion = 32 * 5 + 5 * 4 * 13 + 32 * 16 + 4 * 9 * 32, 10 * 4 * (7 + 9)
    mlp, router, expert = 3 * 32 * 48, 32 * 8, 3 * 32 * 16
    token = 2 * (2 * attention + mlp + router + (3 + 2) * expert + 32 * 64)
    # Two layers; scores are 13 wide, values 9; every call expands the latents of its whole context.
    pairs = 2 * 2 * 4 * (13 + 9)
    assert ledger.stage_total("prefill", "flops") == 2 * (20 * (token + 2 * 2 * expansion) + pairs * 20 * 20)
    contexts = 21 + 22 + 23
    assert ledger.stage_total("decode", "flops") == 2 * (3 * token + contexts * (2 * 2 * expansion + pairs))
    # The cache: 10 of the latent and 6 of the rotated key, 2 bytes each, in two layers.
    assert ledger.stage_total("prefill", "kv_cache_bytes") == 2 * 20 * 2 * (10 + 6) * 2
    # Norms of the width, of both latents; the last norm; the table and lm_head.
    params = 2 * (attention + expansion + 2 * 32 + 5 + 10) + mlp + router + 10 * expert + 32 + 2 * 64 * 32
    assert ledger.total("params") == params
    assert ledger.total("params_active") == params - 5 * expert


def test_published_models() -> None:
    attention = 7168 * 1536 + 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 7168
    mixture = (256 + 1) * 3 * 7168 * 2048 + 256 * 7168
    layers = 61 * (attention + 2 * 7168) + 3 * 3 * 7168 * 18432 + 58 * mixture
    assert total(DeepseekV3()) == layers + 2 * 129280 * 7168 + 7168 == 671_026_404_352
    # "37B activated": eight experts of 256.
    assert total(DeepseekV3(), "params_active") == 671_026_404_352 - 58 * 248 * 3 * 7168 * 2048
    attention = 5120 * 1536 + 1536 + 1536 * 128 * 192 + 5120 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 5120
    mixture = (160 + 2) * 3 * 5120 * 1536 + 160 * 5120
    layers = 60 * (attention + 2 * 5120) + 3 * 5120 * 12288 + 59 * mixture
    assert total(DeepseekV2()) == layers + 2 * 102400 * 5120 + 5120 == 235_741_434_880


@pytest.mark.parametrize(
    ("name", "prefill", "step", "cache"),
    [("deepseek-v2-lite", 11.2002, 237.28, 63_700_992), ("deepseek-v3", 170.974, 4273.3, 143_917_056)],
)
def test_work_of_published_models_is_what_others_measured(name: str, prefill: float, step: float, cache: int) -> None:
    """FlopCounterMode and 2 M K N for every grouped product, on the classes on meta, eager attention.

    TFLOP of a prompt of 2,048 tokens, GFLOP of a step at a context of 2,048, itself included, and the cache there.
    """
    target = load_target(name)
    assert isinstance(target, CausalTarget)
    prompt = evaluate_formulas(target, target.workload(text_tokens=2048))
    after = evaluate_formulas(target, target.workload(text_tokens=2047))
    assert round((prompt.stage_total("prefill", "flops") or 0) / 1e12, len(str(prefill).partition(".")[2])) == prefill
    assert round((after.stage_total("decode", "flops") or 0) / 1e9, len(str(step).partition(".")[2])) == step
    assert prompt.stage_total("prefill", "kv_cache_bytes") == cache


def test_the_published_file_is_the_default() -> None:
    published = {
        "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "bos_token_id": 0, "eos_token_id": 1,
        "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "kv_lora_rank": 512,
        "initializer_range": 0.02, "intermediate_size": 18432, "max_position_embeddings": 163840,
        "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
        "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
        "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "original_max_position_embeddings": 4096},
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": False,
        "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.33.1",
        "use_cache": True, "v_head_dim": 128, "vocab_size": 129280,
    }  # fmt: skip
    assert read(DeepseekV3Config, without(published)).normalised() == DeepseekV3Config().normalised()


@pytest.mark.parametrize(
    ("file", "where"),
    [
        ({**V3, "num_key_value_heads": 2}, "$.num_key_value_heads"),
        ({**V3, "scoring_func": "softmax"}, "$.scoring_func"),
        ({**V3, "topk_method": "greedy"}, "$.topk_method"),
        ({**V3, "rope_interleave": False}, "$.rope_interleave"),
        ({**V3, "moe_layer_freq": 2}, "$.moe_layer_freq"),
        ({**V3, "n_group": 3}, "$.n_group"),
        ({**V3, "n_group": 8}, "$.n_group"),
        ({**V3, "topk_group": 5}, "$.topk_group"),
        ({**V3, "qk_rope_head_dim": 5}, "$.qk_rope_head_dim"),
        ({**V3, "num_experts_per_tok": 9}, "$.num_experts_per_tok"),
        ({**V3, "head_dim": 13}, "$.head_dim"),
        ({**V2, "mlp_bias": True}, "$.mlp_bias"),
        ({**V2, "topk_method": "noaux_tc"}, "$.topk_method"),
        ({**V2, "topk_method": "group_limited_greedy"}, "$.n_group"),
        ({**V2, "qk_nope_head_dim": 7}, "$.qk_nope_head_dim"),
        ({**V2, "num_attention_heads": 5, "num_key_value_heads": 5}, "$.num_attention_heads"),
    ],
)
def test_what_the_formulas_do_not_cover_is_told_by_key(file: dict[str, Any], where: str) -> None:
    problems: list[CostproofError] = []
    kind: Any = DeepseekV3Config if file["model_type"] == "deepseek_v3" else DeepseekV2Config
    kind.read(file, problems)
    assert where in [str(p.where) for p in problems if isinstance(p, BadInput)]


# Both have the same cache.
@pytest.mark.parametrize("base", [pytest.param(V2, marks=pytest.mark.thorough), V3], ids=["v2", "v3"])
def test_a_window_that_the_class_does_not_read_truncates_its_cache(base: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**base, "num_hidden_layers": 1, "sliding_window": 6}), encoding="utf-8")
    ledger = costproof.capture(f"hf:{file}", sources=["static"], seq_len=9, new_tokens=1).ledger("static")
    # DynamicCache keeps 5 tokens of a window of 6: 10 elements of the latent and 6 that are rotated, of two bytes.
    assert ledger.stage_total("prefill", "kv_cache_bytes") == 5 * (10 + 6) * 2
    assert ledger.stage_total("decode", "kv_cache_bytes") == 0
    for key in ("layer_types", "attention_chunk_size"):
        value: Any = ["sliding_attention"] * 2 if key == "layer_types" else 6
        file.write_text(json.dumps({**base, key: value}), encoding="utf-8")
        assert not isinstance(load_target(f"hf:{file}"), CausalTarget)


def test_published_weights_without_experts() -> None:
    report = costproof.check(Path(__file__).resolve().parents[2] / "docs" / "examples" / "deepseek-v3-weights.yaml")
    (claim,) = report.judgements
    # Queries through 1536, keys and values through 512, 64 rotated, 128 heads of 128 + 64 and 128; an MLP of 18432.
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * (512 + 64) + 512 * 128 * 256 + 128 * 128 * 7168
    claimed = 61 * (attention + 3 * 7168 * 18432)
    # 58 layers have 257 experts of 2048, and a router with one correction for each of 256, in place of that MLP.
    mixtures = 58 * (257 * 3 * 7168 * 2048 + 256 * 7168 - 3 * 7168 * 18432)
    norms = 61 * (2 * 7168 + 1536 + 512) + 7168
    assert claim.truth == claimed + mixtures + 2 * 129280 * 7168 + norms == 671_026_404_352
    steps = {step.cause: step.amount for step in claim.explanations[0].steps}
    table = 129280 * 7168
    assert steps == {
        "MoE as a dense FFN": -mixtures, "norms missing": -norms, "embedding missing": -table,
        "lm_head missing": -table,
    }  # fmt: skip
    assert -94_750 * claim.truth < 100_000 * (claimed - claim.truth) < -94_650 * claim.truth  # 94.7 % were measured


def test_published_model_with_other_attention_and_experts() -> None:
    report = costproof.check(Path(__file__).resolve().parents[2] / "docs" / "examples" / "deepseek-v3-gqa.yaml")
    prompt, weights, cache = report.judgements
    # Queries, output, 2 heads of keys and of values, all 56 wide; in every layer experts of 18432.
    attention, expert, table = 2 * 7168 * 7168 + 2 * 7168 * 2 * 56, 3 * 7168 * 18432, 129280 * 7168
    scores, tokens = 4 * 2048 * 2048 * 7168, 2 * 2048
    assert prompt.low == 61 * (tokens * (attention + 256 * 7168 + 8 * expert) + scores) + 2 * tokens * table
    assert weights.low == 61 * (attention + 256 * 7168 + 256 * expert) + 2 * table
    assert cache.low == 2048 * 61 * 2 * 2 * 56 * 2
    # Latents: queries through 1536, keys and values through 512; 192 wide scores, 128 wide sums; the norms of both.
    latents = 7168 * 1536 + 1536 * 128 * 192 + 7168 * (512 + 64) + 512 * 128 * 256 + 128 * 128 * 7168
    latent_scores = 2 * 2048 * 2048 * 128 * (192 + 128)
    # Dense layers become mixtures; in the others the routed experts grow, and the shared one goes.
    small = 3 * 7168 * 2048
    active = 3 * (256 * 7168 + 7 * expert) + 58 * (8 * expert - 9 * small)
    whole = 3 * (256 * 7168 + 255 * expert) + 58 * (256 * expert - 257 * small)
    assert [{s.cause: s.amount for s in j.explanations[0].steps} for j in report.judgements] == [
        {
            "MLA as GQA: 2": 61 * (tokens * (attention - latents) + scores - latent_scores),
            "dense MLPs as experts": tokens * active,
            "embedding as a GEMM": tokens * table,
        },
        {
            "MLA as GQA: 2": 61 * (attention - latents - 1536 - 512),
            "dense MLPs as experts": whole,
            "norms missing": -(61 * 2 + 1) * 7168,
        },
        {"MLA as GQA: 2": 2048 * 61 * 2 * (4 * 56 - 512 - 64)},
    ]
    off = [Fraction(j.delta, j.truth) * 100 for j in report.judgements]
    measured = [Fraction("387.6"), Fraction("823.6"), Fraction("-61.1")]
    assert all(abs(here - there) < Fraction(6, 100) for here, there in zip(off, measured, strict=True))
