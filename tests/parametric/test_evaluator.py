"""The analytic numbers of a target with other keys and settings, against arithmetic written out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.baseline import BaselineRow
from costproof.ledger.errors import BadInput, Problems
from costproof.models.registry import load_target
from costproof.parametric.evaluator import Evaluator
from costproof.parametric.targets import evaluate_formulas

LLAMA: dict[str, Any] = {
    "hidden": 64, "intermediate": 96, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 100,
}  # fmt: skip


def test_a_small_llama_by_hand() -> None:
    numbers = Evaluator.of("llama").at(LLAMA, settings={"text_tokens": 5, "batch": 3, "new_tokens": 2})
    tokens, layers = 3 * 5, 2
    assert numbers.rows[BaselineRow("prefill", "lm_head", "linear", "flops")] == 2 * tokens * 64 * 100
    assert (
        numbers.rows[BaselineRow("prefill", "text.layer.attention.q", "linear", "flops")]
        == layers * 2 * tokens * 64 * 64
    )
    assert (
        numbers.rows[BaselineRow("prefill", "text.layer.attention.k", "linear", "flops")]
        == layers * 2 * tokens * 64 * 32
    )
    # Two tables of 100 x 64; per layer q and out 64 x 64, k and v 64 x 32, three of 64 x 96, two norms; one norm.
    params = 2 * 6400 + layers * (2 * 4096 + 2 * 2048 + 3 * 6144 + 2 * 64) + 64
    # Both stages run the same modules.
    for stage in ("", "prefill", "decode"):
        assert numbers.totals[stage, "params"] == params
    # Keys and values of 2 heads of 16 in 2 bytes, for the prompt, and one more token a step.
    assert numbers.totals["prefill", "kv_cache_bytes"] == layers * 2 * tokens * 32 * 2
    assert numbers.totals["decode", "kv_cache_bytes"] == layers * 2 * 3 * 2 * 32 * 2


def test_rows_of_a_metric_of_calls_sum_to_the_totals() -> None:
    numbers = Evaluator.of("deepseek-ocr").at({"text.topk": 8}, "gundam:3x2")
    for metric in ("flops", "input_bytes"):
        of_stages = {
            stage: numbers.totals[stage, metric] for stage in ("sam", "clip", "projector", "prefill", "decode")
        }
        for stage, total in of_stages.items():
            assert total == sum(n for row, n in numbers.rows.items() if (row.stage, row.metric) == (stage, metric))
        assert numbers.totals["", metric] == sum(of_stages.values())


def test_keys_changed_and_the_same_keys_in_a_file_are_one_model(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    names = {"hidden": "hidden_size", "intermediate": "intermediate_size", "layers": "num_hidden_layers",
             "heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "vocab": "vocab_size"}  # fmt: skip
    file.write_text(json.dumps({"model_type": "llama", "head_dim": 16, **{n: LLAMA[k] for k, n in names.items()}}))
    target: Any = load_target("llama", file)
    ledger = evaluate_formulas(target, target.workload(text_tokens=7))
    numbers = Evaluator.of("llama").at(LLAMA, settings={"text_tokens": 7})
    for (stage, metric), total in numbers.totals.items():
        assert total == (ledger.stage_total(stage, metric) if stage else ledger.total(metric)), (stage, metric)


def test_a_key_by_its_last_word() -> None:
    points = Evaluator.of("deepseek-ocr")
    assert points.key("topk") == "text.topk"
    assert points.keys()["sam.global_layers"] == (2, 5, 8, 11)
    with pytest.raises(BadInput, match="several keys"):
        points.key("hidden")
    with pytest.raises(BadInput, match="no such key"):
        points.key("hiddn")


@pytest.mark.parametrize(
    ("target", "keys", "settings", "words"),
    [
        ("llama", {"heads": 7}, {}, "the heads must divide the width"),
        ("llama", {"hidden": 0}, {}, "an integer from 1 to"),
        ("llama", {"layers": 10_001}, {}, "an integer from 1 to 1000"),
        ("llama", {"tied": 1}, {}, "true or false"),
        ("llama", {"activation": "sine"}, {}, "relu"),
        ("bert", {"architecture": "BertFor"}, {}, "other keys depend on it"),
        ("bert", {"labels": 3}, {}, "this part cannot be added"),
        ("deepseek-v2", {"head_dim": 64}, {}, "follows from other keys"),
        ("deepseek-ocr", {"text.topk": 65}, {}, "more experts than there are"),
        ("deepseek-ocr", {"sam.global_layers": [2, 12]}, {}, "global attention layer does not exist"),
        ("deepseek-ocr", {"sam.global_layers": ["2"]}, {}, "a list of integers"),
        ("deepseek-ocr", {}, {"base_size": 100}, "a positive multiple of 64"),
        ("deepseek-ocr", {}, {"btach": 1}, "no such setting"),
        ("deepseek-ocr", {}, {"batch": "many"}, "--batch"),
    ],
)
def test_what_is_not_a_model_is_refused(
    target: str, keys: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(Problems) as caught:
        Evaluator.of(target).at(keys, settings=settings)
    assert words in str(caught.value)


def test_a_target_without_formulas() -> None:
    with pytest.raises(BadInput, match="no formulas"):
        Evaluator.of("torch.nn:Identity")
