"""FlashAttention's own package on shapes: what is arranged is undone, and what cannot be is said."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import modeling_flash_attention_utils as loading

import costproof
from costproof.compare.compare import compare
from costproof.ledger.errors import Incomplete, Problems
from costproof.ledger.workload import Workload
from costproof.models.decoding.decoder import config_of
from costproof.models.decoding.runs import step_inputs
from costproof.models.families.deepseek_ocr import native
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.registry import load_target
from costproof.opgraph.liveness import timeline
from costproof.parametric.targets import live_peaks
from costproof.patches import flash_attention
from costproof.tracers.peaks.calls import calls
from costproof.tracers.peaks.program import exported_memory, on_fake_cpu
from tests.models.test_families import GPT2
from tests.models.test_latents import V2, V3
from tests.models.test_past import LLAMA, MISTRAL, ONE
from tests.support.variants import with_variants
from tests.tracers.realistic import quiet, small_ocr
from tests.tracers.small import CONFIG, PAGE

FLASH = replace(PAGE, attention="flash_attention_2", new_tokens=1)

needs_flash = pytest.mark.skipif(bool(flash_attention.missing()), reason=flash_attention.missing())


def surroundings() -> list[Any]:
    """Everything that the arrangement touches."""
    mine = ("flash_attn", "flash_attn_2_cuda")
    return [
        sorted(m for m in sys.modules if m in mine or m.startswith("flash_attn.")),
        loading.is_flash_attn_2_available,
        loading._is_packed_sequence,
        dict(loading.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2]),
        [getattr(loading, name) for name in flash_attention._LOADED],
    ]


@needs_flash
@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_everything_is_undone_however_a_block_ends(error: type[BaseException] | None) -> None:
    before = surroundings()

    def block() -> None:
        with flash_attention.on_meta():
            with flash_attention.on_meta():  # a forward inside the building of a model
                pass
            assert loading.is_flash_attn_2_available()
            assert surroundings()[1:4] != before[1:4]
            functions, _ = loading.lazy_import_flash_attention("flash_attention_2")
            assert functions[0].__module__ == "flash_attn.flash_attn_interface"
            if error is not None:
                raise error

    for _ in range(2):
        if error is None:
            block()
        else:
            with pytest.raises(error):
                block()
        assert surroundings() == before


@needs_flash
def test_the_stand_in_computes_nothing() -> None:
    """The operators have no kernel for a CPU, and the stand-in has no function."""
    if flash_attention.compiled():
        pytest.skip("the kernels are there, so nothing stands in for them")
    with flash_attention.on_meta():
        from flash_attn import flash_attn_func, flash_attn_with_kvcache

        shapes = torch.empty(1, 4, 2, 16, dtype=torch.bfloat16, device="meta")
        assert flash_attn_func(shapes, shapes, shapes).shape == (1, 4, 2, 16)
        numbers = torch.ones(1, 4, 2, 16, dtype=torch.bfloat16)
        with pytest.raises(NotImplementedError, match="CPU"):
            flash_attn_func(numbers, numbers, numbers)
        with pytest.raises(AttributeError):
            flash_attn_with_kvcache(shapes, shapes, shapes)


@needs_flash
def test_the_decoder_alone_runs_it() -> None:
    before = surroundings()
    model = native.build_model(CONFIG, attention="flash_attention_2")
    assert surroundings() == before
    config = config_of(model)
    vision = config.vision_config
    assert config.text_config._attn_implementation == "flash_attention_2"
    assert vision.sam_config._attn_implementation == vision.encoder_config._attn_implementation == "sdpa"
    assert model(**native.READER.page_inputs(model, FLASH)).logits.shape == (1, 17, 96)
    assert model(**step_inputs(model, FLASH, native.DECODER, 9)).logits.shape == (1, 1, 96)
    assert surroundings() == before


@needs_flash
def test_the_towers_cannot() -> None:
    """SAM's and CLIP's classes say that they do not support it; transformers refuses to build them so."""
    from transformers.models.unlimited_ocr import modeling_unlimited_ocr as modeling

    for name, part in (
        ("sam_config", modeling.UnlimitedOcrSamVisionEncoder),
        ("encoder_config", modeling.UnlimitedOcrVisionEncoder),
    ):
        config = getattr(native._modules()[1].UnlimitedOcrConfig(**CONFIG).vision_config, name)
        config._attn_implementation = "flash_attention_2"
        with (
            flash_attention.on_meta(),
            torch.device("meta"),
            pytest.raises((ValueError, KeyError), match=r"flash|Flash"),
        ):
            part._from_config(config)


@needs_flash
def test_what_ran_is_said() -> None:
    target = small_ocr()
    model = target.build(FLASH)
    notes = [n for job in target.export_jobs(model, FLASH) for n in job.notes]
    assert notes == list(target.build_run(FLASH, quiet).notes) == list(flash_attention.notes(native.DECODER.beside))
    assert "SAM and CLIP run scaled_dot_product_attention" in notes[0]
    assert flash_attention.compiled() or "stood in" in notes[1]
    assert target.build_run(PAGE, quiet).notes == ()


@pytest.mark.parametrize(
    ("version", "einops", "said"),
    [(None, "0.8", "not installed"), ("2.7.4.post1", "0.8", "too old"), ("2.8.3", None, "without einops")],
)
def test_a_missing_package_is_named_with_the_way_out(
    version: str | None, einops: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(package: str = "flash-attn") -> str | None:
        return version if package == "flash-attn" else einops

    monkeypatch.setattr(flash_attention, "installed", installed)
    with pytest.raises(Incomplete) as caught:
        DeepseekOcr.default().build(FLASH)
    assert caught.value.exit_code == 3
    assert said in str(caught.value.got)
    assert "FLASH_ATTENTION_SKIP_CUDA_BUILD" in str(caught.value.fix)
    assert "--attention" in str(caught.value.where)


def test_another_transformers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention, "missing", lambda: "")
    monkeypatch.delattr(loading, "_flash_varlen_fn")
    with pytest.raises(Incomplete, match="not known here"), flash_attention.on_meta():
        pass


def test_formulas_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention, "installed", lambda package="": None)
    target = DeepseekOcr.default()
    run = target.workload(attention="flash_attention_2")
    target.check(run)
    fused = target.formulas(replace(run, attention="sdpa"))
    assert target.formulas(run).nodes == fused.nodes


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ({"dtype": "float32"}, {}, "no kernels for this dtype"),
        ({}, {"device": "cpu"}, "no kernels for a CPU"),
    ],
)
def test_what_the_kernels_cannot(settings: Any, options: Any, said: str) -> None:
    run: Workload = replace(FLASH, **settings)
    with pytest.raises(Problems, match=said):
        small_ocr(**options).check(run)


def test_heads_that_are_too_wide() -> None:
    assert flash_attention.problems("bfloat16", 256) == []
    (problem,) = flash_attention.problems("bfloat16", 264)
    assert (problem.expected, problem.got) == ("at most 256 dimensions", "264")


def test_numbers_need_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention, "compiled", lambda: False)
    with pytest.raises(Incomplete, match="no numbers without its compiled kernels"):
        flash_attention.require_kernels()


VIT: Final = {
    "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 8, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
BERT: Final = {
    "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 8, "vocab_size": 64,
}  # fmt: skip
LATENT: Final[dict[str, Any]] = {**V3, **ONE, "moe_intermediate_size": 8, "intermediate_size": 8}
"""Heads of 13 elements, padded to 16, with values of 9, padded to 13 and then to 16."""
WITH_FLASH: Final[dict[str, tuple[str, dict[str, Any], dict[str, Any]]]] = {
    "vit": ("vit", {"model_type": "vit", **VIT}, {"batch": 2}),
    "vit, one head": ("vit", {"model_type": "vit", **VIT, "num_attention_heads": 1, "hidden_size": 12}, {}),
    "clip-vision": ("clip-vision", {"model_type": "clip_vision_model", **VIT}, {}),
    "siglip-vision": ("siglip-vision", {"model_type": "siglip_vision_model", **VIT}, {"batch": 2}),
    "dinov2": ("dinov2", {"model_type": "dinov2", **VIT, "mlp_ratio": 1}, {"batch": 2}),
    "bert": ("bert", {"model_type": "bert", **BERT}, {"seq_len": 40, "batch": 2}),
    "latent": ("deepseek-v3", LATENT, {"text_tokens": 40, "new_tokens": 1, "batch": 2}),
    "latent, chunk": ("deepseek-v3", LATENT, {"text_tokens": 20, "past": 30, "new_tokens": 1}),
    "latent, rows": ("deepseek-v3", LATENT, {"rows": "40, 3x1+50, 9+30"}),
    "latent of v2": ("deepseek-v2", {**V2, **ONE}, {"text_tokens": 40, "new_tokens": 1}),
    "equal widths": ("deepseek-v3", {**LATENT, "v_head_dim": 13}, {"text_tokens": 40, "new_tokens": 1}),
    "llama, rows": ("llama", {**LLAMA, "intermediate_size": 8}, {"rows": "40, 3x1+50, 2x9+30"}),
    "gpt2": ("gpt2", {**GPT2, "n_layer": 1}, {"text_tokens": 9, "past": 5, "new_tokens": 2}),
    "mistral": ("mistral", MISTRAL, {"text_tokens": 4, "new_tokens": 2}),
}


def flash_target(case: str, folder: Path) -> tuple[Any, Path]:
    name, file, _ = WITH_FLASH[case]
    path = folder / "config.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    return load_target(name, path), path


@needs_flash
@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("case", with_variants(WITH_FLASH, ("vit", "latent, chunk", "llama, rows")))
def test_three_sources_agree(case: str, tmp_path: Path) -> None:
    name, _, run = WITH_FLASH[case]
    _, path = flash_target(case, tmp_path)
    compared = compare(costproof.capture(name, config=path, attention="flash_attention_2", **run))
    assert (compared.verdict, [f for f in compared.findings if f.status != "exact"]) == ("exact", [])
    assert {len(f.values) for f in compared.findings} == {3}


@needs_flash
@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("case", with_variants(WITH_FLASH, ("vit", "bert", "latent", "latent, rows")))
def test_the_live_peak_is_that_of_the_graph(case: str, tmp_path: Path) -> None:
    """With inputs that are held to the end, and with inputs that are released after their last reader."""
    target, _ = flash_target(case, tmp_path)
    work = target.workload(attention="flash_attention_2", **WITH_FLASH[case][2])
    for invocation, job in calls(target, work):
        program = exported_memory(on_fake_cpu(job)).program
        for held in (True, False):
            graph = max(timeline(program, inputs_held=held).held())
            assert live_peaks(target, work, inputs_held=held)[job.stage, invocation, job.id] == graph, (job.id, held)


def test_the_live_peak_of_an_image_encoder_is_that_by_hand(tmp_path: Path) -> None:
    """Attention decides: 2 images of 17 tokens, 4 heads of 12 elements that are padded to 16.

    Held are the pixels, hidden states, padded queries, keys and values, the result, and the sum of each query and head
    in float32. The projections were released when they were padded.
    """
    target, _ = flash_target("vit", tmp_path)
    work = target.workload(attention="flash_attention_2", batch=2)
    rows = 2 * 17
    held = 2 * 3 * 32 * 32 * 2 + rows * 48 * 2 + 4 * rows * 4 * 16 * 2 + 4 * rows * 4 + 16
    assert live_peaks(target, work)["forward", "forward", "forward"] == held


def test_the_live_peak_of_latent_attention_is_that_by_hand(tmp_path: Path) -> None:
    """A prompt of 40 of 2 sequences: 4 heads of 13 elements padded to 16, of which values have 9.

    Held are token ids, hidden states, the cache of 16 elements a token, padded queries, keys and values, the result,
    and the sums of each query and head. Cosines, sines and what was padded were released.
    """
    target, _ = flash_target("latent", tmp_path)
    work = target.workload(attention="flash_attention_2", text_tokens=40, new_tokens=1, batch=2)
    rows = 2 * 40
    hidden = LATENT["hidden_size"]
    held = 8 * rows + rows * hidden * 2 + rows * 16 * 2 + 4 * rows * 4 * 16 * 2 + 4 * rows * 4 + 16
    assert live_peaks(target, work)["prefill", "prompt", "prefill"] == held


@pytest.mark.parametrize(
    ("name", "run", "where"),
    [
        ("vit", {"dtype": "float32"}, "--attention flash_attention_2"),
        ("deepseek-v3", {"decoding": "absorbed"}, "--attention flash_attention_2"),
        ("mistral", {"text_tokens": 4095}, "--attention flash_attention_2"),
        ("mistral", {"rows": "9, 1+4094"}, "--attention flash_attention_2"),
        ("llama", {"tp": 2}, "--attention flash_attention_2"),
        ("t5", {}, "--attention"),
        ("gpt-oss", {}, "--attention"),
        ("qwen3-vl-vision", {}, "--attention"),
    ],
)
def test_a_run_that_no_kernel_computes_is_refused(name: str, run: dict[str, Any], where: str) -> None:
    with pytest.raises(Problems) as caught:
        load_target(name).workload(attention="flash_attention_2", **run)
    assert [problem.where for problem in caught.value.problems] == [where]


def test_values_wider_than_queries_are_refused(tmp_path: Path) -> None:
    target, _ = flash_target("latent", tmp_path)
    wide = replace(target, config=replace(target.config, value=14))
    with pytest.raises(Problems, match="cannot narrow them"):
        wide.workload(attention="flash_attention_2")
