"""Pairs that masks leave, counted once more in the run: by torch's own masks, whatever rules both graphs share."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import costproof
from costproof.ledger.progress import silent
from costproof.models.specs import Run
from costproof.opgraph import kept, mask_bands, mask_rows
from costproof.patches import flex_attention
from costproof.run import capture
from costproof.tracers import flop_counter_mode, kept_pairs
from costproof.tracers.hooks import causal_mask, trace_hooks
from costproof.tracers.kept_pairs import band
from tests.support.variants import with_variants

HEADS, WIDTH = 2, 8
Change = tuple[Any, str, Any]
"""Owner, name and value of an attribute that is replaced."""
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Own(nn.Module):
    """Attention of its own between projections: [B, S, 16] -> [B, H, S_q, 8]."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend, self.qkv = attend, nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        return self.attend(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def fewer_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return causal(q[:, :, :3], k, v)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k[:, :1], v[:, :1], is_causal=True, enable_gqa=True)


def positions(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return torch.arange(q.shape[2], device=q.device)[:, None], torch.arange(k.shape[2], device=q.device)[None]


def flags(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = positions(q, k)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=i >= j)


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = positions(q, k)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=(i >= j) & (i - j < 3))


def added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = positions(q, k)
    mask = torch.zeros(q.shape[2], k.shape[2], device=q.device).masked_fill(i < j, -torch.inf)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / WIDTH**0.5
    mask = torch.full((q.shape[2], k.shape[2]), torch.finfo(scores.dtype).min, device=q.device)
    found: Tensor = (scores + torch.triu(mask, diagonal=1)).softmax(-1) @ v
    return found


def without_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.tril(q @ k.transpose(-1, -2)) @ v


def own_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = positions(q, k)
    scores = (q @ k.transpose(-1, -2)).masked_fill(i < j, -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    found: Tensor = (weights / weights.sum(-1, keepdim=True)) @ v
    return found


def of_each_sequence(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Hide key 0 from the first sequence and key 1 from the second, by a mask that is repeated for each head."""
    i, j = positions(q, k)
    shown = (i >= 0) & (j != torch.arange(q.shape[0], device=q.device)[:, None, None, None])
    scores = (q @ k.transpose(-1, -2)).flatten(0, 1)
    hidden = ~shown.expand(-1, HEADS, -1, -1).reshape(scores.shape)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v.flatten(0, 1)


def windows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each row of the batch is a window with a mask of its own, which all heads share: earlier keys, or later ones."""
    i, j = positions(q, k)
    turn = 1 - 2 * torch.arange(2, device=q.device).view(2, 1, 1)
    mask = torch.zeros(2, *q.shape[2:3], *k.shape[2:3], device=q.device).masked_fill((i - j) * turn < 0, -100_000.0)
    scores = q @ k.transpose(-1, -2)
    shown = scores.view(1, *scores.shape) + mask[None, :, None]
    found: Tensor = shown.view(scores.shape).softmax(-1) @ v
    return found


def triangle(n: int) -> int:
    return sum(1 for i in range(n) for j in range(n) if j <= i)


def near(n: int) -> int:
    return sum(1 for i in range(n) for j in range(n) if 0 <= i - j < 3)


CASES: list[tuple[Attend, Callable[[int], int]]] = [
    (causal, triangle), (grouped, triangle), (flags, triangle), (added, triangle), (by_hand, triangle),
    (without_softmax, triangle), (own_softmax, triangle), (window, near), (windows, triangle),
    (fewer_queries, lambda n: 1 + 2 + 3),
    (of_each_sequence, lambda n: n * (n - 1)),
]  # fmt: skip


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("length", [7, 530])
@pytest.mark.parametrize(("attend", "pairs"), CASES)
def test_pairs_of_a_run(attend: Attend, pairs: Callable[[int], int], length: int, device: str) -> None:
    """530 x 530 pairs are more than are stored at once. Each pair costs 2 x (8 + 8) FLOPs."""
    with torch.device(device):
        model, x = Own(attend), torch.ones(2, length, HEADS * WIDTH)
    judged = trace_hooks(Run("r", model, {"x": x}, lambda path, call: ("all", "once"))).judged
    queries = 3 if attend is fewer_queries else length
    assert sum(n or 0 for n in judged.kept.values()) == 2 * HEADS * pairs(length)
    hidden = 2 * HEADS * (queries * length - pairs(length)) * 2 * (WIDTH + WIDTH)
    assert sum(n or 0 for n in judged.hidden.values()) == hidden


class Learned(Own):
    """Attention of 3 learned queries, over the rows of an input or over themselves, projected by a layer or not."""

    def __init__(self, *, projected: bool, itself: bool) -> None:
        super().__init__(causal)
        self.learned, self.projected, self.itself = nn.Parameter(torch.zeros(1, 3, HEADS * WIDTH)), projected, itself

    def forward(self, x: Tensor) -> Tensor:
        rows = self.qkv(self.learned if self.itself else x)
        own = self.qkv(self.learned)[..., : HEADS * WIDTH] if self.projected else self.learned
        q, k, v = (t.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for t in (own, *rows.chunk(3, -1)[1:]))
        found: Tensor = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return found


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize(
    ("projected", "itself", "pairs"),
    [(True, False, HEADS * 3 * 7), (True, True, HEADS * 3 * 3), (False, False, 0)],
    ids=["projected", "over themselves", "a table"],
)
def test_projected_learned_queries_compare_tokens(projected: bool, itself: bool, pairs: int, device: str) -> None:
    """A product with the parameter itself is a projection; graph and dispatcher must agree on it."""
    with torch.device(device):
        model, x = Learned(projected=projected, itself=itself), torch.ones(1, 7, HEADS * WIDTH)
    judged = trace_hooks(Run("r", model, {"x": x}, lambda path, call: ("all", "once"))).judged
    assert sum(n or 0 for n in judged.kept.values()) == pairs
    found = costproof.count(model, x)
    dynamic = found.capture.ledger("dynamic")
    assert dynamic is not None
    assert (found.verdict, dynamic.total("kept_scores") or 0) == ("exact", pairs)


def test_bands_pair_by_pair() -> None:
    rng = random.Random(11)
    for _ in range(200):
        queries, keys = rng.randint(1, 12), rng.randint(1, 12)
        left, right = (rng.choice([None, *range(7)]) for _ in range(2))
        shift = rng.choice([0, keys - queries])
        exact = sum(
            (left is None or i + shift - j <= left) and (right is None or j - i - shift <= right)
            for i, j in product(range(queries), range(keys))
        )
        assert band(queries, keys, left, right, shift) == exact


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_declared_masks_pair_by_pair(dtype: torch.dtype) -> None:
    rng = random.Random(12)
    for _ in range(100):
        queries, window = rng.randint(1, 9), rng.randint(0, 5)
        keys = queries + rng.randint(0, 5)
        found = causal_mask(torch.empty(1, 1, queries, keys, dtype=dtype, device="meta"), window)
        shown = [[0 <= i + keys - queries - j < (window or keys) for j in range(keys)] for i in range(queries)]
        rows = found.rows(0, queries)[0, 0]
        assert (rows if dtype == torch.bool else rows == 0).tolist() == shown


class Flexible(Own):
    """flex_attention with a causal mask function."""

    def __init__(self) -> None:
        super().__init__(self.flexible)

    def flexible(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        flex: Any = torch.nn.attention.flex_attention
        n = q.shape[2]
        mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device=q.device)
        found: Tensor = flex.flex_attention(q, k, v, block_mask=mask)
        return found


def _wrong_band(change: Callable[..., Any]) -> list[Change]:
    """Return the changes of both counters of bands, which static and dynamic source call."""
    usual = mask_rows.QueryRowMasks.in_band, mask_bands.BandMasks.in_band

    def rows(self: Any, queries: Any, keys: Any, left: Any, right: Any, *, at_end: bool) -> Any:
        return change(usual[0], self, queries, keys, left, right, at_end)

    def bands(self: Any, queries: Any, keys: Any, left: Any, right: Any, *, at_end: bool) -> Any:
        return change(usual[1], self, queries, keys, left, right, at_end)

    return [(mask_rows.QueryRowMasks, "in_band", rows), (mask_bands.BandMasks, "in_band", bands)]


def _short_triangle(usual: Any, self: Any, queries: Any, keys: Any, left: Any, right: Any, at_end: bool) -> Any:
    found = usual(self, queries, keys, left, right, at_end=at_end)
    return None if found is None else found - queries  # n (n - 1) / 2


def _other_end(usual: Any, self: Any, queries: Any, keys: Any, left: Any, right: Any, at_end: bool) -> Any:
    return usual(self, queries, keys, left, right, at_end=not at_end)


def _wider(usual: Any, self: Any, queries: Any, keys: Any, left: Any, right: Any, at_end: bool) -> Any:
    return usual(self, queries, keys, left + 1 if isinstance(left, int) else left, right, at_end=at_end)


def _grids(factor: int) -> list[Change]:
    """Divide the number of grids by a factor where pairs are counted: a head count of keys, or a lost batch."""
    usual = kept._fused

    def fewer(op: Any, grid: Any, count: Any) -> Any:
        found = usual(op, grid, count)
        return replace(found, scores=None if found.scores is None else found.scores // factor)

    return [(kept, "_fused", fewer)]


def _mask_counts(wrong: Callable[[int], int]) -> list[Change]:
    changes = []
    for owner in (mask_rows.QueryRowMasks, mask_bands.BandMasks):
        usual = owner.under_masks

        def under(self: Any, masks: Any, grids: Any, queries: Any, keys: Any, usual: Any = usual) -> Any:
            found = usual(self, masks, grids, queries, keys)
            return None if found is None else wrong(found)

        changes.append((owner, "under_masks", under))
    return changes


def _wrong_flex() -> list[Change]:
    usual = flex_attention.kept_pairs
    return [(flex_attention, "kept_pairs", lambda *given: usual(*given) - 1)]


def _wrong_lengths() -> list[Change]:
    usual = kept._packed
    changed: Callable[..., Any] = lambda *given: usual(*given) + 1  # type: ignore[operator]  # noqa: E731
    return [(kept, "_packed", changed)]


X = torch.ones(2, 7, HEADS * WIDTH)
Counted = tuple[nn.Module, Tensor] | str


def packed(name: str) -> str:
    return f"tests.tracers.packed_models:{name}"


PLANTED: dict[str, tuple[Callable[[], Counted], list[Change]]] = {
    "n(n-1)/2 of a causal flag": (lambda: (Own(causal), X), _wrong_band(_short_triangle)),
    "the other end of a causal flag": (lambda: (Own(fewer_queries), X), _wrong_band(_other_end)),
    "heads of keys": (lambda: (Own(grouped), X), _grids(2)),
    "a lost batch": (lambda: (Own(causal), X), _grids(2)),
    "flags": (lambda: (Own(flags), X), _mask_counts(lambda n: n - 1)),
    "an added mask": (lambda: (Own(added), X), _mask_counts(lambda n: n - 7)),
    "a mask filled in by hand": (lambda: (Own(own_softmax), X), _mask_counts(lambda n: n // 2)),
    "a window of one more": (lambda: (Own(window), X), _mask_counts(lambda n: n + 4)),
    "flex": (lambda: (Flexible(), X), _wrong_flex()),
    "flex with documents": (lambda: packed("documents"), _wrong_flex()),
    "a window of packed rows": (lambda: packed("window"), _wrong_band(_wider)),
    "packed rows": (lambda: packed("causal"), _wrong_lengths()),
    "nested rows": (lambda: "tests.tracers.nested_models:causal", _wrong_lengths()),
    "n(n-1)/2 of nested rows": (lambda: "tests.tracers.nested_models:causal", _wrong_band(_short_triangle)),
}  # fmt: skip


def counted(of: Counted) -> Any:
    return costproof.report(of) if isinstance(of, str) else costproof.count(*of)


# The same error as in the case of flex.
@pytest.mark.parametrize("name", with_variants(PLANTED, PLANTED.keys() - {"flex with documents"}))
def test_errors_that_both_graphs_share_are_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_one_process(run: Any, phases: Any) -> dict[str, Any]:
        return {source: capture._count_with(run, source, silent) for source in ("static", "dynamic")}

    monkeypatch.setattr(capture, "_static_and_dynamic", in_one_process)  # where both have what is planted
    make, changes = PLANTED[name]
    right = counted(make())
    assert right.verdict == "exact", right.sentence
    for owner, what, wrong in changes:
        monkeypatch.setattr(owner, what, wrong)
    found = counted(make())
    assert (found.verdict, found.exit_code) == ("unexplained", 1)
    named = {f.metric for f in found.discrepancy.findings if f.level == "judge"}
    assert "kept_scores" in named
    assert named <= {"kept_scores", "kept_flops"}


@pytest.mark.parametrize("name", ["fused_pairs", "_shown"])
def test_an_error_in_a_mask_leaves_all_but_its_pairs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read where pairs of a fused call are counted, and flags after a softmax."""
    model = Own(added if name == "fused_pairs" else by_hand)
    right = costproof.count(model, X)

    def broken(*given: Any) -> Any:
        raise ZeroDivisionError("no such mask")

    monkeypatch.setattr(flop_counter_mode if name == "fused_pairs" else kept_pairs, name, broken)
    found = costproof.count(model, X)
    judge, of = found.capture.judge, {x.source: x for x in right.capture.ledgers}
    judged = [x.discrepancy.judges and x.discrepancy.judges.flops for x in (found, right)]
    assert (found.verdict, judged[0]) == ("exact", judged[1])
    assert judge is not None
    assert None in {n.costs.get("kept_scores", 0) for n in judge.nodes}
    for ledger in found.capture.ledgers:
        assert ledger.nodes == of[ledger.source].nodes, "all else is as before"
    notes = [note for ledger in found.capture.ledgers for note in ledger.notes]
    assert any("an error ended the reading of a mask" in note and "no such mask" in note for note in notes)
