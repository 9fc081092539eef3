"""Where a form holds: what the export's guards, and the target that made the job, ask of the sizes; for people too."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Final

import sympy

from costproof.compare.proof.closed_form import Limit
from costproof.ledger.errors import BadInput
from costproof.ledger.evaluate import evaluate
from costproof.ledger.symbols import factored, parse, sym, text
from costproof.tracers.derive.draw import examples
from costproof.tracers.exported import Exported
from costproof.tracers.exported_sizes import plain
from costproof.tracers.guards import Condition, guard_conditions

MOST_SHOWN: Final = 200
"""Characters of a condition in words; a longer one is an expression in data alone."""
_SIZES: Final = (*range(2, 40), 63, 64, 65, 100, 127, 128, 1_000, 4_097, 131_072, 1_000_003)
_FEW: Final = (2, 3, 4, 5, 7, 13, 37, 64, 4_097)
_LONG: Final = 80
"""Characters of a guard beyond which its own numbers are coefficients, not bounds."""
Point = dict[str, int]


def limits(exported: Exported, steps: Mapping[str, int]) -> tuple[Limit, ...]:
    """The conditions that are not met at every size that was tried, those among their own numbers included.

    Bounds of one symbol are one condition each way; of others those that exclude no more of these sizes than simpler
    ones are left out. That a symbol stands for 2 or more is not among them.

    Args:
        steps: symbols that are multiples of a number.

    Raises:
        Incomplete: a guard asks for something other than sizes of inputs, or a condition is not one on integers.
    """
    found = [c for c in guard_conditions(exported) if not all(map(c.met, _tried(c, exported, steps)))]
    usual = [p for c in found for p in _tried(c, exported, steps)]
    bounds, others = dict[tuple[str, int], int](), list[sympy.Expr]()
    for margin in map(parse, exported.job.holds):
        if not _is_bound(margin, bounds):
            others.append(margin)
    for condition in sorted(found, key=lambda c: len(c.text)):
        left = [p for p in usual if not condition.met(p)]
        if not left:
            continue
        usual = [p for p in usual if condition.met(p)]
        margin = _whole(condition.margin(), steps)
        if not _is_bound(margin, bounds):
            others.append(margin)
    made = [sym(name) - end if way > 0 else end - sym(name) for (name, way), end in bounds.items()]
    whole = (
        Limit(f"{name} is a multiple of {step}", text(step * sympy.floor(sym(name) / step) - sym(name)))
        for name, step in steps.items()
    )
    return (*(Limit(said(m), text(m)) for m in (*made, *dict.fromkeys(others))), *whole)


def _whole(margin: sympy.Expr, steps: Mapping[str, int]) -> sympy.Expr:
    """A condition without the rounding that a symbol, a multiple of its step, makes needless."""
    times = {sym(name): step * sym(name) for name, step in steps.items()}
    return plain(margin.xreplace(times)).xreplace({sym(name): sym(name) / step for name, step in steps.items()})


def _is_bound(margin: sympy.Expr, bounds: dict[tuple[str, int], int]) -> bool:
    """Whether a condition is a bound of one symbol; then it is kept among the others, the narrower of two."""
    symbol, *more = sorted(margin.free_symbols, key=str)
    slope = margin.coeff(symbol)
    rest = sympy.expand(margin - slope * symbol)
    if more or not slope.is_Integer or not rest.is_Integer or slope == 0:
        return False
    end, key = int(sympy.ceiling(-rest / slope) if slope > 0 else sympy.floor(-rest / slope)), int(sympy.sign(slope))
    before = bounds.get((symbol.name, key), end)
    bounds[symbol.name, key] = max(before, end) if slope > 0 else min(before, end)
    return True


def all_met(given: Iterable[Limit], sizes: Mapping[str, int]) -> bool:
    """Whether all conditions are met; one that has no value there is not."""
    return all(_met(parse(limit.margin), sizes) for limit in given)


def _met(margin: sympy.Expr, sizes: Mapping[str, int]) -> bool:
    try:
        return evaluate(margin, sizes) >= 0
    except BadInput:
        return False


def _tried(condition: Condition, exported: Exported, steps: Mapping[str, int]) -> Iterator[Point]:
    """Sizes at which a condition may fail: usual ones, and its own numbers and their quotients, one more and less."""
    names, sizes = sorted(condition.names), set(_SIZES if len(condition.names) == 1 else _FEW)
    numbers = {int(n) for n in re.findall(r"(?<![\w.])\d+(?![\w.])", condition.text)}
    if len(condition.text) <= _LONG:
        sizes |= {n * k // m + d for n in numbers for m in {1, *numbers} if m for k in (1, m) for d in (-1, 0, 1)}
        sizes |= {math.isqrt(n) + d for n in numbers for d in (-1, 0, 1)}
    every = (s.name for size in exported.job.sizes for s in parse(size.symbol).free_symbols)
    usual = {name: 7 * steps.get(name, 1) for name in every} | examples(exported.job)
    for point in product(sorted(s for s in sizes if s >= 2), repeat=len(names)):
        yield usual | {name: size * steps.get(name, 1) for name, size in zip(names, point, strict=True)}


def said(margin: sympy.Expr) -> str:
    """A condition in words of mathematics: ``P >= 511``, ``B*S <= 400``, ``S != 100``."""
    for sign, square in (("==", -margin), ("!=", margin + 1)):
        times, of = factored(square).as_coeff_Mul()
        squares = sympy.Mul.make_args(of)
        if times > 0 and all(s.is_Pow and s.exp.is_even and s.exp > 0 for s in squares):
            return _sides(sympy.Mul(*(s.base for s in squares if not s.base.is_positive)), sign)
    return _sides(margin, ">=")


def _sides(margin: sympy.Expr, sign: str) -> str:
    """``left sign right`` without minus signs, divided by what divides all of it."""
    terms = sympy.expand(margin).as_coefficients_dict()
    common = sympy.gcd_list([abs(n) for n in terms.values()]) if len(terms) > 1 else 1
    left, right = (
        sympy.Add(*(abs(n) / common * term for term, n in terms.items() if (n > 0) == up)) for up in (True, False)
    )
    if left.is_number:
        left, right, sign = right, left, {">=": "<="}.get(sign, sign)
    shown = f"{text(left)} {sign} {text(right)}"
    return shown if len(shown) <= MOST_SHOWN else f"{shown[: MOST_SHOWN - 2]} …"
