"""Align the sources of a capture into rows, each with one quantity of one module in all sources.

There is one row per (stage, invocation, module, metric), for FLOPs and MACs also per operator kind. A source takes part
in a row if it covers the stage and the metric; it has the value 0 if it has no node there. Within a module, the kinds
of the sources are matched as finely as their names allow. Vector work has one row per module, and a further row for
each kind in which a formula and a graph differ.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import RLock
from typing import Final

from costproof.compare.kinds import CARRIED_OUT_BY_MATMUL, GENERIC, kind_of, nearest, operators
from costproof.ledger.metrics import (
    EVERY_METRIC,
    KEPT_FLOPS,
    OF_BOUNDS,
    OF_FORMATS,
    SKIPPABLE,
    SPARED,
    SPARED_AT_FLOOR,
    STAGE_WIDE,
    UNPACKED,
    Metric,
)
from costproof.ledger.node import CostNode, Ledger, bearing, exact_sum
from costproof.ledger.run import ALL_SOURCES, GRAPH_SOURCES

_ORDER: Final = (*EVERY_METRIC, *OF_BOUNDS)


@dataclass(frozen=True, slots=True)
class AlignedCell:
    """The value of one quantity of one module in one source, with the operators that contribute to it."""

    value: int | None
    exprs: tuple[str, ...] | None
    """Expressions that sum to the value; ``None`` if a summand has no expression in this source."""
    kinds: tuple[tuple[str, int | None], ...] = ()
    """Operator names as the source spells them, each with its share of the value."""
    ids: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    owner: str = ""


NOTHING = AlignedCell(0, ())


@dataclass(frozen=True, slots=True)
class AlignedRow:
    """One quantity of one module in all sources that count it."""

    stage: str
    invocation: str
    module: str
    kind: str
    metric: Metric
    cells: dict[str, AlignedCell]
    role: str = ""
    """Role of the module in the model according to the formulas: ``text.layer.mlp``; empty without a formula."""

    @property
    def tower(self) -> str:
        """Return the tower (submodel) of the module, which is also the prefix of the tower's symbols: ``text``."""
        return self.role.partition(".")[0]


Spot = tuple[str, str, str]
"""(stage, invocation, module)."""


def order(sources: Iterable[str]) -> tuple[str, ...]:
    """Return the sources in the order in which reports show them and comparisons use them."""
    present = list(sources)
    return tuple(s for s in ALL_SOURCES if s in present) + tuple(sorted(s for s in present if s not in ALL_SOURCES))


AlignedTable = dict[tuple[Metric, Spot], dict[str, AlignedCell]]
"""Cells of one ledger, by (metric, module in a call) and by the operator kind that all sources share."""


def gives(ledger: Ledger, metric: Metric) -> bool:
    """Return whether a source counts a metric, so that nodes without a value for the metric have the value 0.

    Only graphs have bytes that a run need not move, and only sources that count kept FLOPs separate them from others
    that can be skipped.
    """
    if metric not in OF_BOUNDS:
        return metric in ledger.metrics
    of_graph = ledger.source in GRAPH_SOURCES
    known = {SPARED: of_graph, SPARED_AT_FLOOR: of_graph, SKIPPABLE: KEPT_FLOPS in ledger.metrics}
    return ledger.bounds and known.get(metric, True)


def bound_metrics(dtype: str, ledgers: Iterable[Ledger]) -> tuple[Metric, ...]:
    """Return the metrics of time bounds that are compared between ledgers.

    FLOPs in the dtype of the run are left out, and for a quantised checkpoint those in dtypes of its format: models run
    unquantised, so that only formulas have its arithmetic.
    """
    quantised = any(UNPACKED in node.exprs or UNPACKED in node.costs for ledger in ledgers for node in ledger.nodes)
    left_out = {f"{dtype}_flops", *(OF_FORMATS if quantised else ())}
    return tuple(metric for metric in OF_BOUNDS if metric not in left_out)


def align(ledgers: Sequence[Ledger], metrics: Collection[Metric] = EVERY_METRIC) -> list[AlignedRow]:
    """Return the aligned rows of these metrics, in the order of the first source that has them."""
    by_source = {x.source: x for x in ledgers}
    sources = order(by_source)
    tables = {s: _table(by_source[s]) for s in sources}
    roles = {n.module: n.role for x in ledgers for n in x.nodes if n.role}
    rows: list[AlignedRow] = []
    for metric, spot in dict.fromkeys(key for source in sources for key in tables[source]):
        if metric not in metrics:
            continue
        parts = {
            s: tables[s].get((metric, spot), {})
            for s in sources
            if gives(by_source[s], metric) and spot[0] in by_source[s].stages
        }
        for kind, cells in _match(metric, parts):
            if any(c.value != 0 for c in cells.values()):
                rows.append(AlignedRow(*spot, kind, metric, cells, roles.get(spot[2], "")))
                rows += _of_other_kinds(rows[-1])
    return rows


def _of_other_kinds(row: AlignedRow) -> list[AlignedRow]:
    """Return rows for kinds of vector work that differ between formula and graphs although their sums agree."""
    formula = row.cells.get("analytic")
    if row.metric != "vector_flops" or formula is None or not formula.value:
        return []
    mine = dict(operators(formula.kinds))
    sides = {
        source: nearest(mine, operators(cell.kinds)) if source != "analytic" else mine
        for source, cell in row.cells.items()
        if cell.value == formula.value and cell.kinds
    }
    kinds = dict.fromkeys(kind for side in sides.values() for kind in side)
    cells = {
        kind: {source: _of_kind(row.cells[source], kind, side) for source, side in sides.items()} for kind in kinds
    }
    return [
        replace(row, kind=kind, cells=found)
        for kind, found in cells.items()
        if len({cell.value for cell in found.values()}) > 1
    ]


def _of_kind(cell: AlignedCell, kind: str, side: Mapping[str, int]) -> AlignedCell:
    """Return a cell with the amount of one kind of vector work in a source's cell; 0 if the source has none."""
    return AlignedCell(side.get(kind, 0), None, cell.kinds, cell.ids, cell.labels, cell.owner)


_MOST_TABLES: Final = 8
_tables: dict[int, tuple[weakref.ref[Ledger], AlignedTable]] = {}
_tables_lock: Final = RLock()  # a reference may die, and its entry go, in a thread that holds it


def _table(ledger: Ledger) -> AlignedTable:
    """Return the table of a ledger's cells, memoized for the last few ledgers while they are alive.

    Benchmarks that plant errors compare hundreds of modified ledgers with the same unmodified ones.
    """
    key = id(ledger)
    with _tables_lock:
        known = _tables.pop(key, None)
        if known is not None and known[0]() is ledger:
            _tables[key] = known  # the last one used is the last one dropped
            return known[1]
    table = _build_table(ledger)

    def forget(dead: weakref.ref[Ledger]) -> None:
        with _tables_lock:
            if key in _tables and _tables[key][0] is dead:
                del _tables[key]

    with _tables_lock:
        _tables[key] = weakref.ref(ledger, forget), table
        while len(_tables) > _MOST_TABLES:
            del _tables[next(iter(_tables))]
    return table


def _build_table(ledger: Ledger) -> AlignedTable:
    """Build the table of a ledger's cells; nodes of the same kind are summed."""
    found: dict[tuple[Metric, Spot], dict[str, list[CostNode]]] = {}
    for node in ledger.nodes:
        for metric in (m for m in _ORDER if m in node.costs):  # the order of a dict is lost in a file
            spot = (node.stage, "" if metric in STAGE_WIDE else node.invocation, node.module)
            kind = kind_of(node.kind) if metric in EVERY_METRIC and EVERY_METRIC[metric].by_kind else ""
            found.setdefault((metric, spot), {}).setdefault(kind, []).append(node)
    return {
        key: {kind: merge([_cell(key[0], n) for n in bearing(nodes, key[0])]) for kind, nodes in kinds.items()}
        for key, kinds in found.items()
        if gives(ledger, key[0])
    }


def _cell(metric: Metric, node: CostNode) -> AlignedCell:
    value, expr = node.cost(metric), node.exprs.get(metric)
    kinds = ((node.kind, value),) if node.kind else ()
    return AlignedCell(value, None if expr is None else (expr,), kinds, (node.id,), node.evidence, node.owner)


def merge(cells: Sequence[AlignedCell]) -> AlignedCell:
    """Merge the cells of several operator kinds in one module and source into one cell, with their values summed."""
    if len(cells) == 1:
        return cells[0]
    if not cells:
        return NOTHING
    return AlignedCell(
        value=exact_sum(c.value for c in cells),
        exprs=None if any(c.exprs is None for c in cells) else tuple(t for c in cells for t in c.exprs or ()),
        kinds=tuple(k for c in cells for k in c.kinds),
        ids=tuple(i for c in cells for i in c.ids),
        labels=tuple(x for c in cells for x in c.labels),
        owner=next((c.owner for c in cells if c.owner), ""),
    )


CellsBySource = Mapping[str, Mapping[str, AlignedCell]]
"""Cells of one module and metric, by source and by the operator kind that all sources share."""


def _match(metric: Metric, parts: CellsBySource) -> list[tuple[str, dict[str, AlignedCell]]]:
    """Match the operator kinds of all sources as finely as possible; return (kind, cells by source) per match."""
    kinds: list[str] = list(dict.fromkeys(k for cells in parts.values() for k in cells))
    present = {k: {s for s in parts if k in parts[s] and parts[s][k].value != 0} for k in kinds}
    kinds = [k for k in kinds if present[k]]
    if metric not in ("flops", KEPT_FLOPS) or len(parts) < 2:
        return [(k, _cells(parts, (k,))) for k in kinds]
    shared = [k for k in kinds if len(present[k]) == len(parts)]
    if (
        GENERIC in shared
        and not _agree(parts, (GENERIC,))
        and not CARRIED_OUT_BY_MATMUL.isdisjoint({*kinds} - {*shared})
    ):
        # In one source a matrix product is just that; in another it also carries out a kind that is missing there.
        shared.remove(GENERIC)
    odd = [k for k in kinds if k not in shared]
    return [(k, _cells(parts, (k,))) for k in shared] + [
        ("+".join(k for k in group if k != GENERIC) or GENERIC, _cells(parts, group))
        for group in _groups(parts, present, odd)
    ]


def _groups(parts: CellsBySource, present: Mapping[str, set[str]], odd: Sequence[str]) -> list[tuple[str, ...]]:
    """Group the operator kinds that only some sources have, so that each group represents the same work in all sources.

    Only a generic matrix product can represent another kind. It is grouped with the kinds that its sources lack; if
    the numbers agree only when all kinds are grouped together, they are.
    """
    specific = [k for k in odd if k in CARRIED_OUT_BY_MATMUL]
    rest = [(k,) for k in odd if k not in specific and k != GENERIC]
    if GENERIC not in odd or not specific:
        return [(k,) for k in odd]
    everything = (*specific, GENERIC)
    lacking = tuple(k for k in specific if not present[k] & present[GENERIC])
    fitting = (*(k for k in lacking if _agree(parts, (k, GENERIC))),)[:1]
    for taken in (fitting, lacking):
        if taken and _agree(parts, (*taken, GENERIC)):
            return [(*taken, GENERIC), *((k,) for k in specific if k not in taken), *rest]
    if _agree(parts, everything) or not lacking:
        return [everything, *rest]
    return [(*lacking, GENERIC), *((k,) for k in specific if k not in lacking), *rest]


def _agree(parts: CellsBySource, group: Sequence[str]) -> bool:
    return len({c.value for c in _cells(parts, group).values()}) == 1


def _cells(parts: CellsBySource, group: Sequence[str]) -> dict[str, AlignedCell]:
    return {s: merge([cells[k] for k in group if k in cells]) for s, cells in parts.items()}
