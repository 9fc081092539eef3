"""Meshes of devices: coordinates, groups, shares, and a ring that is run step by step."""

from __future__ import annotations

import pytest

from costproof.analytic.collectives import AllReduce
from costproof.ledger.mesh import Duplicate, Mesh, Parallel, RankCosts, own_batch, shard
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
    ranks = (RankCosts((0, 1), {"": {"params": 6}}),)
    whole = {"": {"params": 10}}
    copies = (Duplicate("norms", "", "params", 2, 0),)
    assert Parallel(Mesh(tp=2), 0, "a plan", ranks, (), whole, copies).problems() == []
    wrong = Parallel(Mesh(tp=2), 0, "a plan", ranks, (), whole, ()).problems()
    assert [(p.expected, p.got) for p in wrong] == [("10", "12")]
    missing = Parallel(Mesh(tp=3), 0, "a plan", ranks, (), {}, ()).problems()
    assert [p.where for p in missing] == ["$.parallel.ranks"]
