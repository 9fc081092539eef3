"""Published FLOPs that count attention by the scores that masks leave, by halves or widths: right values by hand."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn
from torch.nn import functional

from costproof import api
from costproof.claims.judge import judge_claim
from costproof.claims.terms import _windows, band, causal, triangles
from costproof.claims.truth import ClaimCase
from costproof.claims.types import Amount, Judgement, PublishedClaim
from costproof.ledger.capture import Capture
from costproof.ledger.node import CostNode, Ledger
from costproof.models.registry import mistakes_of
from tests.claims.test_windows import causes, counted, judged

# A causal decoder: Llama-3.1-8B at 4,096 tokens. In each of 32 layers 32 heads of 128 take 2 x 128 FLOPs for a score
# and 2 x 128 for its part of the weighted sum: 524,288 FLOPs for each pair of a query and a key in all layers.
LLAMA, PAIR = 70_274_254_897_152, 32 * 32 * 2 * (128 + 128)
PAIRS, TRIANGLE = 4096 * 4096, 8_390_656
"""4,096 queries see 1, 2, ... 4,096 keys: 4,096 x 4,097 / 2."""


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [(TRIANGLE, {"causal triangle"}), (PAIRS // 2, {"causal half"}), (0, {"attention missing"})],
)
def test_a_causal_decoder(pairs: int, expected: set[str]) -> None:
    assert (PAIR, TRIANGLE) == (524_288, 4096 * 4097 // 2)
    found = judged(counted("llama-3.1-8b", text_tokens=4096), "prefill", "flops", LLAMA - PAIR * (PAIRS - pairs))
    assert (found.truth, found.status, causes(found)) == (LLAMA, "explained", [expected])


# Latent attention: DeepSeek-V3 has 61 layers of 128 heads, with keys of 128 + 64 and values of 128.
@pytest.mark.parametrize(
    ("pairs", "expected"),
    [(1000 * 1001 // 2, {"causal triangle"}), (1000**2 // 2, {"causal half"}), (0, {"attention missing"})],
)
def test_latents_of_a_prompt(pairs: int, expected: set[str]) -> None:
    at = counted("deepseek-v3", text_tokens=1000)
    truth = judged(at, "prefill", "flops", 1).truth
    found = judged(at, "prefill", "flops", truth - 61 * 128 * 2 * (192 + 128) * (1000**2 - pairs))
    assert (found.status, causes(found)) == ("explained", [expected])


# Every layer with a window: Mistral-7B has 32 layers of 32 heads of 128, and a window of 4,096. The first 4,095 of
# 8,192 queries lack 4,095, 4,094, ... 1 keys: 8,192 x 4,096 - 4,096 x 4,095 / 2.
BAND = 25_167_872


@pytest.mark.parametrize(
    ("tokens", "pairs", "expected"),
    [
        (8192, BAND, [{"window band"}]),
        (8192, 8192 * 8193 // 2, [{"causal triangle"}]),
        # Half of the prompt is the width of the window, so that two names fit.
        (8192, 8192 * 4096, [{"causal half"}, {"window S x W"}]),
        (10_000, 10_000 * 4096, [{"window S x W"}]),
        (10_000, 10_000 * 4096 // 2, [{"window S x W", "causal half"}]),
        (10_000, 10_000 * 4096 - 4096 * 4095 // 2, [{"window band"}]),
        # A prompt within the window has a triangle.
        (4000, 4000 * 4001 // 2, [{"causal triangle"}]),
    ],
)
def test_a_window_in_every_layer(tokens: int, pairs: int, expected: list[set[str]]) -> None:
    assert BAND == 8192 * 4096 - 4096 * 4095 // 2
    at = counted("mistral-7b", text_tokens=tokens)
    truth = judged(at, "prefill", "flops", 1).truth
    found = judged(at, "prefill", "flops", truth - PAIR * (tokens**2 - pairs))
    named = [{name} for s in found.explanations[0].steps for name in (s.cause, *s.or_else)]
    assert found.status == "explained"
    assert (sorted(named, key=str) if len(expected) > 1 else causes(found)) == expected


# Chunked attention, which has no formulas: Llama 4 with chunks of 8 tokens in one layer and full causal attention in
# another, 20 tokens, 2 heads of 16: 2 x 2 x (16 + 16) = 128 FLOPs for a pair.
LLAMA4 = {
    "model_type": "llama4_text", "hidden_size": 32, "intermediate_size": 32, "intermediate_size_mlp": 64,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64,
    "num_local_experts": 8, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 512, "attention_chunk_size": 8,
    "no_rope_layers": [1, 0],
}  # fmt: skip
CHUNKS = 82
"""Chunks of 8, 8 and 4 tokens have 36, 36 and 10 pairs."""
WIDTH = 20 * 8


@cache
def chunked(attention: str) -> Capture:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "llama4.json"
        file.write_text(json.dumps(LLAMA4))
        return api.capture(f"hf:{file}", sources=("static",), seq_len=20, new_tokens=0, attention=attention)


def of_graph(capture: Capture, value: int, **conventions: str) -> Judgement:
    stage = capture.target.stages[-1]
    claim = PublishedClaim("c", "$", stage, "flops", Amount(str(value), value, value), conventions=conventions)
    return judge_claim(ClaimCase(claim, capture, capture.by_source["static"], mistakes_of(capture.target.name)))


# Eager attention has the same pairs.
@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("in_chunks", "in_full", "expected"),
    [
        (CHUNKS, 210, {"chunk triangles", "causal triangle"}),
        (CHUNKS, 400, {"chunk triangles"}),
        (WIDTH, 400, {"chunk S x C"}),
        (WIDTH, 210, {"chunk S x C", "causal triangle"}),
        (WIDTH // 2, 200, {"chunk S x C", "causal half"}),
        (WIDTH, 200, {"chunk S x C, not halved", "causal half"}),
        (210, 210, {"causal triangle"}),
        (200, 200, {"causal half"}),
    ],
)
def test_chunks_of_a_prompt(attention: str, in_chunks: int, in_full: int, expected: set[str]) -> None:
    at = chunked(attention)
    truth = of_graph(at, 1).truth
    found = of_graph(at, truth - 128 * (400 - in_chunks + 400 - in_full))
    assert expected in causes(found)
    assert found.status in ("explained", "undetermined")


@pytest.mark.usefixtures("one_process")
def test_chunks_that_are_stated() -> None:
    at = chunked("sdpa")
    kept = of_graph(at, 1).truth - 128 * (400 - CHUNKS + 400 - 210)
    assert of_graph(at, kept, chunks="triangles", causal="triangle").status == "explained"
    assert of_graph(at, kept, chunks="triangles").status != "explained"


class Documents(nn.Module):
    """Attention of packed documents, whose mask is an input."""

    def forward(self, x: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=allowed)


def test_another_mask_has_its_kept_scores() -> None:
    """Documents of 3, 5, 1 and 4 tokens leave 6 + 15 + 1 + 10 of 13 x 13 pairs, in 2 samples of 2 heads of 4."""
    which = torch.repeat_interleave(torch.arange(4), torch.tensor([3, 5, 1, 4]))
    allowed = (which[:, None] == which) & torch.ones(13, 13, dtype=torch.bool).tril()
    at = api.count(Documents(), torch.ones(2, 2, 13, 4), allowed).capture
    pair = 2 * 2 * 2 * (4 + 4)
    found = of_graph(at, pair * (6 + 15 + 1 + 10))
    assert found.truth == pair * 13 * 13
    assert {"kept scores"} in causes(found)


# Behind a past: 300 tokens behind 700 see 701, 702, ... 1,000 keys of Llama-3.1-8B: 300 x 700 + 300 x 301 / 2.
@pytest.mark.parametrize(
    ("pairs", "expected"), [(255_150, {"causal triangle"}), (150_000, {"causal half"}), (0, {"attention missing"})]
)
def test_a_causal_decoder_behind_a_past(pairs: int, expected: set[str]) -> None:
    assert 255_150 == 300 * 700 + 300 * 301 // 2
    at = counted("llama-3.1-8b", text_tokens=300, past=700)
    truth = judged(at, "prefill", "flops", 1).truth
    found = judged(at, "prefill", "flops", truth - PAIR * (300 * 1000 - pairs))
    assert (found.status, causes(found)) == ("explained", [expected])


# Mistral-7B: 300 tokens behind 4,000. The first 95 see 4,001, 4,002, ... 4,095 keys, the other 205 the window's 4,096.
def test_a_window_behind_a_past() -> None:
    pairs = 95 * 4000 + 95 * 96 // 2 + 205 * 4096
    assert pairs == sum(min(4096, 4000 + i) for i in range(1, 301)) == 1_224_240
    at = counted("mistral-7b", text_tokens=300, past=4000)
    truth = judged(at, "prefill", "flops", 1).truth
    found = judged(at, "prefill", "flops", truth - PAIR * (300 * 4300 - pairs))
    assert (found.status, causes(found)) == ("explained", [{"window band"}])


def test_bands_and_chunks_behind_a_past_pair_by_pair() -> None:
    rng = random.Random(11)
    for _ in range(200):
        tokens, past, width = rng.randint(1, 12), rng.randint(0, 12), rng.randint(1, 14)
        pairs = [(i, j) for i in range(past, past + tokens) for j in range(i + 1)]
        assert causal(tokens, past) == len(pairs)
        assert band(tokens, width, past) == sum(i - j < width for i, j in pairs)
        assert triangles(tokens, width, past) == sum(i // width == j // width for i, j in pairs)


def test_chunks_of_a_prompt_behind_a_past() -> None:
    """20 tokens behind 5, in chunks of 8: they see 6, 7, 8 tokens of their chunk, then 1 to 8 twice, and 1."""
    node = CostNode("prefill", "prompt", "layers.0", "aten.scaled_dot_product_attention",
                    {"flops": 500 * 128, "kept_flops": (21 + 36 + 36 + 1) * 128})  # fmt: skip
    values = {("prefill", "prompt"): {"S": 20, "C": 5}, ("", ""): {}}
    capture = replace(chunked("sdpa"), target=replace(chunked("sdpa").target, symbols={"chunk_size": 8}))
    ledger = Ledger("static", (node,), ("flops", "kept_flops"), ("prefill",))
    assert _windows(capture, ledger, values) == ({}, {("prefill", "layers.0"): 8})
