"""Recompute the numbers of a capture, and check that its contents are consistent.

A file may be truncated, edited or made by somebody else. It contains its expressions, the values of their symbols and
the traced runs, so its numbers can be checked without torch, in a fraction of a second. This finds files that
contradict themselves; it does not show who wrote them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from costproof.algebra.evaluation import evaluate, shared_values
from costproof.algebra.symbols import parse, term_count
from costproof.ledger.callgraph import check_levels
from costproof.ledger.capture import Capture, WholeModel
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.metrics import EVERY_METRIC, OF_BOUNDS, STAGE_WIDE, Metric
from costproof.ledger.node import CostNode, Ledger, exact_sum, total
from costproof.ledger.peaks import CallPeaks, Peak
from costproof.ledger.plural import plural
from costproof.ledger.run import TracedRun
from costproof.ledger.time_limits import check_time

_SHOWN: Final = 20
"""Maximum number of problems reported for a file."""
_LARGEST: Final = 10**18
"""Limit of symbol values and of calls, since settings have at most 18 digits."""
_LARGEST_COST: Final = 10**100
_MOST_TERMS: Final = 5_000
"""Maximum number of expanded terms in all distinct expressions of a file; DeepSeek-OCR counted three ways has 530."""
_MOST_TERMS_EACH: Final = 500
"""Maximum number of terms in one expression, which reports sum and factor at some milliseconds per term.

61 layers have at most 12.
"""
_LATEX: Final = re.compile(r"[A-Za-z0-9_{}\\^ ,.'()*+-]{0,200}")
"""Matches the allowed LaTeX of a symbol, which appears unescaped in Markdown."""


def validate_capture(capture: Capture, *, where: str) -> None:
    """Reject a capture with contradictory contents.

    Stages and invocations are those that the capture names; sources and quantities occur once; costs equal their
    expressions at the capture's symbols; and the dynamic source is the sum of its runs.

    Raises:
        Problems: all contradictions, each with its path in the file.
    """
    found = [problem for problem, _ in zip(_problems(capture), range(_SHOWN), strict=False)]
    if found:
        raise Problems(f"the capture {where} contradicts itself", found, fix="costproof capture TARGET -o FILE")


def _problems(capture: Capture) -> Iterator[BadInput]:
    if not capture.ledgers:
        yield BadInput("a capture without ledgers proves nothing", where="$.ledgers", got="[]")
    yield from _duplicates((x.source for x in capture.ledgers), "a source counts once", "$.ledgers")
    yield from _duplicates(
        (f"{i.stage}[{i.id}]" for i in capture.invocations), "an invocation occurs once", "$.invocations"
    )
    for k, call in enumerate(capture.invocations):
        if call.stage not in capture.target.stages or not 1 <= call.calls < _LARGEST:
            expected = "calls of one of " + (", ".join(capture.target.stages) or "no stage")
            got = f"{plural(call.calls, 'call')} of {call.stage}"
            yield BadInput("not an invocation of this target", where=f"$.invocations[{k}]", expected=expected, got=got)
    yield from _check_sizes(capture)
    cache: dict[tuple[str, str, str], int | BadInput] = {}
    for k, ledger in enumerate(capture.ledgers):
        yield from _check_ledger(capture, ledger, f"$.ledgers[{k}]", cache)
    if capture.judge is not None:
        yield from _check_ledger(capture, capture.judge, "$.judge", cache)
    yield from _check_runs(capture)
    for k, one in enumerate(capture.peaks):
        yield from _check_peaks(capture, one, f"$.peaks[{k}]")
    if capture.parallel is not None:
        yield from capture.parallel.problems()
    if capture.padding is not None:
        yield from capture.padding.problems()
    if capture.whole is not None:
        yield from _check_whole(capture.whole, capture.target.stages)


def _check_whole(whole: WholeModel, stages: Collection[str]) -> Iterator[BadInput]:
    """Check that extrapolated stage costs sum to the total, unless stage-wide, and that names are valid."""
    if not whole.stages.keys() <= set(stages):
        yield BadInput("these are not the stages of the target", where="$.whole.stages", got=", ".join(whole.stages))
    if unknown := sorted({m for costs in (whole.totals, *whole.stages.values()) for m in costs} - EVERY_METRIC.keys()):
        yield BadInput("no such metric", where="$.whole", got=unknown[0][:80])
    for metric, given in whole.totals.items():
        rows = exact_sum(costs.get(metric, 0) for costs in whole.stages.values())
        if metric not in STAGE_WIDE and rows != given:
            yield BadInput("stages do not sum to the total", where=f"$.whole.totals.{metric}", expected=rows, got=given)
    for path, times in whole.times.items():
        where, checked = path[:80], whole.checked.get(path, 0)
        if not times or min(times) < 1:
            what = "each counted layer stands for at least one layer"
            yield BadInput(what, where=f"$.whole.times.{where}", expected="numbers of 1 or more", got=str(times)[:80])
        elif not len(times) <= checked <= sum(times):
            what = "the layers that a second count had are as many as those counted, up to all"
            expected = f"{len(times)} to {sum(times)}"
            yield BadInput(what, where=f"$.whole.checked.{where}", expected=expected, got=checked)


def _check_peaks(capture: Capture, call: CallPeaks, where: str) -> Iterator[BadInput]:
    """Check that live tensors sum to the peak, and the explained parts to the gap between eager and graph."""
    if call.stage not in capture.target.stages:
        yield BadInput("not a stage of this target", where=f"{where}.stage", got=call.stage)
    for name, peak in (("graph", call.graph), ("eager", call.eager)):
        alive = sum(t.bytes for t in peak.alive) if peak is not None else 0
        if peak is not None and (alive != peak.bytes or any(t.bytes < 0 for t in peak.alive)):
            yield BadInput(
                "the live tensors do not sum to the peak", where=f"{where}.{name}", expected=peak.bytes, got=alive
            )
        if peak is not None and peak.curve:
            yield from _check_curve(peak, f"{where}.{name}.curve")
    if call.residual:
        yield BadInput(
            "the parts do not sum to the gap", where=f"{where}.gap", expected=call.gap_bytes, got=call.residual
        )


def _check_curve(peak: Peak, where: str) -> Iterator[BadInput]:
    """Check that a memory curve is ordered in time, ends within the execution, and is as high as the peak."""
    highest = max(m.bytes for m in peak.curve)
    if highest != peak.bytes or any(m.bytes < 0 for m in peak.curve):
        yield BadInput("the maximum of the curve is not the peak", where=where, expected=peak.bytes, got=highest)
    events = [m.event for m in peak.curve]
    if events != sorted(set(events)) or not 0 <= events[0] <= events[-1] < peak.events:
        yield BadInput(
            "the events of the curve are not in ascending order",
            where=where,
            expected=f"events from 0 to below {peak.events}",
        )


def _check_sizes(capture: Capture) -> Iterator[BadInput]:
    """Check for contents that would take long to process."""
    for name, doc in capture.symbols.items():
        if not _LATEX.fullmatch(doc.latex) or not name.isidentifier():
            yield BadInput(
                "not a valid typesetting of a symbol", where=f"$.symbols.{name[:80]}.latex", expected=_LATEX.pattern
            )
    places = {"$.target.symbols": capture.target.symbols}
    places |= {f"$.invocations[{k}].symbols": i.symbols for k, i in enumerate(capture.invocations)}
    for where, values in places.items():
        for name, value in values.items():
            if not -_LARGEST < value < _LARGEST:
                yield BadInput("this is too large", where=f"{where}.{name[:80]}", expected="at most 18 digits")
    if capture.callgraph is not None:
        try:
            check_levels(capture.callgraph, "$.callgraph")
        except BadInput as error:
            yield error
    total = 0
    for expr in {e for x in capture.ledgers for n in x.nodes for e in n.exprs.values()}:
        try:
            count = term_count(parse(expr))
        except BadInput:
            continue  # reported at its location
        total += count
        if count > _MOST_TERMS_EACH or total > _MOST_TERMS:
            limit = f"at most {_MOST_TERMS_EACH:,} terms each, {_MOST_TERMS:,} in all different ones"
            yield BadInput("an expression is too large, multiplied out", where=expr[:80], expected=limit)
            return


def _duplicates(names: Iterator[str], what: str, where: str) -> Iterator[BadInput]:
    for name, times in Counter(names).items():
        if times > 1:
            yield BadInput(what, where=where, got=f"{name}, {times} times")


def _check_ledger(
    capture: Capture, ledger: Ledger, where: str, cache: dict[tuple[str, str, str], int | BadInput]
) -> Iterator[BadInput]:
    for metric in ledger.metrics:
        if metric not in EVERY_METRIC:
            yield BadInput("no such metric", where=f"{where}.metrics", got=metric)
    stages = ", ".join(capture.target.stages)
    for stage in ledger.stages:
        if stage not in capture.target.stages:
            yield BadInput("not a stage of this target", where=f"{where}.stages", expected=stages, got=stage)
    places = {(i.stage, i.id): i for i in capture.invocations}
    common = shared_values(i.symbols for i in capture.invocations)
    seen: set[tuple[str, Metric]] = set()
    for k, node in enumerate(ledger.nodes):
        check_time()
        at = f"{where}.nodes[{k}]"
        place = places.get((node.stage, node.invocation))
        if node.stage not in ledger.stages:
            yield BadInput("this ledger does not cover the stage", where=f"{at}.stage", got=node.stage)
        elif node.invocation and place is None:
            yield BadInput("the capture names no such invocation", where=f"{at}.invocation", got=node.id)
        for metric in dict.fromkeys((*node.costs, *node.exprs)):
            if metric not in ledger.metrics and not (ledger.bounds and metric in OF_BOUNDS):
                yield BadInput("this ledger does not give the metric", where=f"{at}.costs.{metric}", got=node.id)
            elif (metric in STAGE_WIDE) == bool(node.invocation):
                belongs = "the whole stage" if metric in STAGE_WIDE else "an invocation"
                yield BadInput(f"this metric belongs to {belongs}", where=f"{at}.costs.{metric}", got=node.id)
            if (node.id, metric) in seen:
                yield BadInput("a quantity occurs twice", where=f"{at}.costs.{metric}", got=node.id)
            seen.add((node.id, metric))
        values = {**capture.target.symbols, **(common if place is None else place.symbols)}
        yield from _check_node(node, at, values, cache)


def _check_node(
    node: CostNode, at: str, values: dict[str, int], cache: dict[tuple[str, str, str], int | BadInput]
) -> Iterator[BadInput]:
    """Check that a node's costs are not negative and equal its formulas."""
    for metric, cost in node.costs.items():
        if cost is not None and not 0 <= cost < _LARGEST_COST:
            yield BadInput("a cost must be at least 0 and have at most 100 digits", where=f"{at}.costs.{metric}")
    for metric, expr in node.exprs.items():
        key = (expr, node.stage, node.invocation)
        if key not in cache:
            try:
                cache[key] = evaluate(expr, values)
            except BadInput as error:
                cache[key] = error
        result, place = cache[key], f"{at}.exprs.{metric}"
        if isinstance(result, BadInput):
            yield BadInput(
                result.what, where=place, expected=result.expected or "an integer", got=result.got or result.where
            )
        elif result != node.cost(metric):
            shown = result if abs(result) < _LARGEST_COST else "a number of more than 100 digits"
            expected = f"{shown}, which its expression is at the symbols of {node.stage}[{node.invocation}]"
            yield BadInput(
                "a cost differs from the value of its expression", where=place, expected=expected, got=node.cost(metric)
            )


def _check_runs(capture: Capture) -> Iterator[BadInput]:
    """Check that the dynamic ledger is the sum of the traced runs.

    If only some decode steps are traced, every cost is linear in the step, and N steps cost N (first + last) / 2.
    """
    ledger = next((x for x in capture.ledgers if x.source == "dynamic"), None)
    if ledger is None or capture.run is None or not capture.run.runs:
        return
    for metric in ("flops", "vector_flops", "kv_cache_bytes"):
        summed, given = _sum_of_runs(capture.run.runs, metric, capture.workload.new_tokens), total(ledger.nodes, metric)
        if summed is not None and given is not None and summed != given:
            expected = f"{summed}, the sum over its runs"
            yield BadInput(f"{metric} of the dynamic ledger is not the sum over its runs", where="$.run.runs",
                           expected=expected, got=given)  # fmt: skip


def _sum_of_runs(runs: tuple[TracedRun, ...], metric: Metric, steps: int) -> int | None:
    once = exact_sum(getattr(r, metric) for r in runs if r.context is None)
    traced = sorted((r for r in runs if r.context is not None), key=lambda r: r.context or 0)
    costs: list[int | None] = [getattr(r, metric) for r in traced]
    known = [c for c in costs if c is not None]
    if once is None or len(known) < len(costs):
        return None
    if len(known) in (0, steps):
        return once + sum(known)
    return once + steps * (known[0] + known[-1]) // 2
