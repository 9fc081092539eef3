"""The quantities that a report shows: the metrics, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from costproof.ledger.metrics import METRICS, STAGE_WIDE, TRAFFIC, Metric, MetricInfo
from costproof.ledger.node import CostNode, Ledger, exact_sum
from costproof.reports.values import Quantity, added

Costs = dict[str, int | None]
"""Quantity -> number; ``None`` is unknown or disputed."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How a quantity is called, its unit, and the metrics that it is made of."""

    title: str
    unit: str
    of: tuple[Metric, ...]


TOTAL: Final = "total"
"""What stands for all stages together, where one is named."""
_DERIVED: Final[dict[str, Shown]] = {
    "params_executed": Shown("parameters of modules that this run reads", "elements", ("params",)),
    "macs": Shown("multiply-accumulates", "MAC", ("flops",)),
    "io_bytes": Shown("bytes read and written", "bytes", TRAFFIC),
    "activation_bytes": Shown("", "bytes", ("output_bytes",)),
}
"""``activation_bytes`` is another name of ``output_bytes`` in files, and has no row of its own."""

METRICS_SHOWN: Final[tuple[Metric, ...]] = tuple(m for m, i in METRICS.items() if i.unit != "calls")
"""Calls are of a module: their sum over modules says nothing."""
PER_CALL: Final[tuple[Metric, ...]] = tuple(m for m in METRICS_SHOWN if not METRICS[m].stage_wide)
SHOWN: Final[dict[str, Shown]] = {
    name: shown
    for metric in METRICS_SHOWN
    for name, shown in (
        (metric, Shown(METRICS[metric].title, METRICS[metric].unit, (metric,))),
        *((n, d) for n, d in _DERIVED.items() if d.of[-1] == metric),
    )
}
"""In the order of tables: what follows from metrics stands behind the last of them."""
UNITS: Final = {"bytes": "B", "FLOP": "FLOP", "MAC": "MAC"}
"""Units as they stand behind a number; elements have none."""


def with_derived(found: Mapping[Metric, Quantity], executed: int | None) -> dict[str, Quantity]:
    """The quantities of some metrics, and those that follow from them.

    Args:
        executed: elements of the parameters that this run reads.
    """
    half = found["flops"].value
    return {
        **found,
        "params_executed": Quantity(executed),
        "macs": Quantity(half // 2 if half is not None and half % 2 == 0 else None),
        "io_bytes": added(*(found[m] for m in _DERIVED["io_bytes"].of)),
        "activation_bytes": Quantity(found["output_bytes"].value),
    }


EXPLAINED: Final[dict[str, MetricInfo]] = {
    **METRICS,
    **{
        name: MetricInfo(d.unit, False, d.title or name, " + ".join(d.of) + (" / 2" if d.unit == "MAC" else ""))
        for name, d in _DERIVED.items()
        if d.of[0] not in STAGE_WIDE
    },
}
"""The quantities that are made of formulas alone. Which parameters a run reads, a formula does not say."""


def with_quantity(ledger: Ledger, name: str) -> Ledger:
    """A ledger of which each node carries a quantity that follows from its metrics."""
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


class Flat:
    """A dataclass whose ``costs`` are written as keys beside the others, each with its type in the schema.

    The hooks are pydantic's, which is not imported before something is written.
    """

    __slots__ = ()

    @classmethod
    def quantities(cls) -> tuple[str, ...]:
        """The keys of ``costs``."""
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
