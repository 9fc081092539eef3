"""Define concolic integers: plain ints that record comparisons, so that one evaluation yields a path condition.

A target computes with the sizes of one point as usual. Each comparison with a size becomes a condition, and each
derived number an expression of the sizes; conditions and expressions are then evaluated for a million points at once.
Where Python needs a concrete value (``range``, an index, a hash), the condition is equality with that value. Nothing
that a target can do with a number goes unrecorded, except formatting it as text for a message.

The conditions of a path are evaluated at arrays of points, merged with those of other paths, and searched for the place
where they end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costproof.algebra.crossing import FAR, NotSolved, first_above
from costproof.algebra.symbols import sym

if TYPE_CHECKING:
    import sympy

SizeExpr = tuple[Any, ...]
"""Expression of a size: ``("var", name)``, ``("int", number)``, or (operator, expression, expression)."""
PointValues = Mapping[str, Any]
"""Values of variables by name: an integer, or an array with one integer per point."""

_OPERATORS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
_SAFE: Final = 2**62


@dataclass(frozen=True, slots=True)
class BranchCondition:
    """A comparison that a target's code made, with its outcome."""

    how: str
    left: SizeExpr
    right: SizeExpr
    outcome: bool

    @property
    def comparison(self) -> tuple[str, SizeExpr, SizeExpr]:
        """Return the comparison without its outcome."""
        return self.how, self.left, self.right

    def holds(self, values: PointValues, known: dict[SizeExpr, Any]) -> Any:
        """Return whether the comparison has the same outcome at other values, as a bool or an array of bools."""
        found = _COMPARISONS[self.how](
            evaluate_size(self.left, values, known), evaluate_size(self.right, values, known)
        )
        return found if self.outcome else np.logical_not(found)


@dataclass(slots=True)
class PathRecorder:
    """Recorder of a target's path conditions at one point; all points that satisfy them take the same branches."""

    conditions: dict[BranchCondition, None] = field(default_factory=dict)

    def note(self, how: str, left: SizeExpr, right: SizeExpr, outcome: bool) -> bool:
        """Record the outcome of a comparison, and return the outcome."""
        self.conditions[BranchCondition(how, left, right, outcome)] = None
        return outcome

    def variable(self, name: str, value: int) -> ConcolicInt:
        """Return an integer of the point as a concolic integer named ``name``."""
        return ConcolicInt(self, ("var", name), value)


def expression_of(number: Any) -> SizeExpr:
    """Return the expression of a number, concolic or not."""
    return number.expr if isinstance(number, ConcolicInt) else ("int", int(number))


def variables_of(expr: SizeExpr) -> frozenset[str]:
    """Return the names of the variables of an expression."""
    if expr[0] in ("var", "int"):
        return frozenset(expr[1:] if expr[0] == "var" else ())
    return frozenset().union(*map(variables_of, expr[1:]))


def concrete(number: Any) -> int:
    """Return the value of a number at the recorded point."""
    return number.value if isinstance(number, ConcolicInt) else int(number)


def _arithmetic(how: str) -> tuple[Any, Any]:
    """Return the normal and the reflected method of an arithmetic operator on expressions."""

    def left(self: ConcolicInt, other: Any) -> Any:
        return self._derive(how, self, other)

    def right(self: ConcolicInt, other: Any) -> Any:
        return self._derive(how, other, self)

    return left, right


def _concretized(function: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Return the normal and the reflected method of an operator that needs concrete values."""

    def left(self: ConcolicInt, other: Any) -> Any:
        return function(self._concretize(), other)

    def right(self: ConcolicInt, other: Any) -> Any:
        return function(other, self._concretize())

    return left, right


class ConcolicInt(Integral):
    """Integer that records the comparisons it is part of, and the arithmetic that produced it."""

    __slots__ = ("expr", "path", "value")

    def __init__(self, path: PathRecorder, expr: SizeExpr, value: int) -> None:
        self.path, self.expr, self.value = path, expr, value

    def _concretize(self) -> int:
        """Return the concrete value, and record the equality with it as a path condition."""
        self.path.note("==", self.expr, ("int", self.value), True)
        return self.value

    def _derive(self, how: str, left: Any, right: Any) -> Any:
        """Return the result of an operator, as a concolic integer if both operands are integers."""
        if not isinstance(left, int | ConcolicInt) or not isinstance(right, int | ConcolicInt):
            plain = (x._concretize() if isinstance(x, ConcolicInt) else x for x in (left, right))
            return _OPERATORS[how](*plain)
        if how in ("//", "%") and isinstance(right, ConcolicInt):
            self.path.note("==", right.expr, ("int", 0), right.value == 0)
        return ConcolicInt(
            self.path,
            (how, expression_of(left), expression_of(right)),
            _OPERATORS[how](concrete(left), concrete(right)),
        )

    def _compare(self, how: str, left: Any, right: Any) -> Any:
        """Return the outcome of a comparison, and record it as a path condition."""
        if not isinstance(left, int | ConcolicInt) or not isinstance(right, int | ConcolicInt):
            return NotImplemented
        outcome = bool(_COMPARISONS[how](concrete(left), concrete(right)))
        return self.path.note(how, expression_of(left), expression_of(right), outcome)

    __add__, __radd__ = _arithmetic("+")
    __sub__, __rsub__ = _arithmetic("-")
    __mul__, __rmul__ = _arithmetic("*")
    __floordiv__, __rfloordiv__ = _arithmetic("//")
    __mod__, __rmod__ = _arithmetic("%")
    __truediv__, __rtruediv__ = _concretized(operator.truediv)
    __rpow__ = _concretized(operator.pow)[1]
    __and__, __rand__ = _concretized(operator.and_)
    __or__, __ror__ = _concretized(operator.or_)
    __xor__, __rxor__ = _concretized(operator.xor)
    __lshift__, __rlshift__ = _concretized(operator.lshift)
    __rshift__, __rrshift__ = _concretized(operator.rshift)

    def __neg__(self) -> Any:
        return self._derive("-", 0, self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __pow__(self, exponent: Any, modulus: Any = None) -> Any:
        if not isinstance(exponent, int) or not 1 <= exponent <= 8 or modulus is not None:
            return pow(self._concretize(), exponent, modulus)
        power: Any = self
        for _ in range(exponent - 1):
            power = power * self
        return power

    def __eq__(self, other: object) -> Any:
        return self._compare("==", self, other)

    def __ne__(self, other: object) -> Any:
        found = self._compare("==", self, other)
        return found if found is NotImplemented else not found

    def __lt__(self, other: Any) -> Any:
        return self._compare("<", self, other)

    def __le__(self, other: Any) -> Any:
        return self._compare("<=", self, other)

    def __gt__(self, other: Any) -> Any:
        return self._compare("<", other, self)

    def __ge__(self, other: Any) -> Any:
        return self._compare("<=", other, self)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self._concretize())

    def __index__(self) -> int:
        return self._concretize()

    __int__ = __trunc__ = __floor__ = __ceil__ = __index__

    def __round__(self, digits: Any = None) -> int:
        return self._concretize()

    def __invert__(self) -> Any:
        return ~self._concretize()

    def __deepcopy__(self, memo: object) -> ConcolicInt:
        return self

    def __str__(self) -> str:
        # Of messages, and of names of runs; not a condition, or every point would have a path of its own.
        return "…"

    __repr__ = __str__

    def __format__(self, how: str) -> str:
        return "…"


def evaluate_size(expr: SizeExpr, values: PointValues, known: dict[SizeExpr, Any]) -> Any:
    """Evaluate the expression of a size at values of its variables.

    ``known`` memoizes the results of its parts. Where a result may exceed 62 bits it is computed with Python's
    integers.
    """
    head = expr[0]
    if head == "int":
        return expr[1]
    if head == "var":
        return values[expr[1]]
    if expr not in known:
        left, right = (evaluate_size(part, values, known) for part in expr[1:])
        if (
            head in "+-*"
            and _OPERATORS["*" if head == "*" else "+"](largest_magnitude(left), largest_magnitude(right)) >= _SAFE
        ):
            left, right = (x.astype(object) if isinstance(x, np.ndarray) else x for x in (left, right))
        with np.errstate(divide="ignore"):
            known[expr] = _divide(head, left, right) if head in ("//", "%") else _OPERATORS[head](left, right)
    return known[expr]


def largest_magnitude(value: Any) -> int:
    """Return the largest absolute value of a number or an array."""
    if not isinstance(value, np.ndarray):
        return abs(int(value))
    return max(abs(int(value.max())), abs(int(value.min()))) if value.size else 0


def _divide(how: str, left: Any, right: Any) -> Any:
    """Return a quotient or remainder; any value for divisor 0, which path conditions exclude."""
    if isinstance(right, np.ndarray):
        return _OPERATORS[how](left, np.where(right == 0, 1, right))
    return _OPERATORS[how](left, right) if right else left


# --- Path conditions --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _ConditionGroup:
    """Conditions of a path on the same variables, with their last result.

    Consecutive boxes of points share the arrays of all axes but one, so that most groups need not be evaluated again.
    """

    variables: tuple[str, ...]
    conditions: list[BranchCondition] = field(default_factory=list)
    arguments: tuple[Any, ...] | None = None
    """The arrays for which :attr:`held` was computed; ``None`` before the first result."""
    held: Any = True

    def holds(self, values: PointValues) -> Any:
        """Return where all conditions hold, as one bool if all points agree, else as an array."""
        arrays = tuple(values[name] for name in self.variables)
        if self.arguments is None or any(new is not old for new, old in zip(arrays, self.arguments, strict=True)):
            known: dict[Any, Any] = {}
            every = reduce(np.logical_and, (condition.holds(values, known) for condition in self.conditions))
            self.arguments, self.held = arrays, True if np.all(every) else every if np.any(every) else False
        return self.held


class PathCondition:
    """A conjunction of branch conditions."""

    __slots__ = ("_groups", "conditions")

    def __init__(self, conditions: Iterable[BranchCondition]) -> None:
        self.conditions = tuple(conditions)
        groups: dict[tuple[str, ...], _ConditionGroup] = {}
        for condition in self.conditions:
            names = tuple(sorted(variables_of(condition.left) | variables_of(condition.right)))
            groups.setdefault(names, _ConditionGroup(names)).conditions.append(condition)
        # Conditions on few variables come first.
        self._groups = sorted(groups.values(), key=lambda group: len(group.variables))

    def holds(self, values: Mapping[str, int]) -> bool:
        """Return whether one point satisfies all conditions."""
        known: dict[Any, Any] = {}
        return all(condition.holds(values, known) for condition in self.conditions)

    def mask(self, values: PointValues) -> Any:
        """Return which points satisfy all conditions, as one bool if all agree, else as an array that broadcasts."""
        some = []
        for group in self._groups:
            held = group.holds(values)
            if held is False:
                return False
            if held is not True:
                some.append(held)
        return reduce(np.logical_and, some) if some else True


def merge_paths(paths: Sequence[PathCondition]) -> list[PathCondition]:
    """Return as few path conditions as possible that together hold at the same points.

    Two paths that differ only in the outcome of one comparison are merged into one without it. A path whose conditions
    are a superset of another path's is dropped.
    """
    left = list({frozenset(path.conditions): path for path in paths}.items())
    for one, other in combinations(left, 2):
        differ = one[0] ^ other[0]
        if len(differ) == 2 and len({condition.comparison for condition in differ}) == 1:
            common = PathCondition(c for c in one[1].conditions if c not in differ)
            return merge_paths([common, *(path for conditions, path in left if not conditions >= one[0] & other[0])])
    return [path for conditions, path in left if not any(conditions > fewer for fewer, _ in left)]


_MOST_ZEROS = 2
"""Number of zeros of a quadratic polynomial."""


def branch_limit(path: PathCondition, variable: str, start: int, step: int = 1) -> int | None:
    """Return the smallest value above ``start`` at which a path condition fails or may fail, or ``None``.

    If a condition compares anything but polynomials of degree two at most, ``start + 1`` is returned.

    Args:
        path: a path that ``start`` satisfies.
        variable: the only variable that changes.
        start: the value to start from, in units of ``step``, as the result is.
        step: the variable takes only multiples of it.
    """
    limits = (_limits(condition, variable, start, step) for condition in path.conditions)
    return min((end for ends in limits for end in ends), default=None)


def _limits(condition: BranchCondition, variable: str, start: int, step: int) -> Iterator[int]:
    """Yield candidates for the first value at which a condition fails; the smallest candidate is that value."""
    name = sym(variable)
    try:
        left, right = (to_sympy(part, lambda _: step * name) for part in (condition.left, condition.right))
        yield from _difference_limits(condition, left - right, name, start)
    except NotSolved:
        yield start + 1


def _difference_limits(condition: BranchCondition, f: sympy.Expr, name: sympy.Symbol, start: int) -> Iterator[int]:
    """Yield candidates for the first value at which a condition fails; ``f`` is its left minus its right side."""
    # The expression that is above 0 where the condition does not hold.
    broken = {
        ("<", True): [f + 1], ("<", False): [-f], ("<=", True): [f], ("<=", False): [1 - f],
        ("==", True): [f, -f], ("==", False): [],
    }[condition.how, condition.outcome]  # fmt: skip
    found = [first_above(expr, name, start) for expr in broken]
    yield from (end for end in found if end is not None)
    if not broken and f.has(name):
        yield from _first_zero(f, name, start)


def _first_zero(f: sympy.Expr, name: sympy.Symbol, start: int) -> Iterator[int]:
    """Yield the first value from ``start`` on at which a polynomial is 0, if there is one.

    It may change its sign between two integers.
    """
    at: int | None = start
    for _ in range(_MOST_ZEROS + 1):
        if at is None or at > FAR:
            return
        here = f.subs(name, at)
        if here == 0:
            yield at
            return
        at = first_above(1 - f if here > 0 else f + 1, name, at)


def to_sympy(expr: SizeExpr, symbol: Callable[[str], sympy.Symbol], *, floors: bool = False) -> sympy.Expr:
    """Convert the expression of a size to sympy.

    A quotient by a number that divides all terms but the constant one is a polynomial, and its remainder a number.

    Args:
        symbol: returns the symbol of a variable, or what it stands for.
        floors: whether other floor divisions and remainders are converted too, as ``floor`` of a quotient.

    Raises:
        NotSolved: the expression is not a polynomial, and ``floors`` is not set.
    """
    import sympy

    how, *parts = expr
    if how == "int":
        return sympy.Integer(parts[0])
    if how == "var":
        return symbol(parts[0])
    left, right = (to_sympy(part, symbol, floors=floors) for part in parts)
    if how in ("//", "%") and right.is_Integer and right > 0:
        constant, terms = sympy.expand(left).as_coeff_Add()
        if all((coefficient / right).is_Integer for coefficient in terms.as_coefficients_dict().values()):
            return sympy.expand(terms / right) + constant // right if how == "//" else constant % right
    if how in ("//", "%") and not floors:
        raise NotSolved("not a polynomial")
    if how in ("//", "%"):
        whole = sympy.floor(left / right)
        return whole if how == "//" else left - right * whole
    return left + right if how == "+" else left - right if how == "-" else left * right
