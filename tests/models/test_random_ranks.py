"""Random small configurations on random meshes: the ranks sum to one device and the copies; formula and graph agree."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise, product
from math import prod
from typing import Any, Final, cast

import pytest

from costproof.ledger.errors import Problems
from costproof.ledger.mesh import Parallel
from costproof.ledger.workload import Workload
from costproof.models.decoding.domain import CONFIG
from costproof.models.registry import load_target
from costproof.parametric.targets import count_ranks, evaluate_formulas
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from tests.models.test_ranks import FAMILIES

CONFIGURATIONS: Final = 20
MESHES: Final = 10
SHARED: Final = ("tp", "cp", "fsdp", "dp", "pp")
PLANS: Final[tuple[dict[str, str], ...]] = ({}, {"plan": "vllm"}, {"plan": "megatron"})
POOLS: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "tensors": tuple(
        {"tp": tp, "dp": dp, **({"ep": tp} if by_expert else {}), **plan}
        for tp, dp, by_expert, plan in product((1, 2, 3, 4, 6, 8, 12), (1, 2, 3), (False, True), PLANS)
        if tp > 1 or (dp > 1 and not by_expert and not plan)
    ),
    "stages": tuple({"pp": 2, "tp": tp, "dp": dp} for tp, dp in product((1, 2, 3), (1, 2))),
    "sequences": tuple(
        {"cp": cp, "tp": tp, "dp": dp, "cp_plan": plan}
        for cp, tp, dp, plan in product((2, 3, 4, 6), (1, 2), (1, 2), ("ring", "zigzag", "ulysses"))
    ),
    "parts of parameters": tuple({"fsdp": fsdp, "cp": cp} for fsdp, cp in product((2, 3, 4), (1, 2))),
    "batches of experts": tuple(
        {"tp": tp, "dp": dp, "ep": tp * dp, **({"dispatch": "all-to-all"} if pairs else {})}
        for tp, dp, pairs in ((1, 2, False), (1, 3, False), (2, 2, False), (1, 2, True), (1, 3, True), (1, 4, True))
    ),
}
"""Meshes of up to 36 devices that may fit a model, by what ranks share."""


def configurations(family: str) -> Iterator[Any]:
    """Yield random small configurations whose sizes many numbers divide, as targets."""
    rng, model = random.Random(f"meshes of {family}"), cast(Any, load_target(family))
    ranges = {**CONFIG, **type(model.config).ranges} if family in FAMILIES else model.domain().parameters.ranges
    while True:
        sizes = {name: rng.choice(values) for name, values in ranges.items()}
        sizes |= {"layers": 2, "row": 8, "S": 5, "P": 5, "text_intermediate": 24 * rng.randint(1, 3)}
        sizes |= {"text_kv_heads": rng.choice((1, 2, 4)), "text_groups": rng.choice((4, 6, 8, 12))}
        # Grouped products need rows of a multiple of 16 bytes, also of a rank: 8 x 24 columns / 12 ranks are 16.
        sizes |= {"text_moe_rows": 24} if "text_moe_rows" in sizes else {}
        sizes |= {"text_experts": 24} if "text_experts" in sizes else {}
        drawn = model.drawn(sizes, rng)
        assert drawn is not None
        yield drawn[0]


def meshes(model: Any, rng: random.Random) -> Iterator[Workload]:
    """Yield workloads of a model on different meshes that fit it, of a random rank; each pool in turn, in random order.

    Families of text and images have meshes of their decoders.
    """
    left = [rng.sample(pool, len(pool)) for pool in POOLS.values()]
    while left := [pool for pool in rng.sample(left, len(left)) if pool]:
        for pool in left:
            while pool:
                try:
                    work = on_mesh(model, pool.pop(), rng)
                except Problems:
                    continue
                yield work
                break


def on_mesh(model: Any, mesh: dict[str, Any], rng: random.Random) -> Workload:
    """Return the workload of a random rank of a mesh; with ``dispatch``, pairs of random experts.

    Raises:
        Problems: the model does not fit the mesh.
    """
    dp, shared = mesh.get("dp", 1), mesh.get("ep", 1) > mesh.get("tp", 1)
    equal = shared and "dispatch" in mesh
    batch: int = dp * rng.randint(1, 2) if equal else rng.randint(parts := dp * mesh.get("fsdp", 1), max(parts, 4))
    run: dict[str, Any] = {"text_tokens": 12, "new_tokens": rng.randint(0, 2), "batch": batch, **mesh}
    if "cp" in mesh and getattr(model.config, "kv_rank", 0) > 0:
        run["decoding"] = rng.choice(("expanded", "absorbed"))
    if "dispatch" in mesh:
        each = batch // dp * 12 * getattr(model.config, "top_k", 0)
        cuts = [sorted(rng.randint(0, each) for _ in range(mesh["ep"] - 1)) for _ in range(dp)]
        rows = [[b - a for a, b in pairwise((0, *cut, each))] for cut in cuts]
        run |= {"new_tokens": 0, "pairs": ";".join(",".join(map(str, row)) for row in rows)}
    return cast(Workload, model.workload(**run, rank=rng.randrange(prod(mesh.get(x, 1) for x in SHARED))))


def summed(model: Any, work: Workload) -> Parallel:
    found = count_ranks(model, work, evaluate_formulas(model, work))
    assert found.problems() == []
    return found


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("family", [*FAMILIES, "llava"])
def test_ranks_of_random_meshes_sum_to_one_device(family: str) -> None:
    rng, models, counted = random.Random(family), configurations(family), 0
    for _ in range(CONFIGURATIONS):
        model = next(models)
        for _, work in zip(range(MESHES), meshes(model, rng), strict=False):
            summed(model, work)
            counted += 1
    print(f"\n{family}: {counted} meshes of {CONFIGURATIONS} configurations, residual 0")
    assert counted >= CONFIGURATIONS * MESHES // 2


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("family", [*FAMILIES, "llava"])
def test_formulas_and_graphs_of_random_meshes_agree(family: str) -> None:
    """The first legal mesh of each configuration: an export takes a hundred times as long as a sum."""
    rng, models, quantities = random.Random(f"{family} graphs"), configurations(family), 0
    for _ in range(CONFIGURATIONS):
        model = next(models)
        work = next(meshes(model, rng))
        report = count_sources(Prepared(model, work, ("analytic", "static")))
        found, notes = report.discrepancy, [note for x in report.capture.ledgers for note in x.notes]
        assert [f.id for f in found.findings if f.status != "exact"] == [], (model.config, work, notes)
        quantities += len(found.findings)
    print(f"\n{family}: {quantities} quantities of {CONFIGURATIONS} configurations, all equal")
    assert quantities


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma3", "gpt-oss", "deepseek-v2", "deepseek-v3"])
def test_three_sources_of_random_shared_sequences_agree(family: str) -> None:
    """Windows, sinks and latents, absorbed or not, on 2 or 4 ranks that share a sequence, 1 or 2 that share layers."""
    rng, models, quantities = random.Random(f"{family} sequences"), configurations(family), 0
    pool = [mesh for mesh in POOLS["sequences"] if mesh["cp"] in (2, 4) and mesh["dp"] == 1]
    for _ in range(5):
        work = None
        while work is None:
            model = next(models)
            with suppress(Problems):
                work = on_mesh(model, rng.choice(pool), rng)
        found = count_sources(Prepared(model, work, ("analytic", "static", "dynamic"))).discrepancy
        assert [f.id for f in found.findings if f.status != "exact"] == [], (model.config, work)
        quantities += len(found.findings)
        print(f"{family}: {work.inputs}, {len(found.findings)} quantities, {found.verdict}", flush=True)
    print(f"\n{family}: {quantities} quantities of 5 configurations, all equal")
