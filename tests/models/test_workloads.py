"""Workloads: tokens counted by laying them out, settings and their bounds, invocations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costproof.ledger.errors import BadInput, Problems
from costproof.models.families.deepseek_ocr.config import (
    IMAGE_STAGES,
    MODES,
    PRESETS,
    OcrConfig,
    make_workload,
    vision_tokens,
)
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.pages.page import Page, page_of, page_workload
from costproof.models.pages.workload import page_invocations, page_run_problems, parse_grid


def laid_out(page: Page) -> int:
    """Vision tokens by writing each of them down, row by row."""
    tokens = []
    if page.grid:
        columns, rows = page.grid
        for _ in range(rows * (page.image_size // 64)):
            tokens += ["feature"] * (columns * (page.image_size // 64)) + ["newline"]
    for _ in range(page.base_size // 64):
        tokens += ["feature"] * (page.base_size // 64) + ["newline"]
    return len([*tokens, "separator"])


@given(
    base=st.integers(1, 24),
    size=st.integers(1, 20),
    grid=st.none() | st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_vision_tokens_are_those_laid_out(base: int, size: int, grid: tuple[int, int] | None) -> None:
    page = Page(64 * base, 64 * size, grid)
    assert vision_tokens(page) == laid_out(page)


@pytest.mark.parametrize(
    ("preset", "tokens"),
    [
        ("tiny", 8 * 9 + 1),
        ("small", 10 * 11 + 1),
        ("base", 16 * 17 + 1),
        ("large", 20 * 21 + 1),
        ("gundam", 16 * 17 + 1 + 20 * 21),
        ("gundam:3x2", 16 * 17 + 1 + 20 * 31),
        ("gundam-m", 20 * 21 + 1 + 32 * 33),
        ("dsocr-standard-v1", 16 * 17 + 1 + 20 * 21),
        ("text-only", 0),
    ],
)
def test_the_modes_of_the_paper(preset: str, tokens: int) -> None:
    assert vision_tokens(page_of(make_workload(preset))) == tokens


def test_the_standard_workload() -> None:
    workload = make_workload()
    assert workload == page_workload("dsocr-standard-v1", Page(1024, 640, (2, 2)), text_tokens=512)


def test_sequence_length_fills_up_with_text() -> None:
    # 693 vision tokens as above.
    assert make_workload(seq_len=1000).text_tokens == 1000 - 693
    assert make_workload("text-only", seq_len=77).text_tokens == 77


def test_a_native_model_makes_as_many_vision_tokens() -> None:
    """The features that the real model hands to the decoder, on meta, for two pages with 3x2 crops."""
    import torch
    from transformers import UnlimitedOcrConfig, UnlimitedOcrForConditionalGeneration

    text = {
        "hidden_size": 20, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1,
        "intermediate_size": 8, "vocab_size": 64, "n_routed_experts": 2, "num_experts_per_tok": 1,
    }  # fmt: skip
    towers = {
        "sam_config": {
            "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 8,
            "output_channels": 8, "downsample_channels": [8, 12],
        },
        "encoder_config": {
            "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
        },
    }  # fmt: skip
    with torch.device("meta"):
        model = UnlimitedOcrForConditionalGeneration(UnlimitedOcrConfig(vision_config=towers, text_config=text))
        features = model.get_image_features(
            torch.empty(2, 3, 320, 320), torch.empty(12, 3, 192, 192), [6, 6], [[3, 2], [3, 2]]
        ).pooler_output
    assert [f.shape[0] for f in features] == [vision_tokens(Page(320, 192, (3, 2)))] * 2


BAD: dict[str, tuple[dict[str, Any], tuple[str, str, str | None, str | None]]] = {
    "size 0": (
        {"base_size": 0},
        ("a view cannot have this size", "--base-size", "a positive multiple of 64 pixels", "0"),
    ),
    "size 63": (
        {"base_size": 63},
        ("a view cannot have this size", "--base-size", "a positive multiple of 64 pixels", "63"),
    ),
    "size between": (
        {"image_size": 650},
        ("a view cannot have this size", "--image-size", "a positive multiple of 64 pixels", "650"),
    ),
    "size -1": (
        {"image_size": -1},
        ("a view cannot have this size", "--image-size", "a positive multiple of 64 pixels", "-1"),
    ),
    "grid of 0": (
        {"grid": "0x2"},
        ("a page cannot be cut into this grid", "--grid", "2 to 9 crops", "0x2"),
    ),
    "one crop": ({"grid": "1x1"}, ("a page cannot be cut into this grid", "--grid", "2 to 9 crops", "1x1")),
    "ten crops": ({"grid": "2x5"}, ("a page cannot be cut into this grid", "--grid", "2 to 9 crops", "2x5")),
    "no grid": ({"grid": "2*3"}, ("not a valid grid", "--grid", "COLUMNSxROWS, such as 2x3", "'2*3'")),
    "negative grid": ({"grid": "-2x3"}, ("not a valid grid", "--grid", "COLUMNSxROWS, such as 2x3", "'-2x3'")),
    "negative text": (
        {"text_tokens": -1},
        ("too few text tokens", "--text-tokens", "at least 0", "-1"),
    ),
    "no text at all": (
        {"preset": "text-only", "text_tokens": 0},
        ("too few text tokens", "--text-tokens", "at least 1", "0"),
    ),
    "short sequence": (
        {"seq_len": 693},
        ("the sequence is too short for its vision tokens", "--seq-len", "more than 693", "693"),
    ),
    "both lengths": (
        {"seq_len": 1000, "text_tokens": 3},
        ("text tokens and sequence length exclude each other", "--text-tokens, --seq-len", None, None),
    ),
    "long context": (
        # 693 vision tokens + 7000 + 500
        {"text_tokens": 7000, "new_tokens": 500},
        (
            "the run is longer than the model's context",
            "--text-tokens, --seq-len, --new-tokens",
            "at most 8192 tokens",
            "7693 in the prompt + 500 new = 8193",
        ),
    ),
    "nothing decoded": (
        {"new_tokens": -1},
        ("too few new tokens", "--new-tokens", "at least 0", "-1"),
    ),
    "no batch": ({"batch": 0}, ("the batch is out of range", "--batch", "1 to 1024", "0")),
    "huge batch": ({"batch": 10**9}, ("the batch is out of range", "--batch", "1 to 1024", "1000000000")),
    "dtype": (
        {"dtype": "int4"},
        ("invalid choice", "--dtype", "bfloat16 or float16 or float32", "int4"),
    ),
    "attention": (
        {"attention": "flash"},
        ("invalid choice", "--attention", "sdpa or eager or flash_attention_2", "flash"),
    ),
    "logits": ({"logits": "first"}, ("invalid choice", "--logits", "all or last", "first")),
    "experts": (
        {"experts": "loop"},
        ("invalid choice", "--experts", "grouped_mm or batched_mm or eager", "loop"),
    ),
    "page of a text-only run": (
        {"preset": "text-only", "base_size": 640},
        ("a text-only preset has no page", "--base-size", None, None),
    ),
    "grid twice": (
        {"preset": "gundam:2x3", "grid": "3x2"},
        ("the grid can be given only once", "--grid, the grid of gundam:2x3", None, None),
    ),
    "no such image": (
        {"image": Path("missing.png")},
        ("cannot read the image", "missing.png", None, "No such file or directory"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_settings_that_cannot_be_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, expected = BAD[name]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Problems) as caught:
        make_workload(**options)
    assert [(p.what, p.where, p.expected, p.got) for p in caught.value.problems] == [expected]


def test_an_unknown_mode_gets_a_suggestion() -> None:
    with pytest.raises(BadInput) as caught:
        make_workload("gundem")
    assert caught.value.fix == "did you mean gundam?"
    with pytest.raises(BadInput, match="no crops"):
        make_workload("base:2x2")


def test_an_image_decides_the_grid(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("L", (1240, 1754)).save(tmp_path / "a4.png")
    image.new("L", (600, 640)).save(tmp_path / "slip.png")
    # As in test_preprocess: A4 is nearest to 2x3; what fits into one crop is not cropped.
    assert page_of(make_workload("gundam", image=tmp_path / "a4.png")) == Page(1024, 640, (2, 3))
    assert page_of(make_workload("gundam", image=tmp_path / "slip.png")) == Page(1024, 640, None)
    # 1240 fits neither into a crop of 1024 pixels; 2/3 is still nearest.
    assert page_of(make_workload("gundam-m", image=tmp_path / "a4.png")) == Page(1280, 1024, (2, 3))
    # A mode without crops does not get any.
    assert page_of(make_workload("large", image=tmp_path / "a4.png")) == Page(1280, 640, None)


def test_a_sliding_window_limits_the_steps() -> None:
    """The native cache keeps all prompt tokens and the last ``window`` decoded ones."""
    config = OcrConfig()
    config = replace(config, text=replace(config.text, sliding_window=128))
    assert page_run_problems(config, make_workload(new_tokens=128), MODES) == []
    (problem,) = page_run_problems(config, make_workload(new_tokens=129), MODES)
    assert problem.where == "--new-tokens"


def test_grids_parse() -> None:
    assert parse_grid("2x3") == parse_grid("2X3") == parse_grid(" 2×3 ") == parse_grid((2, 3)) == (2, 3)


def test_invocations_of_a_batch() -> None:
    """2 pages with 3x2 crops of 640: 12 crops of 10x10 features; 16x16 features per global view."""
    workload = make_workload("gundam:3x2", batch=2, text_tokens=7, new_tokens=5, dtype="float32", logits="last")
    found = {(i.stage, i.id): i for i in page_invocations(OcrConfig(), workload, MODES, IMAGE_STAGES)}
    assert list(found) == [
        ("sam", "global"), ("clip", "global"), ("projector", "global"),
        ("sam", "crops"), ("clip", "crops"), ("projector", "crops"),
        ("prefill", "prompt"), ("decode", "steps"),
    ]  # fmt: skip
    assert found["sam", "crops"].symbols == {"n": 12, "H": 640, "B": 2, "b": 4}
    assert found["sam", "crops"].inputs[0].shape == (12, 3, 640, 640)
    assert found["clip", "global"].inputs[0].shape == (2, 1024, 16, 16)
    assert found["projector", "crops"].inputs[0].shape == (12, 100, 2048)
    vision = 16 * 17 + 1 + 20 * 31
    assert found["prefill", "prompt"].symbols == {
        "B": 2, "b": 4, "S": vision + 7, "V": vision, "L": 1,
        "H_g": 1024, "H_c": 640, "grid_w": 3, "grid_h": 2,
    }  # fmt: skip
    assert found["prefill", "prompt"].inputs[0].dtype == "int64"
    assert found["decode", "steps"].symbols == {"B": 2, "b": 4, "P": vision + 7, "N": 5}
    assert found["decode", "steps"].calls == 5


def test_a_text_only_run_has_no_image_stages() -> None:
    found = page_invocations(OcrConfig(), make_workload("text-only"), MODES, IMAGE_STAGES)
    assert [(i.stage, i.id) for i in found] == [("prefill", "prompt"), ("decode", "steps")]
    assert found[0].symbols["S"] == found[0].symbols["L"] == 512
    assert "H_g" not in found[0].symbols


@given(preset=st.sampled_from(sorted(PRESETS)), batch=st.integers(1, 4), text=st.integers(1, 900))
def test_every_mode_is_consistent(preset: str, batch: int, text: int) -> None:
    workload = make_workload(preset, batch=batch, text_tokens=text)
    found = page_invocations(OcrConfig(), workload, MODES, IMAGE_STAGES)
    prompt = next(i for i in found if i.stage == "prefill").symbols
    assert prompt["S"] == prompt["V"] + text
    # Vision tokens are the features of all views, their newlines and the separator.
    features = sum(i.inputs[0].shape[0] * i.inputs[0].shape[1] for i in found if i.stage == "projector")
    page = page_of(workload)
    if page is not None:
        rows = page.base_size // 64
        if page.grid:
            rows += page.grid[1] * page.image_size // 64
        assert batch * (prompt["V"] - rows - 1) == features


@pytest.mark.parametrize(
    ("preset", "settings", "name"),
    [
        ("tiny", {}, "tiny"),
        ("gundam", {}, "gundam"),
        ("gundam", {"grid": "3x2"}, "gundam:3x2"),
        ("gundam:3x2", {}, "gundam:3x2"),
        ("gundam", {"grid": "3x2", "tp": 2}, "gundam:3x2"),
        ("tiny", {"tp": 2, "ep": 2, "rank": 1}, "tiny"),
        ("gundam", {"grid": "3x2", "batch": 2}, "custom"),
        ("dsocr-standard-v1", {"text_tokens": 511}, "custom"),
        ("base", {"attention": "eager"}, "custom"),
    ],
)
def test_a_changed_preset_does_not_keep_the_name(preset: str, settings: dict[str, Any], name: str) -> None:
    assert make_workload(preset, **settings).name == name


def test_eager_attention_needs_as_many_key_value_heads_as_heads() -> None:
    config = replace(OcrConfig(), text=replace(OcrConfig().text, kv_heads=5))
    target = DeepseekOcr(config)
    target.check(target.workload("base"))
    with pytest.raises(Problems) as caught:
        target.check(target.workload("base", attention="eager"))
    assert [p.where for p in caught.value.problems] == ["--attention"]
