"""Define the error for an output whose data the capture lacks."""

from __future__ import annotations

from costproof.ledger.callgraph import CallGraph
from costproof.ledger.capture import Capture
from costproof.ledger.errors import Incomplete


class Absent(Incomplete):
    """Raised if a capture lacks the data for an output. A folder of reports then omits that file."""


def sources(capture: Capture) -> str:
    """Return the sources of a capture for a message: ``sources analytic, static``."""
    return "sources " + (", ".join(x.source for x in capture.ledgers) or "none")


def callgraph_of(capture: Capture) -> CallGraph:
    """Return the callgraph of a capture.

    Raises:
        Absent: the capture was made without the dynamic source.
    """
    if capture.callgraph is None:
        raise Absent(
            "the capture has no callgraph",
            where="$.callgraph",
            expected="a capture with the dynamic source",
            got=sources(capture),
            fix="costproof capture TARGET --sources analytic,static,dynamic -o FILE",
        )
    return capture.callgraph
