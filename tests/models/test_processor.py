"""The size of images: that of the processor beside a configuration, unless a run is asked for with another one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.errors import BadInput
from costproof.ledger.workload import counted_line
from costproof.models.registry import load_target
from costproof.weights.stored import PROCESSOR_FILES, ImageSize, image_size, pixel_limits
from tests.models.test_qwen2_5_vl import FILE as QWEN25_VL

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
        folder = tmp_path / Path(name).stem
        folder.mkdir()
        _written(folder, {}, processor, name)
        expected = None if side is None else ImageSize(side, f"{key} in {name}")
        assert image_size(folder / "config.json") == expected
    assert image_size(tmp_path / "config.json") is None


LIMITS = {"min_pixels": 3136, "max_pixels": 200704}
QWEN3_VL = {"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16, "merge_size": 2}


@pytest.mark.parametrize(
    ("processor", "given", "side", "key"),
    [
        (LIMITS, 644, 448, "$.max_pixels"),  # 448 ** 2 is 200704
        ({**LIMITS, "max_pixels": 200703}, 644, 420, "$.max_pixels"),
        (LIMITS, 224, 224, "$.max_pixels"),
        (LIMITS, 28, 56, "$.max_pixels"),  # 56 ** 2 is 3136
        ({**LIMITS, "min_pixels": 3137}, 28, 84, "$.max_pixels"),
        (QWEN3_VL, 224, 256, "$.size.longest_edge"),
        ({"image_processor": LIMITS}, 644, 448, "$.image_processor.max_pixels"),
    ],
)
def test_a_processor_keeps_pixels_within_limits(
    processor: object, given: int, side: int, key: str, tmp_path: Path
) -> None:
    _written(tmp_path, {}, processor)
    limits = pixel_limits(tmp_path / "config.json")
    assert limits is not None
    assert limits.fit(given) == ImageSize(side, f"{key} in preprocessor_config.json")


@pytest.mark.parametrize(
    "processor",
    [
        {"size": {"shortest_edge": 800, "longest_edge": 1333}}, {"size": 224}, {"max_pixels": 100}, CLIP,
        {"min_pixels": None, "max_pixels": None}, {"min_pixels": 9, "max_pixels": 8}, {"size": {"longest_edge": 1540}},
    ],
)  # fmt: skip
def test_other_sizes_are_no_limits_of_pixels(processor: object, tmp_path: Path) -> None:
    _written(tmp_path, {}, processor)
    assert pixel_limits(tmp_path / "config.json") is None


def test_limits_of_pixels_decide_the_usual_run(tmp_path: Path) -> None:
    target = load_target(_written(tmp_path, QWEN25_VL, {"min_pixels": 196, "max_pixels": 5000}))
    usual, asked = target.workload(), target.workload(image_size=56)
    assert usual.inputs["image_size"] == 70
    assert "images of 70 pixels a side ($.max_pixels in preprocessor_config.json)" in counted_line(target.info(), usual)
    assert asked.inputs == {"images": 1, "image_size": 56}
    assert target.workload("text-only", text_tokens=9).inputs == {}


@pytest.mark.parametrize("name", PROCESSOR_FILES)
def test_what_has_the_name_of_a_processor_and_is_no_file_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to("blob that was removed")
    with pytest.raises(BadInput, match="a link that leads nowhere"):
        image_size(tmp_path / "config.json")
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(BadInput, match="not a regular file"):
        image_size(tmp_path / "config.json")


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
    with pytest.raises(BadInput, match="another size than the vision tower takes") as caught:
        load_target(_written(tmp_path, LLAVA, {"crop_size": 24}))
    assert "$.crop_size in preprocessor_config.json" in str(caught.value)
    siglip = {**SMALL, "model_type": "siglip_vision_model"}
    without = {**LLAVA, "vision_config": siglip, "vision_feature_select_strategy": "full"}
    target = load_target(_written(tmp_path, without, {"crop_size": 24}))
    with pytest.raises(BadInput, match="another size than the vision tower takes"):
        target.workload()
