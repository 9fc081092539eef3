"""Qwen2.5-VL: three sources agree at any size of an image, windows by hand, and what cannot be run is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import costproof
from costproof.analytic.patches import window_pairs
from costproof.compare.compare import compare
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.progress import silent
from costproof.ledger.run import RunOptions
from costproof.models.families.qwen2_5_vl import Qwen25Vl, Qwen25VlConfig
from costproof.models.registry import load_target
from costproof.parametric.targets import evaluate_formulas
from costproof.run.proof_pieces import carry_out_piece
from tests.oracles.mutations import run as planted
from tests.support.variants import with_variants

pytestmark = pytest.mark.usefixtures("one_process")

VISION: Final = {
    "hidden_size": 48, "intermediate_size": 40, "depth": 2, "num_heads": 4, "patch_size": 7, "spatial_merge_size": 2,
    "temporal_patch_size": 2, "window_size": 28, "fullatt_block_indexes": [1], "out_hidden_size": 32, "in_chans": 3,
}  # fmt: skip
TEXT: Final = {
    "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 512,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]},
}  # fmt: skip
FILE: Final[dict[str, Any]] = {
    "model_type": "qwen2_5_vl", "image_token_id": 60, "vision_config": VISION, **TEXT, "use_sliding_window": False,
    "sliding_window": 32768,
}  # fmt: skip
"""As published files are: the decoder's keys stand beside those of the whole."""
# A side of 70 pixels is 5 tokens of 14: windows of 2, 2 and 1 tokens along it.
CASES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "an image, windows cut": (
        {"num_hidden_layers": 1}, {"image_size": 70, "batch": 2, "new_tokens": 2, "text_tokens": 9},
    ),
    "images, eager": (
        {"tie_word_embeddings": True},
        {"images": 2, "image_size": 56, "attention": "eager", "logits": "last", "dtype": "float32", "text_tokens": 9},
    ),
    "text alone": ({}, {"preset": "text-only", "text_tokens": 9, "batch": 2}),
    "rows": ({"num_hidden_layers": 1}, {"rows": "30, 3x1+8, 5+7/2", "images": 3, "image_size": 28}),
}  # fmt: skip


def _file(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**FILE, **changes}), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("case", with_variants(CASES, ("an image, windows cut", "rows")))
def test_three_sources_agree(case: str, tmp_path: Path, *, thorough: bool) -> None:
    changes, run = CASES[case]
    capture = costproof.capture("qwen2-5-vl", config=_file(tmp_path, **changes), **run)
    compared = compare(capture)
    wrong = [f for f in compared.findings if f.status not in ("exact", "not-executed")]
    assert (compared.verdict, wrong[:3]) == ("exact", [])
    if case == "an image, windows cut":
        assert {len(f.values) for f in compared.findings} == {3}
        outcomes = planted("qwen2-5-vl", capture, 1, None if thorough else 12)
        assert [(o.planted.operation, o.planted.what, o.said) for o in outcomes if not o.located] == []
        assert len(outcomes) >= 12


@pytest.mark.parametrize(("side", "window"), [(5, 2), (4, 2), (1, 4), (7, 3), (23, 4), (8, 8)])
def test_pairs_in_windows_counted_one_by_one(side: int, window: int) -> None:
    cells = [(row // window, column // window) for row in range(side) for column in range(side)]
    assert int(window_pairs(side, window)) == sum(one == other for one in cells for other in cells)


def test_the_sizes_of_a_run_by_hand(tmp_path: Path) -> None:
    target = Qwen25Vl.from_file(_file(tmp_path))
    ledger = evaluate_formulas(target, target.workload(image_size=70, text_tokens=7, new_tokens=1, batch=2))
    # 2 images of 25 tokens, 100 patches of 3*2*7*7. In windows of 16, 8 and 4 patches: 4 of 16, 4 of 8, 1 of 4.
    pairs, whole = 4 * 16**2 + 4 * 8**2 + 4**2, 100**2
    attention = {
        n.module: n.cost("flops") for n in ledger.nodes if n.kind == "attention" and n.module.startswith("model.visual")
    }
    assert attention == {
        "model.visual.blocks.0.attn": 2 * 4 * pairs * 48,
        "model.visual.blocks.1.attn": 2 * 4 * whole * 48,
    }
    layer = 4 * 48 * 48 + 3 * 48 * 40
    merger = 192 * 192 + 192 * 32
    products = 200 * 294 * 48 + 2 * 200 * layer + 50 * merger
    assert ledger.stage_total("vision", "flops") == 2 * products + 2 * 4 * (pairs + whole) * 48
    # The prompt: 25 + 7 tokens of 2 sequences; cosines and sines of three axes are computed for every sequence.
    tables = [n for n in ledger.nodes if n.module.endswith("language_model.rotary_emb") and n.stage == "prefill"]
    assert sum(n.cost("vector_flops") or 0 for n in tables) == 5 * 3 * (2 * 32) * 4
    assert ledger.stage_total("prefill", "kv_cache_bytes") == 2 * 2 * (2 * 32) * 16 * 2


def test_parameters_of_the_published_model_by_hand() -> None:
    target = Qwen25Vl.default()
    layer = 2 * 1280 + 1280 * 3840 + 3840 + 1280 * 1280 + 1280 + 3 * 1280 * 3420 + 2 * 3420 + 1280
    merger = 1280 + 5120 * 5120 + 5120 + 5120 * 3584 + 3584
    vision = 3 * 2 * 14 * 14 * 1280 + 32 * layer + merger
    layer = 2 * 3584 * 3584 + 3584 + 2 * (3584 * 512 + 512) + 3 * 3584 * 18944 + 2 * 3584
    text = 2 * 152064 * 3584 + 28 * layer + 3584
    ledger = evaluate_formulas(target, target.workload())
    assert ledger.total("params") == vision + text == 8_292_166_656


@pytest.mark.slow
def test_prepared_inputs_give_what_the_model_gives_with_its_own(tmp_path: Path) -> None:
    target = Qwen25Vl.from_file(_file(tmp_path)).with_options(RunOptions(device="cpu"))
    workload = target.workload(images=2, image_size=42, text_tokens=5, dtype="float32", batch=2)
    model: Any = target.build_run(workload, silent).model
    run = target.runs(model, workload)[0]
    ids = run.kwargs["input_ids"]
    assert (ids == 60).sum(1).tolist() == [18, 18]
    native: Any = type(model).__mro__[1]
    with torch.no_grad():
        own = native.forward(
            model,
            input_ids=ids,
            pixel_values=run.kwargs["pixel_values"],
            image_grid_thw=torch.tensor([[1, 6, 6]] * 4),
            mm_token_type_ids=(ids == 60).int(),
        )
    assert run.expected is not None
    torch.testing.assert_close(run.expected, own.logits)


@pytest.mark.slow
def test_draws_hold(*, thorough: bool) -> None:
    draws = [piece for piece in Qwen25Vl.default().proof(4, 5).pieces if piece.phase == "draws"]
    for draw in draws if thorough else draws[:1]:
        found = carry_out_piece(draw)
        assert (found.counterexamples, min(found.rows.values()) > 20) == ((), True)
    for draw in draws:
        target = draw.target
        assert isinstance(target, Qwen25Vl)
        assert target.config.contradictions() == []
        assert Qwen25Vl.from_normalised(target.normalised()).config == target.config


def test_layers_that_are_left_out() -> None:
    target = Qwen25Vl.default().with_options(RunOptions(layers=3))
    # The first layer of the tower that sees the whole image is the eighth.
    assert dict(target.cut) == {"decoder layers": "3 of 28", "vision layers": "8 of 32"}


def test_the_decoder_in_a_section_of_its_own(tmp_path: Path) -> None:
    flat = Qwen25VlConfig.load(_file(tmp_path))
    nested = {"model_type": "qwen2_5_vl", "image_token_id": 60, "vision_config": VISION, "text_config": TEXT}
    path = tmp_path / "nested.json"
    path.write_text(json.dumps(nested), encoding="utf-8")
    assert Qwen25VlConfig.load(path).normalised() == flat.normalised()
    assert flat.text.sections == (2, 1, 1)
    # Files of older releases say of the tower that it is of the type of the whole.
    older = _file(tmp_path, vision_config={**VISION, "model_type": "qwen2_5_vl"})
    assert Qwen25VlConfig.load(older).normalised() == flat.normalised()
    assert isinstance(load_target(f"hf:{older}"), Qwen25Vl)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"use_sliding_window": True}, "$.use_sliding_window"),
        ({"vision_config": {**VISION, "out_hidden_size": 40}}, "$.vision_config.out_hidden_size"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 1]}}, "$.mrope_section"),
        ({"rope_scaling": {"type": "dynamic", "mrope_section": [2, 1, 1]}}, "$.rope_scaling"),
        ({"vision_config": {**VISION, "window_size": 13}}, "$.vision_config.window_size"),
        ({"vision_config": {**VISION, "num_heads": 8}}, "$.vision_config.num_heads"),
        ({"vision_config": {**VISION, "tokens_per_secon": 1}}, "$.vision_config.tokens_per_secon"),
        ({"image_token_id": 64}, "$.image_token_index"),
        ({"tie_word_embedding": True}, "$.tie_word_embedding"),
    ],
)
def test_a_file_that_the_formulas_do_not_describe(changes: dict[str, Any], where: str, tmp_path: Path) -> None:
    with pytest.raises(Problems) as caught:
        Qwen25VlConfig.load(_file(tmp_path, **changes))
    assert where in [p.where for p in caught.value.problems if isinstance(p, BadInput)]


@pytest.mark.parametrize(
    ("run", "where"),
    [
        ({"image_size": 71}, "--image-size"),
        ({"image_size": 70, "images": 0}, "--image-size"),
        ({"image_size": 70, "seq_len": 25}, "--seq-len"),
        ({"images": 65}, "--images"),
        ({"images": 3, "image_size": 14, "text_tokens": 2}, "--text-tokens"),
        ({"image_size": 700}, "--text-tokens, --seq-len, --new-tokens"),
        ({"rows": "8, 4", "images": 2, "image_size": 28}, "--images, --rows"),  # 4 tokens, and one of text behind
    ],
)
def test_a_run_that_the_model_cannot_make(run: dict[str, Any], where: str, tmp_path: Path) -> None:
    with pytest.raises(Problems) as caught:
        Qwen25Vl.from_file(_file(tmp_path)).workload(**run)
    assert [p.where for p in caught.value.problems if isinstance(p, BadInput)] == [where]
