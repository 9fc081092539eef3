"""What the ledgers say about the modules of a callgraph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from costproof.ledger.capture import Capture
from costproof.ledger.metrics import STAGE_WIDE, Metric
from costproof.ledger.node import exact_sum

ROOT: Final = "(root)"
_SOURCES: Final = ("dynamic", "static", "analytic")
"""Where a number is taken from: the first that gives it. The run comes first, as the callgraph is of a run."""

Table = Mapping[str, int | None]
"""Module -> number; ``None`` is unknown."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Numbers per module, of the whole capture or of one stage."""

    modules: frozenset[str]
    """Modules that the ledgers know there."""
    work: Table
    """FLOPs that a module itself does."""
    params_inside: Table | None
    """Parameters of a module and all inside it; ``None`` if no source counts them."""
    flops_inside: Table | None

    def params(self, instances: Sequence[str]) -> int | None:
        """Elements of parameters in the modules and all inside them."""
        return _over(self.params_inside, instances)

    def flops(self, instances: Sequence[str]) -> int | None:
        """Matmul-like FLOPs of the modules and all inside them."""
        return _over(self.flops_inside, instances)

    def owns_work(self, instances: Sequence[str]) -> bool:
        """Whether the modules themselves do matmul-like work. Unknown work counts as some."""
        return any(self.work.get(p, 0) != 0 for p in instances)


def costs_of(capture: Capture, stage: str | None) -> Costs:
    """Numbers of all stages, or of one."""
    rows = [n for x in capture.ledgers if x.source in _SOURCES for n in x.nodes if stage in (None, n.stage)]
    params, flops = _own(capture, "params", stage), _own(capture, "flops", stage)
    return Costs(
        modules=frozenset(n.module or ROOT for n in rows),
        work=flops or {},
        params_inside=None if params is None else _inside(params),
        flops_inside=None if flops is None else _inside(flops),
    )


def _own(capture: Capture, metric: Metric, stage: str | None) -> dict[str, int | None] | None:
    """The metric of each module alone, from the first source that gives it."""
    speaking = (x for s in _SOURCES for x in capture.ledgers if x.source == s and metric in x.metrics)
    ledger = next(speaking, None)
    if ledger is None:
        return None
    found: dict[str, int | None] = {}
    for node in ledger.nodes:
        if metric in node.costs and stage in (None, node.stage):
            module, value = node.module or ROOT, node.costs[metric]
            # A module that works in two stages has its parameters once.
            found[module] = value if metric in STAGE_WIDE else exact_sum((found.get(module, 0), value))
    if metric == "flops":
        found |= {op.module or ROOT: None for op in ledger.unknown_ops if stage in (None, op.stage)}
    return found


def _inside(own: Mapping[str, int | None]) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for module, value in own.items():
        for around in (ROOT, *([] if module == ROOT else _upwards(module))):
            found[around] = exact_sum((found.get(around, 0), value))
    return found


def _over(table: Table | None, instances: Sequence[str]) -> int | None:
    if table is None:
        return None
    chosen = set(instances)
    outer = [p for p in chosen if p == ROOT or not (chosen & {ROOT, *list(_upwards(p))[1:]})]
    return exact_sum(table.get(p, 0) for p in outer)


def _upwards(path: str) -> Iterable[str]:
    """The path and every path around it."""
    while path:
        yield path
        path = path.rpartition(".")[0]
