"""Count a target with each requested source, and collect the ledgers in a capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from costproof.analytic.costs import formula_docs
from costproof.analytic.symbols import PAST_SYMBOLS, rank_symbols, row_symbols
from costproof.ledger.capture import FAILED, GRADIENTS, Capture, Padding, without_uncalled_stages
from costproof.ledger.environment import advice, environment, require
from costproof.ledger.errors import BadInput, CostproofError, Incomplete, check_recounts, first_line
from costproof.ledger.mesh import Parallel
from costproof.ledger.node import CostNode, Ledger, bearing, total
from costproof.ledger.profile import Profile
from costproof.ledger.progress import Progress, silent
from costproof.ledger.run import ALL_SOURCES, GRAPH_SOURCES
from costproof.ledger.workload import Workload
from costproof.models.cache_dtype import in_cache_format
from costproof.models.known import recorded
from costproof.models.target import (
    InProcess,
    Runnable,
    Sharded,
    Target,
    WithBlocks,
    WithCheckpoint,
    WithFormulas,
    WithModules,
    WithValues,
    lacking,
    options_of,
)
from costproof.opgraph.rules.files import versions_in_force
from costproof.parametric.cache_checks import padding_recounts
from costproof.parametric.rank_checks import note_recounts
from costproof.parametric.targets import count_ranks, evaluate_formulas
from costproof.reports.report import Report
from costproof.run.count_lock import count_lock, count_then_restore
from costproof.run.prepare import Prepared
from costproof.tracers.cache import cache_enabled, check_configuration_file
from costproof.tracers.dynamic import DynamicResult
from costproof.tracers.headers import HEADERS, has_headers, headers_ledger
from costproof.tracers.sources import trace_source, trace_sources
from costproof.tracers.static import WITH_GIVEN, WITH_ONES

if TYPE_CHECKING:
    from torch import nn

    from costproof.snapshots.module_snapshot import Before

T = TypeVar("T")


def count(module: nn.Module | Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """Count FLOPs, vector FLOPs, bytes and parameters of one module call by a trace and by an export, and compare both.

    The call runs on the device of the module and its arguments, or on the meta device if any of them is there. It runs
    on a copy that shares the parameters, in evaluation mode, without gradients and outside of every torch mode; the
    module itself is not changed.

    Args:
        module: a module, or a ``functools.partial`` of one.
        args, kwargs: the arguments of the call.

    Raises:
        BadInput: it is not a module, or forward does not accept these arguments.
        Incomplete: no source could count it.
        Changed: the state of the module or the process has changed, and could not be restored.
    """
    from costproof.models.generic.live_module import at_hand

    require("trace", "counting a module")
    called: Any = module
    while isinstance(called, partial):
        called, args, kwargs = called.func, (*called.args, *args), {**called.keywords, **kwargs}

    def count_alone(before: Before) -> Report:
        with at_hand(called, args, kwargs, before) as target:
            return count_sources(Prepared(target, target.workload()))

    return count_then_restore(count_alone)


def count_sources(run: Prepared, progress: Progress = silent) -> Report:
    """Count a prepared target with each source, and return a report of the capture.

    The capture lists sources that the target lacks and sources that failed, with the reason; a failed source makes the
    verdict incomplete.

    Raises:
        BadInput: the target has none of the sources.
        Incomplete: every source failed.
    """
    with count_lock(), cache_enabled(not run.no_cache):
        return _count_all(run, progress)


def _count_all(run: Prepared, progress: Progress) -> Report:
    target, workload = run.target, run.workload
    missing = lacking(target, run.sources)
    sources = [s for s in run.sources if s not in missing]
    if not sources:
        has = [s for s in ALL_SOURCES if s not in lacking(target, ALL_SOURCES)]
        raise BadInput(
            "none of the requested sources can count this target",
            where="--sources",
            expected="one of " + ", ".join(has),
            got="; ".join(f"{source}: {why}" for source, why in missing.items()),
        )
    # Measurements run by themselves: a parallel export would use the other core.
    here = isinstance(target, InProcess) and target.here
    together = {"static", "dynamic"} <= set(sources) and not options_of(target).profile and not here
    found: dict[str, Any] = {}
    for source in sources:
        if source in found:
            continue
        progress(source, 0, 1)
        if source == "static" and together:
            found |= _run_source("static and dynamic", partial(_static_and_dynamic, run, _phases(progress)))
        else:
            found[source] = _try_source(source, partial(_count_with, run, source, _within(source, progress)))
        progress(source, 1, 1)
    failed = {source: result for source, result in found.items() if isinstance(result, Incomplete)}
    found = {source: result for source, result in found.items() if source not in failed}
    if failed and not found:
        raise _input_error(run) or _all_failed_error(failed)
    missing |= {source: FAILED + error.line for source, error in failed.items()}
    dynamic: DynamicResult | None = found.get("dynamic")
    followed = dynamic is not None and dynamic.by_values
    if "static" in found:  # its graphs hold for one way where values decide
        followed = followed or any(which in note for note in found["static"].notes for which in (WITH_ONES, WITH_GIVEN))
    if followed and isinstance(target, WithValues):
        workload = target.with_values(workload)
    ledgers: dict[str, Ledger] = {**found, **({"dynamic": dynamic.ledger} if dynamic is not None else {})}
    if any(ledger.unknown_ops for ledger in ledgers.values()):
        error = _input_error(run)
        if error is not None and error.what == GRADIENTS:
            raise error
    if dynamic is not None:
        check_recounts(note_recounts(dynamic.ledger.notes, workload, target.info().symbols))
    ledgers = {s: x if s == "analytic" else in_cache_format(x, target, workload) for s, x in ledgers.items()}
    mesh = workload.mesh  # a checkpoint is of the whole model, not of a rank's part
    whole = mesh.tp == mesh.ep == mesh.pp == mesh.fsdp == 1
    checkpoint = target.checkpoint() if isinstance(target, WithCheckpoint) and whole else None
    if checkpoint is not None:
        ledgers["checkpoint"] = checkpoint
    elif has_headers(target) and whole and {*GRAPH_SOURCES} & {*found}:  # the others need no torch
        ledgers |= _headers(target, workload, missing, progress)
    info, calls = target.info(), target.invocations(workload)
    info, counts = without_uncalled_stages(info, calls, ledgers.values())
    ledgers = dict(zip(ledgers, counts, strict=True))
    capture = Capture(
        conventions=target.conventions(workload),
        target=info,
        workload=workload,
        environment=environment() | versions_in_force(),
        invocations=calls,
        ledgers=tuple(ledgers.values()),
        formulas=formula_docs(ledgers["analytic"].nodes) if "analytic" in ledgers else {},
        symbols=target.symbol_docs()
        | (PAST_SYMBOLS if workload.past else {})
        | (row_symbols(calls[0].symbols) if workload.rows else {})
        | ({} if workload.mesh.one else rank_symbols(name for call in calls for name in call.symbols))
        if isinstance(target, WithFormulas)
        else {},
        callgraph=dynamic.callgraph if dynamic else None,
        trace_check=dynamic.trace_check if dynamic else None,
        run=dynamic.run if dynamic else None,
        judge=dynamic.judge if dynamic else None,
        lacking=missing,
        modules=target.module_kinds() if isinstance(target, WithModules) else {},
        parallel=_ranks(target, workload, ledgers),
        padding=_padding(target, workload),
        recorded={s: metrics for s, metrics in recorded(target, workload).items() if s in ledgers},
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
        flops=_stage_flops(dynamic.forwards),
    )
    return Report(capture, profile, dynamic.chrome_trace)


def _ranks(target: Target, workload: Workload, ledgers: Mapping[str, Ledger]) -> Parallel | None:
    """Count every rank by the formulas if the run is split over several devices."""
    if workload.mesh.one or not isinstance(target, Sharded) or "analytic" not in ledgers:
        return None
    return count_ranks(target, workload, ledgers["analytic"])


def _padding(target: Target, workload: Workload) -> Padding | None:
    """Return the cost of padding the cache to whole blocks and the tokens to fixed sizes; ``None`` without padding."""
    if not isinstance(target, WithBlocks):
        return None
    blocked = target.blocked_cache(workload)
    found = Padding(() if blocked is None else blocked.rows(workload), target.token_padding(workload))
    check_recounts(padding_recounts(target, workload, found))
    return None if found == Padding() else found


def _headers(target: Target, workload: Workload, missing: dict[str, str], progress: Progress) -> dict[str, Ledger]:
    """Count by the tensor headers of the checkpoint next to the configuration; note a failure in ``missing``."""
    progress(HEADERS, 0, 1)
    try:
        return {HEADERS: _run_source(HEADERS, partial(headers_ledger, target, workload))}
    except BadInput as error:  # a folder without all of its shards, or with pointers to them, can still be counted
        missing[HEADERS] = error.line
    except Incomplete as error:
        missing[HEADERS] = FAILED + error.line
    finally:
        progress(HEADERS, 1, 1)
    return {}


def _input_error(run: Prepared) -> Incomplete | None:
    """Return why the model cannot run: it rejects its inputs or takes gradients; ``None`` if it runs."""
    with suppress(Exception):  # code of other packages; the reasons of the sources are there already
        if isinstance(run.target, Runnable):
            from costproof.tracers.cpu_fallback import explain_failure

            model = run.target.build_run(run.workload, silent).model
            return next(
                (why for one in run.target.runs(model, run.workload) if (why := explain_failure(one)) is not None), None
            )
    return None


def _all_failed_error(failed: Mapping[str, Incomplete]) -> Incomplete:
    """Return one error for all failed sources, with the reasons of each."""
    first, *others = failed.values()
    if not others:
        return first
    reasons = "; ".join(f"{source}: {error.line}" for source, error in failed.items())
    return Incomplete("no source can count this target", got=reasons, fix=others[-1].fix)


def _stage_flops(forwards: Mapping[str, Iterable[CostNode]]) -> dict[str, int | None]:
    """Return the headline FLOPs of each forward, by ``run/stage/invocation``."""
    places: dict[str, list[CostNode]] = {}
    for run, nodes in forwards.items():
        for node in bearing(nodes, "flops"):
            places.setdefault(f"{run}/{node.stage}/{node.invocation}", []).append(node)
    return {place: total(found, "flops") for place, found in places.items()}


def _count_with(run: Prepared, source: str, progress: Progress) -> Any:
    """Count with one source; :func:`lacking` must have shown that the target supports it."""
    if source == "analytic":
        if not {*GRAPH_SOURCES} & {*run.sources}:  # which compare the file where they build the model
            check_configuration_file(run.target)
        return evaluate_formulas(cast(WithFormulas, run.target), run.workload)
    return trace_source(source, run.target, run.workload, progress, all_calls=run.all_calls)


def _static_and_dynamic(run: Prepared, progress: Progress) -> dict[str, Any]:
    """Count with the static and the dynamic source at the same time, in two processes."""
    traced = trace_sources(cast("Any", run.target), run.workload, progress, all_calls=run.all_calls)
    return {"static": traced.static, "dynamic": traced.dynamic}


def _try_source(name: str, run: Callable[[], T]) -> T | Incomplete:
    """Return the result of a source, or its error if it raises ``Incomplete``."""
    try:
        return _run_source(name, run)
    except Incomplete as error:
        return error


def _within(phase: str, progress: Progress) -> Progress:
    """Return a progress callback that prefixes steps with the name of a source."""
    return lambda step, done, total: progress(phase, done, total)


def _phases(progress: Progress) -> Progress:
    """Return a progress callback that splits ``static: export sam`` into the phase ``static`` and the step."""
    return lambda step, done, total: progress(step.partition(":")[0], done, total)


def _run_source(name: str, run: Callable[[], T]) -> T:
    """Run a source, and convert any exception of foreign code to an ``Incomplete`` error."""
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
