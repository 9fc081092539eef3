"""Ranks of decoders on several devices: published numbers, hand arithmetic, and sums over ranks."""

from __future__ import annotations

import json
import random
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

import costproof
from costproof.analytic.compose import prompt_call
from costproof.ledger.errors import BadInput, Incomplete, Problems
from costproof.ledger.mesh import Parallel
from costproof.ledger.node import Ledger
from costproof.models.decoding.domain import CONFIG
from costproof.models.decoding.formulas import decoder_parts
from costproof.models.decoding.sharding import SPLIT_ALL, WHOLE_ATTENTION
from costproof.models.decoding.target import CausalTarget
from costproof.models.registry import load_target
from costproof.parametric.targets import count_ranks, evaluate_formulas
from costproof.run.capture import count_sources
from costproof.run.operands import target_with_settings
from costproof.run.prepare import Prepared
from tests.oracles.published import ROWS, write_row

TOKEN: Final[dict[str, Any]] = {"text_tokens": 1, "new_tokens": 0}
FAMILIES: Final = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "mixtral", "qwen3-moe", "deepseek-v2",
    "deepseek-v3", "gpt-oss",
)  # fmt: skip


def target(name: str) -> CausalTarget[Any]:
    found = load_target(name, None, trusted=False)
    assert isinstance(found, CausalTarget)
    return found


def ledger(name: str, **settings: Any) -> Ledger:
    model = target(name)
    return evaluate_formulas(model, model.workload(**{**TOKEN, **settings}))


def ranks(model: CausalTarget[Any], **settings: Any) -> Parallel:
    work = model.workload(**{**TOKEN, **settings})
    return count_ranks(model, work, evaluate_formulas(model, work))


def test_llama_70b_sends_4_616_192_bytes_a_token() -> None:
    """80 layers of 2 all-reduces, and 1 of the embedding, of 8192 elements of 2 bytes: 2 * 7/8 * 16,384 bytes each.

    The gather of the logits, of 7 parts of 128,256 / 8 columns, is not among them.
    """
    model = target("llama-3.1-70b")
    found = ranks(model, tp=8)
    reduced = [c for c in found.collectives if c.kind == "all_reduce"]
    assert sum(c.count for c in reduced) == 161
    assert sum(c.sent_bytes for c in reduced) == 161 * 28_672 == 4_616_192
    (gathered,) = (c for c in found.collectives if c.kind == "all_gather")
    assert (gathered.count, gathered.bytes, gathered.sent_bytes) == (1, 256_512, 7 * 16_032 * 2)
    assert gathered.ranks == tuple(range(8))


def test_a_rank_of_llama_70b_by_hand() -> None:
    """8 of 64 heads, 1 of 8 key/value heads, 3,584 of 28,672 columns, 16,032 of 128,256 entries; norms whole."""
    found = ledger("llama-3.1-70b", tp=8)
    attention = 8192 * (8 + 8 + 1 + 1) * 128
    layer = attention + 3 * 8192 * 3584 + 2 * 8192
    assert found.stage_total("prefill", "params") == 80 * layer + 2 * 16_032 * 8192 + 8192
    products = 2 * (80 * (layer - 2 * 8192) + 16_032 * 8192)
    scores = 80 * 4 * 8 * 128
    assert found.stage_total("prefill", "flops") == products + scores


@pytest.mark.parametrize(("tp", "token"), [(1, 192_512), (2, 96_256), (4, 48_128), (8, 48_128), (16, 48_128)])
def test_keys_and_values_of_qwen3_235b(tp: int, token: int) -> None:
    """94 layers x max(1, 4 / tp) heads x 128 elements x 2 bytes, of keys and of values."""
    assert ledger("qwen3-235b-a22b", tp=tp).stage_total("prefill", "kv_cache_bytes") == token


def test_keys_of_a_log_of_sglang() -> None:
    """vllm#21348: TP 4 of Qwen3-235B, 367,404 tokens, K size 8.23 GB, which are GiB; half of the cache is keys."""
    token = ledger("qwen3-235b-a22b", tp=4).stage_total("prefill", "kv_cache_bytes") or 0
    assert round(token / 2 * 367_404 / 2**30, 2) == 8.23


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_latents_are_whole_on_every_rank(tp: int) -> None:
    """DeepSeek-V3: (512 + 64) elements of 2 bytes in each of 61 layers, whatever tp is (vllm#47929)."""
    assert ledger("deepseek-v3", tp=tp).stage_total("prefill", "kv_cache_bytes") == 70_272


def test_uneven_batches_without_decode_steps() -> None:
    """A ledger lacks the decode stage if it is never called; the formulas of the rank with one sequence have it."""
    model = target("llama")
    config = replace(model.config, vocab=64, layers=1, hidden=32, heads=4, kv_heads=4, head_dim=8, intermediate=16)
    small = replace(model, config=config)
    work = small.workload(text_tokens=5, new_tokens=0, tp=2, dp=2, batch=3)
    found = count_sources(Prepared(small, work, ("analytic",))).capture.parallel
    assert found is not None
    assert [row.stages["prefill"]["kv_cache_bytes"] for row in found.ranks] == [2 * 320, 320]  # 5 x 2 heads x 8 x 2 x 2


def test_ranks_of_an_uneven_vocabulary() -> None:
    """102 entries on 4 ranks: 26, 26, 26, 24; the gather pads each to 26."""
    model = target("llama")
    small = replace(model, config=replace(model.config, vocab=102, layers=1, hidden=64, heads=4, kv_heads=4,
                                          head_dim=16, intermediate=32))  # fmt: skip
    found = ranks(small, tp=4, rank=3)
    assert [row.ranks for row in found.ranks] == [(0, 1, 2), (3,)]
    params = [row.stages["prefill"]["params"] for row in found.ranks]
    assert params[0] - params[1] == 2 * 2 * 64  # two entries of two tables
    (least, _), (most, who) = found.extremes("prefill", "params")
    assert (most - least, who) == (256, (0, 1, 2))
    (gathered,) = (c for c in found.collectives if c.kind == "all_gather")
    assert (gathered.bytes, gathered.sent_bytes) == (4 * 26 * 2, 3 * 26 * 2)


def test_a_bias_after_a_sum_is_whole_on_every_rank() -> None:
    model = target("llama")
    config = replace(model.config, vocab=64, layers=3, hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=16)
    with_bias = replace(model, config=replace(config, attention_bias=True, mlp_bias=True))
    found = ranks(with_bias, tp=2)
    copies = {d.what: d.amount for d in found.duplicates if d.metric == "params"}
    # Three layers, of two biases of 32; 7 norms of 32. The other biases are split with their columns.
    assert copies == {"norms": 7 * 32, "biases added after a sum over ranks": 3 * 2 * 32}
    added = evaluate_formulas(with_bias, with_bias.workload(**TOKEN, tp=2)).total("vector_flops") or 0
    without = evaluate_formulas(replace(model, config=config), model.workload(**TOKEN, tp=2)).total("vector_flops") or 0
    assert added - without == 3 * 2 * 32  # one addition per element


def test_copies_by_hand() -> None:
    """Qwen3-235B on 8 ranks: each of 4 key/value heads is on two, routers and norms are on all."""
    copies = {(d.what, d.metric): d.amount for d in ranks(target("qwen3-235b-a22b"), tp=8).duplicates}
    layers, hidden = 94, 4096
    assert copies["key/value heads that several ranks hold", "params"] == layers * 2 * 4 * 128 * hidden
    assert copies["routers", "params"] == 7 * layers * 128 * hidden
    assert copies["norms", "params"] == 7 * (layers * (2 * hidden + 2 * 128) + hidden)


def test_repeated_tensors_and_work_by_hand() -> None:
    """Llama 3.1 70B on 8 ranks, a prompt of one token, x = 8,192 elements of 2 bytes; 7 ranks repeat 80 layers.

    Of each layer q, k, v, gate and up read x, out and down write x, two additions read 3 x and write 2 x, two norms
    read and write x, with 4 operations per element and 2 more. So does the last norm; the output projection reads x,
    the embedding looks up and writes x, and the logits of 128,256 entries are gathered.
    """
    copies = {(d.what, d.metric): d.amount for d in ranks(target("llama-3.1-70b"), tp=8).duplicates}
    x = 8192 * 2
    assert copies["inputs of split modules, which every rank reads", "input_bytes"] == 7 * (80 * 5 + 1) * x
    assert copies["results of split modules, which every rank writes", "output_bytes"] == 7 * (80 * 2 + 1) * x
    between = {m: copies["additions and other work between modules", m] for m in ("input_bytes", "output_bytes")}
    assert between == {"input_bytes": 7 * 80 * 3 * x, "output_bytes": 7 * 80 * 2 * x}
    assert copies["additions and other work between modules", "vector_flops"] == 7 * 80 * 2 * 8192
    norms = {m: copies["norms", m] for m in ("input_bytes", "output_bytes", "weight_read_bytes", "vector_flops")}
    assert norms == {**dict.fromkeys(tuple(norms)[:3], 7 * 161 * x), "vector_flops": 7 * 161 * (4 * 8192 + 2)}
    assert copies["rows that every rank looks up", "weight_read_bytes"] == 7 * x
    assert copies["logits that every rank gathers", "output_bytes"] == 7 * 128_256 * 2
    # The cosines and sines of 128 elements, and the frequencies, 64 of 4 bytes.
    assert copies["tables of rotary embedding", "output_bytes"] == 7 * 2 * 128 * 2
    assert copies["tables of rotary embedding", "input_bytes"] == 7 * 64 * 4
    assert copies["tables and masks that the attention of every rank reads", "input_bytes"] == 7 * 80 * 2 * 128 * 2


def test_padding_of_gathered_logits_by_hand() -> None:
    """102 entries on 4 ranks are 4 x 26 gathered columns of 2 bytes, 2 too many on each of the ranks."""
    model = target("llama")
    small = replace(model, config=replace(model.config, vocab=102, layers=1, hidden=64, heads=4, kv_heads=4,
                                          head_dim=16, intermediate=32))  # fmt: skip
    copies = {(d.what, d.metric): d.amount for d in ranks(small, tp=4).duplicates}
    assert copies["logits that every rank gathers", "output_bytes"] == 3 * 102 * 2
    assert copies["padding of uneven shards", "output_bytes"] == 4 * 2 * 2


def test_keys_of_several_ranks_are_read_and_written_by_each() -> None:
    """Qwen3-235B on 8 ranks: two write each of 4 key/value heads of 128 in 94 layers, and norm each key once more."""
    found = ranks(target("qwen3-235b-a22b"), tp=8, new_tokens=1)
    copies = {(d.what, d.metric, d.stage): d.amount for d in found.duplicates}
    heads = "key/value heads that several ranks hold"
    token = 94 * 4 * 128 * 2
    assert copies[heads, "output_bytes", "decode"] == 3 * token
    assert copies[heads, "kv_read_bytes", "decode"] == 2 * token  # keys and values of the one token before


def test_stages_and_replicas_read_and_send_by_hand() -> None:
    """Of 2 stages each runs the rotary table; the first sends 2 sequences of 3 tokens of 4,096 elements of 2 bytes."""
    model = target("llama")
    small = replace(model, config=replace(model.config, layers=4, hidden=4096))
    found = ranks(small, pp=2, dp=2, batch=2, text_tokens=3)
    copies = {(d.what, d.metric): d.amount for d in found.duplicates}
    assert copies["hidden states that stages send", "input_bytes"] == 2 * 3 * 4096 * 2
    assert copies["tables of rotary embedding", "output_bytes"] == 2 * 3 * model.config.head_dim * 2
    read = found.one_device["prefill"]["weight_read_bytes"] - 2 * 3 * 4096 * 2  # but for the rows of each batch
    assert copies["copies of data-parallel ranks", "weight_read_bytes"] == read


def test_data_parallel_ranks_share_the_batch() -> None:
    model = target("llama")
    found = ranks(model, tp=2, dp=3, batch=8, text_tokens=5)
    assert [row.ranks for row in found.ranks] == [(0, 1, 2, 3), (4, 5)]  # 3, 3 and 2 sequences
    tokens = [row.stages["prefill"]["kv_cache_bytes"] // (32 * 4 * 128 * 2 * 2) for row in found.ranks]
    assert tokens == [15, 10]
    one = found.one_device[""]["weight_bytes"]
    (norms,) = (d.amount for d in found.duplicates if (d.what, d.metric) == ("norms", "weight_bytes"))
    (data,) = (d.amount for d in found.duplicates if (d.what, d.metric) == ("copies of data-parallel ranks",
                                                                           "weight_bytes"))  # fmt: skip
    assert data == 2 * (one + norms)


@pytest.mark.parametrize(("rank", "own", "following"), [(0, 20, 10), (1, 10, 20)])
def test_experts_over_uneven_batches_by_hand(rank: int, own: int, following: int) -> None:
    """Of three sequences of 10 tokens the ranks have two and one; each of 48 layers gathers 2 x 2048 + 8 x (8 + 2) B.

    Experts get all 30 tokens: 30 x 8 pairs of 3 x 2 x 2048 x 768 FLOPs, on both ranks, where one device has as many.
    By all-to-all half of a rank's pairs leave in the mean, and it returns results of half of the other's.
    """
    model = target("qwen3-30b-a3b")
    found = ranks(model, dp=2, ep=2, batch=3, text_tokens=10, rank=rank)
    sent = {c.kind: (c.sent_bytes, c.bytes, c.count) for c in found.collectives}
    assert sent == {
        "all_gather": (48 * (30 - following) * 4176, 48 * 30 * 4176, 3 * 48),
        "reduce_scatter": (48 * (30 - own) * 4096, 48 * 30 * 4096, 48),
    }
    experts = {d.amount for d in found.duplicates if d.what.startswith("rows of experts") and d.metric == "flops"}
    assert experts == {48 * 30 * 8 * 3 * 2 * 2048 * 768}
    sent_bytes = {(d.form, d.routing): d.sent_bytes for d in found.dispatches}
    assert sent_bytes["all-gather", "any"] == 48 * (30 - following + 30 - own) * 4096
    assert sent_bytes["all-to-all", "uniform"] == 48 * (own + (30 - own)) * 4 * 4096


def test_experts_over_batches_by_hand() -> None:
    """DeepSeek-V3 on 8 ranks with a prompt of one token each: attention is whole, of 256 experts a rank has 32.

    In 58 layers a rank sends 7 copies of the token, of 7,168 x 2 bytes, with 8 numbers and 8 float32 weights, and 7
    partial sums of others' tokens. Its experts get 8 tokens x 8 choices, most of them of other ranks' experts.
    """
    found = ranks(target("deepseek-v3"), dp=8, ep=8, batch=8)
    assert [row.ranks for row in found.ranks] == [tuple(range(8))]
    sent = {c.kind: (c.group, c.count, c.bytes, c.sent_bytes, c.dtype) for c in found.collectives}
    each = 14_336 + 8 * (8 + 4)
    assert sent == {
        "all_gather": ("ep/tp", 58 * 3, 58 * 8 * each, 58 * 7 * each, "bfloat16, int64, float32"),
        "reduce_scatter": ("ep/tp", 58, 58 * 8 * 14_336, 58 * 7 * 14_336, "bfloat16"),
    }
    (row,) = found.ranks
    one, experts = found.one_device[""]["params"], 58 * 256 * 3 * 7168 * 2048
    assert row.stages["prefill"]["params"] == one - experts + experts // 8
    assert row.stages["prefill"]["kv_cache_bytes"] == 70_272
    copies = {(d.what, d.stage, d.metric): d.amount for d in found.duplicates}
    assert copies["copies of data-parallel ranks", "", "params"] == 7 * (one - experts)
    passed = 58 * 8 * 8 * 6 * 7168 * 2048  # of 8 tokens on one device
    assert copies["rows of experts of other ranks, which the kernel gets and skips", "prefill", "flops"] == 7 * passed


def test_ranks_of_a_given_routing() -> None:
    """Mixtral on four ranks in two groups, each with one token of 2 choices: experts run on 3, 1, 2 and 2 pairs.

    One device runs them on 8. A rank sends pairs of 4,096 x 2 bytes to the other, and 4 numbers, in 32 layers.
    """
    found = ranks(target("mixtral"), dp=4, ep=2, batch=4, dispatch="all-to-all", pairs="1,1;2,0;1,1;1,1", rank=1)
    row = 32 * 6 * 4096 * 14_336
    flops = {rank: r.stages["prefill"]["flops"] for r in found.ranks for rank in r.ranks}
    assert [flops[rank] - flops[1] for rank in range(4)] == [2 * row, 0, row, row]
    assert not [d for d in found.duplicates if d.metric == "flops" and d.what.startswith("rows")]
    (sent,) = found.collectives
    # Rank 1 sends both of its pairs, gets one, and keeps none: 3 there and back.
    assert (sent.kind, sent.ranks, sent.count, sent.dtype) == ("all_to_all", (0, 1), 96, "bfloat16, int64")
    assert sent.sent_bytes == 32 * (3 * 8192 + 4 * 8)
    assert sent.bytes == 32 * ((2 + 1) * 8192 + 8 * 8)


@pytest.mark.parametrize("family", FAMILIES)
def test_sums_over_ranks_of_random_configurations(family: str) -> None:
    """Ranks sum to one device and the copies that the plan names, which are worked out without local widths."""
    rng, model, counted = random.Random(family), target(family), 0
    kind = {**CONFIG, **type(model.config).ranges}
    while counted < 6:
        sizes = {name: rng.choice(values) for name, values in kind.items()} | {"layers": 2, "row": 8, "S": 5, "P": 5}
        drawn = model.drawn(sizes, rng)
        small: Any = drawn[0] if drawn is not None else None
        run = {"tp": rng.choice((2, 3, 4)), "dp": rng.choice((1, 2)), "batch": rng.randint(2, 4), "text_tokens": 3}
        if getattr(small.config, "experts", 0) and counted % 2:
            run |= {"tp": rng.choice((1, 2)), "dp": 4, "batch": 4, "ep": rng.choice((2, 4, 8))}
        try:
            found = ranks(small, **run, new_tokens=1)
        except Problems:
            continue
        counted += 1
        assert found.problems() == []
        assert {d.metric for d in found.duplicates} >= {"params", "weight_bytes"}


@pytest.mark.parametrize(("stage", "layers"), [(0, 27), (1, 27), (2, 26)])
def test_a_stage_of_llama_70b_by_hand(stage: int, layers: int) -> None:
    """Of 80 layers the first stage has 27 and the embedding, the last 26, a norm and the output projection."""
    found = ledger("llama-3.1-70b", pp=3, rank=stage, text_tokens=5, new_tokens=2)
    layer = 8192 * (64 + 64 + 8 + 8) * 128 + 3 * 8192 * 28_672 + 2 * 8192
    table, last = 128_256 * 8192, stage == 2
    assert found.stage_total("prefill", "params") == layers * layer + table * (stage != 1) + 8192 * last
    scores = layers * 4 * 64 * 128
    head = 2 * table * last * 5  # every position
    assert found.stage_total("prefill", "flops") == layers * 2 * (layer - 2 * 8192) * 5 + scores * 25 + head
    assert found.stage_total("prefill", "kv_cache_bytes") == layers * 2 * 8 * 128 * 2 * 5
    sent = 0 if last else 8192 * 2
    assert found.stage_total("prefill", "comm_bytes") == found.stage_total("prefill", "comm_payload_bytes") == 5 * sent
    assert found.stage_total("decode", "comm_bytes") == 2 * sent
    assert found.stage_total("decode", "messages") == (0 if last else 2)
    (node,) = (n for n in found.nodes if n.cost("messages") and n.stage == "decode") if not last else (None,)
    assert node is None or (node.module, node.kind) == ("model", "send")


def test_a_tied_table_is_on_both_ends_of_a_pipeline() -> None:
    model = target("llama")
    tied = replace(model, config=replace(model.config, tied=True, vocab=102, hidden=64, layers=4))
    found = ranks(tied, pp=2, tp=2, rank=1)
    copies = {(d.what, d.metric): d.amount for d in found.duplicates}
    assert copies["tables of tied output projections on the last stage", "params"] == 102 * 64
    assert copies["tables of tied output projections on the last stage", "weight_bytes"] == 2 * 102 * 64
    assert copies["norms", "params"] == 9 * 64
    sends = [c for c in found.collectives if c.kind == "send"]
    assert [(c.group, c.ranks, c.module, c.bytes) for c in sends] == [("pp", (1, 3), "model", 128)]
    assert [row.ranks for row in found.ranks] == [(0, 1), (2, 3)]


def test_layers_of_a_kind_are_on_their_stages() -> None:
    """DeepSeek-V3 has 3 dense layers and 58 with experts: 15, 15, 16 and 15 of 61 layers in four stages."""
    found = ranks(target("deepseek-v3"), pp=4)
    held = [row.stages["prefill"]["params"] for row in found.ranks]
    attention = (7168 * 1536 + 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 7168
                 + 2 * 7168)  # fmt: skip
    dense = attention + 3 * 7168 * 18_432
    routed = attention + 257 * 3 * 7168 * 2048 + 256 * 7168
    table = 129_280 * 7168
    assert held == [3 * dense + 12 * routed + table, 15 * routed, 16 * routed, 15 * routed + table + 7168]


@pytest.mark.parametrize("family", FAMILIES)
def test_sums_over_stages_of_random_configurations(family: str, *, thorough: bool) -> None:
    """Ranks of several stages sum to one device and the named copies, in meshes with other axes too."""
    rng, model, counted = random.Random(f"{family} stages"), target(family), 0
    kind = {**CONFIG, **type(model.config).ranges}
    while counted < (6 if thorough else 3):
        sizes = {name: rng.choice(values) for name, values in kind.items()} | {"row": 8, "S": 5, "P": 5}
        drawn = model.drawn({**sizes, "layers": rng.randint(3, 6)}, rng)
        small: Any = drawn[0] if drawn is not None else None
        run = {"pp": rng.choice((2, 3)), "tp": rng.choice((1, 2)), "dp": rng.choice((1, 2)), "batch": rng.randint(2, 4)}
        try:
            found = ranks(small, **run, text_tokens=3, new_tokens=1)
        except Problems:
            continue
        counted += 1
        assert found.problems() == []
        own = [evaluate_formulas(small, small.workload(**run, text_tokens=3, new_tokens=1, rank=rank))
               for rank in range(found.mesh.world)]  # fmt: skip
        rows = {rank: row.stages for row in found.ranks for rank in row.ranks}
        for rank, ledger_of_rank in enumerate(own):
            for metric in ("params", "flops", "kv_cache_bytes", "comm_bytes", "unfused_bytes"):
                assert rows[rank]["prefill"][metric] == ledger_of_rank.stage_total("prefill", metric)


@pytest.mark.parametrize("plan", ["ring", "zigzag", "ulysses"])
@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (4, 1), (2, 2)])
def test_ranks_that_share_a_sequence_position_by_position(plan: str, cp: int, tp: int) -> None:
    """Ranks pass keys and values on, or heads, until all pairs of a query and a key are seen; each step is counted."""
    model, length, batch, layers = target("llama"), 16, 3, 2
    small = replace(model, config=replace(model.config, vocab=64, layers=layers, hidden=32, heads=16, kv_heads=8,
                                          head_dim=4, intermediate=16))  # fmt: skip
    heads, kv_heads, width, item = 16 // tp, 8 // tp, 4, 2
    parts = 2 * cp if plan == "zigzag" else cp
    size = length // parts
    of_part = [list(range(i * size, (i + 1) * size)) for i in range(parts)]
    positions = [of_part[r] + (of_part[2 * cp - 1 - r] if plan == "zigzag" else []) for r in range(cp)]
    found = ranks(small, text_tokens=length, batch=batch, cp=cp, tp=tp, cp_plan=plan)
    rows = {rank: row.stages["prefill"] for row in found.ranks for rank in row.ranks}
    one = evaluate_formulas(small, small.workload(text_tokens=length, batch=batch, new_tokens=0))
    linear = sum(n.cost("flops") or 0 for n in one.nodes if n.kind == "linear") // (tp * cp)
    kept = 0
    for rank in range(cp):
        every = seen = sent = messages = 0
        if plan == "ulysses":  # all pairs, of its own heads; it keeps those of what it has of its own positions
            every, seen = (heads // cp * n for n in (length * length, length * (length + 1) // 2))
            for tensor_heads in (heads, kv_heads, kv_heads, heads):
                messages += 1
                kept_heads = range(rank * tensor_heads // cp, (rank + 1) * tensor_heads // cp)
                moved = [(p, h) for p in positions[rank] for h in range(tensor_heads) if h not in kept_heads]
                sent += batch * width * item * len(moved)
        else:
            held = list(positions)
            for step in range(cp):
                for half in range(2):  # of own queries, against halves of keys, each a block that is computed or not
                    own = positions[rank][half * length // cp // 2 : (half + 1) * length // cp // 2]
                    for first in (0, length // cp // 2):
                        keys = held[rank][first : first + length // cp // 2]
                        pairs = [(q, k) for q in own for k in keys]
                        needed = step == 0 or (plan == "ring" and rank >= step) or any(k <= q for q, k in pairs)
                        every += heads * len(pairs) * needed
                        seen += heads * sum(k <= q for q, k in pairs)
                if step < cp - 1:
                    messages += 1
                    sent += batch * len(held[rank]) * 2 * kv_heads * width * item
                    held = [held[r - 1] for r in range(cp)]
        costs = rows[rank * tp]
        assert costs["flops"] == linear + layers * batch * every * 4 * width
        assert costs["kept_scores"] == layers * batch * seen
        kept += costs["kept_scores"] * tp
        exchanged = [n for n in evaluate_formulas(small, small.workload(
            text_tokens=length, batch=batch, new_tokens=0, cp=cp, tp=tp, cp_plan=plan, rank=rank * tp)).nodes
            if n.kind in ("send", "all_to_all")]  # fmt: skip
        assert [n.cost("comm_bytes") for n in exchanged] == [sent] * layers
        assert [n.cost("messages") for n in exchanged] == [messages] * layers
        assert costs["kv_cache_bytes"] == layers * batch * length // cp * 2 * kv_heads * width * item
    assert kept == layers * batch * 16 * length * (length + 1) // 2
    assert found.problems() == []


def test_a_step_behind_a_shared_sequence_by_hand() -> None:
    """Llama-3.1-8B, cp 4 after 4096 tokens: each rank has 1024 positions, the last one also the new token.

    A layer gathers 3 x 32 logarithms of 4 bytes, and all-reduces 4096 elements of 2 bytes: 6 chunks of 1024.
    The last rank reads 1024 cached keys and values of 8 heads of 128 in 32 layers, and so do the others.
    """
    model = target("llama-3.1-8b")
    for rank in (0, 3):
        work = model.workload(text_tokens=4096, new_tokens=1, cp=4, rank=rank)
        found = evaluate_formulas(model, work)
        assert found.stage_total("decode", "comm_bytes") == 32 * (3 * 32 * 4 + 6 * 1024 * 2)
        assert found.stage_total("decode", "kv_read_bytes") == 32 * 1024 * 2 * 8 * 128 * 2
        assert found.stage_total("decode", "kv_cache_bytes") == (rank == 3) * 32 * 2 * 8 * 128 * 2
        attention = 32 * 4 * 32 * 128 * (1024 + (rank == 3))
        own = [n.cost("flops") or 0 for n in found.nodes if n.stage == "decode" and n.kind == "attention"]
        assert sum(own) == attention
    parallel = ranks(model, text_tokens=4096, new_tokens=1, cp=4)
    assert parallel.problems() == []
    assert [c.dtype for c in parallel.collectives if c.stage == "decode"] == ["float32", "bfloat16"]


def test_a_step_behind_shared_latents_by_hand() -> None:
    """DeepSeek-V3, cp 4 after 4096 tokens: each rank expands its 1024 latents of 512, the last one also the new one.

    They become 128 heads of keys of 128 + 64 and values of 128 in 61 layers. Of a token 512 + 64 elements are cached,
    in 2 bytes. A layer gathers 3 x 128 logarithms of 4 bytes, and all-reduces 128 x 128 elements in 6 chunks of 4096.
    """
    model = target("deepseek-v3")
    for rank in (0, 3):
        work = model.workload(text_tokens=4096, new_tokens=1, cp=4, rank=rank)
        found, keys = evaluate_formulas(model, work), 1024 + (rank == 3)
        assert found.stage_total("decode", "comm_bytes") == 61 * (3 * 128 * 4 + 6 * 4096 * 2)
        assert found.stage_total("decode", "kv_read_bytes") == 61 * 1024 * 576 * 2
        assert found.stage_total("decode", "kv_cache_bytes") == (rank == 3) * 61 * 576 * 2
        flops = {kind: sum(n.cost("flops") or 0 for n in found.nodes if n.stage == "decode" and n.kind == kind and
                           n.role.endswith(("attention", "kv_up"))) for kind in ("attention", "linear")}  # fmt: skip
        assert flops["attention"] == 61 * 2 * 128 * keys * (192 + 128)
        assert flops["linear"] == 61 * 2 * keys * 512 * 128 * 256
    assert ranks(model, text_tokens=4096, new_tokens=1, cp=4).problems() == []


def test_absorbed_steps_behind_shared_latents_by_hand() -> None:
    """DeepSeek-V3, cp 4 after 4096 tokens: 128 heads of queries attend to latents of 512 + 64, and add up those of 512.

    A layer all-reduces 128 sums of 512 before they become values: 6 chunks of 16,384 elements. Each rank projects the
    queries and the sums of all heads, 128 x 512 x (128 + 128) products, which the ranks but one do again.
    """
    model = target("deepseek-v3")
    for rank in (0, 3):
        work = model.workload(text_tokens=4096, new_tokens=1, cp=4, rank=rank, decoding="absorbed")
        found, keys = evaluate_formulas(model, work), 1024 + (rank == 3)
        assert found.stage_total("decode", "comm_bytes") == 61 * (3 * 128 * 4 + 6 * 16_384 * 2)
        assert found.stage_total("decode", "kv_read_bytes") == 61 * 1024 * 576 * 2
        assert found.stage_total("decode", "kv_cache_bytes") == (rank == 3) * 61 * 576 * 2
        flops = {kind: sum(n.cost("flops") or 0 for n in found.nodes if n.stage == "decode" and n.kind == kind and
                           n.role.endswith("attention")) for kind in ("attention", "matmul")}  # fmt: skip
        assert flops == {"attention": 61 * 2 * 128 * keys * (576 + 512), "matmul": 61 * 2 * 128 * 512 * 256}
    assert ranks(model, text_tokens=4096, new_tokens=1, cp=4, decoding="absorbed").problems() == []


def test_heads_with_windows_and_sinks_by_hand() -> None:
    """gpt-oss-120b, cp 4 by heads, 4096 tokens: 16 of 64 heads and 2 of 8 key/value heads of 64, of all positions.

    18 layers have a window of 128 keys, of which 127 are cached. A layer exchanges three quarters of 1024 x (64 + 8 + 8
    + 64) x 64 elements of 2 bytes, and a step brings three quarters of 64 x 64.
    """
    model = target("gpt-oss-120b")
    work = model.workload(text_tokens=4096, new_tokens=1, cp=4, cp_plan="ulysses", rank=1)
    found, row = evaluate_formulas(model, work), 2 * 2 * 64 * 2
    whole, window = 4096 * 4097 // 2, 128 * 129 // 2 + 128 * (4096 - 128)
    assert found.stage_total("prefill", "kept_scores") == 16 * 18 * (whole + window)
    assert found.stage_total("prefill", "kv_cache_bytes") == 18 * (4096 + 127) * row
    assert found.stage_total("prefill", "comm_bytes") == 36 * 1024 * 144 * 64 * 2 * 3 // 4
    assert found.stage_total("decode", "kept_scores") == 16 * 18 * (4097 + 128)
    assert found.stage_total("decode", "kv_read_bytes") == 18 * (4096 + 127) * row
    assert found.stage_total("decode", "kv_cache_bytes") == 18 * row
    assert found.stage_total("decode", "comm_bytes") == 36 * 64 * 64 * 2 * 3 // 4
    layer = [n for n in found.nodes if n.stage == "decode" and n.module == "model.layers.0.self_attn"]
    assert sum(n.cost("params") or 0 for n in layer) == 64
    assert sum(n.cost("weight_read_bytes") or 0 for n in layer) == 16 * 2
    assert ranks(model, text_tokens=4096, new_tokens=1, cp=4, cp_plan="ulysses").problems() == []


def test_ranks_of_a_ring_are_unequal() -> None:
    """Rank r of 4 attends to r + 1 parts of 4 x 4 pairs; zigzag leaves each 4 x 4 and 3 halves of that."""
    model = target("llama")
    small = replace(model, config=replace(model.config, vocab=64, layers=1, hidden=32, heads=4, kv_heads=4, head_dim=8,
                                          intermediate=16))  # fmt: skip
    for plan, parts in (("ring", [1, 2, 3, 4]), ("zigzag", [2.5] * 4), ("ulysses", [4] * 4)):
        found = ranks(small, text_tokens=16, cp=4, cp_plan=plan)
        rows = {rank: row.stages["prefill"]["flops"] for row in found.ranks for rank in row.ranks}
        linear = 4 * 2 * (32 * 4 * 32 + 3 * 32 * 16 + 32 * 64)
        assert [rows[r] - linear for r in range(4)] == [4 * 4 * 16 * 8 * n for n in parts]
        left_out = [d.amount for d in found.duplicates if d.metric == "flops"]
        assert left_out == ([] if plan == "ulysses" else [-6 * 4 * 4 * 16 * 8])
        assert found.problems() == []


def test_a_tied_table_of_which_the_plan_splits_one_end_is_refused() -> None:
    """The plan of gpt-oss splits the output projection alone, so that a tied table would be whole and split at once."""
    model = target("gpt-oss")
    tied = replace(model, config=replace(model.config, tied=True))
    assert tied.workload(text_tokens=8, dp=2, batch=2).mesh.world == 2
    with pytest.raises(Problems) as error:
        tied.workload(text_tokens=8, tp=2)
    assert [p.what for p in error.value.problems] == [
        "embedding and output projection share one table, so they need one layout"
    ]


def test_plans_are_those_of_transformers() -> None:
    """The plan of the class, as transformers writes it; norms that it names replicated have no entry here."""
    layer = "model.layers.*.self_attn"
    assert SPLIT_ALL.patterns()[f"{layer}.o_proj"] == "rowwise"
    assert f"{layer}.o_proj" not in WHOLE_ATTENTION.patterns()
    transformers = pytest.importorskip("transformers")
    for name in FAMILIES:
        model = target(name)
        config = transformers.CONFIG_MAPPING[model.config.model_type]
        cls = getattr(transformers, model.config.architecture)
        base = {f"model.{k}": v for k, v in (getattr(config, "base_model_tp_plan", None) or {}).items()}
        theirs = {**base, **(cls._tp_plan or {})}
        if base:  # mixin.py names the embedding if the base has a plan
            theirs["model.embed_tokens"] = "embedding_rowwise"
        assert model.plan is not None
        ours = model.plan.patterns()
        split = {k: v for k, v in theirs.items() if not v.startswith("replicated") and v != "mla_kv_a_proj"}
        # A module of another kind of layer may have no entry: an MLP where all layers have experts.
        assert {k: ours.get(k) for k in split if "_b_proj" not in k} == {
            k: v for k, v in split.items() if "_b_proj" not in k
        }, name


@pytest.mark.parametrize(
    ("name", "settings", "where"),
    [
        ("llama", {"tp": 3}, "--tp"),
        ("llama", {"tp": 0}, "--tp"),
        ("qwen3-moe", {"tp": 3}, "--tp"),
        ("llama", {"pp": 33}, "--pp"),
        ("llama", {"cp": 2}, "--text-tokens"),
        ("llama", {"cp": 2, "text_tokens": 6}, "--text-tokens"),
        ("llama", {"cp": 2, "text_tokens": 2, "cp_plan": "ring"}, "--text-tokens"),
        ("llama", {"cp": 4, "tp": 4, "text_tokens": 32, "cp_plan": "ulysses"}, "--cp"),
        ("llama", {"cp": 2, "text_tokens": 8, "past": 1}, "--past"),
        ("llama", {"cp": 2, "text_tokens": 8, "logits": "last"}, "--logits"),
        ("llama", {"cp": 2, "text_tokens": 8, "attention": "eager"}, "--attention"),
        ("llama", {"cp": 3, "tp": 4, "text_tokens": 9, "cp_plan": "ulysses"}, "--cp"),
        ("llama", {"cp_plan": "ring"}, "--cp-plan"),
        ("gemma2", {"cp": 2, "text_tokens": 8}, "--cp-plan"),
        ("mistral", {"cp": 2, "text_tokens": 8, "cp_plan": "ring"}, "--cp-plan"),
        ("llama", {"cp": 2, "text_tokens": 8, "cp_plan": "ulysses", "attention": "flash_attention_2"}, "--attention"),
        ("llama", {"tp": 2, "rank": 2}, "--rank"),
        ("llama", {"dp": 2}, "--batch"),
        ("llama", {"tp": 2, "ep": 2}, "--ep"),
        ("mixtral", {"dp": 2, "ep": 2, "batch": 3, "dispatch": "all-to-all", "pairs": "1,1;1,1"}, "--pairs"),
        ("mixtral", {"dp": 2, "ep": 2, "batch": 2, "dispatch": "all-to-all"}, "--dispatch, --pairs"),
        ("mixtral", {"dp": 2, "ep": 2, "batch": 2, "pairs": "1,1;1,1"}, "--dispatch, --pairs"),
        ("mixtral", {"dp": 2, "ep": 2, "batch": 2, "pairs": ""}, "--dispatch, --pairs"),
        ("mixtral", {"dp": 2, "ep": 2, "batch": 2, "dispatch": "all-to-all", "pairs": ""}, "--dispatch, --pairs"),
        ("mixtral", {"dp": 2, "ep": 2, "batch": 2, "dispatch": "all-to-all", "pairs": "1,2;1,1"}, "--pairs"),
        ("mixtral", {"dp": 2, "ep": 2, "batch": 2, "dispatch": "all-to-all", "pairs": "2,0;2,0"}, "--pairs"),
        ("mixtral", {"dp": 2, "ep": 2, "batch": 2, "dispatch": "all-to-all", "pairs": "2,x;2"}, "--pairs"),
        ("mixtral", {"tp": 2, "ep": 2, "dispatch": "all-to-all", "pairs": "1,1;1,1"}, "--pairs"),
        ("mixtral", {"dp": 2, "dispatch": "all-to-all", "batch": 2, "pairs": "2;2"}, "--dispatch"),
        (
            "mixtral",
            {"dp": 2, "ep": 2, "batch": 2, "new_tokens": 1, "dispatch": "all-to-all", "pairs": "1,1;1,1"},
            "--pairs",
        ),
        (
            "deepseek-v3",
            {"tp": 2, "ep": 2, "batch": 2, "plan": "vllm", "dispatch": "all-to-all", "pairs": "4,4;4,4"},
            "--dispatch, --plan",
        ),
        (
            "mixtral",
            {"tp": 2, "ep": 2, "cp": 2, "text_tokens": 8, "dispatch": "all-to-all", "pairs": "8,8;8,8"},
            "--dispatch",
        ),
        ("mixtral", {"dp": 3, "ep": 3, "batch": 3}, "--ep"),
        ("mixtral", {"dp": 4, "ep": 3, "batch": 4}, "--ep"),
        ("llama", {"rank": 1}, "--rank"),
    ],
)
def test_runs_that_are_refused(name: str, settings: dict[str, Any], where: str) -> None:
    model = target(name)
    with pytest.raises(Problems) as caught:
        model.workload(**{**TOKEN, **settings})
    assert where in {problem.where for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("settings", "data", "said"),
    [
        ({"tp": 2, "ep": 2}, [[[[0, 1]]] * 32], "these ranks send no tokens to experts"),
        ({}, [[[[0, 1]]] * 32], "these ranks send no tokens to experts"),
        ({"dp": 2, "ep": 2, "batch": 2}, [[[[0, 1]]] * 32], r"wrong number of tokens.*\n.*\[0\]\[0\]\n.*2\n.*1"),
        ({"dp": 2, "ep": 2, "batch": 2}, [[[[0, 1], [0, 2]]] * 31], r"wrong number of layers.*\n.*\n.*32\n.*31"),
        ({"dp": 2, "ep": 2, "batch": 2}, [[[[0, 1], [0, 8]]] * 32], r"invalid choice.*\n.*prefill\[0\]\[0\]\[1\]"),
        (
            {"dp": 2, "ep": 2, "batch": 2, "dispatch": "all-to-all"}, [[[[0, 1], [0, 2]]] * 32],
            "a rank without a single pair",
        ),
    ],
)  # fmt: skip
def test_routing_files_that_are_refused(settings: dict[str, Any], data: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "routing.json").write_text(json.dumps({"prefill": data}), encoding="utf-8")
    with pytest.raises(Problems, match=said):
        target("mixtral").workload(**{**TOKEN, **settings, "pairs": tmp_path / "routing.json"})


def test_no_limits_of_a_batch_with_a_given_routing(tmp_path: Path) -> None:
    """Another batch, or another length, has other tokens, of which the file has no choices."""
    (tmp_path / "routing.json").write_text(json.dumps({"prefill": [[[[0, 1], [2, 5]]] * 32]}), encoding="utf-8")
    run = "mixtral-8x7b@chat,text_tokens=1,new_tokens=0,batch=2,dp=2,ep=2"
    found = [costproof.fits(f"{run}{more}", on="h200-sxm") for more in ("", f",pairs={tmp_path}/routing.json")]
    assert [bool(fits.limits) for fits in found] == [True, False]
    assert any(note.startswith("no limits are solved") for note in found[1].notes)


def test_a_mesh_of_one_device_is_the_same_run() -> None:
    model = target("llama")
    assert model.workload(tp=1, ep=1, pp=1, dp=1, cp=1, rank=0) == model.workload()


def test_no_peak_formula_of_ranks_that_share_tokens() -> None:
    model = target("llama")
    with pytest.raises(Incomplete, match="share tokens"):
        model.memory(model.workload(tp=2, plan="megatron"))


def test_gpt2_has_no_plan() -> None:
    model = target("gpt2")
    with pytest.raises(BadInput):
        model.shares(model.workload())
    text = (Path(__file__).parents[2] / "docs/devices.md").read_text(encoding="utf-8").partition("with a plan: ")[2]
    given = set(re.findall(r"[\w-]+", text.partition("; other models")[0]))
    for name in given | {"gpt2", "clip-vision", "siglip-vision", "vit", "bert", "t5", "deepseek-ocr"}:
        expected = (
            nullcontext() if name in given else pytest.raises(Problems, match="ranks of this model are not counted")
        )
        with expected:
            assert load_target(name, None, trusted=False).workload(tp=2)


def test_files_state_ranks_collectives_and_copies(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    small = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 102}  # fmt: skip
    config.write_text(json.dumps(small))
    run: dict[str, Any] = {"config": config, "sources": "analytic", "text_tokens": 5}
    found = json.loads(costproof.report("llama", **run, tp=4, rank=3).render("static-json"))
    assert found["parallel"] == {"tp": 4, "ep": 1, "pp": 1, "dp": 1, "cp": 1, "fsdp": 1}
    assert found["rank"] == 3
    assert [row["ranks"] for row in found["ranks"]] == [[0, 1, 2], [3]]
    # The counted rank's totals are its row.
    assert found["ranks"][1]["stages"]["prefill"]["flops"] == found["stages"][0]["flops"]
    sent = [c["sent_bytes"] for c in found["collectives"] if c["stage"] == "prefill"]
    assert sum(sent) == found["stages"][0]["sources"]["analytic"]["comm_bytes"]
    assert {"norms", "key/value heads that several ranks hold"} <= {d["what"] for d in found["duplicates"]}
    alone = json.loads(costproof.report("llama", **run).render("static-json"))
    assert not {"parallel", "rank", "ranks", "collectives", "duplicates"} & alone.keys()
    assert "comm_bytes" not in alone["stages"][0]["sources"]["analytic"]
    text = costproof.report("llama", **run, tp=4, rank=3).render("static-md")
    assert "| Copies | Stage | Of | Amount |" in text
    assert "rank 3 of 4 devices (tp 4)" in text
    assert "| prefill | prompt | `lm_head` | all_gather | tp, 4 ranks | bfloat16 | 1 |" in text
    # 26 of 102 entries of two tables of 64 on ranks 0 to 2, 24 on rank 3
    assert "| 0 to 2 |" in text
    assert "Ranks: 4 devices, tp 4" in costproof.report("llama", **run, tp=4).render("html")
    assert "Ranks: " not in costproof.report("llama", **run).render("static-md")


@cache
def _roofline_of_a_rank() -> Any:
    return costproof.roofline("llama-3.1-70b@chat,tp=8", on="h100-sxm")


@cache
def _fits_of_a_rank() -> Any:
    return costproof.fits("llama-3.1-70b@chat,tp=8", memory="30GB")


def test_operands_of_other_commands_take_a_mesh() -> None:
    """The bound of a rank's decode step reads 1 / 8 of the weights, but for norms."""
    assert costproof.roofline("llama-3.1-70b@chat", on="h100-sxm") != _roofline_of_a_rank()
    assert _fits_of_a_rank().weights_bytes == 17_640_734_720
    changed = costproof.diff("llama@chat", "llama@chat,tp=2")
    assert changed is not None


_SMALL: Final[dict[str, Any]] = {
    "hidden": 64, "intermediate": 96, "layers": 2, "heads": 4, "kv_heads": 4, "head_dim": 16, "vocab": 102,
}  # fmt: skip
_MIXED: Final[dict[str, Any]] = {**_SMALL, "layers": 1, "experts": 8, "top_k": 2, "expert_width": 64}
_LATENT: Final[dict[str, Any]] = {
    **_MIXED, "layers": 2, "groups": 1, "best_groups": 1, "dense_layers": 1, "kv_rank": 16, "q_rank": 24, "nope": 16,
    "rope": 8, "value": 16,
}  # fmt: skip
AGREE: Final[tuple[tuple[str, dict[str, Any], dict[str, Any]], ...]] = (
    (
        "llama",
        {**_SMALL, "layers": 1, "attention_bias": True, "mlp_bias": True},
        {"tp": 4, "rank": 3, "attention": "eager"},
    ),
    ("deepseek-v2", _LATENT, {"tp": 4, "rank": 3, "batch": 2}),
    ("qwen3-moe", _MIXED, {"tp": 4, "ep": 4, "experts": "batched_mm", "dp": 2, "batch": 3}),
    ("qwen3-moe", _MIXED, {"dp": 4, "ep": 2, "batch": 7, "rank": 2}),  # the last two ranks have 2 sequences and 1
    ("deepseek-v2", {**_LATENT, "layers": 1, "dense_layers": 0}, {"tp": 2, "dp": 2, "ep": 4, "batch": 4, "rank": 2}),
    (
        "deepseek-v2",
        _LATENT,
        {"dp": 2, "ep": 2, "batch": 2, "rank": 1, "new_tokens": 0, "dispatch": "all-to-all", "pairs": "10,8;18,0"},
    ),
    ("gemma2", {**_SMALL, "layers": 3, "window": 8}, {"pp": 2, "tp": 2, "rank": 1, "past": 5}),
    ("deepseek-v2", {**_LATENT, "layers": 4, "dense_layers": 2}, {"pp": 3, "tp": 2, "ep": 2, "rank": 5}),
)
IMPLIED: Final[tuple[tuple[str, dict[str, Any], dict[str, Any]], ...]] = (
    ("qwen3-moe", _MIXED, {"dp": 4, "ep": 4, "batch": 4, "rank": 1}),
    ("gemma3", {**_SMALL, "layers": 7, "window": 8}, {"pp": 3, "rank": 1, "attention": "eager"}),
)
"""Experts over batches are in the cases with ``ep`` 2, stages of windows and of layers of two kinds in the last ones.
"""


@pytest.mark.parametrize(
    ("name", "sizes", "run"),
    [
        pytest.param(*case, id=f"{case[0]} {case[2]}", marks=[pytest.mark.thorough] if case in IMPLIED else [])
        for case in (*AGREE, *IMPLIED)
    ],
)
def test_formulas_and_graphs_of_a_rank_agree(name: str, sizes: dict[str, Any], run: dict[str, Any]) -> None:
    model = target(name)
    small = replace(model, config=replace(model.config, **sizes))
    work = small.workload(**{"text_tokens": 9, "new_tokens": 2, **run})
    found = count_sources(Prepared(small, work, ("analytic", "static")))
    assert found.discrepancy.verdict == "exact", [f.id for f in found.discrepancy.findings if f.status != "exact"][:4]
    metrics = {f.metric for f in found.discrepancy.findings}
    assert {"comm_bytes", "comm_payload_bytes", "messages", "unfused_bytes", "floor_bytes"} <= metrics


def test_the_bound_times_what_a_rank_sends() -> None:
    """Of 512 tokens and of one, a rank sends 161 all-reduces and a gather."""
    sent = [2 * 7 * 161 * (8192 // 8) * 2 * tokens + 7 * (128_256 // 8) * 2 * tokens for tokens in (512, 1)]
    found = _roofline_of_a_rank()
    assert found.links is not None
    assert sum(c.sent_bytes for c in found.links.collectives) == sum(sent)


def test_limits_of_a_rank_are_solved() -> None:
    """30 GB less the weights and buffers of a rank, over 513 tokens of 40,960 bytes for each sequence."""
    found = _fits_of_a_rank()
    held = 17_640_734_720 + 512
    (least,) = (x for x in found.limits if (x.setting, x.held) == ("batch", "weights and cache"))
    assert least.at == (30 * 10**9 - held) // (513 * 40_960) + 1
    assert found.cache_bytes == 513 * 40_960


@pytest.mark.parametrize("mesh", ["", ",tp=2"])
def test_equal_layers_share_their_formulas(mesh: str) -> None:
    """Of 32 layers, whose modules are looked up by identity: one object for each module of one layer."""
    target, work = target_with_settings(f"llama-3.1-8b@chat{mesh}")
    assert isinstance(target, CausalTarget)
    plan = target.plan_of(work) if mesh else None
    parts = decoder_parts(target.config, work, target.style(), plan)(prompt_call(past=False))
    shared = {id(part.layers): part.layers for part in parts if part.role.startswith("text.layer")}
    assert len(shared) == len({part.role for part in parts if part.role.startswith("text.layer")})


def test_weights_of_a_rank_from_headers(tmp_path: Path) -> None:
    """Experts are divided by ep 8, all else is on each rank: vLLM issue 51473 has 778.148 / 8 + 27.171 = 124.439 GiB.

    Its model is DeepSeek-V4-Pro with the MTP module: 62 layers of 384 experts of three matrices in fp4, a byte for two
    columns and one for each 32 of a row. Without the module they would be 765.598 and 26.723 GiB. The same sum of
    DeepSeek-V3's checkpoint without its module: 58 layers of 256 experts of three matrices in fp8, with a scale of 4
    bytes for each block of 128 x 128.
    """
    row = next(row for row in json.loads(ROWS.read_text(encoding="utf-8")) if row["name"] == "DeepSeek-V4-Pro")
    target, _ = write_row(row, tmp_path)
    for modules, printed in ((1, ["778.148", "27.171", "124.439"]), (0, ["765.598", "26.723", "122.423"])):
        found = costproof.stored(target, next_token=modules)
        experts = sum(part.bytes for part in found.parts if ".experts." in part.name)
        assert experts == (61 + modules) * 384 * 3 * (7168 * 3072 // 2 + 7168 * 3072 // 32)
        rest = found.totals.bytes - experts
        assert [f"{n / 2**30:.3f}" for n in (experts, rest, experts // 8 + rest)] == printed
    experts = 58 * 256 * 3 * (7168 * 2048 + 56 * 16 * 4)
    run = "deepseek-v3@chat,text_tokens=1,new_tokens=0,batch=8"
    one, rank = (costproof.fits(f"{run}{mesh}", memory="1GB").stored_bytes or 0 for mesh in ("", ",dp=8,ep=8"))
    assert rank == experts // 8 + (one - experts)
    assert [f"{n / 2**30:.3f}" for n in (experts, one - experts, rank)] == ["609.149", "17.772", "93.915"]
