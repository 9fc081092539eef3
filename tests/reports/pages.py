"""What the pages of results are made of: claims, a certificate, a gate and counters, small enough for paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from costproof.claims.types import ClaimExplanation, ClaimsReport, Judgement, Step
from costproof.compare.gate.types import Gate
from costproof.compare.proof.certificate import Certificate, Claim, Counterexample, Coverage, Settings
from costproof.ledger.capture import SymbolDoc
from costproof.views.counters import CounterReport
from costproof.views.explanation import explain
from tests.reports.test_counters import OWN, report
from tests.reports.test_gate_texts import over
from tests.support.toy import HOSTILE, hostile, toy

BIG = 2**53 + 1
"""No number of a browser holds it: 9007199254740993."""


def claims(name: str = "enc") -> ClaimsReport:
    """Three claims on the toy: sam right with 1,792, in MACs explained with 896, decode refuted with 2**53 + 1."""
    made = toy()
    halved = ClaimExplanation((Step("mac", "a multiply-accumulate is 1", -896, ("sam/sam.layers.0.lin",)),), 896)

    def judged(
        id_: str, stage: str, status: Any, claimed: int, truth: int, residual: int, *why: ClaimExplanation
    ) -> Judgement:
        return Judgement(id_, stage, "flops", str(claimed), "", "", status, claimed, claimed, truth, claimed - truth,
                         why, residual, tried=7 if residual else 0)  # fmt: skip

    return ClaimsReport(
        made.target, made.workload, made.environment, "A table", "a paper", "the formulas", "refuted",
        (
            judged(name, "sam", "right", 1792, 1792, 0), judged("macs", "sam", "explained", 896, 1792, 0, halved),
            judged("dec", "decode", "refuted", BIG, 864, BIG - 864),
        ),
    )  # fmt: skip


def certificate(module: str = "sam.layers.[0-1].lin", *, wrong: bool = False) -> Certificate:
    """One claim about both layers of the toy; with ``wrong`` also a formula that lacks a factor of 2."""
    made = toy()
    formula = "H**2*n*sam_hidden**2/128"
    runs = ("bfloat16, sdpa",)
    claim = Claim("sam", "any", module, "linear", "flops", 2, runs, "identity", ("n", "H"), "f00d", formula, "H**2*n/8")
    lacking = Counterexample("draws: 1-0", "decode", "steps", module, "attention", "flops", "N", "3*N", "6*N", "-3*N",
                             {"N": 1}, {"text_hidden": 6})  # fmt: skip
    coverage = Coverage((64,), (), (), (), runs, 1, {"identities": 2}, {"sam": 2}, {}, {}, ())
    return Certificate(
        made.conventions, made.target, made.environment, "refuted" if wrong else "proved", Settings(1, 1, "{}"),
        coverage, (), (claim,), (lacking,) if wrong else (), (), ("Other configurations.",),
        {"n": SymbolDoc("n", "views"), "H": SymbolDoc("H", "side")},
    )  # fmt: skip


def counters() -> CounterReport:
    """Made-up counters on the toy."""
    return report(*OWN)


PAGES: dict[str, tuple[Callable[[], Any], str]] = {
    "claims": (claims, "right explained refuted"),
    "certificate": (lambda: certificate(wrong=True), "identity"),
    "gate": (over, "over allowed passed"),
    "counters": (counters, "exact explained failed refuted right"),
    "explain": (lambda: explain(toy(), "decode", graph=toy()), ""),
}
"""What an output is about -> a result, and statuses that its table may be filtered by."""


def hostile_pages() -> dict[str, Any]:
    """The results with names that try to be markup."""
    gate: Gate = over()
    target = replace(toy().target, name=HOSTILE)
    bad = replace(claims(HOSTILE), title=HOSTILE, source=HOSTILE, target=target)
    judged = tuple(replace(j, note=HOSTILE, claimed=HOSTILE) for j in bad.judgements)
    count = counters()
    return {
        "claims": replace(bad, judgements=judged),
        "certificate": replace(certificate(HOSTILE, wrong=True), target=target, missing=(HOSTILE,)),
        "gate": replace(
            gate, policy=HOSTILE, checks=tuple(replace(c, stage=HOSTILE, why=HOSTILE) for c in gate.checks)
        ),
        "explain": explain(hostile(), "decode", graph=hostile()),
        "counters": replace(count, target=target, own=tuple(replace(o, name=HOSTILE) for o in count.own)),
    }
