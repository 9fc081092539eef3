"""Keys of configurations: each is used, harmless, or named in the output, with formulas and without."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import transformers
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    T5ForConditionalGeneration,
)

from costproof import api
from costproof.configs.config import NativeConfig
from costproof.configs.known_keys import type_of_class
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.ledger.workload import FURTHER_TOKENS, NO_CLASS, OWN_CODE, UNREAD
from costproof.models.decoding.config import DecoderConfig
from costproof.models.encoding.config import TextEncoderConfig
from costproof.models.families.deepseek_v3 import DeepseekV3Config
from costproof.models.families.llama import LlamaConfig
from costproof.models.families.roberta import RobertaConfig
from costproof.models.families.t5 import T5Config
from costproof.models.generic.huggingface import auto_class
from costproof.models.generic.module import GenericTarget
from costproof.models.registry import TARGETS, load_target
from costproof.models.target import Target
from costproof.plugins import OURS
from costproof.views.describe import model_line

LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
}  # fmt: skip
PHI3: dict[str, Any] = {**LLAMA, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "pad_token_id": 0}
# Written by Unsloth, TRL, LLaMA-Factory, AutoAWQ, older versions of transformers, and by authors for their own code.
BY_TOOLS: dict[str, Any] = {
    "_attn_implementation_autoset": True, "_flash_attn_2_enabled": False, "_name_or_path": "a/b", "do_sample": True,
    "gradient_checkpointing": False, "is_decoder": False, "num_beams": 1, "pruned_heads": {}, "return_dict": True,
    "tokenizer_class": "X", "torch_dtype": "float16", "torchscript": False, "transformers_version": "4.40.0",
    "unsloth_fixed": True, "unsloth_version": "2025.1.1", "use_cache": True, "use_flash_attn": True,
    "sliding_window": None, "tie_encoder_decoder": False, "add_cross_attention": False, "bad_words_ids": None,
    "embd_pdrop": 0.0, "resid_dropout_prob": 0.1, "router_aux_loss_coef": 0.001, "pad_token_id": 0,
    "id2label": {"0": "A"},
}  # fmt: skip


def _target(tmp_path: Path, data: dict[str, Any]) -> Target:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    return load_target(f"hf:{file}")


def _families() -> list[NativeConfig]:
    loaded = (TARGETS.load(name) for name, plugin in TARGETS.all().items() if plugin.owner == OURS)
    usual: Iterator[Any] = (made.default() for made in loaded if isinstance(made, type))
    found = (target.config for target in usual)
    return [config for config in found if isinstance(config, NativeConfig)]


@pytest.mark.parametrize("config", _families(), ids=lambda c: c.model_type)
def test_no_family_takes_a_key_that_its_class_has_for_one_that_nothing_reads(config: NativeConfig) -> None:
    kind = CONFIG_MAPPING[config.model_type]
    every = {**kind().to_dict(), **{f.name: f.default for f in fields(kind) if f.init}, "model_type": config.model_type}
    problems: list[CostproofError] = []
    read = type(config).read({k: v for k, v in every.items() if k != "architectures"}, problems)
    assert [key for key, why in read.waived if why == UNREAD] == []
    for alias in kind.attribute_map:
        read = type(config).read({"model_type": config.model_type, alias: 77}, problems)
        assert dict(read.waived).get(f"$.{alias}") != UNREAD


@pytest.mark.parametrize("base", [LLAMA, PHI3], ids=["with formulas", "without"])
def test_keys_that_tools_write_are_read_over_with_a_reason(base: dict[str, Any], tmp_path: Path) -> None:
    plain, found = (_target(tmp_path, data).info() for data in (base, {**base, **BY_TOOLS}))
    assert found.config_hash == plain.config_hash or base is PHI3  # a hash of a module holds its configuration
    assert set(found.waived.values()) & {UNREAD, FURTHER_TOKENS, OWN_CODE} == set()
    assert "nothing reads" not in model_line(found)


@pytest.mark.parametrize("base", [LLAMA, PHI3], ids=["with formulas", "without"])
def test_a_key_that_nothing_reads_is_named(base: dict[str, Any], tmp_path: Path) -> None:
    told = _target(tmp_path, {**base, "index_topk": 2048, "odd": {"a": 1}, "num_nextn_predict_layers": 1}).info()
    assert {k for k, why in told.waived.items() if why == UNREAD} == {"$.index_topk", "$.odd"}
    line = model_line(told)
    assert "; keys that nothing reads: index_topk, odd" in line
    assert "; not counted, layers that predict further tokens (MTP): num_nextn_predict_layers" in line
    none = _target(tmp_path, {**base, "num_nextn_predict_layers": 0}).info()
    assert "further tokens" not in model_line(none)


@pytest.mark.parametrize(
    "data",
    [
        {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "use_qk_norm": False},
        {**PHI3, "attention_bias": True},
    ],
    ids=["with formulas", "without"],
)
def test_a_key_that_contradicts_the_class_is_refused(data: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the class of transformers ignores this key"):
        _target(tmp_path, data).info()


def test_keys_at_the_value_that_the_class_implies(tmp_path: Path) -> None:
    """As Qwen3-Coder-480B has them."""
    implied = {"qkv_bias": False, "use_qk_norm": True, "shared_expert_intermediate_size": 0}
    base = {**LLAMA, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8}
    plain, found = (_target(tmp_path, data).info() for data in (base, {**base, **implied}))
    assert (found.config_hash, model_line(found)) == (plain.config_hash, model_line(plain))


def test_sizes_beside_the_section_that_they_belong_to_are_refused(tmp_path: Path) -> None:
    """As LLaVA's own files have them: the class would count a decoder of its default sizes."""
    flat = {
        "model_type": "llava",
        "hidden_size": 40,
        "num_hidden_layers": 3,
        "mm_vision_tower": "clip",
        "pad_token_id": 0,
    }
    for named in ("LlavaLlamaForCausalLM", "LlavaForConditionalGeneration"):
        with pytest.raises(Problems) as caught:
            _target(tmp_path, {**flat, "architectures": [named]}).info()
        told = [str(p) for p in caught.value.problems]
        assert len(told) == 2
        assert all("nothing reads this key here" in text for text in told)
        assert "$.text_config.hidden_size" in told[0]


@pytest.mark.parametrize(
    ("family", "key", "seen"), [("qwen3", "max_window_layers", (0, 0)), ("gemma3", "sliding_window_pattern", (8, 8))]
)
def test_a_pattern_longer_than_the_model_is_cut_before_it_is_made(family: str, key: str, seen: tuple[int, ...]) -> None:
    """All layers are before the first one with a window, or before the first one without: no text of 2 GB."""
    used = {"use_sliding_window": True} if family == "qwen3" else {}
    target: Any = load_target(family)
    data = {
        **target.config.native(),
        **used,
        "layer_types": None,
        "sliding_window": 8,
        "num_hidden_layers": 2,
        key: 2**31 - 1,
    }
    tracemalloc.start()
    try:
        config = type(target.config).of(data, Path("config.json"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24
    assert tuple(config.windows() or ()) == seen


def test_a_file_that_no_formulas_describe_is_counted_by_its_graph_under_any_name(tmp_path: Path) -> None:
    """The cache of transformers keeps five tokens of its layer, two heads of keys and of values, 8 wide."""
    file = tmp_path / "config.json"
    one = {**LLAMA, "num_hidden_layers": 1, "layer_types": ["sliding_attention"]}
    file.write_text(json.dumps({**one, "sliding_window": 6}))
    found = api.fits("llama-3.1-8b", config=file, memory="1GB")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(file)))
    with torch.no_grad():
        layers = model(torch.ones(1, 40, dtype=torch.int64), use_cache=True).past_key_values.layers
    kept = sum(layer.keys.numel() + layer.values.numel() for layer in layers)
    assert kept == 5 * 2 * 2 * 8
    assert found.cache_bytes == 2 * kept
    for name in ("llama", "llama-3.1-8b"):
        target = load_target(name, file)
        assert not isinstance(target, type(load_target(name)))
        assert target.info() == load_target(f"hf:{file}").info()


def test_an_encoder_with_chunks_is_counted_by_its_graph_under_any_name(tmp_path: Path) -> None:
    """Four tokens at a time pass the MLPs, whose FLOPs stay: 16 tokens, two layers, widths 32 and 48, 4 heads."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    file = tmp_path / "config.json"
    kind = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 64, "max_position_embeddings": 64}
    file.write_text(json.dumps({**sizes, **kind, "chunk_size_feed_forward": 4}))
    pooler, layer = 2 * 32 * 32, 16 * (2 * 4 * 32 * 32 + 2 * 2 * 32 * 48) + 2 * 2 * 16 * 16 * 32
    for found in (
        api.capture("bert", config=file, seq_len=16, sources=["static"]),
        api.capture(f"hf:{file}", seq_len=16, sources=["static"]),
    ):
        assert found.by_source["static"].total("flops") == 2 * layer + pooler


@pytest.mark.parametrize("padding", [None, 5, -1, -64, 64, -65])
@pytest.mark.parametrize("kind", ["unlimited_ocr", "deepseek_ocr2"])
def test_pages_take_the_padding_ids_that_the_class_takes(kind: str, padding: int | None, tmp_path: Path) -> None:
    name = {"unlimited_ocr": "deepseek-ocr", "deepseek_ocr2": "deepseek-ocr2"}[kind]
    sizes = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "n_shared_experts": 1, "vocab_size": 64, "mlp_layer_types": ["dense", "sparse"], "pad_token_id": padding,
    }  # fmt: skip
    file = tmp_path / "config.json"
    # The same id beside the sections, where nothing looks it up.
    file.write_text(json.dumps({"model_type": kind, "text_config": sizes, "pad_token_id": 64, "image_token_id": 3}))
    try:
        with torch.device("meta"):
            AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(str(file)))
        builds = True
    except AssertionError:  # padding_idx must be within num_embeddings
        builds = False
    assert builds == (padding in (None, 5, -1, -64))
    said = ""
    try:
        load_target(name, file)
    except Problems as error:  # the class also takes towers that do not fit
        said = str(error)
    assert ("the table of tokens has no such row" in said) != builds
    assert "$.pad_token_id" not in said


def test_the_class_of_transformers_is_counted_though_a_file_names_code(tmp_path: Path) -> None:
    code = {"auto_map": {"AutoConfig": "configuration_x.C", "AutoModelForCausalLM": "modeling_x.M"}}
    for base in (LLAMA, PHI3):
        told = _target(tmp_path, {**base, **code}).info()
        assert told.waived["$.auto_map"] == OWN_CODE
        assert "; own code not run, transformers has the class: auto_map" in model_line(told)
    # The option that runs the code where it is there changes nothing where it is not.
    assert load_target(f"hf:{tmp_path / 'config.json'}", trusted=True).info().waived["$.auto_map"] == OWN_CODE
    with pytest.raises(BadInput, match="transformers has no class") as caught:
        _target(tmp_path, {**PHI3, **code, "model_type": "nowhere", "architectures": ["NowhereForCausalLM"]})
    assert "put configuration_x.py beside it" in str(caught.value)
    with pytest.raises(BadInput, match="names is missing"):
        load_target(f"hf:{tmp_path / 'config.json'}", trusted=True)


def test_a_type_without_a_class_is_that_of_its_architecture(tmp_path: Path) -> None:
    """As Kimi-K2 is: ``kimi_k2`` with the class of DeepSeek-V3; and one whose family has no formulas."""
    latent = {**LLAMA, "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "n_routed_experts": 8,
              "n_group": 1, "topk_group": 1, "num_key_value_heads": 4, "moe_intermediate_size": 8}  # fmt: skip
    for data, name in ((latent, "deepseek-v3"), ({**PHI3, "model_type": "nowhere"}, "phi3")):
        made = _target(tmp_path, data)
        told = made.info()
        assert told.name == name
        assert told.waived["$.model_type"] == NO_CLASS
        assert "; counted as the type of its architecture: model_type" in model_line(told)


def _refused_by_transformers(kind: str, data: dict[str, Any], *, built: bool) -> bool:
    """Whether AutoConfig refuses a configuration, or its model cannot be built on meta."""
    try:
        config = AutoConfig.for_model(kind, **data)
        if built:
            kind_of: Any = type(config)
            with torch.device("meta"):
                auto_class(kind_of)._from_config(config)
    except Exception:  # whatever a class raises
        return True
    return False


@pytest.mark.parametrize("config", _families(), ids=lambda c: c.model_type)
def test_what_transformers_refuses_is_refused(config: NativeConfig, thorough: bool) -> None:
    """Every key of the class, null and left out, at the published configuration."""
    kind = CONFIG_MAPPING[config.model_type]
    built, own = kind(**config.native()).to_dict(), {f.name for f in fields(kind)} - {"architectures", "id2label"}
    base = {key: value for key, value in built.items() if key in own}
    accepted = []
    for key in base:
        for data in ({**base, key: None}, {k: v for k, v in base.items() if k != key}):
            problems: list[CostproofError] = []
            type(config).read({"model_type": config.model_type, **data}, problems)
            if not problems and _refused_by_transformers(config.model_type, data, built=thorough):
                accepted.append((key, key in data))
    assert accepted == [], f"{accepted}: a key that may not be null belongs into not_null of {type(config).__name__}"


ROPE: dict[str, Any] = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("scaling", "where"),
    [
        ({"type": "linear"}, "factor"),
        ({"type": "linear", "factor": None}, "factor"),
        ({"type": "linear", "factor": "2"}, "factor"),
        ({"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"type": "yarn"}, "factor"),
        ({"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}, "low_freq_factor"),
        ({**ROPE, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"type": "linear", "factor": 2}, None),
        ({"type": "yarn", "factor": None}, None),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, None),
        (ROPE, None),
    ],
)
def test_rotations_that_no_model_has(scaling: dict[str, Any], where: str | None) -> None:
    """Each is held against a run of the class on meta: one that cannot be built, or run, is refused."""
    problems: list[CostproofError] = []
    LlamaConfig.read({**LLAMA, "rope_scaling": scaling}, problems)
    assert [getattr(p, "where", None) for p in problems] == ([f"$.rope_scaling.{where}"] if where else [])
    try:
        config = AutoConfig.for_model(**{**LLAMA, "rope_scaling": scaling})
        kind: Any = type(config)
        with torch.device("meta"), torch.no_grad():
            auto_class(kind)._from_config(config)(torch.zeros(1, 4, dtype=torch.long))
    except Exception:
        assert where is not None
    else:
        assert where is None


def test_heads_of_keys_and_values_that_latent_attention_lacks() -> None:
    """The class of DeepSeek-V3 takes 128 where a file names none: 4 heads would get 4 // 128 copies of each key."""
    latent = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 64, "n_group": 1,
              "topk_group": 1, "n_routed_experts": 8, "num_experts_per_tok": 2}  # fmt: skip
    for heads, given, refused in ((4, {}, True), (128, {}, False), (4, {"num_key_value_heads": None}, False)):
        problems: list[CostproofError] = []
        DeepseekV3Config.read({"model_type": "deepseek_v3", **latent, "num_attention_heads": heads, **given}, problems)
        assert [getattr(p, "where", None) for p in problems] == ["$.num_key_value_heads"] * refused


@pytest.mark.parametrize(
    ("positions", "scaling", "longest"),
    [
        (32768, {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),  # Qwen2.5
        (32768, {"rope_type": "yarn", "factor": 4.0}, 131072),
        (163840, {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, 163840),  # DeepSeek-V3
        (131072, {**ROPE, "original_max_position_embeddings": 8192}, 131072),  # Llama 3.1: 8 x 8,192 is less
        (4096, {"type": "linear", "factor": 4.0}, 4096),  # files with it name the longer context
        (4096, {"type": "yarn", "factor": None}, 4096),
    ],
)
def test_the_context_that_a_scaled_rotation_makes(positions: int, scaling: Any, longest: int, tmp_path: Path) -> None:
    for base in (LLAMA, PHI3 | {"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"]}):
        target = _target(tmp_path, {**base, "max_position_embeddings": positions, "rope_scaling": scaling})
        target.check(target.workload(seq_len=longest - 1, new_tokens=1))
        with pytest.raises(BadInput) as caught:
            target.check(target.workload(seq_len=longest, new_tokens=1))
        assert f"at most {longest} tokens" in str(caught.value) + str(getattr(caught.value, "problems", ""))


@pytest.mark.parametrize("factor", ["1e999", "1e300", "NaN", "524288"])
def test_a_factor_that_gives_no_length_of_a_context_is_refused(factor: str, tmp_path: Path) -> None:
    """4,096 * 524,288 = 2**31, one more than the largest size; the others have no integer."""
    for base in (LLAMA, PHI3 | {"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"]}):
        scaling = {"rope_type": "yarn", "factor": float(factor), "original_max_position_embeddings": 4096}
        with pytest.raises(BadInput, match="gives no length"):
            _counted(tmp_path, {**base, "max_position_embeddings": 4096, "rope_scaling": scaling})


def _counted(folder: Path, config: dict[str, Any]) -> None:
    target = _target(folder, config)
    target.check(target.workload(seq_len=4, new_tokens=1))


@pytest.mark.parametrize(
    ("kind", "read", "unread"),
    [
        # Names of other classes that the code has as arguments or as attributes of its modules.
        ("gpt_neox", {"hidden_size": 32}, {"num_key_value_heads": 2, "num_heads": 2, "bias": False}),
        # A cache of any class looks for a window.
        ("gpt_neox", {"sliding_window": 8}, {"embed_dim": 16}),
        # Fields of the class that its code never reads: it has biases nowhere, and four times the width.
        ("mpt", {"d_model": 32, "no_bias": True}, {"expansion_ratio": 8, "embedding_fraction": 0.5}),
        ("mamba2", {"expand": 2}, {"intermediate_size": 8}),
    ],
)
def test_a_key_is_read_where_code_takes_it_from_the_configuration(
    kind: str, read: dict[str, Any], unread: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 64, "pad_token_id": 0}
    small = {
        "gpt_neox": {**sizes, "intermediate_size": 48},
        "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 1, "vocab_size": 64},
        "mamba2": {**sizes, "num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2},
    }[kind]
    told = _target(tmp_path, {"model_type": kind, **small, **read, **unread}).info()
    assert {k for k, why in told.waived.items() if why == UNREAD} == {f"$.{key}" for key in unread}


@pytest.mark.parametrize(
    ("named", "kind"),
    [("LlamaForCausalLM", "llama"), ("GPT2LMHeadModel", "gpt2"), ("XLMRobertaModel", "xlm-roberta"), ("Odd", None)],
)
def test_the_type_of_an_architecture_is_the_one_of_its_name(named: str, kind: str | None) -> None:
    """internlm3 has the class of Llama too, and gpt-sw3 that of GPT-2."""
    assert type_of_class({"model_type": "LLaMA", "architectures": [named]}) == kind


@pytest.mark.parametrize(
    "data",
    [
        {**LLAMA, "sliding_window": 8},
        {**LLAMA, "attention_chunk_size": 8},
        {**LLAMA, "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]},
        {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 8,
         "layer_types": ["full_attention", "sliding_attention"]},
    ],
)  # fmt: skip
def test_a_cache_that_keys_of_no_class_cut_is_not_described_by_formulas(data: dict[str, Any], tmp_path: Path) -> None:
    """A cache of transformers is made from the configuration, whatever the class of the model reads."""
    made = _target(tmp_path, data)
    assert isinstance(made, GenericTarget)
    assert UNREAD not in made.info().waived.values()


def test_a_cache_is_described_by_formulas_where_nothing_cuts_it(tmp_path: Path) -> None:
    whole = {"sliding_window": None, "attention_chunk_size": None, "layer_types": ["full_attention"] * 2}
    assert not isinstance(_target(tmp_path, {**LLAMA, **whole}), GenericTarget)


def test_a_null_section_is_one_that_is_left_out(tmp_path: Path) -> None:
    """As tools write the sections that a model does not have; the class takes its defaults."""
    llava = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 5}
    plain, null = (
        _target(tmp_path, {**llava, **parts}) for parts in ({}, {"text_config": None, "vision_config": None})
    )
    assert null.info().config_hash == plain.info().config_hash
    flat = {**LLAMA, "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"],
            "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}, "vision_config": {"out_hidden_size": 32},
            "image_token_id": 9}  # fmt: skip
    plain, null = (_target(tmp_path, {**flat, **parts}) for parts in ({}, {"text_config": None}))
    assert null.info().config_hash == plain.info().config_hash


def test_heads_without_a_width_are_refused(tmp_path: Path) -> None:
    narrow = {**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 2}
    with pytest.raises(
        Problems, match="a head must have an even width, since rotary embedding rotates pairs of elements"
    ):
        _target(tmp_path, narrow)


_GPT2: Final = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 48}
_VISION: Final = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_a_class_without_rotation_has_no_more_positions_by_its_keys(key: str, tmp_path: Path) -> None:
    file = {**_GPT2, key: {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}
    target = _target(tmp_path, file)
    config: Any = target
    assert config.config.max_positions == 48  # rows of the table of positions; AutoModelForCausalLM has as many
    assert dict(config.config.waived)[f"$.{key}"] == UNREAD


@pytest.mark.parametrize("kind", ["vit", "dinov2"])
def test_heads_of_another_width_than_their_share_are_told(kind: str, tmp_path: Path) -> None:
    file = {"model_type": kind, **_VISION}
    _target(tmp_path, {**file, "head_dim": 8})
    for wrong in (6, None):
        with pytest.raises(Problems) as caught:
            _target(tmp_path, {**file, "head_dim": wrong})
        assert [str(getattr(p, "where", None)) for p in caught.value.problems] == ["$.head_dim"]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_moe"])
def test_a_width_of_heads_that_is_null_is_refused(kind: str, tmp_path: Path) -> None:
    """The classes take it from the file as it is, and raise it to a power."""
    with pytest.raises(Problems) as caught:
        _target(tmp_path, {**LLAMA, "model_type": kind, "architectures": None, "num_experts": 4, "head_dim": None})
    assert [str(getattr(p, "where", None)) for p in caught.value.problems] == ["$.head_dim"]


@pytest.mark.parametrize("file", [LLAMA, {**_GPT2, "num_hidden_layers": None}], ids=["llama", "gpt2"])
def test_kinds_of_layers_that_are_more_than_the_layers_are_refused(file: dict[str, Any], tmp_path: Path) -> None:
    file = {key: value for key, value in file.items() if value is not None}
    _target(tmp_path, {**file, "layer_types": ["full_attention"] * 2})
    with pytest.raises(Problems) as caught:
        _target(tmp_path, {**file, "layer_types": ["full_attention"] * 3})
    assert [str(getattr(p, "where", None)) for p in caught.value.problems] == ["$.layer_types"]
    with pytest.raises(Exception, match="num_hidden_layers"):
        AutoConfig.for_model(**{**file, "layer_types": ["full_attention"] * 3})


def _small(config: NativeConfig) -> dict[str, Any]:
    """A file of the family that its class can build at once: one narrow layer, 64 words."""
    small = {
        "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "hidden_dim": 32, "intermediate_size": 32,
        "moe_intermediate_size": 16, "num_hidden_layers": 1, "num_layers": 1, "n_layer": 1, "n_layers": 1,
        "num_attention_heads": 2, "n_head": 2, "n_heads": 2, "num_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
        "d_kv": 16, "d_ff": 32, "vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    kind = CONFIG_MAPPING[config.model_type]
    known = {*(f.name for f in fields(kind)), *kind.attribute_map}
    return {"model_type": config.model_type, **{k: v for k, v in small.items() if k in known}}


_OF_TEXT: Final = [
    c
    for c in _families()
    if isinstance(c, (DecoderConfig, TextEncoderConfig, T5Config)) and "deepseek" not in c.model_type
]


@pytest.mark.parametrize("padding", [63, 64, -64, -65])
@pytest.mark.parametrize("config", _OF_TEXT, ids=lambda c: c.model_type)
def test_a_padding_id_is_refused_where_the_class_refuses_it(config: NativeConfig, padding: int) -> None:
    """The class is asked: torch takes a row of a table, from its end too, where a class has one for padding."""
    file = {**_small(config), "pad_token_id": padding}
    problems: list[CostproofError] = []
    type(config).read(file, problems)
    refused = "$.pad_token_id" in [p.where for p in problems if isinstance(p, BadInput)]
    try:
        made = AutoConfig.for_model(**file)
        with torch.device("meta"):
            AutoModel.from_config(made)
    except AssertionError:
        assert refused
    else:
        # Positions of RoBERTa begin behind it: at -64 there are none.
        assert not refused or isinstance(config, RobertaConfig)


@pytest.mark.parametrize("config", _OF_TEXT, ids=lambda c: c.model_type)
def test_a_class_that_fails_on_tuples_is_refused_with_them(config: NativeConfig) -> None:
    file = {**_small(config), "return_dict": False}
    problems: list[CostproofError] = []
    type(config).read(file, problems)
    refused = "$.return_dict" in [p.where for p in problems if isinstance(p, BadInput)]
    made = AutoConfig.for_model(**file)
    kinds: dict[str, Any] = {"t5": T5ForConditionalGeneration}
    if isinstance(config, DecoderConfig):
        kinds[config.model_type] = MODEL_FOR_CAUSAL_LM_MAPPING[type(made)]
    kind = kinds.get(config.model_type)
    module = AutoModel.from_config(made) if kind is None else kind(made)
    ids = torch.zeros(1, 3, dtype=torch.long)
    module = module.to(torch.bfloat16)  # grouped GEMMs take no other dtype
    more = {"decoder_input_ids": ids} if isinstance(config, T5Config) else {}
    try:
        module(input_ids=ids, **more)
    except AttributeError:
        assert refused
    else:
        assert not refused


@pytest.mark.parametrize("kind", ["clip_vision_model", "siglip_vision_model", "vit", "dinov2"])
@pytest.mark.parametrize("key", ["image_size", "patch_size"])
def test_a_list_of_sides_is_refused_where_the_class_refuses_it(kind: str, key: str) -> None:
    config = next(c for c in _families() if c.model_type == kind)
    file = {**_small(config), "image_size": 28, "patch_size": 14}
    file[key] = [file[key]] * 2
    problems: list[CostproofError] = []
    type(config).read(file, problems)
    try:
        with torch.device("meta"):
            AutoModel.from_config(AutoConfig.for_model(**file))
    except TypeError:
        assert [p.where for p in problems if isinstance(p, BadInput)] == [f"$.{key}"]
    else:
        assert not problems


_BERT: Final = {
    "model_type": "bert", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "vocab_size": 64, "pad_token_id": 0,
}  # fmt: skip
_T5: Final = {
    "model_type": "t5", "d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 64,
    "architectures": ["T5ForConditionalGeneration"], "feed_forward_proj": "relu",
}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ({**_BERT, "architectures": ["BertForMaskedLM"]}, {"tie_word_embeddings": False}),
        ({**_BERT, "architectures": ["BertModel"]}, {"is_decoder": True}),
        (_T5, {"dense_act_fn": "gelu_new"}),
        (_T5, {"is_gated_act": True}),
    ],
)
def test_a_file_that_formulas_do_not_describe_is_counted_by_its_graph(
    file: dict[str, Any], change: dict[str, Any], tmp_path: Path
) -> None:
    """The class has the model that the file names: a head of its own, a decoder, the saved activation."""
    assert not isinstance(_target(tmp_path, file), GenericTarget)
    data = {**file, **change}
    target = _target(tmp_path, data)
    assert isinstance(target, GenericTarget)
    own = getattr(transformers, data["architectures"][0])(AutoConfig.for_model(**data))
    built = target.build(target.workload(seq_len=4))
    assert sum(p.numel() for p in built.parameters()) == sum(p.numel() for p in own.parameters())
    found = api.capture(f"hf:{tmp_path / 'config.json'}", seq_len=4, sources=["static"])
    (ledger,) = found.ledgers
    assert ledger.total("params") == sum(p.numel() for p in own.parameters())
