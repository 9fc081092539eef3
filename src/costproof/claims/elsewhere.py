"""The truth at other values of the workload's symbols, from the formulas of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from costproof.claims.items import nodes_of
from costproof.claims.types import TOTAL, Claim
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Invocation

TIED = {"L": "S", "P": "S"}
"""Symbols that follow another one where the workload gives both the same value: logits of every position,
decoding after the prompt."""


def calls_of(claim: Claim, capture: Capture) -> list[Invocation]:
    """The invocations that a claim is about."""
    return [
        i
        for i in capture.invocations
        if claim.stage in (TOTAL, i.stage) and (not claim.invocation or i.id == claim.invocation)
    ]


def symbolic(claim: Claim, ledger: Ledger) -> bool:
    """Whether the truth has a formula for all that the claim is about; without it, nothing is known elsewhere."""
    return all(claim.metric in n.exprs for n in nodes_of(ledger, claim, claim.metric))


def moved(
    claim: Claim, capture: Capture, ledger: Ledger, change: Callable[[Invocation], Mapping[str, int]]
) -> tuple[Capture, Ledger] | None:
    """Capture and ledger of the claim's stages with other symbols; ``None`` where some cost is no integer there."""
    calls = tuple(replace(i, symbols={**i.symbols, **change(i)}) for i in capture.invocations)
    nodes = tuple(n for n in ledger.nodes if claim.stage in (TOTAL, n.stage))
    values = {(i.stage, i.id): i.symbols for i in calls}
    try:
        there = evaluate_ledger(replace(ledger, nodes=nodes), values, capture.target.symbols)
    except BadInput:
        return None
    return replace(capture, invocations=calls), there
