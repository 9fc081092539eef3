"""Plant errors in the formulas of a capture and judge whether the comparison finds and locates them."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import sympy

import costproof
from costproof.algebra.symbols import parse, sym
from costproof.compare.findings import Discrepancy, Finding
from costproof.compare.kinds import same_operator
from costproof.compare.patterns import expand
from costproof.compare.verdict import verdict_sentence
from costproof.ledger.capture import Capture
from costproof.ledger.metrics import Metric
from costproof.ledger.node import Ledger
from tests.oracles.planting import OPERATIONS, Planted, Site, plant, sites


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the comparison made of one planted error."""

    workload: str
    planted: Planted
    found: bool
    located: bool
    only_here: bool
    """The size came out as a number at this workload, not as an expression."""
    said: str


def judge(workload: str, planted: Planted, before: Discrepancy, after: Discrepancy, capture: Capture) -> Outcome:
    """Compare what was planted with what is said."""
    known = {f.id: f for f in before.findings if f.status == "unexplained"}
    bad = [
        f for f in after.select(level="module", status="unexplained")
        if f.id not in known or known[f.id] != f
    ]  # fmt: skip
    found = after.verdict == "unexplained" and bool(bad)
    located = found and _same_place(planted, bad) and all(_same_size(planted, f, capture) for f in bad)
    said = "; ".join(f"{f.id}: {f.error_expression}" for f in bad[:3]) or "nothing"
    numeric = all(not parse(f.error_expression or "0").free_symbols for f in bad)
    of_workload = {s.name for s in planted.difference.free_symbols} - set(capture.target.symbols)
    return Outcome(workload, planted, found, located, numeric and bool(of_workload - {"b"}), said)


def _same_place(planted: Planted, bad: Sequence[Finding]) -> bool:
    site = planted.site
    modules = sorted(m for f in bad for m in expand(f.module))
    return modules == sorted(planted.modules) and all(
        (f.stage, f.invocation, f.metric) == (site.stage, site.invocation, site.metric)
        and (site.metric != "flops" or any(same_operator(k, site.kind) for k in f.kind.split("+")))
        for f in bad
    )


def _same_size(planted: Planted, finding: Finding, capture: Capture) -> bool:
    """Whether the error expression is the planted difference, as far as it is in symbols."""
    if finding.error_expression is None:
        return False
    said = parse(finding.error_expression)
    values = dict(capture.target.symbols)
    for invocation in capture.invocations:
        if not finding.invocation or (invocation.stage, invocation.id) == (finding.stage, finding.invocation):
            values.update(invocation.symbols)
    planted_size = planted.difference
    if capture.workload.logits == "all" and sym("S") in said.free_symbols:
        planted_size = planted_size.subs(sym("L"), sym("S"))
    numbers = {s: values[s.name] for s in planted_size.free_symbols if s not in said.free_symbols}
    rest = sympy.expand(planted_size.subs(numbers) - said)
    # Sympy does not see that Min(6, 3 B) is 3 Min(2, B): then equal numbers at many points are enough.
    if rest == 0 or (rest.has(sympy.Min) and all(rest.subs(at) == 0 for at in _points(rest))):
        return True
    # A symbol may have dropped out of the difference by factoring; at the point it must agree anyway.
    return not said.free_symbols and rest.subs({s: values[s.name] for s in rest.free_symbols}) == 0


def _points(expression: sympy.Expr) -> Iterator[dict[sympy.Symbol, int]]:
    """Yield 200 points at which the symbols have different numbers, small and large ones."""
    rng = random.Random(7)
    for _ in range(200):
        yield {symbol: rng.randint(1, rng.choice((9, 10**6))) for symbol in expression.free_symbols}


def checked_metrics(capture: Capture) -> tuple[Metric, ...]:
    """Metrics that a graph source gives: the others nobody can contradict."""
    given = {m for x in capture.ledgers if x.source in ("static", "dynamic") for m in x.metrics}
    analytic = capture.ledger("analytic")
    return tuple(m for m in (analytic.metrics if analytic else ()) if m in given)


def run(workload: str, capture: Capture, most: int | None, sample: int | None = None) -> list[Outcome]:
    """Plant, compare and judge.

    Args:
        most: errors per formula (layer, operator kind and metric); ``None`` for all.
        sample: number of formulas, evenly spaced; ``None`` for all.
    """
    analytic = capture.ledger("analytic")
    if analytic is None:
        raise SystemExit("the capture has no analytic ledger")
    before = costproof.compare(capture).discrepancy
    print(f"{workload}: before planting: {verdict_sentence(before)}", file=sys.stderr)
    outcomes = []
    for planted in choose(capture, analytic, most, sample):
        others = tuple(x for x in capture.ledgers if x.source != "analytic")
        wrong = replace(capture, ledgers=(planted.ledger, *others))
        outcomes.append(judge(workload, planted, before, costproof.compare(wrong).discrepancy, capture))
    return outcomes


def choose(capture: Capture, analytic: Ledger, most: int | None, sample: int | None = None) -> Iterator[Planted]:
    """Yield a sample that touches every formula and, in every layer, every kind of error.

    Args:
        most: errors for each formula; its kinds of error take turns. ``None`` for all.
        sample: number of formulas, evenly spaced; ``None`` for all.
    """
    at_work = sites(analytic, checked_metrics(capture))
    if most is None:
        yield from (error for site in at_work for error in plant(capture, analytic, site))
        return
    by_formula: dict[tuple[str, str, str], list[Site]] = defaultdict(list)
    for site in at_work:
        by_formula[site.formula].append(site)
    groups = list(by_formula.values())
    taken = min(len(groups), sample or len(groups))
    turn = 0
    for group in (groups[i * len(groups) // taken] for i in range(taken)):
        # Stages take turns too: a layer works in several.
        stages = list(dict.fromkeys(site.stage for site in group))
        for _ in range(most):
            wanted = OPERATIONS[turn % len(OPERATIONS) :] + OPERATIONS[: turn % len(OPERATIONS)]
            here = [site for site in group if site.stage == stages[turn % len(stages)]]
            yield _first((error for site in here for error in plant(capture, analytic, site)), wanted)
            turn += 1


def _first(errors: Iterable[Planted], wanted: Sequence[str]) -> Planted:
    """Return the first error of the kind that is wanted most; none behind it is planted."""
    seen = []
    for error in errors:
        if error.operation == wanted[0]:
            return error
        seen.append(error)
    return min(seen, key=lambda error: wanted.index(error.operation))


def table(outcomes: Sequence[Outcome]) -> str:
    """Planted, found, located: by operation, by layer, and in all."""
    lines = [f"{'':34}{'planted':>9}{'found':>9}{'located':>9}{'formula only':>14}{'at the point':>14}"]
    lines.append("operation")
    for name in OPERATIONS:
        if group := [o for o in outcomes if o.planted.operation == name]:
            lines.append(f"  {name:32}" + _numbers(group))
    lines.append("layer")
    for name in sorted({o.planted.site.owner for o in outcomes}):
        lines.append(f"  {name:32}" + _numbers([o for o in outcomes if o.planted.site.owner == name]))
    lines.append(f"{'all':34}" + _numbers(outcomes))
    return "\n".join(lines)


def _numbers(group: Sequence[Outcome]) -> str:
    counts = (
        len(group), sum(o.found for o in group), sum(o.located for o in group),
    )  # fmt: skip
    hidden = sum(not o.planted.changes_value for o in group)
    return "".join(f"{c:>9,}" for c in counts) + f"{hidden:>14,}{sum(o.only_here for o in group):>14,}"
