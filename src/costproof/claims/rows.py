"""What the rows of one source say about each other: parameters about FLOPs, stages about their total."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costproof.claims.explaining import CHANCE, Case, at_lengths
from costproof.claims.lengths import hold
from costproof.claims.truth import Truth
from costproof.claims.types import TOTAL, Amount, Claim, Judgement

_SETTLED = ("right", "explained")


def together(claims: Sequence[Claim], judged: Sequence[Judgement], truth: Truth) -> tuple[Judgement, ...]:
    """The judgements again, each in the light of the others."""
    parameters = {j.id: j for j in judged if j.metric == "params"}
    own = [_other_model(c, j, parameters.get(j.id), truth) for c, j in zip(claims, judged, strict=True)]
    return tuple(_as_sum(j, own, truth) for j in own)


def _other_model(claim: Claim, judged: Judgement, parameters: Judgement | None, truth: Truth) -> Judgement:
    """A number without explanation, held against the model that the parameters of its row describe."""
    if judged.status in _SETTLED or not isinstance(claim.value, Amount) or parameters is None:
        return judged
    if parameters is judged or parameters.status != "explained" or not parameters.explanations:
        return judged
    models = list(dict.fromkeys(tuple(s.cause for s in e.steps) for e in parameters.explanations))
    held = {m: h for m in models if (h := hold(claim, claim.value, truth, model=m)) is not None}
    said = " or ".join(", ".join(m) for m in models)
    judged = replace(
        judged,
        lengths=(*judged.lengths, *(h.lengths for h in held.values())),
        note=_joined(judged.note, f"the parameters of this row are those of another model: {said}"),
    )
    case = Case(claim, claim.value, truth)
    ways = tuple(e for h in held.values() for e in at_lengths(judged, case, h.lengths))
    if ways and sum(chance for h in held.values() for chance in h.chances) <= CHANCE:
        return replace(judged, status="explained", explanations=ways, residual=0)
    return judged


def _as_sum(judged: Judgement, others: Sequence[Judgement], truth: Truth) -> Judgement:
    """A claimed total that is the sum of the claimed stages is as good as the worst of them."""
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
    runs = {r.id: _run(r, truth) for r in rows if r.status == "explained"}
    if len(set(runs.values())) > 1:
        note += "; its rows belong to different runs: " + ", ".join(
            f"{k} ({v or 'the whole run'})" for k, v in runs.items()
        )
    status = "refuted" if all(r.status == "refuted" for r in bad) else judged.status
    return replace(judged, status=status, note=_joined(judged.note, note))


def _run(row: Judgement, truth: Truth) -> str:
    """What was run, not how it was counted, as far as the causes of a row say it."""
    known = {"one decode step", *truth.mistakes.of_run}
    causes = (s.cause for e in row.explanations[:1] for s in e.steps)
    return " and ".join(c for c in causes if c in known or c.startswith("view "))


def _joined(*notes: str) -> str:
    return "; ".join(n for n in notes if n)
