"""Random small configurations on random meshes: the ranks sum to one device and the copies; formula and graph agree."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import pytest

from costproof.ledger.errors import Problems
from costproof.ledger.mesh import Parallel
from costproof.ledger.workload import Workload
from costproof.models.decoding.domain import CONFIG
from costproof.parametric.targets import count_ranks, evaluate_formulas
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from tests.models.test_ranks import FAMILIES, target

CONFIGURATIONS: Final = 20
MESHES: Final = 10
PLANS: Final[tuple[dict[str, str], ...]] = ({}, {"plan": "vllm"}, {"plan": "megatron"})
POOL: Final[tuple[dict[str, Any], ...]] = tuple(
    {"tp": tp, "dp": dp, **({"ep": tp} if by_expert else {}), **plan}
    for tp, dp, by_expert, plan in product((1, 2, 3, 4, 6, 8, 12), (1, 2, 3), (False, True), PLANS)
    if tp > 1 or (dp > 1 and not by_expert and not plan)
)
"""All meshes of up to 36 devices that a plan may fit."""


def configurations(family: str) -> Iterator[Any]:
    """Yield random small configurations whose sizes many numbers divide, as targets."""
    rng, model = random.Random(f"meshes of {family}"), target(family)
    while True:
        sizes = {name: rng.choice(values) for name, values in {**CONFIG, **type(model.config).ranges}.items()}
        sizes |= {"layers": 2, "row": 8, "S": 5, "P": 5, "text_intermediate": 24 * rng.randint(1, 3)}
        sizes |= {"text_kv_heads": rng.choice((1, 2, 4)), "text_groups": rng.choice((4, 6, 8, 12))}
        sizes |= {"text_moe_rows": 3 * rng.randint(1, 3)} if "text_moe_rows" in sizes else {}
        sizes |= {"text_experts": 24} if "text_experts" in sizes else {}
        drawn = model.drawn(sizes, rng)
        assert drawn is not None
        yield drawn[0]


def meshes(model: Any, rng: random.Random) -> Iterator[Workload]:
    """Yield workloads of a model on different meshes of the pool that fit it, in random order, of a random rank."""
    for mesh in rng.sample(POOL, len(POOL)):
        run = {"text_tokens": 12, "new_tokens": rng.randint(0, 2), "batch": rng.randint(mesh["dp"], 4), **mesh}
        rank = rng.randrange(mesh["tp"] * mesh["dp"])
        try:
            yield model.workload(**run, rank=rank)
        except Problems:
            continue


def summed(model: Any, work: Workload) -> Parallel:
    found = count_ranks(model, work, evaluate_formulas(model, work))
    assert found.problems() == []
    return found


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
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
@pytest.mark.parametrize("family", FAMILIES)
def test_formulas_and_graphs_of_random_meshes_agree(family: str) -> None:
    """The first legal mesh of each configuration: an export takes a hundred times as long as a sum."""
    rng, models, quantities = random.Random(f"{family} graphs"), configurations(family), 0
    for _ in range(CONFIGURATIONS):
        model = next(models)
        work = next(meshes(model, rng))
        found = count_sources(Prepared(model, work, ("analytic", "static"))).discrepancy
        assert [f.id for f in found.findings if f.status != "exact"] == [], (model.config, work.inputs)
        quantities += len(found.findings)
    print(f"\n{family}: {quantities} quantities of {CONFIGURATIONS} configurations, all equal")
    assert quantities
