"""LongRoPE, whose second set of frequencies is made in a forward: prefill and step are exported all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import costproof

PHI3: dict[str, Any] = {
    "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64,
    "max_position_embeddings": 1024, "original_max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 1,
    "bos_token_id": 1,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
}  # fmt: skip


@pytest.mark.usefixtures("one_process")
def test_a_step_of_a_model_with_long_frequencies_is_exported(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps(PHI3))
    found = costproof.report(
        f"hf:{tmp_path}/c.json", seq_len=10, new_tokens=1, batch=2, sources=["static", "dynamic"], run="meta"
    )
    assert found.verdict == "exact"
    # Of two rows: four matrices of attention, three of the MLP, the head; eleven places.
    step = 2 * (2 * (4 * 32 * 32 + 3 * 32 * 48 + 32 * 64) + 4 * 11 * 32)
    assert [ledger.stage_total("decode", "flops") for ledger in found.capture.ledgers] == [step, step]
