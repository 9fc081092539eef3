"""Build the tree of modules for the page of a capture, with equal layers folded into one row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from costproof.compare.patterns import expand, patterns
from costproof.ledger.callgraph import CallGraph, TensorAt
from costproof.ledger.capture import Capture
from costproof.ledger.metrics import METRICS, SUMMED, Metric
from costproof.ledger.node import CostNode, Ledger, exact_sum, total
from costproof.ledger.run import GRAPH_SOURCES
from costproof.views.numbers import first_names
from costproof.views.quantities import ledgers
from costproof.views.results import worst

if TYPE_CHECKING:
    from costproof.compare.findings import Finding
    from costproof.views.results import Results

_SHOWN = 3


def pattern(paths: Sequence[str]) -> str:
    """Return module paths as one pattern, ``model.layers.[0-11]`` or ``attn.{q,k,v}``; else the first few paths."""
    found = [text for text, _ in patterns(dict.fromkeys(paths))]
    if len(found) == 1:
        return found[0]
    rows = [text.split(".") for text in found]
    if len({len(r) for r in rows}) == 1:
        varying = [i for i, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1]
        if len(varying) == 1:
            at = varying[0]
            choice = "{" + ",".join(dict.fromkeys(r[at] for r in rows)) + "}"
            return ".".join([*rows[0][:at], choice, *rows[0][at + 1 :]])
    return first_names(found, _SHOWN)


def below(path: str, prefix: str) -> bool:
    """Return whether a module is at ``prefix`` or inside it; ``(root)`` contains everything."""
    return prefix == "(root)" or path == prefix or path.startswith(prefix + ".")


def natural(path: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts ``layers.10`` after ``layers.9``."""
    return tuple((0, int(p), "") if p.isdecimal() and p.isascii() else (1, 0, p) for p in path.split("."))


LABELS: Final = 3
"""Maximum number of graph node names that a row lists for each operator."""
SourceValues = dict[Metric, dict[str, int | None]]
"""Values by metric and source, for the sources that give the metric in the stage."""
TreeRow = dict[str, Any]


@dataclass(slots=True)
class _TreeNode:
    """A module of a stage, or a container of modules."""

    path: str
    children: dict[str, _TreeNode] = field(default_factory=dict)
    nodes: dict[str, list[CostNode]] = field(default_factory=lambda: defaultdict(list))
    """Cost nodes of this module, by source."""
    findings: list[int] = field(default_factory=list)
    own: SourceValues = field(default_factory=dict)
    sums: SourceValues = field(default_factory=dict)
    like: int = 0
    """Number of a class of modules that differ only in their paths."""


class ModuleRows:
    """All rows of the module tree on a report page, stage by stage, parents before children."""

    def __init__(self, found: Results, formulas: FormulaTable, boxes: dict[str, str]) -> None:
        """Build the rows of all stages.

        Args:
            formulas: takes up expressions, and returns their places in the table of formulas.
            boxes: module path -> id of its box in the picture of the callgraph.
        """
        self.rows: list[TreeRow] = []
        self._all = found.discrepancy.findings
        self._graph = found.capture.callgraph or CallGraph({}, {}, {}, {}, {})
        self._formulas, self._boxes = formulas, boxes
        self._likes: dict[object, int] = {}
        self._metrics = metrics_of(found.capture)
        for stage in found.capture.target.stages:
            here = [x for x in ledgers(found.capture) if stage in x.stages]
            self._gives = {m: tuple(x.source for x in here if m in x.metrics) for m in self._metrics}
            root = _grow_tree(stage, here, self._all)
            self._sum(root)
            self._emit(stage, [root], None, stage)

    def _sum(self, place: _TreeNode) -> None:
        for child in place.children.values():
            self._sum(child)
        carried = {m for nodes in place.nodes.values() for n in nodes for m in (*n.costs, *n.exprs)}
        for metric, sources in self._gives.items():
            said = {s: total(place.nodes.get(s, ()), metric) if metric in carried else 0 for s in sources}
            if any(v != 0 for v in said.values()):
                place.own[metric] = said
            if metric != "calls":  # a sum of calls over modules is meaningless
                parts = [c.sums[metric] for c in place.children.values() if metric in c.sums]
                sums = {s: exact_sum((said[s], *(p[s] for p in parts))) for s in sources}
                if any(v != 0 for v in sums.values()):
                    place.sums[metric] = sums
        key = (
            self._graph.module_types.get(place.path),
            tuple((m, tuple(v.items())) for m, v in place.own.items()),
            tuple((n.invocation, n.kind, n.owner, *sorted(n.exprs.items())) for n in place.nodes.get("analytic", ())),
            tuple((self._all[i].status, self._all[i].metric, self._all[i].kind) for i in place.findings),
            tuple((name, child.like) for name, child in place.children.items()),
        )
        place.like = self._likes.setdefault(key, len(self._likes))

    def _emit(self, stage: str, group: Sequence[_TreeNode], parent: int | None, name: str) -> list[int]:
        """Append a row for a group of equal modules, and rows for their children; return the ids of their findings."""
        families = _families(group)
        while parent is not None and not group[0].own and not group[0].findings and len(families) == 1:
            # A container that costs nothing has no row of its own.
            ((more, group),) = families.items()
            name, families = f"{name}.{more}", _families(group)
        me, first, many = len(self.rows), group[0], len(group)
        inputs, outputs = (_shapes(m.get(first.path or "(root)", ())) for m in self._metadata)
        row: TreeRow = {
            "parent": parent,
            "name": name,
            "stage": stage,
            "path": pattern([p.path for p in group]) if parent is not None else "",
            "n": many,
            "class": self._graph.module_types.get(first.path or "(root)", "") if parent is not None else "",
            "role": next((n.role for ns in first.nodes.values() for n in ns if n.role), ""),
            "box": self._boxes.get(first.path, ""),
            "own": {m: _merge_equal(v, many) for m, v in first.own.items()},
            "sum": {m: _merge_equal(v, many) for m, v in first.sums.items()},
            "in": inputs,
            "out": outputs,
            "made": dict(sorted(self._graph.constructor_params.get(first.path, {}).items())),
            "formulas": self._formulas.of(first.nodes.get("analytic", ())),
            "ops": [op for s in GRAPH_SOURCES for op in _operators(s, first.nodes.get(s, ()))],
        }
        self.rows.append(row)
        mine = [i for place in group for i in place.findings]
        below = [i for more, places in families.items() for i in self._emit(stage, places, me, more)]
        shown = dict.fromkeys(i for i in mine if self._all[i].status != "exact" or self._all[i].causes)
        every = [self._all[i] for i in (*mine, *below)]
        row |= {"findings": list(shown), "status": worst(every), "compared": len(set(mine))}
        row["metrics"] = {m: s for m in self._metrics if (s := worst([f for f in every if f.metric == m])) != "exact"}
        return [*mine, *below]

    @property
    def _metadata(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._graph.input_metadata, self._graph.output_metadata


def metrics_of(capture: Capture) -> tuple[Metric, ...]:
    """Return costproof's metrics that are sums over nodes, with those of communication if a source has them."""
    return tuple(m for m in SUMMED if m in METRICS or any(m in x.metrics for x in capture.ledgers))


class FormulaTable:
    """Table of the formulas on a page, to which rows refer by index."""

    def __init__(self) -> None:
        """Create an empty table."""
        self.places: dict[str, int] = {}

    def at(self, expression: str) -> int:
        """Return the index of a formula in the table; append it if it is new."""
        return self.places.setdefault(expression, len(self.places))

    def of(self, nodes: Iterable[CostNode]) -> list[list[object]]:
        """Return a row for each formula of a module: call, kind, owner, metric, index of its expression, value."""
        return [
            [n.invocation, n.kind, n.owner, m, self.at(e), n.cost(m)]
            for n in nodes
            for m, e in sorted(n.exprs.items())
            if m in SUMMED and not e.isdecimal()
        ]


def _grow_tree(stage: str, here: Sequence[Ledger], findings: Sequence[Finding]) -> _TreeNode:
    root = _TreeNode("")
    at = {"": root}

    def place(path: str) -> _TreeNode:
        found = at.get(path)
        if found is None:
            above, _, name = path.rpartition(".")
            found = at[path] = place(above).children.setdefault(name, _TreeNode(path))
        return found

    for ledger in here:
        for node in ledger.nodes:
            if node.stage == stage:
                place(node.module).nodes[ledger.source].append(node)
    for i, finding in enumerate(findings):
        if finding.stage == stage and finding.level in ("module", "judge"):
            for path in expand(finding.module):
                if path in at:
                    at[path].findings.append(i)
    return root


def _families(group: Sequence[_TreeNode]) -> dict[str, list[_TreeNode]]:
    """Return the children of a group of equal modules, by name, with equal numbered children in one group."""
    numbered: dict[tuple[str, int], list[str]] = {}
    for name, child in group[0].children.items():
        alike = ("", child.like) if name.isdecimal() and name.isascii() else (name, child.like)
        numbered.setdefault(alike, []).append(name)
    return {
        pattern(sorted(names, key=natural)): [place.children[name] for place in group for name in names]
        for names in numbered.values()
    }


def _merge_equal(values: dict[str, int | None], many: int) -> object:
    """Return a single number if all sources agree, else the number of each source."""
    scaled = {s: None if v is None else v * many for s, v in values.items()}
    return next(iter(scaled.values())) if len(set(scaled.values())) == 1 else scaled


def _operators(source: str, nodes: Iterable[CostNode]) -> list[list[object]]:
    """Return ``[source, call, operator, costs, first few node names, number of node names]`` for each operator."""
    return [
        [source, n.invocation, n.kind, dict(sorted(n.costs.items())), list(n.evidence[:LABELS]), len(n.evidence)]
        for n in nodes
        if n.kind
    ]


def _shapes(values: Iterable[object]) -> list[str]:
    """Return the inputs or outputs of a module's first call as text: ``args[0]: [1, 16, 4] bfloat16``."""
    return [
        f"{v.place}: [{', '.join(map(str, v.shape))}] {v.dtype}"
        for v in values
        if isinstance(v, TensorAt) and v.call == 1 and v.kind == "tensor"
    ]
