"""Typeset formulas as MathML, which browsers render without scripts, from their canonical text."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import Final

from costproof.ledger.capture import SymbolDoc

_LETTER: Final = re.compile(r"(\\ell|[A-Za-z])(?:_(?:\{(?:\\mathrm\{)?([A-Za-z0-9, ]+)\}{0,2}|([A-Za-z0-9])))?")
"""Matches the LaTeX of a simple symbol: a letter, and a subscript of letters and digits."""
_FENCES: Final = {"ceiling": ("⌈", "⌉"), "floor": ("⌊", "⌋")}


def mathml(expression: str, docs: Mapping[str, SymbolDoc]) -> str:
    """Return the ``math`` element of an expression of :mod:`costproof.algebra.symbols`; ``docs`` typesets symbols."""
    try:
        inside = _row(_write(ast.parse(expression, mode="eval").body, {name: d.latex for name, d in docs.items()}))
    except (RecursionError, MemoryError):
        inside = f"<mtext>{escape(expression)}</mtext>"  # thousands of terms, which nobody reads typeset
    return f"<math>{inside}</math>"


@lru_cache(maxsize=1024)
def symbol(name: str, latex: str = "") -> str:
    """Return a typeset symbol: ``h`` with the subscript ``sam``; its plain name if its LaTeX is not a simple symbol."""
    found = _LETTER.fullmatch(latex)
    if found is None:
        return f"<mi>{escape(name)}</mi>"
    letter = "<mi>ℓ</mi>" if found[1] == "\\ell" else f"<mi>{found[1]}</mi>"
    below = found[2] or found[3]
    return f"<msub>{letter}<mtext>{escape(below)}</mtext></msub>" if below else letter


def _write(tree: ast.AST, names: Mapping[str, str]) -> str:
    """Return the MathML elements of a parsed expression that follows the grammar of formulas."""
    match tree:
        case ast.Constant(value=int(value)):
            return f"<mn>{value}</mn>"
        case ast.Name(id=name):
            return symbol(name, names.get(name, ""))
        case ast.UnaryOp(operand=operand):
            return "<mo>−</mo>" + _factor(operand, names)
        case ast.Call(func=ast.Name(id=name), args=args):
            inside = "<mo>,</mo>".join(_write(a, names) for a in args)
            left, right = _FENCES.get(name, ("(", ")"))
            called = "" if name in _FENCES else f"<mi>{name.lower()}</mi>"
            return _row(f"{called}<mo>{left}</mo>{inside}<mo>{right}</mo>")
        case ast.BinOp(left=base, op=ast.Pow(), right=power):
            return f"<msup>{_row(_factor(base, names))}{_row(_write(power, names))}</msup>"
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            return "".join(sign + _write(term, names) for sign, term in _terms(tree))
        case ast.BinOp(op=ast.Mult() | ast.Div()):
            above: list[ast.AST] = []
            below: list[ast.AST] = []
            _factors(tree, above, below)
            product = _product(above, names)
            return f"<mfrac>{_row(product)}{_row(_product(below, names))}</mfrac>" if below else product
    raise ValueError(ast.dump(tree))


def _terms(tree: ast.AST) -> list[tuple[str, ast.AST]]:
    """Return (sign, term) for each summand of a sum, without recursion, since sums are long."""
    found: list[tuple[str, ast.AST]] = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub):
        found.append(("<mo>+</mo>" if isinstance(tree.op, ast.Add) else "<mo>−</mo>", tree.right))
        tree = tree.left
    return [("", tree), *reversed(found)]


def _factors(tree: ast.AST, above: list[ast.AST], below: list[ast.AST]) -> None:
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult | ast.Div):
        _factors(tree.left, above, below)
        _factors(tree.right, *((above, below) if isinstance(tree.op, ast.Mult) else (below, above)))
    else:
        above.append(tree)


def _product(factors: Sequence[ast.AST], names: Mapping[str, str]) -> str:
    first = factors[0]
    sign, rest = ("<mo>−</mo>", [first.operand, *factors[1:]]) if isinstance(first, ast.UnaryOp) else ("", factors)
    shown = [f for f in rest if not (isinstance(f, ast.Constant) and f.value == 1)] or rest[:1]
    return sign + "<mo>·</mo>".join(_factor(f, names, alone=len(shown) == 1 and not sign) for f in shown)


def _factor(tree: ast.AST, names: Mapping[str, str], *, alone: bool = False) -> str:
    """Return the MathML of a factor, in parentheses if it is a sum."""
    sums = isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub)
    bare = _write(tree, names)
    return bare if alone or not (sums or isinstance(tree, ast.UnaryOp)) else _row(f"<mo>(</mo>{bare}<mo>)</mo>")


def _row(inside: str) -> str:
    return f"<mrow>{inside}</mrow>"
