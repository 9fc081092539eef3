"""Count a target with one or two of the sources that need torch, which is imported only then."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from costproof.ledger.errors import Incomplete
from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import Workload
from costproof.models.target import Exportable, Runnable, Target, options_of
from costproof.opgraph.rules.files import with_rules_in_force
from costproof.processes import Failed, Pool, Say

if TYPE_CHECKING:
    from costproof.tracers.dynamic import DynamicResult

LIBRARIES: Final = ("torch", "transformers.modeling_utils")


class ExportableAndRunnable(Exportable, Runnable, Protocol):
    """A target that supports both the static and the dynamic source."""


@dataclass(frozen=True, slots=True)
class TracedSources:
    """Results of the static and the dynamic source for one run, with an error in place of a source that failed."""

    static: Ledger | Incomplete
    dynamic: DynamicResult | Incomplete


def trace_source(
    source: str, target: Any, workload: Workload, progress: Progress = silent, *, all_calls: bool = False
) -> Ledger | DynamicResult:
    """Count a target with one source; return its ledger, or a ``DynamicResult`` for the dynamic source.

    Args:
        source: ``static``, ``dynamic`` or ``isolated``.
        target: must have the protocol of that source.
        all_calls: as for :func:`~costproof.tracers.dynamic.dynamic_ledger`.

    Raises:
        Incomplete: the source cannot count the target.
    """
    if source == "dynamic":
        from costproof.tracers.dynamic import dynamic_ledger

        return dynamic_ledger(target, workload, progress, all_calls=all_calls)
    if source == "isolated":
        from costproof.tracers.isolated import isolated_ledger

        return isolated_ledger(target, workload, progress)
    from costproof.tracers.cache import cached_static_ledger

    return cached_static_ledger(target, workload, progress)


def trace_sources(
    target: ExportableAndRunnable, workload: Workload, progress: Progress = silent, *, all_calls: bool = False
) -> TracedSources:
    """Run the static source in this process and the dynamic source in another process at the same time.

    Args:
        progress: function that is also called from a second thread; steps begin with ``static: `` or ``dynamic: ``.
        all_calls: as for :func:`~costproof.tracers.dynamic.dynamic_ledger`.
    """

    def report(source: str, step: tuple[str, int, int]) -> None:
        what, done, total = step
        progress(f"{source}: {what}", done, total)

    with Pool["DynamicResult"](1, ready=preload_modules(target, "torchlens")) as pool:
        results = pool.results({"dynamic": with_rules_in_force(partial(_dynamic, target, workload, all_calls))}, report)
        static: Any
        try:
            static = trace_source("static", target, workload, lambda *step: report("static", step))
        except Incomplete as error:
            static = error
        try:
            return TracedSources(static, next(results).result())
        except Failed as error:
            died = Incomplete(
                "the dynamic source failed",
                got=error.what,
                fix="free some memory (it needs about 1.5 GB), or count with --sources analytic,static",
            )
            return TracedSources(static, died)
        except Incomplete as error:
            return TracedSources(static, error)


def _dynamic(target: Runnable, workload: Workload, all_calls: bool, say: Say) -> DynamicResult:
    from costproof.tracers.dynamic import dynamic_ledger

    return dynamic_ledger(target, workload, lambda *step: say(step), all_calls=all_calls)


def preload_modules(target: Target, *more: str) -> tuple[str, ...]:
    """Return the modules that a worker process imports before it forks and traces a target.

    There are none for a run on CUDA, which must not be initialized before a fork.
    """
    return () if options_of(target).device == "cuda" else (*LIBRARIES, *more)
