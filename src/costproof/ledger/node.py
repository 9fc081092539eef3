"""Define cost nodes, and ledgers, which hold the counts of one source.

A ledger is a flat list of nodes; the tree is in their ids. Totals are sums over the nodes, so a total can never
disagree with its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from costproof.ledger.errors import BadInput, Incomplete, did_you_mean, no_such
from costproof.ledger.metrics import EVERY_METRIC, STAGE_WIDE, Metric
from costproof.ledger.notebook import NotebookRepr
from costproof.ledger.plural import plural


@dataclass(frozen=True, slots=True)
class CostNode:
    """One row of a ledger: the costs of a module, or of one operator kind in it.

    Metrics of the whole module (parameters, calls, bytes) are on the node with an empty ``kind``; FLOPs are on one node
    per operator kind, named as the source names it (``linear``, ``aten.linear``, ``scaled_dot_product_attention``).
    Stage-wide metrics have an empty ``invocation``.
    """

    stage: str
    """Part of the pipeline: ``prefill``, ``decode``, or a stage of the target."""
    invocation: str
    """Call of the stage: ``prompt``, ``steps``; empty for stage-wide metrics."""
    module: str
    """Path of the module as in ``named_modules`` of the root; empty for the root."""
    kind: str
    """Operator kind as the source names it; empty for metrics of the whole module."""
    costs: dict[Metric, int | None]
    """Exact integers by metric; ``None`` is unknown, never zero."""
    exprs: dict[Metric, str] = field(default_factory=dict)
    """The same metrics as canonical expressions in symbols, if the source is symbolic."""
    owner: str = ""
    """Origin of the numbers: name of the formula (analytic) or class of the module (graph sources)."""
    evidence: tuple[str, ...] = ()
    """Names of the graph nodes or traced operators that were counted."""
    role: str = ""
    """Function of the module in the model, independent of implementations: ``text.layer.mlp.gate``.

    Empty if the source does not know it.
    """

    @property
    def id(self) -> str:
        """Return the id ``stage[invocation]/module:kind``, equal in all sources except for the kind."""
        call = f"[{self.invocation}]" if self.invocation else ""
        return f"{self.stage}{call}/{self.module or '(root)'}{':' + self.kind if self.kind else ''}"

    def cost(self, metric: Metric) -> int | None:
        """Return the value of a metric: 0 if the node lacks the metric, ``None`` if unknown or only symbolic."""
        return self.costs.get(metric, None if metric in self.exprs else 0)

    def with_costs(self, costs: dict[Metric, int | None], exprs: dict[Metric, str]) -> CostNode:
        """Return the node with other costs, three times as fast as ``dataclasses.replace``."""
        return CostNode(
            self.stage, self.invocation, self.module, self.kind, costs, exprs, self.owner, self.evidence, self.role
        )


_SHOWN: Final = 3

NO_RULE: Final = "no rule for this operator"
"""Reason of an unknown cost: the operator has no cost rule, which users can add."""
NO_FORMULA: Final = "torch has no formula for this operator"
"""Reason of a missing count by torch's FLOP counter, the second judge: torch has no formula."""


@dataclass(frozen=True, slots=True)
class UnknownOp:
    """An operator that does work of unknown cost, which makes a capture incomplete."""

    op: str
    stage: str
    module: str
    count: int
    bound_flops: int | None
    """Upper bound of the unknown FLOPs, if a rule gives one."""
    why: str


def unknown_clause(ops: Sequence[UnknownOp]) -> str:
    """Describe calls of an operator with unknown cost: ``2 calls in layers.0.mlp, at most 32,768 FLOP``."""
    calls = sum(o.count for o in ops)
    modules = list(dict.fromkeys(o.module or "(root)" for o in ops))
    more = f" and {plural(len(modules) - _SHOWN, 'more module')}" if len(modules) > _SHOWN else ""
    bound = exact_sum(o.bound_flops for o in ops)
    return f"{plural(calls, 'call')} in {', '.join(modules[:_SHOWN])}{more}, {at_most(bound)}"


def at_most(bound: int | None) -> str:
    """Return ``at most 32,768 FLOP`` for the upper bound of an unknown cost."""
    return "no bound of its FLOPs" if bound is None else f"at most {bound:,} FLOP"


def rule_wanted(ops: Iterable[UnknownOp]) -> str | None:
    """Return how to add a rule for operators that lack one; ``None`` if every operator has a rule."""
    names = sorted({o.op for o in ops if o.why == NO_RULE})
    if not names:
        return None
    return (
        f'give it a rule: a function with @costproof.operator_rule("{names[0]}") in a file, and --rules FILE; '
        "see docs/extending.md"
    )


@dataclass(frozen=True, slots=True)
class StatedDifference:
    """A known difference between a source and others in one module, with a reason that the source states."""

    module: str
    metric: Metric
    why: str
    amount: int
    """Value in this source minus value in the others."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Ledger(NotebookRepr):
    """All counts of one source for one target and workload."""

    source: str
    nodes: tuple[CostNode, ...]
    metrics: tuple[Metric, ...]
    """Metrics that the source counts; all others are absent, not zero."""
    stages: tuple[str, ...]
    """Stages that the source counts."""
    unknown_ops: tuple[UnknownOp, ...] = ()
    notes: tuple[str, ...] = ()
    conventions: dict[str, str] = field(default_factory=dict)
    """Deviations from the conventions of the capture, such as ``{"unit": "mac"}``.

    The comparison converts such numbers; nothing else may explain a difference as one of convention.
    """
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Symbol values according to the shapes of the inputs, independent of formulas, by ``stage[invocation]``."""
    bounds: bool = False
    """Whether nodes have the metrics of :data:`~costproof.ledger.metrics.OF_BOUNDS`, where not 0."""
    attributes_bytes: int = 0
    """Bytes of tensors that are plain attributes of modules, not parameters or buffers, if at least 1 MB."""
    differences: tuple[StatedDifference, ...] = ()
    """Known differences from a checkpoint's derived layout: of its headers, and of what a run loads; else empty."""

    def __repr__(self) -> str:
        """Return a summary in one line, since a notebook must not print a thousand nodes."""
        return f"Ledger({self.source}: {plural(len(self.nodes), 'node')}, {plural(len(self.stages), 'stage')})"

    def without(self, left: Collection[Metric]) -> Ledger:
        """Return the ledger without the given metrics."""
        gone = frozenset(left)
        if not gone:
            return self

        def kept(node: CostNode) -> CostNode:
            if gone.isdisjoint(node.costs) and gone.isdisjoint(node.exprs):
                return node
            costs = {m: cost for m, cost in node.costs.items() if m not in gone}
            return replace(node, costs=costs, exprs={m: text for m, text in node.exprs.items() if m not in gone})

        metrics = tuple(m for m in self.metrics if m not in gone)
        return replace(self, nodes=tuple(map(kept, self.nodes)), metrics=metrics)

    def hides(self, metric: Metric, stage: str | None = None) -> bool:
        """Return whether an unknown operator makes the sum of a metric unknown, in one stage or in any."""
        of_operators = metric != "calls" and metric not in STAGE_WIDE
        return of_operators and any(stage in (None, op.stage) for op in self.unknown_ops)

    def total(
        self, metric: Metric, where: Callable[[CostNode], bool] | None = None, stage: str | None = None
    ) -> int | None:
        """Return a metric summed over the nodes that ``where`` selects, of all stages or of one.

        Returns ``None`` for a metric that the source does not give, and if an unknown operator leaves the sum open;
        :func:`known_part` is then a lower bound.

        Raises:
            BadInput: there is no such metric.
        """
        if metric not in EVERY_METRIC:
            raise no_such("metric", metric, EVERY_METRIC)
        if metric not in self.metrics or self.hides(metric, stage):
            return None
        picked = (n for n in self.nodes if stage in (None, n.stage) and (where is None or where(n)))
        return total(picked, metric)

    def stage_total(self, stage: str, metric: Metric, invocation: str | None = None) -> int | None:
        """Return a metric summed over a stage, or over one invocation of the stage.

        Raises:
            BadInput: the source does not cover the stage, or there is no such metric.
        """
        if stage not in self.stages:
            raise BadInput(
                f"the {self.source} ledger does not cover this stage",
                where=stage,
                expected="one of " + ", ".join(self.stages),
                fix=did_you_mean(stage, self.stages),
            )
        return self.total(metric, lambda n: invocation in (None, n.invocation), stage)


def not_given(metric: Metric, source: str, *, where: str, fix: str | None = None) -> Incomplete:
    """Return the error that a source does not count a metric, so that missing numbers are unknown and not 0."""
    return Incomplete(f"the {source} ledger leaves this metric unknown", where=where, got=metric, fix=fix)


def bearing(nodes: Iterable[CostNode], metric: Metric) -> list[CostNode]:
    """Return the nodes that have a metric, each module once for stage-wide metrics.

    A module that works in two stages (a decoder in ``prefill`` and in ``decode``) owns its parameters once.
    """
    found = [n for n in nodes if metric in n.costs or metric in n.exprs]
    return list({n.module: n for n in found}.values()) if metric in STAGE_WIDE else found


def total(nodes: Iterable[CostNode], metric: Metric) -> int | None:
    """Return a metric summed over nodes; all totals use this function.

    A node without the metric is not concerned, ``None`` is unknown and makes the sum unknown, 0 is zero.
    """
    return exact_sum(n.cost(metric) for n in bearing(nodes, metric))


def known_part(nodes: Iterable[CostNode], metric: Metric) -> int:
    """Return a metric summed over its known values, a lower bound of :func:`total` if some are unknown."""
    return sum(n.cost(metric) or 0 for n in bearing(nodes, metric))


def exact_sum(values: Iterable[int | None]) -> int | None:
    """Return the sum of integers, or ``None`` if any of them is unknown."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
