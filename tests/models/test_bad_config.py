"""Configurations that lie: each is refused, with the place and what would have been right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.errors import BadInput, Problems
from costproof.models.families.deepseek_ocr.config import parse_config

VENDOR = Path(__file__).parents[1] / "data" / "vendor-config.json"

Change = Callable[[dict[str, Any]], object]


def vendor() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(VENDOR.read_text())
    return data


def native() -> dict[str, Any]:
    """What ``UnlimitedOcrConfig().to_dict()`` holds that decides anything, shortened by hand."""
    return {
        "model_type": "unlimited_ocr",
        "vision_config": {"sam_config": {"hidden_size": 768}, "encoder_config": {"hidden_size": 1024}},
        "text_config": {"hidden_size": 1280, "num_hidden_layers": 12},
    }


def set_language(**values: object) -> Change:
    """Change a decoder's key in both of its places."""

    def change(data: dict[str, Any]) -> None:
        for key, value in values.items():
            data["language_config"][key] = value
            data[key] = value

    return change


def set_at(path: str, value: object) -> Change:
    def change(data: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for parent in parents:
            data = data[parent]
        data[last] = value

    return change


def drop(path: str) -> Change:
    def change(data: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for parent in parents:
            data = data[parent]
        del data[last]

    return change


def both(*changes: Change) -> Change:
    def change(data: dict[str, Any]) -> None:
        for one in changes:
            one(data)

    return change


SAM = "vision_config/width/sam_vit_b/"
CLIP = "vision_config/width/clip-l-14-224/"
AT_SAM = "$.vision_config.width.sam_vit_b"
AT_CLIP = "$.vision_config.width.clip-l-14-224"
MLA = "multi-head latent attention is not described by the formulas of this target"

BAD_VENDOR: dict[str, tuple[Change, tuple[str, str, str | None, str | None]]] = {
    # name: (change, (what, where, expected, got))
    "unknown key": (
        set_language(hiden_size=1280),
        ("nothing is known about this key", "$.hiden_size", None, "1280"),
    ),
    "negative layers": (
        set_at(SAM + "layers", -1),
        ("this is out of range", AT_SAM + ".layers", "an integer from 1 to 1000", "-1"),
    ),
    "zero width": (set_at(CLIP + "width", 0), ("this is out of range", AT_CLIP + ".width", "a positive integer", "0")),
    "string": (
        set_language(hidden_size="1280"),
        ("this must be an integer", "$.language_config.hidden_size", "a positive integer", "'1280'"),
    ),
    "bool for a number": (
        set_language(num_hidden_layers=True),
        ("this must be an integer", "$.language_config.num_hidden_layers", "an integer from 1 to 1000", "true"),
    ),
    "float for a number": (
        set_language(intermediate_size=6848.0),
        ("this must be an integer", "$.language_config.intermediate_size", "a positive integer", "6848.0"),
    ),
    "huge": (
        set_language(vocab_size=10**30),
        ("this is out of range", "$.language_config.vocab_size", "a positive integer", "1" + "0" * 30),
    ),
    "null": (
        set_language(n_routed_experts=None),
        ("this must be an integer", "$.language_config.n_routed_experts", "a positive integer", "null"),
    ),
    "not a number": (
        set_language(rms_norm_eps=float("nan")),
        ("this must be a finite number", "$.language_config.rms_norm_eps", None, "nan"),
    ),
    "missing key": (drop(SAM + "heads"), ("a key is missing", AT_SAM + ".heads", None, None)),
    "missing section": (drop("projector_config"), ("a key is missing", "$.projector_config", "a JSON object", None)),
    "list for an object": (
        set_at("vision_config/width", []),
        ("this must be an object", "$.vision_config.width", "a JSON object", "[]"),
    ),
    "sam heads": (
        set_at(SAM + "heads", 7),
        (
            "the attention heads do not divide the width",
            AT_SAM + ".heads",
            f"a divisor of 768 ({AT_SAM}.width)",
            "7",
        ),
    ),
    "clip heads": (
        set_at(CLIP + "heads", 15),
        (
            "the attention heads do not divide the width",
            AT_CLIP + ".heads",
            f"a divisor of 1024 ({AT_CLIP}.width)",
            "15",
        ),
    ),
    "decoder heads": (
        set_language(num_attention_heads=9, num_key_value_heads=9),
        (
            "the attention heads do not divide the width",
            "$.language_config.num_attention_heads",
            "a divisor of 1280 ($.language_config.hidden_size)",
            "9",
        ),
    ),
    "odd head width": (
        set_language(num_attention_heads=256, num_key_value_heads=256),
        (
            "rotary embedding needs an even head width",
            "$.language_config.num_attention_heads",
            "an even width / heads",
            "5",
        ),
    ),
    "kv heads": (
        set_language(num_key_value_heads=4),
        (
            "the key/value heads do not divide the attention heads",
            "$.language_config.num_key_value_heads",
            "a divisor of 10 ($.language_config.num_attention_heads)",
            "4",
        ),
    ),
    "top-k": (
        set_language(num_experts_per_tok=65),
        (
            "a token cannot pass more experts than there are",
            "$.language_config.num_experts_per_tok",
            "at most 64 ($.language_config.n_routed_experts)",
            "65",
        ),
    ),
    "dense layers": (
        set_language(first_k_dense_replace=13),
        (
            "more dense layers than layers",
            "$.language_config.first_k_dense_replace",
            "at most 12 ($.language_config.num_hidden_layers)",
            "13",
        ),
    ),
    "global layer outside": (
        set_at(SAM + "global_attn_indexes", [2, 12]),
        ("a global attention layer does not exist", AT_SAM + ".global_attn_indexes", "0 to 11", "[12]"),
    ),
    "global layer twice": (
        set_at(SAM + "global_attn_indexes", [2, 2]),
        ("a global attention layer is named twice", AT_SAM + ".global_attn_indexes", "distinct layers", "[2, 2]"),
    ),
    "global layer text": (
        set_at(SAM + "global_attn_indexes", "2,5"),
        ("this must be a list of integers", AT_SAM + ".global_attn_indexes", "a list", "'2,5'"),
    ),
    "one downsampling": (
        set_at(SAM + "downsample_channels", [1024]),
        ("there must be two stride-2 convolutions", AT_SAM + ".downsample_channels", "two widths", "[1024]"),
    ),
    "sam to clip": (
        both(set_at(SAM + "downsample_channels", [512, 512]), set_at("projector_config/input_dim", 1536)),
        (
            "SAM's features go into the next tower as they are, so their widths must agree",
            AT_SAM + ".downsample_channels",
            f"1024 ({AT_CLIP}.width) as the last entry",
            "512",
        ),
    ),
    "projector input": (
        set_at("projector_config/input_dim", 1024),
        (
            "the projector reads the features of SAM and CLIP side by side",
            "$.projector_config.input_dim",
            "2048 = 1024 + 1024",
            "1024",
        ),
    ),
    "projector output": (
        set_at("projector_config/n_embed", 1024),
        (
            "the projector writes embeddings of the decoder",
            "$.projector_config.n_embed",
            "1280 ($.language_config.hidden_size)",
            "1024",
        ),
    ),
    "projector type": (
        set_at("projector_config/projector_type", "mlp_gelu"),
        (
            "only a linear projector is described by the formulas",
            "$.projector_config.projector_type",
            "'linear'",
            "'mlp_gelu'",
        ),
    ),
    "mla": (set_language(use_mla=True), (MLA, "$.language_config.use_mla", "false", "true")),
    "mla by default": (
        both(drop("use_mla"), drop("language_config/use_mla")),
        (MLA, "$.language_config.use_mla", "false", "true"),
    ),
    "latent rank": (set_language(kv_lora_rank=512), (MLA, "$.language_config.kv_lora_rank", "null", "512")),
    "latent width": (set_language(v_head_dim=128), (MLA, "$.language_config.v_head_dim", "0 or null", "128")),
    "routing": (
        set_language(topk_method="group_limited_greedy"),
        (
            "only greedy routing is described by the formulas",
            "$.language_config.topk_method",
            "'greedy'",
            "'group_limited_greedy'",
        ),
    ),
    "activation": (
        set_language(hidden_act="gelu"),
        ("only SiLU is described by the formulas", "$.language_config.hidden_act", "'silu'", "'gelu'"),
    ),
    "tied embeddings": (
        set_language(tie_word_embeddings=True),
        ("the vendor's lm_head has a table of its own", "$.language_config.tie_word_embeddings", "false", "true"),
    ),
    "zero is not false": (
        set_language(tie_word_embeddings=0),
        ("the vendor's lm_head has a table of its own", "$.language_config.tie_word_embeddings", "false", "0"),
    ),
    "disagreement": (
        set_at("hidden_size", 1024),
        (
            "this must equal the value in language_config",
            "$.hidden_size",
            "1280 ($.language_config.hidden_size)",
            "1024",
        ),
    ),
    "only at top level": (
        drop("language_config/vocab_size"),
        ("a key is missing", "$.language_config.vocab_size", None, None),
    ),
    "small vocabulary": (
        set_language(vocab_size=1000),
        (
            "the image token is outside the vocabulary",
            "$.language_config.vocab_size",
            "less than 1000 ($.language_config.vocab_size)",
            "128815",
        ),
    ),
    "clip patches": (
        set_at(CLIP + "image_size", 225),
        (
            "the patches do not tile the image",
            AT_CLIP + ".image_size",
            f"a multiple of 14 ({AT_CLIP}.patch_size)",
            "225",
        ),
    ),
    "another model": (
        set_at("model_type", "llama"),
        ("this model type is not DeepSeek-OCR's", "$.model_type", "'deepseek_vl_v2' or 'DeepseekOCR'", "'llama'"),
    ),
}


@pytest.mark.parametrize("name", BAD_VENDOR)
def test_a_lying_vendor_file_is_refused_with_its_place(name: str) -> None:
    change, expected = BAD_VENDOR[name]
    data = vendor()
    change(data)
    with pytest.raises(Problems) as caught:
        parse_config(data, where="config.json")
    assert expected in [(p.what, p.where, p.expected, p.got) for p in caught.value.problems]


TEXT = "text_config/"
BAD_NATIVE: dict[str, tuple[Change, tuple[str, str, str | None, str | None]]] = {
    "unknown key": (
        set_at("text_config/num_layers", 3),
        ("nothing is known about this key", "$.text_config.num_layers", None, "3"),
    ),
    "dense after sparse": (
        set_at("text_config/mlp_layer_types", ["sparse"] * 11 + ["dense"]),
        (
            "dense layers after sparse ones are not described by the formulas",
            "$.text_config.mlp_layer_types",
            "all dense layers first",
            None,
        ),
    ),
    "too few kinds": (
        set_at("text_config/mlp_layer_types", ["dense"]),
        ("this must list a kind per layer", "$.text_config.mlp_layer_types", "12", "1"),
    ),
    "attention kind": (
        set_at("text_config/layer_types", ["linear_attention"] * 12),
        (
            "this must list a kind per layer",
            "$.text_config.layer_types",
            "12 of 'reference_sliding_attention' or 'full_attention'",
            "a list of 12",
        ),
    ),
    "scaled rotary": (
        set_at("text_config/rope_parameters", {"rope_type": "yarn", "rope_theta": 10000.0}),
        (
            "scaled rotary embedding is not described by the formulas",
            "$.text_config.rope_parameters.rope_type",
            "'default'",
            "'yarn'",
        ),
    ),
    "head width": (
        set_at("text_config/head_dim", 64),
        (
            "the native class sets the head width to width / heads, whatever the file says",
            "$.text_config.head_dim",
            "128",
            "64",
        ),
    ),
    "no window": (
        set_at("text_config/sliding_window", None),
        ("this must be an integer", "$.text_config.sliding_window", "a positive integer", "null"),
    ),
    "biases": (
        set_at("vision_config/sam_config/qkv_bias", False),
        (
            "attention without biases is not described by the formulas",
            "$.vision_config.sam_config.qkv_bias",
            "true",
            "false",
        ),
    ),
    "two sides": (
        set_at("vision_config/sam_config/image_size", [1024, 1024]),
        (
            "this must be an integer",
            "$.vision_config.sam_config.image_size",
            "a positive integer",
            "[1024, 1024]",
        ),
    ),
    "image token": (
        set_at("image_token_id", 129_280),
        (
            "the image token is outside the vocabulary",
            "$.image_token_id",
            "less than 129280 ($.text_config.vocab_size)",
            "129280",
        ),
    ),
    "sam to clip": (
        set_at("vision_config/encoder_config/hidden_size", 512),
        (
            "SAM's features go into the next tower as they are, so their widths must agree",
            "$.vision_config.sam_config.downsample_channels",
            "512 ($.vision_config.encoder_config.hidden_size) as the last entry",
            "1024",
        ),
    ),
}


@pytest.mark.parametrize("name", BAD_NATIVE)
def test_a_lying_native_file_is_refused_with_its_place(name: str) -> None:
    change, expected = BAD_NATIVE[name]
    data = native()
    change(data)
    with pytest.raises(Problems) as caught:
        parse_config(data, where="config.json")
    assert expected in [(p.what, p.where, p.expected, p.got) for p in caught.value.problems]


def test_all_problems_come_at_once_and_read_well() -> None:
    data = vendor()
    set_at(SAM + "heads", -1)(data)
    data["vision_confg"] = {}
    with pytest.raises(Problems) as caught:
        parse_config(data, where="config.json")
    assert str(caught.value) == (
        "the configuration config.json cannot be used (2 problems)\n"
        "this is out of range\n"
        "  where:    $.vision_config.width.sam_vit_b.heads\n"
        "  expected: a positive integer\n"
        "  got:      -1\n"
        "nothing is known about this key\n"
        "  where:    $.vision_confg\n"
        "  got:      an object\n"
        "  fix:      did you mean vision_config?"
    )


@pytest.mark.parametrize("data", [[], {}, {"model_type": "llama", "hidden_size": 3}, {"vision_config": {}}])
def test_what_is_no_configuration_is_refused(data: object) -> None:
    with pytest.raises(BadInput, match="configuration"):
        parse_config(data, where="config.json")


def test_a_misspelt_waived_key_is_not_waived() -> None:
    """Every key of the vendor's file is known by its exact name: none is let through by accident."""
    for path in _paths(vendor()):
        data = vendor()
        *parents, last = path
        inner = data
        for parent in parents:
            inner = inner[parent]
        inner[last + "_x"] = inner.pop(last)
        with pytest.raises(BadInput):
            parse_config(data, where="config.json")


def _paths(data: dict[str, Any], head: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in data.items():
        found.append((*head, key))
        # The vendor's maps of class names are waived whole.
        if isinstance(value, dict) and key != "auto_map":
            found += _paths(value, (*head, key))
    return found
