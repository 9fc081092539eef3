"""Which runs say what operators move one by one: those whose operators are the ones of formulas and exports."""

from __future__ import annotations

from costproof.ledger.metrics import UNFUSED
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.serving import options_of
from costproof.models.target import Target, WithFormulas


def unfused_where_told(ledger: Ledger, target: Target, workload: Workload, *, grouped: bool = False) -> Ledger:
    """The ledger of a run; without :data:`~costproof.ledger.metrics.UNFUSED` where its operators may be others.

    Which experts run is data, and so is what the operators of their loop move; a device chooses operators too; and a
    call that a run has as one operator may be several of an export, or none: formulas say which ones there are.

    Args:
        grouped: experts are counted together (``Run.groups``). Then formulas are of that very loop, and of code that
            asks for no device.
    """
    chosen = workload.experts == "eager" or options_of(target).device != "meta"
    told = isinstance(target, WithFormulas) and (grouped or not chosen)
    return ledger if told else ledger.without((UNFUSED,))
