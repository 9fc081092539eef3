"""Report published numbers next to costproof's, with the mistakes and conventions that explain a difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Final, get_args

from costproof.claims import ClaimsReport, Judgement
from costproof.claims.explaining import CHANCE
from costproof.claims.types import ClaimStatus, Lengths, Place, Reading
from costproof.ledger.plural import plural
from costproof.reports.document import (
    Block,
    Cell,
    Code,
    Document,
    DocumentSection,
    Form,
    Note,
    Prose,
    Status,
    Table,
    TableRow,
    Verdict,
    code_list,
    pieces,
    subject_lines,
)
from costproof.views.describe import versions_line
from costproof.views.numbers import exact, truncate

HEAD: Final = ("claim", "metric", "claimed", "truth", "claim − truth", "verdict")
_MOST_CAUSES: Final = 4
_MOST_CLAIMED: Final = 60
_LENGTH: Final = {"S": "prompt length", "P": "context length"}
WORDS: Final[dict[str, str]] = {s: s for s in get_args(ClaimStatus)} | {"explained": "explained: residual 0"}


def sentence(report: ClaimsReport) -> str:
    """Return the verdict with counts: ``unexplained: 3 claims, 1 explained, 2 refuted.``"""
    counts = [f"{n} {word}" for word in WORDS if (n := sum(j.status == word for j in report.judgements))]
    return f"{report.verdict}: {plural(len(report.judgements), 'claim')}, {', '.join(counts)}."


def document(report: ClaimsReport, form: Form) -> Document:
    """Return the report of checked claims: a table with a row per claim, then the explanation of each claim."""
    title = f"Claims on {report.target.title}"
    about = subject_lines(report.target, report.workload, form)
    source = f" ({report.source})" if report.source else ""
    named = [f"{report.title}{source}."] if report.title else []
    truth = f"Truth: {report.truth}."
    if form == "text":
        rows: list[tuple[Cell, ...]] = [
            (f"{j.id} {j.metric}", j.claimed, f"{j.truth:,}", Status(j.status), _because(j)) for j in report.judgements
        ]
        table = Table(("Claim", "Claimed", "Truth", "Verdict", "Because"), "lrrll", rows, keys=1, prose=True)
        counts = ", ".join(f"{n} {word}" for word, n in Counter(map(_word, report.judgements)).items())
        last = f"Workload {report.workload.name}; truth: {report.truth}."
        verdict = Verdict(report.verdict, f"{report.verdict}: {counts}")
        return Document(report.title or title, [table, verdict, last, "-f md tells how each claim comes about."],
                        about=about[-1:])  # fmt: skip
    if form in ("html", "cell"):
        shown = [TableRow(_cells(j), j.status, tuple(claim_story(j)), "How it comes about") for j in report.judgements]
        head = ("claim", "verdict", "metric", "claimed", "truth", "claim − truth", "because")  # fits narrow screens
        claims = DocumentSection("Claims", [Table(head, "llllrrl", shown, noun="claim", searchable=True)], id="claims")
        foot = [f"Made with {versions_line(report.environment)}."]
        return Document(title, [*named, Note(truth), claims], report.verdict, sentence(report), about, foot)
    cells = [
        (Code(j.id), j.metric, claimed_text(j), f"{j.truth:,}", _delta(j), (j.status, *cause_pieces(j)))
        for j in report.judgements
    ]
    stories = [
        DocumentSection((Code(j.id), f", {j.metric}: {WORDS[j.status]}"), told)
        for j in report.judgements if (told := claim_story(j))
    ]  # fmt: skip
    body: list[Block] = [*named, truth, Table(HEAD, "lllrrl", cells), *stories]
    return Document(title, body, report.verdict, sentence(report), about)


def _cells(j: Judgement) -> tuple[Cell, ...]:
    why = "".join(cause_pieces(j)).removeprefix(": ")
    return Code(j.id), Status(j.status), j.metric, claimed_text(j), exact(j.truth), _delta(j), why


def _delta(j: Judgement) -> str:
    return f"{j.delta:+,}" if j.delta else "0"


def _word(j: Judgement) -> str:
    """Return the verdict that a claim counts under; ``undetermined`` with fitting causes is a verdict of its own."""
    return f"{j.status} (fits, not evidence)" if j.status == "undetermined" and j.explanations else j.status


def _because(j: Judgement) -> str:
    """Return the causes of the difference between a claim and costproof's number, as plain text."""
    if j.explanations:
        led = " + ".join(" or ".join((step.cause, *step.or_else)) for step in j.explanations[0].steps) + other_causes(j)
        return f"{led} fits, not evidence" if j.status == "undetermined" else led
    if j.status == "undetermined":
        return j.note
    return f"unexplained rest {j.residual:+,}" if j.residual else j.note


def claimed_text(j: Judgement) -> Code:
    """Return the claim as printed, truncated to the width of a table cell."""
    return Code(truncate(j.claimed, _MOST_CLAIMED))


def cause_pieces(j: Judgement) -> tuple[str, ...]:
    """Return the causes of a claim's difference: ``: `mac`, `causal triangle`; residual 0``; empty without causes.

    Causes that do the same here are all named; that other sets of as many causes lead there as well is said.
    """
    causes = list(dict.fromkeys((step.cause, *step.or_else) for e in j.explanations[:1] for step in e.steps))
    if j.status not in ("explained", "undetermined") or not causes:
        return (": residual 0",) if j.status == "explained" else ()
    more = len(causes) - _MOST_CAUSES
    each = [piece for names in causes[:_MOST_CAUSES] for piece in (", ", *code_list(names, " or "))]
    named = (*each[1:], f" and {more} more" if more > 0 else "", other_causes(j))
    return (": ", *named, " fits, not evidence" if j.status == "undetermined" else "; residual 0")


def other_causes(j: Judgement) -> str:
    """Return a clause that other sets of causes explain the claim too; empty if only one set does."""
    return " or other causes, each set by itself" if len(j.explanations) > 1 else ""


def claim_story(j: Judgement) -> list[Block]:
    """Return the blocks that explain a claimed number; empty if the number is right without any cause."""
    return list(_story(j)) if j.status != "right" or j.explanations or j.note else []


def _story(j: Judgement) -> Iterator[Block]:
    if j.low != j.high:
        yield (Code(j.claimed), f" stands for {j.low:,} to {j.high:,}.")
    several = len(j.explanations) > 1 and j.status == "explained"
    for number, explanation in enumerate(j.explanations, start=1):
        if len(j.explanations) > 1:
            yield f"Set {number} of causes{', which fits equally' if several and number > 1 else ''}:"
        rows: list[tuple[Cell, ...]] = [("truth", "", f"{j.truth:,}", "")]
        for step in explanation.steps:
            what = step.what + (" (stated by the claim)" if step.stated else "")
            what += f"; the same here: {', '.join(step.or_else)}" if step.or_else else ""
            rows.append((Code(step.cause), what, f"{step.amount:+,}", code_list(step.evidence[:2])))
        rows.append(("reaches", "", f"{explanation.reaches:,}", ""))
        yield Table(("cause", "what", "amount", "evidence"), "llrl", rows)
    for lengths in j.lengths:
        yield from _lengths(lengths)
    if last := list(_last(j)):
        yield tuple(piece for i, one in enumerate(last) for piece in (*((" ",) if i else ()), *pieces(one)))


def _last(j: Judgement) -> Iterator[Prose]:
    """Yield the sentences after the tables of a claim: unexplained rest, counterexample, notes."""
    if j.status in ("unexplained", "refuted"):
        agree = not j.residual and (j.residual_expression or j.counterexample)
        yield "The numbers agree at this workload." if agree else f"Unexplained rest: {j.residual:+,}."
        if j.residual_expression:
            yield ("Claim − truth = ", Code(truncate(j.residual_expression, 600)), ".")
    if j.counterexample:
        at = (
            piece for i, (k, v) in enumerate(j.counterexample.values.items())
            for piece in (", " if i else "", Code(k), f" = {v:,}")
        )  # fmt: skip
        yield ("Where ", *at, f", it gives {j.counterexample.claimed}; the truth is {j.counterexample.truth:,}.")
    if j.note:
        yield j.note[:1].upper() + j.note[1:] + "."
    if j.tried > 1:
        tried = f"Of {j.tried:,} sets of causes tried, and of relations and lengths where they were,"
        yield f"{tried} {j.coincidences} would be expected to fit by chance."


def _lengths(lengths: Lengths) -> Iterator[Block]:
    """Yield the cost of the claim's stage at the text lengths just below and above the claim, by convention."""
    end = "up" if lengths.longest is None else f"to {lengths.longest:,} (the model's limit)"
    what = (f"{_LENGTH[lengths.symbol]} ", Code(lengths.symbol), f" from {lengths.start} {end}")
    fits = [r for r in lengths.readings if r.fits]
    if lengths.model:
        head = ("With the model that the row's parameters describe (", *code_list(lengths.model), "), at every ", *what)
        nothing = f"nothing that would be printed as claimed, in {_ways(lengths)}"
        yield (*head, ": ", *(_fitting(lengths, fits) if fits else (nothing,)), ".")
    elif fits:
        yield ("At every ", *what, ": ", *_fitting(lengths, fits), ".")
    else:
        enclosing = f"The two lengths that enclose the claim, in {_ways(lengths)}:"
        yield ("At no ", *what, f" does it cost what is claimed. {enclosing}")
        yield Table(
            ("counted with", "below the claim", "above the claim"),
            "lrr",
            tuple(
                (_conventions(r), *(_place(lengths.symbol, p) for p in (r.below, r.above))) for r in lengths.readings
            ),
        )


def _fitting(lengths: Lengths, fits: list[Reading]) -> tuple[str, ...]:
    found = (
        piece for i, r in enumerate(fits)
        for piece in (", " if i else "", *_conventions(r), f" at {_span(lengths.symbol, r)}")
    )  # fmt: skip
    chance = f"{lengths.coincidences} would be expected to by chance"
    settles = ", which settles nothing" if Fraction(lengths.coincidences) > CHANCE else ""
    return (f"{len(fits)} of {len(lengths.readings)} ways to count fit (", *found, f"), where {chance}{settles}")


def _ways(lengths: Lengths) -> str:
    number = len(lengths.readings)
    return f"{number} ways to count" if number > 1 else "the one way to count"


def _conventions(reading: Reading) -> tuple[str, ...]:
    return code_list(reading.causes) or ("our conventions",)


def _span(symbol: str, reading: Reading) -> str:
    assert reading.fits is not None
    first, last = (p.length for p in reading.fits)
    return f"{symbol} = {first:,}" if first == last else f"{symbol} = {first:,} to {last:,}"


def _place(symbol: str, place: Place | None) -> str:
    return "none" if place is None else f"{symbol} = {place.length:,}: {place.number:,}"
