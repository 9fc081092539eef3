"""Ranks that share a sequence: formulas, graph and run, and real ranks that exchange by gloo."""

from __future__ import annotations

import sys
from typing import Any, Final

import pytest
import torch.distributed as dist

from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from tests.oracles.gloo_ranks import run_ranks
from tests.oracles.gloo_sequences import rank_main
from tests.tracers.test_ranks import LATENT, but_thorough, small, workload

CASES: Final = {
    "ring, first rank": ("llama", {"kv_heads": 4}, {"cp": 2, "cp_plan": "ring", "new_tokens": 3}),
    "ring, a rank between": ("qwen2", {"kv_heads": 4}, {"cp": 4, "cp_plan": "ring", "rank": 2, "batch": 1}),
    "zigzag, first rank": ("llama", {"kv_heads": 4}, {"cp": 4, "new_tokens": 2}),
    "zigzag, last rank, tp": ("llama", {"kv_heads": 4}, {"cp": 2, "tp": 2, "rank": 3, "new_tokens": 3}),
    "zigzag with experts": ("qwen3-moe", {"window": 0}, {"cp": 4, "rank": 2, "new_tokens": 1}),
    "ulysses, tp": ("llama", {"kv_heads": 4}, {"cp": 2, "tp": 2, "cp_plan": "ulysses", "rank": 1, "new_tokens": 1}),
    "heads with windows": (
        "gemma2",
        {"kv_heads": 8, "window": 11, "layers": 2},
        {"cp": 4, "tp": 2, "cp_plan": "ulysses", "rank": 3, "new_tokens": 2, "batch": 1},
    ),
    "heads with sinks, a window of all": (
        "gpt-oss",
        {"kv_heads": 4, "window": 17, "layers": 2},
        {"cp": 2, "tp": 2, "cp_plan": "ulysses", "rank": 2, "new_tokens": 1},
    ),
    "heads, a window by a mask": (
        "mistral",
        {"kv_heads": 4, "window": 9},
        {"cp": 2, "cp_plan": "ulysses", "new_tokens": 1},
    ),
    "latents, first rank, zigzag": ("deepseek-v2", LATENT, {"cp": 2, "new_tokens": 2}),
    "latents absorbed, zigzag": (
        "deepseek-v2",
        {**LATENT, "layers": 1},
        {"cp": 2, "new_tokens": 2, "decoding": "absorbed"},
    ),
    "latents, last rank, ulysses, tp": (
        "deepseek-v2",
        {**LATENT, "layers": 1, "kv_rank": 12},  # heads of ranks are not wider than two latents, nor are these twice
        {"cp": 2, "tp": 2, "rank": 3, "cp_plan": "ulysses", "new_tokens": 2},
    ),
}


IMPLIED: Final = {"zigzag, first rank", "zigzag with experts"}
"""It is in the case of latents, and Llama in that of the last rank; ``test_fsdp_ranks`` has experts with sequences."""


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(("family", "sizes", "mesh"), but_thorough(CASES, IMPLIED))
def test_three_sources_agree(family: str, sizes: dict[str, Any], mesh: dict[str, Any]) -> None:
    target = small(family, **{"layers": 2 if sizes is LATENT else 1, **sizes})
    work = workload(target, **{"text_tokens": 16, "new_tokens": 0, **mesh})
    found = count_sources(Prepared(target, work, ("analytic", "static", "dynamic")))
    wrong = [f.id for f in found.discrepancy.findings if f.status != "exact"]
    assert wrong == []
    assert found.discrepancy.verdict == "exact"
    metrics = {f.metric for f in found.discrepancy.findings}
    assert {"comm_bytes", "comm_payload_bytes", "messages", "unfused_bytes", "vector_flops", "kept_scores"} <= metrics


@pytest.mark.skipif(not (dist.is_gloo_available() and sys.platform == "linux"), reason="gloo on Linux")
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_real_ranks_return_the_same_and_send_as_much(ranks: int) -> None:
    """Logits of a prompt and of the step behind it are one device's; sockets send what formulas count.

    Batches of 2 and of 4 sequences of 16 positions differ by 2 x 16 / n positions a rank, whose 4 heads of keys and
    values of 8 weigh 4 bytes: (n - 1) 2 x 16 / n x 64 x 4 in each of 2 layers; Ulysses exchanges (n - 1) / n of
    queries and results, 64 elements, too; a step gathers n - 1 parts of these 64. Another step of 2 more sequences
    gathers n - 1 times 16 logarithms of 4 bytes, and all-reduces 128 elements: 2 (n - 1) / n of 512 bytes. Of latents 8
    heads of keys of 12 and values of 8 are expanded, 160 elements of a position, and as many of queries and results. An
    absorbed step adds up 8 sums of 16 elements.
    """
    positions = 2 * 16 // ranks
    step = 2 * ((ranks - 1) * 16 * 4 + 2 * (ranks - 1) * 512 // ranks)
    for found in run_ranks(rank_main, ranks):
        assert len(found) == 9
        for name, of in found.items():
            # Partial results are merged in float32, as torch does.
            assert all(off < 2e-6 < 0.5 < of["largest"] for each in of["off"].values() for off in each), name
            prompt, after = 2 * (ranks - 1) * positions * 64 * 4, step
            if name.endswith("ulysses"):
                widths = 160 + 160 if name.startswith("deepseek") else 64 + 128
                prompt = 2 * (ranks - 1) * positions * widths * 4 // ranks
                after = step if name.startswith("deepseek") else 2 * (ranks - 1) * 2 * 64 * 4 // ranks
            elif name.startswith("deepseek"):
                prompt, after = 2 * (ranks - 1) * positions * 160 * 4, 2 * (ranks - 1) * (64 + 2 * 1024 // ranks)
            if of["sent"] and of["sent"][0] is not None:
                small_prompt, small_both, large_prompt, large_both = of["sent"]
                assert large_prompt - small_prompt == prompt, name
                assert large_both - small_both == prompt + after, name
