"""The conditions under which an export holds: torch's own guards, evaluated at given sizes."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from costproof.ledger.errors import Incomplete
from costproof.ledger.evaluate import evaluate
from costproof.ledger.symbols import parse
from costproof.tracers.exported import Exported

Shapes = Mapping[str, Sequence[int]]
Guard = Callable[[Shapes], Any]
"""A condition, or a number in one."""

_TWO: Final[Mapping[type[ast.AST], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Div: lambda a, b: Fraction(a) / b,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_ONE: Final[Mapping[type[ast.AST], Callable[[Any], Any]]] = {ast.Not: operator.not_, ast.USub: operator.neg}
_SOME: Final[Mapping[str, Callable[..., Any]]] = {"min": min, "max": max}


def holds_at(exported: Exported, points: Sequence[Mapping[str, int]]) -> tuple[bool, ...]:
    """Whether the graph of an export describes the model at each point.

    A graph with symbols stands for all sizes that pass the exporter's guards; at others the model may take another
    way. Guards are Python text that torch writes; it is read by the grammar below, and never run.

    Args:
        points: values of the symbols of the export's sizes.

    Raises:
        Incomplete: a guard asks for something other than sizes of inputs.
    """
    try:
        guards = [_read(ast.parse(g, mode="eval").body) for g in exported.guards]
        return tuple(_holds(exported, guards, point) for point in points)
    except (LookupError, TypeError) as error:
        raise Incomplete(
            "a condition of an export is about something other than sizes",
            where=f"{exported.job.stage}, export {exported.job.id}",
            got=str(error),
        ) from error


def _holds(exported: Exported, guards: Sequence[Guard], point: Mapping[str, int]) -> bool:
    job = exported.job
    shapes = {name: list(v.shape) for name, v in job.args.items() if hasattr(v, "shape")}
    for size in job.sizes:
        value = evaluate(parse(size.symbol), point)
        # The exporter takes a symbol to be 2 or more.
        if value % size.step or value < 2 * size.step:
            return False
        shapes[str(size.argument[0])][size.dim] = value
    return all(guard(shapes) for guard in guards)


def _read(node: ast.expr) -> Guard:
    """Arithmetic, comparisons, ``and``, ``or``, ``not``, ``min`` and ``max`` over integers and ``L['x'].size()[1]``.

    Read once and asked at hundreds of points, each guard becomes a function of the shapes.
    """
    match node:
        case ast.Constant(value=int() | float() as value):
            return lambda shapes: value
        case ast.Subscript(
            ast.Call(ast.Attribute(ast.Subscript(ast.Name("L"), ast.Constant(str() as name)), "size"), [], []),
            ast.Constant(int() as dim),
        ):
            return lambda shapes: shapes[name][dim]
        case ast.BinOp(left, sign, right):
            two, a, b = _TWO[type(sign)], _read(left), _read(right)
            return lambda shapes: two(a(shapes), b(shapes))
        case ast.Compare(left, signs, others):
            pairs = [
                (_TWO[type(s)], _read(a), _read(b)) for s, a, b in zip(signs, (left, *others), others, strict=False)
            ]
            return lambda shapes: all(two(a(shapes), b(shapes)) for two, a, b in pairs)
        case ast.UnaryOp(sign, of) if type(sign) in _ONE:
            one, x = _ONE[type(sign)], _read(of)
            return lambda shapes: one(x(shapes))
        case ast.BoolOp(sign, parts):
            join, values = all if isinstance(sign, ast.And) else any, [_read(x) for x in parts]
            return lambda shapes: join(v(shapes) for v in values)
        case ast.Call(ast.Name(name), arguments, []):
            some, values = _SOME[name], [_read(x) for x in arguments]
            return lambda shapes: some(*(v(shapes) for v in values))
    raise TypeError(ast.unparse(node))
