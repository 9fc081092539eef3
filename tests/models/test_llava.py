"""LLaVA: three sources agree with images and without, numbers by hand, and what cannot be run is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import costproof
from costproof.compare.compare import compare
from costproof.compare.proof.certificate import degrees
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.progress import silent
from costproof.ledger.run import RunOptions
from costproof.models.families.llava import Llava, LlavaConfig
from costproof.models.generic.module import GenericTarget
from costproof.models.registry import load_target
from costproof.parametric.targets import evaluate_formulas
from costproof.run.proof_pieces import carry_out_piece
from tests.models.test_families import SOURCES
from tests.oracles.mutations import run as planted
from tests.support.variants import with_variants

pytestmark = pytest.mark.usefixtures("one_process")

# Images of 30 pixels are 2 x 2 patches of 14, and 2 pixels that no patch has.
VISION: Final = {
    "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "image_size": 30, "patch_size": 14,
}  # fmt: skip
TEXT: Final = {
    "model_type": "llama", "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "vocab_size": 64,
    "max_position_embeddings": 256,
}  # fmt: skip
FILE: Final[dict[str, Any]] = {
    "model_type": "llava", "image_token_index": 60, "vision_config": VISION, "text_config": TEXT,
}  # fmt: skip
CASES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "an image": ({"text_config": {**TEXT, "num_hidden_layers": 1}}, {"batch": 2, "new_tokens": 2}),
    "images, eager": ({}, {"images": 2, "attention": "eager", "logits": "last", "new_tokens": 3, "batch": 3}),
    "text alone": ({}, {"preset": "text-only", "text_tokens": 9}),
    "rows, eager": ({}, {"rows": "9, 3x1+8, 5+7/all", "images": 3, "attention": "eager", "dtype": "float32"}),
    "shared table, class token": (
        {
            "tie_word_embeddings": True, "vision_feature_select_strategy": "full", "vision_feature_layer": 1,
            "multimodal_projector_bias": False, "projector_hidden_act": "relu",
            "text_config": {**TEXT, "num_hidden_layers": 1},
        },
        {"dtype": "float32"},
    ),
}  # fmt: skip


def _file(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**FILE, **changes}), encoding="utf-8")
    return path


def _counted(folder: Path, changes: dict[str, Any], run: dict[str, Any]) -> Capture:
    return costproof.capture("llava", config=_file(folder, **changes), **run)


@pytest.mark.slow
@pytest.mark.parametrize("case", with_variants(CASES, ("an image", "shared table, class token")))
def test_three_sources_agree(case: str, tmp_path: Path, *, thorough: bool) -> None:
    """The run goes through one code for images and text: test_qwen2_5_vl.py has it where time is short."""
    changes, run = CASES[case]
    sources = SOURCES if thorough else SOURCES[:2]
    capture = _counted(tmp_path, changes, {**run, "sources": sources})
    compared = compare(capture)
    wrong = [f for f in compared.findings if f.status not in ("exact", "not-executed")]
    assert (compared.verdict, wrong[:3]) == ("exact", [])
    if case == "an image":
        assert {len(f.values) for f in compared.findings} == {len(sources)}
        outcomes = planted("llava", capture, 1, None if thorough else 12)
        assert [(o.planted.operation, o.planted.what, o.said) for o in outcomes if not o.located] == []
        assert len(outcomes) >= 12


def test_the_sizes_of_a_run_by_hand(tmp_path: Path) -> None:
    target = Llava.from_file(_file(tmp_path))
    ledger = evaluate_formulas(target, target.workload(images=2, text_tokens=5, new_tokens=2, batch=3))
    # 6 images of 4 patches: 2 x 24 x 32 x 48 and 2 x 24 x 48 x 48 multiply-adds.
    assert ledger.stage_total("projector", "flops") == 2 * 24 * 32 * 48 + 2 * 24 * 48 * 48
    # Tower: patches 2 x 24 x 588 x 32; each of 2 layers on 6 x 5 tokens four projections, an MLP of 40, and scores and
    # their product with the values, 5 x 5 pairs of an image.
    layer = 2 * 30 * (4 * 32 * 32 + 2 * 32 * 40) + 2 * 2 * 6 * 25 * 32
    assert ledger.stage_total("vision", "flops") == 2 * 24 * 3 * 14 * 14 * 32 + 2 * layer
    # A prompt of 2 x 4 places and 5 tokens; the cache keeps keys and values of 2 heads of 12 in 2 layers, 2 bytes each.
    rows = 3 * 13
    layer = 2 * rows * (48 * 48 + 2 * 48 * 24 + 48 * 48 + 3 * 48 * 56) + 4 * 3 * 13 * 13 * 48
    assert ledger.stage_total("prefill", "flops") == 2 * layer + 2 * rows * 48 * 64
    assert ledger.stage_total("prefill", "kv_cache_bytes") == 2 * 2 * rows * 24 * 2
    # In the prompt's own module: features and embeddings in, both out again, 2 bytes each.
    (glue,) = [n for n in ledger.nodes if (n.stage, n.module, n.kind) == ("prefill", "model", "") and n.invocation]
    assert glue.cost("input_bytes") == glue.cost("output_bytes") == (24 * 48 + rows * 48) * 2
    assert glue.cost("unfused_bytes") == 2 * (24 * 48 + rows * 48) * 2 + 24 * 48 * 2


ROWS: Final = "9, 3x1+8, 5+7/all"


def test_rows_by_hand(tmp_path: Path) -> None:
    """A prompt of 9 with two of the images, three steps, and 5 tokens behind 7 with the third: towers run once.

    Attention has 9 x 9, 3 x 9 and 5 x 12 pairs, of 48 elements in all heads; 1, 3 and 5 positions get logits.
    """
    target = Llava.from_file(_file(tmp_path))
    ledger = evaluate_formulas(target, target.workload(rows=ROWS, images=3))
    assert ledger.stage_total("projector", "flops") == 2 * 12 * 32 * 48 + 2 * 12 * 48 * 48
    rows = 9 + 3 + 5
    layer = 2 * rows * (48 * 48 + 2 * 48 * 24 + 48 * 48 + 3 * 48 * 56) + 4 * (81 + 27 + 60) * 48
    assert ledger.stage_total("prefill", "flops") == 2 * layer + 2 * (1 + 3 + 5) * 48 * 64
    token = 2 * 2 * 24 * 2
    assert ledger.stage_total("prefill", "kv_cache_bytes") == rows * token
    assert ledger.stage_total("prefill", "kv_read_bytes") == (3 * 8 + 7) * token
    (glue,) = [n for n in ledger.nodes if (n.stage, n.module, n.kind) == ("prefill", "model", "") and n.invocation]
    assert glue.cost("input_bytes") == glue.cost("output_bytes") == (12 * 48 + rows * 48) * 2


def test_parameters_of_the_published_model_by_hand() -> None:
    target = Llava.default()
    # CLIP: class token, patches, 577 positions, 24 layers, two norms.
    layer = 4 * (1024 * 1024 + 1024) + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024
    vision = 1024 + 3 * 14 * 14 * 1024 + 577 * 1024 + 24 * layer + 4 * 1024
    projector = 1024 * 4096 + 4096 + 4096 * 4096 + 4096
    text = 2 * 32064 * 4096 + 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096) + 4096
    ledger = evaluate_formulas(target, target.workload())
    assert ledger.total("params") == vision + projector + text == 7_063_427_072


@pytest.mark.slow
def test_prepared_inputs_give_what_the_model_gives_with_its_own(tmp_path: Path) -> None:
    target = Llava.from_file(_file(tmp_path)).with_options(RunOptions(device="cpu"))
    workload = target.workload(images=2, text_tokens=5, new_tokens=3, dtype="float32", batch=2)
    model: Any = target.build_run(workload, silent).model
    runs = target.runs(model, workload)
    ids = torch.cat([run.kwargs["input_ids"] for run in runs], dim=1)
    assert (ids == 60).sum(1).tolist() == [8, 8]
    logits = [run.expected for run in runs if run.expected is not None]
    native: Any = type(model).__mro__[1]
    with torch.no_grad():
        own = native.forward(model, input_ids=ids, pixel_values=runs[0].kwargs["pixel_values"]).logits
    torch.testing.assert_close(torch.cat(logits, dim=1), own)


@pytest.mark.slow
def test_draws_hold(*, thorough: bool) -> None:
    draws = [piece for piece in Llava.default().proof(4, 5).pieces if piece.phase == "draws"]
    for draw in draws if thorough else draws[:1]:
        found = carry_out_piece(draw)
        assert (found.counterexamples, min(found.rows.values()) > 20) == ((), True)
    for draw in draws:
        target = draw.target
        assert isinstance(target, Llava)
        assert target.config.contradictions() == []
        assert Llava.from_normalised(target.normalised()).config == target.config


def test_how_often_a_parameter_stands_in_the_formulas_of_draws() -> None:
    made = Llava.default().proof(1, 0)
    # G stands squared in the tokens of a tower, and these squared in its scores.
    assert degrees(["G**4*n"], made.independent)["vision_grid"] == 4
    assert degrees(["S"], made.independent)["images"] == 1


def test_layers_that_are_left_out(tmp_path: Path) -> None:
    target = Llava.default().with_options(RunOptions(layers=3))
    assert dict(target.cut) == {"decoder layers": "3 of 32", "vision layers": "3 of 24"}
    assert target.config.contradictions() == []


def test_published_files_leave_out_what_the_classes_know(tmp_path: Path) -> None:
    file = {
        "model_type": "llava", "image_token_index": 32000, "ignore_index": -100, "vocab_size": 32064,
        "text_config": {"vocab_size": 32064, "max_position_embeddings": 4096, "architectures": ["LlamaForCausalLM"]},
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    found = LlavaConfig.load(path)
    assert found.normalised() == LlavaConfig().normalised()
    assert "$.ignore_index" in dict(found.waived)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"vision_feature_layer": [-2, -3]}, "$.vision_feature_layer"),
        ({"vision_feature_layer": 0}, "$.vision_feature_layer"),
        ({"vision_feature_layer": -4}, "$.vision_feature_layer"),
        ({"vision_feature_select_strategy": "some"}, "$.vision_feature_select_strategy"),
        ({"image_token_index": 64}, "$.image_token_index"),
        ({"vision_config": {**VISION, "hidden_size": 33}}, "$.vision_config.num_attention_heads"),
        ({"vision_config": {**VISION, "model_type": "siglip_vision_model"}}, "$.vision_config.model_type"),
        ({"text_config": {**TEXT, "tie_word_embedding": True}}, "$.text_config.tie_word_embedding"),
        ({"text_config": 3}, "$.text_config"),
    ],
)
def test_a_file_that_the_formulas_do_not_describe(changes: dict[str, Any], where: str, tmp_path: Path) -> None:
    with pytest.raises(Problems) as caught:
        LlavaConfig.load(_file(tmp_path, **changes))
    assert [p.where for p in caught.value.problems if isinstance(p, BadInput)] == [where]


def test_a_model_of_other_parts_is_counted_without_formulas(tmp_path: Path) -> None:
    # As Pixtral and others are: the type of the whole is the same.
    for changes in ({"vision_config": {**VISION, "model_type": "siglip_vision_model"}},
                    {"text_config": {**TEXT, "model_type": "mistral"}}):  # fmt: skip
        assert isinstance(load_target(f"hf:{_file(tmp_path, **changes)}"), GenericTarget)
    assert isinstance(load_target(f"hf:{_file(tmp_path)}"), Llava)
    assert isinstance(load_target(f"hf:{_file(tmp_path, text_config={'vocab_size': 32064})}"), Llava)


@pytest.mark.parametrize(
    ("run", "where"),
    [
        ({"seq_len": 4}, "--seq-len"),
        ({"seq_len": 20, "text_tokens": 3}, "--text-tokens, --seq-len"),
        ({"images": -1}, "--images"),
        ({"text_tokens": 260}, "--text-tokens, --seq-len, --new-tokens"),
        ({"images": 0, "seq_len": 0}, "--seq-len"),
        ({"rows": "9, 3", "seq_len": 12}, "--seq-len"),
        ({"rows": "9, 3x3+200", "images": 3}, "--images, --rows"),  # an image is 4 tokens of one sequence
        ({"rows": "3, 4+253"}, "--rows, 4+253"),
    ],
)
def test_a_run_that_the_model_cannot_make(run: dict[str, Any], where: str, tmp_path: Path) -> None:
    with pytest.raises(Problems) as caught:
        Llava.from_file(_file(tmp_path)).workload(**run)
    assert [p.where for p in caught.value.problems if isinstance(p, BadInput)] == [where]
