"""Real runs: seeded numbers, real masks, the real cache, the real routing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import UnlimitedOcrForConditionalGeneration

from costproof.ledger.errors import BadInput, Incomplete, Problems
from costproof.ledger.workload import Workload
from costproof.models.decoding import runs as decoding
from costproof.models.decoding.decoder import config_of
from costproof.models.families.deepseek_ocr import native
from costproof.models.pages.page import Page, page_of, with_page
from tests.tracers.realistic import quiet, small_ocr
from tests.tracers.small import PAGE

SINGLE = replace(PAGE, dtype="float32", new_tokens=3)


def built(workload: Workload = SINGLE, **options: Any) -> nn.Module:
    return small_ocr(device="cpu", **options).build_run(workload, quiet).model


def test_random_weights_are_the_same_every_time_and_in_a_cut_model() -> None:
    first, second, cut = built(deep=True), built(deep=True), built(deep=True, layers=2)
    other = built(deep=True, seed=1)
    name = "model.language_model.layers.1.mlp.experts.down_proj"
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert torch.equal(first.get_parameter(name), cut.get_parameter(name))
    assert not torch.equal(first.get_parameter(name), other.get_parameter(name))
    assert len(list(cut.parameters())) < len(list(first.parameters()))


def test_buffers_are_those_that_transformers_computes() -> None:
    model = built(PAGE)
    theirs = UnlimitedOcrForConditionalGeneration._from_config(config_of(model), dtype=torch.bfloat16)
    buffers = dict(model.named_buffers())
    assert len(buffers) == 3
    for name, buffer in theirs.named_buffers():
        assert torch.equal(buffers[name], buffer), name
        assert buffers[name].dtype == buffer.dtype
    assert not any(hasattr(p, "_is_hf_initialized") for p in model.parameters())


def test_the_prompt_is_image_tokens_and_then_text() -> None:
    ids = native.READER.real_inputs(built(), SINGLE, 0)["input_ids"]
    # 10 vision tokens (see PAGE), token 5 is the image token.
    assert ids.shape == (1, 17)
    assert (ids[:, :10] == 5).all()
    assert (ids[:, 10:] != 5).all()
    assert ids.max() < 96


def test_an_eager_mask_hides_what_comes_later() -> None:
    workload = replace(SINGLE, attention="eager")
    mask = decoding.real_masks(built(workload), workload, native.DECODER, 3, 2)[0]
    assert mask is not None
    least = torch.finfo(torch.float32).min
    # The last query sees all 5 keys, the first one the 3 that came before or with it.
    expected = [[0, 0, 0, least, least], [0, 0, 0, 0, least], [0, 0, 0, 0, 0]]
    assert mask.tolist() == [[expected]]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("page", [page_of(PAGE), None], ids=["page", "text"])
def test_steps_through_the_cache_are_what_one_long_prompt_gives(attention: Any, page: Page | None) -> None:
    """Cache, positions and masks are right if N steps give the logits of a prompt that holds the N tokens."""
    workload = with_page(SINGLE, page, attention=attention, batch=2)
    model = built(workload)
    found = native.READER.real_runs(model, workload, 0)
    kwargs = dict(found[0].kwargs)
    tokens = [run.kwargs["input_ids"] for run in found[1:]]
    kwargs["input_ids"] = torch.cat([kwargs["input_ids"], *tokens], dim=1)
    length = kwargs["input_ids"].shape[1]
    kwargs["attention_mask"] = native.DECODER.mask(decoding.real_masks(model, workload, native.DECODER, length, 0))
    whole = model(**kwargs).logits
    assert [run.context for run in found] == [None, length - 3, length - 2, length - 1]
    for i, run in enumerate(found[1:]):
        assert run.expected is not None
        torch.testing.assert_close(run.expected[:, -1], whole[:, length - 3 + i])
        # Greedy decoding: each step gets the likeliest token.
        before = found[i].expected
        assert before is not None
        assert torch.equal(run.kwargs["input_ids"], before[:, -1:].argmax(-1))


@pytest.mark.parametrize("experts", ["grouped_mm", "batched_mm", "eager"])
def test_every_row_reaches_an_expert(experts: Any) -> None:
    workload = replace(SINGLE, experts=experts, batch=2)
    page, step, *_ = native.READER.real_runs(built(workload), workload, 0)
    assert set(page.expert_tokens) == {"model.language_model.layers.1.mlp.experts"}
    # 2 x 17 tokens, 3 of 8 experts each; then one token per sequence.
    assert {sum(rows) for rows in page.expert_tokens.values()} == {2 * 17 * 3}
    assert {sum(rows) for rows in step.expert_tokens.values()} == {2 * 3}
    assert {len(rows) for rows in page.expert_tokens.values()} == {8}


def test_counting_rows_leaves_no_hook_behind() -> None:
    model = built()

    def stopped() -> None:
        with decoding.expert_rows(model):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert not any(m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("steps", "experts", "traced"),
    [(1, "grouped_mm", [0]), (8, "grouped_mm", list(range(8))), (9, "grouped_mm", [0, 4, 8]),
     (9, "eager", list(range(9)))],
)  # fmt: skip
def test_the_steps_that_are_traced(steps: int, experts: Any, traced: list[int]) -> None:
    assert sorted(decoding.traced_steps(replace(SINGLE, new_tokens=steps, experts=experts))) == traced


def test_options_that_cannot_be() -> None:
    with pytest.raises(BadInput, match="weights need a device"):
        small_ocr(weights="folder")
    with pytest.raises(BadInput, match="time is measured"):
        small_ocr(profile=3)
    with pytest.raises(Problems, match="cannot be run"):
        small_ocr().check(replace(PAGE, experts="eager"))
    small_ocr(device="cpu").check(replace(PAGE, experts="eager"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu() -> None:
    target = small_ocr(device="cuda")
    with pytest.raises(Incomplete, match="no GPU"):
        target.build_run(PAGE, quiet)
