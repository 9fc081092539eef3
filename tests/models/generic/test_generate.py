"""Prefill and decode steps against what transformers' own ``generate`` runs, counted by torch's counter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from tests.models.generic.test_stages import QWEN3, counted
from tests.oracles.zoo_count import _rules

COMMON: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "head_dim": 8,
}  # fmt: skip
TYPES: dict[str, dict[str, Any]] = {
    "qwen3": QWEN3,
    "olmo2": {**COMMON, "model_type": "olmo2"},
    "gemma3_text": {**COMMON, "model_type": "gemma3_text", "sliding_window": 64, "layer_types": ["full_attention"] * 2},
    "gpt_neox": {**COMMON, "model_type": "gpt_neox"},
    "qwen3_moe": {
        **COMMON, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    },
}  # fmt: skip
BATCH, PROMPT, STEPS = 2, 7, 3


@pytest.mark.parametrize(
    "name", ["qwen3", *(pytest.param(n, marks=pytest.mark.thorough) for n in TYPES if n != "qwen3")]
)
def test_prefill_and_steps_are_what_generate_runs(name: str) -> None:
    data = TYPES[name]
    options = {k: v for k, v in data.items() if k not in ("model_type", "architectures")}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(data["model_type"], **options)).eval()
    ids = torch.randint(1, 64, (BATCH, PROMPT))
    with FlopCounterMode(display=False, custom_mapping=_rules()) as ran:
        # The last of the new tokens is chosen, and goes through no step any more.
        model.generate(ids, max_new_tokens=STEPS + 1, min_new_tokens=STEPS + 1, do_sample=False)
    found = counted(data, sources=("static",), batch=BATCH, seq_len=PROMPT, new_tokens=STEPS, dtype="float32")
    # Of the prompt generate wants the logits of the last position alone.
    rest = 2 * BATCH * (PROMPT - 1) * 32 * 64
    assert found.capture.ledger("static").total("flops") == ran.get_total_flops() + rest
