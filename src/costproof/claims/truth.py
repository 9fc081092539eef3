"""A claim and what it is checked against, here and at other values of the workload's symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, TypeVar, cast

import sympy

from costproof.claims.catalogue import STATED, effects
from costproof.claims.effects import Effect, Mistakes
from costproof.claims.memory_mistakes import peak_terms
from costproof.claims.rules_of_thumb import rule_terms
from costproof.claims.terms import ClaimTerm, nodes_of, shared_symbols, terms_of
from costproof.claims.types import TOTAL, PublishedClaim
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.metrics import PEAK_METRICS
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import Invocation


@dataclass(frozen=True, slots=True)
class TargetRun:
    """Another run: its calls with the values of their symbols, and the formulas that hold there."""

    calls: tuple[Invocation, ...]
    ledger: Ledger


class TargetRuns(Protocol):
    """The runs of a target that differ in numbers that a run chooses."""

    own: Mapping[str, int]
    """Setting -> its value in the run of the claims."""

    def at(self, changed: Mapping[str, int]) -> TargetRun | None:
        """Return the run with these settings; None if the target refuses it."""
        ...

    def source(self, stage: str, call: str, symbol: str) -> sympy.Expr | None:
        """Return a symbol of a call as an expression of settings; None if no setting changes it."""
        ...

    def sizes(self, setting: str) -> tuple[int, int]:
        """Return the least value of a setting, and the step to the next."""
        ...

    def ends(self, setting: str) -> tuple[int, ...]:
        """Return the values of a setting from which on other formulas apply."""
        ...


TIED = {"L": "S", "P": "S"}
"""Symbols that follow another one where the workload gives both the same value: logits of every position,
decoding after the prompt."""

T = TypeVar("T")
Name = tuple[str, str]
"""A cause, and the other one that its form depends on."""


@dataclass(eq=False)
class ClaimCase:
    """A claim and what it is held against: a capture, its closed formulas, what its target knows about wrong models."""

    claim: PublishedClaim
    capture: Capture
    ledger: Ledger
    mistakes: Mistakes
    fixed: frozenset[str] = frozenset()
    """Symbols that the source of the claim states: they do not vary."""
    runs: TargetRuns | None = None
    """Other runs of the target; ``None``: they are not known."""
    kept: dict[str, object] = field(init=False, default_factory=dict, compare=False, repr=False)
    """What was worked out for whatever number is claimed here."""

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Memoize a result that does not depend on the claimed number."""
        if name not in self.kept:
            self.kept[name] = make()
        return cast(T, self.kept[name])

    def claiming(self, claim: PublishedClaim) -> ClaimCase:
        """Return the same case for another claimed number; memoized results are shared."""
        other = copy(self)
        other.claim = claim
        return other

    def calling(self, calls: tuple[Invocation, ...]) -> ClaimCase:
        """Return the same case with other calls."""
        other = copy(self)
        other.capture = replace(self.capture, invocations=calls)
        return other

    @cached_property
    def terms(self) -> tuple[ClaimTerm, ...]:
        """What the claim is made of."""
        if self.claim.metric in PEAK_METRICS:
            return peak_terms(self.capture, self.ledger, self.claim)
        found = terms_of(self.capture, self.ledger, self.claim)
        return (*found, *rule_terms(self.capture, self.ledger, self.claim))

    @cached_property
    def effects(self) -> tuple[Effect, ...]:
        """All causes that can change it."""
        return effects(self.terms, self.claim.metric, self.mistakes, shared_symbols(self.capture))

    @cached_property
    def named(self) -> dict[Name, Effect]:
        """Effects by the names of their causes."""
        return {(name, e.requires): e for e in self.effects for name in (e.cause, *e.aliases)}

    @cached_property
    def stated(self) -> tuple[Effect, ...]:
        """The causes that the claim states itself as its conventions."""
        names = {STATED[k, v] for k, v in self.claim.conventions.items() if STATED.get((k, v))}

        def applies(effect: Effect) -> bool:
            return (not effect.requires or effect.requires in names) and names.isdisjoint(effect.excludes)

        return tuple(e for e in self.effects if names & {e.cause, *e.aliases} and applies(e))

    def chosen(self, names: Iterable[Name]) -> tuple[Effect, ...]:
        """Return the effects of these names, without those that change nothing here."""
        return tuple(self.named[n] for n in names if n in self.named)

    @cached_property
    def nodes(self) -> list[CostNode]:
        """The nodes that the claim is about."""
        return nodes_of(self.ledger, self.claim, self.claim.metric)

    @property
    def calls(self) -> list[Invocation]:
        """The invocations that the claim is about."""
        stage, name = self.claim.stage, self.claim.invocation
        return [i for i in self.capture.invocations if stage in (TOTAL, i.stage) and name in ("", i.id)]

    @property
    def symbolic(self) -> bool:
        """Whether there is a formula for all that the claim is about; without it, nothing is known elsewhere."""
        return all(self.claim.metric in n.exprs for n in self.nodes)

    def moved(self, change: Callable[[Invocation], Mapping[str, int]]) -> ClaimCase | None:
        """Return the case with other symbols; None if some cost is not an integer there."""
        calls = tuple(replace(i, symbols={**i.symbols, **change(i)}) for i in self.capture.invocations)
        nodes = tuple(n for n in self.ledger.nodes if self.claim.stage in (TOTAL, n.stage))
        values = {(i.stage, i.id): i.symbols for i in calls}
        try:
            there = evaluate_ledger(replace(self.ledger, nodes=nodes), values, self.capture.target.symbols)
        except BadInput:
            return None
        return replace(self, capture=replace(self.capture, invocations=calls), ledger=there)

    def at_length(self, symbol: str, length: int) -> ClaimCase | None:
        """Return the case at another length of prompt or context, with the symbols that follow it."""
        given = next(c.symbols[symbol] for c in self.calls if symbol in c.symbols)
        follow = {symbol, *(n for n, leader in TIED.items() if leader == symbol)}
        return self.moved(lambda call: {n: length for n, v in call.symbols.items() if n in follow and v == given})
