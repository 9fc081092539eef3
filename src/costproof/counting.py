"""One run of other people's counters: processes, truth, comparison. The part of the interface behind ``counters``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from costproof.compare.counters import CounterFinding, explain_counter, together
from costproof.environment import environment
from costproof.ledger.counter import CounterCall
from costproof.ledger.errors import EXIT_FINDINGS, EXIT_INCOMPLETE, EXIT_OK, BadInput, Incomplete
from costproof.ledger.node import CostNode
from costproof.ledger.workload import Workload
from costproof.models.target import Target
from costproof.reports.counters import CounterReport, OwnNumber

_NUMBER: Final = re.compile(r"(?P<digits>[0-9]{1,30})(?:\.(?P<part>[0-9]{1,30}))?\s*(?P<unit>[kKMGTP]?)")
_SCALE: Final = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}

Place = tuple[str, str, str]


def count_with_counters(
    target: str = "deepseek-ocr",
    *,
    config: Path | None = None,
    stages: Iterable[str] = (),
    only: Iterable[str] | None = None,
    own: Iterable[str] = (),
    seconds: int = 240,
    memory_gib: int = 12,
    progress: Callable[[str], None] = lambda name: None,
    preset: str | None = None,
    **settings: Any,
) -> CounterReport:
    """Run counters on a target and explain each by our own count of the same forward.

    Args:
        stages: of the target; all if empty.
        only: names of counters; all if ``None``.
        own: the user's own numbers, ``NAME=VALUE``.
        settings: as for :func:`costproof.workload`.

    Raises:
        BadInput: target, stage, counter, number or workload are wrong.
        Incomplete: our own count failed, or it is not that of the closed formulas.
    """
    from costproof.models.registry import load_target
    from costproof.orchestrate import Ready
    from costproof.tracers.counters.registry import counters
    from costproof.tracers.counters.running import GIB, Limits, run_counters

    numbers = tuple(own_number(text) for text in own)
    model = load_target(target, config)
    run = model.workload(preset, **{k: Path(v) if k == "image" and v is not None else v for k, v in settings.items()})
    # One step stands for decode: every counter sees one forward.
    run = replace(run, new_tokens=min(run.new_tokens, 1))
    model.check(run)
    wanted = tuple(stages)
    _check(wanted, model.info().stages, "there is no such stage", "--stage")
    known = tuple(counters())
    names = known if only is None else tuple(only)
    _check(names, known, "there is no such counter", "--only")
    if seconds < 1 or memory_gib < 1:
        raise BadInput("a limit must be at least 1", where="--timeout, --memory", got=min(seconds, memory_gib))
    truth, runs = run_counters(Ready(model), run, names, wanted, Limits(seconds, memory_gib * GIB), progress=progress)
    nodes: dict[Place, tuple[CostNode, ...]] = {(c.stage, c.invocation, c.cut): c.nodes for c in truth}
    findings: list[CounterFinding] = []
    totals: list[CounterFinding] = []
    for r in runs:
        found = [explain_counter(r.info, call, nodes.get(_place(call, nodes), ())) for call in r.calls]
        findings += found
        totals.append(together(found))
    return CounterReport(
        conventions=model.conventions(run),
        target=model.info(),
        workload=run,
        environment=environment(),
        counters=tuple(r.info for r in runs),
        versions={r.info.name: r.version for r in runs},
        totals=tuple(totals),
        findings=tuple(findings),
        checked=_checked(model, run, truth),
        own=tuple(_matched(n, [*findings, *totals]) for n in numbers),
    )


def exit_code(report: CounterReport) -> int:
    """3 if a counter failed, 1 if a difference stays unexplained, else 0."""
    if any(f.error is not None for f in report.totals):
        return EXIT_INCOMPLETE
    return EXIT_FINDINGS if any(f.residual for f in report.findings) else EXIT_OK


def own_number(text: str) -> OwnNumber:
    """``mine=571.92G``: the name, and the integers that print like that.

    Raises:
        BadInput: the text is no such pair.
    """
    name, sign, value = text.partition("=")
    match = _NUMBER.fullmatch(value.strip())
    if not sign or not name.strip() or match is None:
        raise BadInput(
            "a number of your own needs a name and a value", where="--add", expected="mine=571.92G", got=text[:80]
        )
    part = match["part"] or ""
    step = Fraction(_SCALE[match["unit"]], 10 ** len(part))
    middle = int(match["digits"] + part) * step
    half = step / 2 if step > 1 else Fraction(0)
    return OwnNumber(name.strip(), value.strip(), -int(-(middle - half) // 1), int((middle + half) // 1))


def _matched(own: OwnNumber, findings: Iterable[CounterFinding]) -> OwnNumber:
    """Everything in the report that prints as the number: tools' values, in their unit and in FLOP, and the truth."""
    matches: dict[str, None] = {}
    for f in findings:
        place = f"{f.stage}[{f.invocation}]" if f.invocation else f.stage
        for value, what in ((f.value, f.counter), (f.normalised, f"{f.counter} in FLOP"), (f.truth, "the truth")):
            if value is not None and own.least <= value <= own.most:
                matches[f"{place}: {what}"] = None
    return replace(own, matches=tuple(matches))


def _place(call: CounterCall, nodes: dict[Place, tuple[CostNode, ...]]) -> Place:
    """Where the truth of a call stands; a call whose process died does not know its cut."""
    exact = (call.stage, call.invocation, call.cut)
    return exact if exact in nodes else next((p for p in nodes if p[:2] == exact[:2]), exact)


def _checked(model: Target, run: Workload, truth: tuple[CounterCall, ...]) -> tuple[str, ...]:
    """Our own count against the closed formulas, stage by stage.

    Raises:
        Incomplete: they differ.
    """
    from costproof.orchestrate import analytic_ledger

    formulas = analytic_ledger(model, run)
    counted: dict[tuple[str, str], int] = {}
    for call in truth:
        flops = sum(n.costs.get("flops") or 0 for n in call.nodes)
        counted[call.stage, call.invocation] = counted.get((call.stage, call.invocation), 0) + flops
    for (stage, invocation), flops in counted.items():
        expected = formulas.stage_total(stage, "flops", invocation)
        if expected != flops:
            raise Incomplete(
                "our own count is not that of the formulas, so it is no truth to compare with",
                where=f"{stage}[{invocation}]",
                expected=expected,
                got=flops,
                fix="see costproof report",
            )
    return (f"The truth equals the closed formulas in {len(counted)} of {len(counted)} invocations.",)


def _check(asked: tuple[str, ...], known: tuple[str, ...], what: str, where: str) -> None:
    from costproof.reports.near import near

    for name in asked:
        if name not in known:
            raise BadInput(
                what,
                where=where,
                expected="of " + ", ".join(known),
                got=name,
                fix=near(name, known, "did you mean {}?"),
            )
