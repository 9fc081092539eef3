"""Prefills behind a filled cache of models without formulas: as their family counts them, or refused."""

from __future__ import annotations

from typing import Any, Final

import pytest

from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.metrics import KEPT_SCORES
from costproof.models.families.qwen3 import Qwen3, Qwen3Config
from costproof.models.families.qwen3_moe import Qwen3Moe, Qwen3MoeConfig
from costproof.parametric.targets import evaluate_formulas
from costproof.tracers import sources as tracing
from tests.models.generic.test_stages import HEAD, LAYER, PER_PAIR, QWEN3, counted, generic
from tests.models.test_mixtures import QWEN3 as QWEN3_MOE
from tests.support.pools import Here

ONE: Final = {**QWEN3, "num_hidden_layers": 1}
MOE: Final = {**QWEN3_MOE, "num_hidden_layers": 1}
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
def test_each_row_is_a_forward_by_hand() -> None:
    """A prompt of 9, three steps behind 8, and 5 tokens behind 7: 9 + 3 + 5 tokens, and pairs of each row.

    The packed call that they stand for reads weights once, and looks up 17 rows.
    """
    found = counted(ONE, rows="9, 3x1+8, 5+7/all")
    assert found.verdict == "exact"
    prompt = counted(ONE, seq_len=9, new_tokens=0, sources=("static",)).capture.ledger("static")
    assert [call.symbols for call in found.capture.invocations] == [
        {"B": 1, "S": 9, "b": 2}, {"B": 3, "S": 1, "C": 8, "b": 2}, {"B": 1, "S": 5, "C": 7, "b": 2},
    ]  # fmt: skip
    for source in ("static", "dynamic"):
        ledger = found.capture.ledger(source)
        assert ledger.total("flops") == 17 * (LAYER + HEAD) + PER_PAIR * (9 * 9 + 3 * 9 + 5 * 12)
        assert ledger.total(KEPT_SCORES) == 4 * (9 * 10 // 2 + 3 * 9 + 5 * 7 + 5 * 6 // 2)
        assert ledger.total("kv_read_bytes") == (3 * 8 + 7) * 2 * 2 * 8 * 2
        assert ledger.total("kv_cache_bytes") == 17 * 2 * 2 * 8 * 2
        assert ledger.total("params") == prompt.total("params")
        looked_up, table = 17 * 32 * 2, 64 * 32 * 2
        assert ledger.total("weight_read_bytes") == (ledger.total("weight_bytes") or 0) - table + looked_up


@pytest.mark.slow
def test_rows_read_weights_as_the_packed_call_of_the_formulas() -> None:
    """A row of one token touches 3 of 6 experts, three steps all, and 5 tokens all: 6 in one call.

    The floor has weights and inverse frequencies once; what the layers of the packed call join is no part of it.
    """
    rows = "1, 3x1+8, 5+7/all"
    ledger = counted(MOE, rows=rows).capture.ledger("dynamic")
    family = Qwen3Moe(Qwen3MoeConfig.read(MOE, []))
    formulas = evaluate_formulas(family, family.workload(rows=rows))
    for metric in ("weight_read_bytes", "floor_bytes", "flops", "kv_read_bytes", "kv_cache_bytes"):
        assert ledger.total(metric) == formulas.total(metric), metric


@pytest.mark.slow
def test_published_pairs_of_a_serving_engine() -> None:
    """SGLang: two prompts of 100 tokens are 2 x 5,050 pairs of a query and a key."""
    found = counted(ONE, rows="2x100", sources=("static",))
    assert found.capture.ledger("static").total(KEPT_SCORES) == 4 * 10_100


@pytest.mark.parametrize(
    ("config", "rows", "where", "what"),
    [
        (ONE, "9, 3x1+8/0", "--rows", "without formulas, the head maps every position"),
        (ONE, "9, 4x2+8/1", "--rows", "without formulas, the head maps every position"),
        (MAMBA, "9, 3x1+8", "--rows", "decoders with a cache of keys and values"),
        (ONE, "9, 3x1+5000", "--rows, 3x1+5000", "longer than the model's context"),
    ],
)
def test_rows_that_are_refused(config: dict[str, Any], rows: str, where: str, what: str) -> None:
    with pytest.raises((BadInput, Problems), match=what) as caught:
        generic({**config, "max_position_embeddings": 4096}).workload(rows=rows)
    problem = caught.value.problems[0] if isinstance(caught.value, Problems) else caught.value
    assert problem.where == where


def test_rows_that_are_given_with_other_lengths() -> None:
    for other in ("batch", "seq_len", "past", "new_tokens"):
        given: dict[str, Any] = {other: 2}
        with pytest.raises(Problems, match="the rows of a batch say this"):
            generic(ONE).workload(rows="9, 3x1+8", **given)


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
