"""The configuration: what the vendor's and the native file say."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from costproof.configs.config import keys_of
from costproof.models.families.deepseek_ocr.config import OcrConfig, parse_config

VENDOR = Path(__file__).parents[1] / "data" / "vendor-config.json"


def vendor() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(VENDOR.read_text())
    return data


def test_the_default_is_the_vendors_file() -> None:
    assert OcrConfig.load(VENDOR) == OcrConfig()
    assert OcrConfig.load(VENDOR).config_hash() == OcrConfig().config_hash()


def test_waived_keys_carry_a_reason() -> None:
    waived = dict(OcrConfig.load(VENDOR).waived)
    assert "ffn_hidden_size 4096" in waived["$.vision_config.mlp_ratio"]
    assert all(waived.values())


def test_native_files_are_read_as_saved_and_in_full(tmp_path: Path) -> None:
    from transformers import UnlimitedOcrConfig

    saved = UnlimitedOcrConfig()
    saved.save_pretrained(tmp_path)
    short = OcrConfig.load(tmp_path / "config.json")
    full = parse_config(json.loads(json.dumps(saved.to_dict())), where="to_dict")
    assert short == full
    assert short.text.max_positions == 32_768
    assert short.text.sliding_window == 128
    assert short.shapes() == OcrConfig().shapes()


def test_a_missing_native_key_has_the_native_classs_default() -> None:
    from transformers import UnlimitedOcrConfig

    empty = parse_config({"model_type": "unlimited_ocr"}, where="empty")
    full = parse_config(json.loads(json.dumps(UnlimitedOcrConfig().to_dict())), where="to_dict")
    assert empty == full


def test_the_native_class_says_what_we_told_it() -> None:
    """Through transformers and back, nothing is lost but what the vendor's code does not know."""
    from transformers import UnlimitedOcrConfig

    small = small_config()
    told = UnlimitedOcrConfig(**small.native()).to_dict()
    heard = parse_config(json.loads(json.dumps(told)), where="to_dict")
    window = small.text.max_positions
    assert heard.normalised() == {
        **small.normalised(),
        "text": {**small.normalised()["text"], "sliding_window": window},
    }


def small_config() -> OcrConfig:
    """A configuration in which no two numbers are equal by accident."""
    data = {
        "sam": {
            "hidden": 48, "layers": 3, "heads": 4, "mlp": 96, "image": 256, "patch": 16, "window": 5,
            "global_layers": [1], "neck": 32, "downsample": [40, 64],
        },
        "clip": {"hidden": 64, "layers": 2, "heads": 8, "mlp": 128, "image": 84, "patch": 14},
        "text": {
            "hidden": 80, "layers": 5, "dense_layers": 2, "heads": 10, "kv_heads": 5, "intermediate": 112,
            "experts": 9, "topk": 3, "moe_intermediate": 24, "shared_experts": 2, "vocab": 300,
            "max_positions": 512, "sliding_window": None, "rms_norm_eps": 1e-5, "rope_theta": 500.0,
            "routed_scaling_factor": 2.0,
        },
        "image_token": 299,
    }  # fmt: skip
    return OcrConfig.from_normalised(data)


def shallow_config() -> OcrConfig:
    """The small configuration with one layer of each kind."""
    config = small_config()
    return replace(
        config,
        sam=replace(config.sam, layers=2),
        clip=replace(config.clip, layers=1),
        text=replace(config.text, layers=2, dense_layers=1),
    )


def test_normalised_data_reads_back() -> None:
    small = small_config()
    assert OcrConfig.from_normalised(json.loads(json.dumps(small.normalised()))) == small
    assert small.config_hash() != OcrConfig().config_hash()


def test_the_waiver_is_no_part_of_the_identity() -> None:
    assert OcrConfig.load(VENDOR).waived
    assert not OcrConfig().waived
    assert "waived" not in OcrConfig().normalised()
    assert "waived" not in keys_of(OcrConfig.load(VENDOR))


def test_symbols_of_the_default() -> None:
    """Read off config.json, and 4·768, 224/14, 1280/10 by hand."""
    symbols = OcrConfig().symbols()
    assert symbols["sam_mlp"] == 3072
    assert symbols["clip_positions"] == 16 * 16 + 1
    assert symbols["text_head_dim"] == 128
    assert symbols["text_dense"] == 1
    assert (symbols["sam_down1"], symbols["sam_down2"], symbols["sam_out"]) == (512, 1024, 256)
    assert all(type(v) is int and v > 0 for v in symbols.values())


def test_reading_does_not_change_the_data() -> None:
    data = vendor()
    before = copy.deepcopy(data)
    parse_config(data, where="config.json")
    assert data == before
