"""Caches of states, of indexers, and of several kinds of layers: what is counted is what plain runs do and keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import (
    DynamicCache,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from costproof.models.generic.caches import caches_of, grows_evenly, held, held_places
from tests.models.generic.test_stages import counted
from tests.oracles.zoo_count import _rules

COMMON: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "head_dim": 8,
}  # fmt: skip
TYPES: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2, "vocab_size": 64, "time_step_rank": 4},
    "mamba2": {
        "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2, "vocab_size": 64, "num_heads": 8, "head_dim": 8,
        "n_groups": 2, "chunk_size": 4,
    },
    "qwen3_next": {
        **COMMON, "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4,
        "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    },
    "falcon_h1": {
        **COMMON, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 4,
        "mamba_chunk_size": 4,
    },
    "lfm2": {**COMMON, "layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
    "deepseek_v32": {
        **COMMON, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1, "n_routed_experts": 4, "n_group": 1,
        "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "index_n_heads": 2,
        "index_head_dim": 16, "index_topk": 4,
    },
    "minimax": {
        **COMMON, "layer_types": ["full_attention", "linear_attention"], "block_size": 4, "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "moshi": {**{k: v for k, v in COMMON.items() if k != "intermediate_size"}, "ffn_dim": 48},
}  # fmt: skip
FIRST = ("mamba", "lfm2")
"""One of states alone, one of both; the others are thorough."""
BATCH, PROMPT, STEPS = 2, 7, 2


def plain_run(name: str) -> tuple[dict[str, int], dict[str, int]]:
    """FLOPs by torch's counter of a prompt and of all steps, and bytes by which each makes the real cache larger."""
    config = AutoConfig.for_model(name, **TYPES[name])
    model = AutoModelForCausalLM.from_config(config).eval()
    flops, grown = {"prefill": 0, "decode": 0}, {"prefill": 0, "decode": 0}
    past: dict[str, Any] = {}
    with torch.no_grad():
        for i in range(1 + STEPS):
            stage, before = "decode" if i else "prefill", held(past)
            ids = torch.randint(1, 64, (BATCH, 1 if i else PROMPT))
            with FlopCounterMode(display=False, custom_mapping=_rules()) as ran:
                past = caches_of(model(input_ids=ids, use_cache=True, **past))
            flops[stage] += ran.get_total_flops()
            grown[stage] += held(past) - before
    return flops, grown


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("name", [n if n in FIRST else pytest.param(n, marks=pytest.mark.thorough) for n in TYPES])
def test_prefill_and_steps_are_what_plain_runs_do_and_keep(name: str) -> None:
    flops, grown = plain_run(name)
    data = {**TYPES[name], "model_type": name}
    found = counted(data, batch=BATCH, seq_len=PROMPT, new_tokens=STEPS, dtype="float32")
    assert found.verdict == "exact", found.sentence
    for source in ("static", "dynamic"):
        ledger = found.capture.ledger(source)
        for stage in ("prefill", "decode"):
            assert ledger.stage_total(stage, "flops") == flops[stage]
            assert ledger.stage_total(stage, "kv_cache_bytes") == grown[stage]


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("name", "sizes", "said"),
    [
        ("rwkv", {}, "forward returns state, which is not known as a cache"),
        # It wants all ids again, beside the keys and values that it has of them.
        ("cpmant", {"num_attention_heads": 4, "dim_head": 8, "dim_ff": 48}, "a step does not run: RuntimeError"),
    ],
)
def test_a_model_that_is_not_cut_says_why(name: str, sizes: dict[str, int], said: str) -> None:
    data = {"model_type": name, "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 64, **sizes}
    found = counted(data, batch=1, seq_len=3)
    assert (found.verdict, found.capture.target.stages) == ("exact", ("forward",))
    for source in ("static", "dynamic"):
        notes = found.capture.ledger(source).notes
        assert any(f"prefill and decode are one stage: {said}" in note for note in notes), notes


def test_integers_in_a_cache_are_inputs_of_a_step_and_not_its_bytes() -> None:
    layer = DynamicIndexedLayer()
    layer.update(torch.empty(1, 2, 5, 8), torch.empty(1, 2, 5, 8))
    layer.update_indexer(torch.empty(1, 5, 4))
    layer.indexer_position_ids = torch.zeros(3, 1, 5, dtype=torch.long)
    assert [tuple(t.shape) for t in held_places(layer)] == [(3, 1, 5)]
    assert held(layer) == 4 * (2 * 2 * 5 * 8 + 5 * 4)


def mixed(tokens: int) -> DynamicCache:
    """A layer of keys and values, one with a window of 4, and one of states, after so many tokens."""
    cache = DynamicCache()
    cache.layers = [DynamicLayer(), DynamicSlidingWindowLayer(4), LinearAttentionLayer()]
    keys = torch.empty(1, 2, tokens, 8)
    for layer in cache.layers[:2]:
        layer.update(keys, keys)
    cache.layers[2].update_conv_state(torch.empty(1, 6, 3))
    return cache


@pytest.mark.parametrize(
    ("first", "last", "evenly"),
    # The window keeps 3 tokens: before its end it grows, behind it it does not, and across it it grows by less.
    [(1, 3, True), (2, 4, False), (3, 9, True), (3, 3, True)],
)
def test_steps_that_all_make_a_cache_larger_by_the_same(first: int, last: int, *, evenly: bool) -> None:
    assert grows_evenly(mixed(first), mixed(last), last - first) == evenly
