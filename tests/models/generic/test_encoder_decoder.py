"""Encoder-decoders: three stages that agree in both sources, by hand arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.generic.test_stages import counted, generic

T5: dict[str, Any] = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 32, "d_kv": 8, "d_ff": 48,
    "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "vocab_size": 64, "decoder_start_token_id": 0,
}  # fmt: skip
BART: dict[str, Any] = {
    "model_type": "bart", "architectures": ["BartForConditionalGeneration"], "d_model": 32, "encoder_layers": 2,
    "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "vocab_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
ENCODER = 2 * 2 * (4 * 32 * 32 + 2 * 32 * 48)
"""A position: two layers of four projections and an MLP of two."""
DECODER = 2 * (3 * (4 * 32 * 32 + 2 * 32 * 32 + 2 * 32 * 48) + 32 * 64)
"""A position: three layers of own attention, q and out of the other one, and an MLP; and the head."""
CROSS = 2 * 3 * 2 * 32 * 32
"""Keys and values of a position of the encoder, made once."""
PAIR = 4 * 32
"""Two products of a query and a key of 4 heads of 8."""


@pytest.mark.parametrize("data", [T5, BART], ids=["t5", "bart"])
def test_three_stages(data: dict[str, Any]) -> None:
    found = counted(data, batch=2, seq_len=20, new_tokens=5)
    assert found.capture.target.stages == ("encode", "prefill", "decode")
    expected = {
        "encode": 2 * (20 * ENCODER + 2 * PAIR * 20 * 20),
        "prefill": 2 * (DECODER + 20 * CROSS + 3 * PAIR * (1 + 20)),
        "decode": 2 * sum(DECODER + 3 * PAIR * (context + 1 + 20) for context in range(1, 6)),
    }
    for source in ("static", "dynamic"):
        ledger = found.capture.ledger(source)
        assert {stage: ledger.stage_total(stage, "flops") for stage in expected} == expected
        # Two tensors of 3 layers, 4 heads of 8, in bfloat16.
        assert ledger.stage_total("decode", "kv_cache_bytes") == 2 * 5 * 2 * 3 * 32 * 2
        assert ledger.stage_total("prefill", "kv_cache_bytes") == 2 * (1 + 20) * 2 * 3 * 32 * 2
    assert found.verdict == "exact", found.sentence


def test_what_an_encoder_decoder_takes() -> None:
    target = generic(T5)
    assert target.stages_of("shared", target.workload(seq_len=8)) == ("encode", "prefill", "decode")
    assert target.stages_of("encoder.block.0", target.workload(seq_len=8)) == ("encode",)
