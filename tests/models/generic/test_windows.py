"""Caches with sliding windows: what a layer holds, which steps have a sum in closed form, and which runs fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from costproof import api
from costproof.ledger.errors import Bug
from costproof.ledger.metrics import KEPT_SCORES
from costproof.ledger.workload import Workload
from costproof.models.generic.caches import CacheLayer, OwnCache, own_cache
from costproof.models.generic.inputs import Inputs
from costproof.models.generic.stages import Cached
from tests.models.generic.test_stages import counted


def plan(first: int, steps: int, *windows: int | None) -> Cached:
    """A cache of one layer for each window."""
    layers = tuple(CacheLayer((2, 8), (2, 8), window) for window in windows)
    return Cached(Workload("w", first, steps), OwnCache(layers=layers), Inputs({}, ()))


@pytest.mark.parametrize(
    ("context", "window", "held", "grows"),
    [(5, None, 5, True), (5, 8, 5, True), (6, 8, 6, True), (7, 8, 7, False), (20, 8, 7, False)],
)
def test_what_a_layer_holds(context: int, window: int | None, held: int, *, grows: bool) -> None:
    layer = CacheLayer((2, 8), (2, 8), window)
    assert (layer.held(context), layer.grows(context)) == (held, grows)


@pytest.mark.parametrize(
    ("first", "steps", "windows", "said"),
    [
        (5, 2, (8,), ""),
        (5, 3, (8,), "cross the end of a sliding window"),
        (7, 3, (8, None), ""),
        (7, 1, (8,), ""),
        (7, 2, (8, 8), ""),
        (1, 2, (None,), ""),
        (0, 2, (None,), "the prompt is empty"),
        (3, 0, (None,), ""),
    ],
)
def test_runs_without_a_sum(first: int, steps: int, windows: tuple[int | None, ...], said: str) -> None:
    found = plan(first, steps, *windows).problems()
    assert bool(found) == bool(said)
    assert all(said in str(problem) for problem in found)


SIZES: Final[dict[str, Any]] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "pad_token_id": 0, "sliding_window": 6,
}  # fmt: skip
"""As files of classes with formulas; ``layer_types`` cuts the cache, so that the graph is counted."""


@pytest.mark.usefixtures("one_process")
def test_steps_behind_the_end_of_every_window_cost_the_same(tmp_path: Path) -> None:
    file = tmp_path / "llama.json"
    file.write_text(
        json.dumps({"model_type": "llama", **SIZES, "num_hidden_layers": 1, "layer_types": ["sliding_attention"]})
    )
    found = api.report(f"hf:{file}", seq_len=12, new_tokens=3)
    # Four projections and three matrices, and the head; six keys of four heads, 8 wide.
    products = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 32 * 64
    step = 2 * products + 2 * 2 * 4 * 8 * 6
    assert found.discrepancy.verdict == "exact"
    sources = found.figures.stages[-1].sources
    assert {name: costs["flops"] for name, costs in sources.items()} == {"static": 3 * step, "dynamic": 3 * step}


# test_past.py counts layers of two kinds of Qwen3, whose class runs as that of Llama does.
@pytest.mark.parametrize("kind", ["mistral", pytest.param("llama", marks=pytest.mark.thorough)])
@pytest.mark.usefixtures("one_process")
def test_layers_of_several_kinds_run_as_the_class_does(kind: str, tmp_path: Path) -> None:
    """Mistral has one mask for all layers, which does not fit if some keep fewer keys: torch fails, but not on meta."""
    data = {"model_type": kind, **SIZES, "layer_types": ["full_attention", "sliding_attention"]}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**data)).eval()
    runs = True
    with torch.no_grad():
        past = model(torch.ones(1, 12, dtype=torch.int64), use_cache=True).past_key_values
        try:
            model(torch.ones(1, 1, dtype=torch.int64), past_key_values=past, use_cache=True)
        except RuntimeError:
            runs = False
    assert runs == (kind == "llama")
    file = tmp_path / "c.json"
    file.write_text(json.dumps(data))
    found = api.report(f"hf:{file}", seq_len=12, new_tokens=1)
    assert found.discrepancy.verdict == ("exact" if runs else "incomplete")
    assert runs or "a mask of 1 x 6 does not fit scores of" in " ".join(found.discrepancy.incomplete)


LLAMA4: Final[dict[str, Any]] = {
    "model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
    "intermediate_size_mlp": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "vocab_size": 64, "num_local_experts": 2, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
    "attention_chunk_size": 6, "max_position_embeddings": 256, "no_rope_layers": [1, 0], "pad_token_id": 0,
    "layer_types": ["chunked_attention", "full_attention"],
}  # fmt: skip
MIXED, CHUNKS = ("chunked_attention", "full_attention"), ("chunked_attention", "chunked_attention")


def seen(first: int, last: int, kind: str) -> int:
    """Count the pairs of the queries from ``first`` to before ``last``, in four heads, each pair tried.

    A query sees keys up to its own: all, those of its own chunk of 6, or the last 6.
    """
    allowed: dict[str, Callable[[int, int], bool]] = {
        "full_attention": lambda query, key: True,
        "chunked_attention": lambda query, key: query // 6 == key // 6,
        "sliding_attention": lambda query, key: query - key < 6,
    }
    return 4 * sum(allowed[kind](query, key) for query in range(first, last) for key in range(query + 1))


def of_kinds(kinds: tuple[str, ...]) -> dict[str, Any]:
    rope = [int(kind != "full_attention") for kind in kinds]
    return {**LLAMA4, "layer_types": list(kinds), "no_rope_layers": rope}


@pytest.mark.parametrize(
    ("prompt", "steps", "kinds", "settings"),
    [
        (15, 1, MIXED, {}),  # 4 keys of the chunk, 16 of all: (4 + 16) * 4 = 80; the cache has 5 + 1 keys of a chunk
        (12, 2, MIXED, {}),  # 1 + 13 and 2 + 14
        (6, 1, MIXED, {}),
        (5, 1, MIXED, {}),
        pytest.param(5, 3, MIXED, {}, marks=pytest.mark.slow),
        pytest.param(16, 3, CHUNKS, {}, marks=pytest.mark.slow),  # no layer of the cache grows
        pytest.param(
            15, 12, MIXED, {}, marks=pytest.mark.thorough
        ),  # borders before 18 and 24, on both sides of the middle
        pytest.param(15, 40, CHUNKS, {}, marks=pytest.mark.thorough),
        pytest.param(14, 9, MIXED, {"attention": "eager"}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("one_process")
def test_steps_see_the_keys_of_their_chunk(
    prompt: int, steps: int, kinds: tuple[str, ...], settings: dict[str, Any]
) -> None:
    found = counted(of_kinds(kinds), seq_len=prompt, new_tokens=steps, **settings)
    assert found.verdict == "exact"
    for source in ("static", "dynamic"):
        ledger = found.capture.ledger(source)
        assert ledger.stage_total("prefill", KEPT_SCORES) == sum(seen(0, prompt, kind) for kind in kinds)
        expected = sum(seen(prompt, prompt + steps, kind) for kind in kinds)
        assert ledger.stage_total("decode", KEPT_SCORES) == expected


def test_a_cache_that_no_prefill_leaves_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that counts its positions from the first cached key would see 15 mod 6 + 1 keys only by chance."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**LLAMA4)).to("meta").eval()
    decoder = own_cache(model)
    assert isinstance(decoder, OwnCache)
    decoder.step_run(model, Workload("w", 15, 1), 15)
    monkeypatch.setattr(OwnCache, "cache_behind", lambda self, model, past, context: self.filled_cache(model, past))
    with pytest.raises(Bug, match="tokens before the step") as found:
        decoder.step_run(model, Workload("w", 15, 1), 15)
    assert (found.value.expected, found.value.got) == ("15", "5")


def test_the_keys_of_a_chunk_by_hand() -> None:
    """At position 15 of chunks of 6 these are 12, 13, 14 and 15; at 12, 12 alone."""
    assert sum(seen(15, 16, kind) for kind in MIXED) == (4 + 16) * 4
    assert sum(seen(12, 14, kind) for kind in MIXED) == (1 + 13 + 2 + 14) * 4


@pytest.mark.parametrize(("past", "new"), [(15, 7), (12, 5), (11, 2), (3, 20), (7, 7)])
@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_a_prompt_behind_a_past_sees_the_keys_of_its_chunks(past: int, new: int) -> None:
    found = counted(LLAMA4, seq_len=new, past=past, new_tokens=1)
    assert found.verdict == "exact"
    end = past + new
    for source in ("static", "dynamic"):
        ledger = found.capture.ledger(source)
        assert ledger.stage_total("prefill", KEPT_SCORES) == sum(seen(past, end, kind) for kind in MIXED)
        assert ledger.stage_total("decode", KEPT_SCORES) == sum(seen(end, end + 1, kind) for kind in MIXED)


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_rows_see_the_keys_of_their_chunks() -> None:
    found = counted(LLAMA4, rows="9, 3x1+15, 5+8/all")
    assert found.verdict == "exact"
    expected = sum(seen(0, 9, kind) + 3 * seen(15, 16, kind) + seen(8, 13, kind) for kind in MIXED)
    for source in ("static", "dynamic"):
        assert found.capture.ledger(source).total(KEPT_SCORES) == expected


@pytest.mark.parametrize("past", [4, 5, 6, 15])
@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_a_window_sees_the_last_keys_behind_any_past(past: int) -> None:
    kinds = ("sliding_attention", "full_attention")
    data = {**SIZES, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "layer_types": list(kinds),
            "use_sliding_window": True, "max_window_layers": 0}  # fmt: skip
    found = counted(data, seq_len=7, past=past, new_tokens=2)
    assert found.verdict == "exact"
    end = past + 7
    for source in ("static", "dynamic"):
        ledger = found.capture.ledger(source)
        assert ledger.stage_total("prefill", KEPT_SCORES) == sum(seen(past, end, kind) for kind in kinds)
        assert ledger.stage_total("decode", KEPT_SCORES) == sum(seen(end, end + 2, kind) for kind in kinds)
