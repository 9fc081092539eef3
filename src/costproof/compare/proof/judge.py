"""Compare the analytic and static formulas of each row: identical, equal at some sizes, or a counterexample.

The difference of the two expressions, with the configuration's numbers put in, is expanded by
sympy. Where nothing is left, the two agree for every value of the symbols that the graph keeps
(batch, views, prompt, context, steps). A graph without symbols can be compared as integers only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import product
from typing import Final

import sympy

from costproof.algebra.evaluation import compile_expression, shared_values
from costproof.algebra.identity import free_symbols, put_in
from costproof.algebra.symbols import factored, parse, pulled_out, sym, text, version
from costproof.compare.align import AlignedRow, align
from costproof.compare.patterns import patterns, template
from costproof.compare.proof.certificate import Claim, Counterexample, Method
from costproof.ledger.metrics import EVERY_METRIC, KEPT, STAGE_WIDE, Metric
from costproof.ledger.node import Ledger

_SMALL: Final = (1, 2, 3)
_SOURCES: Final = ("analytic", "static")


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of comparing formulas with graphs in one piece of a proof: claims and counterexamples."""

    rows: dict[str, int]
    """Number of (module, operator kind, metric) combinations compared, by stage."""
    claims: tuple[Claim, ...]
    counterexamples: tuple[Counterexample, ...]
    formulas: tuple[tuple[str, str], ...] = ()
    """(stage, formula) of all compared quantities, for the degrees of the formulas."""
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Tried sizes that a graph with a symbolic size describes, by stage."""
    conditions: tuple[str, ...] = ()
    """Descriptions of sizes at which a symbolic graph differs from the model, which the claims exclude."""


def judge(
    analytic: Ledger,
    static: Ledger,
    values: Mapping[tuple[str, str], Mapping[str, int]],
    config: Mapping[str, int],
    *,
    alias: Mapping[str, str] | None = None,
    fixed: Set[tuple[str, str, str]] = frozenset(),
    only_fixed: bool = False,
    steps: Mapping[str, int] | None = None,
    integers: bool = False,
    bounds: Collection[Metric] = (),
) -> Answer:
    """Return claims and counterexamples from every row that both sources have.

    A symbol that occurs in any graph of an invocation stays a symbol on both sides of all its rows: a formula
    that grows with the batch does not equal a graph that does not, whatever the batch of this run is.

    Args:
        analytic: formulas, evaluated.
        static: counts of graphs, evaluated; symbolic ones with expressions.
        values: (stage, invocation) -> values of the workload's symbols there.
        config: values of the configuration's symbols.
        alias: symbols of a formula that equal one of the graph: ``{"L": "S"}``.
        fixed: (stage, module, metric) of rows whose graph was made at the sizes of this run, so that its numbers hold
            only at these sizes.
        only_fixed: judge only these rows; the others were not requested.
        steps: symbols that are multiples of a number, for the smallest sizes that show a difference.
        integers: accept equal integers without comparing expressions.
        bounds: metrics of time bounds, which have counterexamples but are not claimed.
    """
    common = shared_values(values.values())
    names = frozenset(name for known in values.values() for name in known) - {"b"}
    kept = _kept(static, names)

    def of_run(row: AlignedRow) -> bool:
        return (row.stage, row.module, row.metric) in fixed

    groups: dict[tuple[object, ...], list[AlignedRow]] = {}
    for row in align([analytic, static], (*EVERY_METRIC, *bounds)):
        if (only_fixed and not of_run(row)) or (row.metric not in EVERY_METRIC and len(row.cells) < len(_SOURCES)):
            continue
        sides = tuple((row.cells[s].exprs, row.cells[s].value) if s in row.cells else None for s in _SOURCES)
        key = (row.stage, row.invocation, template(row.module)[0], row.kind, row.metric, sides, of_run(row))
        groups.setdefault(key, []).append(row)
    found: list[tuple[int, Claim | Counterexample]] = []
    for members in groups.values():
        row = members[0]
        numbers = {**config, **(common if row.metric in STAGE_WIDE else values.get((row.stage, row.invocation), {}))}
        at_sizes = of_run(row) or _counted_in_numbers(row)
        free = frozenset() if at_sizes else kept.get((row.stage, row.invocation), frozenset())
        how = _How(names, numbers, dict(alias or {}), tuple((steps or {}).items()), free, integers)
        for pattern, inside in patterns(r.module for r in members):
            judged = _judged(row, pattern, len(inside), how)
            if row.metric in EVERY_METRIC or isinstance(judged, Counterexample):
                found.append((len(inside), judged))
    rows: Counter[str] = Counter()
    for modules, outcome in found:
        rows[outcome.stage] += modules
    return Answer(
        rows=dict(rows),
        claims=tuple(o for _, o in found if isinstance(o, Claim)),
        counterexamples=tuple(o for _, o in found if isinstance(o, Counterexample)),
        formulas=tuple(dict.fromkeys((o.stage, o.formula) for _, o in found)),
    )


@dataclass(frozen=True, slots=True)
class _How:
    """Symbols and numbers by which the rows of one invocation are compared."""

    names: frozenset[str]
    """Symbols of the workload, without the item size, which is always a number."""
    numbers: Mapping[str, int]
    alias: Mapping[str, str]
    steps: tuple[tuple[str, int], ...]
    free: frozenset[str]
    """Symbols that are not replaced by numbers, in addition to those in the row's own graph."""
    integers: bool


def _counted_in_numbers(row: AlignedRow) -> bool:
    """Return whether a graph has kept query-key pairs as a number only, counted at the sizes of its run."""
    graph = row.cells.get("static")
    return row.metric in KEPT and graph is not None and graph.value is not None and not graph.exprs


def _kept(static: Ledger, names: frozenset[str]) -> dict[tuple[str, str], frozenset[str]]:
    """Return the workload symbols that the graphs of a call contain, by (stage, invocation)."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    for node in static.nodes:
        key = (node.stage, node.invocation)
        for metric, expr in node.exprs.items():
            if metric not in STAGE_WIDE:
                found[key] = found.get(key, frozenset()) | (free_symbols(expr) & names)
    return found


def _judged(row: AlignedRow, pattern: str, modules: int, how: _How) -> Claim | Counterexample:
    """Return the claim or the counterexample that follows from a row."""
    cells = [row.cells.get(s) for s in _SOURCES]
    numbers = [c.value if c is not None else None for c in cells]
    sums = [_sum(c.exprs, c.value) if c is not None else None for c in cells]
    formula = sums[0] or "0"
    stage_wide = row.metric in STAGE_WIDE
    invocation = "" if stage_wide else row.invocation
    agreed = partial(Claim, row.stage, invocation, pattern, row.kind, row.metric, modules, ())
    if how.integers and numbers[0] is not None and numbers[0] == numbers[1]:
        return agreed("enumeration", (), "", formula, str(numbers[0]))
    # Where the graph has nothing at all, the whole formula is the difference.
    known_side = formula if sums[1] in (None, "0") else sums[1]
    free = frozenset() if stage_wide else (free_symbols(known_side or "0") & how.names) | how.free
    names = tuple(sorted((k, v) for k, v in how.alias.items() if v in free and k not in free))
    known = tuple(sorted((k, v) for k, v in how.numbers.items() if k not in free and k not in dict(names)))
    left, right = (put_in(s, known, names) if s is not None else None for s in sums)
    rest = "unknown" if left is None or right is None else _difference(left, right, how.steps)
    if left is None or rest != "0":
        return Counterexample(
            found_in="",
            stage=row.stage,
            invocation=invocation,
            module=pattern,
            kind=row.kind,
            metric=row.metric,
            formula=formula,
            analytic=left or "unknown",
            static=right or "unknown",
            difference=rest,
            smallest=dict(_smallest(rest, how.steps)) if rest != "unknown" else {},
            config={},
        )
    # Numbers on both sides of a formula that grows with the workload: equal here, and only here.
    point = not stage_wide and not free and bool(free_symbols(formula) & how.names)
    method: Method = "enumeration" if point else "identity"
    return agreed(method, tuple(sorted(free_symbols(left))), _version(formula), formula, left)


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
def _difference(first: str, second: str, steps: tuple[tuple[str, int], ...]) -> str:
    """Return first minus second, factored; 0 if and only if the expanded forms cancel for all numbers of steps."""
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
    """Return small values of the symbols, with minimal sum, at which a difference is not 0."""
    program = compile_expression(rest)
    names = sorted(program.symbols)
    sizes = ([i * dict(steps).get(name, 1) for i in _SMALL] for name in names)
    points = sorted(product(*sizes), key=lambda p: (sum(p), p))
    for point in points:
        values = dict(zip(names, point, strict=True))
        if program.run(values) != 0:
            return tuple(values.items())
    return ()


def settled(expr: sympy.Expr) -> sympy.Expr:
    """Simplify each ``Min`` and ``Max`` that selects the same argument at all sizes.

    ``Min(H**2, 224**2*ceiling(H/224)**2)`` is ``H**2``. The others have integers that their arguments share in front.

    A ceiling is its argument plus something from 0 to 1. With that something as a symbol, a difference whose
    expanded form has no negative term is nowhere negative, since all symbols are positive.
    """
    found: dict[sympy.Expr, sympy.Expr] = {}
    for f in expr.atoms(sympy.Min, sympy.Max):
        chosen = _outcome(f.args, least=isinstance(f, sympy.Min))
        found[f] = pulled_out(f) if chosen is None else chosen
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
