from __future__ import annotations

from dataclasses import replace

import pytest

from costproof.ledger.errors import BadInput
from costproof.models.families.deepseek_ocr.config import OcrConfig
from costproof.models.families.deepseek_ocr.target import DeepseekOcr


def test_the_published_model_with_three_decoder_layers() -> None:
    small, cut = DeepseekOcr().first_layers(3)
    # SAM attends globally in layers 2, 5, 8 and 11: three layers hold both kinds.
    assert (small.text.layers, small.sam.layers, small.sam.global_layers, small.clip.layers) == (3, 3, (2,), 3)
    assert cut == {"decoder layers": "3 of 12", "SAM layers": "3 of 12", "CLIP layers": "3 of 24"}
    assert (small.text.experts, small.text.hidden, small.text.dense_layers) == (64, 1280, 1)


def test_sam_keeps_a_windowed_layer_after_global_ones() -> None:
    config = OcrConfig()
    small, _ = DeepseekOcr(replace(config, sam=replace(config.sam, global_layers=(0, 1, 5)))).first_layers(2)
    assert (small.sam.layers, small.sam.global_layers) == (3, (0, 1))


def test_all_layers_are_no_cut() -> None:
    assert DeepseekOcr().first_layers(12) == (OcrConfig(), {})


def test_one_layer_of_each_kind_is_kept_and_said() -> None:
    small, cut = DeepseekOcr().first_layers(1)
    assert (small.text.layers, cut["decoder layers"]) == (2, "2 of 12 (1 asked: one of each kind of layer)")


@pytest.mark.parametrize("layers", [0, 13])
def test_what_the_structure_does_not_allow(layers: int) -> None:
    with pytest.raises(BadInput) as error:
        DeepseekOcr().first_layers(layers)
    assert "expected: 2 to 12: one of each kind of layer" in str(error.value)
