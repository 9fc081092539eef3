"""Two families compared: by the keys that both have, and what is left to the family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import costproof

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 8, "vocab_size": 64, "max_position_embeddings": 4096,
}  # fmt: skip


def side(folder: Path, model_type: str, **keys: int) -> str:
    path = folder / f"{model_type}.json"
    path.write_text(json.dumps({"model_type": model_type, **SIZES, **keys}))
    return f"hf:{path}@chat,text_tokens=10,new_tokens=1"


def test_a_key_that_both_families_have_is_told_apart_from_the_family(tmp_path: Path) -> None:
    """Qwen3 has norms of queries and keys, 2 x 8 weights a layer, and no biases of q, k and v, 3 x 32 a layer."""
    head = side(tmp_path, "qwen3", vocab_size=96, num_hidden_layers=3)
    found = costproof.diff(side(tmp_path, "qwen2"), head)
    flops, params = found.totals["flops"], found.totals["params"]
    assert flops.shares.keys() == {"vocab", "layers"}
    assert flops.shares["vocab"] == 2 * (10 + 1) * 32 * 32
    # A layer: 4 matrices of 32 x 32, 3 of 32 x 48; 10 x 10 scores, and 11 of the step, of 4 heads of 8.
    assert flops.shares["layers"] == 2 * 11 * (4 * 32 * 32 + 3 * 32 * 48) + 4 * 32 * (10 * 10 + 11)
    assert params.shares.keys() == {"vocab", "layers", "model"}
    joint = [t for t in params.terms if set(t.keys) == {"layers", "model"}]
    assert [t.amount for t in joint] == [2 * 8 - 3 * 32]
    assert [t.amount for t in params.terms if t.keys == ("model",)] == [2 * (2 * 8 - 3 * 32)]
    assert [t.amount for t in params.terms if t.keys == ("vocab",)] == [2 * 32 * 32]  # the table and the head


def test_two_families_of_the_same_sizes_differ_by_the_family_alone(tmp_path: Path) -> None:
    found = costproof.diff(side(tmp_path, "qwen2"), side(tmp_path, "qwen3"))
    assert found.totals["params"].shares == {"model": 2 * (2 * 8 - 3 * 32)}
    assert found.totals["flops"].delta == 0
