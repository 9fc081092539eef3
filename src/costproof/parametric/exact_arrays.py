"""Evaluate polynomials at many points at once with NumPy, exactly at any size.

If no sum of absolute terms reaches 2^63, int64 is used. Otherwise the sum is computed twice: modulo 2^64, which gives
its low 64 bits whatever overflows, and in float64, whose error is far below 2^63. Exactly one integer near the float
has these low bits:

    true = low + 2^64 rint((high - low) / 2^64)

A denominator with k factors of two leaves 64 - k bits of the low part, so that both parts are taken modulo 2^(64 - k).
The error of the float64 sum is bounded beforehand: with n terms of d factors, by (2d + 2n + 4) 2^-53 times the sum of
absolute terms. If the bound is too large, from about 2^107 on, Python's integers are used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from costproof.ledger.errors import BadInput
from costproof.parametric.concolic import PointValues, evaluate_size, largest_magnitude
from costproof.parametric.polynomial import ONE, FunctionAtom, Monomial, Quotient, SizeAtom

Terms = tuple[tuple[Monomial, int], ...]
HornerForm = int | tuple[int, int, Any, Any]
"""A polynomial in nested form: a number, or (atom, exponent, inner, rest) for atom^exponent × inner + rest."""
Ints = npt.NDArray[np.int64]
_LIMIT: Final = 2**63
_EXACT_FLOAT: Final = 2**53


@dataclass(frozen=True, slots=True)
class Int128Array:
    """Array of 128-bit integers in two's complement, stored as two arrays of 64 bits."""

    low: npt.NDArray[np.uint64]
    high: Ints

    def reshape(self, *shape: int) -> Int128Array:
        """Return the same integers in another shape."""
        return Int128Array(self.low.reshape(*shape), self.high.reshape(*shape))

    def python(self) -> npt.NDArray[np.object_]:
        """Return the same integers as an array of Python integers."""
        result: npt.NDArray[np.object_] = self.high.astype(object) * 2**64 + self.low.astype(object)
        return result


ExactColumn = Ints | Int128Array | npt.NDArray[np.object_]
"""Exact values of a quantity at every point, as int64, 128-bit or Python integers, whichever suffices."""


class _TooLarge(Exception):
    """Raised if an intermediate result of a formula exceeds 62 bits."""


class PointBatch:
    """A batch of points at which polynomials are evaluated, with shared intermediate results.

    Args:
        atoms: variables and functions (``Min``, ``ceiling``) whose products are the terms of the regime's formulas.
        values: variable -> an array, or a number if it is the same for all points. Together they broadcast to
            ``shape``, so that a result that depends on one axis of a grid is computed along that axis only.
        shape: the shape of the array of points.
    """

    def __init__(self, atoms: Sequence[SizeAtom | FunctionAtom], values: PointValues, shape: tuple[int, ...]) -> None:
        self.atoms, self.values, self.shape = atoms, values, shape
        self.known: dict[Any, Any] = {}
        self.atom_values: dict[int, Any] = {}
        self.sizes: dict[int, int] = {}
        self.whole: dict[tuple[int, int], Any] = {}
        self.floats: dict[tuple[int, int], Any] = {}
        self.exact: ExactEvaluator | None = None

    def column(self, cost: Quotient) -> ExactColumn:
        """Return a cost at every point.

        Raises:
            BadInput: the cost is not an integer at one of them.
        """
        try:
            bound = self._bound(cost.terms)
            if bound < _LIMIT:
                return self._divided(self._full(self._sum(cost.terms)), cost)
            degree = max(sum(e for _, e in m) for m, _ in cost.terms)
            bits = 64 - _twos(cost.divisor)
            error = bound * (2 * degree + 2 * len(cost.terms) + 4) / _EXACT_FLOAT / cost.divisor
            small = all(self._size(a) < _EXACT_FLOAT for m, _ in cost.terms for a, _ in m)
            if not cost.under and small and bits >= 32 and error < 2 ** (bits - 2):
                return self._words(cost, bits)
        except _TooLarge:
            pass
        return self._python(cost)

    def _size(self, atom: int) -> int:
        """Return the largest absolute value of an atom over the points of this batch."""
        if atom not in self.sizes:
            self.sizes[atom] = largest_magnitude(self._atom(atom))
        return self.sizes[atom]

    def _bound(self, terms: Terms) -> int:
        """Return an upper bound for the absolute value of every partial sum of the terms."""
        found = 0
        for monomial, factor in terms:
            size = 1
            for atom, exponent in monomial:
                size *= max(self._size(atom), 1) ** exponent
            found += size * abs(factor)
        return found

    def _atom(self, number: int) -> Any:
        if number not in self.atom_values:
            atom = self.atoms[number]
            if isinstance(atom, SizeAtom):
                result = evaluate_size(atom.expr, self.values, self.known)
            else:
                if any(self._bound(part) >= _LIMIT for part in atom.parts):
                    raise _TooLarge
                result = _function(atom.name, [self._sum(part) for part in atom.parts])
            if isinstance(result, np.ndarray) and result.dtype == object:
                raise _TooLarge
            self.atom_values[number] = result
        return self.atom_values[number]

    def _sum(self, terms: Terms) -> Any:
        """Return a sum of terms modulo 2^64, as int64 arrays wrap around."""
        return self._nested(horner(terms), _wrap, self.whole, lambda array: array)

    def _float(self, terms: Terms) -> Any:
        return self._nested(horner(terms), float, self.floats, np.float64)

    def _nested(self, tree: HornerForm, number: Any, powers: dict[tuple[int, int], Any], of: Any) -> Any:
        """Evaluate a Horner form; a result that does not depend on every axis stays smaller than the batch."""
        if isinstance(tree, int):
            return number(tree)
        atom, exponent, inner, rest = tree
        factor = self._power(atom, exponent, powers, of)
        times = self._nested(inner, number, powers, of)
        result = factor if inner == 1 else number(factor * times) if _plain(factor, times) else factor * times
        if rest == 0:
            return result
        more = self._nested(rest, number, powers, of)
        if inner != 1 and np.shape(result) == self.shape:
            result += more
            return result
        return number(result + more) if _plain(result, more) else result + more

    def _power(self, atom: int, exponent: int, powers: dict[tuple[int, int], Any], of: Any) -> Any:
        if (atom, exponent) not in powers:
            one = of(self._atom(atom)) if exponent == 1 else self._power(atom, 1, powers, of)
            powers[atom, exponent] = one if exponent == 1 else self._power(atom, exponent - 1, powers, of) * one
        return powers[atom, exponent]

    def _full(self, value: Any) -> Any:
        """Return a value broadcast to a new array over all points."""
        kind = np.int64 if isinstance(value, int) else None
        return (
            np.array(np.broadcast_to(np.asarray(value, kind), self.shape)) if np.shape(value) != self.shape else value
        )

    def _divided(self, result: Ints, cost: Quotient) -> Ints:
        divisor: Any = cost.divisor
        if cost.under:
            if self._bound(((cost.under, cost.divisor),)) >= _LIMIT:
                raise _TooLarge
            divisor = self._sum(((cost.under, cost.divisor),))
        elif divisor == 1:
            return result
        quotients, rests = np.divmod(result, divisor)
        if rests.any():
            raise _not_an_integer(cost)
        whole: Ints = quotients
        return whole

    def _words(self, cost: Quotient, bits: int) -> Int128Array:
        """Return the exact sum from its low 64 bits and a float64 approximation; see the module docstring."""
        low = self._full(self._sum(cost.terms)).view(np.uint64)
        high = self._full(self._float(cost.terms))
        if cost.divisor != 1:
            twos = 64 - bits
            if twos and (low & np.uint64(2**twos - 1)).any():
                raise _not_an_integer(cost)
            odd = cost.divisor >> twos
            low = (low >> np.uint64(twos)) * np.uint64(pow(odd, -1, 2**64))
            low &= np.uint64(2**bits - 1)
            high = high / float(cost.divisor)
        turns = np.rint((high - low) / 2.0**bits).astype(np.int64)
        if bits == 64:
            return Int128Array(low, turns)
        return Int128Array(low + (turns.view(np.uint64) << np.uint64(bits)), turns >> np.int64(64 - bits))

    def _python(self, cost: Quotient) -> npt.NDArray[np.object_]:
        """Return a cost at every point, computed with Python's integers."""
        if self.exact is None:
            values = {k: v.astype(object) if isinstance(v, np.ndarray) else v for k, v in self.values.items()}
            self.exact = ExactEvaluator(self.atoms, values)
        found: npt.NDArray[np.object_] = np.zeros(self.shape, object) + self.exact.number(cost)
        return found


class ExactEvaluator:
    """Evaluates compiled costs with Python's integers, at one point or at arrays of points."""

    def __init__(self, atoms: Sequence[SizeAtom | FunctionAtom], values: PointValues) -> None:
        self.atom_values: list[Any] = []
        known: dict[Any, Any] = {}
        for atom in atoms:
            self.atom_values.append(
                evaluate_size(atom.expr, values, known)
                if isinstance(atom, SizeAtom)
                else _function(atom.name, [self._sum(part) for part in atom.parts])
            )

    def number(self, cost: Quotient) -> Any:
        """Return a cost.

        Raises:
            BadInput: it is not an integer.
        """
        result, divisor = self._sum(cost.terms), self._sum(((cost.under, cost.divisor),))
        if np.any(result % divisor):
            raise _not_an_integer(cost)
        return result // divisor

    def _sum(self, terms: Terms) -> Any:
        result: Any = 0
        for monomial, factor in terms:
            term: Any = factor
            for atom, exponent in monomial:
                term = term * self.atom_values[atom] ** exponent
            result = result + term
        return result


def _plain(one: Any, other: Any) -> bool:
    return not isinstance(one, np.ndarray) and not isinstance(other, np.ndarray)


@cache
def horner(terms: Terms) -> HornerForm:
    """Return the Horner form of a polynomial given as a sum of products.

    The most frequent atom is factored out; then the quotient and the remaining terms are treated likewise.
    """
    if not terms:
        return 0
    if terms[0][0] == ONE and len(terms) == 1:
        return terms[0][1]
    counts = Counter(atom for monomial, _ in terms for atom, _ in monomial)
    powers = [(atom, exponent) for monomial, _ in terms for atom, exponent in monomial]
    # Of equally frequent ones that with small powers goes out first: a batch is one axis, the tokens are another.
    atom = min(counts, key=lambda a: (-counts[a], max(e for b, e in powers if b == a), a))
    least = min(e for b, e in powers if b == atom)
    inner, rest = [], []
    for monomial, number in terms:
        left = {a: e - least if a == atom else e for a, e in monomial}
        if atom in left:
            inner.append((tuple((a, e) for a, e in left.items() if e), number))
        else:
            rest.append((monomial, number))
    return atom, least, horner(tuple(sorted(inner))), horner(tuple(rest))


def _function(name: str, parts: list[Any]) -> Any:
    if name == "floor":
        return parts[0] // parts[1]
    if name == "sum":
        return parts[0]
    if not any(isinstance(part, np.ndarray) for part in parts):
        return min(parts) if name == "Min" else max(parts)
    result = parts[0]
    for part in parts[1:]:
        result = (np.minimum if name == "Min" else np.maximum)(result, part)
    return result


def _wrap(number: int) -> int:
    """Return the number modulo 2^64, in the range of int64."""
    rest = int(number) % 2**64
    return rest - 2**64 if rest >= _LIMIT else rest


def _twos(number: int) -> int:
    """Return the exponent of 2 in the factorization of a number."""
    return (number & -number).bit_length() - 1


def _not_an_integer(cost: Quotient) -> BadInput:
    terms = f"a sum of {len(cost.terms)} terms that {cost.divisor} does not divide"
    return BadInput("a cost is not an integer at these settings", expected="an integer", got=terms)
