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

_TWO: Final[Mapping[type[ast.AST], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Div: lambda a, b: Fraction(a) / b,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
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
    guards = [ast.parse(g, mode="eval").body for g in exported.guards]
    return tuple(_holds(exported, guards, point) for point in points)


def _holds(exported: Exported, guards: Sequence[ast.expr], point: Mapping[str, int]) -> bool:
    job = exported.job
    shapes = {name: list(v.shape) for name, v in job.args.items() if hasattr(v, "shape")}
    for size in job.sizes:
        value = evaluate(parse(size.symbol), point)
        # The exporter takes a symbol to be 2 or more.
        if value % size.step or value < 2 * size.step:
            return False
        shapes[str(size.argument[0])][size.dim] = value
    try:
        return all(_value(guard, shapes) for guard in guards)
    except (LookupError, TypeError) as error:
        raise Incomplete(
            "a condition of an export is about something other than sizes",
            where=f"{job.stage}, export {job.id}",
            got=str(error),
        ) from error


def _value(node: ast.expr, shapes: Shapes) -> Any:
    """Arithmetic, comparisons, ``and``, ``or``, ``not``, ``min`` and ``max`` over integers and ``L['x'].size()[1]``."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Subscript(
            ast.Call(ast.Attribute(ast.Subscript(ast.Name("L"), ast.Constant(str() as name)), "size"), [], []),
            ast.Constant(int() as dim),
        ):
            return shapes[name][dim]
        case ast.BinOp(left, sign, right):
            return _TWO[type(sign)](_value(left, shapes), _value(right, shapes))
        case ast.Compare(left, signs, others):
            values = [_value(x, shapes) for x in (left, *others)]
            return all(_TWO[type(s)](a, b) for s, a, b in zip(signs, values, values[1:], strict=False))
        case ast.UnaryOp(sign, of) if isinstance(sign, ast.Not | ast.USub):
            value = _value(of, shapes)
            return not value if isinstance(sign, ast.Not) else -value
        case ast.BoolOp(sign, parts):
            return (all if isinstance(sign, ast.And) else any)(_value(x, shapes) for x in parts)
        case ast.Call(ast.Name(name), arguments, []):
            return _SOME[name](*(_value(x, shapes) for x in arguments))
    raise TypeError(ast.unparse(node))
