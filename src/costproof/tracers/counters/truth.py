"""Our own count of exactly what a counter was given: a trace of the same cut, costed by the operator rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costproof.graph.account import account
from costproof.graph.costed import costed
from costproof.ledger.node import CostNode
from costproof.models.target import ExportJob, Run
from costproof.tracers.counters.surroundings import renamed
from costproof.tracers.torchlens_trace import trace_graph


def truth_nodes(job: ExportJob, args: Mapping[str, Any], place: tuple[str, str]) -> tuple[CostNode, ...]:
    """FLOPs and vector FLOPs of one cut by (module, operator).

    Raises:
        Incomplete: the cut cannot be traced, or an operator has no rule.
    """
    from costproof.ledger.errors import Incomplete

    run = Run(job.id, job.module, args, lambda path, call: place)
    found = account(costed(trace_graph(run).graph), lambda path, call: place)
    if found.unknown:
        raise Incomplete(
            "an operator of the model has no rule, so there is no truth to compare with",
            where=", ".join(sorted({o.op for o in found.unknown})),
            fix="give it a rule: see docs/extending.md",
        )
    return tuple(
        CostNode(*place, renamed(n.module, job.prefix), n.kind, dict(n.costs), owner=n.owner, evidence=n.evidence)
        for n in found.nodes
        if n.kind
    )
