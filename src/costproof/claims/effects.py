"""Represent known mistakes as records, and compute the effect of each on the terms of a claim.

A mistake multiplies some terms and counts others in addition. Both commute, so the order within a set of mistakes does
not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

import sympy

from costproof.algebra.evaluation import CompiledExpression, compile_expression
from costproof.algebra.symbols import parse, text
from costproof.claims.terms import ClaimTerm
from costproof.ledger.metrics import BYTES, STAGE_WIDE, SUMMED, Metric

NOTHING: frozenset[int] = frozenset()
ANY_METRIC: Final = frozenset(SUMMED)
"""All metrics that are sums over nodes, and so no memory peaks."""
FLOPS: Final = frozenset[Metric]({"flops"})
CACHE: Final = frozenset[Metric]({"kv_cache_bytes", "kv_read_bytes"})
NOT_FLOPS: Final = ANY_METRIC - FLOPS
NOT_STAGE_WIDE: Final = ANY_METRIC - STAGE_WIDE
IN_BYTES: Final = ANY_METRIC & BYTES

ClaimTerms = Sequence[ClaimTerm]
Pick = Callable[[ClaimTerm], bool]
Factor = Callable[[ClaimTerm], Fraction | None]


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of one mistake on one claim: factors on some terms, and further terms that it counts."""

    cause: str
    family: str
    what: str
    factors: Mapping[int, Fraction]
    """Factor on the value of a term, by index of the term."""
    switches: frozenset[int] = NOTHING
    """Indices of the further terms that the mistake counts."""
    aliases: tuple[str, ...] = ()
    """Other causes with exactly the same effect."""
    requires: str = ""
    excludes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TermChange:
    """Change that a mistake makes: the terms to change, and the factor of each (``None`` leaves a term unchanged)."""

    pick: Pick
    factor: Factor


@dataclass(frozen=True, slots=True)
class Mistake:
    """A known mistake, one row of the table that ``costproof check`` searches."""

    cause: str
    """Name of the mistake in reports."""
    family: str
    """Name of a group of mistakes that exclude each other."""
    what: str
    """One clause that describes the mistake in reports."""
    changes: tuple[TermChange, ...] = ()
    """Changes of terms in order; a later change of a term overrides an earlier one."""
    adds: Pick | None = None
    """Predicate that selects the uncounted terms that the mistake counts; ``None`` for none."""
    metrics: frozenset[Metric] = ANY_METRIC
    requires: str = ""
    """Another cause that must be in the same set; this record describes both mistakes combined."""
    excludes: tuple[str, ...] = ()
    """Causes that must not be in the same set, since the combination would differ or be meaningless."""
    if_any: Pick | None = None
    """Predicate on terms of which a claim must have one for the mistake to be possible; ``None``: no condition."""
    unless_any: Pick | None = None
    """Predicate on terms of which a claim must have none for the mistake to be possible; ``None``: no condition."""

    def effect(self, terms: ClaimTerms) -> Effect:
        """Return the effect of the mistake on the terms of a claim, which is empty if no term changes."""
        possible = self.if_any is None or any(map(self.if_any, terms))
        if not possible or (self.unless_any is not None and any(map(self.unless_any, terms))):
            return Effect(self.cause, self.family, self.what, {})
        factors: dict[int, Fraction] = {}
        for change in self.changes:
            for i, term in enumerate(terms):
                if change.pick(term) and (by := change.factor(term)) is not None and by != 1:
                    factors[i] = by
        adds = self.adds
        added = frozenset(i for i, t in enumerate(terms) if not t.counted and adds(t)) if adds else NOTHING
        return Effect(
            self.cause, self.family, self.what, factors, added, requires=self.requires, excludes=self.excludes
        )


@dataclass(frozen=True, slots=True)
class MistakeSeries:
    """A kind of mistake with one variant for each view, tower or number of heads in the claim."""

    cause: str
    """Pattern of the variants' names, with the variable part in capitals: ``view missing: VIEW``."""
    what: str
    rows: Callable[[ClaimTerms, Mapping[str, int]], Iterable[Mistake]]
    """Function that returns the variants, from the terms of a claim and the symbols with one value in all calls."""
    metrics: frozenset[Metric] = ANY_METRIC


MistakeTable = tuple[Mistake | MistakeSeries, ...]


@dataclass(frozen=True, slots=True)
class Mistakes:
    """The mistakes that are specific to a target, in addition to those of every model."""

    table: MistakeTable = ()
    of_run: frozenset[str] = frozenset()
    """Causes that change which calls are run, as opposed to how calls are counted."""
    written_out: frozenset[str] = frozenset()
    """Roles of norms that the implementation composes of primitive operators, which tools do not recognise as norms."""


def times(pick: Pick, number: Fraction | int) -> TermChange:
    """Return the change that multiplies the selected terms by a number."""
    return TermChange(pick, lambda _: Fraction(number))


def left_out(pick: Pick) -> TermChange:
    """Return the change that removes the selected terms."""
    return times(pick, 0)


def substituted(pick: Pick, **symbols: str) -> TermChange:
    """Return the change that replaces symbols in the expressions of selected terms; see :func:`substitute`."""
    return TermChange(pick, lambda term: substitute(term, **symbols))


def stands_for(*names: str) -> Pick:
    """Return a predicate for uncounted terms whose ``stands_for`` is one of these names."""
    return lambda term: not term.counted and term.stands_for in names


def substitute(term: ClaimTerm, **symbols: str) -> Fraction | None:
    """Return the factor by which replacing symbols by expressions changes a term's value; ``None`` if undefined.

    A name that is not a symbol of the term gets the prefix of the term's tower: in a term with the role
    ``text.layer.experts``, ``topk`` means ``text_topk``.
    """

    def full(name: str) -> str:
        return name if name in term.values else f"{term.tower}_{name}"

    named = {full(n): re.sub(r"[A-Za-z]\w*", lambda m: full(m.group()), new) for n, new in symbols.items()}
    changed = _replaced(term.expr, tuple(named.items())) if term.expr else None
    return None if changed is None else _ratio(term, changed)


def rewritten(term: ClaimTerm, change: Callable[[sympy.Expr], sympy.Expr]) -> Fraction | None:
    """Return the factor by which rewriting a term's expression changes its value; ``None`` without an expression."""
    return _ratio(term, _changed(term.expr, change)) if term.expr else None


# Equal expressions are changed in the same way at every claim and every length: once is enough.
@lru_cache(maxsize=4096)
def _replaced(source: str, changes: tuple[tuple[str, str], ...]) -> CompiledExpression | None:
    expr, by_name = parse(source), dict(changes)
    present = {s: parse(by_name[s.name]) for s in expr.free_symbols if s.name in by_name}
    return compile_expression(text(expr.subs(present, simultaneous=True))) if present else None


@lru_cache(maxsize=4096)
def _changed(source: str, change: Callable[[sympy.Expr], sympy.Expr]) -> CompiledExpression:
    return compile_expression(text(change(parse(source))))


def _ratio(term: ClaimTerm, changed: CompiledExpression) -> Fraction | None:
    """Return the value of the changed expression divided by the value of the term's expression."""
    try:
        old, new = compile_expression(term.expr).run(term.values), changed.run(term.values)
    except (KeyError, ZeroDivisionError):
        return None
    return Fraction(new) / Fraction(old) if old else None
