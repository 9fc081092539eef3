"""Quantised checkpoints on several devices: bytes of a rank, copies by name, and what no rank can hold, by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import costproof
from costproof.ledger.mesh import Parallel
from tests.support.running import costproof as command

HIDDEN, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY, LAYERS = 256, 8, 4, 32, 512, 320, 2
MATRICES = 7 * LAYERS
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}


def configuration(folder: Path, described: Mapping[str, Any] | None) -> Path:
    path = folder / "config.json"
    data = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "head_dim": HEAD,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "vocab_size": VOCABULARY, "dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    data |= {} if described is None else {"quantization_config": described}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def ranks(folder: Path, described: Mapping[str, Any], tp: int) -> Parallel:
    made = costproof.capture(
        "llama", config=configuration(folder, described), sources=["analytic"], text_tokens=3, tp=tp
    )
    assert made.parallel is not None
    return made.parallel


def copies(found: Parallel, metric: str) -> dict[str, int]:
    return {d.what: d.amount for d in found.duplicates if (d.stage, d.metric) == ("", metric)}


def packed(rows: int, columns: int, *, nested: bool) -> int:
    """Codes of four bits, a maximum of each 64, a table of 16; nested: maxima of a byte, of which 256 share four."""
    maxima = -(-rows * columns // 64)
    tables = 4 * (16 + (256 if nested else 0))
    return rows * columns // 2 + tables + (maxima + 4 * -(-maxima // 256) if nested else 4 * maxima)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("nested", [True, False])
def test_ranks_hold_parts_of_four_bits_and_whole_tables(tmp_path: Path, nested: bool, tp: int) -> None:
    found = ranks(tmp_path, NF4 | {"bnb_4bit_use_double_quant": nested}, tp)
    heads, kv_heads, inner = HEADS * HEAD // tp, KV_HEADS * HEAD // tp, INNER // tp
    layer = [(heads, HIDDEN), (kv_heads, HIDDEN), (kv_heads, HIDDEN), (HIDDEN, heads)]
    layer += [(inner, HIDDEN), (inner, HIDDEN), (HIDDEN, inner)]
    matrices = LAYERS * sum(packed(*shape, nested=nested) for shape in layer)
    norms, rest = 2 * HIDDEN * (2 * LAYERS + 1), 2 * 2 * VOCABULARY // tp * HIDDEN + 4 * HEAD
    (row,) = found.ranks
    assert row.stages[""]["resident_bytes"] == matrices + norms + rest
    assert "stored_bytes" not in row.stages[""], "no one knows the text that describes a part"
    named = copies(found, "resident_bytes")
    tables = 4 * (16 + (256 if nested else 0))
    assert named.pop("scales, zero biases, indices and tables of formats that every rank has") == (
        (tp - 1) * MATRICES * tables
    )
    assert (named.pop("norms"), named.pop("tables of rotary embedding")) == ((tp - 1) * norms, (tp - 1) * 4 * HEAD)
    # Of k and v, 128 maxima of a rank have a scale of four bytes, as 512 of one device have two.
    assert named == ({"padding of uneven shards": LAYERS * 2 * (4 - 2) * 4} if nested and tp == 4 else {})


def test_groups_that_a_rank_would_split_have_no_bytes(tmp_path: Path) -> None:
    """The output projection has 64 columns on each of four ranks, half a group."""
    found = ranks(tmp_path, AWQ, 4)
    assert not {"stored_bytes", "resident_bytes"} & {m for costs in found.ranks[0].stages.values() for m in costs}
    assert copies(found, "stored_bytes") == {}
    done = command("fits", f"hf:{tmp_path / 'config.json'}", "--tp", "4", "--memory", "80GB", cwd=tmp_path)
    assert done.code == 3
    assert "self_attn.o_proj of a rank has 256 x 64, and groups are of 8 x 128" in done.stdout + done.stderr
    assert "stored as AWQ" not in done.stdout


def test_a_format_without_a_check_of_its_own_does_not_fall_back_to_16_bits(tmp_path: Path) -> None:
    """torchao leaves a matrix of 64 columns alone in groups of 128, but this one has 256, of which a rank has 64."""
    kind = {"_type": "Int4WeightOnlyConfig", "_version": 2, "_data": {"group_size": 128}}
    found = ranks(tmp_path, {"quant_method": "torchao", "quant_type": {"default": kind}}, 4)
    assert "stored_bytes" not in found.ranks[0].stages[""]


def test_a_bias_behind_a_sum_takes_the_place_of_the_zero_bias(tmp_path: Path) -> None:
    """GPTQ stores a bias of each layer, which a rank has once: not zeros beside the one that is added to sums."""
    path = configuration(tmp_path, {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False})
    path.write_text(json.dumps(json.loads(path.read_text()) | {"attention_bias": True}))
    made = costproof.capture("llama", config=path, sources=["analytic"], text_tokens=3, tp=2)
    assert made.parallel is not None
    heads, kv_heads, inner = HEADS * HEAD // 2, KV_HEADS * HEAD // 2, INNER // 2
    shapes = [(heads, HIDDEN), (kv_heads, HIDDEN), (kv_heads, HIDDEN), (HIDDEN, heads)]
    shapes += [(inner, HIDDEN), (inner, HIDDEN), (HIDDEN, inner)]
    # Words of 8 numbers and of 8 zero points, scales and biases of 2 bytes, and the group of each column.
    layer = sum(o * i // 2 + i // 32 * o // 2 + 2 * (i // 32) * o + 2 * o + 4 * i for o, i in shapes)
    rest = 2 * HIDDEN * (2 * LAYERS + 1) + 2 * 2 * VOCABULARY // 2 * HIDDEN
    assert made.parallel.ranks[0].stages[""]["stored_bytes"] == LAYERS * layer + rest


def test_copies_without_biases_are_not_called_biases(tmp_path: Path) -> None:
    """The shape of each packed matrix is a tensor of two int64, which every rank has."""
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    described = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }  # fmt: skip
    named = copies(ranks(tmp_path, described, 2), "stored_bytes")
    assert named["scales, zero biases, indices and tables of formats that every rank has"] == MATRICES * 16
    assert not [name for name in named if name.startswith("biases")]


def test_each_module_reads_its_part_of_latents_in_eight_bits() -> None:
    """A rank without the new token expands 50 cached latents of 512 numbers and 4 scales, and reads 64 rotated keys."""
    made = costproof.capture(
        "deepseek-v3", sources=["analytic"], text_tokens=100, new_tokens=1, cp=2, rank=0, kv_dtype="fp8",
        decoding="expanded", layers=1,
    )  # fmt: skip
    steps = [n for n in made.ledger("analytic").nodes if n.stage == "decode" and ".layers.0." in n.module]
    assert {n.module: size for n in steps if (size := n.cost("kv_read_bytes"))} == {
        "model.layers.0.self_attn.kv_b_proj": 50 * (512 + 4 * 4), "model.layers.0.self_attn": 50 * 2 * 64,
    }  # fmt: skip


def test_copies_along_two_axes_are_told_apart(tmp_path: Path) -> None:
    """Four ranks have all parameters: one more shares the sequence, two more have another part of the batch."""
    made = costproof.capture(
        "llama", config=configuration(tmp_path, None), sources=["analytic"], text_tokens=8, batch=4, cp=2, dp=2
    )
    assert made.parallel is not None
    row = made.parallel.ranks[0]
    for metric, size in (("params", row.stages[""]["params"]), ("stored_bytes", row.stages[""]["stored_bytes"])):
        assert copies(made.parallel, metric) == {
            "copies of ranks that share a sequence": size, "copies of data-parallel ranks": 2 * size,
        }  # fmt: skip


def test_ranks_that_store_parts_have_copies_along_dp_only(tmp_path: Path) -> None:
    """Two ranks store halves, in two copies; norms of 256 and tables of 320 x 256 divide, so that nothing is padded."""
    made = costproof.capture(
        "llama", config=configuration(tmp_path, None), sources=["analytic"], text_tokens=8, batch=4, fsdp=2, dp=2
    )
    assert made.parallel is not None
    matrices = 2 * HEADS * HEAD * HIDDEN + 2 * KV_HEADS * HEAD * HIDDEN + 3 * INNER * HIDDEN
    every = LAYERS * matrices + HIDDEN * (2 * LAYERS + 1) + 2 * VOCABULARY * HIDDEN
    assert copies(made.parallel, "stored_elements") == {"copies of data-parallel ranks": every}
    assert copies(made.parallel, "stored_bytes") == {"copies of data-parallel ranks": 2 * every}
    # And 16 frequencies of four bytes, twice, which all four have.
    buffers = 2 * 4 * HEAD // 2
    assert copies(made.parallel, "resident_bytes") == {"copies of data-parallel ranks": 2 * every + 3 * buffers}
