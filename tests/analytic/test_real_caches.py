"""Bytes of the key/value cache against a cache that transformers filled, element by element, at five contexts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache

import costproof
from costproof.ledger.metrics import TRAFFIC
from costproof.ledger.node import Ledger

TEXT: Final[dict[str, Any]] = {
    "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 3, "vocab_size": 64, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
LATENT: Final[dict[str, Any]] = {
    "kv_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 6, "v_head_dim": 9, "q_lora_rank": None,
    "moe_intermediate_size": 16, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}  # fmt: skip
# Family, its file beside the sizes.
CASES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "one key for each query": ("llama", {"num_key_value_heads": 4}),
    "grouped queries": ("llama", {"num_key_value_heads": 2, "head_dim": 12}),
    "latents": ("deepseek_v2", LATENT),
    "a window of 8": ("mistral", {"num_key_value_heads": 2, "sliding_window": 8}),
    "windows in some layers": (
        "qwen3",
        {
            "num_key_value_heads": 2, "head_dim": 12, "use_sliding_window": True, "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}  # fmt: skip
CONTEXTS: Final = (3, 7, 8, 20, 41)
"""Below a window of 8, at what its cache keeps, filled, and far beyond."""
BATCH: Final = 2


def sizes(caches: Iterable[DynamicCache]) -> int:
    """Bytes of what caches hold, counted element by element."""
    return sum(
        t.numel() * t.element_size() for cache in caches for layer in cache.layers for t in (layer.keys, layer.values)
    )


def counted(target: str, folder: Path, **length: int) -> Ledger:
    """The formulas of a file, for a prompt and one step."""
    settings: dict[str, Any] = {"new_tokens": 1, "batch": BATCH, "dtype": "float32", **length}
    return costproof.capture(target, config=folder / "config.json", sources=["analytic"], **settings).ledger("analytic")


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("case", CASES)
def test_a_step_reads_what_the_cache_holds(case: str, context: int, tmp_path: Path) -> None:
    family, more = CASES[case]
    file = {"model_type": family, **TEXT, **more}
    (tmp_path / "config.json").write_text(json.dumps(file), encoding="utf-8")
    settings = CONFIG_MAPPING[family](**{k: v for k, v in file.items() if k != "model_type"})
    model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    cache = DynamicCache(config=settings)
    with torch.no_grad():
        model(torch.zeros(BATCH, context, dtype=torch.long), past_key_values=cache, use_cache=True)
    held = sizes([cache])
    with torch.no_grad():
        model(torch.zeros(BATCH, 1, dtype=torch.long), past_key_values=cache, use_cache=True)

    found = counted(family.replace("_", "-"), tmp_path, text_tokens=context)
    assert found.stage_total("prefill", "kv_read_bytes") == 0
    assert found.stage_total("prefill", "kv_cache_bytes") == held
    assert found.stage_total("decode", "kv_read_bytes") == held
    assert found.stage_total("decode", "kv_cache_bytes") == sizes([cache]) - held


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_step_of_two_stacks_reads_both_caches(context: int, tmp_path: Path) -> None:
    file = {"d_model": 32, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 4, "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", **file}), encoding="utf-8")
    settings = CONFIG_MAPPING["t5"](**file)
    model = AutoModelForSeq2SeqLM.from_config(settings, dtype=torch.float32).eval()
    cache = EncoderDecoderCache(DynamicCache(config=settings), DynamicCache(config=settings))
    with torch.no_grad():
        model(
            input_ids=torch.zeros(BATCH, context, dtype=torch.long),
            decoder_input_ids=torch.zeros(BATCH, 1, dtype=torch.long), past_key_values=cache, use_cache=True,
        )  # fmt: skip
    held = sizes([cache.self_attention_cache, cache.cross_attention_cache])
    assert sizes([cache.cross_attention_cache]) == 2 * 2 * BATCH * context * 4 * 8 * 4
    found = counted("t5", tmp_path, seq_len=context)
    assert found.stage_total("decode", "kv_read_bytes") == held


def test_one_layer_of_llama_by_hand() -> None:
    # Llama 3.1 8B in bfloat16: 8 heads of 128 for keys and values, 32 layers; 100 tokens, then one step.
    found = costproof.capture("llama-3.1-8b", sources=["analytic"], text_tokens=100, new_tokens=1).ledger("analytic")
    token = 2 * 8 * 128 * 2

    def layer(stage: str) -> dict[str, int | None]:
        nodes = [n for n in found.nodes if (n.stage, n.module) == (stage, "model.layers.0.self_attn") and n.invocation]
        return {m: sum(n.cost(m) or 0 for n in nodes) for m in TRAFFIC[1:]}

    # Queries, keys and values of all tokens and the cosines and sines come in; what attention returns goes out.
    tables = 2 * 128 * 2
    assert layer("prefill") == {
        "input_bytes": 100 * (4096 * 2 + token + tables),
        "output_bytes": 100 * 4096 * 2,
        "kv_read_bytes": 0,
        "kv_cache_bytes": 100 * token,
    }
    assert layer("decode") == {
        "input_bytes": 4096 * 2 + token + tables,
        "output_bytes": 4096 * 2,
        "kv_read_bytes": 100 * token,
        "kv_cache_bytes": token,
    }
    assert found.stage_total("decode", "kv_read_bytes") == 32 * 100 * token
