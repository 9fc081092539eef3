"""Create symbols, and convert expressions to and from text.

Everything symbolic uses positive integer symbols made by :func:`sym`, so that an expression read
back from a file is equal to the one that was written. Text is parsed by :func:`parse`, a small
recursive-descent parser of our own: names, integers, ``+ - * / **``, parentheses and a closed
table of functions. It never calls ``eval`` and never reaches an attribute.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache, lru_cache
from typing import Final

import sympy

from costproof.ledger.errors import BadInput
from costproof.ledger.time_limits import check_time

FUNCTIONS: Final[dict[str, type[sympy.Function]]] = {
    "ceiling": sympy.ceiling,
    "floor": sympy.floor,
    "Min": sympy.Min,
    "Max": sympy.Max,
}

_MAX_TEXT: Final = 20_000
_MAX_DEPTH: Final = 100
_MAX_EXPONENT: Final = 64
_MAX_DIGITS: Final = 1_000
_MAX_NAME: Final = 100
_MAX_BITS: Final = 65_536
"""Limit on the bits of a power's value, with 64 bits for every symbol; nested powers would grow without bound."""
_MAX_ARGUMENTS: Final = 8
_MAX_CALLS: Final = 128
"""Limit on function calls in a text; a minimum or maximum counts as four, since sympy compares all its arguments."""
MOST_TERMS: Final = 2_000
"""Limit on the number of terms of an expanded expression; a longer one would take too long."""
_TOKEN: Final = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z_0-9]*)|(\*\*|[-+*/(),]))")


@cache
def sym(name: str) -> sympy.Symbol:
    """Return the positive integer symbol with this name."""
    return sympy.Symbol(name, integer=True, positive=True)


@lru_cache(maxsize=65536)
def text(expr: sympy.Expr | int) -> str:
    """Return the canonical text of an expression; :func:`parse` reads it back to an equal one."""
    return str(sympy.sstr(sympy.sympify(expr), order="lex"))


def factored(expr: sympy.Expr) -> sympy.Expr:
    """Factor the expansion of an expression over the integers; ceilings, minima and the like stay unchanged."""
    whole = sympy.expand(expr)
    opaque = {f: sympy.Dummy(positive=True) for f in whole.atoms(*FUNCTIONS.values())}
    back = {dummy: f for f, dummy in opaque.items()}
    return sympy.factor(whole.xreplace(opaque)).xreplace(back)


def pulled_out(choice: sympy.Expr) -> sympy.Expr:
    """Move the common integer factor of all arguments in front of a minimum or maximum.

    ``Min(6, 4*n)`` is ``2*Min(3, 2*n)``. What sympy has decided already stays as it is.
    """
    if not isinstance(choice, sympy.Min | sympy.Max):
        return choice
    numbers = [n for one in choice.args for n in sympy.expand(one).as_coefficients_dict().values()]
    common = sympy.igcd(*numbers) if all(n.is_Integer for n in numbers) else 1
    return common * choice.func(*(sympy.expand(one / common) for one in choice.args))


def version(expr: sympy.Expr | int) -> str:
    """Return a fingerprint of the expanded expression, twelve hex digits; equal polynomials have equal fingerprints."""
    normal = sympy.expand(sympy.sympify(expr))
    return hashlib.sha256(text(normal).encode()).hexdigest()[:12]


@lru_cache(maxsize=65536)
def parse(source: str) -> sympy.Expr:
    """Parse an expression.

    Raises:
        BadInput: the text does not match the grammar, or is too long, too deeply nested, or has too large powers.
    """
    check_time()
    return _Parser(source).read()


class _Parser:
    """Recursive descent parser for sums of terms.

    Grammar: ``sum := term (± term)*``, ``term := factor (*|/ factor)*``, ``factor := ±factor | atom [** factor]``.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        if len(source) > _MAX_TEXT:
            limit, got = f"at most {_MAX_TEXT} characters", f"{len(source)} characters"
            raise BadInput("an expression is too long", expected=limit, got=got)
        self.tokens: list[tuple[str, int]] = []
        position = 0
        end = len(source.rstrip())
        while position < end:
            match = _TOKEN.match(source, position)
            if match is None:
                raise self.error("a character that is not part of an expression", position)
            self.tokens.append((match.group().strip(), match.start()))
            position = match.end()
        self.index = 0
        self.depth = 0
        self.calls = 0

    def error(self, what: str, position: int | None = None) -> BadInput:
        if position is None:
            position = self.tokens[self.index][1] if self.index < len(self.tokens) else len(self.source)
        shown = self.source if len(self.source) <= 200 else self.source[:200] + "..."
        return BadInput(
            f"cannot read an expression: {what}",
            where=f"character {position + 1} of {shown!r}",
            expected="names, integers, + - * / **, parentheses, " + ", ".join(sorted(FUNCTIONS)),
        )

    def peek(self) -> str:
        return self.tokens[self.index][0] if self.index < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.index += 1
        return token

    def read(self) -> sympy.Expr:
        result = self.sum()
        if self.index < len(self.tokens):
            raise self.error(f"unexpected {self.peek()!r}")
        return result

    def sum(self) -> sympy.Expr:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.error("nested too deep")
        terms = [self.term()]
        while self.peek() in ("+", "-"):
            terms.append(self.term() if self.take() == "+" else -self.term())
        self.depth -= 1
        return sympy.Add(*terms)

    def term(self) -> sympy.Expr:
        factors = [self.factor()]
        while self.peek() in ("*", "/"):
            if self.take() == "*":
                factors.append(self.factor())
            else:
                divisor = self.factor()
                if divisor.is_zero:
                    raise self.error("division by zero")
                factors.append(sympy.Pow(divisor, -1))
        return sympy.Mul(*factors)

    def factor(self) -> sympy.Expr:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.error("nested too deep")
        if self.peek() in ("-", "+"):
            result = self.factor() if self.take() == "+" else -self.factor()
        else:
            result = self.atom()
            if self.peek() == "**":
                self.take()
                exponent = self.factor()
                if not exponent.is_Integer or abs(int(exponent)) > _MAX_EXPONENT:
                    raise self.error(f"an exponent must be an integer of at most {_MAX_EXPONENT}")
                if result.is_zero and int(exponent) < 0:
                    raise self.error("division by zero")
                if _bits(result) * max(abs(int(exponent)), 1) > _MAX_BITS:
                    raise self.error("a power is too large")
                result = sympy.Pow(result, exponent)
        self.depth -= 1
        return result

    def atom(self) -> sympy.Expr:
        token = self.take()
        if token == "(":
            inner = self.sum()
            self.close()
            return inner
        if token.isdecimal():
            if len(token) > _MAX_DIGITS:
                raise self.error(f"a number has more than {_MAX_DIGITS} digits", self.tokens[self.index - 1][1])
            return sympy.Integer(int(token))
        if re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", token):
            if len(token) > _MAX_NAME:
                raise self.error(f"a name has more than {_MAX_NAME} characters", self.tokens[self.index - 1][1])
            if self.peek() != "(":
                return sym(token)
            if token not in FUNCTIONS:
                self.index -= 1
                raise self.error(f"no function {token!r}")
            self.take()
            self.calls += 1
            if self.calls > _MAX_CALLS:
                raise self.error("too many functions")
            arguments = [self.sum()]
            while self.peek() == ",":
                self.take()
                arguments.append(self.sum())
                if len(arguments) > _MAX_ARGUMENTS:
                    raise self.error(f"a function takes at most {_MAX_ARGUMENTS} arguments")
            self.close()
            if token in ("ceiling", "floor") and len(arguments) != 1:
                raise self.error(f"{token} takes one argument")
            return FUNCTIONS[token](*arguments)
        self.index -= 1
        raise self.error("the end" if token == "" else f"unexpected {token!r}")

    def close(self) -> None:
        if self.peek() != ")":
            raise self.error("a ')' is missing")
        self.take()


def _bits(expr: sympy.Expr) -> int:
    """Return an upper bound, capped, of the bits of an expression's value, with 64 bits for every symbol."""
    if expr.is_Integer:
        return int(expr.p).bit_length()
    if expr.is_Rational:
        return max(int(expr.p).bit_length(), int(expr.q).bit_length())
    if expr.is_Symbol:
        return 64
    parts = [_bits(a) for a in expr.args[:1] if expr.is_Pow] or [_bits(a) for a in expr.args]
    if expr.is_Pow:
        return min(parts[0] * abs(int(expr.exp)), _MAX_BITS + 1) if expr.exp.is_Integer else _MAX_BITS + 1
    if expr.is_Mul:
        return min(sum(parts), _MAX_BITS + 1)
    return min(max(parts, default=0) + len(parts).bit_length(), _MAX_BITS + 1)


def term_count(expr: sympy.Expr) -> int:
    """Return a bound on the number of terms of the expanded expression, capped at ``MOST_TERMS + 1``."""
    top = MOST_TERMS + 1
    if expr.is_Add:
        return min(top, sum(term_count(a) for a in expr.args))
    if expr.is_Mul:
        product = 1
        for factor in expr.args:
            product = min(top, product * term_count(factor))
        return product
    if expr.is_Pow and expr.exp.is_Integer:
        inside = term_count(expr.base)
        return 1 if inside == 1 else int(min(top, inside ** min(abs(int(expr.exp)), 64)))
    return 1
