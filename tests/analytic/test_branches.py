"""Formulas do not branch on sizes: what holds beyond a threshold alone, no finite number of runs can settle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

SOURCE: Final = Path(__file__).parents[2] / "src" / "costproof"
NO_FORMULAS: Final = ("__init__.py", "compose.py", "costs.py", "symbols.py")
"""How formulas are put together, and the names of symbols."""
FILES: Final = sorted(
    path
    for pattern in ("analytic/*.py", "models/families/*.py", "models/families/*/formulas.py",
                    "models/families/*/image_tokens.py", "models/pages/formulas.py", "models/decoding/formulas.py",
                    "models/decoding/latent.py", "models/image_text/formulas.py")
    for path in SOURCE.glob(pattern)
    if path.name not in NO_FORMULAS
)  # fmt: skip
CHOOSING: Final = {
    "Min",
    "Max",
    "Piecewise",
    "min",
    "max",
    "Heaviside",
    "sign",
    "Abs",
    "Ne",
    "Eq",
    "Lt",
    "Gt",
    "Le",
    "Ge",
}
TARGET: Final = ("Target", "Native", "Configured")
"""In the name of a base class of every target, of which these methods are formulas."""
FORMULAS: Final = ("formulas", "style")
SAYS_WHY: Final = "Branches:"
"""Where a docstring begins to say why a function branches on a size after all."""


def harmless(node: ast.Compare) -> bool:
    """Whether a comparison asks what there is: ``is None``, a word, a member, or 0, which no size is."""
    sides = [node.left, *node.comparators]
    asks = all(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops)
    equal = all(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops)
    words = any(isinstance(x, ast.Constant) and (isinstance(x.value, str) or x.value == 0) for x in sides)
    return asks or (equal and words)


def of_target(tree: ast.AST) -> bool:
    """Whether this is the class of a target, which does more than formulas do."""
    return isinstance(tree, ast.ClassDef) and any(name in ast.unparse(b) for b in tree.bases for name in TARGET)


def branches(tree: ast.AST, said: bool = False) -> Iterator[tuple[int, str]]:
    """(line, code) of everything that chooses by a size, where no docstring around it says why."""
    for node in ast.iter_child_nodes(tree):
        here = said
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
            continue
        if isinstance(node, ast.FunctionDef) and of_target(tree) and node.name not in FORMULAS:
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            here |= SAYS_WHY in (ast.get_docstring(node) or "")
        by_size = isinstance(node, ast.Compare) and not harmless(node)
        calls = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in CHOOSING
        if (by_size or calls) and not here:
            yield node.lineno, ast.unparse(node)  # type: ignore[attr-defined]
        yield from branches(node, here)


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(SOURCE)) for p in FILES])
def test_no_formula_branches_on_a_size(path: Path) -> None:
    assert list(branches(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("a if self.rows > 12 else b", 1),
        ("a if tokens == 1 else b", 1),
        ("if heads == kv_heads:\n    pass", 1),
        ("sympy.Min(rows, experts)", 1),
        ("max(rows, 1)", 1),
        ("sympy.Piecewise((a, B > 8), (b, True))", 2),
        ("[x for x in y if x.width >= 2]", 1),
        ("a if self.window == 0 else b", 0),
        ("a if self.bias == 'none' else b", 0),
        ("a if value_dim is None else b", 0),
        ("a if self.gated else b", 0),
        ("def f():\n    '''A sum.'''\n    return min(a, b)", 1),
        ("def f():\n    '''A sum. Branches: the kernel itself does.'''\n    return min(a, b)", 0),
    ],
)
def test_what_is_a_branch(code: str, found: int) -> None:
    assert len(list(branches(ast.parse(code)))) == found


def test_every_family_is_looked_at() -> None:
    assert len([p for p in FILES if p.parent.name != "analytic"]) >= 25
