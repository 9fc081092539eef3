"""Format a derived cost for reading: grouped, factored, with configuration names for constants if unambiguous."""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from math import prod
from typing import Final, Literal

import sympy
from sympy.printing.str import StrPrinter

from costproof.algebra.conditions import Condition
from costproof.algebra.symbols import factored, parse, text
from costproof.compare.kinds import kind_of
from costproof.compare.patterns import ROOT, Mask, expand, patterns, template
from costproof.ledger.errors import Incomplete
from costproof.ledger.node import CostNode

Notation = Literal["text", "latex", "python", "yaml"]

_FACTORS: Final[dict[str, tuple[int, ...]]] = {"linear": (2,), "attention": (2, 4), "expert_gemm": (2, 4, 6)}
"""Constant factor of an operator's FLOPs, by operator kind: 2 per multiply-accumulate, times its products."""
_WIDTHS: Final = ("hidden", "hidden_size", "d_model", "n_embd", "embed_dim", "dim")
_ANY_FACTOR: Final = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a closed form: the headline FLOPs of a pattern of modules and an operator kind."""

    stage: str
    invocation: str
    module: str
    kind: str
    modules: int
    each: str
    """The formula of a single module, factored."""
    named: str | None
    """The formula with configuration names, if the constant is a product of them in exactly one way; else ``None``."""
    readings: tuple[str, ...]
    """The possible products of names for the constant, if there are several; the constant then stays a number."""


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """A derived formula: its lines, their sum, and the sizes at which it is valid."""

    name: str
    lines: tuple[Line, ...]
    total: str
    symbols: tuple[str, ...]
    fixed: Mapping[str, int]
    """Values of workload symbols that are constants in the graph, which the YAML states."""
    holds: tuple[Condition, ...] = ()
    """Conditions on the sizes under which the formula describes the model."""
    counted: str = ""
    """The conditions of the count: dtype, attention, truncation, unused keys, formats that are not counted."""


def closed_form(
    name: str,
    nodes: Iterable[CostNode],
    config: Mapping[str, int],
    fixed: Mapping[str, int] | None = None,
    holds: Sequence[Condition] = (),
    counted: str = "",
) -> ClosedForm:
    """Return the closed form of a graph's nodes, grouped by module pattern and operator kind.

    Args:
        nodes: of a graph with symbols.
        config: numbers of the configuration by name.
        counted: the line with what was counted, which every notation states.

    Raises:
        Incomplete: the FLOPs of a node are unknown.
    """
    groups: dict[tuple[str, str, Mask, str, str], list[str]] = {}
    total = sympy.Integer(0)
    for node in nodes:
        cost = node.exprs.get("flops", node.cost("flops"))
        if cost is None:
            raise Incomplete("no closed form: the FLOPs of a node are unknown", where=node.id)
        source = str(cost)
        if source == "0":
            continue
        total += parse(source)
        key = (node.stage, node.invocation, template(node.module)[0], kind_of(node.kind), source)
        groups.setdefault(key, []).append(node.module)
    lines: list[Line] = []
    for (stage, call, _, kind, source), modules in groups.items():
        each = factored(parse(source))
        named, readings = in_names(each, config, kind)
        for pattern, inside in patterns(modules):
            lines.append(Line(stage, call, pattern, kind, len(inside), text(each), named, readings))
    whole = factored(total)
    limited = {name for condition in holds for name in condition.symbols}
    symbols = tuple(sorted({s.name for s in whole.free_symbols} | limited))
    return ClosedForm(name, tuple(lines), text(whole), symbols, fixed or {}, tuple(holds), counted)


def in_names(expr: sympy.Expr, config: Mapping[str, int], kind: str) -> tuple[str | None, tuple[str, ...]]:
    """Write the constant of an expression as a product of configuration names if only one such product exists.

    Args:
        kind: operator kind, which determines the factors that its products may have.

    Returns:
        The text, or ``None`` where the constant is not such a product or is one in several ways; and those ways.
    """
    constant, rest = expr.as_coeff_Mul()
    if not constant.is_Integer or int(constant) <= max(_ANY_FACTOR):
        return None, ()
    found = readings(int(constant), config, _FACTORS.get(kind, _ANY_FACTOR))
    if len(found) != 1:
        return None, found
    if rest == 1:
        return found[0], ()
    return f"{found[0]}*" + (f"({text(rest)})" if rest.is_Add else text(rest)), ()


def readings(constant: int, config: Mapping[str, int], factors: Sequence[int] = _ANY_FACTOR) -> tuple[str, ...]:
    """Return the ways to write a number as a small factor times up to three configuration names.

    Heads times the width of a head is the model's width and not shown as another reading.
    """
    usable = sorted((n, v) for n, v in config.items() if v > 1 and constant % v == 0)
    found: list[str] = []
    for count in (1, 2, 3):
        for chosen in combinations_with_replacement(usable, count):
            if any(_is_width(a, b, config) for a, b in combinations(chosen, 2)):
                continue
            product = prod(value for _, value in chosen)
            if constant % product == 0 and constant // product in factors:
                factor = constant // product
                powers = Counter(n for n, _ in chosen)
                terms = [n if power == 1 else f"{n}**{power}" for n, power in powers.items()]
                found.append("*".join([str(factor)] * (factor > 1) + terms))
    return tuple(found)


def _is_width(one: tuple[str, int], other: tuple[str, int], config: Mapping[str, int]) -> bool:
    """Return whether two sizes are a number of heads and a head width whose product is the model's width."""
    product = one[1] * other[1]
    return (
        "head" in one[0]
        and "head" in other[0]
        and any(v == product and n.endswith(_WIDTHS) and "head" not in n for n, v in config.items())
    )


def render(form: ClosedForm, how: Notation) -> str:
    """Print a closed form as sympy text, LaTeX, a Python function, or YAML for ``costproof check``."""
    return {"latex": _latex, "python": _python, "text": _text, "yaml": _yaml}[how](form)


def _text(form: ClosedForm) -> str:
    said = [_counted(form)] if form.counted else []
    out = [f"{form.name}: FLOPs, 2 per multiply-accumulate", *said, "", f"total = {form.total}"]
    out += [f"holds where {_where(form)}"] if form.holds else []
    out.append("")
    for line in form.lines:
        times = f" (x{line.modules})" if line.modules > 1 else ""
        out.append(f"{line.stage}/{line.module or '(root)'} {line.kind}{times}")
        out.append(f"  {line.each}")
        if line.named is not None:
            out.append(f"  = {line.named}")
        elif line.readings:
            shown = ", ".join(line.readings[:4]) + (", …" if len(line.readings) > 4 else "")
            out.append(f"  the constant has {len(line.readings)} readings, so it stays a number: {shown}")
    return "\n".join(out) + "\n"


def _where(form: ClosedForm) -> str:
    return ", ".join(condition.text for condition in form.holds)


def _comment(mark: str, form: ClosedForm) -> str:
    return f"{mark} {_counted(form)}\n" if form.counted else ""


def _counted(form: ClosedForm) -> str:
    """Return the conditions of the count as printable text."""
    return "".join(c if c.isprintable() else " " for c in form.counted)


def _latex(form: ClosedForm) -> str:
    rows = [rf"\text{{total}} &= {sympy.latex(parse(form.total))} \\"]
    rows += [rf"& {sympy.latex(parse(condition.margin))} \ge 0 \\" for condition in form.holds]
    for line in form.lines:
        name = re.sub(r"([_#$%&{}])", r"\\\1", f"{line.module or '(root)'} {line.kind}")
        rows.append(rf"\text{{{name}}} &= {sympy.latex(parse(line.each))} \quad (\times {line.modules}) \\")
    return _comment("%", form) + "\\begin{align*}\n" + "\n".join(rows) + "\n\\end{align*}\n"


def _python(form: ClosedForm) -> str:
    name = re.sub(r"\W", "_", form.name).strip("_").lower() or "model"
    if name[0].isdigit() or keyword.iskeyword(name):
        name = f"model_{name}"
    arguments = ", ".join(f"{s}: int" for s in form.symbols)
    where = f"; where {_where(form)}" if form.holds else ""
    # Values are integers where sizes are: quotients are of sizes that are whole.
    least = [f"{_Integers().whole(parse(condition.margin))} < 0" for condition in form.holds]
    refused = f"    if {' or '.join(least)}:\n        raise ValueError({'holds' + where[1:]!r})\n" if least else ""
    return _comment("#", form) + (
        f'def {name}_flops({arguments}) -> int:\n    """FLOPs, 2 per multiply-accumulate{where}."""\n{refused}'
        f"    return {_Integers().whole(parse(form.total))}\n"
    )


class _Integers(StrPrinter):  # type: ignore[misc]
    """Printer of Python expressions in integer arithmetic; exact quotients, ceilings and floors use ``//``."""

    def whole(self, expr: sympy.Expr) -> str:
        """Print an expression whose value is an integer."""
        above, below = sympy.fraction(sympy.together(expr))
        return str(self.doprint(above)) if below == 1 else f"({self.doprint(above)})//{self.doprint(below)}"

    def _print_ceiling(self, expr: sympy.Expr) -> str:
        above, below = sympy.fraction(sympy.together(expr.args[0]))
        return f"(-(-({self.doprint(above)})//{self.doprint(below)}))"

    def _print_floor(self, expr: sympy.Expr) -> str:
        above, below = sympy.fraction(sympy.together(expr.args[0]))
        return f"(({self.doprint(above)})//{self.doprint(below)})"

    def _print_Min(self, expr: sympy.Expr) -> str:
        return f"min({', '.join(map(self.whole, expr.args))})"

    def _print_Max(self, expr: sympy.Expr) -> str:
        return f"max({', '.join(map(self.whole, expr.args))})"


def _yaml(form: ClosedForm) -> str:
    said = [f"# {_counted(form)}"] if form.counted else []
    out = ["costproof_claims: 1", *said, f"title: {_quoted('derived from the graph of ' + form.name)}"]
    if form.fixed:
        out.append("at: {" + ", ".join(f"{name}: {value}" for name, value in sorted(form.fixed.items())) + "}")
    if form.holds:
        out.append(f"# holds where {_where(form)}")
        out.append("holds: [" + ", ".join(_quoted(condition.margin) for condition in form.holds) + "]")
    out.append("claims:")
    # A claim is about modules, whichever operators do their work; patterns of two operators may overlap.
    work: dict[tuple[str, str, str], list[str]] = {}
    for line in form.lines:
        for module in expand(line.module):
            work.setdefault((line.stage, line.invocation, module), []).append(line.each)
    alike: dict[tuple[str, str, Mask, tuple[str, ...]], list[str]] = {}
    for (stage, call, module), formulas in work.items():
        alike.setdefault((stage, call, template(module)[0], tuple(formulas)), []).append(module)
    rows = [(key, *found) for key, modules in alike.items() for found in patterns(modules)]
    for number, ((stage, call, _, parts), pattern, inside) in enumerate(rows):
        each = " + ".join(parts)
        flops = each if len(inside) == 1 else f"{len(inside)}*({each})"
        where = f"stage: {_quoted(stage)}, invocation: {_quoted(call)}, module: {_quoted(pattern or ROOT)}"
        out.append(f"- {{id: line-{number}, {where}, flops: {_quoted(flops)}}}")
    return "\n".join(out) + "\n"


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"
