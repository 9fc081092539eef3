"""Verdicts: each claim against the truth, and the claims of one source against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from costproof.claims.effects import Mistakes
from costproof.claims.explaining import Case, distance, explained, same_everywhere
from costproof.claims.formulas import formula_value
from costproof.claims.items import in_scope
from costproof.claims.reading import MOST_PROBLEMS, NO_CALL, key
from costproof.claims.rows import together
from costproof.claims.truth import Truth
from costproof.claims.types import TOTAL, Amount, Claim, ClaimsFile, ClaimsReport, Formula, Judgement, Verdict
from costproof.compare.patterns import matches
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, Incomplete, Problems, no_such
from costproof.ledger.metrics import METRICS
from costproof.ledger.node import total


def judge_claims(claims: ClaimsFile, capture: Capture, mistakes: Mistakes, *, truth: str) -> ClaimsReport:
    """Check every claim against the analytic ledger of a capture.

    Args:
        mistakes: what the target knows about wrong models of itself.
        truth: how well that ledger is founded, in a few words, for the report.

    Raises:
        BadInput: a claim is about something that the target does not have, or its formula cannot be evaluated.
        Problems: several claims are.
        Incomplete: the truth of a claim is unknown.
    """
    ledger = capture.by_source.get("analytic")
    if ledger is None:
        raise BadInput(
            "the capture has no formulas to hold claims against", where="$.ledgers", expected="a ledger 'analytic'"
        )
    known = Truth(capture, ledger, mistakes)
    if problems := [p for c in claims.claims for p in _problems(c, known)]:
        several = Problems("the claims do not fit the target", problems[:MOST_PROBLEMS])
        raise problems[0] if len(problems) == 1 else several
    judged = [judge_claim(c, known) for c in claims.claims]
    judgements = together(claims.claims, judged, known)
    return ClaimsReport(
        target=capture.target,
        workload=capture.workload,
        environment=capture.environment,
        title=claims.title,
        source=claims.source,
        truth=truth,
        verdict=_worst(judgements),
        judgements=judgements,
    )


def judge_claim(claim: Claim, known: Truth) -> Judgement:
    """The verdict on one claim by itself, which is about something that there is."""
    truth = total((n for n in known.ledger.nodes if in_scope(n, claim)), claim.metric)
    if truth is None:
        raise Incomplete(
            "the truth is unknown here, so no claim can be checked against it",
            where=f"{claim.where}: {claim.stage}, {claim.metric}",
            fix="costproof ops CAPTURE",
        )
    if isinstance(claim.value, Formula):
        value = formula_value(claim, claim.value, known)
        amount = Amount(claim.value.text, value, value)
    else:
        amount = claim.value
    blank = Judgement(
        id=claim.id,
        stage=claim.stage,
        metric=claim.metric,
        claimed=amount.text,
        invocation=claim.invocation,
        module=claim.module,
        status="right",
        low=amount.low,
        high=amount.high,
        truth=truth,
        delta=distance(amount, truth),
        explanations=(),
        residual=0,
    )
    case = Case(claim, amount, known)
    if amount.low <= truth <= amount.high and not claim.conventions:
        return same_everywhere(blank, case) if isinstance(claim.value, Formula) else blank
    return explained(blank, case)


def _worst(judgements: Sequence[Judgement]) -> Verdict:
    found = {j.status for j in judgements}
    if found & {"undetermined", "unexplained"}:
        return "unexplained"
    return "refuted" if "refuted" in found else "explained" if "explained" in found else "right"


def _problems(claim: Claim, known: Truth) -> Iterator[BadInput]:
    """What a claim is about and the target does not have."""
    capture, ledger = known.capture, known.ledger
    if claim.stage not in (stages := (*capture.target.stages, TOTAL)):
        yield no_such("stage", claim.stage, stages, where=key(claim.where, "stage"))
        return
    calls = sorted({i.id for i in capture.invocations if claim.stage in (TOTAL, i.stage)}) or [NO_CALL]
    if claim.invocation and claim.invocation not in calls:
        yield no_such("call", claim.invocation, calls, where=key(claim.where, "invocation"))
        return
    if claim.metric not in METRICS or claim.metric not in ledger.metrics:
        yield no_such("metric", claim.metric, METRICS, where=claim.where)
    if claim.module and not any(matches(n.module, claim.module) for n in ledger.nodes):
        yield BadInput("no module has such a path", where=key(claim.where, "module"), got=claim.module)
    for name, value in claim.at.items():
        found = {i.symbols[name] for i in known.calls(claim) if name in i.symbols}
        if found != {value}:
            yield BadInput(
                "the claim is made at another workload", where=key(claim.where, f"at.{name}"), expected=str(value),
                got=", ".join(map(str, sorted(found))) or "no such symbol",
            )  # fmt: skip
