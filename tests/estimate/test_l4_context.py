"""The longest context of Llama-3.1-8B on an L4 with an 8-bit cache, in four formats, by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costproof.run.fits import fits

L4 = 24 * 10**9
BATCH = 4
TOKEN = 32 * 2 * 8 * 128
"""Bytes of a token in the cache: 32 layers, keys and values, 8 heads of 128 elements, a byte each."""
BUFFERS = 2 * 64 * 4
"""Rotary frequencies of 128 / 2 pairs, twice, in float32."""
HIDDEN, INNER, VOCABULARY, GROUP = 4096, 14336, 128256, 128
LINEAR = ((HIDDEN, HIDDEN), (1024, HIDDEN), (1024, HIDDEN), (HIDDEN, HIDDEN),
          (INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))  # fmt: skip
"""Rows and columns of q, k, v, o, gate, up and down."""
PLAIN = 2 * (2 * VOCABULARY * HIDDEN + (2 * 32 + 1) * HIDDEN)
"""Table, output projection and norms in bfloat16."""


def of_layers(linear: Callable[[int, int], int]) -> int:
    """Return the bytes of the linear layers of 32 layers."""
    return 32 * sum(linear(rows, columns) for rows, columns in LINEAR)


def fp8(rows: int, columns: int) -> int:
    """A byte for each weight, and a scale in bfloat16 for each row."""
    return rows * columns + 2 * rows


def awq(rows: int, columns: int) -> int:
    """Four bits for each weight; for each group of a row a scale of 16 bits and a zero point of four."""
    groups = columns // GROUP
    return rows * columns // 2 + groups * rows * 2 + groups * rows // 2


def gptq(rows: int, columns: int) -> int:
    """As AWQ, with the number of the group of each column, and a bias of zeros."""
    return awq(rows, columns) + 4 * columns + 2 * rows


def nf4(rows: int, columns: int) -> int:
    """Four bits for each weight, a byte for 64 of them, four bytes for 256 of these, and tables of 16 and 256."""
    blocks = rows * columns // 64
    return rows * columns // 2 + blocks + 4 * -(-blocks // 256) + 4 * 16 + 4 * 256


FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
DESCRIBED: dict[str, tuple[Any, dict[str, Any]]] = {
    "fp8": (fp8, {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
                  "config_groups": {"all": {"targets": ["Linear"], "weights": FP8,
                                            "input_activations": {"num_bits": 8, "type": "float", "dynamic": True}}}}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}),
    "nf4": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
                  "bnb_4bit_use_double_quant": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", DESCRIBED)
def test_the_longest_context_by_hand(name: str, tmp_path: Path) -> None:
    linear, described = DESCRIBED[name]
    data = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": VOCABULARY,
        "max_position_embeddings": 131072, "dtype": "bfloat16", "tie_word_embeddings": False,
        "rope_theta": 500000.0, "quantization_config": described,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    held = of_layers(linear) + PLAIN
    published = {"fp8": 9_083_953_152, "gptq": 5_735_587_840, "nf4": 5_702_539_264}
    assert held == published.get(name, held)
    found = fits(f"hf:{tmp_path / 'config.json'}@chat,batch={BATCH},kv_dtype=fp8", on="l4")
    assert (found.stored_bytes, found.buffers_bytes) == (held, BUFFERS)
    # Only bitsandbytes writes a tensor whose size its format does not state; one note names it.
    assert sum("quant_state" in note for note in found.notes) == (name == "nf4")
    limit = next(x for x in found.limits if (x.setting, x.held) == ("text_tokens", "weights and cache"))
    # A run of n tokens and one step ends with n + 1 in the cache of each sequence.
    longest = (L4 - held - BUFFERS) // (BATCH * TOKEN) - 1
    assert (limit.outcome, limit.at) == ("from", longest + 1)
    assert longest == {"fp8": 56899, "awq": 69701, "gptq": 69672, "nf4": 69798}[name]
