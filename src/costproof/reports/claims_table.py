"""Verdicts on claims as a table for a terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from costproof.claims import ClaimsReport, Judgement
from costproof.reports.claims_words import others
from costproof.reports.escape import visible

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: Final = {"right": "green", "explained": "green"}


def print_claims(console: Console, report: ClaimsReport) -> None:
    """One row per claim: what is claimed, the truth, the verdict and what leads from one to the other."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    title = report.title or f"Claims on {report.target.name}"
    console.print(Text(visible(title), style="bold"), soft_wrap=True)
    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, justify in (("Claim", "left"), ("Claimed", "right"), ("Truth", "right"), ("Verdict", "left")):
        grid.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    grid.add_column("Because", overflow="fold", ratio=1)
    for j in report.judgements:
        grid.add_row(
            Text(visible(f"{j.id} {j.metric}")),
            Text(visible(j.claimed)),
            f"{j.truth:,}",
            Text(j.status, style=_STYLES.get(j.status, "bold red")),
            Text(visible(_because(j))),
        )
    console.print(grid)
    said = ", ".join(f"{n} {word}" for word, n in Counter(map(_word, report.judgements)).items())
    console.print(Text(f"{report.verdict}: {said}", style=_STYLES.get(report.verdict, "bold red")), soft_wrap=True)
    console.print(Text(visible(f"Workload {report.workload.name}; truth: {report.truth}.")), soft_wrap=True)
    console.print(Text("-f md tells how each claim comes about."), soft_wrap=True)


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
