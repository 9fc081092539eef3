"""Verdicts on claims as a table for a terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from costproof.claims import ClaimsReport, Judgement
from costproof.ledger.workload import counted_line
from costproof.reports.claims_words import others
from costproof.reports.screen import say, typeset

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: Final = {"right": "green", "explained": "green"}


def print_claims(console: Console, report: ClaimsReport) -> None:
    """One row per claim: what is claimed, the truth, the verdict and what leads from one to the other."""
    from rich.text import Text

    say(console, report.title or f"Claims on {report.target.title}", "bold")
    say(console, counted_line(report.target, report.workload))
    rows = [
        (
            f"{j.id} {j.metric}",
            j.claimed,
            f"{j.truth:,}",
            Text(j.status, _STYLES.get(j.status, "bold red")),
            _because(j),
        )
        for j in report.judgements
    ]
    typeset(console, ("Claim", "Claimed", "Truth", "Verdict", "Because"), "lrrll", rows, prose=True)
    said = ", ".join(f"{n} {word}" for word, n in Counter(map(_word, report.judgements)).items())
    say(console, f"{report.verdict}: {said}", _STYLES.get(report.verdict, "bold red"))
    say(console, f"Workload {report.workload.name}; truth: {report.truth}.")
    say(console, "-f md tells how each claim comes about.")


def _word(j: Judgement) -> str:
    """The verdict in the last line: what fits and is not evidence says so."""
    return f"{j.status} (fits, not evidence)" if j.status == "undetermined" and j.explanations else j.status


def _because(j: Judgement) -> str:
    if j.explanations:
        led = " + ".join(" or ".join((step.cause, *step.or_else)) for step in j.explanations[0].steps) + others(j)
        return f"{led} fits, not evidence" if j.status == "undetermined" else led
    if j.status == "undetermined":
        return j.note
    return f"unexplained rest {j.residual:+,}" if j.residual else j.note
