"""A sample of the model types of transformers, as ``benchmarks.zoo`` counts them all; and the rule of its sizes."""

from __future__ import annotations

import pytest
import torch
from transformers import CONFIG_MAPPING

from tests.oracles.completed import LACKING, completed
from tests.oracles.tiny import tiny
from tests.oracles.zoo_count import _singles, counted
from tests.support.variants import with_variants

ENCODERS = (
    "albert", "audio-spectrogram-transformer", "beit", "blip_2_qformer", "chinese_clip", "clip", "clip_text_model",
    "data2vec-vision", "deberta", "deberta-v2", "deit", "dinov3_convnext", "dinov3_vit", "distilbert", "dpr", "fnet",
    "glm_image_vision", "hubert", "ijepa", "internvl_vision", "mgp-str", "nomic_bert", "patchtsmixer", "patchtst",
    "pixtral", "siglip",
    "siglip2", "squeezebert", "unispeech-sat", "video_llama_3_vision", "vit_msn", "vitdet", "vivit", "voxtral_encoder",
)  # fmt: skip
"""Each takes a second or two."""
WITH_CACHE = ("biogpt", "stablelm", "falcon")
WITH_TOWERS = ("llava", "paligemma", "fuyu", "voxtral", "smolvlm")
"""These take four to eight: a prefill with the tower, and a step."""
ALWAYS = ("deberta-v2", "hubert", "vitdet")
"""Relative positions, convolutions, windows. ``test_stages.py`` has caches and towers, ``test_structured.py`` series.
"""


@pytest.mark.parametrize("name", with_variants((*ENCODERS, *WITH_CACHE, *WITH_TOWERS), ALWAYS))
def test_export_and_run_and_the_counter_of_torch_agree(name: str) -> None:
    found = counted(name, lambda said: None)
    assert (found.outcome, found.why, found.unused) == ("exact", "", "")
    assert found.flops


@pytest.mark.parametrize(
    ("equation", "left", "right", "flops"),
    [
        ("bik,bkj->bij", (2, 3, 1), (2, 1, 5), 2 * 2 * 3 * 5),
        ("...ik,...kj->...ij", (2, 7, 3, 1), (2, 7, 1, 5), 2 * 2 * 7 * 3 * 5),
        ("...ik,...kj->...ij", (7, 3, 1), (2, 1, 1, 5), 2 * 2 * 7 * 3 * 5),
        ("...ik,...kj->...ij", (2, 7, 3, 4), (2, 7, 4, 5), 0),  # torch's counter has this one
    ],
)
def test_a_product_over_one_is_counted_where_torch_multiplies(
    equation: str, left: tuple[int, ...], right: tuple[int, ...], flops: int
) -> None:
    with _singles() as counter:
        torch.einsum(equation, torch.ones(left), torch.ones(right))
    assert counter.flops == flops


@pytest.mark.thorough
def test_all_work_of_phi4_multimodal_is_where_it_is_done() -> None:
    found = counted("phi4_multimodal", lambda said: None)
    # Ids alone reach no tower.
    assert (found.outcome, found.why) == ("in part", "not given: audio_input_features")
    assert found.unused == "model.embed_tokens_extend"


def test_a_tiny_configuration_keeps_every_kind_of_layer_and_what_divides() -> None:
    text = {
        "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 6, "vocab_size": 30522, "head_dim": 64,
        "layer_types": ["a", "a", "a", "b", "a", "b"], "num_experts": 64, "num_experts_per_tok": 8,
    }  # fmt: skip
    vision = {
        "hidden_size": 1024,
        "num_layers": 24,
        "patch_size": 32,
        "image_size": 224,
        "out_indices": [6, 12, 18, 24],
    }
    assert tiny({"text_config": text, "vision_config": vision}, 16) == {
        "text_config": {
            "hidden_size": 48, "num_attention_heads": 12, "num_hidden_layers": 4, "vocab_size": 30522, "head_dim": 4,
            "layer_types": ["a", "a", "a", "b"], "num_experts": 8, "num_experts_per_tok": 2,
        },
        # One layer for each place that features are taken from.
        "vision_config": {
            "hidden_size": 64, "num_layers": 4, "patch_size": 32, "image_size": 224, "out_indices": [1, 2, 3, 4],
        },
    }  # fmt: skip


def test_layers_that_have_something_of_their_own_are_cut_as_the_others_are() -> None:
    text = {
        "num_hidden_layers": 6, "layer_types": ["a", "a", "b", "a", "a", "b"], "num_kv_shared_layers": 4,
        "intermediate_size": [64, 64, 64, 64, 128, 128],
        "per_layer_config": {"2": {"head_dim": 512}, "5": {"head_dim": 512}},
        "rope_parameters": {"mrope_section": [8, 12, 12]}, "audio_length_per_tok": 8,
        "mask_types": ["a", "a", "a", "a"],
    }  # fmt: skip
    assert tiny(text, 4) == {
        # Three have every kind, and one more takes keys and values of another.
        "num_hidden_layers": 4, "layer_types": ["a", "a", "b", "a"], "num_kv_shared_layers": 1,
        "intermediate_size": [16, 16, 16, 16], "per_layer_config": {"2": {"head_dim": 128}},
        "rope_parameters": {"mrope_section": [2, 3, 3]}, "audio_length_per_tok": 8,
        "mask_types": ["a", "a", "a", "a"],
    }  # fmt: skip
    # Layer 4 of every eight attends: five have both kinds.
    assert tiny({"num_hidden_layers": 32, "attn_layer_period": 8, "attn_layer_offset": 4}, 1) == {
        "num_hidden_layers": 5, "attn_layer_period": 8, "attn_layer_offset": 4,
    }  # fmt: skip
    series = {"context_length": 16_384, "adapter_input_size": 64, "input_size": 64}
    assert tiny(series, 16) == {"context_length": 1024, "adapter_input_size": 4, "input_size": 64}
    assert tiny({"context_length": None}, 16) == {"context_length": None}
    assert tiny({"mrope_section": [8, 12, 12]}, 16) == {"mrope_section": [8, 12, 12]}  # no part of 12 is whole


def test_what_a_default_configuration_lacks_goes_into_its_parts() -> None:
    found = completed("step3p7", {"model_type": "step3p7", "text_config": {"hidden_size": 8, "sliding_window": None}})
    assert found == {"model_type": "step3p7", "text_config": {"hidden_size": 8, "sliding_window": 512}}
    assert completed("bert", {"hidden_size": 8}) == {"hidden_size": 8}


def test_transformers_has_every_type_that_lacks_something() -> None:
    assert set(LACKING) <= set(CONFIG_MAPPING)
