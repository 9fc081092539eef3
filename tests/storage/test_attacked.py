"""Checkpoints that a stranger tried: each value is by the rules of the library that writes or loads the format."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.errors import BadInput, Incomplete
from costproof.reports.fits import stored_sentence as sentence
from costproof.run.fits import fits
from costproof.run.stored import stored
from costproof.storage.checkpoint import HeaderTotals, StoredCheckpoint, compare_headers
from costproof.storage.headers import HeaderTensor, read_checkpoint, read_header
from costproof.storage.tensors import StoredTensor
from tests.support.running import costproof

_SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 1000, "tie_word_embeddings": False}  # fmt: skip
LLAMA: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", **_SIZES}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4}
QWEN_MOE = {
    **LLAMA, "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 256, "num_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
QWEN_VL = {
    **LLAMA, "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "vocab_size": 152000, "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
    "vision_config": {"depth": 1, "hidden_size": 128, "intermediate_size": 256, "num_heads": 4, "out_hidden_size": 256,
                      "fullatt_block_indexes": [0]},
}  # fmt: skip
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64, "symmetric": True}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}


def _stored(folder: Path, config: dict[str, Any], **quantised: Any) -> StoredCheckpoint:
    (folder / "config.json").write_text(
        json.dumps({**config, "quantization_config": quantised} if quantised else config)
    )
    return stored(f"hf:{folder / 'config.json'}")


def _parts(found: StoredCheckpoint, *in_name: str) -> dict[str, tuple[str, tuple[int, ...], int]]:
    return {p.name: (p.dtype, p.shape, p.tensors) for p in found.parts if any(text in p.name for text in in_name)}


def _compressed(*groups: tuple[list[str], dict[str, Any]], ignore: list[str]) -> dict[str, Any]:
    made = {f"group_{i}": {"targets": targets, "weights": weights} for i, (targets, weights) in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": made, "ignore": ignore}


HEAD = "lm_head.weight [96, 32]"


@pytest.mark.parametrize(("general", "special"), [
    (["Linear"], ["re:.*down_proj"]),
    (["re:.*down_proj"], ["model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"]),
])  # fmt: skip
def test_compressed_tensors_prefers_names_to_expressions_and_these_to_classes(
    tmp_path: Path, general: list[str], special: list[str]
) -> None:
    """compressed_tensors.utils.match.match_targets, whatever the order of the groups."""
    groups = [(general, INT4), (special, INT8)]
    for order in (groups, groups[::-1]):
        found = _stored(tmp_path, LLAMA, **_compressed(*order, ignore=["lm_head"]))
        packed = _parts(found, "down_proj.weight_packed")
        assert [*packed.values()] == [("I32", (256, 512 * 8 // 32), 2)]


def test_a_table_that_compressed_tensors_targets_is_quantised(tmp_path: Path) -> None:
    """apply_quantization_config takes Linear and Embedding."""
    found = _stored(tmp_path, LLAMA, **_compressed((["Embedding"], INT8), ignore=[]))
    assert _parts(found, "embed_tokens.weight_packed")["model.embed_tokens.weight_packed"] == ("I32", (1000, 64), 1)


@pytest.mark.parametrize("ignore", ["re:visual.*", "re:model.visual.*"])
def test_lists_may_have_the_names_of_the_checkpoint_or_those_of_the_model(tmp_path: Path, ignore: str) -> None:
    """Checkpoints of Qwen2.5-VL have ``visual.blocks``, transformers' class ``model.visual.blocks``."""
    found = _stored(tmp_path, QWEN_VL, **_compressed((["Linear"], INT4), ignore=["lm_head", ignore]))
    assert {dtype for dtype, _, _ in _parts(found, "visual.").values()} == {"BF16"}
    assert _parts(found, "visual.blocks.*.attn.qkv.weight") == {
        "visual.blocks.*.attn.qkv.weight": ("BF16", (384, 128), 1)
    }


def test_experts_of_mixtral_have_the_names_of_its_checkpoint(tmp_path: Path) -> None:
    """Published AWQ checkpoints of Mixtral exclude ``gate``, the router; ``w1`` is not one."""
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "modules_to_not_convert": ["gate"]}
    found = _stored(tmp_path, MIXTRAL, **awq)
    pattern = "model.layers.*.block_sparse_moe.experts.*.{}.qweight"
    assert _parts(found, "qweight").items() >= {
        pattern.format("w1"): ("I32", (256, 64), 8), pattern.format("w2"): ("I32", (512, 32), 8),
        pattern.format("w3"): ("I32", (256, 64), 8),
    }.items()  # fmt: skip
    assert _parts(found, "gate")["model.layers.*.block_sparse_moe.gate.weight"] == ("BF16", (4, 256), 2)


def test_experts_that_are_not_quantised_are_layers_if_the_checkpoint_has_layers(tmp_path: Path) -> None:
    found = _stored(tmp_path, MIXTRAL)
    assert _parts(found, "w2") == {"model.layers.*.block_sparse_moe.experts.*.w2.weight": ("BF16", (256, 512), 8)}


def test_a_rule_for_one_expert_applies_to_it(tmp_path: Path) -> None:
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*experts\\.3\\.up_proj": {}}}
    found = _parts(_stored(tmp_path, QWEN_MOE, **gptq), "experts.*.up_proj.weight", "experts.*.up_proj.qweight")
    assert sorted(tensors for _, _, tensors in found.values()) == [2, 6]


def test_the_gate_of_a_shared_expert_has_no_row_to_pack(tmp_path: Path) -> None:
    """AutoGPTQ packs only multiples of 32 rows; Qwen's checkpoints have this gate in 16 bits."""
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    found = _parts(_stored(tmp_path, QWEN_MOE, **gptq), "shared_expert_gate")
    assert found == {"model.layers.*.mlp.shared_expert_gate.weight": ("BF16", (1, 256), 2)}


def test_bitsandbytes_converts_the_layers_of_gpt2(tmp_path: Path) -> None:
    """replace_with_bnb_linear takes Conv1D, whose weight it transposes."""
    gpt2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 4}
    found = _stored(tmp_path, {**gpt2, "vocab_size": 100}, quant_method="bitsandbytes", load_in_8bit=True)
    assert _parts(found, "c_fc.weight", "c_fc.SCB") == {
        "transformer.h.*.mlp.c_fc.weight": ("I8", (256, 64), 2), "transformer.h.*.mlp.c_fc.SCB": ("F32", (256,), 2),
        "transformer.h.*.mlp.c_fc.weight_format": ("U8", (), 2),
    }  # fmt: skip


def test_what_a_class_loads_in_float32_is_not_quantised(tmp_path: Path) -> None:
    """T5PreTrainedModel._keep_in_fp32_modules is ["wo"], which get_modules_to_not_convert adds to any list."""
    t5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 64, "d_kv": 16, "d_ff": 128,
          "num_layers": 2, "num_heads": 4, "vocab_size": 100, "dtype": "float16"}  # fmt: skip
    found = _stored(tmp_path, t5, quant_method="bitsandbytes", load_in_4bit=True, llm_int8_skip_modules=["lm_head"])
    assert set(_parts(found, ".wo.").values()) == {("F32", (64, 128), 2)}


@pytest.mark.parametrize("own", [{}, {"model.layers.0.mlp.switch_mlp.down_proj": {"bits": 8, "group_size": 64}}])
def test_experts_in_mlx_are_of_unknown_size(tmp_path: Path, own: dict[str, Any]) -> None:
    """mlx-lm quantises routers that are layers in its own classes, and has stacks of experts of another name."""
    with pytest.raises(Incomplete):
        _stored(tmp_path, {**QWEN_MOE, "quantization": {"bits": 4, "group_size": 64, **own}})


def test_mlx_settings_for_a_module_that_is_not_there_leave_the_layout_unknown(tmp_path: Path) -> None:
    own = {"language_model.model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 64}}
    with pytest.raises(Incomplete):
        _stored(tmp_path, {**LLAMA, "quantization": {"bits": 4, "group_size": 64, **own}})


def test_a_cache_that_is_scaled_as_it_comes_has_no_stored_scales(tmp_path: Path) -> None:
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": True}
    description = {**_compressed((["Linear"], INT4), ignore=["lm_head"]), "kv_cache_scheme": cache}
    assert not _parts(_stored(tmp_path, LLAMA, **description), "k_scale", "v_scale")


def test_a_layer_in_place_of_another_is_a_difference() -> None:
    layout = [StoredTensor(f"layers.{i}.weight", "BF16", (4,)) for i in (0, 1)]
    there = [HeaderTensor(f"layers.{i}.weight", "BF16", (4,), 8) for i in (0, 2)]
    (difference,) = compare_headers(layout, {"a": there}).differences
    assert (difference.expected, difference.got, difference.bytes) == ("layers.1.weight", "layers.2.weight", 0)


def _safetensors(file: Path, *names: str) -> None:
    header = {n: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, n in enumerate(names)}
    data = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(data)) + data)


def test_the_files_of_a_folder_are_those_that_transformers_loads(tmp_path: Path) -> None:
    """Mistral's folders also have ``consolidated.safetensors``, with the same weights under other names."""
    _safetensors(tmp_path / "consolidated.safetensors", "a")
    _safetensors(tmp_path / "model.safetensors", "b")
    assert [*read_checkpoint(tmp_path)] == ["model.safetensors"]
    (tmp_path / "model.safetensors").rename(tmp_path / "shard.safetensors")
    for name, inside in (("consolidated", "a"), ("model", "b")):
        file = "shard.safetensors" if name == "model" else "consolidated.safetensors"
        (tmp_path / f"{name}.safetensors.index.json").write_text(json.dumps({"weight_map": {inside: file}}))
    assert [*read_checkpoint(tmp_path)] == ["shard.safetensors"]


def test_an_index_and_its_shards_agree(tmp_path: Path) -> None:
    _safetensors(tmp_path / "one.safetensors", "a")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}))
    with pytest.raises(BadInput, match="the index names a wrong shard"):
        read_checkpoint(tmp_path)


def test_a_tensor_of_gguf_has_one_entry(tmp_path: Path) -> None:
    entries = [struct.pack("<Q", 1) + b"a" + struct.pack("<IQIQ", 1, 32, 0, at) for at in (0, 32 * 4)]
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + b"".join(entries))
    with pytest.raises(BadInput, match="twice"):
        read_header(tmp_path / "a.gguf")


def test_fits_says_what_stored_weights_rest_on(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**LLAMA, "quantization_config": _compressed((["Linear"], INT4), ignore=["lm_head"])})
    )
    notes = fits(f"hf:{tmp_path / 'config.json'}", memory="1GB").notes
    assert any("one matrix at a time is unpacked" in note for note in notes)
    assert any("shapes of packed matrices are I64" in note for note in notes)


def test_fits_says_that_the_module_for_further_tokens_is_left_out() -> None:
    assert any("num_nextn_predict_layers" in note for note in fits("deepseek-v3@chat,layers=4", memory="80GB").notes)


def test_exact_names_the_bytes_that_no_key_determines(tmp_path: Path) -> None:
    """bitsandbytes' description of nested maxima, here of 173 bytes."""
    layer = "model.layers.0.mlp.down_proj.weight"
    state = HeaderTensor(f"{layer}.quant_state.bitsandbytes__nf4", "U8", (173,), 173)
    nested = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    found = _stored(tmp_path, LLAMA, quant_method="bitsandbytes", **nested)
    headers = HeaderTotals(1, 1, found.totals.bytes + state.bytes, ())
    assert sentence(replace(found, headers=headers)).endswith("and 173 B in tensors whose size no key determines.")


NANO = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class GPTConfig:
    n_embd: int = 4

class GPT(nn.Linear):
    def __init__(self):
        super().__init__(4, 8)
        self.config = GPTConfig()

def make():
    return GPT(), (torch.ones(3, 4),)
"""


def test_a_configuration_need_not_be_of_transformers(tmp_path: Path) -> None:
    (tmp_path / "nano.py").write_text(NANO)
    assert stored(f"{tmp_path / 'nano.py'}:make").totals.bytes == 4 * (4 * 8 + 8)


def test_gguf_of_another_architecture_is_not_compared(tmp_path: Path) -> None:
    """Its names are not known: its numbers are told, and nothing is called different."""
    gpt2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(gpt2), encoding="utf-8")
    name = b"blk.0.ffn_up.weight"
    table = struct.pack("<Q", len(name)) + name + struct.pack("<IQQIQ", 2, 64, 32, 2, 0)  # 32 x 64 in Q4_0
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "model.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + table)
    for files in ("packed/model.gguf", "packed"):
        done = costproof("stored", "hf:config.json", "--files", files, cwd=tmp_path)
        # 2,048 weights are 64 blocks of 18 bytes.
        assert (done.code, "1 tensor of 1,152 bytes in Q4_0" in " ".join(done.stderr.split())) == (3, True), done.stderr


def test_fits_says_why_a_layout_is_not_known(tmp_path: Path) -> None:
    data = {**LLAMA, "quantization_config": {"quant_method": "hqq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    done = costproof("fits", "hf:config.json", "--memory", "1GB", cwd=tmp_path)
    assert (done.code, "hqq: $.quantization_config names no known method" in " ".join(done.stdout.split())) == (3, True)


def test_experts_of_an_unknown_layout_are_an_assumption(tmp_path: Path) -> None:
    """Nothing states how experts of Llama 4 are laid out in fp8; transformers does for Qwen3-MoE."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "vocab_size": 96,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    fp8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    for kind, more, said in (
        ("llama4_text", {"intermediate_size_mlp": 64, "head_dim": 32, "pad_token_id": 0}, True),
        ("qwen3_moe", {"num_experts": 4, "moe_intermediate_size": 64}, False),
    ):
        (tmp_path / "config.json").write_text(
            json.dumps({"model_type": kind, **sizes, **more, **fp8}), encoding="utf-8"
        )
        found = stored(f"hf:{tmp_path / 'config.json'}")
        assert any("experts are stored" in text for text in found.assumed) is said, found.assumed


def test_what_no_key_states_of_a_checkpoint_is_said(tmp_path: Path) -> None:
    """Kimi-K2 has no MTP module, Flan-T5 a head of its own; neither is what the class makes of it."""
    file = tmp_path / "config.json"
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16}
    routed = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
    deepseek = {
        "model_type": "deepseek_v3", "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 96,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False, **latent, **routed,
    }  # fmt: skip
    for modules, left in (
        (0, []),
        (2, ["2 MTP modules (num_nextn_predict_layers), which costproof stored --mtp counts"]),
    ):
        file.write_text(json.dumps({**deepseek, "num_nextn_predict_layers": modules}), encoding="utf-8")
        found = stored(f"hf:{file}")
        assert (found.assumed, list(found.left_out)) == ((), left)
    sizes = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 96,
        "num_key_value_heads": 2, "num_local_experts": 2, "dtype": "float32", "tie_word_embeddings": False,
    }  # fmt: skip
    for uses, left in (
        (True, ["MTP modules (num_mtp_modules 3), whose layout is not known"]),
        (False, []),
    ):
        file.write_text(
            json.dumps({"model_type": "minimax_m2", **sizes, "num_mtp_modules": 3, "use_mtp": uses}), encoding="utf-8"
        )
        assert list(stored(f"hf:{file}").left_out) == left
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "vocab_size": 96}
    tied: dict[str, Any] = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], **sizes}
    for own, assumed, missing in (
        ({}, ("weights are BF16, which no key says", f"{HEAD} is the table of words, which no key says"), ()),
        (
            {"torch_dtype": "float32", "tie_word_embeddings": False}, (),
            (f"{HEAD}, which the class ties to the table of words in spite of tie_word_embeddings",),
        ),
        ({"torch_dtype": "float32", "tie_word_embeddings": True}, (), ()),
    ):  # fmt: skip
        file.write_text(json.dumps({**tied, **own}), encoding="utf-8")
        found = stored(f"hf:{file}")
        assert (found.assumed, found.left_out) == (assumed, missing)


def test_gptq_of_some_modules_of_some_layers(tmp_path: Path) -> None:
    """optimum's GPTQQuantizer packs the named modules, of the named stack of layers.

    q_proj, 256 x 256 in groups of 128: 32,768 of words, 256 of zeros, 1,024 of scales, 1,024 of g_idx, 512 of biases;
    down_proj, 512 x 256: 65,536, 512, 2,048, 2,048 and 512. The rest of a layer, in two bytes: keys, values and out
    131,072 weights, gate and up 262,144, norms 512. Outside: 2 x 256,000 of tables and 256 of the norm.
    """
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}
    some = {"modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.down_proj"]]}
    packed, outside = 35_584 + 70_656, 2 * (2 * 256_000 + 256)
    expected = 2 * (packed + 2 * (131_072 + 262_144 + 512)) + outside
    for block in (None, "model.layers"):
        assert _stored(tmp_path, LLAMA, **gptq, **some, block_name_to_quantize=block).totals.bytes == expected
    whole = 2 * 2 * (131_072 + 262_144 + 512 + 65_536 + 131_072) + outside
    assert _stored(tmp_path, LLAMA, **gptq, block_name_to_quantize="model.other").totals.bytes == whole


@pytest.mark.parametrize("settings", [
    {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_convert": ["model.embed_tokens"]},
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "pack_dtype": "int8"},
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "modules_in_block_to_quantize": ["mlp.down_proj"]},
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "skip_layers": [0]},
    {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "only_mlp": True},
    {"quant_method": "torchao", "untie_embedding_weights": True,
     "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}}}},
    {**_compressed((["Linear"], INT4), ignore=["lm_head"]), "transform_config": {"config_groups": {"u": {}}}},
    {**_compressed((["Linear"], {**INT4, "codebook": 3}), ignore=["lm_head"])},
])  # fmt: skip
def test_settings_that_may_decide_and_are_not_read_leave_the_format_unknown(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(Incomplete, match="not known"):
        _stored(tmp_path, LLAMA, **settings)


def test_settings_that_decide_no_tensor_are_named(tmp_path: Path) -> None:
    found = _stored(tmp_path, LLAMA, quant_method="fp8", weight_block_size=[128, 128], calibrated_by="somebody")
    assert "calibrated_by in $.quantization_config changes no tensor" in found.assumed
