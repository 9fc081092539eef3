"""Which runs say what operators move one by one: those whose operators are the ones of formulas and exports."""

from __future__ import annotations

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.serving import options_of
from costproof.models.target import Target, WithFormulas


def unfused_where_told(ledger: Ledger, target: Target, workload: Workload) -> Ledger:
    """The ledger of a run; without ``unfused_bytes`` where its operators may be others.

    Which experts run is data, and so is what the operators of their loop move; a device chooses operators too; and a
    call that a run has as one operator may be several of an export, or none: formulas say which ones there are.
    """
    told = workload.experts != "eager" and options_of(target).device == "meta" and isinstance(target, WithFormulas)
    return ledger if told else ledger.without(("unfused_bytes",))
