"""Kept scores of formulas, of exported graphs and of runs, against every pair of a query and a key tried one by one."""

from __future__ import annotations

import random
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np
import pytest
import sympy
import torch
from torch import nn
from torch.nn import functional

from costproof import api
from costproof.algebra.symbols import sym
from costproof.analytic.attention import Attention
from costproof.ledger.errors import Bug
from costproof.opgraph import account as accounting
from costproof.opgraph import kept as keeping
from costproof.opgraph.account import account, hidden_reads
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.graph import CausalMask, Graph, OpCall, Size, Value
from costproof.opgraph.kept import FirstKnown, KeptWork, MaskUse, kept_work, unfused_attention
from costproof.opgraph.mask_bands import BandMasks, band_pairs
from costproof.opgraph.mask_rows import QueryRowMasks
from costproof.opgraph.reuse import AvoidableTraffic
from tests.support.opcalls import call, value

HEADS, DIM = 2, 4


def brute(queries: int, past: int, window: int = 0, chunk: int = 0) -> int:
    """Each pair tried: query i stands at past + i."""
    return sum(
        1
        for i, j in product(range(past, past + queries), range(past + queries))
        if j <= i and (not window or i - j < window) and (not chunk or i // chunk == j // chunk)
    )


def draws(seed: int, count: int = 200) -> list[tuple[int, int, int]]:
    """Return (queries, past, window); the window is 0 for none."""
    rng = random.Random(seed)
    return [(rng.randint(1, 12), rng.randint(0, 12), rng.choice((0, rng.randint(1, 26)))) for _ in range(count)]


def formula(queries: Size, past: Size, window: Size = 0, **more: Any) -> Size:
    return (
        Attention(3, queries, HEADS, 1, DIM, 2, past=past, causal=True, window=window, **more)
        .costs()
        .kept_scores["attention"]
    )


def test_formulas() -> None:
    for queries, past, window in draws(1):
        if not window:
            assert formula(queries, past) == 3 * HEADS * brute(queries, past)
        elif queries >= window - 1:
            assert formula(queries, 0, window) == 3 * HEADS * brute(queries, 0, window)
        if window > 1:  # a step behind a full window
            assert formula(1, window - 1, window) == 3 * HEADS * brute(1, window + past, window)


def test_formulas_in_symbols() -> None:
    n, p = sym("S"), sym("P")
    assert sympy.expand(formula(n, p) - 3 * HEADS * (n * p + n * (n + 1) / 2)) == 0


def test_chunks_of_a_prompt_sum_to_the_prompt() -> None:
    rng = random.Random(2)
    for _ in range(50):
        lengths = [rng.randint(1, 9) for _ in range(rng.randint(1, 5))]
        parts = [formula(n, sum(lengths[:i])) for i, n in enumerate(lengths)]
        assert sum(parts) == formula(sum(lengths), 0)


ROWS: Final = QueryRowMasks(Graph((), ()), {})


def test_bands_of_both_graph_sources() -> None:
    n = sym("S")
    for queries, past, window in draws(3):
        left, keys = window - 1 if window else None, past + queries
        exact = brute(queries, past, window)
        assert ROWS.in_band(queries, keys, left, 0, at_end=True) == exact
        assert band_pairs(queries, keys, left, 0, at_end=True) == exact
        symbolic = sympy.sympify(band_pairs(n, n + past, left, 0, at_end=True))
        assert symbolic.subs(n, queries) == exact


def test_a_fact_decides_on_which_side_of_a_window_a_prompt_is() -> None:
    n = sym("S")
    longer = band_pairs(n, n, 15, 0, at_end=True, facts=[n - 15])
    assert sympy.expand(longer - (16 * 17 / sympy.Integer(2) + 16 * (n - 16))) == 0
    shorter = band_pairs(n, n, 15, 0, at_end=True, facts=[14 - n])
    assert sympy.expand(shorter - n * (n + 1) / 2) == 0
    assert sympy.sympify(band_pairs(n, n, 15, 0, at_end=True)).has(sympy.Max)


class Positions:
    """The operators that transformers makes a mask of, on positions of queries and keys."""

    def __init__(self, queries: Size, keys: Size, past: Size) -> None:
        self.queries, self.keys, self.ops = queries, keys, list[OpCall]()
        rows = self.op("arange", [], (queries,), end=queries)
        rows = self.op("add", [rows], (queries,), other=past)
        rows = self.op("unsqueeze", [rows], (1, queries), dim=0)
        rows = self.op("unsqueeze", [rows], (1, 1, queries), dim=1)
        self.query = self.op("unsqueeze", [rows], (1, 1, queries, 1), dim=3)
        columns = self.op("arange", [], (keys,), end=keys)
        columns = self.op("unsqueeze", [columns], (1, keys), dim=0)
        columns = self.op("unsqueeze", [columns], (1, 1, keys), dim=1)
        self.key = self.op("unsqueeze", [columns], (1, 1, 1, keys), dim=2)

    def op(self, name: str, tensors: list[Value], shape: tuple[Size, ...], dtype: str = "int64", **attrs: Any) -> Value:
        out = value(*shape, dtype=dtype)
        self.ops.append(call(f"aten.{name}.default", tensors, [out], attrs))
        return out

    def apply(self, name: str, *tensors: Value, like: Value | None = None, dtype: str = "bool", **attrs: Any) -> Value:
        shape = (1, 1, self.queries, self.keys) if like is None else like.shape
        return self.op(name, list(tensors), shape, dtype, **attrs)

    def mask(self, window: int, chunk: int, block: int) -> Value:
        found = self.apply("le", self.key, self.query)
        if window:
            begin = self.apply("sub", self.query, like=self.query, dtype="int64", other=window)
            found = self.apply("__and__", self.apply("gt", self.key, begin), found)
        if chunk:
            parts = [self.apply("floor_divide", x, like=x, dtype="int64", other=chunk) for x in (self.key, self.query)]
            found = self.apply("__and__", self.apply("eq", *parts), found)
        if block:  # the first tokens see each other
            early = [self.apply("lt", x, like=x, other=block) for x in (self.key, self.query)]
            found = self.apply("__or__", found, self.apply("__and__", *early))
        return found

    def kept(self, mask: Value, counter: type[BandMasks | QueryRowMasks]) -> KeptWork:
        q, k = value(3, HEADS, self.queries, DIM), value(3, HEADS, self.keys, DIM)
        op = call("aten.scaled_dot_product_attention.default", [q, k, k, mask], [q])
        work = cost_graph(Graph((*self.ops, op), op.outputs))
        (found,) = kept_work(work, counter(work.graph, {})).values()
        return found


@pytest.mark.parametrize("counter", [BandMasks, QueryRowMasks])
def test_masks_that_a_graph_makes(counter: type[BandMasks | QueryRowMasks]) -> None:
    for queries, past, window in draws(4):
        made = Positions(queries, past + queries, past)
        found = made.kept(made.mask(window, 0, 0), counter)
        exact = 3 * HEADS * brute(queries, past, window)
        assert (found.scores, found.flops) == (exact, 2 * exact * 2 * DIM)


def test_chunks_and_blocks_are_counted_in_numbers_alone() -> None:
    for at, (queries, past, window) in enumerate(draws(5)):
        chunk, block = 1 + at % 7, at % 5 if past == 0 else 0
        made = Positions(queries, past + queries, past)
        mask = made.mask(window, chunk, block)
        exact = sum(
            1
            for i, j in product(range(past, past + queries), range(past + queries))
            if (j <= i and (not window or i - j < window) and i // chunk == j // chunk) or (i < block and j < block)
        )
        assert made.kept(mask, QueryRowMasks).scores == 3 * HEADS * exact
        assert made.kept(mask, BandMasks).scores is None


def test_a_mask_in_symbols() -> None:
    n, p = sym("S"), sym("P")
    made = Positions(n, n + p, p)
    found = made.kept(made.mask(0, 0, 0), BandMasks)
    assert found.scores is not None
    assert sympy.expand(found.scores - 3 * HEADS * (n * p + n * (n + 1) / 2)) == 0


def test_a_bias_that_products_give_hides_nothing_however_it_is_viewed() -> None:
    """The relative positions of SAM: results of an einsum, of which slices are added to the scores."""
    n = sym("S")
    made = Positions(n, n, 0)
    factor = value(1, HEADS, n, n, dtype="bfloat16")
    product = made.apply("matmul", factor, factor, like=factor, dtype="bfloat16")
    bias = made.apply("slice", product, like=factor, dtype="bfloat16", dim=0, start=0, end=2**63 - 1)
    assert made.kept(bias, BandMasks).scores == 3 * HEADS * n**2


def test_long_masks_take_intervals() -> None:
    made = Positions(131_072, 131_072, 0)
    n, w, c = 131_072, 1_000, 8_192
    assert made.kept(made.mask(w, 0, 0), QueryRowMasks).scores == 3 * HEADS * (w * (w + 1) // 2 + w * (n - w))
    made = Positions(n, n, 0)
    assert made.kept(made.mask(0, c, 0), QueryRowMasks).scores == 3 * HEADS * (n // c) * c * (c + 1) // 2


def test_masks_that_are_inputs() -> None:
    for queries, past, window in draws(6, 60):
        mask = value(3, 1, queries, past + queries, origin="input", name="mask")
        q, k = value(3, HEADS, queries, DIM), value(3, HEADS, past + queries, DIM)
        op = call("aten.scaled_dot_product_attention.default", [q, k, k, mask], [q])
        use, given = MaskUse(op, mask), {"mask": CausalMask(window)}
        for counter in (BandMasks(Graph((op,), ()), given), QueryRowMasks(Graph((op,), ()), given)):
            found = counter.under_masks([use], 3 * HEADS, queries, past + queries)
            assert found == 3 * HEADS * brute(queries, past, window)
        values = np.random.default_rng(queries).integers(0, 2, (3, 1, queries, past + queries)).astype(bool)
        counted = QueryRowMasks(Graph((op,), ()), {"mask": partial(np.asarray, values)})
        exact = HEADS * int(values.sum())
        boolean = value(3, 1, queries, past + queries, dtype="bool", origin="input", name="mask")
        assert counted.under_masks([MaskUse(op, boolean)], 3 * HEADS, queries, past + queries) == exact
        assert QueryRowMasks(Graph((op,), ()), {}).under_masks([use], 3 * HEADS, queries, past + queries) is None


class Documents(nn.Module):
    """Attention under the mask of its caller, in one of several forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        if self.form == "fused":
            return functional.scaled_dot_product_attention(x, x, x, attn_mask=allowed)
        scores = x @ x.transpose(-1, -2)
        if self.form == "filled":
            scores = scores.masked_fill(~allowed, float("-inf"))
        elif self.form == "in place":
            hidden = torch.full((13, 13), torch.finfo(x.dtype).min).masked_fill_(allowed, 0)
            scores = scores + hidden
        elif self.form == "added":
            scores = scores + torch.zeros_like(allowed, dtype=x.dtype).masked_fill(~allowed, torch.finfo(x.dtype).min)
        else:
            scores = torch.where(allowed, scores, -1e9)
        return scores.softmax(-1) @ x


@pytest.mark.parametrize("form", ["fused", "filled", "added", "in place", "where"])
def test_packed_documents_are_counted_from_the_mask_of_the_call(form: str) -> None:
    lengths = torch.tensor([3, 5, 1, 4])
    which = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    allowed = (which[:, None] == which) & torch.ones(13, 13, dtype=torch.bool).tril()
    capture = api.count(Documents(form), torch.ones(2, HEADS, 13, DIM), allowed).capture
    exact = 2 * HEADS * sum(int(n) * (int(n) + 1) // 2 for n in lengths)
    for source in ("static", "dynamic"):
        ledger = capture.ledger(source)
        assert ledger is not None
        assert (ledger.total("kept_scores"), ledger.total("kept_flops")) == (exact, exact * 4 * DIM), source


class Held(nn.Module):
    """Attention of two blocks under a mask that the module holds in one of several ways."""

    def __init__(self, mask: torch.Tensor, way: str) -> None:
        super().__init__()
        self.query, self.way = nn.Linear(DIM, DIM, bias=False), way
        if way == "parameter":
            self.mask = nn.Parameter(mask, requires_grad=False)
        elif "buffer" in way:
            self.register_buffer("mask", mask, persistent=way == "buffer")
        else:
            self.mask = {"list": [0, mask], "dict": {"left": (mask,)}}.get(way, mask)  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held: Any = self.mask
        mask = held["left"][0] if self.way == "dict" else held[1] if self.way == "list" else held
        n = x.shape[-2]
        return functional.scaled_dot_product_attention(self.query(x), x, x, attn_mask=mask[..., :n, :n])


@pytest.mark.parametrize("way", ["attribute", "list", "dict", "buffer", "buffer that is not stored", "parameter"])
def test_masks_that_the_module_holds(way: str) -> None:
    """A random mask of a module counts by its own pairs, as a boolean mask or one that is added to scores."""
    rng = random.Random(way)
    for added in (True,) if way == "parameter" else (False, True):
        queries, leading = rng.randint(2, 12), rng.choice(((), (1, 1)))
        flags = [[rng.random() < 0.5 for _ in range(queries + 2)] for _ in range(queries + 2)]
        mask = torch.tensor(flags).reshape(*leading, queries + 2, queries + 2)
        mask = torch.where(mask, 0.0, -torch.inf) if added else mask
        model = nn.Sequential(Held(mask, way), Held(mask, way))
        capture = api.count(model, torch.ones(3, HEADS, queries, DIM)).capture
        exact = 2 * 3 * HEADS * sum(flags[i][j] for i in range(queries) for j in range(queries))
        for source in ("static", "dynamic"):
            ledger = capture.ledger(source)
            assert ledger is not None
            assert ledger.total("kept_scores") == exact, (source, added)


def test_a_parameter_that_learns_and_numbers_that_are_small_hide_nothing() -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.learned = nn.Parameter(torch.full((5, 5), -3.0))
            self.register_buffer("slopes", torch.arange(5.0).repeat(5, 1))
            self.distances = torch.ones(5, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            bias = self.learned - self.get_buffer("slopes") + self.distances
            return functional.scaled_dot_product_attention(x, x, x, attn_mask=bias)

    capture = api.count(Biased(), torch.ones(1, HEADS, 5, DIM)).capture
    for source in ("static", "dynamic"):
        ledger = capture.ledger(source)
        assert ledger is not None
        assert ledger.total("kept_scores") == HEADS * 5 * 5, source


def test_a_module_without_parameters_holds_its_mask_too() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(6, 6, dtype=torch.bool).tril())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(x, x, x, attn_mask=self.get_buffer("mask"))

    capture = api.count(Fixed(), torch.ones(1, HEADS, 6, DIM)).capture
    for source in ("static", "dynamic"):
        ledger = capture.ledger(source)
        assert ledger is not None
        assert ledger.total("kept_scores") == HEADS * 21, source  # 1 + 2 + .. + 6


def test_a_table_that_is_interpolated_weighs_no_values() -> None:
    # As SAM does at other sizes: the product of queries and the resized table is added to the scores.
    rows, keys, heads, width = 3, 5, 2, 4
    table, resized = value(width, 7, origin="param", name="rel_pos"), value(width, keys)
    query, values = (value(heads, n, width, origin="input") for n in (rows, keys))
    bias, scores, weights, out = (value(heads, rows, n) for n in (keys, keys, keys, width))
    ops = [
        call("aten.upsample_linear1d.default", [table], [resized]),
        call("aten.matmul.default", [query, resized], [bias]),
        call("aten.matmul.default", [query, value(heads, width, keys, origin="input")], [scores]),
        call("aten.add.Tensor", [scores, bias], [weights]),
        call("aten.softmax.int", [weights], [sums := value(heads, rows, keys)]),
        call("aten.matmul.default", [sums, values], [out]),
    ]
    costed = cost_graph(Graph(tuple(ops), (), (), ()))
    found = kept_work(costed, _AnyBias())
    assert {i: work.scores for i, work in found.items() if work.scores} == {2: heads * rows * keys}


def test_streams_that_are_mixed_and_added_to_are_no_scores() -> None:
    """Hyper-connections: streams times a matrix, plus what a layer adds, times the matrix of the next layer."""
    tokens, streams, width = 3, 2, 8
    first, second = (value(tokens, streams, streams, origin="input") for _ in range(2))
    given, added = (value(tokens, streams, width, origin="input") for _ in range(2))
    mixed, left, out = (value(tokens, streams, width) for _ in range(3))
    ops = [
        call("aten.matmul.default", [first, given], [mixed]),
        call("aten.add.Tensor", [added, mixed], [left]),
        call("aten.matmul.default", [second, left], [out]),
    ]
    assert not kept_work(cost_graph(Graph(tuple(ops), (out,), (), ())), _AnyBias())


def test_an_empty_cache_is_no_parameter() -> None:
    """A cache that begins as a tensor of no elements, which an operator without inputs makes, is joined with keys."""
    rows, heads, width = 3, 2, 4
    query, key = (value(heads, rows, width, origin="input") for _ in range(2))
    empty, keys, turned = value(0), value(heads, rows, width), value(heads, width, rows)
    scores, masked, weights = (value(heads, rows, rows) for _ in range(3))
    mask = value(rows, rows, origin="input", name="mask")
    ops = [
        call("aten.empty.memory_format", [], [empty]),
        call("aten.cat.default", [empty, key], [keys]),
        call("aten.transpose.int", [keys], [turned]),
        call("aten.matmul.default", [query, turned], [scores]),
        call("aten.add.Tensor", [scores, mask], [masked]),
        call("aten.softmax.int", [masked], [weights]),
        call("aten.matmul.default", [weights, query], [value(heads, rows, width)]),
    ]
    costed = cost_graph(Graph(tuple(ops), (), (), ()))
    assert [(pair.first, pair.second) for pair in unfused_attention(costed)] == [(3, 6)]


def test_a_product_with_weights_behind_an_embedding_compares_no_tokens() -> None:
    """Gates of a layer of linear attention, of which a triangle scales the states that it adds to."""
    rows, width = 3, 4
    ids, table = value(rows, dtype="int64", origin="input", name="ids"), value(9, width, origin="param")
    embedded, halved, typed, out = (value(rows, width) for _ in range(4))
    gates, scaled = (value(rows, rows) for _ in range(2))
    ops = [
        call("aten.embedding.default", [table, ids], [embedded]),
        call("aten.mul.Tensor", [embedded, embedded], [halved]),
        call("aten.type_as.default", [halved, embedded], [typed]),
        call("aten.linear.default", [typed, value(rows, width, origin="param")], [gates]),
        call("aten.tril.default", [gates], [scaled]),
        call("aten.matmul.default", [scaled, value(rows, width, origin="input")], [out]),
    ]
    assert list(unfused_attention(cost_graph(Graph(tuple(ops), (out,), (), ())))) == []


def test_what_is_written_into_a_tensor_that_is_read_is_read() -> None:
    """Features of images, which a program writes into the embeddings of a text; nothing reads the result by itself."""
    text, features = value(5, 4, origin="input", name="text"), value(3, 4, origin="input", name="features")
    ops = [
        call(
            "aten.masked_scatter_.default", [text, value(5, 1, dtype="bool", origin="input"), features], [value(5, 4)]
        ),
        call("aten.relu.default", [text], [out := value(5, 4)]),
    ]
    assert not hidden_reads(cost_graph(Graph(tuple(ops), (out,), (), ())), {})


@pytest.mark.parametrize("op", ["aten._assert_tensor_metadata.default", "aten.sym_size.int", "aten.zeros_like.default"])
def test_an_operator_that_reads_no_data_of_a_key_leaves_it_avoidable(op: str) -> None:
    """An export asserts the dtype of a tensor that ``.float()`` casts, which a trace of the run does not do."""
    query, key, values = (value(1, 1, rows, DIM, dtype="float32", origin="input", name=name)
                          for name, rows in (("q", 1), ("k", 2), ("v", 2)))  # fmt: skip
    mask = value(1, 1, 1, 2, dtype="bool", origin="input", name="mask")
    out = value(1, 1, 1, DIM, dtype="float32")
    attention = call("aten.scaled_dot_product_attention.default", [query, key, values, mask], [out])
    made = [value(1, 1, 2, DIM, dtype="float32")] if "zeros" in op else []
    work = cost_graph(Graph((call(op, [key], made), attention), (out,)))
    nodes = account(work, lambda *_: ("decode", "step"), (), "float32", FirstKnown(())).nodes
    assert sum(node.cost("skippable_bytes") or 0 for node in nodes) == 2 * 2 * DIM * 4  # both keys, both values


def test_bytes_that_a_mask_may_spare_are_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of a step, and two keys and values of which an unknown mask may hide any."""
    query, key, values = (value(1, 1, rows, DIM, dtype="float32", origin="input", name=name)
                          for name, rows in (("q", 1), ("k", 2), ("v", 2)))  # fmt: skip
    op = call("aten.scaled_dot_product_attention.default",
              [query, key, values, value(1, 1, 1, 2, dtype="bool", origin="input", name="mask")],
              [out := value(1, 1, 1, DIM, dtype="float32")])  # fmt: skip
    square = call("aten.scaled_dot_product_attention.default", [key, key, key], [key], {"is_causal": True})

    def counted() -> int:
        work = cost_graph(Graph((op,), (out,)))
        nodes = account(work, lambda *_: ("decode", "step"), (), "float32", FirstKnown(())).nodes
        return sum(node.cost("skippable_bytes") or 0 for node in nodes)

    assert counted() == 2 * 2 * DIM * 4
    # Every key of a square is seen by its own query.
    assert not kept_work(cost_graph(Graph((square,), ())), FirstKnown(()))[0].hides_keys
    plants: list[tuple[Any, str, Any, Any]] = [
        (accounting, "hidden_reads", lambda *_: frozenset({key.id}), counted),
        (AvoidableTraffic, "bytes", lambda *_: 8, counted),
        (accounting, "floors", lambda work, regions, *_: dict.fromkeys(regions, 72), counted),
        (keeping, "_behind_band", lambda *_: True,
         lambda: kept_work(cost_graph(Graph((square,), ())), FirstKnown(()))),
    ]  # fmt: skip
    for owner, name, wrong, command in plants:
        monkeypatch.setattr(owner, name, wrong)
        with pytest.raises(Bug, match="counted in another way"):
            command()
        monkeypatch.undo()


class _AnyBias:
    """Counts all pairs: a bias of numbers hides none."""

    def in_band(self, queries: Size, keys: Size, left: Size | None, right: Size | None, *, at_end: bool) -> Size | None:
        """Not asked here."""
        raise AssertionError

    def under_masks(self, masks: Any, grids: Size, queries: Size, keys: Size) -> Size | None:
        """All of them."""
        return grids * queries * keys
