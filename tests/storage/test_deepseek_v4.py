"""Checkpoints of DeepSeek-V4: experts in fp4 beside fp8, by hand, as transformers builds them, and as files have them.

Names, dtypes and shapes of files are those of the headers of DeepSeek-V4-Flash.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.errors import Bug
from costproof.models.registry import load_target
from costproof.run.stored import ReadingsDiffer, stored
from costproof.storage import scheme
from costproof.storage.scheme import UnknownFormat
from costproof.tracers import stored_module
from costproof.tracers.storage import built_quantised, storage_of_run
from tests.storage.test_header_source import Tensors, write
from tests.storage.test_library_reading import planted

H, INNER, EXPERTS, RANK, HEADS, WIDTH, GROUPS, LORA, WORDS = 96, 160, 4, 64, 4, 32, 2, 48, 50
SMALL: dict[str, Any] = {
    "model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "hidden_size": H, "num_hidden_layers": 3,
    "moe_intermediate_size": INNER, "n_routed_experts": EXPERTS, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "q_lora_rank": RANK, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": WIDTH,
    "qk_rope_head_dim": 8, "o_groups": GROUPS, "o_lora_rank": LORA, "index_n_heads": 2, "index_head_dim": 16,
    "index_topk": 4, "hc_mult": 2, "num_hash_layers": 1, "vocab_size": WORDS, "compress_ratios": [0, 4, 128, 0],
    "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16", "max_position_embeddings": 512, "rope_theta": 1e4,
    "tie_word_embeddings": False, "expert_dtype": "fp4",
    "quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128],
                            "activation_scheme": "dynamic", "fmt": "e4m3"},
}  # fmt: skip


def matrix(name: str, rows: int, columns: int) -> Tensors:
    """In fp8, a scale of one byte for each block of 128 x 128 that the matrix touches."""
    blocks = -(-rows // 128), -(-columns // 128)
    return {f"{name}.weight": ("F8_E4M3", (rows, columns)), f"{name}.scale": ("F8_E8M0", blocks)}


def expert(name: str, rows: int, columns: int) -> Tensors:
    """In fp4, two columns in a byte, and a scale of one byte for each row and 32 columns."""
    packed, groups = (rows, columns // 2), (rows, -(-columns // 32))
    return {f"{name}.weight": ("I8", packed), f"{name}.scale": ("F8_E8M0", groups)}


def plain(name: str, *shape: int, dtype: str = "BF16") -> Tensors:
    return {name: (dtype, shape)}


def attention(at: str) -> Tensors:
    return {
        **matrix(f"{at}wq_a", RANK, H), **matrix(f"{at}wq_b", HEADS * WIDTH, RANK), **matrix(f"{at}wkv", WIDTH, H),
        **matrix(f"{at}wo_a", GROUPS * LORA, HEADS * WIDTH // GROUPS), **matrix(f"{at}wo_b", H, GROUPS * LORA),
        **plain(f"{at}q_norm.weight", RANK), **plain(f"{at}kv_norm.weight", WIDTH),
        **plain(f"{at}attn_sink", HEADS, dtype="F32"),
    }  # fmt: skip


def compressor(at: str, width: int, rate: int, norm: int) -> Tensors:
    return {
        **plain(f"{at}wkv.weight", width, H), **plain(f"{at}wgate.weight", width, H),
        **plain(f"{at}ape", rate, width, dtype="F32"), **plain(f"{at}norm.weight", norm),
    }  # fmt: skip


def layer(at: str, rate: int, *, hashed: bool) -> Tensors:
    found = {**attention(f"{at}attn."), **plain(f"{at}attn_norm.weight", H), **plain(f"{at}ffn_norm.weight", H)}
    if rate:  # with two halves that overlap where the rate is 4, and an indexer
        found |= compressor(f"{at}attn.compressor.", WIDTH * (2 if rate == 4 else 1), rate, WIDTH)
    if rate == 4:
        found |= compressor(f"{at}attn.indexer.compressor.", 2 * 16, rate, 16)
        found |= matrix(f"{at}attn.indexer.wq_b", 2 * 16, RANK)
        found |= plain(f"{at}attn.indexer.weights_proj.weight", 2, H)
    found |= plain(f"{at}ffn.gate.weight", EXPERTS, H)
    found |= plain(f"{at}ffn.gate.tid2eid", WORDS, 2, dtype="I64") if hashed else {}
    found |= {} if hashed else plain(f"{at}ffn.gate.bias", EXPERTS, dtype="F32")
    for place, of in (("shared_experts", matrix), *((f"experts.{i}", expert) for i in range(EXPERTS))):
        found |= {**of(f"{at}ffn.{place}.w1", INNER, H), **of(f"{at}ffn.{place}.w2", H, INNER),
                  **of(f"{at}ffn.{place}.w3", INNER, H)}  # fmt: skip
    for part in ("attn", "ffn"):  # two streams before, two after, and 2 x 2 between them
        found |= {**plain(f"{at}hc_{part}_fn", 8, 2 * H, dtype="F32"), **plain(f"{at}hc_{part}_base", 8, dtype="F32"),
                  **plain(f"{at}hc_{part}_scale", 3, dtype="F32")}  # fmt: skip
    return found


def head(at: str) -> Tensors:
    return {**plain(f"{at}hc_head_fn", 2, 2 * H, dtype="F32"), **plain(f"{at}hc_head_base", 2, dtype="F32"),
            **plain(f"{at}hc_head_scale", 1, dtype="F32")}  # fmt: skip


MAIN: Tensors = {
    **plain("embed.weight", WORDS, H), **plain("head.weight", WORDS, H), **plain("norm.weight", H), **head(""),
    **layer("layers.0.", 0, hashed=True), **layer("layers.1.", 4, hashed=False),
    **layer("layers.2.", 128, hashed=False),
}  # fmt: skip
FURTHER: Tensors = {
    **layer("mtp.0.", 0, hashed=False), **matrix("mtp.0.e_proj", H, H), **matrix("mtp.0.h_proj", H, H),
    **plain("mtp.0.enorm.weight", H), **plain("mtp.0.hnorm.weight", H), **plain("mtp.0.norm.weight", H),
    **head("mtp.0."),
}  # fmt: skip


def made(folder: Path, **changes: Any) -> str:
    (folder / "config.json").write_text(json.dumps(SMALL | changes), encoding="utf-8")
    return f"hf:{folder}"


def test_tensors_are_those_of_a_file(tmp_path: Path) -> None:
    """Every name, dtype and shape of a shard that is written by hand, with and without the MTP module."""
    write(tmp_path, {**MAIN, **FURTHER})
    target = made(tmp_path)
    whole = stored(target, next_token=1, files=tmp_path)
    assert whole.headers is not None
    assert (whole.headers.differences, whole.exit_code) == ((), 0)
    assert whole.headers.tensors == len(MAIN) + len(FURTHER)
    without = stored(target, files=tmp_path)
    assert without.headers is not None
    assert {one.cause for one in without.headers.differences} == {"a tensor of an MTP module"}
    assert sum(one.tensors for one in without.headers.differences) == len(FURTHER)


def test_another_tensor_is_a_finding(tmp_path: Path) -> None:
    """An expert in fp8, and a scale of another dtype, which has a cause."""
    name = "layers.1.ffn.experts.2.w1"
    write(tmp_path, {**MAIN, **FURTHER, f"{name}.weight": ("F8_E4M3", (INNER, H))})
    assert stored(made(tmp_path), next_token=1, files=tmp_path).exit_code == 1
    write(tmp_path, {**MAIN, **FURTHER, f"{name}.scale": ("F32", (INNER, 3))})
    assert stored(made(tmp_path), next_token=1, files=tmp_path).exit_code == 0


def test_the_module_that_transformers_builds(tmp_path: Path) -> None:
    """Its experts are stacks of int8 with scales; it has the elements of each dtype that the files have.

    Except for what is not quantised, which is built in the model's dtype: of the run that is counted as in the files.
    """
    target: Any = load_target(made(tmp_path))
    model = target.build_stored()
    built = built_quantised(model, target.stored, target.stored.scheme("deepseek_v4")).model
    found = Counter[str]()
    for tensor in built.state_dict().values():
        found[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    expected = Counter[str]()
    for dtype, shape in MAIN.values():
        size = 1
        for length in shape:
            size *= length
        expected[dtype] += size
    for torch_name, name in (("int8", "I8"), ("float8_e8m0fnu", "F8_E8M0"), ("float8_e4m3fn", "F8_E4M3")):
        assert found[torch_name] == expected[name] > 0, name
    run = storage_of_run(target, model, target.workload())
    wide = {"BF16": 2, "F32": 4, "I64": 8}
    total = sum(n * wide.get(dtype, 1) for dtype, n in expected.items())
    assert sum(costs.get("stored_bytes") or 0 for costs in run.modules.values()) == total
    assert stored(made(tmp_path)).totals.bytes == total


def test_experts_that_a_list_leaves_out(tmp_path: Path) -> None:
    """By the name in the model, or in the checkpoint; their matrices stay in two bytes, as transformers builds them."""
    plain_bytes = EXPERTS * 3 * 2 * INNER * H
    packed = EXPERTS * (3 * INNER * H // 2 + 2 * INNER * 3 + H * 5)
    whole = stored(made(tmp_path)).totals.bytes
    for name in ("model.layers.1.mlp.experts", "layers.1.ffn.experts"):
        left = SMALL["quantization_config"] | {"modules_to_not_convert": [name, "lm_head"]}
        target: Any = load_target(made(tmp_path, quantization_config=left))
        assert stored(made(tmp_path, quantization_config=left)).totals.bytes - whole == plain_bytes - packed
        plain_model = target.build_stored()
        built: Any = built_quantised(plain_model, target.stored, target.stored.scheme("deepseek_v4")).model
        kinds = {str(layer.mlp.experts.down_proj.dtype) for layer in built.model.layers}
        assert kinds == {"torch.int8", "torch.bfloat16"}


def test_an_odd_number_of_columns_is_refused(tmp_path: Path) -> None:
    target: Any = load_target(made(tmp_path, moe_intermediate_size=161))
    with pytest.raises(UnknownFormat, match="161 columns"):
        list(stored_module.stored_tensors(target.build_stored(), target.stored.scheme("deepseek_v4")))


@pytest.mark.parametrize(("old", "new", "where"), [
    ("isdisjoint(family.without)", "isdisjoint(())", "compressor"),
    ("one.name.startswith(family.head)", "not one.name", "hc_head"),
    ("2 * width // len(", "4 * width // len(", "_proj"),
])  # fmt: skip
def test_a_mistake_in_the_mtp_module_is_found(
    old: str, new: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = made(tmp_path)
    monkeypatch.setattr(stored_module, "next_token_tensors", planted(stored_module, "next_token_tensors", old, new))
    with pytest.raises(ReadingsDiffer, match=f"in published headers\n.*{where}"):
        stored(target, next_token=1)


@pytest.mark.parametrize(("left", "source"), [
    ("attn_hc", "static"), ("ffn_hc", "static"), ("hc_head", "static"), ("sinks", "static"),
    ("position_bias", "static"), ("sinks", "dynamic"), ("position_bias", "dynamic"), ("", "dynamic"),
])  # fmt: skip
def test_what_files_have_in_float32_is_counted_again(
    left: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sources share the list of it; an entry too many is found as one too few is."""
    target: Any = load_target(made(tmp_path))
    model = target.build_stored()
    names = [name for name in scheme._IN_FLOAT32["deepseek_v4"] if name != left]
    monkeypatch.setitem(scheme._IN_FLOAT32, "deepseek_v4", (*names, *(() if left else ("gate",))))
    with pytest.raises(Bug, match="bits of an element"):
        stored(made(tmp_path)) if source == "static" else storage_of_run(target, model, target.workload())


@pytest.mark.parametrize(("old", "new", "where"), [
    ('{name}.weight", dtype, (width,)) for', '{name}.weight", "F32", (width,)) for', "enorm"),
    ("yield replace(tensor, name=layer + part", 'yield replace(tensor, dtype="F32", name=layer + part', "attn.wq_a"),
    ("yield replace(tensor, name=layer + part",
     'yield replace(tensor, dtype="BF16" if tensor.stands_for else tensor.dtype, name=layer + part', "attn.wq_a"),
    ("replace(one, name=layer + one.name)", 'replace(one, dtype="BF16", name=layer + one.name)', "hc_head_fn"),
])  # fmt: skip
def test_a_mistaken_dtype_in_the_mtp_module_is_found(
    old: str, new: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = made(tmp_path)
    monkeypatch.setattr(stored_module, "next_token_tensors", planted(stored_module, "next_token_tensors", old, new))
    with pytest.raises(Bug, match=f"MTP modules, {where}.*bits of an element"):
        stored(target, next_token=1)
