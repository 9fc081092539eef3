"""The whole model, where its first layers alone were counted, in words and rows."""

from __future__ import annotations

from typing import Final

from costproof.ledger.capture import WholeModel
from costproof.ledger.metrics import METRICS
from costproof.views.numbers import bounded, exact
from costproof.views.quantities import UNITS

WORKED_OUT: Final = "The whole model, worked out of its first layers"
EVALUATED: Final = "The whole model, by its formulas"


def whole_title(whole: WholeModel) -> str:
    """How its numbers came about."""
    return WORKED_OUT if whole.times else EVALUATED


def how(whole: WholeModel) -> list[str]:
    """A sentence for each stack of layers: how many were counted, what they stand for, what it was checked with.

    Another where all layers were not run beside.
    """
    stacks = [
        f"{path}: {len(times)} of {sum(times)} layers were counted and stand for {_listed(times)};"
        f" checked with {whole.checked.get(path, len(times))}"
        for path, times in sorted(whole.times.items())
    ]
    return [*stacks, f"not checked with a run of all layers: {whole.not_run}"] if whole.not_run else stacks


def _listed(times: tuple[int, ...]) -> str:
    """``1, 1 and 30`` layers."""
    *first, last = map(str, times)
    return f"{', '.join(first)} and {last}" if first else last


def whole_rows(whole: WholeModel, *, digits: bool) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings, and a row for each stage and for all: metrics with a column of their own, ``?`` where not known."""
    shown = [(m, i) for m, i in METRICS.items() if i.column and m in whole.totals.keys() | whole.left_out.keys()]
    rows = [
        (
            name,
            *(exact(costs.get(m)) if digits else bounded(costs.get(m), None, UNITS.get(i.unit, "")) for m, i in shown),
        )
        for name, costs in (*whole.stages.items(), *([("total", whole.totals)] if len(whole.stages) != 1 else []))
    ]
    return ("Stage", *(i.column for _, i in shown)), rows


def not_known(whole: WholeModel) -> list[str]:
    """Quantities of the whole model that are not known, with the reason; equal reasons in one line."""
    reasons: dict[str, list[str]] = {}
    for metric in METRICS:
        if metric in whole.left_out:
            reasons.setdefault(whole.left_out[metric], []).append(METRICS[metric].title)
    return [f"not known: {', '.join(titles)}: {why}" for why, titles in reasons.items()]
