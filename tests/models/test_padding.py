"""Waste of padding: a cache in blocks and padded tokens, by hand and by simulation, in reports and in what fits."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

import pytest

from costproof import api
from costproof.ledger.capture import CAPTURE, Padding, TokenPadding, parse_capture
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.schema import to_data
from costproof.models.cache_dtype import BlockedCache, CachedLayers, blocks_held
from costproof.models.decoding.target import CausalTarget
from costproof.models.families.deepseek_v3 import DeepseekV3, DeepseekV3Config
from costproof.models.families.gpt_oss import GptOss, GptOssConfig
from costproof.models.families.llama import Llama, LlamaConfig
from costproof.models.families.mistral import Mistral, MistralConfig
from costproof.parametric.targets import evaluate_formulas
from costproof.reports.static import padding_lines
from tests.models.test_latents import V3
from tests.models.test_mixtures import GPT_OSS, read
from tests.models.test_past import LLAMA, ONE, TWO
from tests.support.running import costproof

SMALL: Final = Llama(LlamaConfig(32, 48, 2, 4, 2, 12, 64, 4096))
"""A token has 2 x 2 heads x 12 elements x 2 bytes = 96 bytes in each of two layers."""
WINDOW: Final = Mistral(MistralConfig(32, 48, 1, 4, 2, 12, 64, 4096, window=8))


def blocked(target: CausalTarget[Any], **run: Any) -> list[tuple[Any, ...]]:
    """Stage, layers, window, blocks and tokens of a layer, bytes of a token there, waste of all of them."""
    workload = target.workload(**run)
    cache = target.blocked_cache(workload)
    assert cache is not None
    return [
        (r.stage, r.layers, r.window, r.blocks, r.tokens, r.token_bytes, r.waste_bytes) for r in cache.rows(workload)
    ]


def test_the_waste_of_all_steps_is_said() -> None:
    """15 of 16 tokens in each of 5 steps, at 2 x 122,880 FLOP a token: 75 x 245,760."""
    rows = (TokenPadding("prefill", 1, 30, 32, 2 * 245_760), TokenPadding("decode", 5, 1, 16, 75 * 245_760))
    assert [*padding_lines(Padding((), rows))] == [
        "prefill: 30 tokens padded to 32; waste 491,520 FLOP",
        "decode: 1 token padded to 16, in 5 calls; waste 18,432,000 FLOP",
    ]


def test_blocks_of_a_live_server() -> None:
    """15,049 tokens in blocks of 128 are 118 blocks; 40 layers x 2 x 8 x 128 x 2 bytes are 163,840 bytes a token.

    Of the 15,104 tokens 55 are waste, 0.36 %. The 8.18 % of the server are 118 blocks of all that it has (118 / 1,443):
    a share of its memory, which the model does not decide.
    """
    target = Llama(LlamaConfig(1024, 48, 40, 8, 8, 128, 64, 32_768))
    workload = target.workload(text_tokens=15_049, new_tokens=0, kv_block=128)
    cache = target.blocked_cache(workload)
    assert cache is not None
    (row,) = cache.rows(workload)
    assert (row.blocks, row.tokens, row.layers * row.token_bytes) == (118, 15_049, 163_840)
    assert row.held_bytes == 118 * 128 * 163_840 == 2_474_639_360
    assert row.used_bytes == 15_049 * 163_840 == 2_465_628_160
    assert (row.waste_bytes, row.waste_share) == (55 * 163_840, "55/15104")


@pytest.mark.parametrize(
    ("run", "rows"),
    [
        # 20 tokens are 3 blocks of 8, of 3 sequences 9 and more; 12 are 2 blocks.
        ({"rows": "20, 3x1+8, 5+7", "kv_block": 8}, [("prefill", 2, 0, 3 + 3 * 2 + 2, 59, 96, 2 * (88 - 59) * 96)]),
        ({"rows": "3x16", "kv_block": 16}, [("prefill", 2, 0, 3, 48, 96, 0)]),
        ({"text_tokens": 5, "new_tokens": 0, "kv_block": 1}, [("prefill", 2, 0, 5, 5, 96, 0)]),
        (  # The last step has 10 + 7 + 3 tokens.
            {"text_tokens": 7, "past": 10, "new_tokens": 3, "batch": 2, "kv_block": 16},
            [("prefill", 2, 0, 4, 34, 96, 2 * 30 * 96), ("decode", 2, 0, 4, 40, 96, 2 * 24 * 96)],
        ),
        # Float32, and a cache in 8 bits with a scale of 4 bytes for each of 2 x 2 heads: 4 x (12 + 4).
        ({"rows": "7", "dtype": "float32", "kv_block": 8}, [("prefill", 2, 0, 1, 7, 192, 2 * 192)]),
        ({"rows": "7", "kv_dtype": "int8", "kv_block": 8}, [("prefill", 2, 0, 1, 7, 64, 2 * 64)]),
    ],
)  # fmt: skip
def test_blocks_by_hand(run: dict[str, Any], rows: list[tuple[Any, ...]]) -> None:
    assert blocked(SMALL, **run) == rows


def test_a_window_gives_blocks_back() -> None:
    """A window of 8 keys in blocks of 4. One token behind 20 sees keys 13 to 20, in blocks 3, 4 and 5.

    A prompt of 10 is held whole. Of steps behind 10, 11 and 12, the last holds keys 5 to 12: blocks 1, 2 and 3.
    """
    assert blocked(WINDOW, rows="1+20", kv_block=4) == [("prefill", 1, 8, 3, 8, 96, 4 * 96)]
    found = blocked(WINDOW, text_tokens=10, new_tokens=3, kv_block=4)
    assert found == [("prefill", 1, 8, 3, 10, 96, 2 * 96), ("decode", 1, 8, 3, 8, 96, 4 * 96)]


def test_kinds_of_layers_apart() -> None:
    """One layer with a window of 8 and one without; latents of 512 + 64 elements, or 656 bytes in fp8."""
    target = GptOss(read(GptOssConfig, {**GPT_OSS, **TWO}))
    window, full = blocked(target, rows="1+20", kv_block=4)
    token = 2 * 2 * target.config.kv_heads * target.config.head_dim
    assert (window[1:], full[1:]) == ((1, 8, 3, 8, token, 4 * token), (1, 0, 6, 21, token, 3 * token))
    latent = DeepseekV3(read(DeepseekV3Config, {**V3, **ONE, "kv_lora_rank": 512, "qk_rope_head_dim": 64}))
    assert blocked(latent, rows="7", kv_block=8) == [("prefill", 1, 0, 1, 7, 1152, 1152)]
    assert blocked(latent, rows="7", kv_block=8, kv_dtype="fp8") == [("prefill", 1, 0, 1, 7, 656, 656)]


def simulated(past: int, new: int, window: int, size: int) -> tuple[set[int], set[int]]:
    """Blocks that hold a token which one of the new ones sees, or the new ones themselves; and these tokens."""
    seen = {k for q in range(past, past + new) for k in range(q + 1) if not window or q - k < window}
    return {k // size for k in seen}, seen


def test_blocks_by_simulation() -> None:
    """1,000 random calls; the bound of vLLM's SlidingWindowSpec is never exceeded, and reached."""
    rng = random.Random(417)
    reached = 0
    for _ in range(1000):
        past, new, size = rng.choice((0, rng.randint(1, 60))), rng.randint(1, 20), rng.randint(1, 9)
        window = rng.choice((0, rng.randint(1, 25)))
        blocks, tokens = simulated(past, new, window, size)
        assert blocks_held(past, new, window, size) == (len(blocks), len(tokens))
        if window:
            most = -(-(window - 1 + new) // size) + 1
            assert len(blocks) <= most
            reached += len(blocks) == most
    assert reached > 50


@pytest.mark.parametrize("window", [0, 8])
def test_decode_steps_by_simulation(window: int) -> None:
    """The step with most blocks of all, which 300 runs go through one by one."""
    rng = random.Random(418)
    target = WINDOW if window else SMALL
    for _ in range(300):
        size, batch, steps = rng.randint(1, 9), rng.randint(1, 3), rng.randint(1, 30)
        workload = target.workload(text_tokens=rng.randint(8, 30), new_tokens=steps, batch=batch)
        cache = BlockedCache(size, (CachedLayers(2, window, 10), CachedLayers(1, 0, 3)))
        by_step = [
            batch * size * sum(n * len(simulated(at, 1, w, size)[0]) for n, w in ((2 * 10, window), (3, 0)))
            for at in range(workload.context, workload.context + steps)
        ]
        found = sum(row.held_bytes for row in cache.rows(workload) if row.stage == "decode")
        assert found == max(by_step)
        assert cache.held(workload) == max(found, sum(r.held_bytes for r in cache.rows(workload)[:2]))


def test_no_metric_changes() -> None:
    plain, blocks = ({"rows": "20, 3x1+8"}, {"rows": "20, 3x1+8", "kv_block": 8})
    one, other = (evaluate_formulas(SMALL, SMALL.workload(**run)) for run in (plain, blocks))
    assert [(n.id, n.costs) for n in one.nodes] == [(n.id, n.costs) for n in other.nodes]
    assert SMALL.blocked_cache(SMALL.workload(**plain)) is None


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("blocks") / "config.json"
    path.write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}), encoding="utf-8")
    return path


@pytest.mark.usefixtures("one_process")
def test_reports_name_the_waste(config: Path, tmp_path: Path) -> None:
    """20 and 12 tokens in blocks of 8: 24 + 16 tokens held, 8 of them waste, a fifth."""
    args = (
        "report",
        "llama",
        "--config",
        str(config),
        "--rows",
        "20, 5+7",
        "--kv-block",
        "8",
        "--pad-to",
        "32,64",
        "--sources",
        "analytic",
    )
    done = costproof(*args, "-o", str(tmp_path), cwd=tmp_path)
    token = 2 * 2 * LLAMA["num_key_value_heads"] * LLAMA["head_dim"]
    said = f"prefill: the cache holds {80 * token:,} B in blocks of 8 tokens; waste {16 * token:,} B, 20.0 % of them"
    assert said in " ".join(done.stdout.split())
    (folder,) = {path.parent for path in tmp_path.rglob("static_compute.json")}
    data = json.loads((folder / "static_compute.json").read_text(encoding="utf-8"))
    assert data["padding"]["cache"] == [{
        "stage": "prefill", "layers": 2, "window": 0, "block": 8, "blocks": 5, "tokens": 32, "token_bytes": token,
        "held_bytes": 80 * token, "used_bytes": 64 * token, "waste_bytes": 16 * token, "waste_share": "1/5",
    }]  # fmt: skip
    token_flops = 2 * 2 * (2 * 32 * 48 + 2 * 32 * 24 + 3 * 32 * 48)
    assert "prefill: 25 tokens padded to 32; waste " + f"{7 * token_flops:,} FLOP" in " ".join(done.stdout.split())
    assert data["padding"]["batch"] == [
        {"stage": "prefill", "calls": 1, "tokens": 25, "size": 32, "flops": 7 * token_flops}
    ]
    assert data["totals"]["kv_cache_bytes"] == 2 * 25 * token
    for name in ("static_compute.md", "report.html"):
        text = (folder / name).read_text(encoding="utf-8")
        assert "Waste of padding" in text
        assert f"{16 * token:,} B" in text


@pytest.mark.usefixtures("one_process")
def test_a_file_with_padding_that_does_not_add_up_is_refused(config: Path) -> None:
    capture = api.capture("llama", config=config, rows="20, 5+7", kv_block=8, sources=("analytic",))
    data = json.loads(json.dumps(to_data(CAPTURE, capture)))
    assert parse_capture(data, where="file") == capture
    data["padding"]["cache"][0]["blocks"] += 1
    with pytest.raises((BadInput, Problems), match="does not add up"):
        parse_capture(data, where="file")


def test_what_fits_counts_blocks(config: Path) -> None:
    """Sequences of 20 tokens hold 24: in the memory of 5 x 24 = 6 x 20 tokens a sixth one fits only without blocks."""
    token = 2 * 2 * 2 * LLAMA["num_key_value_heads"] * LLAMA["head_dim"]
    run = "llama@chat,text_tokens=20,new_tokens=0,batch=3"
    plain = api.fits(run, config=config, memory=10**9)
    assert plain.lasting_bytes is not None
    assert plain.live_bytes is not None
    room = plain.lasting_bytes + 120 * token
    answers = [api.fits(f"{run}{more}", config=config, memory=room) for more in ("", ",kv_block=8")]
    limits = [{(x.setting, x.held): x.at for x in found.limits} for found in answers]
    assert [found["batch", "weights and cache"] for found in limits] == [7, 6]
    # Three sequences: 3 n tokens are at most 120 up to n = 40, which are five whole blocks.
    assert [found["text_tokens", "weights and cache"] for found in limits] == [41, 41]
    found = answers[1]
    assert (found.cache_bytes, found.held_cache_bytes, found.cache_waste_bytes) == (
        60 * token, 72 * token, 12 * token,
    )  # fmt: skip
    assert found.certain_bytes == plain.lasting_bytes + 72 * token
    assert found.blocked_live_bytes == plain.live_bytes + 12 * token
    assert found.most_bytes == plain.lasting_bytes + plain.live_bytes + 12 * token


def test_verdicts_with_blocks(config: Path, tmp_path: Path) -> None:
    """A prompt of 15 tokens is held as 16, a step behind 16 tokens as 24. The live peak of the prompt decides."""
    run = "llama@chat,text_tokens=15,new_tokens=2,batch=2,kv_block=8"
    free = api.fits(run, config=config, memory=10**9)
    assert free.certain_bytes is not None
    assert free.most_bytes is not None
    token = 2 * 2 * 2 * LLAMA["num_key_value_heads"] * LLAMA["head_dim"]
    assert free.held_cache_bytes == 2 * 24 * token
    assert free.live_bytes is not None
    assert free.lasting_bytes is not None
    assert free.most_bytes == free.lasting_bytes + free.live_bytes + 2 * token
    assert api.fits(run, config=config, memory=free.most_bytes).verdict == "fits"
    assert api.fits(run, config=config, memory=free.most_bytes - 1).verdict == "not known"
    assert free.least_bytes is not None
    assert api.fits(run, config=config, memory=free.least_bytes - 1).verdict == "does not fit"
    text = costproof("fits", run, "--config", str(config), "--memory", "1GB", cwd=tmp_path).stdout
    assert "cache in blocks of 8 tokens" in text
    assert "waste, in these blocks" in text


def test_what_blocks_add_by_simulation() -> None:
    """Before and after each call of a layer, against the tokens that the run keeps there."""
    rng = random.Random(419)
    for _ in range(500):
        past, new, size = rng.choice((0, rng.randint(1, 40))), rng.randint(1, 20), rng.randint(1, 9)
        window = rng.choice((0, rng.randint(2, 25)))
        cache = BlockedCache(size, (CachedLayers(3, window, 10),))
        workload = SMALL.workload(text_tokens=new, past=past, new_tokens=0, batch=2)
        kept = [min(n, window - 1) if window else n for n in (past, past + new)]
        first = past - kept[0]
        held = [len({k // size for k in range(first, end)}) for end in (past, past + new)]
        more = max(h * size - k for h, k in zip(held, kept, strict=True))
        assert cache.surplus(workload) == {"prefill": 2 * 3 * 10 * more}


@pytest.mark.parametrize(
    ("run", "rows"),
    [
        ({"rows": "7, 3x2+9", "pad_to": "8,16,32"}, [("prefill", 1, 13, 16, 3)]),
        ({"rows": "7, 3x2+9", "pad_to": "4,13,32"}, [("prefill", 1, 13, 13, 0)]),
        ({"rows": "7, 3x2+9", "pad_to": "4,8"}, [("prefill", 1, 13, 13, 0)]),
        (
            {"text_tokens": 5, "past": 6, "batch": 3, "new_tokens": 7, "pad_to": "1,2,4,8,16"},
            [("prefill", 1, 15, 16, 1), ("decode", 7, 3, 4, 7)],
        ),
        ({"text_tokens": 5, "new_tokens": 0, "pad_to": "8"}, [("prefill", 1, 5, 8, 3)]),
    ],
)
def test_padded_tokens_by_hand(run: dict[str, Any], rows: list[tuple[Any, ...]]) -> None:
    """A token is multiplied by q, k, v, out, gate, up and down of two layers; logits are not padded.

    q and out have 32 x 4 heads x 12 weights, k and v 32 x 2 x 12, the others 32 x 48.
    """
    token = 2 * 2 * (2 * 32 * 48 + 2 * 32 * 24 + 3 * 32 * 48)
    found = SMALL.token_padding(SMALL.workload(**run))
    assert [(r.stage, r.calls, r.tokens, r.size, r.flops) for r in found] == [(*r[:4], r[4] * token) for r in rows]


def test_padded_tokens_of_experts() -> None:
    """A padded token has a router of 6 experts, and 3 experts: gate, up and down of 40, in gpt-oss."""
    target = GptOss(read(GptOssConfig, {**GPT_OSS, **ONE, "layer_types": ["full_attention"]}))
    (row,) = target.token_padding(target.workload(rows="5x1+9", pad_to="8"))
    linear = 2 * 32 * 4 * 12 + 2 * 32 * 2 * 12
    assert (row.tokens, row.size, row.flops) == (5, 8, 3 * 2 * (linear + 32 * 6 + 3 * 3 * 32 * 40))


@pytest.mark.parametrize(
    ("run", "where"), [
        ({"pad_to": "8,x"}, "--pad-to"), ({"pad_to": "0"}, "--pad-to"), ({"pad_to": "8", "tp": 2}, "--pad-to"),
        ({"kv_block": 0}, "--kv-block"), ({"kv_block": 16, "tp": 2}, "--kv-block"),
    ],
)  # fmt: skip
def test_blocks_that_are_refused(run: dict[str, Any], where: str) -> None:
    with pytest.raises(Problems) as caught:
        SMALL.workload(**run)
    assert [p.where for p in caught.value.problems] == [where]
