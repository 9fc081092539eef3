"""Llama: its numbers by hand, and the same three ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import costproof
from costproof.compare.compare import compare
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.run import RunOptions
from costproof.models.families.llama import Llama, LlamaConfig
from costproof.parametric.targets import evaluate_formulas
from costproof.tracers.dynamic import dynamic_ledger
from tests.oracles.mutations import run

SMALL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 4096,
}  # fmt: skip
PLAIN = LlamaConfig(32, 48, 2, 4, 2, 12, 64, 4096)


def small(**changes: Any) -> LlamaConfig:
    """A small configuration, read as from a file."""
    problems: list[CostproofError] = []
    config = LlamaConfig.read({**SMALL, **changes}, problems)
    assert not problems, problems
    return config


def wrong(**changes: Any) -> list[tuple[str, str]]:
    """What is wrong with a configuration, and where."""
    problems: list[CostproofError] = []
    LlamaConfig.read({k: v for k, v in {**SMALL, **changes}.items() if v != "absent"}, problems)
    return [(p.what, str(p.where)) for p in problems if isinstance(p, BadInput)]


def test_parameters_of_the_published_model() -> None:
    # Embedding and output projection 128256 * 4096 each, the last norm 4096. A layer: q and out 4096 * 4096,
    # k and v 4096 * 1024, the MLP 3 * 4096 * 14336, two norms of 4096.
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert 2 * 128256 * 4096 + 4096 + 32 * layer == 8_030_261_248
    ledger = evaluate_formulas(Llama(), Llama().workload())
    assert ledger.total("params") == 8_030_261_248
    assert ledger.total("weight_bytes") == 2 * 8_030_261_248


def test_flops_and_cache_of_the_published_model() -> None:
    target = Llama()
    ledger = evaluate_formulas(target, target.workload(text_tokens=100, new_tokens=3, batch=2))
    # 2 FLOPs for every weight of a linear layer and token, 4 * 4096 for every pair of tokens and layer.
    per_token = 2 * (32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 128256)
    assert ledger.stage_total("prefill", "flops") == 2 * (100 * per_token + 32 * 4 * 100 * 100 * 4096)
    assert ledger.stage_total("decode", "flops") == 2 * (3 * per_token + 32 * 4 * (101 + 102 + 103) * 4096)
    # Keys and values of 8 heads of 128, 2 bytes each.
    assert ledger.stage_total("prefill", "kv_cache_bytes") == 2 * 32 * 100 * 2 * 8 * 128 * 2


def test_a_tied_projection_is_no_parameter_of_its_own() -> None:
    # a layer: q and out 32*48, k and v 32*24, MLP 3*32*48, two norms of 32; the last norm 32; the table 64*32
    layer = 2 * 32 * 48 + 2 * 32 * 24 + 3 * 32 * 48 + 64
    totals = [
        evaluate_formulas(Llama(c), Llama(c).workload()).total("params")
        for c in (PLAIN, small(tie_word_embeddings=True))
    ]
    assert totals == [2 * layer + 32 + 2 * 64 * 32, 2 * layer + 32 + 64 * 32]


def test_biases_are_parameters() -> None:
    both = small(attention_bias=True, mlp_bias=True)
    # q 48, k and v 24, out 32; gate and up 48, down 32
    found = [evaluate_formulas(Llama(c), Llama(c).workload()).total("params") or 0 for c in (PLAIN, both)]
    assert found[1] - found[0] == 2 * (48 + 2 * 24 + 32 + 2 * 48 + 32)


def test_prefill_flops_are_those_of_the_flop_counter() -> None:
    target = Llama(PLAIN)
    workload = target.workload(text_tokens=20, batch=2, attention="eager", logits="last")
    model = target.build(workload)
    (prompt, *_) = target.runs(model, workload)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**prompt.kwargs)
    assert evaluate_formulas(target, workload).stage_total("prefill", "flops") == counter.get_total_flops()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        pytest.param({}, {}, id="plain", marks=pytest.mark.thorough),
        pytest.param(
            {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "hidden_act": "gelu"},
            {"batch": 2, "attention": "eager", "logits": "last", "dtype": "float32"},
            id="biases, tied, eager",
        ),
    ],
)
@pytest.mark.usefixtures("one_process")
def test_three_sources_agree_and_planted_errors_are_found(
    changes: dict[str, Any], settings: dict[str, Any], tmp_path: Path, *, thorough: bool
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**SMALL, **changes}), encoding="utf-8")
    capture = costproof.capture("llama", config=file, text_tokens=20, new_tokens=4 if thorough else 2, **settings)
    compared = compare(capture)
    assert compared.verdict == "exact"
    assert {len(f.values) for f in compared.findings} == {3}
    outcomes = run("llama", capture, 1, None if thorough else 12)
    assert [(o.planted.operation, o.planted.what, o.said) for o in outcomes if not o.located] == []
    assert len(outcomes) >= 12


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**SMALL, "torch_dtype": "bfloat16", "rope_theta": 5e5}), encoding="utf-8")
    target = Llama.from_file(file)
    assert target.config.normalised() == PLAIN.normalised()
    assert "$.torch_dtype" not in target.info().waived
    assert target.workload().dtype == "bfloat16"


def test_what_a_file_leaves_out() -> None:
    config = small(num_key_value_heads=None, head_dim=None)
    assert (config.kv_heads, config.head_dim) == (4, 8)
    assert wrong(hidden_size="absent") == [("a key is missing", "$.hidden_size")]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"num_atention_heads": 4}, "$.num_atention_heads"),
        ({"model_type": "qwen2"}, "$.model_type"),
        ({"hidden_act": "mish"}, "$.hidden_act"),
        ({"attention_bias": 1}, "$.attention_bias"),
        ({"tie_word_embeddings": None}, "$.tie_word_embeddings"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "$.rope_scaling"),
        ({"rope_scaling": 3}, "$.rope_scaling"),
        ({"num_attention_heads": 5}, "$.num_attention_heads"),
        ({"num_key_value_heads": 3}, "$.num_key_value_heads"),
        ({"head_dim": 7}, "$.head_dim"),
        ({"num_hidden_layers": 0}, "$.num_hidden_layers"),
    ],
)
def test_a_file_that_lies(changes: dict[str, Any], where: str) -> None:
    assert where in [found for _, found in wrong(**changes)]


def test_the_published_file_is_the_default() -> None:
    published = {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": False,
        "rope_scaling": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3",
            "original_max_position_embeddings": 8192,
        },
        "torch_dtype": "bfloat16", "transformers_version": "4.43.0.dev0", "use_cache": True, "vocab_size": 128256,
    }  # fmt: skip
    problems: list[CostproofError] = []
    assert LlamaConfig.read(published, problems).normalised() == LlamaConfig().normalised()
    assert problems == []


def test_it_can_be_cut() -> None:
    cut = Llama().with_options(RunOptions(layers=2))
    assert cut.config.layers == 2
    assert cut.info().cut == {"decoder layers": "2 of 32"}
    assert cut.info().changed == {}
    assert Llama(LlamaConfig(tied=True)).info().changed == {"tied": "true, published false"}
    with pytest.raises(BadInput, match="cannot be cut"):
        Llama().with_options(RunOptions(layers=33))


def test_a_run_beyond_the_context_is_refused() -> None:
    with pytest.raises(Problems):
        Llama(PLAIN).workload(text_tokens=4096, new_tokens=1)


@pytest.mark.thorough
@pytest.mark.usefixtures("one_process")
def test_a_real_run_keeps_what_is_tied(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**SMALL, "tie_word_embeddings": True}), encoding="utf-8")
    capture = costproof.capture("llama", config=file, text_tokens=6, new_tokens=2, run="cpu")
    assert compare(capture).verdict == "exact"


def test_a_run_with_numbers_counts_the_same() -> None:
    target = Llama(PLAIN).with_options(RunOptions(device="cpu"))
    found = dynamic_ledger(target, target.workload(text_tokens=9, new_tokens=3))
    # A token in a layer: q and output 2*32*48 each, k and v 2*32*24 each, three of 2*32*48 in the MLP: 18,432.
    # Attention: 2 products of 2, 4 heads, 12 wide, 9 x 9 pairs, then 10, 11 and 12 in the steps. lm_head: 2*32*64.
    assert found.ledger.stage_total("prefill", "flops") == 2 * (9 * 18_432 + 4 * 48 * 81) + 9 * 4096
    assert found.ledger.stage_total("decode", "flops") == 2 * (3 * 18_432 + 4 * 48 * 33) + 3 * 4096
    assert found.trace_check.differences == ()
