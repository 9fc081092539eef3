"""A sample of the model types of transformers, as ``benchmarks.zoo`` counts them all; and the rule of its sizes."""

from __future__ import annotations

import pytest
from benchmarks.tiny import tiny
from benchmarks.zoo_count import counted

from tests.variants import with_variants

SAMPLE = (
    "distilbert", "vit_msn", "voxtral_encoder", "pixtral", "vitdet", "unispeech-sat", "squeezebert", "siglip",
    "dinov3_vit",
)  # fmt: skip
"""Each takes a second or two; a model with a cache of its own takes five."""
ALWAYS = ("distilbert", "voxtral_encoder", "pixtral", "vitdet")


@pytest.mark.parametrize("name", with_variants(SAMPLE, ALWAYS))
def test_export_and_run_and_the_counter_of_torch_agree(name: str) -> None:
    found = counted(name, lambda said: None)
    assert (found.outcome, found.why, found.unused) == ("exact", "", "")
    assert found.flops


@pytest.mark.thorough
def test_all_work_of_phi4_multimodal_is_where_it_is_done() -> None:
    found = counted("phi4_multimodal", lambda said: None)
    assert (found.outcome, found.unused) == ("exact", "model.embed_tokens_extend")  # ids alone reach no tower


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
