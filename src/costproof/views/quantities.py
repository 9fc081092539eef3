"""Compute the quantities in reports: metrics, sums derived from them, and the sources that give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from costproof.ledger.capture import Capture
from costproof.ledger.metrics import COMM, METRICS, STAGE_WIDE, TRAFFIC, Metric, MetricInfo
from costproof.ledger.node import CostNode, Ledger, exact_sum, known_part
from costproof.ledger.run import ALL_SOURCES

Costs = dict[str, int | None]
"""Value by quantity; None if it is unknown or the sources disagree on it."""


@dataclass(frozen=True, slots=True)
class ShownQuantity:
    """Title and unit of a quantity in reports, and the metrics from which it is derived."""

    title: str
    unit: str
    of: tuple[Metric, ...]


TOTAL: Final = "total"
"""Name for all stages together, used instead of a stage name."""
_DERIVED: Final[dict[str, ShownQuantity]] = {
    "params_executed": ShownQuantity("parameters of modules that this run reads", "elements", ("params",)),
    "macs": ShownQuantity("multiply-accumulates", "MAC", ("flops",)),
    "io_bytes": ShownQuantity("bytes read and written", "bytes", TRAFFIC),
    "activation_bytes": ShownQuantity("", "bytes", ("output_bytes",)),
}
"""Quantities derived from metrics.

``activation_bytes`` is another name of ``output_bytes`` in files, and has no row of its own.
"""

METRICS_SHOWN: Final[tuple[Metric, ...]] = tuple(m for m, i in METRICS.items() if i.unit != "calls")
"""Metrics shown in reports, without calls, whose sum over modules is meaningless."""
PER_CALL: Final[tuple[Metric, ...]] = tuple(m for m in METRICS_SHOWN if not METRICS[m].stage_wide)
SHOWN: Final[dict[str, ShownQuantity]] = {
    name: shown
    for metric in METRICS_SHOWN
    for name, shown in (
        (metric, ShownQuantity(METRICS[metric].title, METRICS[metric].unit, (metric,))),
        *((n, d) for n, d in _DERIVED.items() if d.of[-1] == metric),
    )
}
"""Quantities in the order of tables; a derived quantity follows the last metric that it is derived from."""
UNITS: Final = {"bytes": "B", "FLOP": "FLOP", "MAC": "MAC"}
"""Symbol printed after a number, by unit; elements have none."""


def with_derived(found: Mapping[Metric, KnownAmount], executed: int | None) -> dict[str, KnownAmount]:
    """Return metrics with the quantities that are derived from them added.

    Args:
        executed: elements of the parameters that this run reads.
    """
    half = found["flops"].value
    return {
        **found,
        "params_executed": KnownAmount(executed),
        "macs": KnownAmount(half // 2 if half is not None and half % 2 == 0 else None),
        "io_bytes": add_known(*(found[m] for m in _DERIVED["io_bytes"].of)),
        "activation_bytes": KnownAmount(found["output_bytes"].value),
    }


EXPLAINED: Final[dict[str, MetricInfo]] = {
    **METRICS,
    **COMM,
    **{
        name: MetricInfo(d.unit, False, d.title or name, " + ".join(d.of) + (" / 2" if d.unit == "MAC" else ""))
        for name, d in _DERIVED.items()
        if d.of[0] not in STAGE_WIDE
    },
}
"""Quantities that have formulas, unlike the parameters that a run reads."""


def with_quantity(ledger: Ledger, name: str) -> Ledger:
    """Return the ledger with a derived quantity added to its nodes."""
    of = _DERIVED[name].of
    half = _DERIVED[name].unit == "MAC"

    def node(n: CostNode) -> CostNode:
        exprs = [f"({n.exprs[m]})" for m in of if m in n.exprs]
        value = exact_sum(n.cost(m) for m in of)
        if not any(m in n.costs or m in n.exprs for m in of):
            return n
        text = " + ".join(exprs)
        return replace(
            n,
            exprs={**n.exprs, **({name: f"({text})/2" if half else text} if exprs else {})},
            costs={**n.costs, name: value // 2 if half and value is not None else value},
        )

    known = all(m in ledger.metrics for m in of)
    return replace(ledger, nodes=tuple(map(node, ledger.nodes)), metrics=(*ledger.metrics, *([name] if known else [])))


Where = Callable[[CostNode], bool]


@dataclass(frozen=True, slots=True)
class KnownAmount:
    """An amount that may be partly unknown: its exact value, or else a lower bound.

    ``value`` is set when every source that gives the quantity gives the same integer, or when the
    comparison has explained the difference; otherwise it is ``None``. ``at_least`` is the part
    that is known where an operator without a rule hides the rest.
    """

    value: int | None
    at_least: int | None = None


def ledgers(capture: Capture) -> tuple[Ledger, ...]:
    """Return the ledgers that may supply headline numbers, in order of precedence."""
    found = (capture.by_source.get(name) for name in ALL_SOURCES)
    return tuple(x for x in found if x is not None)


def provides(ledger: Ledger, metric: Metric, stage: str | None = None) -> bool:
    """Return whether a source counts a metric, in a given stage or at all."""
    return metric in ledger.metrics and (stage is None or stage in ledger.stages)


def whole(capture: Capture, ledger: Ledger) -> bool:
    """Return whether a source covers every stage, so that its sum is the total."""
    return set(capture.target.stages) <= set(ledger.stages)


def value(ledger: Ledger, metric: Metric, stage: str | None = None, where: Where | None = None) -> int | None:
    """Return a metric of a source, summed; ``None`` if unknown because of an operator without a rule."""
    return ledger.total(metric, where, stage) if provides(ledger, metric, stage) else None


def known(ledger: Ledger, metric: Metric, stage: str | None = None, where: Where | None = None) -> int:
    """Return the known part of a metric's sum in a source, which is a lower bound."""
    inside = (n for n in ledger.nodes if stage in (None, n.stage) and (where is None or where(n)))
    return known_part(inside, metric)


def quantity(
    capture: Capture, metric: Metric, stage: str | None = None, where: Where | None = None, *, settled: bool
) -> KnownAmount:
    """Return the headline number of a metric in reports.

    Args:
        settled: the comparison ended exact or explained, so that the first source may speak for all.
    """
    speaking = [x for x in ledgers(capture) if provides(x, metric, stage) and (stage is not None or whole(capture, x))]
    if not speaking:
        return KnownAmount(None)
    said = [value(x, metric, stage, where) for x in speaking]
    if None in said:
        # The work inside an operator without a rule belongs to one implementation: a kernel may do less.
        whole_ones = [n for n in said if n is not None]
        return KnownAmount(None, max(whole_ones or [min(known(x, metric, stage, where) for x in speaking)]))
    return KnownAmount(said[0]) if settled or len(set(said)) == 1 else KnownAmount(None)


def add_known(*parts: KnownAmount) -> KnownAmount:
    """Return the sum of amounts; if an amount is unknown, only a lower bound."""
    total = exact_sum(p.value for p in parts)
    if total is not None:
        return KnownAmount(total)
    bounds = exact_sum(p.value if p.value is not None else p.at_least for p in parts)
    return KnownAmount(None, bounds)


def executed(ledger: Ledger, stage: str) -> frozenset[str]:
    """Return the modules of a stage whose own parameters this run reads."""
    metric: Metric = "weight_read_bytes" if provides(ledger, "weight_read_bytes") else "calls"
    return frozenset(n.module for n in ledger.nodes if n.stage == stage and n.invocation and n.cost(metric))


class Flat:
    """Dataclass whose ``costs`` are written to JSON as keys next to its fields.

    The hooks are pydantic's, which is not imported before something is written.
    """

    __slots__ = ()

    @classmethod
    def quantities(cls) -> tuple[str, ...]:
        """Return the metrics that ``costs`` may have, which are keys in the file."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic import WrapSerializer

        def flat(value: Any, dump: Any) -> Any:
            data = dump(value)
            return {**data.pop("costs"), **data}

        return WrapSerializer(flat).__get_pydantic_core_schema__(source, handler)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        found = handler({k: v for k, v in core.items() if k != "serialization"})
        schema = handler.resolve_ref_schema(found)
        number = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
        del schema["properties"]["costs"]
        schema["properties"] |= dict.fromkeys(cls.quantities(), number)
        schema["required"] = sorted({*cls.quantities(), *schema["required"]} - {"costs"})
        return found
