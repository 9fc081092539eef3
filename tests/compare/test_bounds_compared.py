"""Metrics of time bounds are in no table, and a source that gives others than the rest is a finding all the same."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from costproof.compare.compare import compare
from costproof.ledger.capture import Capture
from costproof.ledger.metrics import OF_BOUNDS
from costproof.ledger.node import CostNode
from costproof.models.native import stored_formulas
from costproof.models.registry import load_target
from costproof.run.capture import count_sources
from costproof.run.prepare import Prepared
from costproof.run.proof_pieces import count_piece

STAGE = "prefill"


@cache
def piece() -> Any:
    """A drawn model whose routers multiply in float32."""
    target: Any = load_target("deepseek-v2")
    drawn = (p for p in target.proof(6, 0).pieces if p.phase == "draws" and p.workload.dtype != "float32")
    return next(p for p in drawn if any("float32_flops" in n.exprs for n in p.target.formulas(p.workload).nodes))


@cache
def counted() -> Capture:
    return count_sources(Prepared(piece().target, piece().workload, ("analytic", "static"))).capture


def planted(capture: Capture, source: str, metric: str, more: int) -> Capture:
    """The capture with a source in which one node of a stage has more of a metric."""

    def with_more(nodes: tuple[CostNode, ...]) -> tuple[CostNode, ...]:
        at = next((i for i, n in enumerate(nodes) if n.stage == STAGE and metric in n.costs), None)
        at = next(i for i, n in enumerate(nodes) if n.stage == STAGE and "flops" in n.costs) if at is None else at
        exprs = {m: e for m, e in nodes[at].exprs.items() if m != metric}
        known = nodes[at].costs.get(metric, 0)
        costs = {**nodes[at].costs, metric: None if known is None else known + more}
        return (*nodes[:at], replace(nodes[at], costs=costs, exprs=exprs), *nodes[at + 1 :])

    ledgers = (replace(x, nodes=with_more(x.nodes)) if x.source == source else x for x in capture.ledgers)
    return replace(capture, ledgers=tuple(ledgers))


def test_equal_bounds_are_no_findings() -> None:
    found = compare(counted())
    assert found.verdict == "exact"
    assert not OF_BOUNDS.keys() & {f.metric for f in found.findings}
    assert any("float32_flops" in n.costs for x in counted().ledgers for n in x.nodes)


@pytest.mark.parametrize("source", ["analytic", "static"])
@pytest.mark.parametrize("metric", ["skippable_flops", "float32_flops", "float64_flops", "other_flops"])
def test_flops_of_another_dtype_that_one_source_gives(source: str, metric: str) -> None:
    found = compare(planted(counted(), source, metric, 2))
    assert found.verdict == "unexplained"
    differing = [f for f in found.findings if f.metric == metric]
    assert {f.level for f in differing} == {"module", "stage", "total"}
    sign = 1 if source == "analytic" else -1
    assert {(f.status, f.delta, f.residual) for f in differing} == {("unexplained", 2 * sign, 2 * sign)}


def test_flops_in_the_dtype_of_the_run_are_not_stated() -> None:
    assert compare(planted(counted(), "analytic", f"{piece().workload.dtype}_flops", 2)).verdict == "exact"


def test_bytes_that_two_graphs_give() -> None:
    static = next(x for x in counted().ledgers if x.source == "static")
    both = replace(counted(), ledgers=(static, replace(static, source="dynamic")))
    assert compare(both).verdict == "exact"
    found = compare(planted(both, "dynamic", "skippable_bytes", 4))
    assert {f.metric for f in found.findings if f.status == "unexplained"} == {"skippable_bytes"}
    # Formulas do not give them.
    assert compare(planted(counted(), "static", "skippable_bytes", 4)).verdict == "exact"


def test_a_proof_has_a_counterexample_and_claims_none_of_them() -> None:
    made = count_piece(piece(), {})
    formulas = stored_formulas(piece().target, piece().workload)
    right = made.judged(formulas)
    assert (right.counterexamples, OF_BOUNDS.keys() & {c.metric for c in right.claims}) == ((), set())
    nodes = tuple(
        replace(n, exprs={m: f"2*({e})" if m == "float32_flops" else e for m, e in n.exprs.items()})
        for n in formulas.nodes
    )
    wrong = made.judged(replace(formulas, nodes=nodes))
    assert {c.metric for c in wrong.counterexamples} == {"float32_flops"}
