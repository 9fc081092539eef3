"""Families with mixtures of experts: their numbers by hand, and the same three ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

import costproof
from costproof.compare.compare import compare
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.metrics import Metric
from costproof.models.decoding.config import MixtureConfig
from costproof.models.decoding.target import CausalTarget
from costproof.models.families.gpt_oss import GptOss
from costproof.models.families.mixtral import Mixtral, MixtralConfig
from costproof.models.families.qwen3_moe import Qwen3Moe, Qwen3MoeConfig
from costproof.models.registry import load_target
from costproof.parametric.targets import evaluate_formulas
from tests.models.test_families import SIZES, SOURCES, exact
from tests.oracles.mutations import run as planted
from tests.support.variants import with_variants

C = TypeVar("C", bound=MixtureConfig)
MIXTRAL: Final = {"model_type": "mixtral", **SIZES, "num_local_experts": 6, "num_experts_per_tok": 3}
QWEN3: Final = {
    "model_type": "qwen3_moe", **SIZES, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 16,
}  # fmt: skip
GPT_OSS: Final = {
    "model_type": "gpt_oss", **SIZES, "intermediate_size": 40, "num_local_experts": 6, "num_experts_per_tok": 3,
}  # fmt: skip

# The file, and the run.
CASES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "mixtral, window filled, batched": (
        {**MIXTRAL, "num_hidden_layers": 1, "sliding_window": 9},
        {"experts": "batched_mm", "dtype": "float32", "logits": "last", "batch": 2},
    ),
    "gpt_oss, window filled": (
        {**GPT_OSS, "num_hidden_layers": 1, "layer_types": ["sliding_attention"], "sliding_window": 8}, {"batch": 2},
    ),
    "gpt_oss, both kinds of layers": ({**GPT_OSS, "sliding_window": 8}, {"batch": 2}),
    "gpt_oss, batched, no window": (
        {**GPT_OSS, "num_hidden_layers": 1, "layer_types": ["full_attention"], "attention_bias": False},
        {"experts": "batched_mm", "dtype": "float32", "logits": "last"},
    ),
    "qwen3_moe, eager": (
        {**QWEN3, "norm_topk_prob": True, "attention_bias": True}, {"attention": "eager", "dtype": "float32"},
    ),
}  # fmt: skip


def read(kind: type[C], file: dict[str, Any]) -> C:
    """A configuration, as from a file."""
    problems: list[CostproofError] = []
    config = kind.read(file, problems)
    assert problems == []
    return config


def total(target: CausalTarget[Any], metric: Metric = "params") -> int | None:
    """What the formulas say of a whole model."""
    return evaluate_formulas(target, target.workload(text_tokens=8)).total(metric)


@pytest.mark.slow
@pytest.mark.parametrize("case", with_variants(CASES, ("mixtral, window filled, batched", "gpt_oss, window filled")))
@pytest.mark.usefixtures("one_process")
def test_three_sources_agree(case: str, tmp_path: Path, *, thorough: bool) -> None:
    # Qwen3-MoE with --thorough alone; test_families.test_a_draw_holds has it beside its graph.
    file, run = CASES[case]
    sources = SOURCES if thorough or case.startswith("gpt_oss") else SOURCES[:2]
    exact({**file, "num_hidden_layers": min(2, file["num_hidden_layers"])}, run, tmp_path, sources)


@pytest.mark.thorough
@pytest.mark.usefixtures("one_process")
def test_planted_errors_are_found(tmp_path: Path) -> None:
    capture = exact({**QWEN3, "num_hidden_layers": 1}, {"batch": 2}, tmp_path)
    outcomes = planted("qwen3-moe", capture, 1)
    assert [(o.planted.operation, o.planted.what, o.said) for o in outcomes if not o.located] == []
    assert {"router", "experts"} <= {o.planted.site.owner for o in outcomes}


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_a_loop_over_experts_differs_in_the_calls_of_their_activation(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN3, "num_hidden_layers": 1}), encoding="utf-8")
    run: Any = {"text_tokens": 20, "new_tokens": 1, "run": "cpu", "experts": "eager", "dtype": "float32"}
    capture = costproof.capture("qwen3-moe", config=path, **run)
    compared = compare(capture)
    assert compared.verdict == "explained"
    assert {c.kind for f in compared.findings for c in f.causes} == {"expert_kernel"}
    # Which experts run is data: formulas and the graph say what their operators move, a run does not.
    given = {x.source: "unfused_bytes" in x.metrics for x in capture.ledgers}
    assert given == {"analytic": True, "static": True, "dynamic": False}


def test_work_by_hand() -> None:
    # Layer 0 has an MLP, layer 1 a mixture of 8 experts. A token: q and out 32*48 each, k and v 32*24 each; the MLP
    # 3*32*48; router 32*8, three experts of 3*32*16; lm_head 32*64.
    config = read(Qwen3MoeConfig, {**QWEN3, "num_experts": 8, "num_hidden_layers": 2, "decoder_sparse_step": 2})
    target = Qwen3Moe(config)
    ledger = evaluate_formulas(target, target.workload(text_tokens=20, new_tokens=3, batch=2))
    attention, mlp, router, expert = 2 * 32 * 48 + 2 * 32 * 24, 3 * 32 * 48, 32 * 8, 3 * 32 * 16
    token = 2 * (2 * attention + mlp + router + 3 * expert + 32 * 64)
    # Scores: 2 products of 2, 48 wide, in two layers.
    assert ledger.stage_total("prefill", "flops") == 2 * (20 * token + 2 * 4 * 48 * 20 * 20)
    assert ledger.stage_total("decode", "flops") == 2 * (3 * token + 2 * 4 * 48 * (21 + 22 + 23))
    # Two norms of 32 and those of heads of 12 in every layer, the last norm; the table and lm_head.
    rest = 2 * attention + mlp + router + 2 * (2 * 32 + 2 * 12) + 32 + 2 * 64 * 32
    assert ledger.total("params") == rest + 8 * expert
    assert ledger.total("params_active") == rest + 3 * expert
    # The 40 tokens of the prompt reach all eight experts; the two of a step at most six of them.
    nodes = [n for n in ledger.nodes if n.module.endswith("experts") and n.cost("weight_read_bytes")]
    read_bytes = {n.stage: n.cost("weight_read_bytes") for n in nodes}
    assert read_bytes == {"prefill": 2 * 8 * expert, "decode": 3 * 2 * 6 * expert}


def test_parameters_of_published_models() -> None:
    # Mixtral-8x7B: q and out 4096*4096, k and v 4096*1024, 8 experts of 3*4096*14336, router 8*4096, two norms.
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 8 * (3 * 4096 * 14336 + 4096) + 2 * 4096
    assert total(Mixtral()) == 2 * 32000 * 4096 + 4096 + 32 * layer == 46_702_792_704
    # Qwen3-30B-A3B: q and out 2048*4096, k and v 2048*512, 128 experts of 3*2048*768, norms of width and heads.
    layer = 2 * 2048 * 4096 + 2 * 2048 * 512 + 128 * (3 * 2048 * 768 + 2048) + 2 * 2048 + 2 * 128
    assert total(Qwen3Moe()) == 2 * 151936 * 2048 + 2048 + 48 * layer == 30_532_122_624
    # gpt-oss-20b: q, out 2880*4096 and k, v 2880*512 with biases, a sink a head; 32 experts and the router with biases.
    expert = 3 * 2880 * 2880 + 2 * 2880 + 2880
    layer = 2 * 2880 * 4096 + 4096 + 2880 + 2 * (2880 + 1) * 512 + 64 + 32 * (expert + 2880 + 1) + 2 * 2880
    known = load_target("gpt-oss-20b")
    assert isinstance(known, GptOss)
    assert total(known) == 2 * 201088 * 2880 + 2880 + 24 * layer == 20_914_757_184
    assert total(known, "params_active") == 20_914_757_184 - 24 * 28 * expert
    # "3.3B activated": eight experts in place of 128.
    assert total(Qwen3Moe(), "params_active") == 30_532_122_624 - 48 * 120 * 3 * 2048 * 768 == 3_353_032_704


def test_a_published_formula_without_top_k() -> None:
    report = costproof.check(Path(__file__).resolve().parents[2] / "docs" / "examples" / "mixtral-prefill.yaml")
    (claim,) = report.judgements
    (step,) = claim.explanations[0].steps
    # A token: q and out 4096*4096, k and v 4096*1024, the router, two experts; scores of 32 heads of 128; lm_head.
    expert = 3 * 4096 * 14336
    token = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 8 * 4096 + 2 * expert) + 4096 * 32000
    assert claim.truth == 2 * 2048 * token + 32 * 4 * 2048 * 2048 * 4096
    assert (claim.status, step.cause, step.amount) == ("explained", "top-k missing", -2 * 2048 * 32 * expert)
    assert -42_450 * claim.truth < 100_000 * step.amount < -42_350 * claim.truth  # the 42.4 % that were measured


def test_the_published_files_are_the_defaults() -> None:
    common = {
        "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "use_cache": True,
        "initializer_range": 0.02, "rope_theta": 1e6, "output_router_logits": False, "torch_dtype": "bfloat16",
        "tie_word_embeddings": False, "transformers_version": "4.51.0", "num_attention_heads": 32,
    }  # fmt: skip
    mixtral = {
        **common, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "num_experts_per_tok": 2,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "rms_norm_eps": 1e-05,
        "router_aux_loss_coef": 0.02, "sliding_window": None, "vocab_size": 32000,
    }  # fmt: skip
    qwen = {
        **common, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False,
        "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144,
        "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768,
        "norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": None, "router_aux_loss_coef": 0.001,
        "sliding_window": None, "use_sliding_window": False, "vocab_size": 151936,
    }  # fmt: skip
    assert read(MixtralConfig, mixtral).normalised() == MixtralConfig().normalised()
    assert read(Qwen3MoeConfig, qwen).normalised() == Qwen3MoeConfig().normalised()


@pytest.mark.parametrize(
    ("changes", "routed"),
    [
        ({}, "mmm"),
        ({"decoder_sparse_step": 2}, "dmd"),
        ({"mlp_only_layers": [2]}, "mmd"),
        ({"mlp_only_layers": [1], "decoder_sparse_step": 2}, "ddd"),
    ],
)
def test_which_layers_have_experts(changes: dict[str, Any], routed: str) -> None:
    config = read(Qwen3MoeConfig, {**QWEN3, **changes})
    assert "".join("m" if layer else "d" for layer in config.routed()) == routed
    # The class of transformers has the mixtures where the formulas have them.
    model = Qwen3Moe(config).build(Qwen3Moe(config).workload(text_tokens=8))
    assert [hasattr(layer.mlp, "experts") for layer in model.model.layers] == list(config.routed())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("file", "where"),
    [
        ({**MIXTRAL, "num_experts_per_tok": 7}, "$.num_experts_per_tok"),
        ({**MIXTRAL, "num_local_experts": 0}, "$.num_local_experts"),
        ({**MIXTRAL, "output_router_logits": True}, "$.output_router_logits"),
        ({**MIXTRAL, "num_experts": 5}, "$.num_local_experts"),
        ({**QWEN3, "moe_intermediate_size": -1}, "$.moe_intermediate_size"),
        ({**QWEN3, "decoder_sparse_step": 0}, "$.decoder_sparse_step"),
        ({**QWEN3, "shared_expert_intermediate_size": 8}, "$.shared_expert_intermediate_size"),
        ({**QWEN3, "sliding_window": 3, "use_sliding_window": True}, "$.sliding_window"),
    ],
)
def test_what_the_formulas_do_not_cover_is_told_by_key(file: dict[str, Any], where: str) -> None:
    problems: list[CostproofError] = []
    kind: Any = MixtralConfig if file["model_type"] == "mixtral" else Qwen3MoeConfig
    kind.read(file, problems)
    assert where in [str(p.where) for p in problems if isinstance(p, BadInput)]
