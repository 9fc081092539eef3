"""Prefills behind tokens that are in the cache: three sources agree, numbers by hand, and identities of chunks."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

import pytest

import costproof
from costproof.compare.compare import compare
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.metrics import KEPT_SCORES, SKIPPABLE, Metric
from costproof.ledger.node import Ledger
from costproof.ledger.workload import counted_line
from costproof.models.decoding.target import CausalTarget
from costproof.models.families.bert import Bert
from costproof.models.families.deepseek_v3 import DeepseekV3, DeepseekV3Config
from costproof.models.families.gemma3 import Gemma3
from costproof.models.families.gpt2 import Gpt2, Gpt2Config
from costproof.models.families.llama import Llama, LlamaConfig
from costproof.models.families.mistral import Mistral
from costproof.parametric.targets import evaluate_formulas
from costproof.run.peaks import measure_peaks
from costproof.views.describe import workload_line
from tests.models.test_families import GPT2, SIZES, SOURCES, TARGETS, exact
from tests.models.test_latents import GROUPS, V2, V3
from tests.models.test_mixtures import GPT_OSS, MIXTRAL, QWEN3, read
from tests.support.variants import with_variants

ONE: Final = {"num_hidden_layers": 1}
KINDS: Final = ["sliding_attention", "full_attention"]
TWO: Final[dict[str, Any]] = {"sliding_window": 8, "num_hidden_layers": 2, "layer_types": KINDS}
"""A layer with a window of 8 keys and one without."""
MISTRAL: Final[dict[str, Any]] = {"model_type": "mistral", **SIZES, **ONE, "sliding_window": 9}
LLAMA: Final[dict[str, Any]] = {"model_type": "llama", **SIZES, **ONE}
V2_GROUPS: Final[dict[str, Any]] = {**V2, **GROUPS, "topk_method": "group_limited_greedy", "q_lora_rank": 5}

# The file, and the run: 20 tokens behind 12, and 2 steps, unless it says else.
CASES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "llama": (LLAMA, {"batch": 2}),
    "llama, eager": (LLAMA, {"attention": "eager", "logits": "last"}),
    "llama, a cache in eight bits": (LLAMA, {"kv_dtype": "fp8", "batch": 2}),
    "llama, one token": (LLAMA, {"text_tokens": 1, "dtype": "float32"}),
    "llama, as many as before": (LLAMA, {"past": 20, "batch": 20}),
    "llama, behind one token": (LLAMA, {"past": 1}),
    "qwen2": ({"model_type": "qwen2", **SIZES, **ONE}, {"logits": "last"}),
    "qwen2, window, eager": (
        {"model_type": "qwen2", **SIZES, **TWO, "use_sliding_window": True}, {"attention": "eager"},
    ),
    "qwen3": ({"model_type": "qwen3", **SIZES, **ONE}, {"batch": 2}),
    "mistral, no window": ({**MISTRAL, "sliding_window": None}, {}),
    "mistral, full window": (MISTRAL, {"batch": 2}),
    "mistral, full window, one token": (MISTRAL, {"text_tokens": 1}),
    "mistral, full window, eager": (
        MISTRAL, {"attention": "eager", "logits": "last"},
    ),
    "mistral, filled by the prompt": ({**MISTRAL, "sliding_window": 16}, {"batch": 2}),
    "mistral, filled by the prompt to the last": ({**MISTRAL, "sliding_window": 33}, {}),
    "mistral, filled by a prompt alone": ({**MISTRAL, "sliding_window": 21}, {"past": 0}),
    "mistral, filled by one token": (
        {**MISTRAL, "sliding_window": 14}, {"text_tokens": 1},
    ),
    "mistral, filled by the prompt, eager": (
        {**MISTRAL, "sliding_window": 16}, {"attention": "eager"},
    ),
    "mistral, window not filled": ({**MISTRAL, "sliding_window": 64}, {"batch": 2}),
    "mistral, window not filled, short": (
        MISTRAL, {"past": 2, "text_tokens": 3, "batch": 3},
    ),
    "gemma": ({"model_type": "gemma", **SIZES, **ONE}, {"batch": 2}),
    "gemma2": ({"model_type": "gemma2", **SIZES, **TWO}, {"batch": 2}),
    "gemma2, filled by the prompt": ({"model_type": "gemma2", **SIZES, **TWO, "sliding_window": 16}, {}),
    "gemma3": ({"model_type": "gemma3_text", **SIZES, **TWO}, {"batch": 2}),
    "gemma3, filled by the prompt": ({"model_type": "gemma3_text", **SIZES, **TWO, "sliding_window": 16}, {}),
    "gemma3, eager": ({"model_type": "gemma3_text", **SIZES, **TWO}, {"attention": "eager", "dtype": "float32"}),
    "gpt2": ({**GPT2, "n_layer": 1}, {"batch": 2}),
    "gpt2, eager": ({**GPT2, "n_layer": 1}, {"attention": "eager"}),
    "mixtral": ({**MIXTRAL, **ONE}, {"batch": 2}),
    "mixtral, batched": ({**MIXTRAL, **ONE, "sliding_window": 16}, {"experts": "batched_mm", "logits": "last"}),
    "qwen3_moe": ({**QWEN3, **ONE}, {"batch": 2}),
    "gpt_oss": ({**GPT_OSS, **TWO}, {"batch": 2}),
    "gpt_oss, filled by the prompt": ({**GPT_OSS, **TWO, "sliding_window": 16}, {}),
    "deepseek_v2": ({**V2, **ONE, "first_k_dense_replace": 0}, {"batch": 2}),
    "deepseek_v2, eager": (V2_GROUPS, {"attention": "eager"}),
    "deepseek_v3": ({**V3, **ONE, "first_k_dense_replace": 0}, {"batch": 2, "logits": "last"}),
    "deepseek_v3, few tokens": ({**V3, **ONE}, {"text_tokens": 2, "past": 40}),
    "deepseek_v3, absorbed": ({**V3, **ONE}, {"decoding": "absorbed"}),
    "deepseek_v3, absorbed, one token": ({**V3, **ONE}, {"decoding": "absorbed", "text_tokens": 1}),
    "deepseek_v3, eager": ({**V3, **ONE}, {"attention": "eager"}),
}  # fmt: skip
ALWAYS: Final = (
    "gemma3, filled by the prompt",
    "mistral, full window",
    "mistral, filled by a prompt alone",
    "deepseek_v3, few tokens",
    "llama, a cache in eight bits",
)


@pytest.mark.slow
@pytest.mark.parametrize("case", with_variants(CASES, ALWAYS))
@pytest.mark.usefixtures("one_process")
def test_three_sources_agree(case: str, tmp_path: Path, *, thorough: bool) -> None:
    file, run = CASES[case]
    exact(file, {"past": 12, **run}, tmp_path, SOURCES if thorough or case == ALWAYS[0] else SOURCES[:2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        {**LLAMA, "attention_bias": True},
        pytest.param({**GPT_OSS, **TWO}, marks=pytest.mark.thorough),
        pytest.param({"model_type": "gemma3_text", **SIZES, **TWO}, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.usefixtures("one_process")
def test_the_mask_of_a_single_token_hides_nothing(data: dict[str, Any], tmp_path: Path) -> None:
    """A prompt of one token has one pair, itself: a kernel can skip no bytes of its value."""
    exact(data, {"text_tokens": 1, "attention": "eager"}, tmp_path, SOURCES)


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_a_real_run_fills_its_cache_first(tmp_path: Path) -> None:
    """The window of 8 keys is filled by the prompt. A real run does not give unfused bytes."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gemma3_text", **SIZES, **TWO}), encoding="utf-8")
    run: Any = {"past": 5, "text_tokens": 6, "new_tokens": 2, "run": "cpu", "dtype": "float32"}
    compared = compare(costproof.capture("gemma3", config=path, sources=("analytic", "dynamic"), **run))
    assert {f.metric for f in compared.findings if f.status != "exact"} == {"unfused_bytes"}
    assert {f.status for f in compared.findings} == {"exact", "analytic-only"}


SMALL: Final = Llama(LlamaConfig(32, 48, 2, 4, 2, 12, 64, 4096))
ONE_HEAD: Final = Llama(LlamaConfig(32, 48, 1, 1, 1, 2, 64, 4096))
WINDOW: Final = Mistral(Mistral.default().config.__class__(32, 48, 1, 4, 2, 12, 64, 4096, window=8))


def count(target: CausalTarget[Any], **run: Any) -> Ledger:
    return evaluate_formulas(target, target.workload(**{"new_tokens": 0, **run}))


def kinds(ledger: Ledger, metric: Metric) -> dict[str, int]:
    """The metric of a prefill by kind of operator."""
    found: dict[str, int] = {}
    for node in ledger.nodes:
        if node.stage == "prefill" and node.cost(metric):
            found[node.kind] = found.get(node.kind, 0) + (node.cost(metric) or 0)
    return found


def skippable(ledger: Ledger, stage: str) -> int:
    return sum(node.cost(SKIPPABLE) or 0 for node in ledger.nodes if node.stage == stage)


def test_a_chunk_by_hand() -> None:
    """5 tokens behind 7, in 2 layers of 4 heads of 12, with 2 heads of keys and values, 2 bytes an element."""
    ledger = count(SMALL, text_tokens=5, past=7)
    token = 2 * (32 * 48 + 2 * 32 * 24 + 48 * 32 + 3 * 32 * 48) + 32 * 64
    assert kinds(ledger, "flops") == {"linear": 2 * 5 * token, "attention": 2 * 4 * 4 * 12 * 5 * 12}
    assert kinds(ledger, KEPT_SCORES) == {"attention": 2 * 4 * (5 * 7 + 5 * 6 // 2)}
    assert ledger.total("kv_read_bytes") == 2 * 7 * 2 * 2 * 12 * 2
    assert ledger.total("kv_cache_bytes") == 2 * 5 * 2 * 2 * 12 * 2


@pytest.mark.parametrize(
    ("past", "tokens", "keys", "kept", "read", "written"),
    [
        (20, 5, 12, 5 * 8, 7, 0),
        (7, 5, 12, 5 * 8, 7, 0),
        (4, 5, 9, 5 + 6 + 7 + 8 + 8, 4, 3),
        (4, 3, 7, 5 + 6 + 7, 4, 3),
        (4, 2, 6, 5 + 6, 4, 2),
        (4, 20, 24, 5 + 6 + 7 + 17 * 8, 4, 3),
    ],
)
def test_a_chunk_in_a_window_by_hand(past: int, tokens: int, keys: int, kept: int, read: int, written: int) -> None:
    """A layer with a window of 8 keys: its cache holds 7 tokens."""
    ledger = count(WINDOW, text_tokens=tokens, past=past)
    assert kinds(ledger, "flops")["attention"] == 4 * 4 * 12 * tokens * keys
    assert kinds(ledger, KEPT_SCORES) == {"attention": 4 * kept}
    assert ledger.total("kv_read_bytes") == read * 2 * 2 * 12 * 2
    assert ledger.total("kv_cache_bytes") == written * 2 * 2 * 12 * 2


def test_pairs_and_caches_by_counting() -> None:
    """200 random pasts, prompts and windows: query j of the prompt sees the last keys up to its own."""
    rng = random.Random(41)
    for _ in range(200):
        past, tokens, window = rng.randint(1, 60), rng.randint(1, 60), rng.choice((0, rng.randint(2, 70)))
        kind = Mistral.default().config.__class__
        target = Mistral(kind(32, 48, 1, 1, 1, 2, 64, 4096, window=window)) if window else ONE_HEAD
        ledger = count(target, past=past, text_tokens=tokens)
        most = window - 1 if window else past + tokens
        cached = list(range(past))[-most:] if most else []
        keys = [*cached, *range(past, past + tokens)]
        seen = [k for q in range(past, past + tokens) for k in keys if k <= q and (not window or q - k < window)]
        assert kinds(ledger, KEPT_SCORES) == {"attention": len(seen)}, (past, tokens, window)
        assert kinds(ledger, "flops")["attention"] == 4 * 2 * tokens * len(keys)
        assert ledger.total("kv_read_bytes") == len(cached) * 2 * 2 * 2
        assert ledger.total("kv_cache_bytes") == (len(keys[-most:]) - len(cached)) * 2 * 2 * 2


@pytest.mark.parametrize("target", [SMALL, WINDOW], ids=("llama", "mistral"))
@pytest.mark.parametrize("chunks", [(3, 9, 1, 11), (6, 6, 6, 6), (23, 1), (1, 23)])
def test_chunks_sum_to_the_prompt(target: CausalTarget[Any], chunks: tuple[int, ...]) -> None:
    """Products of weights, pairs that the mask leaves, and what is written to the cache.

    All scores of a chunk are its tokens by all keys before and in it, so that their sum leaves out the keys of later
    chunks, which the whole prompt computes and hides.
    """
    whole = count(target, text_tokens=24)
    parts = [count(target, text_tokens=n, past=sum(chunks[:i])) for i, n in enumerate(chunks)]
    assert sum(kinds(p, "flops")["linear"] for p in parts) == kinds(whole, "flops")["linear"]
    assert sum(kinds(p, KEPT_SCORES)["attention"] for p in parts) == kinds(whole, KEPT_SCORES)["attention"]
    assert sum(p.total("kv_cache_bytes") or 0 for p in parts) == whole.total("kv_cache_bytes")
    pair = 4 * 4 * 12 * target.config.layers
    keys = [min(sum(chunks[:i]), 7 if target is WINDOW else 24) + n for i, n in enumerate(chunks)]
    computed = sum(n * k for n, k in zip(chunks, keys, strict=True))
    assert sum(kinds(p, "flops")["attention"] for p in parts) == pair * computed < pair * 24**2


def test_a_prefix_hit_is_the_prompt_without_the_pairs_below_it() -> None:
    whole, before, behind = (count(SMALL, text_tokens=n, past=p) for n, p in ((24, 0), (10, 0), (14, 10)))
    for metric in ("kv_cache_bytes", KEPT_SCORES):
        assert behind.total(metric) == (whole.total(metric) or 0) - (before.total(metric) or 0)
    assert kinds(whole, KEPT_SCORES)["attention"] - kinds(behind, KEPT_SCORES)["attention"] == 2 * 4 * 10 * 11 // 2


@pytest.mark.parametrize("family", TARGETS, ids=lambda t: t.__name__)
@pytest.mark.parametrize("past", [9, 600])
def test_one_token_behind_others_is_a_decode_step(family: type[CausalTarget[Any]], past: int) -> None:
    target = family.default()
    run = {"attention": "eager"} if target.attentions[0] == "eager" else {}
    chunk = count(target, text_tokens=1, past=past, **run)
    step = count(target, text_tokens=past, new_tokens=1, **run)
    for metric in (
        "flops", "vector_flops", "kept_scores", "kv_read_bytes", "kv_cache_bytes", "weight_read_bytes",
        "input_bytes", "output_bytes", "unfused_bytes", "floor_bytes",
    ):  # fmt: skip
        assert chunk.stage_total("prefill", metric) == step.stage_total("decode", metric), metric
    assert skippable(chunk, "prefill") == skippable(step, "decode")


def test_latents_of_the_past_are_expanded() -> None:
    target = DeepseekV3(read(DeepseekV3Config, V3))
    ledger = count(target, text_tokens=5, past=7)
    expansion = {n.cost("flops") for n in ledger.nodes if n.module.endswith("kv_b_proj") and n.cost("flops")}
    assert expansion == {2 * (5 + 7) * 10 * 4 * (7 + 9)}
    assert ledger.total("kv_read_bytes") == 2 * 7 * (10 + 6) * 2


@pytest.mark.parametrize(("tokens", "saves"), [(1, True), (2, True), (100, False)])
def test_absorbing_saves_work_for_few_tokens(tokens: int, *, saves: bool) -> None:
    """Behind 40 tokens: the expansion of 40 latents, less 2 x 10 - 16 more elements of a score for every pair."""
    target = DeepseekV3(read(DeepseekV3Config, V3))
    spared = skippable(count(target, text_tokens=tokens, past=40), "prefill")
    pairs = tokens * 40 + tokens * (tokens + 1) // 2
    saved = 2 * 40 * 10 * 4 * 16 - 2 * 4 * pairs * (2 * 10 - 16)
    assert spared == 2 * max(0, saved)
    assert (saved > 0) == saves


def test_steps_go_on_behind_past_and_prompt() -> None:
    work = SMALL.workload(text_tokens=5, past=7, new_tokens=3)
    prompt, steps = SMALL.invocations(work)
    assert (prompt.symbols["C"], prompt.symbols["S"], steps.symbols["P"]) == (7, 5, 12)
    alone = evaluate_formulas(SMALL, SMALL.workload(text_tokens=12, new_tokens=3))
    behind = evaluate_formulas(SMALL, work)
    for metric in ("flops", "kv_read_bytes", "kv_cache_bytes", "floor_bytes"):
        assert behind.stage_total("decode", metric) == alone.stage_total("decode", metric)


def test_no_past_is_the_same_run() -> None:
    assert SMALL.workload(past=0) == SMALL.workload()
    assert "C" not in SMALL.invocations(SMALL.workload())[0].symbols


def test_reports_say_the_past() -> None:
    work = SMALL.workload(text_tokens=5, past=7, new_tokens=0)
    assert "a past of 7 tokens in the cache" in counted_line(SMALL.info(), work)
    assert workload_line(work).startswith("5 text tokens after 7 tokens in the cache")


@pytest.mark.parametrize(
    ("target", "settings", "where"),
    [
        (SMALL, {"past": -1}, "--past"),
        (SMALL, {"past": 4090, "text_tokens": 5, "new_tokens": 2}, "--text-tokens, --seq-len, --new-tokens, --past"),
        (WINDOW, {"past": 3, "text_tokens": 2, "new_tokens": 3}, "--text-tokens, --new-tokens"),
        (Bert.default(), {"past": 3}, "--past"),
    ],
)
def test_runs_that_are_refused(target: Any, settings: dict[str, Any], where: str) -> None:
    with pytest.raises((Problems, BadInput)) as caught:
        target.workload(**settings)
    found = caught.value.problems if isinstance(caught.value, Problems) else (caught.value,)
    assert [p.where for p in found] == [where]


PEAKS: Final[dict[str, tuple[CausalTarget[Any], dict[str, Any]]]] = {
    "llama": (SMALL, {}),
    "llama, batch": (SMALL, {"batch": 2, "logits": "last"}),
    "llama, float32": (SMALL, {"dtype": "float32"}),
    "llama, eager": (SMALL, {"attention": "eager", "batch": 2}),
    "llama, one token": (SMALL, {"text_tokens": 1, "past": 300}),
    "llama, long": (SMALL, {"past": 2000}),
    "mistral, full window": (WINDOW, {"batch": 2}),
    "mistral, filled by the prompt": (WINDOW, {"past": 4, "text_tokens": 90}),
    "mistral, filled, eager": (WINDOW, {"past": 4, "attention": "eager"}),
    "mistral, not filled": (WINDOW, {"past": 3, "text_tokens": 2}),
    "gemma3": (
        Gemma3(Gemma3.default().config.__class__(32, 48, 2, 4, 2, 12, 64, 4096, window=8, pattern="wf")),
        {"batch": 2},
    ),
    "deepseek": (DeepseekV3(read(DeepseekV3Config, V3)), {"batch": 2}),
    "deepseek, eager": (DeepseekV3(read(DeepseekV3Config, V3)), {"attention": "eager"}),
    "deepseek, long": (DeepseekV3(read(DeepseekV3Config, V3)), {"past": 2000}),
    "deepseek, long, batch, float32": (
        DeepseekV3(read(DeepseekV3Config, V3)), {"past": 2000, "batch": 2, "dtype": "float32"},
    ),
    "deepseek, long, equal widths": (DeepseekV3(read(DeepseekV3Config, {**V3, "v_head_dim": 13})), {"past": 2000}),
    "gpt2, long": (Gpt2(Gpt2Config(32, 48, 2, 4, 4, 8, 64, 4096)), {"past": 2000, "batch": 2}),
}  # fmt: skip


MORE_PEAKS: Final = ("llama", "llama, float32", "llama, long", "mistral, not filled", "deepseek, long")
"""Thorough: each choice of theirs is in another case, with the same attention, or with another one."""


@pytest.mark.slow
@pytest.mark.parametrize("case", with_variants(PEAKS, PEAKS.keys() - {*MORE_PEAKS}))
def test_the_peak_by_formula_is_that_of_the_graph(case: str) -> None:
    target, run = PEAKS[case]
    work = target.workload(**{"text_tokens": 24, "past": 40, "new_tokens": 1, **run})
    for call in measure_peaks(target, work, eager=False, forms=False):
        assert call.graph is not None
        assert call.formula == call.graph.bytes, (call.stage, call.formula, call.graph.bytes)


def test_fits_holds_the_cache_of_the_past() -> None:
    """32 layers of 8 heads of 128, keys and values, 2 bytes."""
    token = 32 * 8 * 128 * 2 * 2
    found = costproof.fits("llama-3.1-8b@chat,text_tokens=100,past=3000,new_tokens=0", memory="80GB")
    assert found.cache_bytes == 3100 * token
    stepping = costproof.fits("llama-3.1-8b@chat,text_tokens=100,past=3000,new_tokens=7", memory="80GB")
    assert stepping.cache_bytes == 3107 * token
    (batch,) = (x for x in found.limits if (x.setting, x.held) == ("batch", "weights and cache"))
    assert batch.at == (80 * 10**9 - (found.lasting_bytes or 0)) // (3100 * token) + 1


def test_a_sweep_over_pasts() -> None:
    """Without a past, with one, and for one token, whose formulas differ."""
    over = {"past": "0,100,4000", "text_tokens": "1,64"}
    frame = costproof.sweep("llama", over, metrics=["flops", KEPT_SCORES], stages=["prefill"], new_tokens=0).frame()
    target = Llama.default()
    for row in frame.to_dict("records"):
        ledger = count(target, past=int(row["past"]), text_tokens=int(row["text_tokens"]))
        for metric in ("flops", KEPT_SCORES):
            assert row[f"prefill.{metric}"] == ledger.stage_total("prefill", metric), row
    assert len(frame) == 6
