"""The size of images: that of the processor beside a configuration, unless a run is asked for with another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.errors import BadInput
from costproof.ledger.workload import counted_line
from costproof.models.processor import ImageSize, image_size
from costproof.models.registry import load_target

CLIP = {"crop_size": {"height": 336, "width": 336}, "do_center_crop": True, "size": {"shortest_edge": 400}}
SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip
DINO: dict[str, Any] = {**SMALL, "model_type": "dinov2"}
TEXT: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "vocab_size": 64,
}  # fmt: skip
LLAVA: dict[str, Any] = {
    "model_type": "llava", "image_token_index": 5, "text_config": TEXT,
    "vision_config": {**SMALL, "model_type": "clip_vision_model"},
}  # fmt: skip


def _written(folder: Path, config: dict[str, Any], processor: object, name: str = "preprocessor_config.json") -> str:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / name).write_text(json.dumps(processor), encoding="utf-8")
    return f"hf:{folder}"


@pytest.mark.parametrize(
    ("processor", "side", "key"),
    [
        (CLIP, 336, "$.crop_size"),
        ({**CLIP, "crop_size": 224}, 224, "$.crop_size"),
        ({**CLIP, "do_center_crop": False}, 400, "$.size"),
        ({"size": {"height": 384, "width": 384}}, 384, "$.size"),
        ({"size": 224, "do_resize": True}, 224, "$.size"),
        ({"image_processor": {"size": {"height": 896, "width": 896}}}, 896, "$.image_processor.size"),
        # An image keeps its size, has two, is no square, or is bounded by pixels.
        ({"size": 224, "do_resize": False}, None, ""),
        ({"size": {"height": 384, "width": 192}}, None, ""),
        ({"size": {"longest_edge": 1540}}, None, ""),
        ({"size": {"shortest_edge": 3136, "longest_edge": 12845056}}, None, ""),
        ({"crop_size": {"height": -1, "width": -1}}, None, ""),
        ({"min_pixels": 3136, "max_pixels": 12845056}, None, ""),
        ([1], None, ""),
    ],
)
def test_the_size_that_a_processor_makes(processor: object, side: int | None, key: str, tmp_path: Path) -> None:
    for name in ("preprocessor_config.json", "processor_config.json"):
        folder = tmp_path / name
        folder.mkdir()
        _written(folder, {}, processor, name)
        expected = None if side is None else ImageSize(side, f"{key} in {name}")
        assert image_size(folder / "config.json") == expected
    assert image_size(tmp_path / "config.json") is None


def test_the_processor_decides_the_usual_run_of_a_family(tmp_path: Path) -> None:
    target = load_target(_written(tmp_path, DINO, {"crop_size": 48}))
    usual, asked = target.workload(), target.workload(image_size=24)
    assert (usual.inputs["image_size"], usual.what) == (48, "images of 48 x 48")
    assert "images of 48 pixels a side ($.crop_size in preprocessor_config.json)" in counted_line(target.info(), usual)
    assert (asked.inputs, "pixels a side" in counted_line(target.info(), asked)) == ({"image_size": 24}, False)


def test_the_processor_decides_the_usual_run_of_a_model_without_formulas(tmp_path: Path) -> None:
    target = load_target(_written(tmp_path, {**DINO, "model_type": "dinov2_with_registers"}, {"crop_size": 48}))
    usual, asked = target.workload(), target.workload(image_size=24)
    assert (usual.arguments, asked.arguments) == (
        {"pixel_values": "bfloat16[1,3,48,48]"}, {"pixel_values": "bfloat16[1,3,24,24]"},
    )  # fmt: skip
    assert "images of 48 pixels a side ($.crop_size in preprocessor_config.json)" in counted_line(target.info(), usual)
    assert "pixels a side" not in counted_line(target.info(), asked)
    text = load_target(_written(tmp_path, {**TEXT, "model_type": "phi3", "pad_token_id": 0}, {"crop_size": 48}))
    assert text.workload(seq_len=8).inputs == {}


def test_a_size_that_the_tower_cannot_take_is_refused(tmp_path: Path) -> None:
    load_target(_written(tmp_path, LLAVA, {"crop_size": 16}))
    with pytest.raises(BadInput, match="another size than the tower takes") as caught:
        load_target(_written(tmp_path, LLAVA, {"crop_size": 24}))
    assert "$.crop_size in preprocessor_config.json" in str(caught.value)
    siglip = {**SMALL, "model_type": "siglip_vision_model"}
    without = {**LLAVA, "vision_config": siglip, "vision_feature_select_strategy": "full"}
    target = load_target(_written(tmp_path, without, {"crop_size": 24}))
    with pytest.raises(BadInput, match="another size than the tower takes"):
        target.workload()
