from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.models.unlimited_ocr import modeling_unlimited_ocr as modeling

from costproof.models.decoding.decoder import config_of
from costproof.models.decoding.runs import step_inputs
from costproof.models.families.deepseek_ocr import native
from costproof.models.families.deepseek_ocr.config import vision_tokens
from costproof.models.pages.jobs import stride
from costproof.models.pages.page import Page, page_workload, with_page
from costproof.patches.modules import running
from tests.tracers.small import CONFIG, PAGE, model


def test_the_model_is_on_meta_in_the_run_s_dtype() -> None:
    small = model("float16")
    assert {p.device.type for p in small.parameters()} == {"meta"}
    assert {p.dtype for p in small.parameters()} == {torch.float16}
    assert not small.training
    # A checkpoint that is loaded in half precision keeps its rotary frequencies in single.
    assert dict(small.named_buffers())["model.language_model.rotary_emb.inv_freq"].dtype == torch.float32


def test_the_window_covers_the_context() -> None:
    small = native.build_model(CONFIG, context=40_000)
    assert config_of(small).text_config.sliding_window > 40_000


@pytest.mark.parametrize(
    ("path", "stage"),
    [
        ("model.vision_tower.sam_encoder.layers.0", "sam"),
        ("model.vision_tower.sam_encoder", "sam"),
        ("model.vision_tower.vision_encoder.embeddings", "clip"),
        ("model.vision_tower", "projector"),
        ("model.multi_modal_projector", "projector"),
        ("model", "prefill"),
        ("", "prefill"),
        ("lm_head", "prefill"),
    ],
)
def test_stages(path: str, stage: str) -> None:
    assert native.NATIVE_STAGES.stage(path) == stage
    assert native.NATIVE_STAGES.stage(path, "decode") == ("decode" if stage == "prefill" else stage)


@pytest.mark.parametrize(
    ("page", "tokens"),
    [
        (None, 0),
        (Page(128, 64), 2 * 2 + 2 + 1),
        (Page(128, 64, (2, 1)), 2 * 2 + 2 + 1 + 1 * 2 + 1),
        (Page(192, 128, (3, 2)), 3 * 3 + 3 + 1 + (2 * 2) * (3 * 2) + 2 * 2),
    ],
)
def test_vision_tokens(page: Page | None, tokens: int) -> None:
    workload = page_workload("w", page, text_tokens=5)
    assert vision_tokens(page, stride(model())) == tokens
    assert native.READER.length(model(), workload) == tokens + 5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("experts", ["grouped_mm", "batched_mm"])
@pytest.mark.parametrize("page", [Page(128, 64, (2, 3)), Page(192, 64), None])
def test_every_run_runs_without_further_care(dtype: str, attention: str, experts: str, page: Page | None) -> None:
    workload = page_workload("w", page, 4, 2, 2, dtype, attention, "last", experts)
    small = model(dtype, attention, experts)
    result = small(**native.READER.page_inputs(small, workload))
    assert result.logits.shape == (2, 1, 96)
    step = small(**step_inputs(small, workload, native.DECODER, 9))
    assert step.logits.shape == (2, 1, 96)
    assert sum(k.shape[-2] for k, *_ in [c[::2] for c in native.DECODER.cache_tensors(step.past_key_values)]) == 2 * 9


def test_logits_of_all_positions() -> None:
    small = model()
    assert small(**native.READER.page_inputs(small, PAGE)).logits.shape == (1, 17, 96)


def test_no_patch_is_left_after_a_run_or_an_error() -> None:
    check = modeling.torch_compilable_check
    small = model("float32")
    workload = replace(PAGE, dtype="float32")
    small(**native.READER.page_inputs(small, workload))
    assert modeling.torch_compilable_check is check

    def interrupted() -> None:
        with native.unchecked():
            assert modeling.torch_compilable_check is not check
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert modeling.torch_compilable_check is check
    x, w = torch.empty(4, 8, device="meta"), torch.empty(2, 8, 16, device="meta")
    with pytest.raises(RuntimeError, match="BF16"):
        torch._grouped_mm(x, w, offs=torch.empty(2, dtype=torch.int32, device="meta"))


def test_the_grouped_shape_kernel_is_that_of_the_real_one() -> None:
    x, w, offs = torch.randn(4, 8), torch.randn(2, 8, 16), torch.tensor([1, 4], dtype=torch.int32)
    real = torch._grouped_mm(x, w, offs=offs)
    with running({}, torch.float32):
        shape = torch._grouped_mm(x.to("meta"), w.to("meta"), offs=offs.to("meta"))
    assert (shape.shape, shape.dtype) == (real.shape, real.dtype)
    with pytest.raises(ValueError, match="grouped GEMM"), running({}, torch.float32):
        torch._grouped_mm(x[:, :5].to("meta"), w.to("meta"), offs=offs.to("meta"))


def test_exports_of_a_page() -> None:
    jobs = native.READER.export_jobs(model(), PAGE)
    assert [(j.id, j.stage, j.invocations) for j in jobs] == [
        ("sam@128", "sam", ("global",)),
        ("clip@128", "clip", ("global",)),
        ("projector@128", "projector", ("global",)),
        ("sam@64", "sam", ("crops",)),
        ("clip@64", "clip", ("crops",)),
        ("projector@64", "projector", ("crops",)),
        ("glue", "prefill", ("prompt",)),
        ("prefill", "prefill", ("prompt",)),
        ("step", "decode", ("steps",)),
    ]


def test_views_of_one_size_share_an_export() -> None:
    jobs = native.READER.export_jobs(model(), with_page(PAGE, Page(128, 128, (1, 2))))
    assert [(j.id, j.invocations) for j in jobs if j.stage == "sam"] == [("sam@128", ("global", "crops"))]


def test_a_text_only_run_has_no_vision_and_no_glue() -> None:
    jobs = native.READER.export_jobs(model(), with_page(PAGE, None))
    assert [j.id for j in jobs] == ["prefill", "step"]


@pytest.mark.parametrize(
    ("steps", "contexts"), [(1, [17]), (2, [17, 18]), (3, [17, 18, 19]), (4, [17, 18, 20]), (9, [17, 21, 25])]
)
def test_the_steps_that_are_traced(steps: int, contexts: list[int]) -> None:
    found = native.READER.shape_runs(model(), replace(PAGE, new_tokens=steps))
    assert [r.context for r in found] == [None, *contexts]


def test_parts_are_exchanged_in_a_copy_alone() -> None:
    small = model()
    before = dict(small.get_submodule("model")._modules)
    native.READER.export_jobs(small, PAGE)
    assert dict(small.get_submodule("model")._modules) == before
