"""flex_attention: its mask function is tried on every pair, its score function counted operator by operator."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

import costproof
from costproof.ledger.errors import Bug
from costproof.opgraph.rules import attention as attention_rules
from costproof.opgraph.rules.attention import UNKNOWN_COUNT
from costproof.patches.flex_attention import kept_pairs, made_up_values, score_flops, values_wanted
from costproof.patches.inference import inference_context
from tests.support.counted import agreed_totals, attention_totals
from tests.tracers.packed_models import DIM, HEADS, LENGTHS, Flexible
from tests.tracers.test_packed import PROJECTIONS, counted, triangle

pytestmark = pytest.mark.usefixtures("one_process")
flex: Any = pytest.importorskip("torch.nn.attention.flex_attention")
ALL = HEADS * 64 * 64


def test_every_pair_of_random_masks() -> None:
    rng = random.Random(7)
    for _ in range(200):
        batch, heads, queries, keys = (rng.randint(1, n) for n in (2, 3, 9, 11))
        window, shift, chunk = rng.randint(1, 9), rng.randint(-3, 3), rng.randint(1, 6)
        which = torch.tensor([rng.randint(0, 2) for _ in range(max(queries, keys))])
        masks = rng.choice([(1, 1), (batch, 1), (1, heads), (batch, heads)])

        def mask(b: Any, h: Any, i: Any, j: Any, /, w: Any = (window, shift, chunk, which, masks)) -> Any:
            window, shift, chunk, which, (own, each) = w
            near = (j <= i + shift) & (i - j < window + (h if each > 1 else 0))
            return near & (which[i] == which[j]) | ((i // chunk == j // chunk) & (j % 2 == (b if own > 1 else 0)))

        def kept(b: int, h: int, i: int, j: int, /, mask: Any = mask) -> bool:
            return bool(mask(*map(torch.tensor, (b, h, i, j))))

        exact = sum(kept(b, h, i, j) for b, h, i, j in product(*map(range, (*masks, queries, keys))))
        times = (batch // masks[0]) * (heads // masks[1])
        assert kept_pairs(mask, (batch, heads, queries, keys), masks) == times * exact


def test_a_mask_of_tensors_without_values_is_unknown_or_wanted() -> None:
    which = torch.zeros(4, dtype=torch.int64, device="meta")

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        return which[i] == which[j]

    assert kept_pairs(mask, (1, 1, 4, 4), (1, 1)) == UNKNOWN_COUNT
    with values_wanted() as values, pytest.raises(RuntimeError, match="no values"):
        kept_pairs(mask, (1, 1, 4, 4), (1, 1))
    assert values.missed
    with made_up_values():  # which say nothing, also of a mask that reads no tensor
        assert kept_pairs(lambda b, h, i, j: i >= j, (1, 1, 4, 4), (1, 1)) == UNKNOWN_COUNT


def test_tensors_are_found_wherever_a_mask_function_has_them() -> None:
    class Holder:
        def __init__(self) -> None:
            self.which = torch.tensor([0, 0, 1])

        def __call__(self, b: Any, h: Any, i: Any, j: Any) -> Any:
            return self.which[i] == self.which[j]

        def same(self, b: Any, h: Any, i: Any, j: Any) -> Any:
            return self.which[i] == self.which[j]

    def with_more(which: torch.Tensor, b: Any, h: Any, i: Any, j: Any) -> Any:
        return which[i] == which[j]

    for mask in (
        Holder().same,
        partial(with_more, torch.tensor([0, 0, 1])),
        flex.and_masks(Holder().same, lambda b, h, i, j: i >= 0),
        Holder(),
    ):
        assert kept_pairs(mask, (1, 1, 3, 3), (1, 1)) == 2 * 2 + 1


@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (lambda s, b, h, i, j: s * 2.0, 1),
        (lambda s, b, h, i, j: torch.tanh(s / 50.0) * 50.0, 3),
        (lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")), 0),
        (lambda s, b, h, i, j: s * 2 + (i - j), 2),  # the difference is of integers
    ],
)
def test_a_score_function_by_hand(function: Any, flops: int) -> None:
    assert score_flops(function) == flops


def test_a_score_function_that_cannot_be_followed_is_unknown() -> None:
    assert score_flops(lambda s, b, h, i, j: s * float(i)) == UNKNOWN_COUNT


@pytest.mark.parametrize(
    ("name", "scores"),
    [
        ("open_", ALL),
        ("causal_function", HEADS * triangle(64)),
        ("documents", HEADS * sum(map(triangle, LENGTHS))),
        ("given_mask", HEADS * sum(map(triangle, LENGTHS))),
        # Head h sees its own key and h before it: 64, 64 + 63, ...
        ("by_head", sum(64 - back for head in range(HEADS) for back in range(head + 1))),
    ],
)
def test_what_a_mask_function_leaves(name: str, scores: int) -> None:
    assert agreed_totals(counted(name)) == attention_totals(PROJECTIONS, ALL, scores, DIM)


# The scale and 5 of the softmax; of the slopes a product and a sum.
@pytest.mark.parametrize(("name", "of_a_score"), [("causal_function", 6), ("sloped", 6 + 2)])
def test_vector_work_of_a_score(name: str, of_a_score: int) -> None:
    capture = counted(name)
    for source in ("static", "dynamic"):
        ledger = capture.ledger(source)
        assert ledger is not None
        assert ledger.total("vector_flops") == of_a_score * ALL


@pytest.mark.parametrize("name", ["causal_function", "sloped", "open_"])
@pytest.mark.parametrize(("factor", "more"), [(2, 0), (1, -1)])
def test_vector_work_that_is_not_that_of_every_score_is_a_bug(
    name: str, factor: int, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graph and run count flex_attention by the same rule; its vector FLOPs are counted a second time."""
    counted_well = attention_rules.attention_cost

    def planted(grid: Any) -> Any:
        cost = counted_well(grid)
        return replace(cost, vector=factor * cost.vector + more)

    monkeypatch.setattr(attention_rules, "attention_cost", planted)
    with pytest.raises(Bug, match="vector FLOPs"):
        counted.__wrapped__(name)


def test_a_call_on_tensors_with_values_counts_the_same() -> None:
    report = costproof.count(Flexible("documents"), torch.ones(64, 64))
    for source in ("static", "dynamic"):
        ledger = report.capture.ledger(source)
        assert ledger is not None
        assert ledger.total("kept_scores") == HEADS * sum(map(triangle, LENGTHS)), source


@pytest.mark.parametrize("kind", ["documents", "sloped"])
def test_the_operator_computes_what_torch_does(kind: str) -> None:
    torch.manual_seed(0)
    module, rows = Flexible(kind).eval(), torch.randn(64, 64)
    nn.init.normal_(module.slopes)
    with torch.no_grad(), inference_context(module):
        ours = module(rows)
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        with torch.no_grad():
            assert torch.equal(module(rows), ours)
    finally:
        flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = False
