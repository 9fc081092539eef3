"""Judge claims by comparing each with the true number, and the claims of one file with each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from costproof.algebra.identity import free_symbols
from costproof.claims.effects import Mistakes
from costproof.claims.explaining import CHANCE, at_lengths, distance, explained, same_everywhere
from costproof.claims.formulas import formula_value
from costproof.claims.lengths import hold
from costproof.claims.memory_mistakes import peak_of
from costproof.claims.reading import MOST_PROBLEMS, NO_CALL, key
from costproof.claims.terms import MESH, in_scope
from costproof.claims.truth import ClaimCase, TargetRuns
from costproof.claims.types import (
    TOTAL,
    WORST_FIRST,
    Amount,
    ClaimsFile,
    ClaimsReport,
    ClaimStatus,
    Formula,
    Judgement,
    PublishedClaim,
)
from costproof.compare.patterns import matches
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, CostproofError, Incomplete, Problems, no_such
from costproof.ledger.mesh import one_device
from costproof.ledger.metrics import COMM, PEAK_METRICS, SUMMED
from costproof.ledger.node import not_given, total
from costproof.ledger.time_limits import check_time, time_limit

SECONDS: Final = 120
"""Limit of processor seconds for all claims of a file; an unexplained number of a whole model takes several."""
_SETTLED: Final = ("right", "explained")
_FEWER: Final = "check fewer claims at a time"
_STATES: Final = {"S": "seq_len text_tokens", "P": "seq_len text_tokens", "B": "batch", "N": "new_tokens"}
"""Settings of a workload by which a claims file states the value of a symbol, by symbol."""


def judge_claims(
    claims: ClaimsFile, capture: Capture, mistakes: Mistakes, *, truth: str, runs: TargetRuns | None = None
) -> ClaimsReport:
    """Judge every claim of a file against a capture's analytic ledger, or against the static one if that is missing.

    Args:
        claims: the claims.
        capture: the ledgers of a run of the target.
        mistakes: the mistakes that the target adds to the general table.
        truth: a few words for the report on how well the ledger is verified.
        runs: other runs of the target, at which formulas are compared too; if ``None``, only the capture is used.

    Raises:
        BadInput: a claim is about something that the target does not have, or its formula cannot be evaluated.
        Problems: several claims have such an error.
        Incomplete: the truth of a claim is unknown.
    """
    ledger = capture.by_source.get("analytic") or capture.by_source.get("static")
    if ledger is None:
        expected = "a ledger 'analytic' or 'static'"
        raise BadInput("the capture has no ledger to check claims against", where="$.ledgers", expected=expected)

    said = {name.replace("-", "_") for name in claims.workload}
    fixed = frozenset(symbol for symbol, settings in _STATES.items() if said & set(settings.split())) | {*MESH}

    def case(claim: PublishedClaim) -> ClaimCase:
        return ClaimCase(claim, capture, ledger, mistakes, fixed, runs)

    with time_limit(SECONDS, "the claims take too long to check", where=claims.title or "$.claims", fix=_FEWER):
        if problems := [p for c in claims.claims for p in _problems(case(c))]:
            several = Problems("the claims do not fit the target", problems[:MOST_PROBLEMS])
            raise problems[0] if len(problems) == 1 else several
        judgements = _together(claims.claims, case)
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


def judge_claim(case: ClaimCase) -> Judgement:
    """Judge one claim by itself; its stage, module and metric must exist in the target.

    Raises:
        BadInput: its formula cannot be evaluated.
        Incomplete: the truth is unknown.
    """
    claim = case.claim
    truth = case.once("truth", lambda: _truth(case))
    if truth is None:
        raise Incomplete(
            "our own count is unknown here, so the claim cannot be checked",
            where=f"{claim.where}: {claim.stage}, {claim.metric}",
            fix="costproof ops --capture CAPTURE lists operators without a rule",
        )
    if isinstance(claim.value, Formula):
        value = formula_value(claim.value, case)
        amount = Amount(claim.value.text, value, value)
        if not free_symbols(claim.value.text):
            # A formula without symbols is a number: it has no other workloads to be compared at.
            case = case.claiming(replace(claim, value=amount))
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
    if amount.low <= truth <= amount.high and not case.stated:
        return same_everywhere(blank, case) if isinstance(case.claim.value, Formula) else blank
    return explained(blank, case, amount)


def _truth(case: ClaimCase) -> int | None:
    """Return costproof's number for the quantity of a claim; ``None`` if unknown."""
    if case.claim.metric in PEAK_METRICS:
        return peak_of(case.capture, case.claim).bytes
    return total((n for n in case.ledger.nodes if in_scope(n, case.claim)), case.claim.metric)


def _worst(judgements: Sequence[Judgement]) -> ClaimStatus:
    found = {j.status for j in judgements}
    return next((status for status in WORST_FIRST if status in found), "right")


def _problems(case: ClaimCase) -> Iterator[CostproofError]:
    """Yield an error for each stage, module or metric of a claim that the target or workload does not have."""
    claim, capture, ledger = case.claim, case.capture, case.ledger
    if claim.stage not in (stages := (*capture.target.stages, TOTAL)):
        yield no_such("stage", claim.stage, stages, where=key(claim.where, "stage"))
        return
    calls = sorted({i.id for i in capture.invocations if claim.stage in (TOTAL, i.stage)}) or [NO_CALL]
    if claim.invocation and claim.invocation not in calls:
        yield no_such("call", claim.invocation, calls, where=key(claim.where, "invocation"))
        return
    if claim.metric in PEAK_METRICS:
        yield from _about_peaks(claim)
    elif claim.metric in COMM and claim.metric not in ledger.metrics:
        yield one_device(claim.metric, where=key(claim.where, claim.metric))
    elif claim.metric in SUMMED and claim.metric not in ledger.metrics:
        yield not_given(claim.metric, ledger.source, where=key(claim.where, claim.metric))
    elif claim.metric not in SUMMED:
        yield no_such("metric", claim.metric, (*SUMMED, *PEAK_METRICS), where=claim.where)
    if claim.module and not any(matches(n.module, claim.module) for n in ledger.nodes):
        expected = "a module path of the capture, or a pattern such as layers.[0-3].mlp"
        yield BadInput("no module has this path", where=key(claim.where, "module"), expected=expected, got=claim.module)
    for name, value in claim.at.items():
        found = {i.symbols[name] for i in case.calls if name in i.symbols}
        if found != {value}:
            yield BadInput(
                "the claim is made at another workload", where=key(claim.where, f"at.{name}"), expected=str(value),
                got=", ".join(map(str, sorted(found))) or "no such symbol",
            )  # fmt: skip
    for condition in claim.holds:
        if not all(condition.holds(call.symbols) for call in case.calls):
            yield BadInput("the claim holds only at other workloads", where=claim.where, expected=condition.text)


def _about_peaks(claim: PublishedClaim) -> Iterator[BadInput]:
    """Yield an error for each property that a claim about a peak cannot have, such as a module or a formula."""
    where = key(claim.where, claim.metric)
    if claim.stage == TOTAL or claim.module:
        yield BadInput("a peak must belong to one stage, not to modules or all stages", where=where,
                       got=claim.module or TOTAL, fix="name the stage, and no module")  # fmt: skip
    if isinstance(claim.value, Formula):
        yield BadInput("a peak of memory has no formula to compare with", where=where, expected="a number",
                       got=claim.value.text[:60], fix="claim the number at this workload")  # fmt: skip


def _together(claims: Sequence[PublishedClaim], case: Callable[[PublishedClaim], ClaimCase]) -> tuple[Judgement, ...]:
    """Judge all claims of a file, each by itself, then unexplained ones by the file's parameter counts and sums."""
    judged = {k: judge_claim(one) for k, one in _by_subject(claims, case)}
    parameters = {j.id: j for _, j in sorted(judged.items()) if j.metric == "params"}
    again = {k: _other_model(one, judged[k], parameters.get(judged[k].id)) for k, one in _by_subject(claims, case)}
    own = [again[k] for k in range(len(claims))]
    return tuple(_as_sum(case(c), j, own) for c, j in zip(claims, own, strict=True))


def _by_subject(
    claims: Sequence[PublishedClaim], case: Callable[[PublishedClaim], ClaimCase]
) -> Iterator[tuple[int, ClaimCase]]:
    """Yield (index, case) of each claim, grouped by quantity, since claims on one quantity share results."""
    subjects: dict[Hashable, list[int]] = {}
    for k, c in enumerate(claims):
        stated = frozenset(c.conventions.items()), frozenset(c.at.items())
        subjects.setdefault((c.stage, c.metric, c.invocation, c.module, stated), []).append(k)
    for places in subjects.values():
        first = case(claims[places[0]])
        for k in places:
            check_time()
            yield k, first.claiming(claims[k])


def _other_model(case: ClaimCase, judged: Judgement, parameters: Judgement | None) -> Judgement:
    """Judge an unexplained number again for another model, which the parameter count of the same row implies."""
    amount = case.claim.value
    if judged.status in _SETTLED or not isinstance(amount, Amount) or parameters is None:
        return judged
    if parameters is judged or parameters.status != "explained" or not parameters.explanations:
        return judged
    models = list(dict.fromkeys(tuple(s.cause for s in e.steps) for e in parameters.explanations))
    held = [h for m in models if (h := hold(case, amount, m)) is not None]
    said = " or ".join(", ".join(m) for m in models)
    judged = replace(
        judged,
        lengths=(*judged.lengths, *(h.lengths for h in held)),
        note=_joined(judged.note, f"the parameters of this row are those of another model: {said}"),
    )
    ways = tuple(e for h in held for e in at_lengths(judged, case, h.lengths))
    if ways and sum(chance for h in held for chance in h.chances) <= CHANCE:
        return replace(judged, status="explained", explanations=ways, residual=0)
    return judged


def _as_sum(case: ClaimCase, judged: Judgement, others: Sequence[Judgement]) -> Judgement:
    """Judge an unexplained total again as the sum of the claimed stages."""
    if judged.stage != TOTAL or judged.status in _SETTLED or judged.module:
        return judged
    rows = [o for o in others if o.stage != TOTAL and o.metric == judged.metric and not o.module]
    if len(rows) < 2 or len({r.stage for r in rows}) < len(rows):
        return judged
    if sum(r.low for r in rows) > judged.high or sum(r.high for r in rows) < judged.low:
        return replace(judged, note=_joined(judged.note, "it is not the sum of the claimed stages either"))
    note = "it is the sum of the claimed stages"
    bad = [r for r in rows if r.status not in _SETTLED]
    if not bad:
        return replace(judged, status="explained", residual=0, note=f"{note}, each of which has its own causes")
    note += "; " + ", ".join(f"{r.id} is {r.status}" for r in bad)
    runs = {r.id: _run(r, case) for r in rows if r.status == "explained"}
    if len(set(runs.values())) > 1:
        note += "; its rows belong to different runs: " + ", ".join(
            f"{k} ({v or 'the whole run'})" for k, v in runs.items()
        )
    status = "refuted" if all(r.status == "refuted" for r in bad) else judged.status
    return replace(judged, status=status, note=_joined(judged.note, note))


def _run(row: Judgement, case: ClaimCase) -> str:
    """Return, as text, the causes in a judgement that change which calls are run; empty if all calls are run."""
    known = {"one decode step", *case.mistakes.of_run}
    causes = (s.cause for e in row.explanations[:1] for s in e.steps)
    return " and ".join(c for c in causes if c in known or c.startswith("view "))


def _joined(*notes: str) -> str:
    return "; ".join(n for n in notes if n)
