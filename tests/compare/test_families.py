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
    # A norm is a part that Qwen3 alone has: of queries and of keys, 8 weights in each of 3 layers.
    norms = ("text.layer.attention.k_norm", "text.layer.attention.q_norm")
    assert params.shares.keys() == {"vocab", "layers", "family", *norms}
    assert {params.shares[norm] for norm in norms} == {3 * 8}
    joint = [t for t in params.terms if set(t.keys) == {"layers", "family"}]
    assert [t.amount for t in joint] == [-3 * 32]
    assert [t.amount for t in params.terms if t.keys == ("family",)] == [2 * -3 * 32]
    assert [t.amount for t in params.terms if t.keys == ("vocab",)] == [2 * 32 * 32]  # the table and the head


def test_two_families_of_the_same_sizes_differ_by_part_and_by_the_family(tmp_path: Path) -> None:
    found = costproof.diff(side(tmp_path, "qwen2"), side(tmp_path, "qwen3"))
    norms = ("text.layer.attention.k_norm", "text.layer.attention.q_norm")
    assert found.totals["params"].shares == {"family": 2 * -3 * 32, **dict.fromkeys(norms, 2 * 8)}
    assert [(c.key, c.base, c.head) for c in found.modules.changed] == [(norm, None, "norm") for norm in norms]
    # Of each of 10 positions and of the step, in 2 layers of 4 heads: what a norm of 8 writes, in bfloat16.
    assert found.totals["output_bytes"].shares == dict.fromkeys(norms, 11 * 2 * 4 * 8 * 2)
    assert found.totals["flops"].delta == 0


def test_parts_of_a_mixture_and_of_a_dense_layer_are_told_apart_from_keys(tmp_path: Path) -> None:
    """What one family alone has is its own term, in FLOPs and parameters; the rest falls to the common keys."""
    mixture = side(tmp_path, "qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    found = costproof.diff(side(tmp_path, "qwen3", vocab_size=96), mixture)
    flops, params = found.totals["flops"].shares, found.totals["params"].shares
    dense = [f"text.layer.mlp.{name}" for name in ("gate", "up", "down")]
    assert {flops[name] for name in dense} == {-2 * 11 * 2 * 32 * 48}
    assert {params[name] for name in dense} == {-2 * 32 * 48}
    # Two of four experts of 16: three matrices of 32 x 16 each; a router of four rows.
    assert flops["text.layer.experts"] == 2 * 11 * 2 * 2 * 3 * 32 * 16
    assert params["text.layer.experts"] == 2 * 4 * 3 * 32 * 16
    assert flops["text.layer.router"] == 2 * 11 * 2 * 32 * 4
    assert (flops["vocab"], params["vocab"]) == (-2 * 11 * 32 * 32, -2 * 32 * 32)
    assert sum(flops.values()) == found.totals["flops"].delta


def test_families_that_no_key_lies_between_are_compared_by_part_too() -> None:
    """Some keys of ViT with others of CLIP are no model; parts that one of them has are terms of their own."""
    found = costproof.diff("vit", "clip-vision")
    flops, params = found.totals["flops"].shares, found.totals["params"].shares
    # ViT-B/16 has 1,000 classes; CLIP ViT-B/32 a norm in front, and its table of 50 positions in a module.
    assert (flops["classifier"], params["classifier"]) == (-2 * 768 * 1000, -(768 * 1000 + 1000))
    assert (params["vision.norm_first"], params["vision.positions"]) == (2 * 768, 50 * 768)
    assert "root" not in {c.key for c in found.modules.changed}


def test_a_family_and_a_model_without_formulas_are_compared_by_part(tmp_path: Path) -> None:
    """OLMo 2 has norms of all queries and keys and none in front of a layer; Qwen2 has biases of q, k and v."""
    base = side(tmp_path, "qwen2").replace("new_tokens=1", "new_tokens=0")
    head = side(tmp_path, "olmo2").replace("@chat,text_tokens=10,new_tokens=1", ",seq-len=10,new-tokens=0")
    found = costproof.diff(base, head)
    layer = "model.layers.*"
    norms = [f"{layer}.self_attn.q_norm", f"{layer}.self_attn.k_norm", f"{layer}.post_feedforward_layernorm"]
    biases = [f"{layer}.self_attn.{name}_proj" for name in "qkv"]
    changed = {c.key: (c.base, c.head) for c in found.modules.changed}
    norm = "2 x RMSNorm (weight bfloat16[32])"
    assert [changed[name] for name in norms] == [(None, norm)] * 3
    assert changed[f"{layer}.input_layernorm"] == (norm, None)
    assert [changed[name] for name in biases] == [("bias bfloat16[32]", "none of it")] * 3
    assert not {"(root)", layer, f"{layer}.mlp"} & changed.keys()  # the same class of another family
    expected = {**dict.fromkeys(norms, 2 * 32), **dict.fromkeys([f"{layer}.input_layernorm", *biases], -2 * 32)}
    assert found.totals["params"].shares == expected
    assert (found.config.changed, found.workload.changed) == ((), ())  # 10 tokens on both sides
