"""Prefills behind a filled cache of models without formulas: as their family counts them, or refused."""

from __future__ import annotations

from typing import Any, Final

import pytest

from costproof.ledger.errors import Problems
from costproof.ledger.metrics import KEPT_SCORES
from costproof.models.families.qwen3 import Qwen3, Qwen3Config
from costproof.parametric.targets import evaluate_formulas
from costproof.tracers import sources as tracing
from tests.models.generic.test_stages import HEAD, LAYER, PER_PAIR, QWEN3, counted, generic
from tests.support.pools import Here

ONE: Final = {**QWEN3, "num_hidden_layers": 1}
WINDOW: Final = {
    **QWEN3, "use_sliding_window": True, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
MAMBA: Final = {
    "model_type": "mamba", "architectures": ["MambaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 1,
    "vocab_size": 64, "state_size": 4, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "Pool", Here)


@pytest.mark.slow
def test_a_chunk_by_hand() -> None:
    found = counted(ONE, seq_len=7, past=5, new_tokens=1)
    assert found.verdict == "exact"
    prompt, step = found.capture.invocations
    assert (prompt.symbols["C"], prompt.symbols["S"], step.symbols["P"]) == (5, 7, 12)
    for source in ("static", "dynamic"):
        ledger = found.capture.ledger(source)
        assert ledger.stage_total("prefill", "flops") == 7 * (LAYER + HEAD) + PER_PAIR * 7 * 12
        assert ledger.stage_total("prefill", KEPT_SCORES) == 4 * (7 * 5 + 7 * 8 // 2)
        assert ledger.stage_total("prefill", "kv_read_bytes") == 5 * 2 * 2 * 8 * 2
        assert ledger.stage_total("prefill", "kv_cache_bytes") == 7 * 2 * 2 * 8 * 2
        assert ledger.stage_total("decode", "flops") == LAYER + HEAD + PER_PAIR * 13


@pytest.mark.slow
@pytest.mark.parametrize(("past", "tokens"), [(9, 7), (3, 7), pytest.param(2, 2, marks=pytest.mark.thorough)])
def test_windows_as_formulas_count_them(past: int, tokens: int) -> None:
    """Full before the prompt, filled by it, and not filled."""
    found = counted(WINDOW, sources=("static",), seq_len=tokens, past=past, new_tokens=1)
    family = Qwen3(Qwen3Config.read(WINDOW, []))
    formulas = evaluate_formulas(family, family.workload(text_tokens=tokens, past=past, new_tokens=1))
    for metric in ("flops", KEPT_SCORES, "kv_read_bytes", "kv_cache_bytes"):
        for stage in ("prefill", "decode"):
            counted_here = found.capture.ledger("static").stage_total(stage, metric)
            assert counted_here == formulas.stage_total(stage, metric), (stage, metric)


@pytest.mark.parametrize(
    ("data", "settings", "said"),
    [
        (MAMBA, {"past": 3}, "counted only for a cache of keys and values"),
        (ONE, {"past": -1}, "too few tokens in the cache"),
        (ONE, {"past": 32_700, "seq_len": 100}, "longer than the model's context"),
        (WINDOW, {"past": 2, "seq_len": 2, "new_tokens": 3}, "end of a sliding window"),
    ],
)
def test_runs_that_are_refused(data: dict[str, Any], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(Problems, match=said):
        generic(data).workload(**settings)


def test_no_past_is_the_same_run() -> None:
    assert generic(ONE).workload(past=0, seq_len=4).inputs == {}
