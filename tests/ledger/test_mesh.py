"""Meshes of devices: coordinates, groups, shares, and a ring that is run step by step."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from costproof.analytic.collectives import AllReduce, Send
from costproof.ledger.errors import BadInput
from costproof.ledger.mesh import (
    Collectives,
    Duplicate,
    Mesh,
    Parallel,
    RankCosts,
    Schedule,
    own_batch,
    shard,
    stage_layers,
)
from costproof.opgraph.rules.cost import OpCost
from costproof.opgraph.rules.registry import cost_of
from tests.support.opcalls import call, value


def test_ranks_are_numbered_with_tp_fastest() -> None:
    mesh = Mesh(tp=2, dp=4, ep=4)
    assert mesh.world == 8
    at = mesh.coordinates(5)
    assert (at.tp, at.dp, at.ep) == (1, 2, 1)
    assert mesh.group("tp", 5) == (4, 5)
    assert mesh.group("dp", 5) == (1, 3, 5, 7)
    assert mesh.group("ep", 5) == (4, 5, 6, 7)  # transformers: experts 0 and 1 of a copy are on its first rank


def test_every_group_divides_the_ranks() -> None:
    mesh = Mesh(tp=2, cp=3, dp=2, pp=2, ep=12)
    for axis, size in (("tp", 2), ("cp", 3), ("dp", 2), ("pp", 2), ("ep", 12)):
        groups = {mesh.group(axis, rank) for rank in range(mesh.world)}
        assert sorted(rank for group in groups for rank in group) == list(range(24)), axis
        assert {len(group) for group in groups} == {size}
        for rank in range(mesh.world):
            assert mesh.group(axis, rank)[getattr(mesh.coordinates(rank), axis)] == rank


@pytest.mark.parametrize(
    ("size", "ranks", "parts"),
    [(102, 4, [26, 26, 26, 24]), (8, 4, [2, 2, 2, 2]), (5, 4, [2, 2, 1, 0]), (1, 3, [1, 0, 0])],
)
def test_chunks_are_those_of_torch(size: int, ranks: int, parts: list[int]) -> None:
    """``torch.chunk(torch.empty(102), 4)`` has 26, 26, 26 and 24 elements."""
    found = [shard(size, ranks, index) for index in range(ranks)]
    assert [stop - start for start, stop in found] == parts
    assert found[0][0] == 0
    assert found[-1][1] == size


def test_a_ring_step_by_step() -> None:
    """Four ranks pass chunks on until each has every sum: what a rank passes on is what the formula says."""
    ranks, elements = 4, 12
    chunk = elements // ranks
    has = [[{r} for _ in range(ranks)] for r in range(ranks)]  # whose summands are in each chunk of each rank
    sent = [0] * ranks
    for step in range(2 * (ranks - 1)):
        passed = [(r, (r - step) % ranks, set(has[r][(r - step) % ranks])) for r in range(ranks)]
        for r, at, summands in passed:
            has[(r + 1) % ranks][at] |= summands
            sent[r] += chunk
    assert all(summands == set(range(ranks)) for row in has for summands in row)
    x = value(elements, dtype="int8")
    cost = cost_of(call("c10d.allreduce_.default", [x], [x], {"group_size": ranks}))
    assert isinstance(cost, OpCost)
    formula = AllReduce(elements, ranks, 1).costs().exchanges["all_reduce"]
    assert sent == [18] * ranks  # 2 * 3 chunks of 3
    assert cost.comm == ("all_reduce", elements, sent[0])
    assert (formula.payload_bytes, formula.sent_bytes) == (elements, sent[0])


def test_an_uneven_batch_goes_to_the_first_ranks() -> None:
    mesh = Mesh(tp=2, dp=3)
    assert [own_batch(8, mesh, rank) for rank in range(6)] == [3, 3, 3, 3, 2, 2]


@pytest.mark.parametrize(
    ("mesh", "rank", "where"),
    [
        (Mesh(tp=0), 0, "--tp"),
        (Mesh(pp=2), 0, "--pp"),
        (Mesh(cp=2), 0, "--cp"),
        (Mesh(tp=2), 2, "--rank"),
        (Mesh(tp=2), -1, "--rank"),
        (Mesh(tp=4, ep=2), 0, "--ep"),
        (Mesh(tp=4, ep=8), 0, "--ep"),
    ],
)
def test_meshes_that_are_refused(mesh: Mesh, rank: int, where: str) -> None:
    assert [problem.where for problem in mesh.problems(rank)] == [where]


def test_ranks_that_do_not_sum_to_one_device_and_copies_are_found() -> None:
    ranks = (RankCosts((0, 1), {"": {"params": 6}, "prefill": {"params": 6}}),)
    whole = {"": {"params": 10}}
    for older in (None, 0):
        copies = (Duplicate("norms", "", "params", 2, older),)
        assert Parallel(Mesh(tp=2), 0, "a plan", ranks, (), whole, copies).problems() == []
    wrong = Parallel(Mesh(tp=2), 0, "a plan", ranks, (), whole, ()).problems()
    assert [(p.expected, p.got) for p in wrong] == [("10", "12")]
    bytes_too = (Duplicate("norms", "", "params", 2, 4),)
    (said,) = Parallel(Mesh(tp=2), 0, "a plan", ranks, (), whole, bytes_too).problems()
    assert (said.where, said.got) == ("$.parallel.duplicates[0].bytes", "4")
    missing = Parallel(Mesh(tp=3), 0, "a plan", ranks, (), {}, ()).problems()
    assert [p.where for p in missing] == ["$.parallel.ranks"]


@pytest.mark.parametrize(
    ("layers", "stages", "parts"),
    [
        (2, 2, [(0, 1), (1, 2)]),
        (3, 2, [(0, 2), (2, 3)]),
        (3, 3, [(0, 1), (1, 2), (2, 3)]),
        (4, 3, [(0, 1), (1, 3), (3, 4)]),
        (5, 3, [(0, 2), (2, 4), (4, 5)]),
        (61, 4, [(0, 15), (15, 30), (30, 46), (46, 61)]),
        (94, 4, [(0, 23), (23, 47), (47, 71), (71, 94)]),
    ],
)
def test_stages_are_those_of_vllm(layers: int, stages: int, parts: list[tuple[int, int]]) -> None:
    """The first five are cases of vLLM's tests/distributed/test_pipeline_partition.py."""
    assert [stage_layers(layers, stages, i) for i in range(stages)] == [range(*part) for part in parts]


def test_stages_divide_the_layers() -> None:
    for layers in range(1, 30):
        for stages in range(1, layers + 1):
            found = [stage_layers(layers, stages, i) for i in range(stages)]
            assert [i for part in found for i in part] == list(range(layers))
            assert {len(part) for part in found} <= {layers // stages, layers // stages + 1}


Work = tuple[str, int, int]
"""Forward or backward, number of the part of the model, and microbatch."""


def _megatron_order(rank: int, stages: int, microbatches: int, parts: int) -> list[Work]:
    """Return what a stage does in turn: forwards to warm up, then one forward and one backward by turns, the rest."""
    turn = stages * parts
    batch = [k // turn * stages + k % stages for k in range(microbatches * parts)]
    forward = [("f", k % turn // stages * stages + rank, batch[k]) for k in range(microbatches * parts)]
    backward = [("b", (parts - 1 - k % turn // stages) * stages + rank, batch[k]) for k in range(microbatches * parts)]
    warm = min(len(forward), stages - rank - 1 if parts == 1 else 2 * (stages - rank - 1) + (parts - 1) * stages)
    found = forward[:warm]
    for k in range(warm, len(forward)):
        found += [forward[k], backward[k - warm]]
    return found + backward[len(forward) - warm :]


def _slots(orders: list[list[Work]], last: int) -> int:
    """Return the slots that stages take which work one slot on each part of a microbatch, when its input is there."""
    done: dict[Work, int] = {}
    waiting, slot = [list(order) for order in orders], 0
    while any(waiting):
        ready = []
        for order in waiting:
            if not order:
                continue
            kind, part, batch = order[0]
            before = (
                ("f", part - 1, batch) if kind == "f" else ("b", part + 1, batch) if part < last else ("f", part, batch)
            )
            if (kind == "f" and part == 0) or done.get(before, slot) < slot:
                ready.append(order)
        assert ready, "the stages wait for each other"
        for order in ready:
            done[order.pop(0)] = slot
        slot += 1
    return slot


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_idle_stages_slot_by_slot(stages: int, rounds: int, parts: int) -> None:
    """Of the slots of a pass a stage works in 2 per part and microbatch; what is left over is the bubble."""
    microbatches = rounds * stages
    orders = [_megatron_order(rank, stages, microbatches, parts) for rank in range(stages)]
    slots = _slots(orders, stages * parts - 1)
    text = "1f1b" if parts == 1 else f"interleaved:{parts}"
    schedule = Schedule.of(text, stages, microbatches)
    assert schedule.idle == 1 - Fraction(2 * parts * microbatches, slots)
    sent = Counter(part % stages for kind, part, _ in (w for o in orders for w in o)
                   if kind == "f" and part < stages * parts - 1)  # fmt: skip
    assert [schedule.sends(i) for i in range(stages)] == [sent[i] for i in range(stages)]


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (4, 3), (4, 8), (8, 32)])
def test_idle_stages_of_gpipe(stages: int, microbatches: int) -> None:
    """All forwards, then all backwards: 3 / 11 of a pass of 8 microbatches in 4 stages."""
    orders: list[list[Work]] = [
        [*(("f", rank, m) for m in range(microbatches)), *(("b", rank, m) for m in range(microbatches))]
        for rank in range(stages)
    ]
    slots = _slots(orders, stages - 1)
    assert Schedule.of("gpipe", stages, microbatches).idle == 1 - Fraction(2 * microbatches, slots)
    assert Schedule.of("gpipe", 4, 8).idle == Fraction(3, 11)


@pytest.mark.parametrize(
    ("text", "stages", "microbatches", "where"),
    [
        ("gpipe", 1, 4, "--microbatches, --schedule"),
        ("gpipe", 4, 0, "--microbatches"),
        ("gpipe:2", 4, 4, "--schedule"),
        ("interleaved", 4, 4, "--schedule"),
        ("interleaved:1", 4, 4, "--schedule"),
        ("interleaved:-2", 4, 4, "--schedule"),
        ("zero", 4, 4, "--schedule"),
        ("interleaved:2", 4, 6, "--microbatches"),
    ],
)
def test_schedules_that_are_refused(text: str, stages: int, microbatches: int, where: str) -> None:
    with pytest.raises(BadInput) as caught:
        Schedule.of(text, stages, microbatches)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("text", "stages", "got"),
    [
        ("interleaved:999", 4, "4 x 999 = 3996 parts"),  # of 32 layers
        ("interleaved:9", 4, "4 x 9 = 36 parts"),
        ("interleaved:2", 32, "32 x 2 = 64 parts"),
        ("interleaved:3", 4, "4 x 3 = 12 parts"),  # 32 = 8 x 4 layers, of which three equal parts are none
        ("interleaved:2", 3, "3 x 2 = 6 parts"),
    ],
)
def test_parts_of_a_pipeline_have_layers(text: str, stages: int, got: str) -> None:
    with pytest.raises(BadInput) as caught:
        Schedule.of(text, stages, 96, 32)
    assert (caught.value.where, caught.value.got) == ("--schedule", got)
    assert "32 layers" in str(caught.value.expected)
    for parts in (2, 4, 8):  # 8, 16 and 32 parts
        assert Schedule.of(f"interleaved:{parts}", 4, 96, 32).parts == parts
    assert Schedule.of("1f1b", 3, 8, 32).parts == 1  # stages of 10, 11 and 11 layers


@pytest.mark.parametrize("text", ["interleaved:0", "interleaved:2.5", "interleaved:x", "interleaved:"])
def test_parts_of_a_pipeline_are_an_integer(text: str) -> None:
    with pytest.raises(BadInput, match="no such pipeline schedule"):
        Schedule.of(text, 4, 8, 32)


@pytest.mark.parametrize("name", ["c10d.send.default", "_c10d_functional.isend.default"])
def test_a_send_has_the_whole_tensor(name: str) -> None:
    x = value(3, 4, dtype="bfloat16")
    cost = cost_of(call(name, [x], [], {}))
    assert isinstance(cost, OpCost)
    assert cost.comm == ("send", 24, 24)
    formula = Send(12, 2).costs().exchanges["send"]
    assert (formula.payload_bytes, formula.sent_bytes, formula.messages) == (24, 24, 1)


@pytest.mark.parametrize(
    ("rank", "group", "ranks", "right"),
    [
        # Of tp 2, dp 2, pp 2 the ranks 0 to 7 are (pp, dp, tp) in binary; ep 4 has those of tp and dp.
        (0, "tp", (0, 1), True),
        (0, "dp", (0, 2), True),
        (0, "pp", (0, 4), True),
        (5, "pp", (1, 5), True),
        (5, "ep", (4, 5, 6, 7), True),
        (5, "ep/tp", (5, 7), True),
        (0, "pp", (0, 2), False),  # a group along dp
        (1, "tp", (2, 3), False),  # without the counted rank
        (1, "pp", (1, 1), False),  # which sends to itself
        (0, "dp", (0, 8), False),  # no rank of the mesh
        (0, "ep", (0, 4), False),  # the same place in two groups
        (0, "rows", (0, 1), False),
    ],
)
def test_a_collective_runs_in_a_group_of_the_counted_rank(
    rank: int, group: str, ranks: tuple[int, ...], right: bool
) -> None:
    mesh = Mesh(tp=2, ep=4, pp=2, dp=2)
    of_all = (RankCosts(tuple(range(8)), {}),)
    one = Collectives("prefill", "prompt", "send", group, ranks, "bfloat16", 1, 2, 2, "model")
    found = Parallel(mesh, rank, "a plan", of_all, (one,), {}, ()).problems()
    assert [p.where for p in found] == ([] if right else ["$.parallel.collectives[0]"])


def test_groups_of_ranks_that_store_parts() -> None:
    """Of 16 ranks tp is fastest, then fsdp, then dp: rank 11 is 1 + 2 x (1 + 4 x 1); of 9 sequences the first has 2."""
    mesh = Mesh(tp=2, dp=2, fsdp=4)
    assert (mesh.world, mesh.text) == (16, "tp 2, dp 2, fsdp 4")
    at = mesh.coordinates(11)
    assert (at.tp, at.fsdp, at.dp) == (1, 1, 1)
    assert mesh.group("fsdp", 11) == (9, 11, 13, 15)
    assert mesh.group("dp", 11) == (3, 11)
    assert mesh.group("tp", 11) == (10, 11)
    assert [own_batch(9, mesh, rank) for rank in (0, 1, 2, 11)] == [2, 2, 1, 1]
