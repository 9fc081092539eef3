"""Evaluate the guards under which an export is valid, at given sizes or as expressions."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import pairwise, product
from typing import Any, Final, Generic, TypeVar

import sympy

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import parse
from costproof.ledger.errors import Incomplete
from costproof.models.specs import ExportJob
from costproof.tracers.exported import Exported
from costproof.tracers.exporting import NO_EXPORT, Argument

T = TypeVar("T")
SizeValues = Mapping[str, int]
"""Value of each size, by its symbol."""
Guard = Callable[[SizeValues], Any]
"""A guard, or a number in a guard, as a function of sizes."""

_SOME_SIZES: Final = (2, 3, 7, 64, 1_000, 4_097, 131_072, 1_000_003)


@dataclass(frozen=True, slots=True)
class _GuardAlgebra(Generic[T]):
    """Operations to which the text of a guard is translated: on numbers at given sizes, or on expressions."""

    number: Callable[[Any], T]
    truth: Callable[[bool], T]
    symbol: Callable[[str], T]
    two: Mapping[type[ast.AST], Callable[[T, T], T]]
    negative: Callable[[T], T]
    untrue: Callable[[T], T]
    every: Callable[..., T]
    """Operation for ``and`` and for chained comparisons."""
    some: Callable[..., T]
    least: Callable[..., T]
    most: Callable[..., T]


def _deferred(of: Callable[..., Any]) -> Callable[..., Guard]:
    """Turn an operation on values into the same operation on functions of sizes."""
    return lambda *parts: lambda sizes: of(*(part(sizes) for part in parts))


_AT_SIZES: Final[_GuardAlgebra[Guard]] = _GuardAlgebra(
    number=lambda value: lambda sizes: value,
    truth=lambda value: lambda sizes: value,
    symbol=lambda name: lambda sizes: sizes[name],
    two={sign: _deferred(of) for sign, of in {
        ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
        ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Div: lambda a, b: Fraction(a) / b,
        ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
        ast.GtE: operator.ge,
    }.items()},
    negative=_deferred(operator.neg),
    untrue=_deferred(operator.not_),
    every=lambda *parts: lambda sizes: all(part(sizes) for part in parts),
    some=lambda *parts: lambda sizes: any(part(sizes) for part in parts),
    least=_deferred(min),
    most=_deferred(max),
)  # fmt: skip
"""Operations that turn a guard into a function of sizes, to be parsed once and evaluated at hundreds of sizes."""
_IN_SYMBOLS: Final[_GuardAlgebra[sympy.Expr]] = _GuardAlgebra(
    number=lambda value: sympy.Integer(operator.index(value)),
    truth=lambda value: sympy.Integer(value - 1),
    symbol=parse,
    two={
        ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
        ast.FloorDiv: lambda a, b: sympy.floor(a / b), ast.Mod: lambda a, b: a - b * sympy.floor(a / b),
        ast.Eq: lambda a, b: -(sympy.expand(a - b) ** 2), ast.NotEq: lambda a, b: sympy.expand(a - b) ** 2 - 1,
        ast.Lt: lambda a, b: b - a - 1, ast.LtE: lambda a, b: b - a, ast.Gt: lambda a, b: a - b - 1,
        ast.GtE: lambda a, b: a - b,
    },
    negative=operator.neg,
    untrue=lambda of: -of - 1,
    every=sympy.Min,
    some=sympy.Max,
    least=sympy.Min,
    most=sympy.Max,
)  # fmt: skip
"""Operations that turn a guard into an integer expression that is not negative where the guard holds."""


def holds_at(exported: Exported, points: Sequence[SizeValues]) -> tuple[bool, ...]:
    """Return, for each point, whether the graph of an export is valid at these sizes.

    A symbolic graph is valid at all sizes that satisfy the exporter's guards; at others the model may take a different
    branch. Guards are Python text written by torch; they are read by the grammar below and never executed.

    Args:
        points: values of the symbols of the export's sizes.

    Raises:
        Incomplete: a guard depends on something other than sizes of inputs.
    """
    guards = _guards(exported)
    # The exporter assumes that a symbol is at least 2.
    least = {size.symbol: 2 * size.step for size in exported.job.sizes}
    values = [_values(exported, point) for point in points]
    return tuple(
        all(at[name] >= low for name, low in least.items()) and _first_broken(exported, guards, at) is None
        for at in values
    )


def first_broken_guard(exported: Exported, points: Sequence[SizeValues]) -> str | None:
    """Return the first guard that is false at one of the points; ``None`` if all guards hold.

    A size of 1 counts as 2 here, the least value that the exporter assumes for a symbol: its graphs are also used for
    one page or one sequence, where another source checks them.

    Raises:
        Incomplete: a guard depends on something other than sizes of inputs.
    """
    guards = _guards(exported)
    least = {size.symbol: 2 * size.step for size in exported.job.sizes}
    for point in points:
        values = _values(exported, point)
        broken = _first_broken(exported, guards, {name: max(value, least[name]) for name, value in values.items()})
        if broken is not None:
            return f"{broken}, at {', '.join(f'{name} = {value:,}' for name, value in values.items())}"
    return None


def conditions(exported: Exported) -> tuple[str, ...]:
    """Return the texts of guards that fail at some combination of a few sizes up to a million.

    A guard that fails only between these sizes is missed. The guards that torch writes compare sums and products of
    sizes, which intersect once or twice.

    Raises:
        Incomplete: a guard depends on something other than sizes of inputs.
    """
    symbols = {size.symbol for size in exported.job.sizes}
    names = sorted({str(s) for symbol in symbols for s in parse(symbol).free_symbols})
    points = [dict(zip(names, point, strict=True)) for point in product(_SOME_SIZES, repeat=len(names))]
    every = [_values(exported, point) for point in points]
    return tuple(text for text, holds in _guards(exported) if not all(_holds(holds, at) for at in every))


@dataclass(frozen=True, slots=True)
class GuardCondition:
    """A guard of an export, parsed."""

    text: str
    names: frozenset[str]
    """Symbols of the sizes that the guard depends on."""
    met: Callable[[SizeValues], bool]
    """Function from values of all symbols to whether the guard holds; a division by zero counts as false."""
    margin: Callable[[], sympy.Expr]
    """Function that returns an expression that is not negative where the guard holds, or raises ``Incomplete``."""


def guard_conditions(exported: Exported) -> list[GuardCondition]:
    """Parse every guard of an export.

    Raises:
        Incomplete: a guard depends on something other than sizes of inputs.
    """

    def read(node: ast.expr) -> GuardCondition:
        holds, said = _read(node, _AT_SIZES), ast.unparse(node)
        sizes = [parse(n.id) for n in ast.walk(node) if isinstance(n, ast.Name) and n.id not in ("min", "max")]

        def margin() -> sympy.Expr:
            with _about_sizes(exported.job):
                return sympy.expand(_read(node, _IN_SYMBOLS))

        return GuardCondition(
            said,
            frozenset(s.name for size in sizes for s in size.free_symbols),
            lambda at: _holds(holds, _values(exported, at)),
            margin,
        )

    return _each(exported.job, exported.guards, read)


def margins(job: ExportJob, guards: Sequence[str]) -> tuple[sympy.Expr, ...]:
    """Return expressions in an export's symbols that are all at least 0 exactly where its guards hold.

    Expressions that are never negative are left out. That the exporter assumes symbols to be at least 2 is not among
    them.

    Raises:
        Incomplete: a guard depends on something other than integer sizes of inputs.
    """
    whole = [-_IN_SYMBOLS.two[ast.Mod](parse(size.symbol), size.step) for size in job.sizes if size.step > 1]
    found = map(sympy.expand, [*_each(job, guards, lambda node: _read(node, _IN_SYMBOLS)), *whole])
    return tuple(dict.fromkeys(x for x in found if not x.is_nonnegative))


def _values(exported: Exported, point: SizeValues) -> dict[str, int]:
    """Return the value of each symbolic size at a point, by text of the size, which may be an expression."""
    symbols = dict.fromkeys(size.symbol for size in exported.job.sizes)
    return {s: point[s] if s in point else evaluate(parse(s), point) for s in symbols}


def _first_broken(exported: Exported, guards: Sequence[tuple[str, Guard]], values: SizeValues) -> str | None:
    for size in exported.job.sizes:
        if values[size.symbol] % size.step:
            return f"{size.symbol} % {size.step} == 0"
    outside = (f"{margin} >= 0" for margin in exported.job.holds if evaluate(parse(margin), values) < 0)
    return next(outside, None) or next((text for text, holds in guards if not _holds(holds, values)), None)


def _holds(holds: Guard, values: SizeValues) -> bool:
    """Return whether a guard holds at these sizes; a division by zero counts as false."""
    try:
        return bool(holds(values))
    except ZeroDivisionError:
        return False


def _guards(exported: Exported) -> list[tuple[str, Guard]]:
    """Return the text and the function of sizes of each distinct guard."""
    return _each(exported.job, exported.guards, lambda node: (ast.unparse(node), _read(node, _AT_SIZES)))


def _each(job: ExportJob, guards: Sequence[str], read: Callable[[ast.expr], T]) -> list[T]:
    reader = _SizeSubstitution(job)
    with _about_sizes(job):
        conditions: list[ast.expr] = [reader.visit(ast.parse(g, mode="eval").body) for g in guards]
        return [read(node) for node in {ast.dump(node): node for node in conditions}.values()]


@contextmanager
def _about_sizes(job: ExportJob) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        raise Incomplete(
            "a guard of an export depends on something other than the sizes of inputs",
            where=f"{job.stage}, export {job.id}",
            expected="sizes of inputs, integers and comparisons",
            got=str(error),
            fix=NO_EXPORT,
        ) from error


class _SizeSubstitution(ast.NodeTransformer):
    """Transformer that replaces the size of an input, ``L['keys'][0].size()[2]``, by its symbol or constant."""

    def __init__(self, job: ExportJob) -> None:
        self.args: Any = job.args
        self.symbols = {(tuple(s.argument), s.dim): s.symbol for s in job.sizes}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in ("min", "max"):
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


def _read(node: ast.expr, into: _GuardAlgebra[T]) -> T:
    """Translate a guard's syntax tree: arithmetic, comparisons, ``and``, ``or``, ``not``, ``min`` and ``max``."""

    def read(*nodes: ast.expr) -> list[T]:
        return [_read(one, into) for one in nodes]

    match node:
        case ast.Constant(value=bool() as value):
            return into.truth(value)
        case ast.Constant(value=int() | float() as value):
            return into.number(value)
        case ast.Name(symbol):
            return into.symbol(symbol)
        case ast.BinOp(left, sign, right):
            return into.two[type(sign)](*read(left, right))
        case ast.Compare(left, signs, others):
            pairs = zip(signs, pairwise(read(left, *others)), strict=True)
            return into.every(*(into.two[type(sign)](a, b) for sign, (a, b) in pairs))
        case ast.UnaryOp(ast.Not(), of):
            return into.untrue(*read(of))
        case ast.UnaryOp(ast.USub(), of):
            return into.negative(*read(of))
        case ast.BoolOp(sign, parts):
            return (into.every if isinstance(sign, ast.And) else into.some)(*read(*parts))
        case ast.Call(ast.Name("min"), parts, []):
            return into.least(*read(*parts))
        case ast.Call(ast.Name("max"), parts, []):
            return into.most(*read(*parts))
    raise TypeError(ast.unparse(node))
