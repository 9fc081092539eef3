"""Verdicts on claims, as Markdown."""

from __future__ import annotations

from costproof.claims import ClaimsReport
from costproof.reports.blocks import blocks_md, prose_md
from costproof.reports.claims_words import HEAD, WORDS, because, claimed, sentence, story
from costproof.reports.escape import code, head, markdown, table


def claims_md(report: ClaimsReport) -> str:
    """The report as one Markdown document: an overview, then how each claim comes about."""
    lines = head(f"Claims on {markdown(report.target.title)}", sentence(report), report.target, report.workload)
    if report.title:
        lines += [markdown(report.title) + (f" ({markdown(report.source)})" if report.source else "") + ".", ""]
    lines += [f"Truth: {markdown(report.truth)}.", ""]
    rows = [
        (
            code(j.id), j.metric, code(claimed(j)), f"{j.truth:,}", f"{j.delta:+,}" if j.delta else "0",
            j.status + prose_md(because(j)),
        )
        for j in report.judgements
    ]  # fmt: skip
    lines += table(HEAD, "lllrrl", rows)
    for j in report.judgements:
        if told := blocks_md(story(j)):
            lines += ["", f"## {code(j.id)}, {j.metric}: {WORDS[j.status]}", "", *told]
    return "\n".join(lines) + "\n"
