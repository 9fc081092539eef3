"""Define a claim together with costproof's numbers for it, at the claim's workload and at others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, TypeVar, cast

import sympy

from costproof.claims.catalogue import STATED, effects
from costproof.claims.effects import Effect, Mistakes
from costproof.claims.memory_mistakes import STAGE_LAYERS, UNDIVIDED, peak_terms
from costproof.claims.mistakes import rule_terms
from costproof.claims.terms import ClaimTerm, nodes_of, shared_symbols, terms_of
from costproof.claims.types import TOTAL, PublishedClaim
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput
from costproof.ledger.evaluate import evaluate_ledger
from costproof.ledger.mesh import stage_layers
from costproof.ledger.metrics import PEAK_METRICS
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import Invocation


@dataclass(frozen=True, slots=True)
class TargetRun:
    """Another run of a target: its calls with symbol values, and a ledger of the formulas that apply."""

    calls: tuple[Invocation, ...]
    ledger: Ledger


class TargetRuns(Protocol):
    """The runs of a target at other values of its integer settings, such as lengths and batch size."""

    own: Mapping[str, int]
    """Values of the settings in the run that the claims are about."""

    def at(self, changed: Mapping[str, int]) -> TargetRun | None:
        """Return the run with some settings changed; ``None`` if the target refuses these settings."""

    def source(self, stage: str, call: str, symbol: str) -> sympy.Expr | None:
        """Return a symbol of a call as an expression in the settings; ``None`` if no setting affects the symbol."""

    def sizes(self, setting: str) -> tuple[int, int]:
        """Return a setting's smallest value and the step between values; the step is 0 if only one value is known."""

    def ends(self, setting: str) -> tuple[int, ...]:
        """Return the values of a setting at which other formulas start to apply."""


TIED = {"L": "S", "P": "S"}
"""Symbols that follow another symbol, if the workload gives both the same value, with the other symbol.

Positions with logits and the context of decoding follow the prompt's length.
"""

T = TypeVar("T")
Name = tuple[str, str]
"""(cause, cause that it requires); the second is empty without a requirement."""


@dataclass(eq=False)
class ClaimCase:
    """A claim with all data to judge it: capture, ledger with the true numbers, known mistakes."""

    claim: PublishedClaim
    capture: Capture
    ledger: Ledger
    mistakes: Mistakes
    fixed: frozenset[str] = frozenset()
    """Symbols whose values the source of the claim states, and which are therefore not varied."""
    runs: TargetRuns | None = None
    """Other runs of the target; ``None`` if unknown."""
    kept: dict[str, object] = field(init=False, default_factory=dict, compare=False, repr=False)
    """Memoized results that do not depend on the claimed number, by name."""

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return a memoized result that does not depend on the claimed number."""
        if name not in self.kept:
            self.kept[name] = make()
        return cast(T, self.kept[name])

    def claiming(self, claim: PublishedClaim) -> ClaimCase:
        """Return the case with another claimed number; both share memoized results."""
        other = copy(self)
        other.claim = claim
        return other

    def calling(self, calls: tuple[Invocation, ...]) -> ClaimCase:
        """Return the case with other calls in the capture."""
        other = copy(self)
        other.capture = replace(self.capture, invocations=calls)
        return other

    @cached_property
    def terms(self) -> tuple[ClaimTerm, ...]:
        """Return the terms of the claim, both counted and uncounted ones."""
        if self.claim.metric in PEAK_METRICS:
            return peak_terms(self.capture, self.ledger, self.claim)
        found = terms_of(self.capture, self.ledger, self.claim)
        return (*found, *rule_terms(self.capture, self.ledger, self.claim))

    @cached_property
    def effects(self) -> tuple[Effect, ...]:
        """Return the effects of all mistakes that can change the claimed number."""
        everywhere = {**shared_symbols(self.capture), **_of_stage(self.capture, self.claim)}
        return effects(self.terms, self.claim.metric, self.mistakes, everywhere)

    @cached_property
    def named(self) -> dict[Name, Effect]:
        """Return the effects of all mistakes by (name, required cause); names are causes and their aliases."""
        return {(name, e.requires): e for e in self.effects for name in (e.cause, *e.aliases)}

    @cached_property
    def stated(self) -> tuple[Effect, ...]:
        """Return the effects of the conventions that the claim states."""
        names = {STATED[k, v] for k, v in self.claim.conventions.items() if STATED.get((k, v))}

        def applies(effect: Effect) -> bool:
            return (not effect.requires or effect.requires in names) and names.isdisjoint(effect.excludes)

        return tuple(e for e in self.effects if names & {e.cause, *e.aliases} and applies(e))

    def chosen(self, names: Iterable[Name]) -> tuple[Effect, ...]:
        """Return the effects of the named mistakes on the claimed number; skip mistakes that cannot change it."""
        return tuple(self.named[n] for n in names if n in self.named)

    @cached_property
    def nodes(self) -> list[CostNode]:
        """Return the cost nodes that the claim covers."""
        return nodes_of(self.ledger, self.claim, self.claim.metric)

    @property
    def calls(self) -> list[Invocation]:
        """Return the calls that the claim covers."""
        stage, name = self.claim.stage, self.claim.invocation
        return [i for i in self.capture.invocations if stage in (TOTAL, i.stage) and name in ("", i.id)]

    @property
    def symbolic(self) -> bool:
        """Return whether every node of the claim has a formula, so that costs at other workloads are known."""
        return all(self.claim.metric in n.exprs for n in self.nodes)

    def moved(self, change: Callable[[Invocation], Mapping[str, int]]) -> ClaimCase | None:
        """Return the case at other values of the workload's symbols; ``None`` if a cost is not an integer there.

        Args:
            change: invocation -> the symbols that change, with their new values.
        """
        calls = tuple(replace(i, symbols={**i.symbols, **change(i)}) for i in self.capture.invocations)
        nodes = tuple(n for n in self.ledger.nodes if self.claim.stage in (TOTAL, n.stage))
        values = {(i.stage, i.id): i.symbols for i in calls}
        try:
            there = evaluate_ledger(replace(self.ledger, nodes=nodes), values, self.capture.target.symbols)
        except BadInput:
            return None
        return replace(self, capture=replace(self.capture, invocations=calls), ledger=there)

    def at_length(self, symbol: str, length: int) -> ClaimCase | None:
        """Return the case at another prompt or context length; symbols tied to the length change too."""
        given = next(c.symbols[symbol] for c in self.calls if symbol in c.symbols)
        follow = {symbol, *(n for n, leader in TIED.items() if leader == symbol)}
        return self.moved(lambda call: {n: length for n, v in call.symbols.items() if n in follow and v == given})


def _of_stage(capture: Capture, claim: PublishedClaim) -> dict[str, int]:
    """Return what mistakes in the share of a pipeline stage need; empty without stages, or if a part is claimed."""
    symbols = capture.target.symbols
    found, layers = capture.parallel, next((n for s, n in symbols.items() if s.removeprefix("text_") == "layers"), None)
    if found is None or found.mesh.pp == 1 or layers is None or claim.module or claim.invocation:
        return {}
    places = [stage for stage in ("", *capture.target.stages) if claim.metric in found.one_device.get(stage, {})]
    places = [stage for stage in places if not stage or claim.stage in (TOTAL, stage)]
    if not places:
        return {}
    mesh = found.mesh
    own = stage_layers(layers, mesh.pp, mesh.coordinates(found.rank).pp)
    whole = sum(found.one_device[stage][claim.metric] for stage in places)
    return {"pp": mesh.pp, STAGE_LAYERS: len(own), UNDIVIDED: whole}
