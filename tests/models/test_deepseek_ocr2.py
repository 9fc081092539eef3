"""DeepSeek-OCR 2: three sources agree with pages and without, numbers by hand, and what cannot be run is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import costproof
from costproof.analytic.costs import costs_of
from costproof.compare.compare import compare
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.progress import silent
from costproof.ledger.run import RunOptions
from costproof.models.families.deepseek_ocr2.config import Ocr2Config, queries, vision_tokens
from costproof.models.families.deepseek_ocr2.formulas import (
    QueriesBehindFeatures,
    QueryTable,
    ViewsInPrompt,
    WrittenMask,
)
from costproof.models.families.deepseek_ocr2.target import DeepseekOcr2
from costproof.models.generic.module import GenericTarget
from costproof.models.pages.page import Page, with_page
from costproof.models.registry import load_target
from costproof.parametric.targets import evaluate_formulas
from costproof.run.proof_pieces import carry_out_piece
from tests.models.test_families import SOURCES
from tests.oracles.mutations import run as planted
from tests.support.variants import with_variants

pytestmark = pytest.mark.usefixtures("one_process")

# Patches of 2 pixels, so features of 8: the processor's 12 x 12 and 16 x 16 features are views of 96 and 128 pixels.
SAM: Final = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 40, "image_size": 64,
    "patch_size": 2, "window_size": 3, "output_channels": 10, "downsample_channels": [14, 32],
    "global_attn_indexes": [1],
}  # fmt: skip
ENCODER: Final = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 56,
}  # fmt: skip
TEXT: Final = {
    "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 64, "max_position_embeddings": 4096, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "moe_intermediate_size": 16, "n_shared_experts": 2,
    "mlp_layer_types": ["dense", "sparse"],
}  # fmt: skip
FILE: Final[dict[str, Any]] = {
    "model_type": "deepseek_ocr2", "image_token_id": 60,
    "vision_config": {"sam_config": SAM, "encoder_config": ENCODER}, "text_config": TEXT,
}  # fmt: skip
SIDES: Final[dict[str, Any]] = {"base_size": 128, "image_size": 96}
CASES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "a page": ({}, {**SIDES, "new_tokens": 2, "batch": 2}),
    "a page, eager": (
        {},
        {**SIDES, "grid": "1x2", "attention": "eager", "logits": "last", "dtype": "float32", "experts": "batched_mm"},
    ),
    "one view": ({}, {"preset": "small", "base_size": 96, "batch": 3}),
    "views of other sides": ({}, {"base_size": 136, "image_size": 40}),
    "text alone": ({}, {"preset": "text-only", "text_tokens": 9}),
    "mixtures alone, keys and values shared": (
        {"text_config": {**TEXT, "num_key_value_heads": 2, "mlp_layer_types": ["sparse", "sparse"]}},
        {**SIDES, "preset": "base"},
    ),
}


def _file(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**FILE, **changes}), encoding="utf-8")
    return path


def _counted(folder: Path, changes: dict[str, Any], run: dict[str, Any]) -> Capture:
    return costproof.capture("deepseek-ocr2", config=_file(folder, **changes), **run)


@pytest.mark.slow
@pytest.mark.parametrize("case", with_variants(CASES, ("text alone",)))
def test_three_sources_agree(case: str, tmp_path: Path, *, thorough: bool) -> None:
    """Where time is short no run is traced: test_every_workload.py has it for the pages of DeepSeek-OCR."""
    changes, run = CASES[case]
    sources = SOURCES if thorough else SOURCES[:2]
    capture = _counted(tmp_path, changes, {**run, "sources": sources})
    compared = compare(capture)
    wrong = [f for f in compared.findings if f.status not in ("exact", "not-executed")]
    assert (compared.verdict, wrong[:3]) == ("exact", [])
    if case in ("a page", "text alone"):
        assert {len(f.values) for f in compared.findings} == {len(sources)}
        outcomes = planted("deepseek-ocr2", capture, 1, None if thorough else 12)
        assert [(o.planted.operation, o.planted.what, o.said) for o in outcomes if not o.located] == []
        assert len(outcomes) >= 12


def test_the_tokens_of_a_page() -> None:
    # 12 x 12 features have 144 queries, one more on a side 256, whatever is above.
    assert [queries(side, 64) for side in (64, 768, 832, 1024, 1280)] == [144, 144, 256, 256, 256]
    assert vision_tokens(Page(1024, 768)) == 257
    assert vision_tokens(Page(1024, 768, (2, 3))) == 256 + 6 * 144 + 1 == 1121
    assert vision_tokens(None) == 0


def test_the_sizes_of_a_run_by_hand(tmp_path: Path) -> None:
    target = DeepseekOcr2.from_file(_file(tmp_path))
    ledger = evaluate_formulas(target, target.workload(**SIDES, grid="1x2", text_tokens=5, new_tokens=2, batch=3))
    # 3 global views of 256 features and 256 queries, 6 crops of 144 and 144. A layer: queries and output, keys and
    # values of 2 heads of 8, scores and their product with the values over all pairs, a gated MLP.
    work = 0
    for views, tokens in ((3, 512), (6, 288)):
        rows = views * tokens
        work += 2 * (2 * rows * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 56) + 2 * 2 * views * tokens**2 * 32)
    assert ledger.stage_total("encoder", "flops") == work
    assert ledger.stage_total("projector", "flops") == 2 * (3 * 256 + 6 * 144) * 32 * 48
    # A prompt of 256 + 2 x 144 + 1 places and 5 tokens: a dense layer, and one with a router over 8 experts, of which
    # each token passes 3, and 2 that are shared; all scores; logits of all positions.
    length = 256 + 2 * 144 + 1 + 5
    rows, pairs = 3 * length, 3 * length**2
    attention = 2 * rows * 4 * 48 * 48 + 2 * 2 * pairs * 48
    dense = 2 * rows * 3 * 48 * 56
    sparse = 2 * rows * (48 * 8 + (3 + 2) * 3 * 48 * 16)
    assert ledger.stage_total("prefill", "flops") == 2 * attention + dense + sparse + 2 * rows * 48 * 64
    assert ledger.stage_total("prefill", "kv_cache_bytes") == 2 * 2 * rows * 48 * 2
    # SAM: 64 x 64 patches of 3 x 2 x 2 numbers to begin with.
    (patches,) = [
        n for n in ledger.nodes
        if (n.stage, n.invocation) == ("sam", "global") and n.module.endswith("patch_embed.projection") and n.kind
    ]  # fmt: skip
    assert patches.cost("flops") == 2 * 3 * 64 * 64 * 12 * 24


def test_parameters_of_the_published_model_by_hand() -> None:
    target = DeepseekOcr2.default()
    # SAM: patches, positions of 64 x 64, eight layers with windows and four without, a neck, two convolutions.
    layer = 768 * 3 * 768 + 3 * 768 + 768 * 768 + 768 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    tables = 8 * 2 * (2 * 14 - 1) * 64 + 4 * 2 * (2 * 64 - 1) * 64
    neck = 768 * 256 + 2 * 256 + 256 * 256 * 9 + 2 * 256
    sam = 3 * 16 * 16 * 768 + 768 + 64 * 64 * 768 + 12 * layer + tables + neck + 9 * (256 * 512 + 512 * 896)
    # The encoder has the shape of Qwen2-0.5B without its table: 24 layers, 14 heads of 64, 2 of keys and values.
    layer = 2 * 896 * 896 + 896 + 2 * (896 * 128 + 128) + 3 * 896 * 4864 + 2 * 896
    encoder = 24 * layer + 896 + (144 + 256) * 896
    projector = 896 * 1280 + 1280
    # The decoder of DeepSeek-OCR: a dense layer and eleven with 64 experts and two shared; a separator.
    attention, norms = 4 * 1280 * 1280, 2 * 1280
    mixture = 64 * 1280 + 64 * 3 * 1280 * 896 + 3 * 1280 * 2 * 896
    text = 2 * 129280 * 1280 + 12 * (attention + norms) + 3 * 1280 * 6848 + 11 * mixture + 1280
    ledger = evaluate_formulas(target, target.workload())
    assert ledger.total("params") == sam + encoder + projector + text + 1280 == 3_389_119_360


def test_layers_of_its_own_by_hand() -> None:
    joined = costs_of(QueriesBehindFeatures(2, 9, 4, 5, 2))
    assert [joined.input_bytes, joined.output_bytes, joined.weight_read_bytes] == [180, 260, 40]
    assert joined.unfused_bytes == 180 + 260 + 40
    assert costs_of(QueryTable(4, 5, 2)).weight_bytes == 40
    mask = costs_of(WrittenMask(2, 7, 4))
    assert (mask.output_bytes, mask.unfused_bytes) == (2 * 49 * 4, 2 * 49 * 4 + 8)
    # Two pages of 6 tokens and a separator in prompts of 9: joined, joined again, and written over.
    page = costs_of(ViewsInPrompt(18, 3, 2, 6, pages=2))
    assert (page.input_bytes, page.output_bytes) == (2 * (6 + 9) * 3 * 2, 2 * (9 + 7) * 3 * 2)
    assert (page.params, page.weight_read_bytes) == (3, 6)
    assert costs_of(ViewsInPrompt(18, 3, 2)).unfused_bytes == 0


@pytest.mark.slow
def test_prepared_inputs_give_what_the_model_gives_with_its_own(tmp_path: Path) -> None:
    target = DeepseekOcr2.from_file(_file(tmp_path)).with_options(RunOptions(device="cpu"))
    workload = target.workload(**SIDES, grid="2x1", text_tokens=5, new_tokens=3, dtype="float32", batch=2)
    model: Any = target.build_run(workload, silent).model
    runs = target.runs(model, workload)
    ids = torch.cat([run.kwargs["input_ids"] for run in runs], dim=1)
    assert (ids == 60).sum(1).tolist() == [256 + 2 * 144 + 1] * 2
    logits = [run.expected for run in runs if run.expected is not None]
    native: Any = type(model).__mro__[1]
    given = {name: runs[0].kwargs[name] for name in ("pixel_values", "pixel_values_local", "num_local_patches")}
    with torch.no_grad():
        own = native.forward(model, input_ids=ids, **given).logits
    torch.testing.assert_close(torch.cat(logits, dim=1), own)


@pytest.mark.slow
def test_draws_hold(*, thorough: bool) -> None:
    """Where time is short :func:`test_a_draw_whose_crops_have_the_side_of_the_view` has the first."""
    draws = [piece for piece in DeepseekOcr2.default().proof(4, 5).pieces if piece.phase == "draws"]
    for draw in draws[:2] if thorough else draws[1:2]:
        found = carry_out_piece(draw)
        assert (found.counterexamples, min(found.rows.values()) >= 10) == ((), True)
    for draw in draws:
        assert isinstance(draw.target, DeepseekOcr2)
        assert draw.target.config.contradictions() == []
    assert DeepseekOcr2.from_normalised(DeepseekOcr2.default().normalised()) == DeepseekOcr2.default()


@pytest.mark.slow
def test_a_draw_whose_crops_have_the_side_of_the_view() -> None:
    # One graph stands for both; six crops to a view, so without symbols each has its own.
    made = next(p for p in DeepseekOcr2.default().proof(1, 5).pieces if p.phase == "draws")
    side = 4 * made.target.config.sam.patch  # type: ignore[attr-defined]
    alike = replace(made, workload=with_page(made.workload, Page(2 * side, 2 * side, (3, 2))))
    found = carry_out_piece(alike)
    assert found.counterexamples == ()
    # Both are compared: more rows than those of the global view alone.
    alone = carry_out_piece(replace(alike, workload=with_page(alike.workload, Page(2 * side, 2 * side))))
    assert all(found.rows[stage] > alone.rows[stage] for stage in ("sam", "encoder", "projector"))


def test_layers_that_are_left_out() -> None:
    target = DeepseekOcr2.default().with_options(RunOptions(layers=2))
    cut = {"decoder layers": "2 of 12", "SAM layers": "3 of 12", "encoder layers": "2 of 24"}
    assert dict(target.cut) == cut
    assert target.config.contradictions() == []


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"image_token_id": 64}, "$.image_token_id"),
        ({"vision_config": {"sam_config": SAM, "encoder_config": {**ENCODER, "hidden_size": 40}}},
         "$.vision_config.sam_config.downsample_channels"),
        ({"vision_config": {"sam_config": SAM, "encoder_config": {**ENCODER, "num_key_value_heads": 3}}},
         "$.vision_config.encoder_config.num_key_value_heads"),
        ({"vision_config": {"sam_config": SAM, "encoder_config": {**ENCODER, "use_sliding_window": True}}},
         "$.vision_config.encoder_config.use_sliding_window"),
        ({"vision_config": {"sam_config": SAM, "encoder_config": {**ENCODER, "layer_types": ["full_attention"]}}},
         "$.vision_config.encoder_config.layer_types"),
        ({"text_config": {**TEXT, "num_experts_per_tok": 9}}, "$.text_config.num_experts_per_tok"),
        ({"text_config": {**TEXT, "sliding_window": 9}}, "$.text_config.sliding_window"),
        ({"text_config": {k: v for k, v in TEXT.items() if k != "mlp_layer_types"}}, "$.text_config.mlp_layer_types"),
    ],
)  # fmt: skip
def test_a_file_that_the_formulas_do_not_describe(changes: dict[str, Any], where: str, tmp_path: Path) -> None:
    with pytest.raises(Problems) as caught:
        Ocr2Config.load(_file(tmp_path, **changes))
    assert [p.where for p in caught.value.problems if isinstance(p, BadInput)] == [where]


def test_a_saved_file_leaves_out_what_the_class_knows(tmp_path: Path) -> None:
    from transformers import DeepseekOcr2Config

    native = DeepseekOcr2Config(**Ocr2Config.load(_file(tmp_path)).native())
    native.save_pretrained(tmp_path / "saved")
    found = Ocr2Config.load(tmp_path / "saved" / "config.json")
    assert found.normalised() == Ocr2Config.load(_file(tmp_path)).normalised()


@pytest.mark.parametrize(("given", "width"), [({}, 96), ({"mlp_dim": None}, 96), ({"mlp_ratio": 2.5}, 60)])
def test_the_width_of_an_mlp_that_a_file_leaves_out(given: dict[str, Any], width: int, tmp_path: Path) -> None:
    sam = {**{key: value for key, value in SAM.items() if key != "mlp_dim"}, **given}
    found = Ocr2Config.load(_file(tmp_path, vision_config={"sam_config": sam, "encoder_config": ENCODER}))
    assert found.sam.mlp == width


def test_another_class_of_the_type_is_counted_without_formulas(tmp_path: Path) -> None:
    assert isinstance(load_target(f"hf:{_file(tmp_path)}"), DeepseekOcr2)
    assert isinstance(load_target(f"hf:{_file(tmp_path, architectures=['DeepseekOcr2Model'])}"), GenericTarget)


@pytest.mark.parametrize(
    ("run", "where"),
    [
        ({"grid": "3x3"}, "--grid"),
        ({"base_size": 100}, "--base-size"),
        ({"preset": "text-only", "grid": "2x2"}, "--grid"),
        ({"text_tokens": 4000}, "--text-tokens, --seq-len, --new-tokens"),
    ],
)
def test_a_run_that_the_model_cannot_make(run: dict[str, Any], where: str, tmp_path: Path) -> None:
    with pytest.raises(Problems) as caught:
        DeepseekOcr2.from_file(_file(tmp_path)).workload(**{**({} if "preset" in run else SIDES), **run})
    assert [p.where for p in caught.value.problems if isinstance(p, BadInput)] == [where]
