"""What the graphs of one source add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from costproof.ledger.metrics import FVCORE, METRICS, Metric
from costproof.ledger.node import CostNode, UnknownOp
from costproof.ledger.run import RunOptions
from costproof.opgraph.active import active_elements
from costproof.opgraph.costed import Costed
from costproof.opgraph.merge import merge_nodes, merge_unknown
from costproof.opgraph.parameters import held_nodes
from costproof.opgraph.reuse import partly_read
from costproof.opgraph.steps import Step, over_steps


def graph_metrics(options: RunOptions) -> tuple[Metric, ...]:
    """What a graph can tell: every metric of ours, and those of the convention that is counted beside."""
    return (*METRICS, *FVCORE) if options.convention else tuple(METRICS)


@dataclass(slots=True)
class Tally:
    """Nodes and unknown operators of several graphs of one model, decode steps apart."""

    nodes: list[CostNode] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    unknown: list[UnknownOp] = field(default_factory=list)
    parameters: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Full name -> shape and dtype."""
    buffers: dict[str, int | None] = field(default_factory=dict)
    """Full name -> bytes that are not counted under another name."""
    active: dict[str, int | None] = field(default_factory=dict)
    """Full name -> elements that one token passes, where that is not all of them."""

    def add(
        self, costed: Costed, nodes: Iterable[CostNode], unknown: Iterable[UnknownOp], context: int | None = None
    ) -> None:
        """Add what one graph costs.

        Args:
            context: tokens in the cache before it, if it is one of several decode steps.
        """
        if context is None:
            self.nodes += nodes
        else:
            self.steps.append(Step(context, tuple(nodes), partly_read(costed)))
        self.unknown += unknown
        self.active |= active_elements(costed)

    def merge(self, other: Tally) -> None:
        """Add what another tally holds."""
        self.nodes += other.nodes
        self.steps += other.steps
        self.unknown += other.unknown
        self.parameters |= other.parameters
        self.buffers |= other.buffers
        self.active |= other.active

    def summed(self, new_tokens: int) -> tuple[tuple[CostNode, ...], tuple[str, ...]]:
        """All nodes, each once, with the sum over the decode steps; and notes where there is no such sum."""
        decode, bent = over_steps(self.steps, new_tokens)
        return merge_nodes((*self.nodes, *decode)), tuple(bent)

    def owned(self, stages: Callable[[str], Iterable[str]], owners: Mapping[str, str]) -> list[CostNode]:
        """Nodes of parameters and buffers, as of :func:`~costproof.opgraph.parameters.held_nodes`."""
        return held_nodes(self.parameters, self.buffers, stages, owners, self.active)

    def missing(self) -> tuple[UnknownOp, ...]:
        """Unknown operators, each stage, module and operator once."""
        return merge_unknown(self.unknown)
