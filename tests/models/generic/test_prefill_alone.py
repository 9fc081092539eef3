"""Runs without decode steps of models without formulas, and of an encoder with a decoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import costproof

pytestmark = pytest.mark.usefixtures("one_process")

T5: dict[str, Any] = {
    "model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_decoder_layers": 1,
    "num_heads": 4, "vocab_size": 64, "architectures": ["T5ForConditionalGeneration"],
}  # fmt: skip
OPT: dict[str, Any] = {
    "model_type": "opt", "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "vocab_size": 64, "word_embed_proj_dim": 32, "architectures": ["OPTForCausalLM"],
}  # fmt: skip
LAYER = 2 * 9 * (4 * 32 * 32 + 2 * 32 * 64) + 4 * 9 * 9 * 32
"""Nine tokens through four matrices of attention, two of an MLP, and all pairs."""
HEAD = 2 * 32 * 64
CROSS = 2 * 2 * 32 * 32 + 2 * 9 * 2 * 32 * 32 + 4 * 9 * 32
"""Queries and results of one token, keys and values of nine, and their pairs."""
FIRST = 2 * (4 * 32 * 32 + 2 * 32 * 64) + 4 * 32 + CROSS + HEAD


@pytest.mark.parametrize(
    ("file", "sources", "flops"),
    [
        (T5, ("analytic", "static", "dynamic"), {"encode": LAYER, "prefill": FIRST}),
        (OPT, ("static", "dynamic"), {"prefill": LAYER + 9 * HEAD}),
    ],
)
def test_a_run_without_steps(
    tmp_path: Path, file: dict[str, Any], sources: tuple[str, ...], flops: dict[str, int]
) -> None:
    (tmp_path / "c.json").write_text(json.dumps(file))
    report = costproof.report(f"hf:{tmp_path}/c.json", seq_len=9, new_tokens=0, sources=list(sources))
    assert report.verdict == "exact"
    assert [call.stage for call in report.capture.invocations] == list(flops) == list(report.capture.target.stages)
    for source in sources:
        ledger = report.capture.ledger(source)
        assert {stage: ledger.stage_total(stage, "flops") for stage in ledger.stages} == flops
