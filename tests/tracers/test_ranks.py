"""One rank of several devices by graph and by run: hand counts, equality, and what is left behind."""

from __future__ import annotations

import copy
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from costproof.ledger.errors import BadInput, Incomplete, Problems
from costproof.ledger.metrics import COMM, Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding.ranks import COPIED, keep_stage
from costproof.models.decoding.target import CausalTarget
from costproof.models.registry import load_target
from costproof.parametric.targets import evaluate_formulas
from costproof.patches.sharding import cut_to_stage, fake_group
from costproof.run.counters import record_counters
from costproof.tracers.dynamic import DynamicResult, dynamic_ledger
from costproof.tracers.flop_counter_mode import LocalJudge
from costproof.tracers.isolated import isolated_ledger
from costproof.tracers.static import static_ledger

SIZES: Final = {
    "hidden": 64, "intermediate": 96, "layers": 2, "heads": 8, "kv_heads": 8, "head_dim": 8, "vocab": 102,
    "experts": 8, "top_k": 2, "window": 8,
}  # fmt: skip
LATENT: Final = {
    "kv_heads": 0, "head_dim": 0, "expert_width": 32, "dense_layers": 1, "groups": 2, "best_groups": 1, "q_rank": 24,
    "kv_rank": 16, "nope": 8, "rope": 4, "value": 8,
}  # fmt: skip
KEPT: Final = ("stored_bytes", "stored_elements", "resident_bytes", "unpacked_bytes")
"""Metrics of quantised checkpoints, which runs lack."""


def small(family: str, **changes: int) -> CausalTarget[Any]:
    """Return a family with sizes that a trace takes a second for."""
    target = load_target(family)
    assert isinstance(target, CausalTarget)
    wanted = {**SIZES, "expert_width": 32, **changes}
    known = {name: size for name, size in wanted.items() if name in target.config.__dataclass_fields__}
    return replace(target, config=replace(target.config, **known))


def but_thorough(cases: dict[str, tuple[Any, ...]], implied: set[str]) -> list[Any]:
    """Return cases as parameters; those that others imply are for ``--thorough``."""
    assert implied < cases.keys()
    return [pytest.param(*c, id=n, marks=[pytest.mark.thorough] if n in implied else []) for n, c in cases.items()]


def workload(target: CausalTarget[Any], **settings: Any) -> Workload:
    return target.workload(**{"text_tokens": 20, "new_tokens": 4, "batch": 2, **settings})


def collectives(ledger: Ledger) -> dict[tuple[str, str, str], tuple[int | None, ...]]:
    """Return (stage, module, kind) -> (bytes sent, payload, messages)."""
    return {
        (n.stage, n.module, n.kind): tuple(n.cost(metric) for metric in COMM)
        for n in ledger.nodes
        if any(metric in n.costs for metric in COMM)
    }


def by_module(ledger: Ledger, metrics: set[Metric]) -> dict[tuple[str, str, str, Metric], int | None]:
    """Return the sums of metrics over the operators of each module, without zeros."""
    found: dict[tuple[str, str, str, Metric], list[CostNode]] = {}
    for node in ledger.nodes:
        for metric in metrics & node.costs.keys():
            found.setdefault((node.stage, node.invocation, node.module, metric), []).append(node)
    sums = {key: [n.cost(key[3]) for n in nodes] for key, nodes in found.items()}
    return {key: None if None in each else sum(x or 0 for x in each) for key, each in sums.items() if any(each)}


@pytest.fixture(scope="module")
def last_rank() -> tuple[Ledger, DynamicResult]:
    """Llama of 2 layers on 4 devices, the last rank, which has 24 rows of the vocabulary and not 26."""
    target = small("llama")
    work = workload(target, tp=4, rank=3)
    return static_ledger(target, work), dynamic_ledger(target, work)


def test_every_collective_by_hand(last_rank: tuple[Ledger, DynamicResult]) -> None:
    """An all-reduce of M bytes among 4 sends 6 chunks of M/4, a gather 3 local parts.

    Prompt: M = 2 sequences x 20 positions x 64 x 2 bytes = 5120. The part of the logits is 2 x 20 x 26 columns x 2
    bytes = 2080, since 102 / 4 is rounded up to 26, also on the last rank. Four steps: M = 2 x 64 x 2 = 256 and 104
    bytes of logits each.
    """
    reduced = (6 * 1280, 5120, 1)
    stepped = (4 * 6 * 64, 4 * 256, 4)
    summed = ["model.embed_tokens"]
    summed += [f"model.layers.{i}.{part}" for i in range(2) for part in ("self_attn.o_proj", "mlp.down_proj")]
    expected: dict[tuple[str, str, str], tuple[int, ...]] = {
        **{("prefill", module, "all_reduce"): reduced for module in summed},
        ("prefill", "lm_head", "all_gather"): (3 * 2080, 4 * 2080, 1),
        **{("decode", module, "all_reduce"): stepped for module in summed},
        ("decode", "lm_head", "all_gather"): (4 * 3 * 104, 4 * 4 * 104, 4),
    }
    static, dynamic = last_rank
    assert collectives(static) == expected
    assert collectives(dynamic.ledger) == expected


def test_local_products_by_hand(last_rank: tuple[Ledger, DynamicResult]) -> None:
    """Of 8 heads of 8 a rank has 2, of 96 inner columns 24, of 102 rows of the head 24; products of 40 rows."""
    static, dynamic = last_rank
    projections = 2 * 40 * 64 * 16
    layer = {"q_proj": projections, "k_proj": projections, "v_proj": projections, "o_proj": projections}
    attention = 2 * (2 * 2) * 20 * 20 * (8 + 8)
    for ledger in (static, dynamic.ledger, dynamic.judge):
        flops: Counter[str] = Counter()
        for node in ledger.nodes:
            if node.stage == "prefill":
                flops[node.module] += node.cost("flops") or 0
        assert {n: flops[f"model.layers.1.self_attn.{n}"] for n in layer} == layer
        assert flops["model.layers.1.self_attn"] == attention
        assert flops["model.layers.1.mlp.gate_proj"] == flops["model.layers.1.mlp.down_proj"] == 2 * 40 * 64 * 24
        assert flops["lm_head"] == 2 * 40 * 64 * 24
    assert not dynamic.judge.unknown_ops


def test_the_judge_counts_local_tensors_once() -> None:
    """Of a product [32, 64] x [64, 64] whose columns 4 ranks share, a rank computes 16 columns.

    At the first call torch also runs the product on whole tensors that are fake, to find out the layout of the result.
    """
    with fake_group(4, 1):
        mesh = init_device_mesh("cpu", (4,))
        rows = DTensor.from_local(torch.empty(32, 64, device="meta"), mesh, [Replicate()])
        columns = DTensor.from_local(torch.empty(64, 16, device="meta"), mesh, [Shard(1)])
        judge = LocalJudge([], "")
        with torch.no_grad(), judge.watching():
            assert (rows @ columns).shape == (32, 64)
    assert list(judge.seen.flops.values()) == [2 * 32 * 64 * 16]


def test_a_token_passes_at_most_the_experts_of_a_rank() -> None:
    """Of 8 experts a rank of 8 has one, and a token chooses 2: of this rank it passes 3 x 32 x 64 elements at most."""
    target = small("qwen3-moe", layers=1)
    work = workload(target, tp=8, ep=8, new_tokens=0)
    run = dynamic_ledger(target, work).ledger
    active = {n.module: n.cost("params_active") for n in run.nodes if "params_active" in n.costs}
    assert active["model.layers.0.mlp.experts"] == 3 * 32 * 64


ROUTED: Final = {"dispatch": "all-to-all", "pairs": "5,7;4,8"}
"""A routing of two ranks with 6 tokens of 2 choices each: 12 in a row."""
CASES: Final = {
    "one token": ("llama", {}, {"tp": 2, "text_tokens": 1, "batch": 1}),
    "tied heads, data parallel": ("llama", {"tied": True}, {"tp": 2, "dp": 2, "batch": 3, "rank": 3}),
    "norms of heads, steps of one row": ("qwen3", {}, {"tp": 8, "rank": 2, "batch": 1}),
    "experts by width": ("qwen3-moe", {}, {"tp": 4, "rank": 1, "new_tokens": 0}),
    "experts by expert": ("mixtral", {}, {"tp": 4, "ep": 4, "rank": 1}),
    "only the head": ("gpt-oss", {}, {"tp": 4, "rank": 3}),
    "latents": ("deepseek-v3", LATENT, {"tp": 2, "ep": 2, "rank": 1}),
    "experts over batches": ("qwen3-moe", {}, {"dp": 2, "ep": 2, "rank": 1, "experts": "batched_mm", "new_tokens": 0}),
    "experts over tp and uneven batches": (
        "mixtral",
        {},
        {"tp": 2, "dp": 2, "ep": 4, "batch": 3, "rank": 2, "new_tokens": 0},
    ),
    "two groups of batches": ("gpt-oss", {}, {"dp": 4, "ep": 2, "batch": 7, "rank": 3}),
    "latents over batches": ("deepseek-v3", {**LATENT, "dense_layers": 0}, {"tp": 2, "dp": 2, "ep": 4, "rank": 3}),
    "pairs": ("qwen3-moe", {}, {"dp": 2, "ep": 2, "rank": 1, "new_tokens": 0, **ROUTED}),
    "pairs, gathered weights": ("mixtral", {}, {"dp": 2, "ep": 2, "new_tokens": 0, "experts": "batched_mm", **ROUTED}),
    "pairs and biases": ("gpt-oss", {}, {"dp": 2, "ep": 2, "new_tokens": 0, **ROUTED}),
    "pairs and latents": ("deepseek-v3", LATENT, {"dp": 2, "ep": 2, "new_tokens": 0, **ROUTED}),
    "pairs of slices": (
        "qwen3-moe",
        {},
        {
            "tp": 2,
            "dp": 2,
            "ep": 4,
            "rank": 1,
            "new_tokens": 0,
            "dispatch": "all-to-all",
            "pairs": "1,2,3,0;2,2,1,1;0,3,1,2;3,0,2,1",
        },
    ),
    "pairs of narrow slices": (
        "mixtral",
        {},
        {
            "tp": 4,
            "ep": 4,
            "rank": 1,
            "text_tokens": 4,
            "new_tokens": 0,
            "dispatch": "all-to-all",
            "pairs": "1,1,1,1;2,0,1,1;0,2,1,1;3,0,1,0",
        },
    ),
    "pairs of uneven slices": (
        "qwen3-moe",
        {},
        {
            "tp": 4,
            "ep": 4,
            "rank": 2,
            "batch": 1,
            "text_tokens": 5,
            "new_tokens": 0,
            "dispatch": "all-to-all",
            "pairs": "1,1,1,1;2,0,1,1;1,0,0,1;0,0,0,0",
        },
    ),
    "pairs of an empty slice": (
        "gpt-oss",
        {},
        {
            "tp": 4,
            "ep": 4,
            "rank": 3,
            "batch": 1,
            "text_tokens": 5,
            "new_tokens": 0,
            "dispatch": "all-to-all",
            "pairs": "1,1,1,1;2,0,1,1;1,0,0,1;0,0,0,0",
        },
    ),
    "pairs of uneven batches": (
        "gpt-oss",
        {},
        {"dp": 2, "ep": 2, "batch": 3, "new_tokens": 0, "dispatch": "all-to-all", "pairs": "20,4;7,5"},
    ),
    "first stage": ("gemma2", {"layers": 3, "tied": True}, {"pp": 2, "batch": 1}),
    "middle stage": ("qwen3-moe", {"layers": 3}, {"pp": 3, "tp": 2, "ep": 2, "rank": 3}),
    "last stage": ("llama", {"layers": 3, "tied": True}, {"pp": 2, "tp": 2, "dp": 2, "batch": 3, "rank": 7}),
}


IMPLIED: Final = {"latents", "pairs and latents"}
"""Latents over tp are in the case over batches, experts of each rank in that of Mixtral, pairs in those of others."""


@pytest.mark.parametrize(("family", "sizes", "mesh"), but_thorough(CASES, IMPLIED))
def test_graph_and_run_of_a_rank_are_equal(family: str, sizes: dict[str, Any], mesh: dict[str, Any]) -> None:
    target = small(family, **{"layers": 2 if sizes is LATENT else 1, **sizes})
    work = workload(target, **{"new_tokens": 1, "text_tokens": 6, **mesh})
    static, run = static_ledger(target, work), dynamic_ledger(target, work)
    assert not static.unknown_ops
    assert not run.ledger.unknown_ops
    assert {*static.metrics} ^ {*run.ledger.metrics} <= {*KEPT}
    both = {*static.metrics} & {*run.ledger.metrics}
    assert {*COMM} < both
    assert by_module(run.ledger, both) == by_module(static, both)
    assert not run.trace_check.differences


def test_meshes_follow_one_another_in_a_process() -> None:
    """Torch, which caches meshes by shape and names, must not take groups of one mesh for those of another."""
    target = small("qwen3-moe", layers=1)

    def sent(**mesh: Any) -> int | None:
        work = workload(target, new_tokens=0, text_tokens=8, batch=8, rank=2, **mesh)
        return dynamic_ledger(target, work).ledger.total("comm_bytes")

    first = sent(tp=2, dp=2, ep=4)
    # Of axes that are equally long: tp and cp beside tp and dp, and four ranks that share experts in another order.
    assert None not in {first, sent(tp=2, cp=2, cp_plan="ulysses"), sent(dp=4, ep=4), sent(tp=2, dp=4, ep=8)}
    assert sent(tp=2, dp=2, ep=4) == first


def test_last_rank_in_every_metric(last_rank: tuple[Ledger, DynamicResult]) -> None:
    static, dynamic = last_rank
    metrics = {*static.metrics}
    assert metrics == {*dynamic.ledger.metrics}
    assert by_module(static, metrics) == by_module(dynamic.ledger, metrics)


def test_ranks_with_a_copy_of_a_head() -> None:
    """With 2 key/value heads on 8 ranks, each has one: 8 rows of 64. In the run transformers splits the copies."""
    target = small("llama", kv_heads=2, layers=1)
    work = workload(target, tp=8, rank=5, new_tokens=0)
    static = static_ledger(target, work)
    run = dynamic_ledger(target, work).ledger
    for ledger in (static, run):
        sizes = {n.module: n.cost("params") for n in ledger.nodes if "params" in n.costs}
        assert sizes["model.layers.0.self_attn.k_proj"] == sizes["model.layers.0.self_attn.v_proj"] == 8 * 64
    assert by_module(static, {*static.metrics}) == by_module(run, {*static.metrics})
    assert any(note.startswith(COPIED) for note in run.notes)


def test_experts_over_ranks_with_batches_of_their_own() -> None:
    """Four ranks, tp 2 and dp 2, each with one prompt of 20 tokens, share 8 experts; a token chooses 2.

    Ranks 0 and 2 gather two parts of hidden states of 64 x 2 bytes, two numbers of 8 bytes and two weights of 4 bytes
    for each token, and scatter sums of 40 tokens; then ranks 0 and 1 add up theirs. All 80 pairs of a token and an
    expert pass the products of a rank, 3 of 2 x 64 x 32 FLOPs each, though it has two of the experts.
    """
    target = small("mixtral", layers=1, intermediate=32)
    work = workload(target, tp=2, dp=2, ep=4, new_tokens=0)
    expected = {
        "all_gather": (20 * (128 + 16 + 8), 2 * 20 * (128 + 16 + 8), 3),
        "reduce_scatter": (20 * 128, 2 * 20 * 128, 1),
        "all_reduce": (20 * 128, 20 * 128, 1),
    }
    for ledger in (static_ledger(target, work), dynamic_ledger(target, work).ledger):
        mine = {kind: found for (_, module, kind), found in collectives(ledger).items() if "experts" in module}
        assert mine == expected
        flops = [n.cost("flops") or 0 for n in ledger.nodes if n.module.endswith("experts") and "flops" in n.costs]
        assert sum(flops) == 80 * 3 * 2 * 64 * 32
        held = [n.cost("params") for n in ledger.nodes if n.module.endswith("experts") and "params" in n.costs]
        assert held == [2 * 3 * 64 * 32]


def test_pairs_of_a_given_routing() -> None:
    """Rank 1 of two sends 4 of its 12 pairs of a token and an expert and keeps 8; rank 0 sends it 7 of its own.

    A pair is 64 x 2 bytes, there and back: 11 of them, and the numbers of pairs for 4 experts of the other, in 8 bytes.
    The buffers have 12 and 15 pairs, and 8 numbers. Its experts run on the 15 pairs, 3 of 2 x 64 x 32 FLOPs each.
    """
    target = small("qwen3-moe", layers=1)
    work = workload(target, dp=2, ep=2, rank=1, text_tokens=6, new_tokens=0, **ROUTED)
    expected = (11 * 128 + 4 * 8, 27 * 128 + 8 * 8, 3)
    for ledger in (static_ledger(target, work), dynamic_ledger(target, work).ledger):
        assert [*collectives(ledger).values()] == [expected]
        flops = [n.cost("flops") or 0 for n in ledger.nodes if n.module.endswith("experts") and "flops" in n.costs]
        assert sum(flops) == 15 * 3 * 2 * 64 * 32


def test_pairs_of_a_routing_by_layer(tmp_path: Path) -> None:
    """Rank 1 keeps all its 12 pairs in both layers; rank 0 keeps its own in the first, and sends half in the second.

    So experts of rank 1 run on 12 and on 18 pairs, of which 6 came and go back. In each layer it says of 4 experts of
    the other, in 8 bytes, how many pairs they get.
    """
    own, mixed = [[[0, 1]] * 6 + [[5, 4]] * 6, [[0, 4]] * 6 + [[7, 5]] * 6]
    (tmp_path / "routing.json").write_text(json.dumps({"prefill": [[own, mixed]]}), encoding="utf-8")
    target = small("qwen3-moe", layers=2)
    routed: dict[str, Any] = {"dispatch": "all-to-all", "pairs": tmp_path / "routing.json"}
    work = workload(target, dp=2, ep=2, rank=1, text_tokens=6, new_tokens=0, **routed)
    expected = [(32, (12 + 12) * 128 + 64, 3), (6 * 128 + 32, (12 + 18) * 128 + 64, 3)]
    for ledger in (
        evaluate_formulas(target, work), static_ledger(target, work), dynamic_ledger(target, work).ledger
    ):  # fmt: skip
        assert [found for _, found in sorted(collectives(ledger).items())] == expected
        flops = [sum(n.cost("flops") or 0 for n in ledger.nodes if n.module == f"model.layers.{i}.mlp.experts")
                 for i in (0, 1)]  # fmt: skip
        assert flops == [12 * 3 * 2 * 64 * 32, 18 * 3 * 2 * 64 * 32]


def test_pairs_of_slices_by_hand() -> None:
    """Two ranks along tp have the same 2 x 6 tokens, of which each sends 6: 12 pairs; rank 1 sends 4 and gets 7.

    A pair is 64 x 2 bytes, there and back: 11 of them, and the numbers of pairs for 4 experts of the other, in 8 bytes.
    Then the ranks gather the results of 12 tokens, weighted in float32: 64 x 4 bytes, of which each sends half. Experts
    run on 15 pairs, 3 of 2 x 64 x 32 FLOPs each. Source: transformers ``AllToAllEP``, whose ranks along tp "keep
    disjoint slices of the batch they share" and "gather the slices back".
    """
    target = small("mixtral", layers=1, intermediate=32)
    work = workload(target, tp=2, ep=2, rank=1, text_tokens=6, new_tokens=0, **ROUTED)
    expected = {
        "all_to_all": (11 * 128 + 4 * 8, 27 * 128 + 8 * 8, 3),
        "all_gather": (6 * 256, 12 * 256, 1),
    }
    formulas, static, run = evaluate_formulas(target, work), static_ledger(target, work), dynamic_ledger(target, work)
    both = {*static.metrics} & {*run.ledger.metrics}
    found = {key: cost for key, cost in by_module(formulas, both).items() if key[0] == "prefill"}
    assert by_module(run.ledger, both) == by_module(static, both) == found
    for ledger in (formulas, static, run.ledger):
        mine = {kind: found for (_, module, kind), found in collectives(ledger).items() if "experts" in module}
        assert mine == expected
        flops = [n.cost("flops") or 0 for n in ledger.nodes if n.module.endswith("experts") and "flops" in n.costs]
        assert sum(flops) == 15 * 3 * 2 * 64 * 32


def test_pairs_of_uneven_slices_by_hand(tmp_path: Path) -> None:
    """Two ranks along tp have the same 5 tokens, of which rank 0 sends 3 and rank 1 sends 2: 6 and 4 pairs.

    Rank 1 sends 2 of its pairs and gets 3, so its experts run on 5. It pads its 2 rows of results to 3, of which the
    ranks gather 6, in float32. Of the token of a step it has none: it gets one of two pairs, and a row of padding is
    what it sends to the gather.
    """
    prompt, step = [[[0, 1], [0, 4], [5, 6], [2, 7], [5, 3]]], [[[1, 7]]]
    (tmp_path / "routing.json").write_text(json.dumps({"prefill": [prompt], "decode": [step] * 2}), encoding="utf-8")
    target = small("mixtral", layers=1, intermediate=32, window=64)
    routed: dict[str, Any] = {"dispatch": "all-to-all", "pairs": tmp_path / "routing.json", "batch": 1}
    work = workload(target, tp=2, ep=2, rank=1, text_tokens=5, new_tokens=2, **routed)
    expected = {
        ("prefill", "all_to_all"): ((2 + 3) * 128 + 4 * 8, (4 + 5) * 128 + 8 * 8, 3),
        ("prefill", "all_gather"): (3 * 256, 6 * 256, 1),
        ("decode", "all_to_all"): (2 * (1 * 128 + 4 * 8), 2 * (1 * 128 + 8 * 8), 6),
        ("decode", "all_gather"): (2 * 256, 2 * 2 * 256, 2),
    }
    formulas, static, run = evaluate_formulas(target, work), static_ledger(target, work), dynamic_ledger(target, work)
    both = {*static.metrics} & {*run.ledger.metrics}
    assert by_module(run.ledger, both) == by_module(static, both) == by_module(formulas, both)
    for ledger in (formulas, static, run.ledger):
        mine = {(s, kind): found for (s, module, kind), found in collectives(ledger).items() if "experts" in module}
        assert mine == expected
        flops = {
            stage: sum(
                n.cost("flops") or 0
                for n in ledger.nodes
                if n.stage == stage and n.module.endswith("experts") and "flops" in n.costs
            )
            for stage in ("prefill", "decode")
        }
        assert flops == {"prefill": 5 * 3 * 2 * 64 * 32, "decode": 2 * 3 * 2 * 64 * 32}


def test_pairs_of_steps(tmp_path: Path) -> None:
    """Rank 1 of two has one sequence: of the 2 pairs of a step it keeps one, and gets both of rank 0, in three steps.

    Of a prompt of 6 tokens it keeps all its 12 pairs, and gets none. A step has 1 + 2 pairs of 64 x 2 bytes there and
    back, and numbers for 4 experts; its buffers have 2 and 3 pairs, and numbers for 8. A prompt that is as
    long as a step is refused.
    """
    prompt = [[[0, 1]] * 6 + [[5, 4]] * 6]
    routed: dict[str, Any] = {"dispatch": "all-to-all", "pairs": tmp_path / "routing.json"}
    target = small("qwen3-moe", layers=1, window=64)
    steps = [[[[4, 5], [1, 6]]], [[[6, 7], [5, 0]]], [[[7, 4], [2, 7]]]]
    (tmp_path / "routing.json").write_text(json.dumps({"prefill": [prompt], "decode": steps}), encoding="utf-8")
    given: dict[str, Any] = {"dp": 2, "ep": 2, "rank": 1, "text_tokens": 6, "new_tokens": 3, **routed}
    work = workload(target, **given)
    stepped = 3 * ((1 + 2) * 128 + 32), 3 * ((2 + 3) * 128 + 64), 9
    formulas, static, run = evaluate_formulas(target, work), static_ledger(target, work), dynamic_ledger(target, work)
    for ledger in (formulas, static, run.ledger):
        found = {stage: cost for (stage, _, kind), cost in collectives(ledger).items() if kind == "all_to_all"}
        assert found == {"prefill": (32, (12 + 12) * 128 + 64, 3), "decode": stepped}
    both = {*static.metrics} & {*run.ledger.metrics}
    assert by_module(run.ledger, both) == by_module(static, both) == by_module(formulas, both)
    with pytest.raises(Problems, match="a graph tells a prompt from a step"):
        workload(target, **{**given, "text_tokens": 1})


def test_pairs_of_unequal_steps(tmp_path: Path) -> None:
    """Rank 1 sends one of its 2 pairs in each of three steps, and gets 2, 2 and 1 of rank 0.

    A pair is 64 x 2 bytes, there and back. Its experts run on 3, 3 and 2 pairs, of which each may choose another of 4
    experts: 8 are read at most, each of 3 x 64 x 32 weights.
    """
    prompt = [[[0, 1]] * 6 + [[5, 4]] * 6]
    steps = [[[[4, 5], [1, 6]]], [[[6, 7], [5, 0]]], [[[7, 0], [2, 7]]]]
    (tmp_path / "routing.json").write_text(json.dumps({"prefill": [prompt], "decode": steps}), encoding="utf-8")
    target = small("qwen3-moe", layers=1, window=64)
    routed: dict[str, Any] = {"dispatch": "all-to-all", "pairs": tmp_path / "routing.json"}
    work = workload(target, dp=2, ep=2, rank=1, text_tokens=6, new_tokens=3, **routed)
    for ledger in of_all_sources(target, work):
        nodes = [n for n in ledger.nodes if n.stage == "decode" and n.module.endswith("experts")]
        found = {kind: cost for (stage, _, kind), cost in collectives(ledger).items() if stage == "decode"}
        assert found["all_to_all"] == ((3 + 5) * 128 + 3 * 32, (6 + 8) * 128 + 3 * 64, 9)
        assert sum(n.cost("flops") or 0 for n in nodes if "flops" in n.costs) == 8 * 3 * 2 * 64 * 32
        reads = sum(n.cost("weight_read_bytes") or 0 for n in nodes if "weight_read_bytes" in n.costs)
        assert reads == 8 * 3 * 64 * 32 * 2


def test_pairs_of_a_pipeline_stage(tmp_path: Path) -> None:
    """Of three layers the last stage has one; its ranks send the pairs of this layer only.

    Rank 3 is the second of them: of the 4 pairs of its 2 tokens one leaves, and 2 of rank 2 arrive. A pair is 64 x 2
    bytes, there and back; rank 3 says of 4 experts of rank 2, in 8 bytes, how many pairs they get.
    """
    others = [[0, 1], [2, 3], [4, 5], [6, 7]]
    layers = [others, others, [[0, 4], [1, 5], [4, 5], [6, 1]]]
    (tmp_path / "routing.json").write_text(json.dumps({"prefill": [layers]}), encoding="utf-8")
    target = small("qwen3-moe", layers=3)
    routed: dict[str, Any] = {"dispatch": "all-to-all", "pairs": tmp_path / "routing.json", "new_tokens": 0}
    work = workload(target, pp=2, dp=2, ep=2, rank=3, text_tokens=2, **routed)
    for ledger in of_all_sources(target, work):
        mine = [cost for (_, module, _), cost in collectives(ledger).items() if "experts" in module]
        assert mine == [((1 + 2) * 128 + 32, (4 + 5) * 128 + 64, 3)]


def test_pairs_of_ranks_with_parts_of_parameters(tmp_path: Path) -> None:
    """Ranks along fsdp have batches of their own, and send pairs to those along tp, which have one sequence of 3.

    Of the second sequence rank 2 sends two tokens and rank 3 one, of which it keeps one pair; 2 of rank 2 arrive.
    """
    tokens = [[0, 1], [4, 2], [7, 3], [0, 4], [5, 1], [3, 6]]
    (tmp_path / "routing.json").write_text(json.dumps({"prefill": [[tokens]]}), encoding="utf-8")
    target = small("mixtral", layers=1)
    routed: dict[str, Any] = {"dispatch": "all-to-all", "pairs": tmp_path / "routing.json", "new_tokens": 0}
    work = workload(target, fsdp=2, tp=2, ep=2, rank=3, text_tokens=3, **routed)
    for ledger in of_all_sources(target, work):
        mine = {kind: cost for (_, module, kind), cost in collectives(ledger).items() if "experts" in module}
        assert mine == {"all_to_all": ((1 + 2) * 128 + 32, (2 + 3) * 128 + 64, 3), "all_gather": (512, 4 * 256, 1)}


def of_all_sources(target: Any, work: Workload) -> tuple[Ledger, Ledger, Ledger]:
    """Return the ledgers of formulas, graph and run, which are equal in every module and metric."""
    formulas, static, run = evaluate_formulas(target, work), static_ledger(target, work), dynamic_ledger(target, work)
    both = {*static.metrics} & {*run.ledger.metrics}
    stages = ("prefill", "decode")[: 2 if work.new_tokens else 1]
    found = {key: cost for key, cost in by_module(formulas, both).items() if key[0] in stages}
    assert by_module(run.ledger, both) == by_module(static, both) == found
    return formulas, static, run.ledger


def test_stages_in_turn_return_what_one_device_returns() -> None:
    """Stages of both readings, run one after another: each is given what the one before it sends."""
    config: Any = small("gemma2", layers=5).native()[1]

    def made() -> Any:
        torch.manual_seed(0)
        model = transformers.Gemma2ForCausalLM(copy.deepcopy(config)).double().eval()
        for parameter in model.parameters():
            parameter.data.normal_(0.0, 0.2)
        return model

    ids = {"input_ids": torch.arange(14).view(2, 7)}
    register: Any = vars(torch._C._distributed_c10d)["_register_process_group"]
    with torch.no_grad():
        expected = made()(**ids, use_cache=False).logits
        for ours in (True, False):
            given = ids
            for stage in range(3):
                model = made()
                with fake_group(3, stage):
                    if ours:
                        register("pp:3", dist.group.WORLD)
                        keep_stage(model, 3, stage)
                    else:
                        cut_to_stage(model, 1, stage, 3)
                    assert sum(p.numel() for p in model.parameters()) < sum(p.numel() for p in made().parameters())
                    given = {"inputs_embeds": model(**given, use_cache=False).logits}
            assert torch.equal(given["inputs_embeds"], expected)


def test_tools_that_lose_collectives_are_refused() -> None:
    target = small("llama", layers=1)
    work = workload(target, tp=2, new_tokens=0)
    with pytest.raises(Incomplete, match="does not follow the collectives"):
        isolated_ledger(target, work)
    with pytest.raises(BadInput, match="counters count whole models"):
        record_counters(target, work, ("thop",))


def test_nothing_of_the_group_remains() -> None:
    target = small("llama", layers=1)
    work, hook = workload(target, tp=2, rank=1, new_tokens=0), sys.excepthook
    built = target.build_run(work, lambda *step: None)
    (run,) = target.runs(built.model, work)
    assert not dist.is_initialized()
    with run.around():
        assert dist.get_rank() == 1
        assert dist.get_world_size() == 2
    assert not dist.is_initialized()
    assert sys.excepthook is hook
    assert {type(p) for p in built.model.parameters()} == {torch.nn.Parameter}
    assert dict(built.model.named_parameters())["lm_head.weight"].shape == (51, 64)


def test_data_parallelism_splits_only_the_batch() -> None:
    """Of 5 sequences the second of 2 ranks runs 2 x 20 positions through whole weights, and sends nothing."""
    target = small("llama", layers=1)
    run = dynamic_ledger(target, workload(target, dp=2, rank=1, batch=5, new_tokens=0)).ledger
    head = [n for n in run.nodes if n.module == "lm_head" and "flops" in n.costs]
    assert [n.cost("flops") for n in head] == [2 * 40 * 64 * 102]
    assert collectives(run) == {}


@pytest.fixture
def own_group() -> Iterator[None]:
    with fake_group(3, 2):
        yield


@pytest.mark.usefixtures("own_group")
def test_a_group_of_the_user_is_refused_and_left_as_it_is() -> None:
    target = small("llama", layers=1)
    with pytest.raises(BadInput, match="already belongs to a group"):
        dynamic_ledger(target, workload(target, tp=2, new_tokens=0))
    assert (dist.get_rank(), dist.get_world_size()) == (2, 3)
