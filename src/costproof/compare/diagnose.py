"""Turn aligned rows into findings; equal rows of modules with the same path pattern become one finding."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, combinations_with_replacement
from math import prod
from typing import cast

import sympy

from costproof.algebra.identity import at, difference, free_symbols, same
from costproof.algebra.symbols import parse, text
from costproof.compare.align import AlignedCell, AlignedRow, order
from costproof.compare.causes import Context, SourcePair, causes_of, other_calls
from costproof.compare.findings import Cause, CauseKind, Finding, FindingStatus
from costproof.compare.kinds import kind_of
from costproof.compare.patterns import patterns, template
from costproof.ledger.metrics import KEPT_FLOPS
from costproof.ledger.node import exact_sum
from costproof.ledger.run import ALL_SOURCES, GRAPH_SOURCES

_LABELS = 4
_ONLY = {source: cast(FindingStatus, f"{source}-only") for source in (*ALL_SOURCES, "headers")}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Result of comparing the sources of one module's row: status, difference, causes and residual."""

    status: FindingStatus
    delta: int | None
    reference: str | None
    causes: tuple[Cause, ...]
    residual: int | None
    error_expression: str | None = None


def module_findings(rows: Iterable[AlignedRow], ctx: Context) -> list[Finding]:
    """Return one finding per pattern of modules whose rows have equal results.

    Modules are alike if their paths differ in numbers only, and each source has the same values, formulas and
    operators for them.
    """
    groups: dict[Hashable, list[AlignedRow]] = {}
    for row in rows:
        groups.setdefault(_likeness(row, ctx), []).append(row)
    found = []
    for members in groups.values():
        judged = diagnose(members[0], ctx)
        for pattern, inside in patterns(r.module for r in members):
            found.append(finding(members[0], judged, pattern, len(inside)))
    return found


def _likeness(row: AlignedRow, ctx: Context) -> Hashable:
    cells = tuple((s, c.value, c.exprs, tuple(k for k, _ in c.kinds)) for s, c in row.cells.items())
    surroundings: Hashable = ()
    if len({c.value for c in row.cells.values()}) > 1:
        # The causes of unequal rows depend on calls and unknown operators, so rows merge only if those are equal too.
        calls = ctx.calls.get((row.stage, row.invocation, row.module), {})
        unknown = tuple(ctx.unknown.get((s, row.stage, row.module), ()) for s in row.cells)
        surroundings = (tuple(calls.items()), unknown, (row.stage, row.module) in ctx.executed)
    mask, _ = template(row.module)
    return row.stage, row.invocation, mask, row.kind, row.metric, cells, surroundings


def diagnose(row: AlignedRow, ctx: Context) -> Diagnosis:
    """Compare the sources of one row, and explain their differences by causes.

    All sources that take part must agree with the first of them. The reported pair is the first unexplained one, else
    the first that differs, else the one with the dynamic source.
    """
    notes = renamed(row)
    sources = order(row.cells)
    known = {s: v for s in sources if (v := row.cells[s].value) is not None}
    if len(known) < len(sources):
        return Diagnosis("unsupported", None, None, notes, None)
    if len(sources) == 1:
        status = _ONLY.get(sources[0], "unsupported")
        if row.stage not in ctx.running and status != "unsupported":
            status = "not-executed"
        return Diagnosis(status, None, None, notes, None)
    first = sources[0]
    others = sorted(sources[1:], key=lambda s: (s != "dynamic", sources.index(s)))
    judged = []
    for second in others:
        pair = SourcePair(row, first, known[first], second, known[second])
        causes = causes_of(pair, ctx)
        judged.append((pair, causes, pair.delta - sum(c.amount for c in causes)))
    pair, causes, residual = next((j for j in judged if j[2]), next((j for j in judged if j[0].delta), judged[0]))
    if residual == 0:
        if pair.delta == 0 and (error := _differs_elsewhere(row, ctx)) is not None:
            defect = Cause(
                "formula_term", 0, _ids(row, "analytic", "static"), error, accepted=False,
                note="equal at this workload, but not the same formula",
            )  # fmt: skip
            return Diagnosis("unexplained", 0, pair.other, (*notes, defect), 0, error)
        # All pairs other than the reported one are explained too: an unexplained one would be reported.
        return Diagnosis("explained" if pair.delta else "exact", pair.delta, pair.other, (*notes, *causes), 0)
    # A formula is wrong if no graph agrees with it.
    wrong = first == "analytic" and known[first] not in {known[s] for s in GRAPH_SOURCES if s in known}
    error = None
    if wrong and "static" in known:
        error = _error(row, ctx) or str(pair.value - known["static"])
    kind: CauseKind = "formula_term" if wrong else "source_disagreement"
    if (note := other_calls(pair, ctx)) is not None:
        kind = "call_count"
    elif wrong:
        values = ctx.values.get((row.stage, row.invocation), ctx.values[("", "")])
        note = hint(pair.value, pair.target, row.cells[first].exprs, values)
    else:
        note = f"{first} and {pair.other} should see the same work"
    defect = Cause(kind, residual, _ids(row, first, pair.other), error, accepted=False, note=note)
    return Diagnosis("unexplained", pair.delta, pair.other, (*notes, *causes, defect), residual, error)


def renamed(row: AlignedRow) -> tuple[Cause, ...]:
    """Return causes of amount 0 if sources name different operators for the same work."""
    if row.metric not in ("flops", KEPT_FLOPS):
        return ()
    names = {s: sorted({k for k, v in c.kinds if v != 0}) for s, c in row.cells.items() if c.kinds}
    spelled = {s: frozenset(kind_of(n) for n in found) for s, found in names.items() if found}
    if len(set(spelled.values())) < 2:
        return ()
    kind: CauseKind = "expert_kernel" if any("expert_gemm" in k for k in spelled.values()) else "decomposition"
    calls = tuple(f"{s}: {', '.join(names[s])}" for s in order(spelled))
    return (Cause(kind, 0, calls, note="; ".join(calls)),)


def finding(row: AlignedRow, judged: Diagnosis, pattern: str, count: int) -> Finding:
    """Return the finding on ``count`` modules whose rows have equal results."""
    sources = order(row.cells)
    values = {s: None if (v := row.cells[s].value) is None else v * count for s in sources}
    causes = tuple(replace(c, amount=c.amount * count) for c in judged.causes)
    call = f"[{row.invocation}]" if row.invocation else ""
    kind = f":{row.kind}" if row.kind else ""
    return Finding(
        id=f"{row.stage}{call}/{pattern or '(root)'}{kind}#{row.metric}",
        level="module",
        stage=row.stage,
        invocation=row.invocation,
        module=pattern,
        kind=row.kind,
        metric=row.metric,
        status=judged.status,
        values=values,
        delta=None if judged.delta is None else judged.delta * count,
        causes=causes,
        residual=None if judged.residual is None else judged.residual * count,
        reference=judged.reference,
        deltas=pairwise(values),
        count=count,
        error_expression=judged.error_expression,
        evidence=tuple(f"{s}: {_shown(row.cells[s])}" for s in sources if row.cells[s].ids),
    )


def pairwise(values: Mapping[str, int | None]) -> dict[str, int]:
    """Return the difference of each pair of sources that differ, by ``first-second``."""
    return {
        f"{a}-{b}": x - y
        for a, b in combinations(order(values), 2)
        if (x := values[a]) is not None and (y := values[b]) is not None and x != y
    }


def _error(row: AlignedRow, ctx: Context) -> str | None:
    if (sides := _expressions(row)) is None:
        return None
    fixed, alias, _ = ctx.binding(row)
    if (row.stage, row.invocation, row.module) in ctx.concrete:
        # The graph has only numbers, so the formula is evaluated at the same values.
        fixed, alias = tuple(sorted({**dict(fixed), **ctx.values.get((row.stage, row.invocation), {})}.items())), ()
    shown = difference(*sides, fixed, alias)
    return None if shown == "0" else shown


def _differs_elsewhere(row: AlignedRow, ctx: Context) -> str | None:
    if (sides := _expressions(row)) is None or (row.stage, row.invocation, row.module) in ctx.concrete:
        return None
    return None if same(*sides, *ctx.binding(row)) else _error(row, ctx)


def _expressions(row: AlignedRow) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the summands of the analytic and of the static formula; ``None`` if either is missing."""
    mine, theirs = (row.cells[s].exprs if s in row.cells else None for s in ("analytic", "static"))
    return None if mine is None or theirs is None else (mine, theirs)


def _ids(row: AlignedRow, *sources: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(i for s in sources if s in row.cells for i in row.cells[s].ids[:3]))


def _shown(cell: AlignedCell) -> str:
    parts = {kind: exact_sum(v for k, v in cell.kinds if k == kind) for kind, _ in cell.kinds}
    text = ", ".join(f"{k} = {'unknown' if v is None else v}" for k, v in parts.items()) or cell.owner or "present"
    labels = list(dict.fromkeys(cell.labels))
    if labels:
        more = f" and {len(labels) - _LABELS} more" if len(labels) > _LABELS else ""
        text += f" ({', '.join(labels[:_LABELS])}{more})"
    return text


_MOST = 3


def hint(value: int, expected: int, exprs: tuple[str, ...] | None, values: Mapping[str, int]) -> str:
    """Return a sentence that guesses the mistake in a formula that gives ``value`` instead of ``expected``.

    Args:
        exprs: the formula that gave the value, as a sum of expressions.
        values: values of the symbols at this workload.
    """
    if value == 0:
        return "missing: no formula counts this"
    if expected == 0:
        return "extra: the formula counts what no graph has"
    if term := _term(value - expected, exprs, values):
        return f"extra term {term}?"
    ratio = Fraction(value, expected)
    if ratio == Fraction(1, 2):
        return "factor 1/2 (a multiply-accumulate counted as one operation, or a sum over one of two?)"
    if ratio.numerator <= 4 and ratio.denominator <= 4:
        return f"factor {ratio}"
    if swaps := _swaps(ratio, exprs, values):
        return "wrong dimension: " + " or ".join(swaps) + "?"
    if product := _product(expected - value, values):
        return f"{'missing' if expected > value else 'extra'} term of the size {product}?"
    return f"value/expected = {ratio}" if ratio.denominator < 10_000 else "wrong by the amount"


def _term(amount: int, exprs: tuple[str, ...] | None, values: Mapping[str, int]) -> str | None:
    for expression in exprs or ():
        for term in _terms(expression):
            if at((text(term),), values) == amount:
                return text(term)
    return None


@lru_cache(maxsize=1024)
def _terms(expression: str) -> tuple[sympy.Expr, ...]:
    terms = sympy.Add.make_args(sympy.expand(parse(expression)))
    return tuple(terms) if len(terms) > 1 else ()


def _swaps(ratio: Fraction, exprs: tuple[str, ...] | None, values: Mapping[str, int]) -> list[str]:
    used = sorted({name for e in exprs or () for name in free_symbols(e)})
    found = [
        f"{wrong} in place of {right}"
        for wrong in used
        for right in sorted(values)
        if right != wrong and _family(right) == _family(wrong) and values.get(wrong)
        if values[right] and Fraction(values[wrong], values[right]) == ratio
    ]
    return found[:_MOST]


def _family(name: str) -> str:
    prefix, _, rest = name.partition("_")
    return prefix if rest else ""


def _product(amount: int, values: Mapping[str, int]) -> str | None:
    """Return the product of up to three symbols and a small factor that equals ``amount``; ``None`` unless unique."""
    names = sorted(n for n, v in values.items() if v > 2 and amount % v == 0)
    found = []
    for size in (1, 2, 3):
        for group in combinations_with_replacement(names, size):
            factor, rest = divmod(abs(amount), prod(values[name] for name in group))
            if rest == 0 and factor in (1, 2, 4):
                found.append("*".join((*(() if factor == 1 else (str(factor),)), *group)))
        if found:
            return found[0] if len(found) == 1 else None
    return None
