"""What ``costproof derive -f yaml`` writes, ``costproof check`` reads and finds right."""

from __future__ import annotations

from functools import cache

from costproof.claims import claims_from_text, judge_claims
from costproof.claims.effects import Mistakes
from costproof.compare.proof.closed_form import closed_form, render
from costproof.ledger.capture import Capture
from costproof.ledger.node import CostNode
from costproof.run.proof import derive


@cache
def capture() -> Capture:
    """The formulas at the workload that a graph is made for."""
    from costproof import api

    return api.capture("deepseek-ocr", sources=("analytic",))


@cache
def written(stage: str) -> str:
    """The YAML of a stage."""
    return derive("deepseek-ocr", stage, points=0).text("yaml")


def test_round_trip() -> None:
    found = judge_claims(claims_from_text(written("projector"), where="derived"), capture(), Mistakes(), truth="t")
    assert {j.status for j in found.judgements} == {"right"}
    # The claims are all of the stage: of the global view, which is the graph that is read.
    ledger = capture().ledger("analytic")
    assert ledger is not None
    call = found.judgements[0].invocation
    assert sum(j.low for j in found.judgements) == ledger.stage_total("projector", "flops", call)


def test_one_wrong_coefficient_is_seen() -> None:
    text = written("projector").replace("1280*H**2*n", "1281*H**2*n")
    (judged,) = judge_claims(claims_from_text(text, where="derived"), capture(), Mistakes(), truth="t").judgements
    assert (judged.status, judged.residual) == ("unexplained", 1024**2)  # one view of 1024 pixels


def test_patterns_of_two_operators_that_overlap() -> None:
    # Layers 0 and 1 multiply, layers 1 and 2 attend: each module is claimed once, with all of its work.
    nodes = [CostNode("f", "f", f"l.{i}", "aten.linear", {}, {"flops": "2*B"}) for i in (0, 1)]
    nodes += [CostNode("f", "f", f"l.{i}", "aten.bmm", {}, {"flops": "3*B"}) for i in (1, 2)]
    nodes += [CostNode("f", "f", "", "aten.mm", {}, {"flops": "5*B"})]
    text = render(closed_form("toy", nodes, {}, {"H": 7}), "yaml")
    claims = claims_from_text(text, where="f").claims
    assert [(c.module, getattr(c.value, "text", None)) for c in claims] == [
        ("l.0", "2*B"), ("l.1", "2*B + 3*B"), ("l.2", "3*B"), ("(root)", "5*B"),
    ]  # fmt: skip
    assert all(c.at == {"H": 7} for c in claims)
