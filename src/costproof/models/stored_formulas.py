"""Add the storage metrics of a checkpoint to the formulas of a target."""

from __future__ import annotations

from typing import Any, Final, Protocol

from costproof.analytic.storage import Storage, with_storage
from costproof.analytic.symbols import MESH_SYMBOLS
from costproof.ledger.attributes import attribute
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.native import Configured
from costproof.storage.scheme import PLAIN, CheckpointLayout, UnknownFormat


class GivesFormulas(Protocol):
    """Protocol of targets that have closed formulas."""

    def formulas(self, workload: Workload) -> Ledger:
        """Return the analytic ledger in symbols."""


NOT_KNOWN: Final = "stored bytes are not known"
"""Beginning of the note on a checkpoint whose format has no layout."""


def stored_formulas(target: GivesFormulas, workload: Workload) -> Ledger:
    """Return the analytic ledger in symbols, with storage metrics if the checkpoint's format is known."""
    of = attribute(target, "model", target)
    ledger = target.formulas(workload)
    if not isinstance(of, Configured):  # as the static source: in the dtype of the run
        return with_storage(ledger, Storage(PLAIN, workload.dtype, CheckpointLayout(), {}))
    try:
        scheme = of.stored.scheme(str(attribute(of.config, "model_type", "")))
    except UnknownFormat as error:
        return with_storage(ledger, None, f"{NOT_KNOWN}: {error.name}: {error.why}")
    layout = attribute(of, "checkpoint_layout", CheckpointLayout())
    sizes = of.config.symbols()
    if not workload.mesh.one:  # of a rank
        calls: Any = attribute(of, "invocations")
        sizes |= {name: size for name, size in calls(workload)[0].symbols.items() if name in MESH_SYMBOLS}
    return with_storage(ledger, Storage(scheme, of.dtype, layout, sizes))
