"""What claims are checked against, here and at other values of the workload's symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from costproof.claims.catalogue import STATED, effects
from costproof.claims.effects import Effect, Mistakes
from costproof.claims.items import Item, items_of, nodes_of, shared_symbols
from costproof.claims.types import TOTAL, Amount, Claim
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import Invocation

TIED = {"L": "S", "P": "S"}
"""Symbols that follow another one where the workload gives both the same value: logits of every position,
decoding after the prompt."""

Name = tuple[str, str]
"""A cause, and the other one that its form depends on."""


@dataclass(frozen=True)
class Anatomy:
    """The items of a claim, and all causes that can change it."""

    items: tuple[Item, ...]
    effects: tuple[Effect, ...]

    def stated(self, claim: Claim) -> tuple[Effect, ...]:
        """The causes that the claim states itself as its conventions."""
        names = {STATED[k, v] for k, v in claim.conventions.items() if STATED.get((k, v))}
        return tuple(e for e in self.effects if names & {e.cause, *e.or_else})

    @cached_property
    def named(self) -> dict[Name, Effect]:
        """Effects by the names of their causes."""
        return {(name, e.needs): e for e in self.effects for name in (e.cause, *e.or_else)}

    def chosen(self, names: Iterable[Name]) -> tuple[Effect, ...]:
        """The effects of these names; one that changes nothing here, such as the last token of one, is left out."""
        return tuple(self.named[n] for n in names if n in self.named)


@dataclass(frozen=True, slots=True)
class Truth:
    """A capture, its closed formulas, and what its target knows about wrong models of itself."""

    capture: Capture
    ledger: Ledger
    mistakes: Mistakes

    def anatomy(self, claim: Claim) -> Anatomy:
        """What a claim is made of, and what may be wrong with it."""
        items = items_of(self.capture, self.ledger, claim)
        return Anatomy(items, effects(items, claim.metric, self.mistakes, shared_symbols(self.capture)))

    def nodes(self, claim: Claim) -> list[CostNode]:
        """The nodes that a claim is about."""
        return nodes_of(self.ledger, claim, claim.metric)

    def calls(self, claim: Claim) -> list[Invocation]:
        """The invocations that a claim is about."""
        return [
            i
            for i in self.capture.invocations
            if claim.stage in (TOTAL, i.stage) and (not claim.invocation or i.id == claim.invocation)
        ]

    def symbolic(self, claim: Claim) -> bool:
        """Whether there is a formula for all that the claim is about; without it, nothing is known elsewhere."""
        return all(claim.metric in n.exprs for n in self.nodes(claim))

    def moved(self, claim: Claim, change: Callable[[Invocation], Mapping[str, int]]) -> Truth | None:
        """The truth of the claim's stages with other symbols; ``None`` where some cost is not an integer there."""
        calls = tuple(replace(i, symbols={**i.symbols, **change(i)}) for i in self.capture.invocations)
        nodes = tuple(n for n in self.ledger.nodes if claim.stage in (TOTAL, n.stage))
        values = {(i.stage, i.id): i.symbols for i in calls}
        try:
            there = evaluate_ledger(replace(self.ledger, nodes=nodes), values, self.capture.target.symbols)
        except BadInput:
            return None
        return replace(self, capture=replace(self.capture, invocations=calls), ledger=there)

    def at_length(self, claim: Claim, symbol: str, length: int) -> Truth | None:
        """The truth at another length of prompt or context, and what follows it."""
        given = next(c.symbols[symbol] for c in self.calls(claim) if symbol in c.symbols)
        follow = {symbol, *(n for n, leader in TIED.items() if leader == symbol)}
        return self.moved(
            claim, lambda call: {n: length for n, v in call.symbols.items() if n in follow and v == given}
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A claim, the number that it stands for, and what it is held against."""

    claim: Claim
    amount: Amount
    truth: Truth
