"""Ranks of models that read pages: hand arithmetic, three sources on small configurations, and refusals."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Final

import pytest

from costproof.ledger.errors import Problems
from costproof.ledger.mesh import Parallel
from costproof.models.families.deepseek_ocr.config import ClipConfig, OcrConfig
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.pages.config import PageDecoderConfig, SamConfig
from costproof.models.registry import load_target
from costproof.parametric.targets import count_ranks, evaluate_formulas
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared

SMALL: Final = DeepseekOcr(
    OcrConfig(
        sam=SamConfig(
            hidden=32, layers=2, heads=2, mlp=16, image=64, patch=4, window=3, global_layers=(1,), neck=8,
            downsample=(12, 32),
        ),
        clip=ClipConfig(hidden=32, layers=1, heads=2, mlp=16, image=16, patch=4),
        text=PageDecoderConfig(
            hidden=64, layers=2, dense_layers=1, heads=4, kv_heads=4, intermediate=48, experts=8, topk=2,
            moe_intermediate=32, shared_experts=2, vocab=101, max_positions=2048,
        ),
        image_token=3,
    )
)  # fmt: skip
PAGE: Final[dict[str, Any]] = {"preset": "gundam:2x1", "base_size": 64, "image_size": 32, "text_tokens": 5}
TEXT: Final[dict[str, Any]] = {"preset": "text-only", "text_tokens": 12}


def ranks(model: Any, **settings: Any) -> Parallel:
    """Return the ranks of a run with two decode steps."""
    work = model.workload(**{"new_tokens": 2, **settings})
    found = count_ranks(model, work, evaluate_formulas(model, work))
    assert found.problems() == []
    return found


def test_a_rank_of_deepseek_ocr_by_hand() -> None:
    """5 of 10 heads, 3,424 of 6,848 and 448 of 896 columns, 64,640 of 129,280 entries; routers, norms, towers whole."""
    found = ranks(load_target("deepseek-ocr"), **TEXT, tp=2)
    width, layers, routed = 1280, 12, 11
    attention = layers * 4 * width * 5 * 128
    dense = 3 * width * 3424
    experts = routed * 64 * 3 * width * 448
    shared = routed * 3 * width * 2 * 448  # two shared experts are one MLP of twice the width
    tables = 2 * 64_640 * width
    whole = routed * 64 * width + (2 * layers + 1) * width + 2 * width  # routers, norms, newline and separator
    held = attention + dense + experts + shared + tables + whole
    assert held == 1_467_836_160
    (row,) = found.ranks
    assert (row.ranks, row.stages["prefill"]["params"]) == ((0, 1), held)
    towers = sum(row.stages[stage]["params"] for stage in ("sam", "clip", "projector"))
    assert towers + whole + 2 * (held - whole) == found.one_device[""]["params"] == 3_335_504_128  # as published
    copies = {d.what: d.amount for d in found.duplicates if (d.stage, d.metric) == ("", "params")}
    assert copies == {
        "routers": routed * 64 * width,
        "norms": 25 * width,
        "towers and projectors, which the plan leaves whole": towers + 2 * width,
    }


@pytest.mark.parametrize(("preset", "tokens"), [("text-only", 12), ("tiny", 16), ("gundam:2x2", 16)])
def test_what_a_rank_of_deepseek_ocr_sends_by_hand(preset: str, tokens: int) -> None:
    """A sum sends 2 (2 - 1) / 2 of 1,280 elements of 2 bytes a token; the gather half of 129,280 columns of 2 bytes.

    A view of n x n tokens has n newlines, and a page one separator; of crops every row of tokens has a newline.
    """
    found = ranks(load_target("deepseek-ocr"), preset=preset, text_tokens=tokens, tp=2)
    rows = {"text-only": 0, "tiny": 8 * 9 + 1, "gundam:2x2": 16 * 17 + 1 + 20 * 21}[preset] + tokens
    sent = {c.module.rpartition(".")[2] or c.module: c for c in found.collectives if c.stage == "prefill"}
    gather = sent.pop("lm_head")
    each = rows * 1280 * 2
    expected = {"embed_tokens": 1, "o_proj": 12, "experts": 11}
    assert {name: (sent[name].count, sent[name].sent_bytes) for name in expected} == {
        name: (count, count * each) for name, count in expected.items()
    }
    # Of the first layer's MLP, and of the shared experts of the 11 others.
    down = [c for c in found.collectives if c.stage == "prefill" and c.module.endswith("down_proj")]
    assert sorted((c.count, c.sent_bytes) for c in down) == [(1, each), (11, 11 * each)]
    assert all(c.kind == "all_reduce" for c in (*sent.values(), *down))
    assert (gather.kind, gather.count, gather.sent_bytes) == ("all_gather", 1, rows * 64_640 * 2)


MESHES: Final = {
    "text, tp 2": {**TEXT, "tp": 2},
    "page, tp 2 x ep 2": {**PAGE, "tp": 2, "ep": 2, "rank": 1},
    "page, dp 2 x ep 2": {**PAGE, "dp": 2, "ep": 2, "batch": 3, "rank": 1},
}
MORE: Final = {
    "one token, tp 2": {**TEXT, "text_tokens": 1, "tp": 2},
    "text, tp 2 x ep 2": {**TEXT, "tp": 2, "ep": 2},
    "text, dp 2": {**TEXT, "dp": 2, "batch": 3, "rank": 1},
    "page, tp 2": {**PAGE, "tp": 2, "rank": 1},
    "page, dp 2": {**PAGE, "dp": 2, "batch": 2},
    "page, tp 2 x dp 2 x ep 4": {**PAGE, "tp": 2, "dp": 2, "ep": 4, "batch": 2, "rank": 3},
    "page, eager": {
        **PAGE, "tp": 2, "dp": 2, "batch": 3, "attention": "eager", "logits": "last", "dtype": "float32",
        "experts": "batched_mm",
    },
    "pairs": {
        **PAGE, "new_tokens": 0, "dp": 2, "ep": 2, "batch": 2, "dispatch": "all-to-all", "pairs": "60,12;11,61",
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MESHES, *(pytest.param(name, marks=pytest.mark.thorough) for name in MORE)])
def test_three_sources_of_a_rank_agree(name: str) -> None:
    work = SMALL.workload(**{"new_tokens": 2, **{**MESHES, **MORE}[name]})
    report = count_sources(Prepared(SMALL, work, ("analytic", "static", "dynamic")))
    assert [f.id for f in report.discrepancy.findings if f.status != "exact"] == []
    assert report.discrepancy.verdict == "exact"
    sent = {"comm_bytes", "comm_payload_bytes", "messages"} if work.mesh.tp * work.mesh.ep > 1 else set()
    assert {f.metric for f in report.discrepancy.findings} >= {"flops", "kv_cache_bytes", *sent}


def test_random_configurations_sum_to_one_device() -> None:
    """Sums of all ranks are checked where they are made, and counted again."""
    rng, legal = random.Random("ranks of pages"), 0
    for _ in range(40):
        kv_heads, groups = rng.choice((1, 2, 4)), rng.choice((1, 2, 4))
        text = replace(
            SMALL.config.text, hidden=16 * kv_heads * groups, heads=kv_heads * groups, kv_heads=kv_heads,
            layers=3, dense_layers=rng.randint(0, 2), intermediate=12 * rng.randint(1, 4), experts=rng.choice((4, 8)),
            moe_intermediate=8 * rng.randint(1, 4), shared_experts=rng.randint(1, 3), vocab=rng.randint(90, 110),
        )  # fmt: skip
        model = replace(SMALL, config=replace(SMALL.config, text=text))
        tp, dp = rng.choice((1, 2, 4)), rng.choice((1, 2))
        mesh: dict[str, Any] = {"tp": tp, "dp": dp, "ep": rng.choice((1, tp, tp * dp)), "rank": rng.randrange(tp * dp)}
        run = {**rng.choice((PAGE, TEXT)), "batch": rng.randint(dp, 5), "logits": rng.choice(("all", "last"))}
        try:
            work = model.workload(**run, new_tokens=rng.randint(0, 2), **mesh)
        except Problems:
            continue
        if not work.mesh.one:
            ranks(model, **run, **mesh)
            legal += 1
    assert legal >= 15


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp": 4}, "a divisor of the 10 attention heads"),
        ({"tp": 10}, "elements of an MLP's inner width"),
        ({"ep": 2}, "a multiple of tp 1 that divides"),
        ({"dp": 2}, "at least 2"),
        ({"rank": 1}, "0, since there is one device"),
        ({"pp": 2}, "this axis is not counted yet"),
        ({"fsdp": 2, "batch": 2}, "this axis is not counted yet"),
        ({"cp": 2}, "this axis is not counted yet"),
        ({"tp": 2, "plan": "vllm"}, "only the plan of transformers"),
        ({"tp": 2, "preset": "text-only", "rows": "3,4"}, "a batch of unequal rows is counted on one device only"),
        ({"dp": 2, "ep": 2, "batch": 2, "new_tokens": 0, "dispatch": "all-to-all", "pairs": "96,0;0,96"},
         "each with the sum 7230"),
    ],
)  # fmt: skip
def test_meshes_that_are_refused(given: dict[str, Any], said: str) -> None:
    """A page has 16 * 17 + 1 + 20 * 21 image tokens and 512 of text: 1,205, of 6 experts each."""
    with pytest.raises(Problems) as found:
        load_target("deepseek-ocr").workload(**given)
    assert said in str(found.value)


def test_a_rank_is_not_compared_with_the_published_checkpoint() -> None:
    model: Any = load_target("deepseek-ocr")
    for mesh, sources in (({}, {"analytic", "checkpoint"}), ({"tp": 2}, {"analytic"})):
        report = count_sources(Prepared(model, model.workload(**TEXT, **mesh), ("analytic",)))
        assert {ledger.source for ledger in report.capture.ledgers} == sources
        assert not [f for f in report.discrepancy.findings if f.status == "unexplained"]


@pytest.mark.parametrize(("family", "size"), [("pages", 36), ("deepseek-v3", 20)])
def test_shared_experts_that_ranks_cannot_divide(family: str, size: int) -> None:
    """Whole experts of any width lie on 8 ranks, but the shared ones, which every token passes, are split over tp."""
    model: Any
    if family == "pages":
        changed = replace(SMALL.config.text, heads=8, kv_heads=8, intermediate=64, moe_intermediate=size // 2)
        model = replace(SMALL, config=replace(SMALL.config, text=changed))
    else:
        model = load_target(family)
        model = model.with_keys({"expert_width": size, "shared": 1})
    with pytest.raises(Problems, match=f"a divisor of the {size} elements of the shared experts' inner width"):
        model.workload(text_tokens=5, tp=8, ep=8, **({"preset": "text-only"} if family == "pages" else {}))


def test_a_tower_that_the_plan_splits_is_refused() -> None:
    model: Any = load_target("deepseek-ocr2")
    with pytest.raises(Problems, match="also splits the second tower"):
        model.workload(tp=2)
    with pytest.raises(Problems, match="the mask of this model's second tower"):
        model.workload(dp=2, ep=2, batch=2)
    assert ranks(model, preset="text-only", dp=2, ep=2, batch=2).mesh.ep == 2
    assert ranks(model, dp=2, batch=3).mesh.dp == 2
