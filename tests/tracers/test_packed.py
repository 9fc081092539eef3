"""Attention as kernels run it: packed rows, whose pairs are tried one by one, in the graph, the run and the judge."""

from __future__ import annotations

import random
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import costproof
from costproof.ledger.capture import Capture
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.graph import Graph, OpCall
from costproof.opgraph.kept import kept_work
from costproof.opgraph.mask_bands import BandMasks
from costproof.opgraph.mask_rows import QueryRowMasks, with_lengths
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.registry import UnknownCost, cost_of
from costproof.patches.flash_attention import missing
from costproof.tracers.kept_pairs import RunValues
from tests.support.counted import agreed_totals, attention_totals
from tests.support.opcalls import call, value
from tests.tracers.packed_models import DIM, HEADS, LENGTHS

pytestmark = pytest.mark.usefixtures("one_process")
KERNELS = ("torch_attn._varlen_attn.default", "aten._flash_attention_forward.default",
           "flash_attn._flash_attn_varlen_forward.default")  # fmt: skip
PROJECTIONS = 2 * 64 * 64 * (3 * 64 + 64)
"""Of 64 rows of 64: queries, keys and values, and the result."""
SCORES = HEADS * (10**2 + 20**2 + 34**2)


def draws(seed: int) -> list[tuple[list[tuple[int, int]], int, int]]:
    """Return (queries and keys of each sequence, window to the left, to the right); -1 for no limit."""
    rng = random.Random(seed)
    found = []
    for _ in range(200):
        pairs = [(rng.randint(0, 9), rng.randint(0, 12)) for _ in range(rng.randint(1, 5))]
        found.append((pairs, rng.choice((-1, rng.randint(0, 10))), rng.choice((-1, 0, 0, rng.randint(0, 5)))))
    return found


def brute(queries: int, keys: int, left: int, right: int) -> int:
    """Each pair tried: the last query is aligned with the last key."""
    return sum(
        1
        for i, j in product(range(queries), range(keys))
        if (left < 0 or j >= i + keys - queries - left) and (right < 0 or j <= i + keys - queries + right)
    )


def packed_call(kernel: str, pairs: list[tuple[int, int]], left: int, right: int) -> OpCall:
    """A kernel on the rows of some sequences, with the starts of the sequences as inputs."""
    flash = kernel.startswith("flash_attn")
    q, k, v = (value(sum(p[at] for p in pairs), HEADS, DIM) for at in (0, 1, 1))
    starts = [value(len(pairs) + 1, dtype="int32", origin="input", name=name) for name in ("starts", "key_starts")]
    of = ("cu_seqlens_{}", "max_seqlen_{}") if flash else ("cum_seq_{}", "max_{}") if "aten" in kernel else ("cu_seq_{}", "max_{}")  # noqa: E501  # fmt: skip
    names = dict(zip(("q", "k", "v") if flash else ("query", "key", "value"), (q, k, v), strict=True))
    attrs: dict[str, Any] = {of[1].format(x): max(p[at] for p in pairs) for at, x in enumerate("qk")}
    if "torch_attn" in kernel:
        attrs |= {"window_size": [left, right], "is_causal": (left, right) == (-1, 0)}
    else:
        attrs |= {"window_size_left": left, "window_size_right": right}
        attrs |= {"causal" if flash else "is_causal": right == 0}
    named = {**names, of[0].format("q"): starts[0], of[0].format("k"): starts[1]}
    return call(kernel, [q, k, v, *starts], [q], attrs, named)


def starts_of(pairs: list[tuple[int, int]], at: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return np.cumsum([0, *(p[at] for p in pairs)]).astype(np.int32)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_pair_of_packed_rows(kernel: str) -> None:
    for pairs, left, right in draws(1):
        op = packed_call(kernel, pairs, left, right)
        given = {"starts": partial(starts_of, pairs, 0), "key_starts": partial(starts_of, pairs, 1)}
        work = cost_graph(with_lengths(Graph((op,), op.outputs), given))
        (cost,) = work.costs
        assert isinstance(cost, OpCost), cost
        full, kept = (HEADS * sum(brute(q, k, *w) for q, k in pairs) for w in ((-1, -1), (left, right)))
        assert (cost.flops, cost.vector) == (2 * full * 2 * DIM, 6 * full)
        for counter in (BandMasks(work.graph, {}), QueryRowMasks(work.graph, {})):
            found = kept_work(work, counter)
            assert (found[0].scores, found[0].flops) == (kept, 2 * kept * 2 * DIM) if full else not found


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_bound_is_never_below_the_work(kernel: str) -> None:
    for pairs, left, right in draws(2):
        cost = cost_of(packed_call(kernel, pairs, left, right))
        full = 2 * HEADS * sum(brute(q, k, -1, -1) for q, k in pairs) * 2 * DIM
        if isinstance(cost, UnknownCost):
            assert isinstance(cost.bound, int)
            assert full <= cost.bound
            # A query meets at most all keys, and at most those of the longest sequence.
            rows, longest = sum(q for q, _ in pairs), max(k for _, k in pairs)
            assert cost.bound <= 2 * HEADS * rows * longest * 2 * DIM
        else:  # one sequence, or all of the same lengths
            assert cost.flops == full


@cache
def counted(name: str) -> Capture:
    return costproof.capture(f"tests.tracers.packed_models:{name}")


def triangle(n: int) -> int:
    return n * (n + 1) // 2


@pytest.mark.parametrize("name", ["plain", "written", "held"])
def test_documents_that_see_each_their_own(name: str) -> None:
    assert agreed_totals(counted(name)) == attention_totals(PROJECTIONS, SCORES, SCORES, DIM)


@pytest.mark.parametrize("name", ["causal", "from_lengths"])
def test_causal_documents(name: str) -> None:
    kept = HEADS * sum(map(triangle, LENGTHS))
    assert agreed_totals(counted(name)) == attention_totals(PROJECTIONS, SCORES, kept, DIM)


def test_a_window_in_documents() -> None:
    # 7 keys before its own: the first 8 queries see 1, 2, ..., 8, all others 8.
    band = sum(triangle(8) + 8 * (n - 8) for n in LENGTHS)
    assert agreed_totals(counted("window")) == attention_totals(PROJECTIONS, SCORES, HEADS * band, DIM)


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_the_function_of_the_flash_attention_package() -> None:
    band = sum(triangle(8) + 8 * (n - 8) for n in LENGTHS)
    assert agreed_totals(counted("flash")) == attention_totals(PROJECTIONS, SCORES, HEADS * band, DIM)


def test_a_cache_that_is_not_full() -> None:
    # Keys used: 10, 12, 30. Of 20 queries the last 12 see 1, 2, ..., 12 keys, of 34 the last 30.
    scores = HEADS * (10 * 10 + 20 * 12 + 34 * 30)
    kept = HEADS * (triangle(10) + triangle(12) + triangle(30))
    assert agreed_totals(counted("partly")) == attention_totals(PROJECTIONS, scores, kept, DIM)


def test_without_lengths_there_is_a_bound() -> None:
    capture = counted("on_meta")
    for source in ("static", "dynamic"):
        ledger = capture.ledger(source)
        assert ledger is not None
        (missing_op,) = ledger.unknown_ops
        # 64 queries meet at most 34 keys each.
        assert missing_op.bound_flops == 2 * HEADS * 64 * 34 * 2 * DIM
        assert ledger.total("flops") is None
    assert costproof.compare(capture).verdict == "incomplete"


def test_lengths_that_contradict_the_call_are_not_counted() -> None:
    ledger = counted("too_long").ledger("static")
    assert ledger is not None
    (wrong,) = ledger.unknown_ops
    assert wrong.why == "a packed sequence of 44 queries is longer than the maximum of 34 that the call states"


def test_values_next_to_a_run_are_dropped_once_a_tensor_is_overwritten() -> None:
    known, starts = RunValues(), torch.zeros(4, dtype=torch.int32, device="meta")
    known.add(starts, torch.tensor([0, 1, 2, 3], dtype=torch.int32))
    aten = torch.ops.aten
    part = aten.slice.Tensor(starts, 0, 1)
    known.follow(aten.slice.Tensor, "slice", (starts, 0, 1), {}, part, product=False)
    assert known.get(part).tolist() == [1, 2, 3]
    known.follow(aten.add_.Scalar, "add_", (part, 4), {}, aten.add_.Scalar(part, 4), product=False)
    assert known.get(starts).tolist() == [0, 5, 6, 7]
    other = torch.zeros(3, dtype=torch.int32, device="meta")
    known.follow(aten.copy_.default, "copy_", (part, other), {}, aten.copy_.default(part, other), product=False)
    assert known.get(starts).is_meta
