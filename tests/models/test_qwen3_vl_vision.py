"""Qwen3-VL's vision tower: three sources agree, and what a published formula of it gets wrong has a name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import costproof
from costproof.compare.compare import compare
from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.models.families.qwen3_vl_vision import Qwen3VlVision, Qwen3VlVisionConfig
from costproof.models.registry import load_target
from costproof.parametric.targets import evaluate_formulas
from costproof.run.proof_pieces import carry_out_piece
from tests.models.test_families import SOURCES
from tests.oracles.mutations import run as planted

CLAIMS: Final = Path(__file__).resolve().parents[2] / "docs" / "examples" / "qwen3-vl-vision.yaml"
SMALL: Final[dict[str, Any]] = {
    "model_type": "qwen3_vl_vision", "depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4,
    "patch_size": 4, "out_hidden_size": 24, "num_position_embeddings": 36, "deepstack_visual_indexes": [0],
}  # fmt: skip


def small(**changes: Any) -> tuple[Qwen3VlVisionConfig, list[str]]:
    """A small configuration, read as from a file, and where it is wrong."""
    problems: list[CostproofError] = []
    config = Qwen3VlVisionConfig.read({**SMALL, **changes}, problems)
    return config, [str(p.where) for p in problems if isinstance(p, BadInput)]


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.usefixtures("one_process")
def test_three_sources_agree(attention: str, tmp_path: Path, *, thorough: bool) -> None:
    sources = SOURCES if thorough or attention == "sdpa" else SOURCES[:2]
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**SMALL, "depth": 1 if attention == "sdpa" else 2}), encoding="utf-8")
    capture = costproof.capture("qwen3-vl-vision", config=file, image_size=24, attention=attention, sources=sources)
    compared = compare(capture)
    wrong = [f for f in compared.findings if f.status != "exact"]
    assert (compared.verdict, wrong[:3]) == ("exact", [])
    assert {len(f.values) for f in compared.findings} == {len(sources)}
    assert isinstance(load_target(f"hf:{file}"), Qwen3VlVision)
    if attention == "sdpa":
        assert [o.said for o in planted("tower", capture, 1, None if thorough else 30) if not o.located] == []


@pytest.mark.slow
def test_a_proof_of_a_small_tower_holds() -> None:
    config, wrong = small()
    assert wrong == []
    first, *_, draw = Qwen3VlVision(config).proof(1, 5).pieces
    for piece in (first, draw):
        assert carry_out_piece(piece).counterexamples == ()


def test_the_flop_counter_counts_the_same() -> None:
    target = Qwen3VlVision(small()[0])
    workload = target.workload(image_size=24, attention="eager")
    model = target.build(workload)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        for run in target.runs(model, workload):
            model(**run.kwargs)
    assert evaluate_formulas(target, workload).total("flops") == counter.get_total_flops()


def test_parameters_by_hand() -> None:
    # Patches of 3 * 2 * 16 * 16 elements, 48 x 48 positions; a layer with one projection for queries, keys and values.
    layer = 4 * 1152 * 1152 + 4 * 1152 + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152
    # Four mergers of 4608 to 4608 to 4096; the norm of one is 1152 wide, those of the others 4608.
    mergers = 4 * (4608 * 4608 + 4608 + 4608 * 4096 + 4096) + 2 * 1152 + 3 * 2 * 4608
    target = Qwen3VlVision()
    expected = 1536 * 1152 + 1152 + 2304 * 1152 + 27 * layer + mergers
    assert expected == 576_388_336
    assert evaluate_formulas(target, target.workload()).total("params") == expected
    assert sum(p.numel() for p in target.build(target.workload()).parameters()) == expected


def test_a_published_formula_lets_the_mergers_work_on_patches() -> None:
    # 1024 patches: linear layers of the patches, of 27 layers, of four mergers on a quarter of the patches; attention.
    layers = 27 * (4 * 1152 * 1152 + 2 * 1152 * 4304)
    merger = 4608 * 4608 + 4608 * 4096
    truth = 2 * 1024 * (1536 * 1152 + layers) + 2 * 256 * 4 * merger + 27 * 4 * 1024 * 1024 * 1152
    report = costproof.check(CLAIMS)
    (claim,) = report.judgements
    (step,) = claim.explanations[0].steps
    assert (claim.status, claim.truth, step.cause) == ("explained", truth, "mergers on patches")
    assert step.amount == claim.delta == 2 * 768 * 4 * merger
    assert 23_285 * truth < 100_000 * step.amount < 23_295 * truth  # the 23.29 % that were measured


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"num_heads": 16}, "$.num_heads"),
        ({"deepstack_visual_indexes": [1]}, "$.deepstack_visual_indexes[0]"),
        ({"architectures": ["Qwen3VLModel"]}, "$.architectures"),
    ],
)
def test_a_file_that_lies(changes: dict[str, Any], where: str) -> None:
    assert small(**changes)[1] == [where]


@pytest.mark.parametrize("given", [{"image_size": 500}, {"batch": 2}, {"image_size": 0}])
def test_a_run_that_it_cannot_make(given: dict[str, Any]) -> None:
    with pytest.raises(Problems, match="cannot be run"):
        Qwen3VlVision().workload(**given)
