"""What a cause does to terms: multiplies some, switches some on. Both commute, so sets of causes are well defined."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import sympy

from costproof.algebra.evaluation import CompiledExpression, compile_expression
from costproof.algebra.symbols import parse, text
from costproof.claims.terms import ClaimTerm
from costproof.ledger.metrics import Metric

NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Effect:
    """A cause at one claim."""

    cause: str
    family: str
    """Causes of one family exclude each other."""
    what: str
    factors: Mapping[int, Fraction]
    """ClaimTerm -> what its value is multiplied with."""
    switches: frozenset[int] = NOTHING
    """ClaimTerms that are counted in addition."""
    or_else: tuple[str, ...] = ()
    requires: str = ""
    """Another cause that must be in the set: this is the form that the cause takes beside it."""
    excludes: tuple[str, ...] = ()
    """Other causes that must not be: beside them it takes another form, or says nothing."""


ClaimTerms = Sequence[ClaimTerm]


@dataclass(frozen=True, slots=True)
class Mistakes:
    """What a target knows about wrong models of itself, beside the mistakes that are made with every model."""

    effects: Callable[[ClaimTerms, Metric, Mapping[str, int]], Iterable[Effect]] = lambda terms, metric, symbols: ()
    """(items of a claim, its metric, symbols with one value everywhere) -> causes, whether they change it or not."""
    of_run: frozenset[str] = frozenset()
    """Those causes that say what was run, not how it was counted."""
    written_out: frozenset[str] = frozenset()
    """Roles of norms that an implementation writes in primitives, so that tools see no norm there."""


Pick = Callable[[ClaimTerm], bool]
Factor = Callable[[ClaimTerm], Fraction | None]


def times(terms: ClaimTerms, pick: Pick, factor: Fraction | int) -> dict[int, Fraction]:
    """The picked terms multiplied with one number."""
    return {i: Fraction(factor) for i, term in enumerate(terms) if pick(term)}


def scaled(terms: ClaimTerms, pick: Pick, factor: Factor) -> dict[int, Fraction]:
    """The picked terms multiplied each with its own number; ``None`` leaves one alone."""
    found = {}
    for i, term in enumerate(terms):
        if pick(term) and (by := factor(term)) is not None and by != 1:
            found[i] = by
    return found


def switched(terms: ClaimTerms, *extras: str) -> frozenset[int]:
    """The terms that are off and stand for these extras."""
    return frozenset(i for i, term in enumerate(terms) if not term.counted and term.stands_for in extras)


def put(term: ClaimTerm, **changes: str) -> Fraction | None:
    """New over old when symbols are replaced by expressions; ``None`` where that says nothing.

    A name that is not a symbol here is one of the term's tower: in ``text.layer.experts`` ``topk`` is ``text_topk``.
    """

    def full(name: str) -> str:
        return name if name in term.values else f"{term.tower}_{name}"

    named = {full(n): re.sub(r"[A-Za-z]\w*", lambda m: full(m.group()), new) for n, new in changes.items()}
    changed = _replaced(term.expr, tuple(named.items())) if term.expr else None
    return None if changed is None else _ratio(term, changed)


def without(terms: ClaimTerms, cause: str, family: str, what: str, pick: Pick) -> Effect:
    """The picked terms are left out."""
    return Effect(cause, family, what, times(terms, pick, 0))


def added(terms: ClaimTerms, cause: str, family: str, what: str, *extras: str) -> Effect:
    """What the truth does not count is counted."""
    return Effect(cause, family, what, {}, switched(terms, *extras))


def changed(terms: ClaimTerms, cause: str, family: str, what: str, pick: Pick, **changes: str) -> Effect:
    """In the picked terms symbols are taken for others, as in :func:`put`."""
    return Effect(cause, family, what, scaled(terms, pick, lambda term: put(term, **changes)))


def rewritten(term: ClaimTerm, change: Callable[[sympy.Expr], sympy.Expr]) -> Fraction | None:
    """New over old when the expression is rewritten."""
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
    """The changed expression over the term's own, at the term's values."""
    try:
        old, new = compile_expression(term.expr).run(term.values), changed.run(term.values)
    except (KeyError, ZeroDivisionError):
        return None
    return Fraction(new) / Fraction(old) if old else None
