"""Decode steps that absorb the expansion of latents: the numbers of the class, and our costs by hand."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache

from costproof.ledger.errors import Problems
from costproof.models.decoding.absorbed import absorb
from costproof.models.decoding.target import CausalTarget
from costproof.models.families.deepseek_v2 import DeepseekV2
from costproof.models.families.deepseek_v3 import DeepseekV3, DeepseekV3Config
from costproof.models.families.llama import Llama
from costproof.models.registry import load_target
from costproof.parametric.targets import evaluate_formulas
from costproof.run.proof_pieces import count_drawn_values
from tests.models.test_families import SOURCES, exact
from tests.models.test_latents import GROUPS, V2, V3
from tests.models.test_mixtures import read
from tests.oracles.mutations import run as planted
from tests.support.variants import with_variants

CASES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "v3": ({**V3, "num_hidden_layers": 1, "first_k_dense_replace": 0}, {"batch": 2}),
    "v3, eager": ({**V3, "q_lora_rank": None}, {"attention": "eager", "dtype": "float32", "logits": "last"}),
    "v2, biases": ({**V2, "num_hidden_layers": 1, "attention_bias": True}, {}),
    "v2, groups, eager, batched": (
        {
            **V2, **GROUPS, "topk_method": "group_limited_greedy", "q_lora_rank": 5, "num_hidden_layers": 1,
            "first_k_dense_replace": 0,
        },
        {"attention": "eager", "experts": "batched_mm", "batch": 2},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", with_variants(CASES, ("v3", "v2, groups, eager, batched")))
@pytest.mark.usefixtures("one_process")
def test_three_sources_agree(case: str, tmp_path: Path, *, thorough: bool) -> None:
    file, run = CASES[case]
    sources = SOURCES if thorough or case.startswith("v2") else SOURCES[:2]
    exact(file, {**run, "decoding": "absorbed"}, tmp_path, sources)


@pytest.mark.thorough
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.usefixtures("one_process")
def test_planted_errors_are_found(attention: str, tmp_path: Path) -> None:
    capture = exact(CASES["v3"][0], {"batch": 2, "attention": attention, "decoding": "absorbed"}, tmp_path)
    outcomes = planted("deepseek-v3", capture, 1)
    assert [(o.planted.operation, o.planted.what, o.said) for o in outcomes if not o.located] == []
    assert "absorbed_attention" in {o.planted.site.owner for o in outcomes}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "file",
    [V3, {**V3, "q_lora_rank": None}, {**V2, "attention_bias": True}],
    ids=("v3", "v3, no latents of queries", "v2, biases"),
)
@torch.no_grad()
def test_the_numbers_are_those_of_the_class(file: dict[str, Any], attention: str) -> None:
    torch.manual_seed(1)
    config = CONFIG_MAPPING[file["model_type"]](**file)
    config._attn_implementation, config._experts_implementation = attention, "eager"
    theirs: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).double().eval()
    ours = copy.deepcopy(theirs)
    absorb(ours, "model.layers")
    assert dict(ours.named_parameters()).keys() == dict(theirs.named_parameters()).keys()
    caches = [DynamicCache(config=config) for _ in range(2)]
    ids = torch.randint(0, 64, (2, 14))
    # A prompt, three single tokens, and two at once.
    for start, end in ((0, 9), (9, 10), (10, 11), (11, 12), (12, 14)):
        two = [
            model(input_ids=ids[:, start:end], past_key_values=cache).logits
            for model, cache in zip((theirs, ours), caches, strict=True)
        ]
        torch.testing.assert_close(two[1], two[0], rtol=1e-11, atol=1e-13)
        assert two[0].abs().max() > 1e-2
    for one, other in zip(*(cache.layers for cache in caches), strict=True):
        # The latent and the rotated key of 14 tokens, and nothing else.
        assert (one.keys.shape, one.values.shape) == ((2, 1, 14, 10), (2, 1, 14, 6))
        torch.testing.assert_close(other.keys, one.keys, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(other.values, one.values, rtol=1e-11, atol=1e-13)


def test_work_by_hand() -> None:
    # As test_latents.test_work_by_hand: 4 heads, keys of 7 + 6, values of 9, latents of 10.
    target = DeepseekV3(read(DeepseekV3Config, V3))
    run: dict[str, Any] = {"text_tokens": 20, "new_tokens": 3, "batch": 2}
    absorbed, expanded = (
        evaluate_formulas(target, target.workload(**run, decoding=way)) for way in ("absorbed", "expanded")
    )
    for metric in ("flops", "vector_flops", "params", "kv_cache_bytes", "input_bytes"):
        assert absorbed.stage_total("prefill", metric) == expanded.stage_total("prefill", metric)
    # Two layers, two sequences, contexts of 21 to 23: all latents expanded and scores 13 and sums 9 wide, in place of
    # one new token through the same weights and scores 16 and sums 10 wide.
    contexts = 21 + 22 + 23
    theirs = contexts * 2 * (10 * 4 * (7 + 9) + 4 * (13 + 9))
    ours = 3 * 2 * 10 * 4 * (7 + 9) + contexts * 2 * 4 * (16 + 10)
    difference = (absorbed.stage_total("decode", "flops") or 0) - (expanded.stage_total("decode", "flops") or 0)
    assert difference == 2 * 2 * (ours - theirs)
    # 16 elements of 2 bytes for a token and layer, in both: written once, read in every later step.
    assert absorbed.stage_total("decode", "kv_cache_bytes") == 3 * 2 * 2 * 16 * 2
    assert absorbed.stage_total("decode", "kv_read_bytes") == (20 + 21 + 22) * 2 * 2 * 16 * 2
    # kv_b_proj is read once a step by attention itself, and not called.
    (read_by,) = [n for n in absorbed.nodes if n.stage == "decode" and n.module.endswith("0.self_attn") and not n.kind
                  and n.invocation]  # fmt: skip
    assert read_by.cost("weight_read_bytes") == 3 * 10 * 4 * (7 + 9) * 2
    calls = [n.cost("calls") for n in absorbed.nodes if n.module.endswith("kv_b_proj") and n.stage == "decode"]
    assert [c for c in calls if c] == []


@pytest.mark.parametrize(
    ("name", "step", "elements"), [("deepseek-v2-lite", 6.828, 31_850_496), ("deepseek-v3", 108.05, 71_958_528)]
)
def test_published_models(name: str, step: float, elements: int) -> None:
    """GFLOP of a step at a context of 2,048, itself included, as others have it by formula; elements of the cache."""
    target = load_target(name)
    assert isinstance(target, CausalTarget)
    workload = target.workload(text_tokens=2047, decoding="absorbed")
    ledger = evaluate_formulas(target, workload)
    assert round((ledger.stage_total("decode", "flops") or 0) / 1e9, len(str(step).partition(".")[2])) == step
    # 512 of the latent and 64 of the rotated key for every token and layer.
    layers = target.config.layers
    assert elements == 576 * layers * 2048
    kept = sum(ledger.stage_total(stage, "kv_cache_bytes") or 0 for stage in ("prefill", "decode"))
    assert kept == (512 + 64) * layers * 2048 * 2
    assert (workload.what, target.conventions(workload).mla) == ("absorbed decoding", "absorbed")


def test_what_the_class_does_goes_without_saying() -> None:
    target = DeepseekV2()
    assert target.workload(decoding="expanded") == target.workload()
    assert target.conventions(target.workload()).mla == "expanded"
    assert Llama().conventions(Llama().workload()).mla == "none"
    with pytest.raises(Problems, match="invalid choice"):
        target.workload(decoding="both")
    with pytest.raises(Problems, match="no such setting"):
        Llama().workload(decoding="absorbed")


def test_a_proof_ranges_over_both_ways() -> None:
    made = DeepseekV3().proof(12, 1)
    drawn = [piece for piece in made.pieces if piece.sizes]
    assert {piece.workload.inputs.get("decoding") for piece in drawn} == {None, "absorbed"}
    whole = [p for p in made.pieces if not p.sizes and p.phase != "rows"]
    assert [p.workload.inputs for p in whole] == [{}, {}, {"decoding": "absorbed"}]
    # Draws that leave it out decode as the class does.
    assert count_drawn_values(made)["decoding"].values == 2
