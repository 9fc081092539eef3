"""Ranks in real processes: they return what one device returns, and send the bytes that are counted."""

from __future__ import annotations

import sys
from typing import Final

import pytest
import torch.distributed as dist

from costproof.parametric.targets import evaluate_formulas
from costproof.tracers.dynamic import dynamic_ledger
from tests.oracles import gloo_pairs
from tests.oracles.gloo_ranks import RUNS, rank_main, run_ranks
from tests.tracers.test_ranks import small, workload

REASON: Final = "gloo and a kernel that counts the bytes of sockets"


def counted_uneven(rank: int) -> int:
    """Return how many bytes more a rank of two sends for prompts of 16 tokens more, of batches of 2 and 1."""
    target, counted = small("qwen3-moe", kv_heads=4, experts=8), []
    for length in (8, 24):
        work = workload(target, dp=2, ep=2, batch=3, rank=rank, dtype="float32", text_tokens=length, new_tokens=0)
        nodes = evaluate_formulas(target, work).nodes
        counted.append(sum(n.cost("comm_bytes") or 0 for n in nodes if "comm_bytes" in n.costs))
    return counted[1] - counted[0]


@pytest.mark.skipif(not (dist.is_gloo_available() and sys.platform == "linux"), reason=REASON)
@pytest.mark.parametrize("ranks", [2, 4])
def test_real_ranks_return_the_same_and_send_as_much(ranks: int) -> None:
    """Two and four processes that exchange by gloo return one device's logits, and send the bytes of the formulas.

    A prompt of 24 tokens differs from one of 8 by 2 x 16 positions, in float32; headers are equal and cancel.
    5 all-reduces of 32 x 64 x 4 = 8192 bytes: 2 (n - 1) / n of them, 8192 at n = 2 and 12,288 at n = 4.
    A gather of parts of 51 and 26 columns: 32 x 51 x 4 = 6528, and three times 32 x 26 x 4 = 3328.

    Where n batches share experts, each of two layers gathers hidden states, 8 bytes for each of two choices and 4 for
    its weight: (n - 1) (8192 + 512 + 256). gloo has no reduce-scatter: it all-reduces n 8192 bytes, which sends
    2 (n - 1) 8192, twice what a reduce-scatter does. Two such ranks along tp also have the all-reduces and the gather.

    Of batches of two prompts and of one, a rank broadcasts its part of the gather and reduces the other's: for its
    prompts and for those of the other rank, of 16 positions, 280 x 16 and 256 x 16 bytes. gloo's reduce exchanges
    halves and then collects them, so that who gets the sum sends half of its part too.
    """
    sent = {2: 5 * 8192 + 6528, 4: 5 * 12_288 + 3 * 3328}
    every = run_ranks(rank_main, ranks, RUNS[ranks])
    if ranks == 2:
        stages = [rank.pop("pipeline") for rank in every]
        assert stages[1]["off"] < 1e-12 < 0.5 < stages[1]["largest"]
        for stage, one in zip(stages, (8192, 0), strict=True):  # of 2 x 16 positions; the last stage sends nothing
            shorter, longer = stage["sent"]
            if shorter is not None:
                assert longer - shorter == one
    shared = 2 * (8960 + 2 * 8192)
    over = {(2, 2): shared, (4, 4): 3 * shared, (4, 2): sent[2] + shared}
    for rank, families in enumerate(every):
        assert len(families) == ranks + 2 - ranks // 4
        for name, found in families.items():
            prompts = [*map(int, name.partition(" of ")[2].split(" and "))]
            assert found["largest"] > 0.5
            assert found["theirs"] is None or found["theirs"] < 1e-5
            assert found["ours"] < 1e-5
            assert all(difference < 1e-5 for difference in found["engines"].values()), found["engines"]
            expected = over.get((ranks, len(prompts)), sent[ranks])
            if found["theirs"] is None:
                own, other = prompts if rank < ranks // 2 else prompts[::-1]
                uneven = 2 * 16 * (280 * own + 256 * other)
                assert uneven == counted_uneven(rank // (ranks // 2))
                expected = uneven + 2 * 16 * 256 * own // 2 + (sent[2] * own // 2 if ranks == 4 else 0)
            shorter, longer = found["sent"]
            if shorter is not None:
                assert longer - shorter == expected, name


def test_bytes_of_a_run_are_those_of_real_ranks() -> None:
    """The difference of two prompts, as above for two ranks."""
    target, counted = small("llama", kv_heads=4), []
    for length in (8, 24):
        work = workload(target, tp=2, dtype="float32", text_tokens=length, new_tokens=0)
        nodes = dynamic_ledger(target, work).ledger.nodes
        counted.append(sum(n.cost("comm_bytes") or 0 for n in nodes if "comm_bytes" in n.costs))
    assert counted[1] - counted[0] == 5 * 8192 + 6528


@pytest.mark.skipif(not (dist.is_gloo_available() and sys.platform == "linux"), reason=REASON)
@pytest.mark.parametrize(("ranks", "alike", "tokens"), [(2, 1, 6), (2, 2, 6), (4, 2, 5), (4, 4, 5)])
def test_pairs_of_real_ranks_are_those_of_transformers(ranks: int, alike: int, tokens: int) -> None:
    """Ranks return what ``AllToAllEP`` does, and one device; of ``alike`` ranks with one batch each sends a slice.

    Of 5 tokens two ranks send 3 and 2, four ranks 2, 2, 1 and none.
    """
    for found in run_ranks(gloo_pairs.rank_main, ranks, alike, tokens):
        assert found["theirs"] == 0
        assert found["alone"] < 1e-4
