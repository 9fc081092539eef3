"""Jagged nested tensors: counted by their rows, and attention by the lengths of the call, pair by pair."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

import costproof
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, Incomplete
from costproof.models.registry import load_target
from costproof.opgraph.costed import CostedGraph, cost_graph
from costproof.opgraph.graph import Graph
from costproof.opgraph.kept import kept_work
from costproof.opgraph.mask_rows import QueryRowMasks, with_lengths
from costproof.opgraph.rules.cost import OpCost
from costproof.patches.inference import inference_context
from costproof.tracers.dispatched_trace import trace_dispatched
from costproof.tracers.exported import export_graph
from costproof.tracers.paths import mask_inputs
from tests.support.counted import agreed_totals, attention_totals
from tests.tracers import nested_models
from tests.tracers.nested_models import DIM, HEADS, LENGTHS, WIDTH, Block, jagged
from tests.tracers.test_packed import brute

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.usefixtures("one_process"),
]
ROWS = sum(LENGTHS)
LAYERS = 2 * ROWS * WIDTH * (4 * WIDTH + 2 * 3 * WIDTH)
"""Queries, keys, values and the result; up to three times the width and down."""
SCORES = HEADS * (10**2 + 20**2 + 34**2)
CAUSAL = HEADS * (10 * 11 + 20 * 21 + 34 * 35) // 2


def counted(name: str) -> Capture:
    return costproof.capture(f"tests.tracers.nested_models:{name}")


@pytest.mark.parametrize(
    ("name", "scores"),
    [
        ("open_", SCORES),
        ("causal", CAUSAL),
        ("of_lengths", CAUSAL),
        ("of_offsets", SCORES),
        ("of_list", CAUSAL),
        ("as_nested", SCORES),
        ("embedded", CAUSAL),
    ],
)
def test_a_layer_on_nested_tensors(name: str, scores: int) -> None:
    assert agreed_totals(counted(name)) == attention_totals(LAYERS, SCORES, scores, DIM)


def test_heads_in_groups() -> None:
    fewer = 2 * ROWS * WIDTH * 2 * 2 * DIM  # two heads less of keys and of values
    assert agreed_totals(counted("grouped")) == attention_totals(LAYERS - fewer, SCORES, CAUSAL, DIM)


def test_queries_and_keys_of_different_lengths() -> None:
    scores = HEADS * (10 * 7 + 20 * 5 + 34 * 9)
    products = 2 * ROWS * WIDTH * WIDTH + 2 * (7 + 5 + 9) * WIDTH * 2 * WIDTH
    assert agreed_totals(counted("crossed")) == attention_totals(products, scores, scores, DIM)


def test_bytes_and_vector_work() -> None:
    capture = counted("open_")
    dense = costproof.count(Block(), torch.ones(1, ROWS, WIDTH)).capture.ledger("static")
    assert dense is not None
    for source in ("static", "dynamic"):
        ledger = capture.ledger(source)
        assert ledger is not None
        pairs = HEADS * ROWS**2 - SCORES  # which only the dense rows have
        assert ledger.total("vector_flops") == (dense.total("vector_flops") or 0) - 6 * pairs
        for metric in ("params", "weight_bytes", "weight_read_bytes", "floor_bytes"):
            assert ledger.total(metric) == dense.total(metric), metric


DRAWS = [
    [random.Random(seed).randint(0, 9) for _ in range(random.Random(-seed).randint(2, 6))] for seed in range(1, 61)
]


def nested_rows(lengths: list[int]) -> Any:
    rows, offsets = torch.ones(sum(lengths), 8), torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(rows, offsets, min_seqlen=min(lengths), max_seqlen=max(lengths))


def many() -> Any:
    return nested_models.Many(), {"given": [nested_rows(lengths) for lengths in DRAWS]}


def work_of(graph: Graph, given: Any) -> tuple[CostedGraph, QueryRowMasks]:
    work = cost_graph(with_lengths(graph, given))
    return work, QueryRowMasks(work.graph, given)


@pytest.mark.parametrize("source", ["static", "dynamic"])
def test_random_lengths(source: str) -> None:
    target: Any = load_target(f"{__name__}:many")
    workload = target.workload()
    built = target.build(workload)
    if source == "static":
        (job,) = target.export_jobs(built, workload)
        graph, given = export_graph(job).graph, mask_inputs(job.args, {}, known=job.known)
    else:
        (run,) = target.runs(built, workload)
        graph, given = trace_dispatched(run).graph, mask_inputs(run.kwargs, {}, "input.", run.known)
    work, counter = work_of(graph, given)
    kept = kept_work(work, counter)
    found = [
        (cost.flops, kept[i].scores if cost.flops else 0)
        for i, (op, cost) in enumerate(zip(work.graph.ops, work.costs, strict=True))
        if "nested_attention" in op.name and isinstance(cost, OpCost)
    ]
    assert len(found) == len(DRAWS) == 60
    for i, (lengths, (flops, scores)) in enumerate(zip(DRAWS, found, strict=True)):
        every, seen = (2 * sum(brute(n, n, -1, right) for n in lengths) for right in (-1, 0 if i % 2 else -1))
        assert (flops, scores) == (2 * every * 2 * 4, seen), lengths


@pytest.mark.parametrize("causal", [False, True])
def test_the_operator_computes_what_attention_does(causal: bool) -> None:
    torch.manual_seed(0)
    module = Block(causal=causal, key_heads=2).eval()
    parts = [torch.randn(n, WIDTH) for n in (3, 1, 5)]
    given = torch.nested.nested_tensor(parts, layout=torch.jagged)
    with torch.no_grad(), inference_context(module):
        found = module(given).unbind()
    for part, ours in zip(parts, found, strict=True):
        with torch.no_grad():
            assert torch.allclose(module(part[None])[0], ours, atol=1e-5)


def test_a_call_of_a_live_module_leaves_it_unchanged() -> None:
    module = Block(causal=True)
    report = costproof.count(module, jagged())
    assert agreed_totals(report.capture) == attention_totals(LAYERS, SCORES, CAUSAL, DIM)
    assert not module._forward_pre_hooks
    assert "x.values float32[64,64], x.offsets int64[4]" in report.capture.workload.what


def test_without_lengths_there_is_a_bound() -> None:
    given: Any = torch.nested.nested_tensor_from_jagged(
        torch.ones(ROWS, WIDTH, device="meta"), torch.empty(4, dtype=torch.int64, device="meta"), max_seqlen=34
    )
    report = costproof.count(Block().to("meta"), given)
    for source in ("static", "dynamic"):
        ledger = report.capture.ledger(source)
        assert ledger is not None
        (missing,) = ledger.unknown_ops
        # 64 queries meet at most 64 keys each; without values the maximum is not taken from the call.
        assert missing.bound_flops is not None
        assert missing.bound_flops >= 2 * SCORES * 2 * DIM
        assert ledger.total("flops") is None


@pytest.mark.parametrize(("name", "what"), [("strided", "strided layout"), ("holes", "a nested tensor with holes")])
def test_nested_tensors_that_are_refused(name: str, what: str) -> None:
    with pytest.raises(BadInput, match=what) as refused:
        counted(name)
    assert refused.value.fix


def test_layers_of_torch_that_take_no_jagged_tensors() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, batch_first=True)
    with pytest.raises(Incomplete) as refused:
        costproof.count(layer, jagged())
    assert "scaled_dot_product_attention" in str(refused.value.fix)


def test_peaks_of_the_graph_by_hand() -> None:
    """While GELU runs: its argument and result, the sum that is added later, rows and offsets of the input."""
    (call,) = costproof.peaks("tests.tracers.nested_models:causal").calls
    assert call.graph is not None
    assert call.graph.bytes == 4 * ROWS * (2 * 3 * WIDTH + 2 * WIDTH) + 8 * (len(LENGTHS) + 1)
    assert call.eager is None
    assert any("a nested tensor" in note for note in call.notes)
