"""Random small configurations on random meshes: the ranks sum to one device and the copies; formula and graph agree."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any, Final

import pytest

from costproof.ledger.errors import Problems
from costproof.ledger.mesh import Parallel
from costproof.ledger.workload import Workload
from costproof.parametric.targets import count_ranks, evaluate_formulas
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from tests.oracles.random_meshes import FAMILIES, MESHES, POOLS, configurations, meshes, on_mesh

CONFIGURATIONS: Final = 20


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
