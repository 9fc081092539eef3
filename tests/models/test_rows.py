"""Batches of unequal rows: three sources agree, numbers by counting pairs, identities, and files of schedulers."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import costproof
from costproof.compare.compare import compare
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.metrics import KEPT_SCORES, Metric
from costproof.ledger.node import Ledger
from costproof.ledger.workload import BatchRow, Logits, Workload
from costproof.models.decoding.decoder import PACKED
from costproof.models.decoding.target import CausalTarget
from costproof.models.families.bert import Bert
from costproof.models.families.deepseek_v3 import DeepseekV3, DeepseekV3Config
from costproof.models.families.gpt2 import Gpt2, Gpt2Config
from costproof.models.families.gpt_oss import GptOss, GptOssConfig
from costproof.models.families.llama import Llama, LlamaConfig
from costproof.models.families.mistral import Mistral
from costproof.models.families.qwen3_moe import Qwen3Moe, Qwen3MoeConfig
from costproof.models.registry import load_target
from costproof.models.settings import rows_of
from costproof.parametric.targets import evaluate_formulas, live_peaks
from costproof.run.operands import target_with_settings
from costproof.views.describe import workload_line
from tests.models.test_deepseek_ocr2 import FILE as OCR2
from tests.models.test_families import GPT2, SIZES, SOURCES, TARGETS
from tests.models.test_latents import V2, V3
from tests.models.test_llava import FILE as LLAVA_FILE
from tests.models.test_mixtures import GPT_OSS, MIXTRAL, QWEN3, read
from tests.models.test_past import LLAMA, MISTRAL, ONE, TWO
from tests.models.test_qwen2_5_vl import FILE as QWEN_VL
from tests.support.variants import with_variants

MIXED: Final = "20, 3x1+8, 5+7/all"
"""A prompt, three steps, and drafted tokens that are verified."""
SIDES: Final = "20, 3x1+8, 5+7/2, 3+2, 2x2+30, 1+3"
"""Rows on all sides of a window of 8 keys."""

# The file, the rows, and what else the run says.
CASES: Final[dict[str, tuple[dict[str, Any], str, dict[str, Any]]]] = {
    "llama": (LLAMA, MIXED, {}),
    "llama, eager": (LLAMA, MIXED, {"attention": "eager"}),
    "llama, equal steps": (LLAMA, "3x1+5", {"kv_dtype": "fp8"}),
    "llama, prompts, all logits": (LLAMA, "20, 2x4", {"logits": "all"}),
    "qwen2, window": ({"model_type": "qwen2", **SIZES, **TWO, "use_sliding_window": True}, SIDES, {}),
    "qwen3": ({"model_type": "qwen3", **SIZES, **ONE}, MIXED, {"dtype": "float32"}),
    "mistral": (MISTRAL, SIDES, {}),
    "mistral, eager": (MISTRAL, SIDES, {"attention": "eager"}),
    "gemma": ({"model_type": "gemma", **SIZES, **ONE}, MIXED, {}),
    "gemma2": ({"model_type": "gemma2", **SIZES, **TWO}, SIDES, {}),
    "gemma3": ({"model_type": "gemma3_text", **SIZES, **TWO}, SIDES, {}),
    "gpt2": ({**GPT2, "n_layer": 1}, MIXED, {}),
    "mixtral": ({**MIXTRAL, **ONE}, MIXED, {}),
    "mixtral, batched": ({**MIXTRAL, **ONE}, MIXED, {"experts": "batched_mm"}),
    "qwen3_moe": ({**QWEN3, **ONE}, MIXED, {}),
    "gpt_oss": ({**GPT_OSS, **TWO}, SIDES, {}),
    "deepseek_v2": ({**V2, **ONE, "first_k_dense_replace": 0}, MIXED, {}),
    "deepseek_v3": ({**V3, **ONE}, MIXED, {}),
    "deepseek_v3, prompts": ({**V3, **ONE}, "20, 2x4", {}),
    "deepseek_v3, eager": ({**V3, **ONE}, "2x20+5, 2+40, 1+40", {"attention": "eager"}),
    "deepseek_v3, absorbed": ({**V3, **ONE}, MIXED, {"decoding": "absorbed"}),
    "deepseek_v3, absorbed, two prompts": ({**V3, **ONE}, "20, 3, 3x1+8", {"decoding": "absorbed"}),
    "deepseek_v3, absorbed, only steps": ({**V3, **ONE}, "3x1+8, 1+9", {"decoding": "absorbed"}),
}  # fmt: skip
OCR: Final[dict[str, Any]] = {
    "model_type": "unlimited_ocr", "image_token_id": 60,
    "vision_config": {
        "sam_config": {
            "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 40, "image_size": 64,
            "patch_size": 4, "window_size": 3, "output_channels": 10, "downsample_channels": [14, 20],
            "global_attn_indexes": [],
        },
        "encoder_config": {
            "hidden_size": 20, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 80,
            "image_size": 32, "patch_size": 2,
        },
    },
    "text_config": {
        "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 64, "max_position_embeddings": 4096, "n_routed_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 16, "n_shared_experts": 2,
        "mlp_layer_types": ["dense", "sparse"],
    },
}  # fmt: skip
"""DeepSeek-OCR with features of 16 pixels."""
NAMES: Final = {"unlimited_ocr": "deepseek-ocr"}
PAGED: Final = "40, 3x1+8, 35+7/all"
"""A page in a prompt of 40 tokens, three steps, and another page in 35 tokens behind 7, all with logits."""
PAGES: Final[dict[str, Any]] = {"images": 2, "base_size": 64, "image_size": 32, "grid": "1x2"}
"""A view of 4 x 4 features and 1 x 2 crops of 2 x 2: 4 x 5 + 4 x 3 tokens with newlines, and a separator."""
CASES.update({"deepseek_ocr": (OCR, PAGED, PAGES), "deepseek_ocr, text": (OCR, MIXED, {"attention": "eager"})})
ALWAYS: Final = (
    "deepseek_ocr",
    "mistral", "llama", "qwen3", "gpt_oss", "deepseek_v3, absorbed", "mistral, eager", "deepseek_v3", "gpt2",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", with_variants(CASES, ALWAYS))
@pytest.mark.usefixtures("one_process")
def test_three_sources_agree(case: str, tmp_path: Path, *, thorough: bool) -> None:
    file, rows, run = CASES[case]
    traced = thorough or case in ("mistral", "deepseek_ocr")  # which has a form of its own on meta
    agree(file, rows, tmp_path, SOURCES if traced else SOURCES[:2], **run)


RANDOM: Final = ("llama", "mistral", "gpt2", "qwen3_moe", "gpt_oss", "deepseek_v3, absorbed")


@pytest.mark.thorough
@pytest.mark.parametrize("case", RANDOM)
@pytest.mark.usefixtures("one_process")
def test_random_batches_agree(case: str, tmp_path: Path) -> None:
    """100 random batches of six families in formula and graph, every tenth also in a run."""
    file, _, run = CASES[case]
    for i, rows in enumerate(random_batches()):
        agree(file, rows, tmp_path, SOURCES if i % 10 == 0 else SOURCES[:2], **run)


def random_batches() -> list[str]:
    rng = random.Random(4116)

    def row() -> str:
        new = rng.choice((1, 1, rng.randint(1, 20)))
        kept = rng.choice(("", "/all", f"/{rng.randint(1, new)}"))
        return f"{rng.randint(1, 3)}x{new}+{rng.choice((0, rng.randint(1, 30)))}{kept}"

    return [", ".join(row() for _ in range(rng.randint(1, 5))) for _ in range(100)]


def agree(file: dict[str, Any], rows: str, folder: Path, sources: tuple[str, ...], **run: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    compared = compare(costproof.capture(name_of(file), config=path, rows=rows, sources=sources, **run))
    wrong = [f for f in compared.findings if f.status != "exact"]
    assert (compared.verdict, wrong[:3]) == ("exact", [])
    assert {len(f.values) for f in compared.findings} == {len(sources)}
    assert PACKED not in ALL_ATTENTION_FUNCTIONS.valid_keys()


def name_of(file: dict[str, Any]) -> str:
    """The name of the target that reads a file."""
    kind = str(file["model_type"])
    return NAMES.get(kind, kind.removesuffix("_text").replace("_", "-"))


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_packed_rows_return_the_logits_of_separate_runs(tmp_path: Path) -> None:
    """The packed run with weights is compared with a forward of each row behind a cache that another one filled."""
    import torch

    from costproof.ledger.progress import silent
    from costproof.ledger.run import RunOptions
    from costproof.models.decoding.runs import drawn_ids

    text = "6, 3x1+9, 4+5/2, 2x2+12"
    target = WINDOW.with_options(RunOptions(device="cpu"))
    work = target.workload(rows=text, dtype="float32")
    model = target.build_run(work, silent).model
    (run,) = target.runs(model, work)
    packed = run.expected
    assert packed is not None
    assert run.expert_tokens == {}
    plain = target.workload(text_tokens=1, dtype="float32")
    alone = target.build_run(plain, silent).model
    alone.load_state_dict(model.state_dict())
    ids = drawn_ids(64, (sum(r.count * (r.past + r.new) for r in work.rows),), 0)
    found, start = [], 0
    for row in work.rows:
        length = row.past + row.new
        own = ids[start : start + row.count * length].view(row.count, length)
        start += row.count * length
        distance = torch.arange(length)[:, None] - torch.arange(length)
        seen = ((distance >= 0) & (distance < 8)).expand(row.count, 1, length, length)
        with torch.no_grad():
            logits = alone(input_ids=own, attention_mask=seen, use_cache=False).logits
        found.append(logits[:, length - row.logits :].reshape(-1, 64))
    assert packed.shape == (1, 1 + 3 + 2 + 2, 64)
    assert torch.allclose(packed[0], torch.cat(found), atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("one_process")
def test_packed_pages_return_the_logits_of_separate_runs(tmp_path: Path) -> None:
    """The first page is in the prompt, the second behind a prefix; each is run again with its own tokens alone."""
    import torch

    from costproof.ledger.progress import silent
    from costproof.ledger.run import RunOptions

    target = ocr(tmp_path).with_options(RunOptions(device="cpu"))
    work = target.workload(rows=PAGED, dtype="float32", **PAGES)
    model = target.build_run(work, silent).model
    (run,) = target.runs(model, work)
    assert run.expected is not None
    plain = target.workload("text-only", text_tokens=1, dtype="float32")
    alone = target.build_run(plain, silent).model
    alone.load_state_dict(model.state_dict())
    new, kwargs = run.kwargs["input_ids"][0], run.kwargs
    assert [int((new[a:b] == 60).sum()) for a, b in ((0, 40), (40, 43), (43, 78))] == [33, 0, 33]
    assert kwargs["position_ids"][0].tolist() == [*range(40), 8, 8, 8, *range(7, 42)]
    with torch.no_grad():
        logits = alone(
            input_ids=new[None, :40], pixel_values=kwargs["pixel_values"][:1], num_local_patches=[2],
            pixel_values_local=kwargs["pixel_values_local"][:2], patches_grid=[[1, 2]],
        ).logits  # fmt: skip
        assert torch.allclose(run.expected[0, 0], logits[0, -1], atol=1e-5)
        past = kwargs["past_key_values"].caches[2]
        assert past.get_seq_length() == 7
        logits = alone(
            input_ids=new[None, 43:], pixel_values=kwargs["pixel_values"][1:], num_local_patches=[2],
            pixel_values_local=kwargs["pixel_values_local"][2:], patches_grid=[[1, 2]], past_key_values=past,
            position_ids=kwargs["position_ids"][:, 43:],
            attention_mask=dict.fromkeys(
                ("full_attention", "reference_sliding_attention"), torch.ones(35, 42, dtype=torch.bool).tril(7)
            ),
        ).logits  # fmt: skip
    assert run.expected.shape == (1, 1 + 3 + 35, 64)
    assert torch.allclose(run.expected[0, 4:], logits[0], atol=1e-5)


def ocr(folder: Path, **text: int) -> Any:
    """The small DeepSeek-OCR with changes of its decoder."""
    path = folder / "config.json"
    path.write_text(json.dumps({**OCR, "text_config": {**OCR["text_config"], **text}}), encoding="utf-8")
    return load_target("deepseek-ocr", path)


def test_pages_in_rows_by_hand(tmp_path: Path) -> None:
    """78 tokens, of which 39 get logits; 40 x 40, 3 x 9 and 35 x 42 pairs, of which a mask leaves 820, 27 and 875.

    A dense layer of 56 and a mixture of three experts of 16 and a shared one of 32; 48 elements in four heads.
    """
    target = ocr(tmp_path)
    ledger = evaluate_formulas(target, target.workload(rows=PAGED, **PAGES))
    layers = 2 * 4 * 48 * 48 + 3 * 48 * 56 + 48 * 8 + 3 * 3 * 48 * 16 + 3 * 48 * 32
    pairs = 40 * 40 + 3 * 9 + 35 * 42
    flops = 2 * 78 * layers + 2 * 4 * 48 * pairs + 2 * 39 * 48 * 64
    assert ledger.stage_total("prefill", "flops") == flops == 7_419_264
    kept = 40 * 41 // 2 + 3 * 9 + 35 * 7 + 35 * 36 // 2
    assert kinds(ledger, KEPT_SCORES) == {"attention": 2 * 4 * kept}
    token = 2 * 2 * 48 * 2
    assert ledger.stage_total("prefill", "kv_cache_bytes") == 78 * token
    assert ledger.stage_total("prefill", "kv_read_bytes") == (3 * 8 + 7) * token
    # Two pages of 24 features, 33 tokens with newlines and separator, into the embeddings of 78 tokens.
    (glue,) = [n for n in ledger.nodes if (n.stage, n.module, n.kind) == ("prefill", "model", "") and n.invocation]
    assert (glue.cost("input_bytes"), glue.cost("output_bytes")) == (96 * (2 * 24 + 78), 96 * (2 * 33 + 78))


def test_towers_run_once_on_all_pages_of_rows(tmp_path: Path) -> None:
    """Two prompts of a page each are the batch of two pages, whose cosines and sines are those of one."""
    target = ocr(tmp_path)
    rows = evaluate_formulas(target, target.workload(rows="2x40/all", **PAGES))
    views = {name: value for name, value in PAGES.items() if name != "images"}
    batch = evaluate_formulas(target, target.workload(batch=2, text_tokens=7, new_tokens=0, **views))
    for stage in target.stages:
        for metric in rows.metrics:
            if stage != "prefill" or metric not in ("vector_flops", "input_bytes", "output_bytes", "unfused_bytes"):
                assert rows.stage_total(stage, metric) == batch.stage_total(stage, metric), (stage, metric)


@pytest.mark.parametrize(("rows", "touched"), [("1+8", 3), ("2x1+8", 6), ("3x1+8", 8), ("9, 1+8", 8)])
def test_experts_that_a_batch_of_a_page_model_touches(rows: str, touched: int, tmp_path: Path) -> None:
    """Of 8 experts, min(8, 3 tokens): three matrices of 48 x 16 each."""
    target = ocr(tmp_path)
    ledger = evaluate_formulas(target, target.workload(rows=rows))
    read = [n.cost("weight_read_bytes") for n in ledger.nodes if n.module.endswith(".experts")]
    assert sum(filter(None, read)) == touched * 3 * 48 * 16 * 2


def test_the_live_peak_of_rows_of_a_page_model_is_that_by_hand(tmp_path: Path) -> None:
    """A vocabulary of 20,000 decides: its logits of 39 positions, and what is held with them.

    Given are embeddings, positions and indices, a mask of 35 x 42 booleans, and 31 cached tokens, which the cache keeps
    apart from the 78 tokens that are added.
    """
    token = 2 * 2 * 48 * 2
    given = 78 * (96 + 8) + 39 * 8 + 35 * 42 + 31 * token
    held = given + 78 * token + 39 * 96 + 39 * 20_000 * 2
    assert row_peaks(ocr(tmp_path, vocab_size=20_000), PAGED, **PAGES)[0] == held


@pytest.mark.parametrize(
    ("run", "where"),
    [
        ({**PAGES, "rows": "40, 32"}, "--images, --rows"),  # a page has 33 tokens of one sequence
        ({"rows": "40", "images": 1, "seq_len": 40}, "--seq-len"),
        ({"rows": "40", "images": -1}, "--images"),
        ({"rows": "40", "grid": "1x2"}, "--grid"),
        ({"rows": "40", "images": 1, "preset": "text-only"}, "--images"),
        ({"images": 1}, "--images"),
        ({"rows": "4, 4+4093"}, "--rows, 4+4093"),
        ({"rows": "4, 129+7"}, "--rows"),  # more new tokens than the window of the configuration
    ],
)
def test_rows_that_a_page_model_refuses(run: dict[str, Any], where: str, tmp_path: Path) -> None:
    with pytest.raises(Problems) as caught:
        ocr(tmp_path).workload(**run)
    assert [problem.where for problem in caught.value.problems] == [where]


SMALL: Final = Llama(LlamaConfig(32, 48, 2, 4, 2, 12, 64, 4096))
WINDOW: Final = Mistral(Mistral.default().config.__class__(32, 48, 1, 4, 2, 12, 64, 4096, window=8))
LATENT: Final = DeepseekV3(read(DeepseekV3Config, {**V3, **ONE, "max_position_embeddings": 4096}))
FAMILIES: Final[tuple[CausalTarget[Any], ...]] = (
    SMALL,
    WINDOW,
    Gpt2(Gpt2Config(hidden=48, intermediate=40, layers=2, heads=4, vocab=64)),
    Qwen3Moe(read(Qwen3MoeConfig, {**QWEN3, **ONE})),
    GptOss(read(GptOssConfig, {**GPT_OSS, **TWO})),
    LATENT,
)


def count(target: CausalTarget[Any], **run: Any) -> Ledger:
    return evaluate_formulas(target, target.workload(**({"new_tokens": 0} | run)))


def kinds(ledger: Ledger, metric: Metric) -> dict[str, int]:
    """The metric of a prefill by kind of operator."""
    found: dict[str, int] = {}
    for node in ledger.nodes:
        if node.stage == "prefill" and node.cost(metric):
            found[node.kind] = found.get(node.kind, 0) + (node.cost(metric) or 0)
    return found


def seen_keys(past: int, new: int, window: int) -> tuple[int, int, int, int]:
    """Pairs of a query and a key that it sees, computed pairs, cached keys that are read, and keys that are added."""
    cached = list(range(past))[-(window - 1) :] if window else list(range(past))
    keys = [*cached, *range(past, past + new)]
    pairs = sum(k <= q and (not window or q - k < window) for q in range(past, past + new) for k in keys)
    kept = keys[-(window - 1) :] if window else keys
    return pairs, new * len(keys), len(cached), len(kept) - len(cached)


@pytest.mark.parametrize("target", FAMILIES, ids=lambda t: t.name)
def test_random_batches_by_counting(target: CausalTarget[Any], *, thorough: bool) -> None:
    """Random batches: every pair is counted on its own, tokens are added up."""
    rng = random.Random(41)
    config = target.config
    windows = config.windows() or (0,) * config.layers
    latent = isinstance(config, DeepseekV3Config)
    width = config.nope + config.rope + config.value if latent else 2 * config.head_dim
    cached = config.kv_rank + config.rope if latent else 2 * config.kv_heads * config.head_dim
    for _ in range(100 if thorough else 30):
        rows = [(rng.randint(1, 4), rng.randint(1, 20), rng.choice((0, rng.randint(1, 30)))) for _ in range(4)]
        ledger = count(target, rows=",".join(f"{k}x{n}+{p}" for k, n, p in rows))
        counted = [(k, *seen_keys(p, n, w)) for k, n, p in rows for w in windows]
        assert sum(kinds(ledger, KEPT_SCORES).values()) == config.heads * sum(k * pairs for k, pairs, *_ in counted)
        assert kinds(ledger, "flops")["attention"] == 2 * config.heads * width * sum(k * s for k, _, s, *_ in counted)
        assert ledger.total("kv_read_bytes") == 2 * cached * sum(k * held for k, *_, held, _ in counted)
        assert ledger.total("kv_cache_bytes") == 2 * cached * sum(k * added for k, *_, added in counted)
        head = [n for n in ledger.nodes if n.module == "lm_head" and n.cost("flops")]
        assert [n.cost("flops") for n in head] == [2 * sum(k for k, _, _ in rows) * config.hidden * config.vocab]


def test_weights_and_experts_are_read_once() -> None:
    """512 sequences in 3 rows touch min(E, k T) experts once, as a prompt of as many tokens does."""
    target = FAMILIES[3]
    rows, prompt = count(target, rows="7, 3x2+9, 5x1+4"), count(target, text_tokens=18, logits="all")
    for metric in ("weight_read_bytes", "params", "weight_bytes"):
        assert rows.total(metric) == prompt.total(metric), metric
    assert kinds(rows, "flops")["expert_gemm"] == kinds(prompt, "flops")["expert_gemm"]


@pytest.mark.parametrize("family", TARGETS, ids=lambda t: t.__name__)
@pytest.mark.parametrize(
    ("row", "run"),
    [
        ("40", {"text_tokens": 40}),
        ("1+600", {"text_tokens": 1, "past": 600}),
        ("30+9", {"text_tokens": 30, "past": 9}),
        ("5+600/all", {"text_tokens": 5, "past": 600, "logits": "all"}),
    ],
)
def test_one_row_is_the_run_of_its_length(family: type[CausalTarget[Any]], row: str, run: dict[str, Any]) -> None:
    """One sequence is a batch of one row: every metric. Steps are rows of one token."""
    target = family.default()
    more = {"attention": "eager"} if target.attentions[0] == "eager" else {}
    one, whole = count(target, rows=row, **more), count(target, **{"logits": "last", **run}, **more)
    picked = 0 if "logits" in run or run["text_tokens"] == 1 else 2 * 2 * target.config.hidden
    for metric in ("input_bytes", "output_bytes"):
        assert (one.total(metric) or 0) - picked // 2 == whole.total(metric), metric
    assert (one.total("unfused_bytes") or 0) - picked == whole.total("unfused_bytes")
    for metric in one.metrics:
        if metric not in ("input_bytes", "output_bytes", "unfused_bytes"):
            assert one.total(metric) == whole.total(metric), metric


@pytest.mark.parametrize("target", FAMILIES, ids=lambda t: t.name)
def test_a_batch_is_the_sum_of_its_rows(target: CausalTarget[Any]) -> None:
    parts = [("12", 1), ("3x1+9", 3), ("4+20", 1), ("2x5+3", 2)]
    whole = count(target, rows=",".join(text for text, _ in parts))
    each = [count(target, rows=text) for text, _ in parts]
    for metric in ("flops", "vector_flops", "kept_scores", "kv_read_bytes", "kv_cache_bytes"):
        # The cosines and sines of a table are computed once for equal sequences, and for every packed token.
        if metric != "vector_flops" or isinstance(target, Gpt2):
            assert whole.total(metric) == sum(ledger.total(metric) or 0 for ledger in each), metric


def pairs(text: str) -> int:
    """The kept pairs of a head and layer."""
    return kinds(count(SMALL, rows=text), KEPT_SCORES)["attention"] // (2 * 4)


def test_published_pairs_of_a_serving_engine() -> None:
    """Two prompts of 100 tokens are 2 x 5,050 pairs. 65,536 tokens in chunks of 8,192 are those of the prompt."""
    assert pairs("2x100") == pairs("100, 100") == 10_100
    long = Llama(LlamaConfig(32, 48, 2, 4, 2, 12, 64, 131_072))
    chunks = [count(long, rows=f"8192+{8192 * i}" if i else "8192") for i in range(8)]
    total = sum(kinds(chunk, KEPT_SCORES)["attention"] for chunk in chunks) // 8
    assert total == 65_536 * 65_537 // 2 == 2_147_516_416
    together = count(long, rows=",".join(f"8192+{8192 * i}" if i else "8192" for i in range(8)))
    assert kinds(together, KEPT_SCORES)["attention"] // 8 == total


def test_a_prefix_hit_is_the_prompt_without_the_pairs_below_it() -> None:
    assert pairs("50") - pairs("34+16") == 16 * 17 // 2


def test_verification_is_a_chunk_with_all_logits() -> None:
    drafts, chunk = count(SMALL, rows="5+30/all"), count(SMALL, rows="5+30")
    assert (drafts.total("flops") or 0) - (chunk.total("flops") or 0) == 4 * 2 * 32 * 64


@pytest.mark.parametrize(
    ("text", "usual", "rows"),
    [
        ("4096", "last", (BatchRow(4096),)),
        ("4096", "all", (BatchRow(4096, logits=4096),)),
        ("4096, 16x1+8000,512+3584", "last", (BatchRow(4096), BatchRow(1, 8000, 16), BatchRow(512, 3584))),
        ("8x5+2000/all,5+2000/5, 7/0", "last", (BatchRow(5, 2000, 9, 5), BatchRow(7, logits=0))),
        ("1,1,1+0", "all", (BatchRow(1, count=3),)),
    ],
)
def test_rows_are_read(text: str, usual: Logits, rows: tuple[BatchRow, ...]) -> None:
    assert rows_of(text, usual) == rows
    stored = ",".join(row.text for row in rows)
    assert Workload("w", 1, inputs={"rows": stored}).rows == rows
    assert rows_of(stored, usual) == rows


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("4,,5", "--rows, row 2", "not a row of a batch"),
        ("4,x", "--rows, row 2", "not a row of a batch"),
        ("4,0+3", "--rows, row 2", "not a number of new tokens"),
        ("0x4", "--rows, row 1", "not a number of sequences"),
        ("4/5", "--rows, row 1", "more logits than new tokens"),
        ("4/0", "--rows", "no row has logits"),
        ("1025x1", "--rows", "too many sequences"),
    ],
)
def test_rows_that_are_refused(text: str, where: str, what: str) -> None:
    with pytest.raises(Problems) as caught:
        rows_of(text, "last")
    assert [(p.where, p.what) for p in caught.value.problems] == [(where, what)]


@pytest.mark.parametrize(
    ("rows", "chosen", "logits"),
    [
        ("9+2/all, 5/all", None, "all"), ("9+2/9, 1+4", None, "all"), ("9+2/all, 5", None, "last"),
        ("9+2, 5", "all", "all"), ("3x1+7", None, "all"), ("9+2/8", "all", "last"),
    ],
)  # fmt: skip
def test_logits_are_those_of_the_rows(rows: str, chosen: str | None, logits: str) -> None:
    """``all`` if every position of every row has logits."""
    target: Any = load_target("llama-3.1-8b")
    given = {} if chosen is None else {"logits": chosen}
    assert target.workload(rows=rows, **given).logits == logits


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(BadInput, match="no such file"):
        rows_of("missing.jsonl", "last")


STEP: Final = {
    "scheduled_new_reqs": [{"req_id": "a", "num_computed_tokens": 16}],
    "scheduled_cached_reqs": {"req_ids": ["b", "c"], "num_computed_tokens": [100, 100]},
    "num_scheduled_tokens": {"a": 48, "b": 1, "c": 4},
    "scheduled_spec_decode_tokens": {"c": [5, 6, 7]},
    "total_num_scheduled_tokens": 53,
}
"""One step, as vLLM's SchedulerOutput has it: a prefix hit, a step, and three drafted tokens."""


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.csv", "new,past,count\n4,0,2\n1,80,1\n", (BatchRow(4, count=2), BatchRow(1, 80))),
        ("a.jsonl", '{"new": 4}\n{"new": 1, "past": 80, "logits": 1}\n', (BatchRow(4), BatchRow(1, 80))),
        ("b.csv", "req_id,num_scheduled_tokens,num_computed_tokens\n7,4,0\n8,1,80\n", (BatchRow(4), BatchRow(1, 80))),
        ("b.json", json.dumps(STEP), (BatchRow(48, 16), BatchRow(1, 100), BatchRow(4, 100, logits=4))),
        (
            "c.json",
            '{"extend_seq_lens": [4, 4, 9], "extend_prefix_lens": [0, 0, 80]}',
            (BatchRow(4, count=2), BatchRow(9, 80)),
        ),
        (
            "d.jsonl",
            '{"extend_input_len": 4, "prefix_lens": 3}\n{"extend_input_len": 5}\n',
            (BatchRow(4, 3), BatchRow(5)),
        ),
        ("e.jsonl", '{"extend_input_len": 5, "prefix_len": 35}\n', (BatchRow(5, 35),)),
        ("f.jsonl", '{"extend_input_len": 5, "cached_tokens": 35, "prompt_len": 40}\n', (BatchRow(5, 35),)),
        ("g.jsonl", '{"num_scheduled_tokens": 5, "num_cached_tokens": 0}\n', (BatchRow(5),)),
        ("h.csv", "\ufeffnew,past\n4,3\n", (BatchRow(4, 3),)),
        # Lengths of a decode step include its token.
        ("i.json", '{"forward_mode": "DECODE", "seq_lens": [9, 9, 1]}', (BatchRow(1, 8, count=2), BatchRow(1))),
    ],
)
def test_files_of_schedulers(name: str, content: str, rows: tuple[BatchRow, ...], tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    assert rows_of(str(file), "last") == rows


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("a.jsonl", '{"new": 4}\n{"past": 4}\n', "--rows, row 2"),
        ("a.csv", "new,past\n4,many\n", "--rows, row 1"),
        ("a.json", json.dumps({**STEP, "scheduled_new_reqs": []}), "--rows, row 1"),
        ("b.json", '{"extend_seq_lens": [4, 4], "extend_prefix_lens": [0]}', "--rows, row 1"),
        ("c.jsonl", f"{json.dumps(STEP)}\n{json.dumps(STEP)}\n", "--rows, row 1"),
        ("d.jsonl", '{"new": 5, "tokens_in_prefix": 35}\n', "--rows, row 1"),
        ("e.json", '{"extend_seq_lens": [5], "context_lens": [35]}', "--rows, row 1"),
        ("f.json", '{"forward_mode": "EXTEND", "seq_lens": [5]}', "--rows, row 1"),
    ],
)
def test_files_that_are_refused(name: str, content: str, where: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    with pytest.raises(Problems) as caught:
        rows_of(str(file), "last")
    assert caught.value.problems[0].where == where


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("a.csv", "new,past\n\n5,10,7\n", "{}, line 3"),  # 7 has no column
        ("b.csv", f"new,past\n{'9' * 5_000},1\n", "{}"),  # above the digits that Python converts
        ("c.csv", f"new,past\n{'9' * 140_000},1\n", "{}"),  # above the field of Python's reader
        ("d.json", "[" * 100_000, "{}"),
        ("e.csv", "", "{}"),
        ("f.csv", "new,past\n", "{}"),
        ("g.jsonl", "\n", "{}"),
        ("h.json", "[]", "{}"),
        ("i.json", '{"forward_mode": "DECODE", "seq_lens": []}', "{}"),
    ],
)
def test_tables_that_cannot_be_read_are_refused(name: str, content: str, where: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        rows_of(str(file), "last")
    assert caught.value.where == where.format(file)


@pytest.mark.parametrize(
    ("target", "settings", "where"),
    [
        (SMALL, {"rows": "4", "batch": 2}, "--rows, --batch"),
        (SMALL, {"rows": "4", "past": 2}, "--rows, --past"),
        (SMALL, {"rows": "4", "seq_len": 5}, "--rows, --text-tokens"),
        (SMALL, {"rows": "4", "new_tokens": 1}, "--rows, --new-tokens"),
        (SMALL, {"rows": "4, 2x90+4007"}, "--rows, 2x90+4007"),
        (Bert.default(), {"rows": "4"}, "--rows"),
    ],
)
def test_runs_that_are_refused(target: Any, settings: dict[str, Any], where: str) -> None:
    with pytest.raises((Problems, BadInput)) as caught:
        target.workload(**settings)
    found = caught.value.problems if isinstance(caught.value, Problems) else (caught.value,)
    assert where in [problem.where for problem in found]


@pytest.mark.parametrize("name", ["t5", "vit"])
def test_a_target_without_rows_tells_which_have_them(name: str) -> None:
    with pytest.raises(BadInput, match="no such setting") as caught:
        costproof.capture(name, rows="4, 3x1+80", sources=("analytic",))
    assert caught.value.fix == (
        "a batch of unequal rows is counted for text decoders: with formulas, such as llama, llava and deepseek-ocr, "
        "in one packed call; of hf: classes without, as a forward a row; of another target, each row as a run of its "
        "own"
    )


def test_a_workload_is_read_again() -> None:
    work = SMALL.workload(rows="4, 16x1+80, 3+5/2")
    assert (work.text_tokens, work.batch, work.new_tokens, work.logits) == (4 + 16 + 3, 1, 0, "last")
    again = SMALL.workload(rows=work.inputs["rows"], text_tokens=23, batch=1, new_tokens=0, logits="last")
    assert again == work
    said = "rows 4, 16x1+80, 3+5/2 (18 sequences, 23 tokens, 19 with logits), bfloat16"
    assert workload_line(work) == said


def row_peaks(target: Any, rows: str, **run: Any) -> tuple[int, int]:
    """The live peak by formula, with inputs that are held and with inputs that are released."""
    work, place = target.workload(rows=rows, **run), ("prefill", "rows", "rows")
    held, released = (live_peaks(target, work, inputs_held=held) for held in (True, False))
    return held[place], released[place]


def test_the_live_peak_of_rows_is_that_by_hand() -> None:
    """Two layers; a token has 2 x 2 x 24 elements of 2 bytes in the cache, 192 bytes.

    A vocabulary of 20,000 decides: 9 ids and positions, 5 indices of positions with logits, a mask of 3 x 5 booleans,
    14 cached tokens as given and 23 after the call, 5 hidden states of 32, and their logits.

    With eager attention, scores of the second row decide, 4 x 40 x 90: in bfloat16, in float32, and their softmax. Held
    besides are 42 ids and positions, 3 indices, masks in bfloat16, 56 and 98 cached tokens, hidden states, the result
    of the first row (2 tokens of 48), and values that are repeated for all heads.
    """
    wide = Llama(replace(SMALL.config, vocab=20_000))
    logits = 5 * 32 * 2 + 5 * 20_000 * 2
    given = 9 * 16 + 5 * 8 + 3 * 5 + 14 * 192
    assert row_peaks(wide, "4, 2x1+6, 3+2/2") == (given + 23 * 192 + logits, 23 * 192 + logits)
    given = 42 * 16 + 3 * 8 + (2 * 4 + 40 * 90) * 2 + 56 * 192
    scores = 4 * 40 * 90 * (2 + 4 + 4)
    held = given + 98 * 192 + 42 * 32 * 2 + 2 * 48 * 2 + 90 * 48 * 2 + scores
    assert row_peaks(SMALL, "2x1+3, 40+50", attention="eager")[0] == held


def test_steps_whose_queries_lie_head_by_head_copy_them() -> None:
    """Two steps behind 19 tokens, with queries that are joined of halves, and eager attention to all keys.

    Held are 2 ids and positions, caches of a layer with a window (7 tokens) and of one without (19), masks of 20 and of
    8 keys, both caches after the call, hidden states of 32, queries of 48, keys and values repeated for 4 heads, the
    copy of queries, and 2 x 4 x 20 scores; a token of a cache has 2 sequences of 24 elements.
    """
    target = FAMILIES[4]
    assert isinstance(target, GptOss)
    token = 2 * 24 * 2
    caches = 2 * (7 + 19 + 8 + 20) * token
    scores = 2 * 2 * 20 * token + 2 * 48 * 2 + 2 * 4 * 20 * 2
    held = 2 * 16 + caches + 2 * (20 + 8) * 2 + 2 * 32 * 2 + 2 * 48 * 2 + scores
    assert row_peaks(target, "2x1+19", attention="eager")[0] == held == 19_024


def test_a_prompt_with_sinks_holds_the_whole_cache_of_a_window() -> None:
    """A step behind 3 and a prompt of 40, heads of 12 (4 of queries, 2 of keys), a window of 8, and small experts.

    The second layer decides, at the subtraction of the largest score: of 4 x 40 queries it holds 40 scores and a sink,
    twice, and the largest. Repeated keys are released, repeated values are not. The window of the first layer keeps 7
    keys of the prompt, but its cache is a view of all 40. Masks are [1, 4] and [40, 40] for layers of both kinds.
    """
    target = FAMILIES[4]
    assert isinstance(target, GptOss)
    small = GptOss(replace(target.config, intermediate=8, top_k=1))
    token = 2 * 2 * 12 * 2
    given = 41 * (8 + 8) + 2 * 8 + 2 * (4 + 40 * 40) * 2 + 2 * 3 * token
    caches = 2 * (4 + 40) * token
    scores = 2 * 4 * 40 * (40 + 1) * 2 + 4 * 40 * 2
    result_of_step, repeated, hidden = 4 * 12 * 2, 4 * 40 * 12 * 2, 41 * 32 * 2
    held = given + caches + scores + result_of_step + repeated + hidden
    assert row_peaks(small, "1+3, 40")[0] == held == 49_232  # as of its graph


QUICK_PEAKS: Final = ("mistral", "gpt2", "deepseek_v3, absorbed, two prompts", "qwen2_5_vl", "deepseek_ocr")


IMAGES: Final[dict[str, tuple[dict[str, Any], str, dict[str, Any]]]] = {
    "llava": (LLAVA_FILE, "9, 3x1+8, 5+7/all", {"images": 3}),
    "qwen2_5_vl": (QWEN_VL, "30, 3x1+8, 5+7/2", {"images": 3, "image_size": 28, "attention": "eager"}),
    "deepseek_ocr": (OCR, PAGED, PAGES),
    "deepseek_ocr, eager": (OCR, "2x100+300, 3x1+8", {"attention": "eager"}),
    "deepseek_ocr2": (OCR2, "160, 3x1+8, 150+7/all", {"images": 2, "preset": "base", "base_size": 96}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in QUICK_PEAKS else pytest.mark.thorough) for c in (*CASES, *IMAGES)]
)
@pytest.mark.usefixtures("one_process")
def test_the_live_peak_of_rows_is_that_of_the_graph(case: str, tmp_path: Path, *, thorough: bool) -> None:
    """With inputs that are held to the end, and with inputs that are released after their last reader."""
    from costproof.opgraph.liveness import timeline
    from costproof.tracers.peaks.calls import calls
    from costproof.tracers.peaks.program import exported_memory, on_fake_cpu

    file, own, run = {**CASES, **IMAGES}[case]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    target: Any = load_target(name_of(file), path)
    for rows in (own, *random_batches()[: 0 if case in IMAGES else 8 if thorough else 1]):
        job = next(job for _, job in calls(target, target.workload(rows=rows, **run)) if job.id == "rows")
        program = exported_memory(on_fake_cpu(job)).program
        graph = tuple(max(timeline(program, inputs_held=held).held()) for held in (True, False))
        assert row_peaks(target, rows, **run) == graph, rows


def test_rows_fit_by_the_formula_of_their_live_peak() -> None:
    found = costproof.fits("llama-3.1-8b@chat,rows=2x3,layers=1", memory="2540MB")
    assert found.live_source == "formula"
    assert [stage.id for stage in found.stages] == ["prefill"]  # a batch of rows has no steps
    target, work = target_with_settings("llama-3.1-8b@chat,rows=2x3,layers=1")
    assert found.live_bytes == row_peaks(target, "2x3")[1]
    assert work.rows == (BatchRow(3, count=2),)


def test_rows_with_commas_are_a_setting_of_an_operand() -> None:
    _, work = target_with_settings("llama-3.1-8b@chat,rows=4, 16x1+80, 3+5/2,layers=1")
    assert work.rows == (BatchRow(4), BatchRow(1, 80, 16), BatchRow(3, 5, 1, 2))
    with pytest.raises(BadInput, match="this is not a setting"):
        target_with_settings("llama-3.1-8b@chat,rows=4,batch=1,16x1+80")


def test_the_live_peak_of_rows_of_latent_attention_is_that_by_hand() -> None:
    """A layer of 4 heads of 4 + 4 elements, values of 8, latents of 8 and rotated keys of 4.

    A batch of a prompt of 60 and a step behind 3: 61 queries of 4 x 8, latents and keys of 60 + 4 tokens each, which
    are joined for one projection, keys of 4 x 8 and what is expanded, 4 x 12. Eager attention of the prompt decides:
    4 x 60 x 60 scores in bfloat16, then in float32, and their softmax. Held besides are ids and positions of 61 tokens,
    2 indices, masks in bfloat16, the latents of 3 tokens as given, and hidden states of 61.
    """
    small = "hidden=32,heads=4,vocab=64,kv_rank=8,rope=4,nope=4,value=8,expert_width=8,intermediate=16"
    target, _ = target_with_settings(f"deepseek-v2-lite@chat,layers=1,dense_layers=1,config.experts=4,top_k=2,{small}")
    given = 61 * 16 + 2 * 8 + (60 * 60 + 4) * 2 + 3 * 12 * 2
    context = 64 * 12 * 2
    scores = 4 * 60 * 60 * (2 + 4 + 4)
    held = given + context + 61 * 32 * 2 + (61 * 32 + 64 * 32 + 64 * 48) * 2 + scores
    assert row_peaks(target, "60, 1+3", attention="eager")[0] == held
