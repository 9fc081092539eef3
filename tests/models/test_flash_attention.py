"""FlashAttention's own package on shapes: what is arranged is undone, and what cannot be is said."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import modeling_flash_attention_utils as loading

from costproof.ledger.errors import Incomplete, Problems
from costproof.ledger.workload import Workload
from costproof.models.decoding.decoder import config_of
from costproof.models.decoding.runs import step_inputs
from costproof.models.families.deepseek_ocr import native
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.patches import flash_attention
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
