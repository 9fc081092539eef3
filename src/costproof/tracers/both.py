"""Static and dynamic source at once, on two cores: the dynamic one runs in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from costproof.ledger.errors import Incomplete
from costproof.ledger.node import Ledger
from costproof.ledger.progress import Progress, silent
from costproof.ledger.workload import Workload
from costproof.models.target import Exportable, Runnable
from costproof.opgraph.rules.files import with_rules_in_force
from costproof.processes import Failed, Pool, Say
from costproof.tracers.ready import libraries

if TYPE_CHECKING:
    from costproof.tracers.dynamic import DynamicResult


class Both(Exportable, Runnable, Protocol):
    """A target that both sources can serve."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Both graph sources of one run, or why one of them could not count."""

    static: Ledger | Incomplete
    dynamic: DynamicResult | Incomplete


def trace_sources(
    target: Both,
    workload: Workload,
    progress: Progress = silent,
    *,
    all_calls: bool = False,
) -> Sources:
    """Static and dynamic ledger of a target, made at the same time.

    Args:
        progress: called from a second thread too, with ``static: …`` and ``dynamic: …``.
        all_calls: as for :func:`~costproof.tracers.dynamic.dynamic_ledger`.
    """
    from costproof.tracers.static_kept import static_ledger

    def heard(source: str, step: tuple[str, int, int]) -> None:
        what, done, total = step
        progress(f"{source}: {what}", done, total)

    with Pool["DynamicResult"](1, ready=libraries(target, "torchlens")) as pool:
        found = pool.results({"dynamic": with_rules_in_force(partial(_dynamic, target, workload, all_calls))}, heard)
        static: Ledger | Incomplete
        try:
            static = static_ledger(target, workload, lambda *step: heard("static", step))
        except Incomplete as error:
            static = error
        try:
            return Sources(static, next(found).result())
        except Failed as error:
            died = Incomplete(
                "the dynamic source failed",
                got=error.what,
                fix="free some memory (it needs about 1.5 GB), or count with --sources analytic,static",
            )
            return Sources(static, died)
        except Incomplete as error:
            return Sources(static, error)


def _dynamic(target: Runnable, workload: Workload, all_calls: bool, say: Say) -> DynamicResult:
    from costproof.tracers.dynamic import dynamic_ledger

    return dynamic_ledger(target, workload, lambda *step: say(step), all_calls=all_calls)
