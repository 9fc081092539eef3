"""What each source says about a stage, and which number a report may put in the headline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from costproof.ledger.capture import Capture
from costproof.ledger.metrics import Metric
from costproof.ledger.node import CostNode, Ledger, exact_sum, known_part
from costproof.ledger.sources import ALL_SOURCES

Where = Callable[[CostNode], bool]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number as far as it may be claimed.

    ``value`` is set when every source that gives the quantity gives the same integer, or when the
    comparison has explained the difference; otherwise it is ``None``. ``at_least`` is the part
    that is known where an operator without a rule hides the rest.
    """

    value: int | None
    at_least: int | None = None


def ledgers(capture: Capture) -> tuple[Ledger, ...]:
    """The ledgers that may stand in the headline, in order."""
    found = (capture.by_source.get(name) for name in ALL_SOURCES)
    return tuple(x for x in found if x is not None)


def gives(ledger: Ledger, metric: Metric, stage: str | None = None) -> bool:
    """Whether a source says anything about a metric (of a stage)."""
    return metric in ledger.metrics and (stage is None or stage in ledger.stages)


def whole(capture: Capture, ledger: Ledger) -> bool:
    """Whether a source covers every stage: only then is its sum a total."""
    return set(capture.target.stages) <= set(ledger.stages)


def value(ledger: Ledger, metric: Metric, stage: str | None = None, where: Where | None = None) -> int | None:
    """A source's sum, ``None`` where it does not know: an operator without a rule leaves FLOPs and bytes open."""
    return ledger.total(metric, where, stage) if gives(ledger, metric, stage) else None


def known(ledger: Ledger, metric: Metric, stage: str | None = None, where: Where | None = None) -> int:
    """The part of a source's sum that it does know."""
    inside = _both(stage, where)
    return known_part(filter(inside, ledger.nodes), metric)


def quantity(
    capture: Capture, metric: Metric, stage: str | None = None, where: Where | None = None, *, settled: bool
) -> Quantity:
    """The headline number of a metric.

    Args:
        settled: the comparison ended exact or explained, so that the first source may speak for all.
    """
    speaking = [x for x in ledgers(capture) if gives(x, metric, stage) and (stage is not None or whole(capture, x))]
    if not speaking:
        return Quantity(None)
    said = [value(x, metric, stage, where) for x in speaking]
    if None in said:
        # What runs inside an operator without a rule is that of one implementation: a kernel may do less.
        whole_ones = [n for n in said if n is not None]
        return Quantity(None, max(whole_ones or [min(known(x, metric, stage, where) for x in speaking)]))
    return Quantity(said[0]) if settled or len(set(said)) == 1 else Quantity(None)


def added(*parts: Quantity) -> Quantity:
    """The sum of quantities: unknown as soon as one is, and then at least the sum of what is known."""
    total = exact_sum(p.value for p in parts)
    if total is not None:
        return Quantity(total)
    bounds = exact_sum(p.value if p.value is not None else p.at_least for p in parts)
    return Quantity(None, bounds)


def executed(ledger: Ledger, stage: str) -> frozenset[str]:
    """Modules of a stage whose own parameters this run reads."""
    metric: Metric = "weight_read_bytes" if gives(ledger, "weight_read_bytes") else "calls"
    return frozenset(n.module for n in ledger.nodes if n.stage == stage and n.invocation and n.cost(metric))


def _both(stage: str | None, where: Where | None) -> Where:
    return lambda n: (stage is None or n.stage == stage) and (where is None or where(n))
