"""The record of which metrics each source gives is that of today, and a formula that stops giving one is found."""

from __future__ import annotations

import json

import pytest

from costproof.compare.compare import compare
from costproof.compare.verdict import exit_code, verdict_sentence
from costproof.ledger.metrics import METRICS, STORAGE
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import Workload
from costproof.models.families.vit import Vit
from costproof.models.known import RECORD, family_of, recorded
from costproof.models.proof import WithProof
from costproof.models.registry import load_target
from costproof.models.target import WithFormulas
from costproof.opgraph.tally import graph_metrics
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from tests.recorded import families, given

FAMILIES = families()


def test_every_family_is_on_record_once() -> None:
    groups = json.loads(RECORD.read_text(encoding="utf-8"))
    named = [family for group in groups for family in group["families"]]
    assert sorted(named) == sorted(FAMILIES), f"make recorded FAMILIES='{' '.join({*FAMILIES} - {*named})}'"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_formulas_give_what_is_on_record(family: str) -> None:
    target = FAMILIES[family]
    assert isinstance(target, WithFormulas)
    workload = target.workload()
    found = {source: set(metrics) - {*STORAGE} for source, metrics in recorded(target, workload).items()}
    assert found.pop("analytic", None) == set(target.formulas(workload).metrics), "make recorded"
    assert all(metrics == set(graph_metrics(RunOptions())) for metrics in found.values()), "make recorded"


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["vit", "llama"])
def test_graphs_and_runs_give_what_is_on_record(family: str) -> None:
    target = FAMILIES[family]
    found = given(target)
    assert found == recorded(target, target.workload())
    assert found.keys() == {"analytic", "static", "dynamic", "isolated"}
    assert {m for metrics in found.values() for m in metrics} == {*METRICS} - {"unpacking_flops"}, (
        "nothing is quantised"
    )
    assert {*found["analytic"]} - {*found["isolated"]} == {*STORAGE}, "a stage alone says nothing of the checkpoint"
    assert found["analytic"] == found["static"] == found["dynamic"]


def test_a_run_whose_operators_data_chooses_need_not_tell_what_each_moves() -> None:
    target = load_target("mixtral")
    usual = Workload("text", 8, 1)
    assert "unfused_bytes" in recorded(target, usual)["dynamic"]
    looped = recorded(target, Workload("text", 8, 1, experts="eager"))
    assert "unfused_bytes" not in looped["dynamic"]
    assert "unfused_bytes" in looped["static"]


def test_a_target_of_others_has_no_record() -> None:
    class Other:
        """A target that is not in our package."""

    assert family_of(Other()) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", ["vector_flops", "unfused_bytes"])
def test_a_formula_that_stops_giving_a_metric_is_a_finding(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = FAMILIES["vit"]
    assert isinstance(target, WithProof)
    piece = next(p for p in target.proof(1, 1).pieces if p.phase == "draws")
    run = Prepared(piece.target, piece.workload, ("analytic", "static"))
    assert exit_code(compare(count_sources(run).capture)) == 0
    right = Vit.formulas
    monkeypatch.setattr(Vit, "formulas", lambda self, workload: right(self, workload).without((metric,)))
    found = compare(count_sources(run).capture)
    assert exit_code(found) == 1
    assert f"analytic no longer gives {metric}" in verdict_sentence(found)
