"""The conditions under which an export holds: torch's own guards, evaluated at given sizes, or in symbols."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import product
from typing import Any, Final, TypeVar

import sympy

from costproof.ledger.errors import Incomplete
from costproof.ledger.evaluate import evaluate
from costproof.ledger.symbols import parse
from costproof.models.jobs import ExportJob
from costproof.tracers.exported import Exported
from costproof.tracers.exported_sizes import Argument

T = TypeVar("T")
Sizes = Mapping[str, int]
"""What the symbols of an export stand for."""
Guard = Callable[[Sizes], Any]
"""A condition on them, or a number in one."""

_TWO: Final[Mapping[type[ast.AST], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Div: lambda a, b: Fraction(a) / b,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_ONE: Final[Mapping[type[ast.AST], Callable[[Any], Any]]] = {ast.Not: operator.not_, ast.USub: operator.neg}
_SOME_SIZES: Final = (2, 3, 7, 64, 1_000, 4_097, 131_072, 1_000_003)
_SOME: Final[Mapping[str, Callable[..., Any]]] = {"min": min, "max": max}
_IN_SYMBOLS: Final[Mapping[type[ast.AST], Callable[[Any, Any], sympy.Expr]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
    ast.FloorDiv: lambda a, b: sympy.floor(a / b), ast.Mod: lambda a, b: a - b * sympy.floor(a / b),
    ast.Eq: lambda a, b: -(sympy.expand(a - b) ** 2), ast.NotEq: lambda a, b: sympy.expand(a - b) ** 2 - 1,
    ast.Lt: lambda a, b: b - a - 1, ast.LtE: lambda a, b: b - a, ast.Gt: lambda a, b: a - b - 1,
    ast.GtE: lambda a, b: a - b,
}  # fmt: skip
"""Of integers; what is true is not negative."""


def holds_at(exported: Exported, points: Sequence[Sizes]) -> tuple[bool, ...]:
    """Whether the graph of an export describes the model at each point.

    A graph with symbols stands for all sizes that pass the exporter's guards; at others the model may take another
    way. Guards are Python text that torch writes; it is read by the grammar below, and never run.

    Args:
        points: values of the symbols of the export's sizes.

    Raises:
        Incomplete: a guard asks for something other than sizes of inputs.
    """
    guards = _guards(exported)
    # The exporter takes a symbol to be 2 or more.
    least = {size.symbol: 2 * size.step for size in exported.job.sizes}
    values = [_values(exported, point) for point in points]
    return tuple(
        all(at[name] >= low for name, low in least.items()) and _broken(exported, guards, at) is None for at in values
    )


def broken_at(exported: Exported, points: Sequence[Sizes]) -> str | None:
    """The first guard that is not met at one of the points; ``None`` where all are.

    Here a size of 1 counts as 2, the least that the exporter takes a symbol to be: its graphs are used for one page
    or one sequence too, where another source judges them.

    Raises:
        Incomplete: a guard asks for something other than sizes of inputs.
    """
    guards = _guards(exported)
    least = {size.symbol: 2 * size.step for size in exported.job.sizes}
    for point in points:
        values = _values(exported, point)
        broken = _broken(exported, guards, {name: max(value, least[name]) for name, value in values.items()})
        if broken is not None:
            return f"{broken}, at {', '.join(f'{name} = {value:,}' for name, value in values.items())}"
    return None


def conditions(exported: Exported) -> tuple[str, ...]:
    """The guards that are not met at every combination of some sizes up to a million; of each the text.

    A guard that is broken in between two of these sizes alone is not seen; those that torch writes compare sums and
    products of sizes, which meet once or twice.

    Raises:
        Incomplete: a guard asks for something other than sizes of inputs.
    """
    symbols = {size.symbol for size in exported.job.sizes}
    names = sorted({str(s) for symbol in symbols for s in parse(symbol).free_symbols})
    points = [dict(zip(names, point, strict=True)) for point in product(_SOME_SIZES, repeat=len(names))]
    every = [_values(exported, point) for point in points]
    return tuple(text for text, holds in _guards(exported) if not all(map(holds, every)))


def margins(job: ExportJob, guards: Sequence[str]) -> tuple[sympy.Expr, ...]:
    """Expressions of the symbols of an export's sizes; where the export holds, none of them is negative.

    Those that never are negative are left out. That the exporter takes a symbol to be 2 or more is not among them.

    Raises:
        Incomplete: a guard asks for something other than integer sizes of inputs.
    """
    whole = [-_IN_SYMBOLS[ast.Mod](parse(size.symbol), size.step) for size in job.sizes if size.step > 1]
    found = map(sympy.expand, [*_each(job, guards, _margin), *whole])
    return tuple(dict.fromkeys(x for x in found if not x.is_nonnegative))


def _values(exported: Exported, point: Sizes) -> dict[str, int]:
    """The value of every symbolic size, which may be an expression, by its text."""
    symbols = dict.fromkeys(size.symbol for size in exported.job.sizes)
    return {s: point[s] if s in point else evaluate(parse(s), point) for s in symbols}


def _broken(exported: Exported, guards: Sequence[tuple[str, Guard]], values: Sizes) -> str | None:
    for size in exported.job.sizes:
        if values[size.symbol] % size.step:
            return f"{size.symbol} % {size.step} == 0"
    return next((text for text, holds in guards if not holds(values)), None)


def _guards(exported: Exported) -> list[tuple[str, Guard]]:
    """The guards with their texts in symbols: what every layer asks of its own cache is one."""
    return _each(exported.job, exported.guards, lambda node: (ast.unparse(node), _read(node)))


def _each(job: ExportJob, guards: Sequence[str], read: Callable[[ast.expr], T]) -> list[T]:
    reader = _Reader(job)
    try:
        conditions: list[ast.expr] = [reader.visit(ast.parse(g, mode="eval").body) for g in guards]
        return [read(node) for node in {ast.dump(node): node for node in conditions}.values()]
    except (LookupError, TypeError, AttributeError) as error:
        raise Incomplete(
            "a condition of an export is about something other than sizes",
            where=f"{job.stage}, export {job.id}",
            got=str(error),
        ) from error


class _Reader(ast.NodeTransformer):
    """Puts the symbol, or the constant, of an input's size for ``L['keys'][0].size()[2]``."""

    def __init__(self, job: ExportJob) -> None:
        self.args: Any = job.args
        self.symbols = {(tuple(s.argument), s.dim): s.symbol for s in job.sizes}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in _SOME:
            return node
        raise TypeError(node.id)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        match node:
            case ast.Subscript(ast.Call(ast.Attribute(tensor, "size"), [], []), ast.Constant(int() as dim)):
                path = _path(tensor)
                if (path, dim) in self.symbols:
                    return ast.Name(self.symbols[path, dim])
                return ast.Constant(int(reduce(operator.getitem, path, self.args).shape[dim]))
        raise TypeError(ast.unparse(node))


def _path(node: ast.expr) -> Argument:
    match node:
        case ast.Subscript(ast.Name("L"), ast.Constant(str() as name)):
            return (name,)
        case ast.Subscript(of, ast.Constant(int() as index)):
            return (*_path(of), index)
    raise TypeError(ast.unparse(node))


def _margin(node: ast.expr) -> sympy.Expr:
    """What :func:`_read` reads, in symbols and integers."""
    match node:
        case ast.Constant(value=int() as value):
            return sympy.Integer(value)
        case ast.Name(symbol):
            return parse(symbol)
        case ast.BinOp(left, sign, right):
            return _IN_SYMBOLS[type(sign)](_margin(left), _margin(right))
        case ast.Compare(left, signs, others):
            values = list(map(_margin, (left, *others)))
            return sympy.Min(*(_IN_SYMBOLS[type(s)](a, b) for s, a, b in zip(signs, values, values[1:], strict=False)))
        case ast.UnaryOp(ast.Not(), of):
            return -_margin(of) - 1
        case ast.UnaryOp(ast.USub(), of):
            return -_margin(of)
        case ast.BoolOp(sign, parts):
            return (sympy.Min if isinstance(sign, ast.And) else sympy.Max)(*map(_margin, parts))
        case ast.Call(ast.Name("min" | "max" as name), arguments, []):
            return (sympy.Min if name == "min" else sympy.Max)(*map(_margin, arguments))
    raise TypeError(ast.unparse(node))


def _read(node: ast.expr) -> Guard:
    """Arithmetic, comparisons, ``and``, ``or``, ``not``, ``min`` and ``max`` over integers and symbols.

    Read once and asked at hundreds of points, each guard becomes a function of the sizes.
    """
    match node:
        case ast.Constant(value=int() | float() as value):
            return lambda sizes: value
        case ast.Name(symbol):
            return lambda sizes: sizes[symbol]
        case ast.BinOp(left, sign, right):
            two, a, b = _TWO[type(sign)], _read(left), _read(right)
            return lambda sizes: two(a(sizes), b(sizes))
        case ast.Compare(left, signs, others):
            pairs = [
                (_TWO[type(s)], _read(a), _read(b)) for s, a, b in zip(signs, (left, *others), others, strict=False)
            ]
            return lambda sizes: all(two(a(sizes), b(sizes)) for two, a, b in pairs)
        case ast.UnaryOp(sign, of) if type(sign) in _ONE:
            one, x = _ONE[type(sign)], _read(of)
            return lambda sizes: one(x(sizes))
        case ast.BoolOp(sign, parts):
            join, values = all if isinstance(sign, ast.And) else any, [_read(x) for x in parts]
            return lambda sizes: join(v(sizes) for v in values)
        case ast.Call(ast.Name(name), arguments, []):
            some, values = _SOME[name], [_read(x) for x in arguments]
            return lambda sizes: some(*(v(sizes) for v in values))
    raise TypeError(ast.unparse(node))
