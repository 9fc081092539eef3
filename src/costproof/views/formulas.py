"""Sum the formulas of cost nodes into readable formulas of stages and calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from costproof.ledger.capture import SymbolDoc
from costproof.ledger.metrics import STAGE_WIDE, Metric
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.time_limits import check_time

if TYPE_CHECKING:
    import sympy

_FACTOR_LIMIT: Final = 60
"""Maximum number of terms of a polynomial that is factored; more take too long for the clarity gained."""


@dataclass(frozen=True, slots=True)
class FormulaText:
    """One formula in three notations of equal value."""

    expression: str
    """Expression in the symbols of workload and configuration, readable by ``costproof.algebra.symbols.parse``."""
    latex: str
    """``at_config`` in LaTeX."""
    version: str
    """Twelve hex digits of a hash of the normal form of ``expression``; another version means another formula."""
    at_config: str
    """The expression with the configuration's numbers inserted: only symbols of the workload are left."""
    symbols: tuple[str, ...]
    """Symbols that remain in ``at_config``."""


def stage_formula(
    ledger: Ledger, metric: Metric, stage: str, config: Mapping[str, int], docs: Mapping[str, SymbolDoc]
) -> FormulaText | None:
    """Return the formula of a stage over all its invocations.

    Where a stage is called more than once, the workload's symbols carry the invocation's name
    (``H_global``, ``H_crops``), because each call has its own sizes.
    """
    here = [n for n in ledger.nodes if n.stage == stage and metric in n.exprs]
    calls = sorted({n.invocation for n in here if (n.invocation == "") == (metric in STAGE_WIDE)})
    if len(calls) <= 1:
        return nodes_formula((n for n in here if n.invocation in calls), metric, config, docs)
    import sympy as sp

    from costproof.algebra.symbols import sym

    whole: list[sympy.Expr] = []
    readable: list[sympy.Expr] = []
    for call in calls:
        total = _sum_of(_texts((n for n in here if n.invocation == call), metric))
        renamed = {s: sym(f"{s.name}_{call}") for s in total.free_symbols if s.name not in config}
        whole.append(total.xreplace(renamed))
        readable.append(_readable(total, _items(config)).xreplace(renamed))
    suffixed = {
        f"{name}_{call}": SymbolDoc(f"{doc.latex}^{{\\mathrm{{{call}}}}}", doc.meaning)
        for name, doc in docs.items()
        for call in calls
    }
    return _formula(sp.Add(*whole), sp.Add(*readable), {**docs, **suffixed})


def nodes_formula(
    nodes: Iterable[CostNode], metric: Metric, config: Mapping[str, int], docs: Mapping[str, SymbolDoc]
) -> FormulaText | None:
    """Return the formula summed over some nodes; None if no node has an expression."""
    check_time()
    texts = _texts(nodes, metric)
    if not texts:
        return None
    total = _sum_of(texts)
    return _formula(total, _readable(total, _items(config)), docs)


def _texts(nodes: Iterable[CostNode], metric: Metric) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(n.exprs[metric] for n in nodes if metric in n.exprs).items()))


@lru_cache(maxsize=1024)
def _sum_of(texts: tuple[tuple[str, int], ...]) -> sympy.Expr:
    """Return the sum of expressions, with n equal ones as ``n * expression``."""
    import sympy as sp

    from costproof.algebra.symbols import parse

    return sp.Add(*(count * parse(source) for source, count in texts))


def _formula(total: sympy.Expr, readable: sympy.Expr, docs: Mapping[str, SymbolDoc]) -> FormulaText:
    import sympy as sp

    from costproof.algebra.symbols import text

    names = {s: docs[s.name].latex for s in readable.free_symbols if s.name in docs}
    return FormulaText(
        expression=text(total),
        latex=sp.latex(readable, symbol_names=names),
        version=_version(total),
        at_config=text(readable),
        symbols=tuple(sorted(s.name for s in readable.free_symbols)),
    )


def _items(config: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(config.items()))


@lru_cache(maxsize=1024)
def _version(total: sympy.Expr) -> str:
    from costproof.algebra.symbols import version

    return version(total)


@lru_cache(maxsize=1024)
def _readable(total: sympy.Expr, config: tuple[tuple[str, int], ...]) -> sympy.Expr:
    """Return an expression with the configuration's numbers inserted, factored if that is short."""
    import sympy as sp

    from costproof.algebra.symbols import sym

    wide = sp.expand(total.xreplace({sym(name): sp.Integer(value) for name, value in config}))
    if len(sp.Add.make_args(wide)) > _FACTOR_LIMIT or wide.has(sp.Min, sp.Max):
        return sp.factor_terms(wide)
    return sp.factor(wide)
