"""Caches with sliding windows: what a layer holds, which steps have a sum in closed form, and which runs fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from costproof import api
from costproof.ledger.workload import Workload
from costproof.models.generic.caches import CacheLayer, OwnCache
from costproof.models.generic.inputs import Inputs
from costproof.models.generic.stages import Cached


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
