"""Cost nodes and ledgers: what one source says, line by line.

A ledger is a flat list of nodes; the tree is in their ids. Totals are sums over the nodes and
nothing else, so a total can never disagree with its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from costproof.ledger.errors import BadInput, did_you_mean, no_such
from costproof.ledger.metrics import EVERY_METRIC, STAGE_WIDE, Metric
from costproof.ledger.notebook import NotebookRepr
from costproof.ledger.plural import plural


@dataclass(frozen=True, slots=True)
class CostNode:
    """One line of a ledger: what one module, or one kind of operator in it, costs.

    Metrics of the module as a whole (parameters, calls, bytes) sit on the node whose ``kind`` is
    empty; FLOPs sit on one node per operator kind, named as the source names it (``linear``,
    ``aten.linear``, ``scaled_dot_product_attention``). Stage-wide metrics have an empty
    ``invocation``.
    """

    stage: str
    """Part of the pipeline: ``prefill``, ``decode``, or what a target names so."""
    invocation: str
    """Which call of the stage: ``prompt``, ``steps``; empty for stage-wide metrics."""
    module: str
    """Path of the module from the root of the model, as ``named_modules`` gives it; empty for the root."""
    kind: str
    """Operator kind in the source's own words; empty for metrics of the module as a whole."""
    costs: dict[Metric, int | None]
    """Exact integers; ``None`` is unknown and never means zero."""
    exprs: dict[Metric, str] = field(default_factory=dict)
    """The same quantities in symbols, as canonical text, where the source is symbolic."""
    owner: str = ""
    """What gave the numbers: a formula's name (analytic) or the module's class (graph sources)."""
    evidence: tuple[str, ...] = ()
    """Names of the graph nodes or traced operators behind the numbers."""
    role: str = ""
    """What part of a model the module is, in words that no implementation chooses: ``text.layer.mlp.gate``;
    empty where the source does not know."""

    @property
    def id(self) -> str:
        """Identity across sources, but for the name of the operator kind: ``stage[invocation]/module:kind``."""
        call = f"[{self.invocation}]" if self.invocation else ""
        return f"{self.stage}{call}/{self.module or '(root)'}{':' + self.kind if self.kind else ''}"

    def cost(self, metric: Metric) -> int | None:
        """The metric: 0 where it does not concern the node, ``None`` where it is unknown or in symbols alone."""
        return self.costs.get(metric, None if metric in self.exprs else 0)


_SHOWN: Final = 3

NO_RULE: Final = "no rule for this operator"
"""Why an operator without a cost rule is unknown; its user may give it one."""


@dataclass(frozen=True, slots=True)
class UnknownOp:
    """An operator that computes and has no rule: the reason why a capture is incomplete."""

    op: str
    stage: str
    module: str
    count: int
    bound_flops: int | None
    """An upper bound of what is missing, where a rule knows one."""
    why: str


def unknown_clause(ops: Sequence[UnknownOp]) -> str:
    """``2 calls in layers.0.mlp, at most 32,768 FLOP``, of unknown calls of one operator."""
    calls = sum(o.count for o in ops)
    modules = list(dict.fromkeys(o.module or "(root)" for o in ops))
    more = f" and {plural(len(modules) - _SHOWN, 'more module')}" if len(modules) > _SHOWN else ""
    bound = exact_sum(o.bound_flops for o in ops)
    return f"{plural(calls, 'call')} in {', '.join(modules[:_SHOWN])}{more}, {at_most(bound)}"


def at_most(bound: int | None) -> str:
    """``at most 32,768 FLOP``, of what is unknown."""
    return "no bound of its FLOPs" if bound is None else f"at most {bound:,} FLOP"


def rule_wanted(ops: Iterable[UnknownOp]) -> str | None:
    """What their user has to write for operators without a rule; ``None`` if none of them lacks one."""
    names = sorted({o.op for o in ops if o.why == NO_RULE})
    if not names:
        return None
    return (
        f'give it a rule: a function with @costproof.operator_rule("{names[0]}") in a file, and --rules FILE; '
        "see docs/extending.md"
    )


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Ledger(NotebookRepr):
    """All that one source says about one target at one workload."""

    source: str
    nodes: tuple[CostNode, ...]
    metrics: tuple[Metric, ...]
    """The metrics that this source can give at all; the others are not zero but absent."""
    stages: tuple[str, ...]
    """The stages that this source covers."""
    unknown_ops: tuple[UnknownOp, ...] = ()
    notes: tuple[str, ...] = ()
    conventions: dict[str, str] = field(default_factory=dict)
    """Where this source departs from the conventions of the capture: ``{"unit": "mac"}``. The comparer
    brings such numbers together; nothing else may explain a difference as one of convention."""
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    """``stage[invocation]`` -> symbol -> its value by the shapes of what goes in, which no formula has a part in."""
    bounds: bool = False
    """Whether nodes have the metrics of :data:`~costproof.ledger.metrics.OF_BOUNDS`, where they are not 0."""

    def __repr__(self) -> str:
        """One line: a notebook must not print a thousand nodes."""
        return f"Ledger({self.source}: {plural(len(self.nodes), 'node')}, {plural(len(self.stages), 'stage')})"

    def without(self, left: Collection[Metric]) -> Ledger:
        """The same where the source does not give these metrics."""

        def kept(node: CostNode) -> CostNode:
            costs = {m: cost for m, cost in node.costs.items() if m not in left}
            return replace(node, costs=costs, exprs={m: text for m, text in node.exprs.items() if m not in left})

        metrics = tuple(m for m in self.metrics if m not in left)
        return replace(self, nodes=tuple(map(kept, self.nodes)), metrics=metrics)

    def hides(self, metric: Metric, stage: str | None = None) -> bool:
        """Whether an operator without a rule, in any stage or in one, leaves a sum of the metric open."""
        of_operators = metric != "calls" and metric not in STAGE_WIDE
        return of_operators and any(stage in (None, op.stage) for op in self.unknown_ops)

    def total(
        self, metric: Metric, where: Callable[[CostNode], bool] | None = None, stage: str | None = None
    ) -> int | None:
        """:func:`total` over the nodes that ``where`` picks, of all stages or of one.

        ``None`` for a metric that the source does not give, and where an operator without a rule leaves it open:
        :func:`known_part` is what is known then.

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
        """:meth:`total` over one stage, or over one invocation of it.

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


def bearing(nodes: Iterable[CostNode], metric: Metric) -> list[CostNode]:
    """The nodes that a metric concerns, as a sum takes them.

    A stage-wide metric belongs to the module: a module that works in two stages (a decoder in ``prefill`` and
    in ``decode``) is there once.
    """
    found = [n for n in nodes if metric in n.costs or metric in n.exprs]
    return list({n.module: n for n in found}.values()) if metric in STAGE_WIDE else found


def total(nodes: Iterable[CostNode], metric: Metric) -> int | None:
    """The sum of a metric over nodes: the only one there is.

    A node without the metric is not concerned, ``None`` is unknown and makes the sum unknown, 0 is zero.
    """
    return exact_sum(n.cost(metric) for n in bearing(nodes, metric))


def known_part(nodes: Iterable[CostNode], metric: Metric) -> int:
    """What is known of :func:`total`: a lower bound where some of it is unknown."""
    return sum(n.cost(metric) or 0 for n in bearing(nodes, metric))


def exact_sum(values: Iterable[int | None]) -> int | None:
    """The sum, or ``None`` as soon as one value is unknown."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
