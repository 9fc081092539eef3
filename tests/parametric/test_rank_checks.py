"""What all sources read from one place about ranks is counted again: by hand here, and a planted mistake is found."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import costproof
from costproof.estimate import links, routing
from costproof.estimate.links import devices_in
from costproof.estimate.memory import MeshTried
from costproof.estimate.routing import DispatchForm, RoutedCall, RoutedLayers, TouchedExperts, stored_routing
from costproof.ledger import workload as workloads
from costproof.ledger.errors import Bug
from costproof.ledger.mesh import Coordinates, Mesh, Parallel, pairs_of
from costproof.ledger.workload import Workload
from costproof.models.decoding import copies, plans, ranks, sharding
from costproof.models.pages import formulas as pages
from costproof.models.registry import load_target
from costproof.models.target import DATA_COPIES, OF_MEMORY, OF_WORK, SEQUENCE_COPIES
from costproof.parametric import rank_checks, targets
from costproof.parametric.memory_checks import room_recounts
from costproof.parametric.rank_checks import copies_by_sets, gathered, scattered
from costproof.parametric.time_checks import least_seconds
from costproof.reports.static import ranks_text
from costproof.run import fits
from costproof.run.capture import count_sources
from costproof.run.operands import GivenRouting
from costproof.run.prepare import Prepared
from costproof.views.static_compute import static_compute


@pytest.fixture(autouse=True)
def plans_anew() -> Iterator[None]:
    """Forget plans that were read before, and behind, a mistake."""
    plans.named_plan.cache_clear()
    yield
    plans.named_plan.cache_clear()


def counted(target: Any, given: dict[str, Any]) -> Parallel:
    """Return the ranks of a model, with a prompt of 48 tokens and two steps."""
    workload = target.workload(**{"text_tokens": 48, "new_tokens": 2, **given})
    return targets.count_ranks(target, workload, targets.evaluate_formulas(target, workload))


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_passes_one_chunk_less_than_it_has_ranks(ranks: int) -> None:
    assert {gathered(ranks, rank) for rank in range(ranks)} == {ranks - 1}
    assert {scattered(ranks, rank) for rank in range(ranks)} == {ranks - 1}


def test_a_ring_passes_on_chunks_of_other_sizes() -> None:
    """Of 3, 5, 1 and 4 rows a rank passes on all but those of the next one, and sums for all but its own."""
    sizes = (3, 5, 1, 4)
    assert [gathered(4, rank, sizes) for rank in range(4)] == [8, 12, 9, 10]
    assert [scattered(4, rank, sizes) for rank in range(4)] == [10, 8, 12, 9]


def test_copies_of_two_of_four_experts() -> None:
    # Two experts a rank, two ranks, two chosen of four: 6 equally likely pairs. Of the experts 2 and 3 of the other
    # rank 1 pair has two, 4 pairs have one, 1 pair has none: 6 copies by expert and 5 by rank in 6 pairs.
    sizes, mesh = RoutedLayers(1, 4, 2, 8, 8), Mesh(ep=2, dp=2)
    assert copies_by_sets(sizes, mesh, "all-to-all", 2, uniform=True) == 1
    assert copies_by_sets(sizes, mesh, "by-rank", 2, uniform=True) == Fraction(5, 6)
    assert copies_by_sets(sizes, mesh, "all-to-all", 2, uniform=False) == 2
    assert copies_by_sets(sizes, mesh, "by-rank", 2, uniform=False) == 1
    # One group of two is chosen before: then both experts are on one rank, the other one in half of the cases.
    limited = replace(sizes, groups=2, best_groups=1)
    assert copies_by_sets(limited, mesh, "by-rank", 2, uniform=True) == Fraction(1, 2)


def test_ranks_as_text() -> None:
    assert ranks_text((0, 1, 2, 3, 7), 9) == "0 to 3, 7"
    assert ranks_text((1, 3), 4) == "1, 3"
    assert ranks_text((4, 5), 6) == "4 to 5"
    assert ranks_text((0, 1), 2) == "all"


def test_bytes_through_a_cut() -> None:
    # Nodes of two: 450 GB/s within, 50 GB/s between. An all-reduce of M over 2 x 2 needs M through 2 x 50 GB/s; an
    # all-gather M/2 of it; all-to-all 2 x 2 of 4 x 4 chunks, M/4 each, into a node: M through 100 GB/s.
    node = devices_in("2x2xh100-sxm")
    group = (0, 1, 2, 3)
    assert least_seconds("all_reduce", group, node) == Fraction(1, 100 * 10**9)
    assert least_seconds("all_gather", group, node) == Fraction(1, 200 * 10**9)
    assert least_seconds("all_to_all", group, node) == Fraction(1, 100 * 10**9)
    assert least_seconds("all_gather", (0, 1), node) == Fraction(1, 2 * 450 * 10**9)
    assert least_seconds("send", (1, 2), node) == Fraction(1, 50 * 10**9)


def _engine(name: str, **changed: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(
        plans, "ENGINES", {**plans.ENGINES, name: replace(plans.ENGINES[name], **changed)}
    )


def _without(name: str, pattern: str) -> Callable[[pytest.MonkeyPatch], None]:
    return _engine(name, layouts=tuple(x for x in plans.ENGINES[name].layouts if x[0] != pattern))


def _replaced(owner: object, name: str, made: object) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, made)


def _all_to_the_first(batch: int, mesh: Mesh, rank: int) -> int:
    return batch - (mesh.dp - 1) if mesh.coordinates(rank).dp == 0 else 1


def _along_tp(before: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Plant ``tp`` in place of another axis, where both have as many ranks, or the same."""
    right = sharding.Shards.axis_of
    return _replaced(
        sharding.Shards, "axis_of",
        lambda self, role, kind: "tp" if (found := right(self, role, kind)) == before else found,
    )  # fmt: skip


def _plan_forgotten(run: Workload, *, rank: int = 0, **axes: int) -> Workload:
    """Return the workload on another mesh without the plan by which ranks divide a sequence."""
    return _ON_MESH(replace(run, inputs={k: v for k, v in run.inputs.items() if k != "cp_plan"}), rank=rank, **axes)


_ON_MESH = Workload.on_mesh
_ALONG_SEQUENCE = copies.RankCopies.along_sequence
_MIXTURES = sharding._mixtures
_OF_STAGE = sharding.Shards.of_stage


_NAMED = plans.named_plan
_ATTENTION = "; ".join((*(f"model.layers.*.self_attn.{x}_proj: by_head" for x in "qkv"), "*.o_proj: row"))
_TABLES = "model.embed_tokens: vocabulary; lm_head: vocabulary"
_INTO = "*.shared_experts.gate_proj: column; *.shared_experts.up_proj: column"
_MIXED = f"*.mlp.experts: by_expert; {_INTO}; *.shared_experts.down_proj: row"


def _user_plan(**changed: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Plant a choice in a user's plan that its file cannot make."""
    return _replaced(sharding, "named_plan", lambda text: replace(_NAMED(text), **changed))


def _in_other_order(mesh: Mesh, rank: int) -> Coordinates:
    """Return coordinates with ``cp`` fastest: then a group may begin below 0."""
    rest, cp = divmod(rank, mesh.cp)
    rest, tp = divmod(rest, mesh.tp)
    return Coordinates(tp, 0, rest // mesh.dp, rest % mesh.dp, cp, 0)


def _renamed(method: str, place: int, metrics: tuple[str, ...], *names: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Plant another cause of copies of some metrics.

    Args:
        place: position of the metric among the arguments of a method that yields causes and amounts.
        names: of the cause, right and wrong.
    """
    right, (before, after) = getattr(copies.RankCopies, method), names

    def planted(self: Any, *of: Any) -> Iterator[tuple[str, int]]:
        for why, amount in right(self, *of):
            yield (after if why == before and of[place] in metrics else why), amount

    return _replaced(copies.RankCopies, method, planted)


_REPEATED = copies.RankCopies._repeated
_WORK = "work of split modules on whole tensors"
_INPUTS = "inputs of split modules, which every rank reads"
_GATHERED = "parts of parameters that ranks read to gather them"
_SHARED: dict[str, Any] = {"tp": 2, "dp": 2, "ep": 4, "batch": 2}


def _repeated_as(name: str, of: str, metrics: tuple[str, ...]) -> Callable[[pytest.MonkeyPatch], None]:
    """Plant a name of what every rank has in full, for modules of a role."""
    return _replaced(
        copies.RankCopies, "_repeated",
        lambda self, role, metric: name if role == of and metric in metrics else _REPEATED(self, role, metric),
    )  # fmt: skip


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, dict[str, Any]]] = {
    "vLLM pads to 128": (_engine("vllm", multiple=128), "llama-3.1-8b", {"tp": 2, "plan": "vllm", "config": 192}),
    "vLLM adds experts apart": (_engine("vllm", joint=False), "deepseek-v3", {"tp": 2, "plan": "vllm"}),
    "vLLM leaves the head whole": (_without("vllm", "lm_head"), "llama-3.1-8b", {"tp": 2, "plan": "vllm"}),
    "Megatron pads once": (_engine("megatron", of_each=False), "llama-3.1-8b", {"tp": 4, "plan": "megatron"}),
    "Megatron shares no tokens": (_engine("megatron", sequence=False), "llama-3.1-8b", {"tp": 4, "plan": "megatron"}),
    "a plan forgotten among the settings": (
        _replaced(plans, "stored_plan", lambda text: "transformers"), "llama-3.1-8b", {"tp": 2, "plan": "vllm"},
    ),
    "a plan forgotten by the formulas": (
        _replaced(sharding, "PLAN", "another"), "llama-3.1-8b", {"tp": 2, "plan": "vllm"},
    ),
    "another plan": (
        _replaced(sharding, "named_plan", lambda text: _NAMED("vllm")), "llama-3.1-8b", {"tp": 2, "plan": "megatron"},
    ),
    "a given plan that pads": (
        _user_plan(multiple=64), "llama-3.1-8b", {"tp": 2, "plan": f"{_ATTENTION}; {_TABLES}", "config": 102},
    ),
    "a given plan that shares tokens": (
        _user_plan(sequence=True), "llama-3.1-8b", {"tp": 2, "plan": f"{_ATTENTION}; {_TABLES}"},
    ),
    "a given plan that adds experts before one sum": (
        _user_plan(joint=True), "deepseek-v3", {"tp": 2, "ep": 2, "plan": _MIXED},
    ),
    "a given plan without its last pattern": (
        _replaced(sharding, "named_plan", lambda text: _NAMED(text.rpartition("; ")[0])),
        "llama-3.1-8b", {"tp": 2, "plan": f"{_ATTENTION}; {_TABLES}"},
    ),
    "a given plan that is read as another": (
        _replaced(plans, "stored_plan", lambda text: text.rpartition("; ")[0]),
        "llama-3.1-8b", {"tp": 2, "plan": f"{_ATTENTION}; {_TABLES}"},
    ),
    "uneven batches": (_replaced(workloads, "own_batch", _all_to_the_first), "llama-3.1-8b", {"dp": 3, "batch": 7}),
    "batches rounded up, at one that is even": (
        _replaced(rank_checks, "own_batch", lambda batch, mesh, rank: -(-batch // mesh.dp)),
        "llama-3.1-8b", {"dp": 2, "batch": 4},
    ),
    "chunks rounded down": (
        _replaced(rank_checks, "shard", lambda n, ranks, i: (n // ranks * i, n // ranks * (i + 1))),
        "llama-3.1-8b", {"tp": 2},
    ),
    "layers that are left over at the end": (
        _replaced(rank_checks, "stage_layers", lambda n, p, i: range(n // p * i, n // p * (i + 1))),
        "llama-3.1-8b", {"pp": 2},
    ),
    "axes in another order": (_replaced(Mesh, "coordinates", _in_other_order), "llama-3.1-8b", {"tp": 2, "cp": 3}),
    "the smallest is not the smallest": (
        _replaced(Parallel, "extremes", lambda self, stage, metric: ((0, (0,)), (0, (0,)))),
        "llama-3.1-8b", {"tp": 2},
    ),
    "fewer pairs than tokens choose": (
        _replaced(plans, "_pair_problems", lambda config, workload, **_: ()),
        "qwen3-30b-a3b", {"dp": 2, "ep": 2, "batch": 2, "text_tokens": 1, "new_tokens": 0, "dispatch": "all-to-all",
                          "pairs": "5+3;4+3"},
    ),
    "a group of neighbours": (
        _replaced(Mesh, "group", lambda self, axis, rank: tuple(range(getattr(self, axis, self.batches)))),
        "llama-3.1-8b", {"tp": 2, "dp": 2, "batch": 2},
    ),
    "a header left out": (
        _replaced(routing, "DISPATCHES", tuple(replace(d, header=0) for d in routing.DISPATCHES)),
        "deepseek-v3", {"dp": 4, "ep": 4, "batch": 4},
    ),
    "no scales of fp8": (_replaced(routing, "fp8_bytes", lambda n: n), "deepseek-v3", {"dp": 4, "ep": 4, "batch": 4}),
    "groups swapped": (
        _replaced(RoutedLayers, "reached", lambda self, units: Fraction(1, units)),
        "deepseek-v3", {"dp": 4, "ep": 4, "batch": 4},
    ),
    "collectives of another axis": (
        _replaced(sharding.Shards, "axis_of", lambda self, role, kind: "dp"),
        "llama-3.1-8b", {"tp": 2, "dp": 2, "batch": 2},
    ),
    "copies along dp named as along cp": (
        _replaced(targets, "DATA_COPIES", SEQUENCE_COPIES),
        "qwen3-30b-a3b", {"tp": 2, "dp": 4, "ep": 4, "batch": 4},
    ),
    "whole parts under another name": (
        _replaced(copies.RankCopies, "_repeated", lambda self, role, metric: "routers"), "llama-3.1-8b", {"tp": 2},
    ),
    "hidden states of stages left out": (
        _replaced(copies.RankCopies, "moved", lambda *of: iter(())), "llama-3.1-8b", {"pp": 2},
    ),
    "sums under the name of rows that are overwritten": (
        _replaced(copies, "SUMMED", copies.ZEROS), "llama-3.1-8b", {"tp": 2},
    ),
    "gathered logits under the name of sums": (
        _replaced(copies, "GATHERED_LOGITS", copies.SUMMED), "llama-3.1-8b", {"tp": 2},
    ),
    "a ring under one name": (
        _replaced(copies, "PASSED", copies.READ_AGAIN), "llama-3.1-8b", {"cp": 2, "cp_plan": "ring"},
    ),
    "partial results under the name of copies": (
        _replaced(copies, "MERGED", SEQUENCE_COPIES), "llama-3.1-8b", {"cp": 2, "new_tokens": 1},
    ),
    "exchanged heads under the name of copies": (
        _replaced(copies, "FOR_POSITIONS", SEQUENCE_COPIES), "llama-3.1-8b", {"cp": 2, "cp_plan": "ulysses"},
    ),
    "exchanged pairs under the name of rows": (
        _replaced(copies, "EXCHANGED", copies.OVERWRITTEN), "mixtral",
        {"dp": 2, "ep": 2, "batch": 2, "text_tokens": 1, "new_tokens": 0, "dispatch": "all-to-all", "pairs": "1,1;1,1"},
    ),
    "gathered tokens under the name of rows": (
        _replaced(copies, "GATHERED_TOKENS", copies.OVERWRITTEN), "mixtral", {"dp": 2, "ep": 2, "batch": 2},
    ),
    "masks under the name of norms": (
        _replaced(copies, "MASKS", "norms"), "llama-3.1-8b", {"tp": 2, "attention": "eager"},
    ),
    "rows of a table under the name of norms": (
        _replaced(copies, "LOOKED_UP", "norms"), "llama-3.1-8b", {"tp": 2},
    ),
    "copies of gathered parameters left out": (
        _replaced(copies.RankCopies, "added_by_collectives", lambda *of: iter(())), "llama-3.1-8b",
        {"fsdp": 2, "batch": 2},
    ),
    "no size is divided": (
        _replaced(copies.RankCopies, "_own_sizes", lambda self, role, metric, sizes: ({},) * self.mesh.tp),
        "llama-3.1-8b", {"tp": 2},
    ),
    "experts along tp": (_along_tp("ep"), "qwen3-30b-a3b", {"tp": 2, "ep": 2}),
    "parts of a sequence along tp": (_along_tp("cp"), "llama-3.1-8b", {"tp": 2, "cp": 2}),
    "stages along tp": (_along_tp("pp"), "llama-3.1-8b", {"tp": 2, "pp": 2}),
    "methods of dispatch left out": (
        _replaced(targets, "_dispatches", lambda *_: iter(())), "qwen3-30b-a3b", {"dp": 2, "ep": 2, "batch": 2},
    ),
    "numbers of experts without a dtype": (
        _replaced(sharding.Shards, "dtypes", lambda self, axis, kind, dtype, role: (dtype,)),
        "deepseek-v3", {"dp": 4, "ep": 4, "batch": 4},
    ),
    "logarithms in the dtype of the run": (
        _replaced(sharding.Shards, "dtypes", lambda self, axis, kind, dtype, role: (dtype,)), "llama-3.1-8b", {"cp": 2},
    ),
    "gathered parameters on the first rank": (
        _replaced(Workload, "on_mesh", lambda run, *, rank=0, **axes: _ON_MESH(run, **axes)),
        "llama-3.1-8b", {"pp": 2, "fsdp": 2, "batch": 2},
    ),
    "gathered parameters without the plan": (
        _replaced(Workload, "on_mesh", _plan_forgotten),
        "llama-3.1-8b", {"cp": 2, "fsdp": 2, "batch": 2, "cp_plan": "ulysses"},
    ),
    "steps of a sequence named as heads": (
        _replaced(
            copies.RankCopies, "along_sequence",
            lambda *of: (_ALONG_SEQUENCE(*of)[0], copies.KV_COPIES),
        ),
        "llama-3.1-8b", {"cp": 2},
    ),
    "all groups of experts are the best": (
        _replaced(
            sharding, "_mixtures",
            lambda config, style: (of := _MIXTURES(config, style)) and replace(of, best_groups=of.groups),
        ),
        "deepseek-v3", {"dp": 4, "ep": 4, "batch": 4},
    ),
    "a stage between that does not send": (
        _replaced(
            sharding.Shards, "of_stage",
            lambda self, parts, call: (x for x in _OF_STAGE(self, parts, call) if self.stage != 1 or x.role != "text"),
        ),
        "llama-3.1-8b", {"pp": 3},
    ),
    "formulas of ranks with another batch": (
        _replaced(targets, "_kind_of", lambda run: run.mesh.coordinates(run.rank).pp), "llama-3.1-8b",
        {"tp": 2, "dp": 2, "batch": 3, "logits": "last"},
    ),
    "equal collectives in rows of their own": (
        _replaced(targets, "folded_path", lambda module: module), "llama-3.1-8b", {"tp": 2},
    ),
    "no copies of resident bytes": (
        _replaced(copies, "OF_MEMORY", OF_MEMORY[:3]), "llama-3.1-8b", {"tp": 2},
    ),
    "no copies of reads of the cache": (
        _replaced(copies, "OF_WORK", tuple(m for m in OF_WORK if m != "kv_read_bytes")),
        "llama-3.1-8b", {"cp": 2},
    ),
    "calls along cp under the name of those along dp": (
        _renamed("excess", 1, ("calls",), SEQUENCE_COPIES, DATA_COPIES), "llama-3.1-8b", {"cp": 2},
    ),
    "weights read along cp under the name of those along dp": (
        _renamed("excess", 1, ("weight_read_bytes",), SEQUENCE_COPIES, DATA_COPIES), "llama-3.1-8b", {"cp": 2},
    ),
    "weights read along dp under the name of gathers": (
        _renamed("excess", 1, ("weight_read_bytes",), DATA_COPIES, _GATHERED), "llama-3.1-8b", {"dp": 2, "batch": 2},
    ),
    "gathers under the name of copies": (
        _renamed("added_by_collectives", 2, ("weight_read_bytes", "unfused_bytes"), _GATHERED, DATA_COPIES),
        "llama-3.1-8b", {"fsdp": 2, "batch": 2},
    ),
    "gathered logits under the name of padding": (
        _renamed("excess", 1, ("output_bytes",), copies.GATHERED_LOGITS, "padding of uneven shards"),
        "llama-3.1-8b", {"tp": 2},
    ),
    "rows of other experts under the name of other work": (
        _repeated_as(_WORK, "text.layer.experts", ("vector_flops", "input_bytes", "output_bytes")), "qwen3-30b-a3b",
        _SHARED,
    ),
    "tokens of a rank under the name of rows of others": (
        _renamed("_copies_of_shared", 1, ("input_bytes",), _INPUTS, copies.ROWS_ELSEWHERE), "qwen3-30b-a3b", _SHARED,
    ),
    "chosen experts under the name of copies": (
        _renamed("excess", 1, ("params_active",), copies.EXPERTS, DATA_COPIES), "qwen3-30b-a3b",
        {"dp": 16, "ep": 16, "batch": 16},
    ),
    "cached latents under the name of other work": (
        _repeated_as(_WORK, "text.layer.attention", ("kv_read_bytes",)), "deepseek-v3", {"tp": 2, "plan": "vllm"},
    ),
    "latents under the name of tables": (
        _repeated_as(
            "tables and masks that the attention of every rank reads", "text.layer.attention", ("unfused_bytes",)
        ),
        "deepseek-v3", {"tp": 2, "plan": "vllm"},
    ),
    "pairs that come as those that go": (
        _replaced(rank_checks, "splits_of", lambda run, *of: (((pairs_of(run.inputs)[run.rank],) * 2,),)),
        "qwen3-30b-a3b", {"dp": 2, "ep": 2, "batch": 2, "text_tokens": 1, "new_tokens": 0, "dispatch": "all-to-all",
                          "pairs": "5+3;4+4"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["batches rounded up, at one that is even", "axes in another order"])
def test_a_proof_refutes_misplaced_ranks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a counterexample, not an error, whatever cannot be counted of these ranks."""
    plant, model, given = PLANTED[name]
    target: Any = load_target(model)
    workload = target.workload(**{"text_tokens": 48, "new_tokens": 2, **given})
    plant(monkeypatch)
    found = targets.compare_ranks(target, workload, symbolic=True)
    assert not found.claims
    assert found.counterexamples


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, model, given = PLANTED[name]
    target: Any = load_target(model)
    keys = {"config": "vocab"} if "config" in given else {}
    work = {key: value for key, value in given.items() if key not in keys}
    if keys:
        target = target.with_keys({"vocab": given["config"]})
    plant(monkeypatch)
    with pytest.raises(Bug):
        counted(target, work)


def test_ranks_that_hold_the_least_do_not_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two parts of a sequence keeps the new tokens; a run of the first one names it."""
    target: Any = load_target("llama-3.1-8b")
    workload = target.workload(text_tokens=48, new_tokens=2, cp=2, rank=0)
    assert fits._binding_ranks(target, workload) == (1,)
    monkeypatch.setattr(fits, "max", min, raising=False)
    with pytest.raises(Bug):
        fits._binding_ranks(target, workload)


@pytest.mark.parametrize("ranks", [2, 4])
def test_given_plans_agree_with_their_layouts(ranks: int) -> None:
    """Plans that split attention, tables or experts alone, of dense models and mixtures, as a user may write them."""
    experts, small = f"{_MIXED}; {_TABLES}", {"vocab": 102}
    packed = "*.mlp.experts.gate_up_proj: column; *.mlp.experts.down_proj: row"
    dense = "*.mlp.gate_proj: column; *.mlp.up_proj: column; *.mlp.down_proj: row"
    for model, keys, plan, ep in (
        ("llama-3.1-8b", small, _TABLES, 1), ("llama-3.1-8b", {}, _ATTENTION, 1), ("llama-3.1-8b", {}, dense, 1),
        ("llama-3.1-8b", small, f"{_ATTENTION}; {dense}; {_TABLES}", 1), ("qwen3-30b-a3b", {}, packed, 1),
        ("qwen3-30b-a3b", {}, f"{_ATTENTION}; *.mlp.experts: by_expert", ranks), ("deepseek-v3", {}, experts, ranks),
        ("gpt-oss-20b", {}, f"{_ATTENTION}; {packed}", 1),
    ):  # fmt: skip
        target: Any = load_target(model)
        for rank in (0, ranks - 1):
            run = {"tp": ranks, "plan": plan, "rank": rank, **({"ep": ep} if ep > 1 else {})}
            assert counted(target.with_keys(keys) if keys else target, run).plan == f"the given plan ({plan})"


def _in_another_order(call: RoutedCall, mesh: Mesh) -> tuple[int, ...]:
    """Give the first rank of a group along tp the tokens of the last."""
    return tuple(n for of in batched(_SENDS(call, mesh), mesh.tp) for n in reversed(of))


def batched(values: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    return [values[i : i + size] for i in range(0, len(values), size)]


_COPIES_IN: Any = routing.copies_in
_SENDS, _PARTNERS = RoutedCall.sends, DispatchForm.partners
_SPLITS_OF = routing.splits_of


def _turned(*run: Any) -> tuple[Any, ...]:
    """Return the pairs of all calls with the layers in the other order."""
    return tuple(call[::-1] for call in _SPLITS_OF(*run))


ROUTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "a copy for each expert": (
        _replaced(routing, "copies_in", lambda *of: _COPIES_IN(*of[:4], "expert", *of[5:])),
        "",
    ),
    "slices in another order": (_replaced(RoutedCall, "sends", _in_another_order), ""),
    "results of the rank's own group along tp are left out": (
        _replaced(DispatchForm, "partners", lambda self, mesh, rank, node: _PARTNERS(self, mesh, rank, node)[1:]), "",
    ),
    "layers in another order": (_replaced(rank_checks, "splits_of", _turned), "all-to-all"),
}  # fmt: skip
"""Mistakes in a given routing, each with the dispatch that the sources count."""


@pytest.mark.parametrize("name", ROUTED)
def test_a_planted_mistake_in_a_given_routing_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mixtral with two layers; three sequences of seven tokens and two steps, or two of them in the prompt only."""
    (plant, dispatch), rng = ROUTED[name], random.Random(name)
    stages = {"prefill": (1, 14)} if dispatch else {"prefill": (1, 21), "decode": (2, 3)}
    data = {stage: [[[rng.sample(range(8), 2) for _ in range(tokens)] for _ in range(2)] for _ in range(calls)]
            for stage, (calls, tokens) in stages.items()}  # fmt: skip
    (tmp_path / "routing.json").write_text(json.dumps(data), encoding="utf-8")
    given = {"text_tokens": 7, "dp": 2, "pairs": tmp_path / "routing.json"}
    of_prompt = {"ep": 2, "batch": 2, "new_tokens": 0, "dispatch": dispatch}
    given |= of_prompt if dispatch else {"tp": 2, "ep": 4, "batch": 3}
    target: Any = load_target("mixtral-8x7b")
    target = target.with_keys({"layers": 2})
    runs = [given | {"rank": rank} for rank in range(2 if dispatch else 4)]
    for run in runs:
        assert {d.routing for d in counted(target, run).dispatches} == {"any", "given", "bound", "uniform"}
    plant(monkeypatch)
    routing.copies_by_call.cache_clear()
    with pytest.raises(Bug):
        [counted(target, run) for run in runs]
    routing.copies_by_call.cache_clear()


def _of_touched(**changed: Callable[[TouchedExperts], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a mistake that changes what is said of the experts that a rank reads."""
    right: Any = routing.touched_of_rank
    return _replaced(targets, "touched_of_rank", lambda *of: [
        replace(one, **{name: change(one) for name, change in changed.items()}) for one in right(*of)
    ])  # fmt: skip


_ROWS_OF: Any = routing.dispatch_rows
ON_RANKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "experts of all ranks": _of_touched(experts=lambda one: 2 * one.experts),
    "tokens of all steps": _of_touched(tokens=lambda one: one.tokens * one.calls if one.calls > 1 else one.tokens + 1),
    "an expert for each token": _of_touched(top_k=lambda one: 1),
    "half of the steps": _of_touched(calls=lambda one: one.calls + 1),
    "an expert more": _of_touched(bytes=lambda one: one.bytes + 3 * 4096 * 14336 * 2),
    "an element more sent": _replaced(
        targets, "dispatch_rows", lambda *of: [replace(row, sent_bytes=row.sent_bytes + 2) for row in _ROWS_OF(*of)]
    ),
    "sent pairs alone": _replaced(targets, "_pairs_moved", lambda *of: 0),
}
"""Mistakes in what a rank reads and sends under a routing of its roofline."""


@pytest.mark.parametrize("name", ON_RANKS)
@pytest.mark.parametrize("stages", [1, 2])
def test_a_planted_mistake_in_the_experts_of_a_rank_is_found(
    name: str, stages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mixtral with two layers on two ranks a stage, whose pairs are sent: 14 tokens, and two unequal steps."""
    rng = random.Random(f"{name}{stages}")
    calls = {"prefill": (1, 14), "decode": (2, 2)}
    data = {stage: [[[rng.sample(range(8), 2) for _ in range(tokens)] for _ in range(2)] for _ in range(of)]
            for stage, (of, tokens) in calls.items()}  # fmt: skip
    for call in data["decode"]:
        call[:] = [[[0, 4], [4, 5]], [[1, 6], [0, 2]]]  # each rank gets a pair
    (tmp_path / "routing.json").write_text(json.dumps(data), encoding="utf-8")
    target: Any = load_target("mixtral-8x7b")
    target = target.with_keys({"layers": 2})
    routing.copies_by_call.cache_clear()
    forms = {"dispatch": "all-to-all"} if stages == 2 else {}
    file = tmp_path / "routing.json"
    run = {"text_tokens": 7, "new_tokens": 2, "batch": 2, "dp": 2, "ep": 2, "pp": stages, "pairs": file}
    of = GivenRouting(target, stored_routing(str(file)), None)
    work = target.workload(**run, **forms, rank=0)
    assert len(of.loads(work)) == 2 * 2 * stages
    ON_RANKS[name](monkeypatch)
    if (name, stages) in (("an element more sent", 2), ("sent pairs alone", 1)):
        assert of.loads(work)  # the other way to count what is sent
        return
    with pytest.raises(Bug, match="counted in another way"):
        of.loads(work)


PLANTED_IN_PAGES: dict[str, dict[str, Any]] = {
    "uneven batches": {"dp": 3, "batch": 7},
    "batches rounded up, at one that is even": {"dp": 2, "batch": 4},
    "chunks rounded down": {"tp": 2},
    "the smallest is not the smallest": {"tp": 2},
    "a group of neighbours": {"tp": 2, "dp": 2, "batch": 2},
    "a header left out": {"dp": 4, "ep": 4, "batch": 4},
    "no scales of fp8": {"dp": 4, "ep": 4, "batch": 4},
    "collectives of another axis": {"tp": 2, "dp": 2, "batch": 2},
    "experts along tp": {"tp": 2, "ep": 2},
    "methods of dispatch left out": {"dp": 2, "ep": 2, "batch": 2},
    "numbers of experts without a dtype": {"dp": 4, "ep": 4, "batch": 4},
    # A page of 48 text tokens has 693 of its image; each of 741 tokens has 6 experts: 4,446 pairs.
    "fewer pairs than tokens choose": {"dp": 2, "ep": 2, "batch": 2, "new_tokens": 0, "dispatch": "all-to-all",
                                       "pairs": "4000+446;4000+445"},
    "pairs that come as those that go": {"dp": 2, "ep": 2, "batch": 2, "new_tokens": 0, "dispatch": "all-to-all",
                                         "pairs": "4000+446;2223+2223"},
}  # fmt: skip
"""Meshes of DeepSeek-OCR, by mistake of ``PLANTED``."""


@pytest.mark.parametrize("name", PLANTED_IN_PAGES)
def test_a_planted_mistake_is_found_in_ranks_of_pages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = load_target("deepseek-ocr")
    assert not counted(target, PLANTED_IN_PAGES[name] | _RIGHT.get(name, {})).problems()
    PLANTED[name][0](monkeypatch)
    with pytest.raises(Bug):
        counted(target, PLANTED_IN_PAGES[name])


_RIGHT: dict[str, dict[str, Any]] = {"fewer pairs than tokens choose": {"pairs": "4000+446;4000+446"}}
"""Settings without the mistake, of mistakes that are in the settings."""


def test_vision_tokens_are_tokens_of_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second count takes the length of a prompt from its page, and finds one that is of the text alone."""
    target: Any = load_target("deepseek-ocr")
    mesh = {"dp": 2, "ep": 2, "batch": 2}
    monkeypatch.setattr(type(target), "whole_prompt", lambda self, workload: workload)
    with pytest.raises(Bug):
        counted(target, mesh)


def test_a_width_that_is_not_divided_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that each have a whole MLP do not sum to one device, as the plan divides it."""
    target: Any = load_target("deepseek-ocr")
    right = pages.PageStructure.of_part
    monkeypatch.setattr(
        pages.PageStructure, "of_part",
        lambda self, size, part: size if part == "mlp" else right(self, size, part),
    )  # fmt: skip
    with pytest.raises(Bug):
        counted(target, {"tp": 2})


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather"])
def test_a_planted_rate_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = links.LinkRates.per_byte

    def wrong(self: links.LinkRates, of: str, group: tuple[int, ...]) -> Fraction | None:
        found = right(self, of, group)
        return found * Fraction(3, 4) if found is not None and of == kind else found

    monkeypatch.setattr(links.LinkRates, "per_byte", wrong)
    with pytest.raises(Bug, match=r"links|by its formulas"):
        costproof.roofline("llama-3.1-8b@chat,tp=16", on="2x8xh100-sxm")


def test_memory_without_a_reserve_and_the_meshes_that_are_tried() -> None:
    """A tenth of 80 GB is left free; on two devices tp 1, tp 2, and tp 2 with ep 2 are tried, until one fits."""
    found = costproof.fits("llama-3.1-8b@chat", memory=80 * 10**9, reserve="0.1")
    assert (found.memory_bytes, found.reserve_bytes, found.verdict) == (72 * 10**9, 8 * 10**9, "fits")
    one, two, both = (MeshTried(tp, ep, "does not fit", 0) for tp, ep in ((1, 1), (2, 1), (2, 2)))
    fits = replace(both, verdict="fits")

    def wrong(whole: int = 80 * 10**9, reserve: str = "0.1", **changed: Any) -> int:
        again = room_recounts(replace(found, **changed), whole, whole, reserve)
        return sum(x.found != x.again for x in again)

    assert wrong() == wrong(count=2, tried=(one, two, fits)) == 0
    assert wrong(memory_bytes=80 * 10**9) == wrong(whole=81 * 10**9, memory_bytes=73 * 10**9) == 1
    assert wrong(count=2, tried=(one, fits)) == 1  # without tp 2 alone
    assert wrong(count=2, tried=(replace(one, verdict="fits"), two, fits)) == 1  # and is not taken


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("130 to a multiple of 256", False),
        ("130 to a multiple of 128", True),
        ("256 to a multiple of 130", True),
        ("", True),
    ],
)
def test_the_note_on_a_padded_vocabulary(said: str, wrong: bool) -> None:
    """Megatron pads 130 entries to a multiple of 128 x 2."""
    target: Any = load_target("llama-3.1-8b")
    work = target.workload(text_tokens=8, new_tokens=0, tp=2, plan="megatron")
    notes = [f"{ranks.PADDED}: {said}"] if said else []
    found = [*rank_checks.note_recounts(notes, work, {"text_vocab": 130})]
    assert any(one.found != one.again for one in found) is wrong
    alone = target.workload(text_tokens=8, new_tokens=0, tp=2)
    assert all(one.found == one.again for one in rank_checks.note_recounts([], alone, {"text_vocab": 130}))


def test_a_report_names_all_metrics_of_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = load_target("llama-3.1-8b")
    work = target.workload(text_tokens=8, new_tokens=1, tp=2)
    capture = count_sources(Prepared(target, work, ("analytic",))).capture
    assert capture.parallel is not None
    assert set(static_compute(capture, "exact").summed_metrics) >= {
        "params",
        "flops",
        "kv_read_bytes",
        "resident_bytes",
    }
    monkeypatch.setattr(Parallel, "summed", ("params", "flops"))
    with pytest.raises(Bug, match="summed_metrics"):
        static_compute(capture, "exact")
