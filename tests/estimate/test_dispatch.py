"""Copies of tokens for the experts of other ranks: published tables and logs, enumeration, and random routings."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations
from typing import Final

import pytest

from costproof.estimate.routing import DISPATCHES, RoutedLayers, dispatch_rows, fp8_bytes
from costproof.ledger.mesh import Dispatch, Mesh

V3: Final = RoutedLayers(58, 256, 8, 7168, 2048)
"""DeepSeek-V3 without the limit to 4 of 8 groups."""
LIMITED: Final = RoutedLayers(58, 256, 8, 7168, 2048, groups=8, best_groups=4)
MIXTRAL: Final = RoutedLayers(32, 8, 2, 4096, 14_336)
FORMS: Final = {form.name: form for form in DISPATCHES}


def copies(form: str, sizes: RoutedLayers, ranks: int, *, uniform: bool = True) -> Fraction:
    return FORMS[form].copies(sizes, Mesh(dp=ranks, ep=ranks), uniform=uniform)


@pytest.mark.parametrize(("ranks", "known"), [(8, "4.633"), (32, "7.040"), (64, "7.556")])
def test_copies_by_rank_of_a_uniform_routing(ranks: int, known: str) -> None:
    """The table of copies for 256 experts of which a token chooses 8: (g - 1) (1 - C(E - E/g, 8) / C(E, 8))."""
    assert f"{float(copies('by-rank', V3, ranks)):.3f}" == known


@pytest.mark.parametrize(("ranks", "more"), [(8, 51.1), (32, 13.6), (64, 5.9)])
def test_copies_of_aiconfigurator(ranks: int, more: float) -> None:
    """It counts min(k, E, ep - 1) copies, so many per cent more."""
    assert round(100 * (min(8, 256, ranks - 1) / float(copies("by-rank", V3, ranks)) - 1), 1) == more


def test_a_log_of_deepep() -> None:
    """DeepEP#28: EP 16, 128 tokens of which 10 of 1,024 choices are masked: 42.24 GB/s in 521.97 us.

    A message has 7,168 bytes, 56 scales of 4 and a header of 16; the result has 7,168 x 2 bytes.
    """
    header = FORMS["low-latency"].header
    assert (fp8_bytes(7168), header) == (7168 + 56 * 4, 16)
    sent = (128 * 8 - 10) * (fp8_bytes(7168) + header + 2 * 7168)
    assert sent == 22_048_416
    assert f"{sent / 521.97e-6 / 1e9:.4f}" == "42.2408"


def test_copies_of_mixtral() -> None:
    """Two of 8 experts: a rank with one of them gets a token in 7 of 28 cases, one with four in all but 6 of 28."""
    assert copies("by-rank", MIXTRAL, 8) == 7 * Fraction(7, 28)
    assert copies("by-rank", MIXTRAL, 2) == Fraction(22, 28)
    assert copies("all-to-all", MIXTRAL, 8) == Fraction(7, 4)
    assert copies("all-gather", MIXTRAL, 8) == 7
    assert copies("all-to-all", MIXTRAL, 2, uniform=False) == 2


def test_a_limit_to_groups() -> None:
    """DeepSeek-V3 on 8 nodes of 8: a token reaches at most 4 of them, 3 if one of these is its own is not assured."""
    assert copies("by-node", LIMITED, 64, uniform=False) == 4
    assert copies("by-node", V3, 64, uniform=False) == 7
    # Each node is a group: it is among the 4 of 8, and not all 8 experts are from the 96 of the others.
    assert copies("by-node", LIMITED, 64) == 7 * Fraction(1, 2) * (1 - choose(96, 8) / choose(128, 8))


def choose(items: int, of: int) -> Fraction:
    found = Fraction(1)
    for i in range(of):
        found *= Fraction(items - i, i + 1)
    return found


SMALL: Final = (RoutedLayers(1, 12, 3, 1, 1), RoutedLayers(1, 12, 3, 1, 1, 4, 2), RoutedLayers(1, 12, 2, 1, 1, 3, 2),
                RoutedLayers(1, 12, 4, 1, 1, 6, 3), RoutedLayers(1, 8, 2, 1, 1, 4, 2))  # fmt: skip


@pytest.mark.parametrize("sizes", SMALL)
def test_every_choice_of_a_small_router(sizes: RoutedLayers) -> None:
    """Average and most over all choices of groups, and of experts in them, one by one."""
    group = sizes.experts // sizes.groups
    for units in (2, 3, 4, 6, 12):
        if sizes.experts % units or not sizes.nested(units):
            continue
        share, reached, most = sizes.experts // units, Fraction(0), 0
        sets = list(combinations(range(sizes.groups), sizes.best_groups))
        for best in sets:
            every = list(combinations([e for e in range(sizes.experts) if e // group in best], sizes.top_k))
            found = [len({e // share for e in chosen}) for chosen in every]
            reached += Fraction(sum(found), len(every) * len(sets))
            most = max(most, *found)
        assert units * sizes.reached(units) == reached
        assert sizes.most_units(units) == most


def test_random_routings() -> None:
    """200 routings of 64 tokens on 8 ranks: none needs more than the bound, and on average they need the mean."""
    rng, sent, pairs = random.Random(1), 0, 0
    for _ in range(200):
        for token in range(64):
            home, chosen = token // 8, rng.sample(range(256), 8)
            ranks = {expert // 32 for expert in chosen} - {home}
            remote = sum(expert // 32 != home for expert in chosen)
            assert len(ranks) <= copies("by-rank", V3, 8, uniform=False)
            assert remote <= copies("all-to-all", V3, 8, uniform=False)
            sent, pairs = sent + len(ranks), pairs + remote
    assert abs(sent / (200 * 64) - float(copies("by-rank", V3, 8))) < 0.05
    assert abs(pairs / (200 * 64) - float(copies("all-to-all", V3, 8))) < 0.05


def test_bytes_and_flops_of_a_rank() -> None:
    """Mixtral on two ranks, each with 3 prompts of 5 tokens and two steps: 30 tokens in a call of the prompt."""
    calls = {("prefill", "prompt"): (15, 15, 1), ("decode", "steps"): (3, 3, 2)}
    found = {(d.stage, d.form, d.routing): d for d in dispatch_rows(MIXTRAL, Mesh(dp=2, ep=2), calls, 2)}
    assert len(found) == 2 * (1 + 3 * 2)
    narrow = 4096 + 32 * 4
    row = 6 * 4096 * 14_336
    gathered = found["prefill", "all-gather", "any"]
    assert gathered == Dispatch("prefill", "prompt", "all-gather", "any", "1", 32 * 15 * 16_384,
                                32 * 15 * (narrow + 8192), 32 * 60 * row)  # fmt: skip
    uniform = found["decode", "by-rank", "uniform"]
    assert (uniform.copies, uniform.sent_bytes) == ("11/14", -(-32 * 2 * 3 * 11 * 16_384 // 14))
    assert uniform.expert_flops == 32 * 2 * 6 * row  # half of 6 tokens x 2 choices
    most = found["prefill", "low-latency", "bound"]
    assert (most.copies, most.sent_bytes) == ("2", 32 * 15 * 2 * (16_384 + 16))
    assert most.expert_flops == gathered.expert_flops  # all tokens may choose two of its four experts


def test_forms_that_a_mesh_lacks() -> None:
    """Nodes of 8 need more than 8 ranks, and a mean needs groups that ranks do not cut."""
    calls = {("prefill", "prompt"): (1, 1, 1)}
    forms = {d.form for d in dispatch_rows(V3, Mesh(dp=8, ep=8), calls, 2)}
    assert forms == set(FORMS) - {"by-node"}
    cut = RoutedLayers(1, 12, 2, 1, 1, 3, 2)
    means = {d.form for d in dispatch_rows(cut, Mesh(dp=2, ep=2), calls, 2) if d.routing == "uniform"}
    assert means == {"all-to-all", "low-latency"}
