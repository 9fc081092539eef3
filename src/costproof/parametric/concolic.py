"""Define concolic integers: plain ints that record comparisons, so that one evaluation yields a path condition.

A target computes with the sizes of one point as usual. Each comparison with a size becomes a condition, and each
derived number an expression of the sizes; conditions and expressions are then evaluated for a million points at once.
Where Python needs a concrete value (``range``, an index, a hash), the condition is equality with that value. Nothing
that a target can do with a number goes unrecorded, except formatting it as text for a message.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Final

import numpy as np

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
