"""How many planted errors the comparison finds and locates.

``python -m benchmarks.mutations`` counts two workloads with costproof's own static and dynamic sources
(once; later runs read the captures from ``out/mutations``), plants errors of every kind into the
formulas of every analytic layer, one at a time, and compares. *Found*: the verdict is unexplained.
*Located*: the findings name exactly the stage, the invocation, the modules, the operator kind and the
metric that were hit, and the size of the error as the same expression. Exit 1 unless both are 100 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import sympy

import costproof
from benchmarks.planting import OPERATIONS, Planted, Site, plant, sites
from costproof.algebra.symbols import parse, sym
from costproof.compare.findings import Discrepancy, Finding
from costproof.compare.kinds import same_operator
from costproof.compare.patterns import expand
from costproof.compare.verdict import verdict_sentence
from costproof.ledger.capture import Capture
from costproof.ledger.metrics import Metric
from costproof.ledger.node import Ledger
from costproof.ledger.writing import write_texts

FOLDER = Path("out/mutations")
WORKLOADS: dict[str, dict[str, object]] = {
    # Sizes pairwise different, so that one dimension cannot pass for another.
    "page": {"preset": "dsocr-standard-v1", "grid": "3x2", "batch": 2, "new_tokens": 5},
    "text-only": {"preset": "text-only", "batch": 3, "new_tokens": 1, "logits": "last"},
}


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
    if rest == 0:
        return True
    # A symbol may have dropped out of the difference by factoring; at the point it must agree anyway.
    return not said.free_symbols and rest.subs({s: values[s.name] for s in rest.free_symbols}) == 0


def checked_metrics(capture: Capture) -> tuple[Metric, ...]:
    """Metrics that a graph source gives: the others nobody can contradict."""
    given = {m for x in capture.ledgers if x.source in ("static", "dynamic") for m in x.metrics}
    analytic = capture.ledger("analytic")
    return tuple(m for m in (analytic.metrics if analytic else ()) if m in given)


def run(workload: str, capture: Capture, most: int | None) -> list[Outcome]:
    """Plant, compare and judge.

    Args:
        most: errors per formula (layer, operator kind and metric); ``None`` for all.
    """
    analytic = capture.ledger("analytic")
    if analytic is None:
        raise SystemExit("the capture has no analytic ledger")
    before = costproof.compare(capture).discrepancy
    print(f"{workload}: before planting: {verdict_sentence(before)}", file=sys.stderr)
    outcomes = []
    for planted in choose(capture, analytic, most):
        others = tuple(x for x in capture.ledgers if x.source != "analytic")
        wrong = replace(capture, ledgers=(planted.ledger, *others))
        outcomes.append(judge(workload, planted, before, costproof.compare(wrong).discrepancy, capture))
    return outcomes


def choose(capture: Capture, analytic: Ledger, most: int | None) -> Iterator[Planted]:
    """Yield a sample that touches every formula and, in every layer, every kind of error.

    Args:
        most: errors for each formula; its kinds of error take turns. ``None`` for all.
    """
    at_work = sites(analytic, checked_metrics(capture))
    if most is None:
        yield from (error for site in at_work for error in plant(capture, analytic, site))
        return
    by_formula: dict[tuple[str, str, str], list[Site]] = defaultdict(list)
    for site in at_work:
        by_formula[site.formula].append(site)
    turn = 0
    for group in by_formula.values():
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


def captured(name: str, fresh: bool) -> Capture:
    """The capture of a workload: static and dynamic from the cache, analytic always from today's formulas."""
    settings = WORKLOADS[name]
    path = FOLDER / f"{name}.json"
    if fresh or not path.exists():
        print(f"{name}: counting (a minute or so)", file=sys.stderr)
        made = costproof.capture("deepseek-ocr", **settings)  # type: ignore[arg-type]
        write_texts({path: costproof.render(made, "capture-json")})
    cached = costproof.read(path)
    today = costproof.capture("deepseek-ocr", sources=("analytic",), **settings)  # type: ignore[arg-type]
    others = tuple(x for x in cached.ledgers if x.source != "analytic")
    return replace(cached, ledgers=(*(x for x in today.ledgers if x.source == "analytic"), *others))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if everything is found and located."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.mutations", description=__doc__)
    options.add_argument("--most", type=int, default=2, help="errors per formula, that is layer, kind and metric (2)")
    options.add_argument("--all", action="store_true", help="every error at every site")
    options.add_argument("--fresh", action="store_true", help="count again instead of reading out/mutations")
    options.add_argument("--capture", type=Path, action="append", default=[], help="use this capture file instead")
    given = options.parse_args(arguments)
    captures = {p.stem: costproof.read(p) for p in given.capture} or {n: captured(n, given.fresh) for n in WORKLOADS}
    start = time.perf_counter()
    outcomes = [o for name, c in captures.items() for o in run(name, c, None if given.all else given.most)]
    seconds = time.perf_counter() - start
    print(table(outcomes))
    missed = [o for o in outcomes if not o.located]
    for o in missed[:20]:
        site = o.planted.site
        print(
            f"{'not found' if not o.found else 'not located'}: {o.workload}, {site.owner}: {o.planted.operation} "
            f"({o.planted.what}) in {site.stage}[{site.invocation}]/{o.planted.modules[0]}:{site.kind}#{site.metric}; "
            f"said: {o.said}"
        )
    total = len(outcomes)
    if total == 0:
        print("nothing planted")
        return 1
    found, located = sum(o.found for o in outcomes), sum(o.located for o in outcomes)
    print(
        f"planted {total}, found {found} ({100 * found / total:.1f} %), "
        f"located {located} ({100 * located / total:.1f} %), {1000 * seconds / total:.0f} ms each"
    )
    return 0 if found == located == total and total >= 60 else 1


if __name__ == "__main__":
    sys.exit(main())
