"""One run over the sources that were asked for: the only place that knows all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from costproof.ledger.capture import Capture
from costproof.ledger.environment import environment
from costproof.ledger.errors import CostproofError, Incomplete, first_line
from costproof.ledger.extras import advice, require
from costproof.ledger.node import Ledger
from costproof.ledger.profile import Profile
from costproof.ledger.workload import Workload
from costproof.reports.report import Report

if TYPE_CHECKING:
    from costproof.models.target import Target, WithFormulas
    from costproof.tracers.dynamic import DynamicResult

T = TypeVar("T")
Progress = Callable[[str, int, int], None]


def count(
    target: Target, workload: Workload, sources: tuple[str, ...], progress: Progress, *, all_calls: bool = False
) -> Capture:
    """:func:`count_and_measure` without the measurements."""
    return count_and_measure(target, workload, sources, progress, all_calls=all_calls).capture


def count_and_measure(
    target: Target,
    workload: Workload,
    sources: tuple[str, ...],
    progress: Progress,
    *,
    all_calls: bool = False,
    rules: tuple[str, ...] = (),
) -> Report:
    """Count a target with each source and put the ledgers into a capture.

    Args:
        rules: files with operator rules that are in force here, for the processes that are started.
        all_calls: the callgraph tells what went in and out of every call of a module, not of the first alone.

    Raises:
        Incomplete: a source failed; nothing is claimed about the others.
    """
    from costproof.analytic.docs import formula_docs
    from costproof.models.target import Exportable, Runnable, Staged, WithCheckpoint, WithFormulas, lacking, options_of

    if set(sources) != {"analytic"}:
        require("trace", "counting with a graph or a run", otherwise="--sources analytic counts by the formulas alone")
    missing = lacking(target, sources)
    sources = tuple(s for s in sources if s not in missing)
    ledgers: dict[str, Ledger] = {}
    dynamic: DynamicResult | None = None
    if "analytic" in sources and isinstance(target, WithFormulas):
        progress("analytic", 0, 1)
        ledgers["analytic"] = analytic_ledger(target, workload)
        progress("analytic", 1, 1)
    # What is measured runs alone: an export beside it would take the other core.
    together = {"static", "dynamic"} <= set(sources) and not options_of(target).profile
    if together and isinstance(target, Exportable) and isinstance(target, Runnable):
        from costproof.tracers.both import trace_sources

        traced = _source(
            "static and dynamic",
            lambda: trace_sources(target, workload, _phases(progress), rules=rules, all_calls=all_calls),
        )
        ledgers["static"], ledgers["dynamic"] = traced.static, traced.dynamic.ledger
        dynamic = traced.dynamic
    if "static" in sources and not together and isinstance(target, Exportable):
        from costproof.tracers.static import static_ledger

        ledgers["static"] = _source("static", lambda: static_ledger(target, workload, _within("static", progress)))
    if "dynamic" in sources and not together and isinstance(target, Runnable):
        from costproof.tracers.dynamic import dynamic_ledger

        dynamic = _source(
            "dynamic", lambda: dynamic_ledger(target, workload, _within("dynamic", progress), all_calls=all_calls)
        )
        ledgers["dynamic"] = dynamic.ledger
    if "isolated" in sources and isinstance(target, Staged):
        from costproof.tracers.isolated import isolated_ledger

        ledgers["isolated"] = _source(
            "isolated", lambda: isolated_ledger(target, workload, _within("isolated", progress))
        )
    checkpoint = target.checkpoint() if isinstance(target, WithCheckpoint) else None
    if checkpoint is not None:
        ledgers["checkpoint"] = checkpoint
    capture = Capture(
        conventions=target.conventions(workload),
        target=target.info(),
        workload=workload,
        environment=environment(),
        invocations=target.invocations(workload),
        ledgers=tuple(ledgers.values()),
        formulas=formula_docs(ledgers["analytic"].nodes) if "analytic" in ledgers else {},
        symbols=target.symbol_docs() if isinstance(target, WithFormulas) else {},
        callgraph=dynamic.callgraph if dynamic else None,
        trace_check=dynamic.trace_check if dynamic else None,
        run=dynamic.run if dynamic else None,
        lacking=missing,
    )
    if dynamic is None or dynamic.measured is None:
        return Report(capture)
    profile = Profile(
        conventions=capture.conventions,
        target=capture.target,
        workload=workload,
        environment=capture.environment,
        run=options_of(target).public(),
        measured=dynamic.measured,
        flops=dynamic.stage_flops,
    )
    return Report(capture, profile, dynamic.chrome_trace)


def _within(phase: str, progress: Progress) -> Progress:
    """The steps of a source, under the source's name."""
    return lambda step, done, total: progress(phase, done, total)


def _phases(progress: Progress) -> Progress:
    """``static: export sam`` is a step of the phase ``static``."""
    return lambda step, done, total: progress(step.partition(":")[0], done, total)


def analytic_ledger(target: WithFormulas, workload: Workload) -> Ledger:
    """The closed formulas with this workload's numbers put in."""
    from costproof.ledger.evaluate import evaluate_ledger

    values = {(i.stage, i.id): i.symbols for i in target.invocations(workload)}
    return evaluate_ledger(target.formulas(workload), values, target.info().symbols)


def _source(name: str, run: Callable[[], T]) -> T:
    """Run a tracer. It executes code of other packages, whatever it raises is a source that failed."""
    try:
        return run()
    except CostproofError:
        raise
    except ImportError as error:
        raise Incomplete(
            f"the {name} source cannot run here",
            expected="torch, transformers and torchlens",
            got=first_line(error),
            fix=f"{advice('trace')}, or count with --sources analytic; see costproof doctor",
        ) from error
    except Exception as error:
        raise Incomplete(
            f"the {name} source failed",
            got=first_line(error),
            fix="COSTPROOF_DEBUG=1 shows where; --sources analytic counts without it; see costproof doctor",
        ) from error
