"""Analytic minus static, row by row: an identity, equal at this point, or a counterexample.

The difference of the two expressions, with the configuration's numbers put in, is expanded by
sympy. Where nothing is left, the two agree for every value of the symbols that the graph keeps
(batch, views, prompt, context, steps). A graph without symbols can be compared as integers only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Final, Literal

import sympy

from costproof.compare.align import Row, align
from costproof.compare.patterns import patterns, template
from costproof.ledger.evaluate import shared_values
from costproof.ledger.metrics import STAGE_WIDE, Metric
from costproof.ledger.node import Ledger
from costproof.ledger.program import compiled
from costproof.ledger.symbols import factored, parse, sym, text, version

Judgement = Literal["identity", "point", "different"]

_SMALL: Final = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Judged:
    """One quantity of a pattern of modules, as two independent sources give it."""

    stage: str
    invocation: str
    module: str
    """Pattern of the modules that are alike: ``layers.[0-11].mlp``."""
    kind: str
    metric: Metric
    judgement: Judgement
    modules: int
    formula: str
    """The analytic side in symbols of configuration and workload."""
    version: str
    """Hash of the formula's normal form."""
    analytic: str
    """The analytic side with the fixed numbers put in, expanded."""
    static: str
    difference: str
    """Analytic minus static, factored; ``0`` where they agree."""
    smallest: dict[str, int]
    """For a difference: the smallest values of the free symbols at which it shows."""


def judge(
    analytic: Ledger,
    static: Ledger,
    values: Mapping[tuple[str, str], Mapping[str, int]],
    config: Mapping[str, int],
    *,
    alias: Mapping[str, str] | None = None,
    keep: Callable[[Row], bool] = lambda row: True,
    fixed: Callable[[Row], bool] = lambda row: False,
    steps: Mapping[str, int] | None = None,
    integers: bool = False,
) -> tuple[Judged, ...]:
    """Judge every row that the two sources share.

    A symbol that any graph of an invocation kept stays a symbol on both sides of all its rows: a formula
    that grows with the batch does not equal a graph that does not, whatever the batch of this run is.

    Args:
        analytic: formulas, evaluated.
        static: counts of graphs, evaluated; symbolic ones with expressions.
        values: (stage, invocation) -> values of the workload's symbols there.
        config: values of the configuration's symbols.
        alias: symbols of a formula that equal one of the graph: ``{"L": "S"}``.
        keep: rows to judge; the others were not asked for.
        fixed: rows whose graph was made at the sizes of this run, so that its numbers hold for these alone.
        steps: symbols that are multiples of a number, for the smallest sizes that show a difference.
        integers: where the two values are equal integers, do not look at expressions.
    """
    common = shared_values(values.values())
    names = frozenset(name for known in values.values() for name in known) - {"b"}
    kept = _kept(static, names)
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in align([analytic, static]):
        if not keep(row):
            continue
        sides = tuple((row.cells[s].exprs, row.cells[s].value) if s in row.cells else None for s in _SOURCES)
        key = (row.stage, row.invocation, template(row.module)[0], row.kind, row.metric, sides, fixed(row))
        groups.setdefault(key, []).append(row)
    found: list[Judged] = []
    for members in groups.values():
        row = members[0]
        numbers = {**config, **(common if row.metric in STAGE_WIDE else values.get((row.stage, row.invocation), {}))}
        free = None if fixed(row) else kept.get((row.stage, row.invocation), frozenset())
        free = frozenset() if row.metric in STAGE_WIDE else free
        how = _How(names, numbers, dict(alias or {}), dict(steps or {}), free)
        for pattern, inside in patterns(r.module for r in members):
            judged = _equal(row, pattern, len(inside)) if integers else None
            found.append(judged or _judge(row, pattern, len(inside), how))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _How:
    """How the rows of an invocation are judged."""

    names: frozenset[str]
    """Symbols of the workload; the item size is a number everywhere."""
    numbers: Mapping[str, int]
    alias: Mapping[str, str]
    steps: Mapping[str, int]
    free: frozenset[str] | None
    """Symbols that stay; ``None``: those that the row's own graph has."""


def _kept(static: Ledger, names: frozenset[str]) -> dict[tuple[str, str], frozenset[str]]:
    """(stage, invocation) -> symbols of the workload in any of its expressions."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    for node in static.nodes:
        key = (node.stage, node.invocation)
        for metric, expr in node.exprs.items():
            if metric not in STAGE_WIDE:
                found[key] = found.get(key, frozenset()) | _free(expr, names)
    return found


def _equal(row: Row, pattern: str, modules: int) -> Judged | None:
    """A row whose two sides are the same integer; ``None`` for all others."""
    left, right = row.cells.get("analytic"), row.cells.get("static")
    if left is None or right is None or left.value is None or left.value != right.value:
        return None
    value, invocation = str(left.value), "" if row.metric in STAGE_WIDE else row.invocation
    formula = _sum(left.exprs, left.value) or "0"
    return Judged(
        row.stage, invocation, pattern, row.kind, row.metric, "point", modules, formula, "", value, value, "0", {}
    )  # fmt: skip


_SOURCES: Final = ("analytic", "static")


def _judge(row: Row, pattern: str, modules: int, how: _How) -> Judged:
    cells = [row.cells.get(s) for s in _SOURCES]
    sums = [_sum(c.exprs, c.value) if c is not None else None for c in cells]
    formula = sums[0] or "0"
    # Where the graph has nothing at all, the whole formula is the difference.
    known_side = formula if sums[1] in (None, "0") else sums[1]
    free = frozenset() if row.metric in STAGE_WIDE else _free(known_side or "0", how.names) | (how.free or frozenset())
    names = tuple(sorted((k, v) for k, v in how.alias.items() if v in free and k not in free))
    known = tuple(sorted((k, v) for k, v in how.numbers.items() if k not in free and k not in dict(names)))
    steps = tuple(how.steps.items())
    left, right = (_put_in(s, known, names) if s is not None else None for s in sums)
    if left is None or right is None:
        rest, judgement = "unknown", "different"
    else:
        rest = _difference(left, right, steps)
        whole = rest == "0"
        # Numbers on both sides of a formula that grows with the workload: equal here, and only here.
        point = whole and row.metric not in STAGE_WIDE and not free and bool(_free(formula, how.names))
        judgement = "different" if not whole else "point" if point else "identity"
    return Judged(
        stage=row.stage,
        invocation="" if row.metric in STAGE_WIDE else row.invocation,
        module=pattern,
        kind=row.kind,
        metric=row.metric,
        judgement=judgement,  # type: ignore[arg-type]
        modules=modules,
        formula=formula,
        version=_version(formula),
        analytic=left or "unknown",
        static=right or "unknown",
        difference=rest,
        smallest=dict(_smallest(rest, steps)) if judgement == "different" and rest != "unknown" else {},
    )


@lru_cache(maxsize=65536)
def _sum(exprs: tuple[str, ...] | None, value: int | None) -> str | None:
    if exprs is None:
        return None if value is None else str(value)
    if len(exprs) == 1:
        return exprs[0]
    return text(sympy.Add(*(parse(e) for e in exprs)))


@lru_cache(maxsize=65536)
def _version(formula: str) -> str:
    return version(parse(formula))


@lru_cache(maxsize=65536)
def _free(expression: str, names: frozenset[str]) -> frozenset[str]:
    return compiled(expression).symbols & names


@lru_cache(maxsize=65536)
def _put_in(expression: str, known: tuple[tuple[str, int], ...], alias: tuple[tuple[str, str], ...]) -> str:
    """The expression with numbers and other names put in, expanded."""
    wanted = compiled(expression).symbols
    replaced: dict[sympy.Expr, sympy.Expr] = {sym(k): sympy.Integer(v) for k, v in known if k in wanted}
    replaced.update({sym(k): sym(v) for k, v in alias if k in wanted})
    return text(sympy.expand(parse(expression).subs(replaced)))


@lru_cache(maxsize=65536)
def _difference(first: str, second: str, steps: tuple[tuple[str, int], ...]) -> str:
    """First minus second, 0 exactly if the expanded forms cancel at all multiples of the steps; else factored."""
    if first == second:
        return "0"
    rest = settled(sympy.expand(parse(first) - parse(second)))
    # As multiples of their steps sizes may come out of ceilings: ceiling(H/8) is 2 k for H = 16 k.
    multiples = {sym(name): step * sym(name) for name, step in steps}
    if sympy.expand(rest.subs(multiples)) == 0:
        return "0"
    return text(factored(rest))


@lru_cache(maxsize=4096)
def _smallest(rest: str, steps: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """The smallest values, by their sum, at which a difference is not 0; empty if it has no symbols."""
    program = compiled(rest)
    names = sorted(program.symbols)
    sizes = ([i * dict(steps).get(name, 1) for i in _SMALL] for name in names)
    points = sorted(product(*sizes), key=lambda p: (sum(p), p))
    for point in points:
        values = dict(zip(names, point, strict=True))
        if program.run(values) != 0:
            return tuple(values.items())
    return ()


def settled(expr: sympy.Expr) -> sympy.Expr:
    """The expression without the minima and maxima of which one argument is the outcome at all sizes.

    ``Min(H**2, 224**2*ceiling(H/224)**2)`` is ``H**2``.

    A ceiling is its argument plus something from 0 to 1. With that something as a symbol, a difference whose
    expanded form has no negative term is nowhere negative, since all symbols are positive.
    """
    found = {
        f: chosen
        for f in expr.atoms(sympy.Min, sympy.Max)
        if (chosen := _outcome(f.args, least=isinstance(f, sympy.Min))) is not None
    }
    return sympy.expand(expr.xreplace(found)) if found else expr


def _outcome(candidates: tuple[sympy.Expr, ...], *, least: bool) -> sympy.Expr | None:
    for one in candidates:
        if all(_never_negative(other - one if least else one - other) for other in candidates):
            return one
    return None


def _never_negative(difference: sympy.Expr) -> bool:
    up = {c: c.args[0] + sympy.Dummy(positive=True) for c in difference.atoms(sympy.ceiling)}
    terms = sympy.Add.make_args(sympy.expand(difference.xreplace(up)))
    return all(t.is_nonnegative for t in terms)
