"""Verdicts on claims, as Markdown."""

from __future__ import annotations

from fractions import Fraction
from typing import Final, get_args

from costproof.claims import ClaimsReport, Judgement
from costproof.claims.explaining import CHANCE
from costproof.claims.types import Lengths, Place, Reading, Status
from costproof.reports.describe import head
from costproof.reports.escape import code, markdown, table
from costproof.reports.numbers import cut, plural, some

_MOST_CAUSES = 4
_LENGTH = {"S": "prompt length", "P": "context length"}
_WORDS: Final[dict[str, str]] = {status: status for status in get_args(Status)} | {"explained": "explained: residual 0"}


def claims_md(report: ClaimsReport) -> str:
    """The report as one Markdown document: an overview, then how each claim comes about."""
    counts = [f"{n} {word}" for word in _WORDS if (n := sum(j.status == word for j in report.judgements))]
    verdict = f"{report.verdict}: {plural(len(report.judgements), 'claim')}, {', '.join(counts)}."
    lines = head(f"Claims on {markdown(report.target.name)}", verdict, report.target, report.workload)
    if report.title:
        lines += [markdown(report.title) + (f" ({markdown(report.source)})" if report.source else "") + ".", ""]
    lines += [f"Truth: {markdown(report.truth)}.", ""]
    rows = [
        (
            code(j.id), j.metric, code(cut(j.claimed, 60)), f"{j.truth:,}", f"{j.delta:+,}" if j.delta else "0",
            _verdict(j),
        )
        for j in report.judgements
    ]  # fmt: skip
    lines += table(("claim", "metric", "claimed", "truth", "claim − truth", "verdict"), "lllrrl", rows)
    for judgement in report.judgements:
        if judgement.status != "right" or judgement.explanations or judgement.note:
            lines += ["", *_section(judgement)]
    return "\n".join(lines) + "\n"


def _verdict(j: Judgement) -> str:
    """The verdict with the causes that lead to it: ``explained: `mac`, `causal```."""
    causes = list(dict.fromkeys(step.cause for e in j.explanations[:1] for step in e.steps))
    if j.status == "undetermined" and causes:
        return f"undetermined: {some([*map(code, causes)], _MOST_CAUSES)} fits, not evidence"
    if j.status != "explained" or not causes:
        return _WORDS[j.status]
    return f"explained: {some([*map(code, causes)], _MOST_CAUSES)}; residual 0"


def _section(j: Judgement) -> list[str]:
    lines = [f"## {code(j.id)}, {j.metric}: {_WORDS[j.status]}", ""]
    if j.low != j.high:
        lines += [f"{code(j.claimed)} stands for {j.low:,} to {j.high:,}.", ""]
    several = len(j.explanations) > 1 and j.status == "explained"
    for number, explanation in enumerate(j.explanations, start=1):
        if len(j.explanations) > 1:
            lines += [f"Set {number} of causes{', which fits equally' if several and number > 1 else ''}:", ""]
        rows = [("truth", "", f"{j.truth:,}", "")]
        for step in explanation.steps:
            what = markdown(step.what) + (" (stated by the claim)" if step.stated else "")
            if step.or_else:
                what += "; the same here: " + markdown(", ".join(step.or_else))
            rows.append((code(step.cause), what, f"{step.amount:+,}", ", ".join(code(e) for e in step.evidence[:2])))
        rows.append(("reaches", "", f"{explanation.reaches:,}", ""))
        lines += [*table(("cause", "what", "amount", "evidence"), "llrl", rows), ""]
    for lengths in j.lengths:
        lines += [*_lengths(lengths), ""]
    if j.status in ("unexplained", "refuted"):
        lines.append(
            f"Unexplained rest: {j.residual:+,}."
            if j.residual or not j.residual_expression
            else "The numbers agree at this workload."
        )
        if j.residual_expression:
            lines.append(f"Claim − truth = {code(cut(j.residual_expression, 600))}.")
    if j.counterexample:
        at = ", ".join(f"{code(k)} = {v:,}" for k, v in j.counterexample.values.items())
        lines.append(f"Where {at}, it gives {j.counterexample.claimed}; the truth is {j.counterexample.truth:,}.")
    if j.note:
        lines.append(markdown(j.note[:1].upper() + j.note[1:]) + ".")
    if j.tried > 1:
        lines.append(f"Of {j.tried:,} sets of causes tried, {j.coincidences} would be expected to fit by chance.")
    while not lines[-1]:
        lines.pop()
    return lines


def _lengths(lengths: Lengths) -> list[str]:
    """What the claim's stage costs just below and just above the claim, in each way to count it."""
    end = "up" if lengths.longest is None else f"to {lengths.longest:,} (the model's limit)"
    what = f"{_LENGTH[lengths.symbol]} {code(lengths.symbol)} from {lengths.start} {end}"
    fits = [r for r in lengths.readings if r.fits]
    if lengths.model:
        made = ", ".join(code(c) for c in lengths.model)
        head = f"With the model that the row's parameters describe ({made}), at every {what}: "
        if not fits:
            return [f"{head}nothing that would be printed as claimed, in {_ways(lengths)}."]
        return [f"{head}{_fitting(lengths, fits)}."]
    if fits:
        return [f"At every {what}: {_fitting(lengths, fits)}."]
    rows = [(_counted(r), _place(lengths.symbol, r.below), _place(lengths.symbol, r.above)) for r in lengths.readings]
    head = f"At no {what} does it cost what is claimed. The two lengths that enclose the claim, in {_ways(lengths)}:"
    return [head, "", *table(("counted with", "below the claim", "above the claim"), "lrr", rows)]


def _fitting(lengths: Lengths, fits: list[Reading]) -> str:
    found = ", ".join(f"{_counted(r)} at {_span(lengths.symbol, r)}" for r in fits)
    chance = f"{lengths.coincidences} would be expected to by chance"
    settles = ", which settles nothing" if Fraction(lengths.coincidences) > CHANCE else ""
    return f"{len(fits)} of {len(lengths.readings)} ways to count fit ({found}), where {chance}{settles}"


def _ways(lengths: Lengths) -> str:
    number = len(lengths.readings)
    return f"{number} ways to count" if number > 1 else "the one way to count"


def _counted(reading: Reading) -> str:
    return ", ".join(code(c) for c in reading.causes) or "our conventions"


def _span(symbol: str, reading: Reading) -> str:
    assert reading.fits is not None
    first, last = (p.length for p in reading.fits)
    return f"{symbol} = {first:,}" if first == last else f"{symbol} = {first:,} to {last:,}"


def _place(symbol: str, place: Place | None) -> str:
    return "none" if place is None else f"{symbol} = {place.length:,}: {place.number:,}"
