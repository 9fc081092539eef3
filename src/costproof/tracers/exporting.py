"""Call ``torch.export`` on a part of a model, and translate the symbolic sizes to our symbols."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import sympy

from costproof.algebra.evaluation import evaluate
from costproof.algebra.symbols import FUNCTIONS, parse
from costproof.ledger.errors import Bug, Incomplete, first_line, message_of
from costproof.models.specs import ExportJob, SymbolicSize
from costproof.opgraph.graph import Size
from costproof.patches.export import QUIET_EXPORT, SHAPES_OF_RESULTS, concrete_export, fast_export
from costproof.patches.inference import inference_context
from costproof.patches.modules import forward_redirected
from costproof.patches.nested import rows_exported
from costproof.patches.patch import patched
from costproof.patches.tensor import STACK_INDEX_ROWS
from costproof.tracers.paths import repeat_if_modules_replaced

if TYPE_CHECKING:
    import torch
    from torch import fx

NO_EXPORT: Final = "costproof report --sources analytic,dynamic needs no export; other commands read its folder"
"""Suggested fix for a failed export."""


def export_program(job: ExportJob) -> tuple[torch.export.ExportedProgram, tuple[str, ...]]:
    """Export a job; return the program, and notes on the export's assumptions."""
    return repeat_if_modules_replaced(job.module, lambda: _exported(job), lambda: _run(job))


def _run(job: ExportJob) -> None:
    """Run the forward once before an export, so that attributes and modules that it sets are in place."""
    from costproof.snapshots.module_snapshot import unwritten

    # Code of other packages may raise anything.
    with suppress(Exception), unwritten(job.module), inference_context(job.module):
        job.module(**job.args)


def _exported(job: ExportJob) -> tuple[torch.export.ExportedProgram, tuple[str, ...]]:
    import torch

    dynamic = dynamic_shapes(job)
    try:
        with ExitStack() as around:
            assumed = around.enter_context(inference_context(job.module))
            around.enter_context(forward_redirected(job.module))
            around.enter_context(rows_exported())
            around.enter_context(fast_export(job.module))
            around.enter_context(patched(*QUIET_EXPORT, *STACK_INDEX_ROWS))
            around.enter_context(concrete_export() if job.numbers else patched(*SHAPES_OF_RESULTS))
            program = torch.export.export(job.module, (), kwargs=dict(job.args), dynamic_shapes=dynamic, strict=False)
            return program, tuple(assumed)
    except Exception as error:
        raise Incomplete(
            "torch.export cannot export a part of the model",
            where=f"{job.stage}, export {job.id}",
            got=_reason(error),
            fix=NO_EXPORT,
        ) from error


def _reason(error: Exception) -> str:
    """Return an exporter's error in one line, or the symbolic sizes that the model's code turned into constants."""
    said = message_of(error)
    fixed = re.findall(r"L\['(\w+)'\]\.size\(\)\[(\d+)\] .*specialized it to be a constant \((\d+)\)", said)
    if fixed:
        which = ", ".join(f"dimension {dim} of {name} (here {value})" for name, dim, value in fixed)
        return f"the model's code fixes {which}: a Python loop over a size does, or int() of one"
    return first_line(error)


def dynamic_shapes(job: ExportJob) -> dict[str, Any]:
    """Return the symbolic dimensions of a job's arguments in the form of ``torch.export``'s ``dynamic_shapes``."""
    import torch

    # Dimensions that are multiples of a step share one Dim per symbol; the exporter infers the others.
    steps = {s.symbol: torch.export.Dim(s.symbol, min=2) for s in job.sizes if s.step > 1}

    def dim(size: SymbolicSize) -> Any:
        return torch.export.Dim.DYNAMIC if size.step == 1 else size.step * steps[size.symbol]

    return map_arguments(job, lambda path, _: {s.dim: dim(s) for s in job.sizes if tuple(s.argument) == path} or None)


Argument = tuple[str | int, ...]
"""Path of a tensor among the arguments of a job."""


class SizeTranslator:
    """Translator of sizes in the exporter's symbols to integers or expressions in our symbols."""

    def __init__(self, job: ExportJob, program: torch.export.ExportedProgram) -> None:
        self.job = job
        self.guards = tuple(str(g) for g in getattr(program, "_guards_code", []) or ())
        self.table: dict[sympy.Symbol, sympy.Expr] = {}
        self.cache: dict[sympy.Expr, Size] = {}
        inputs = inputs_by_path(job, program)
        for size in job.sizes:
            found = inputs[tuple(size.argument)].meta["val"].shape[size.dim]
            expr = sympy.Integer(found) if isinstance(found, int) else found.node.expr
            self._learn(size.argument, size.dim, parse(size.symbol), expr)

    def _learn(self, argument: Argument, dim: int, ours: sympy.Expr, theirs: sympy.Expr) -> None:
        if theirs.free_symbols and theirs.free_symbols <= self.table.keys():
            found = plain_sympy(theirs).xreplace(self.table)
            if sympy.expand(found - ours) != 0:
                raise Incomplete(
                    "the model requires two sizes to be equal that are independent here",
                    where=f"{self.job.stage}, export {self.job.id}",
                    got=f"{found} and {ours} are both {theirs}",
                )
            return
        free = sorted(theirs.free_symbols - self.table.keys(), key=str)
        factor, offset = _linear(theirs.xreplace(self.table), free[0]) if len(free) == 1 else (None, None)
        if factor is None:
            raise Incomplete(
                "the model fixes a size that must stay symbolic",
                where=f"{self.job.stage}, export {self.job.id}, dimension {dim} of {'.'.join(map(str, argument))}",
                expected=f"the symbol {ours}",
                got=f"{theirs}" + (f" (guards: {'; '.join(self.guards)})" if self.guards else ""),
            )
        self.table[free[0]] = (ours - offset) / factor

    def __call__(self, size: Any) -> Size:
        """Return a size as an integer or an expression in our symbols."""
        if isinstance(size, int):
            return size
        theirs = size.node.expr
        if theirs not in self.cache:
            foreign = theirs.free_symbols - self.table.keys()
            if foreign:
                raise Incomplete(
                    "a size in the graph depends on values of tensors, not only on shapes",
                    where=f"{self.job.stage}, export {self.job.id}",
                    got=str(theirs),
                )
            ours = sympy.expand(plain_sympy(theirs).xreplace(self.table))
            self.cache[theirs] = int(ours) if ours.is_Integer else ours
        return self.cache[theirs]


def _linear(expr: sympy.Expr, symbol: sympy.Symbol) -> tuple[sympy.Integer | None, sympy.Expr]:
    """Return (factor, offset) of an expression ``factor * symbol + offset`` in integers.

    The offset may be a sum of other symbols. Else factor is ``None``.
    """
    factor = expr.coeff(symbol)
    offset = sympy.expand(expr - factor * symbol)
    numbers = offset.as_coefficients_dict()
    plain = all(n.is_Integer for n in numbers.values()) and all(x.is_Symbol or x == 1 for x in numbers)
    return (factor, offset) if factor.is_Integer and plain and symbol not in offset.free_symbols else (None, offset)


_HALVES: Final = tuple(2**i for i in range(9))


def plain_sympy(expr: sympy.Expr) -> sympy.Expr:
    """Rewrite the exporter's division and remainder functions in sympy's own functions.

    A floor division without remainder becomes a quotient, any other becomes ``floor``.

    Raises:
        Incomplete: the expression has a function that formulas do not have, or rounds a product that is not exact.
    """

    def is_whole(x: sympy.Expr) -> bool:
        return all(c.is_Integer for c in sympy.expand(x).as_coefficients_dict().values()) and sympy.denom(
            sympy.together(x)
        ) == sympy.Integer(1)

    def divide(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
        quotient = sympy.cancel(a / b)
        # Expanded, so that sympy takes integer terms out: floor(1 - x/7 + ceiling(y)) -> 1 + ceiling(y) + floor(-x/7).
        return quotient if is_whole(quotient) else sympy.floor(sympy.expand(quotient))

    def remainder(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
        return sympy.expand(a - b * divide(a, b))

    def exact(x: sympy.Expr) -> sympy.Expr:
        quotients = {f: sympy.Rational(float(f)) for f in x.atoms(sympy.Float)}
        found = sympy.expand(x.xreplace(quotients))
        numbers = found.as_coefficients_dict().values()
        # Products with other numbers, such as 0.3, are rounded, and a negative one is rounded up.
        if any(not n.is_Rational or n.q not in _HALVES or n < 0 or n.p > 2**20 for n in numbers):
            raise Incomplete(
                "a size is computed by rounding a float, which has no exact form in symbols",
                got=x,
                fix="compute it with integers, such as 3 * n // 10 for int(0.3 * n)",
            )
        return found

    rules: dict[str, Callable[..., sympy.Expr]] = {
        "FloorDiv": divide, "CleanDiv": divide, "IntTrueDiv": lambda a, b: a / b,
        "Mod": remainder, "PythonMod": remainder, "ModularIndexing": lambda a, b, c: remainder(divide(a, b), c),
        # Exact in floating point: quotients by a small power of 2.
        "ToFloat": lambda a: a, "TruncToInt": lambda a: sympy.floor(exact(a)),
        "FloorToInt": lambda a: sympy.floor(exact(a)), "CeilToInt": lambda a: sympy.ceiling(exact(a)),
        "Max": sympy.Max, "Min": sympy.Min, "PowByNatural": sympy.Pow, "Identity": lambda a: a,
    }  # fmt: skip

    def rebuild(x: sympy.Expr) -> sympy.Expr:
        if not x.args:
            return x
        args = [rebuild(a) for a in x.args]
        rule, name = rules.get(type(x).__name__), type(x).__name__
        if rule is None and isinstance(x, sympy.Function) and name not in FUNCTIONS:
            raise Incomplete(
                "a size uses a function that formulas do not support", expected=", ".join(sorted(FUNCTIONS)), got=x
            )
        return rule(*args) if rule is not None else x.func(*args)

    return sympy.expand(rebuild(expr)).replace(sympy.floor, _floor)


def _floor(x: sympy.Expr) -> sympy.Expr:
    """Return ``floor(x)``, or for a negated argument the equal ``-ceiling(-x)``, as formulas write it."""
    return -sympy.ceiling(-x) if x.could_extract_minus_sign() else sympy.floor(x)


def map_arguments(job: ExportJob, change: Callable[[Argument, Any], Any]) -> dict[str, Any]:
    """Return the job's nested arguments with each tensor replaced by ``change(path, tensor)``."""

    def changed(path: Argument, value: Any) -> Any:
        if isinstance(value, list | tuple):
            # The exporter requires the same nesting, with named tuples in their own type.
            items = [changed((*path, i), v) for i, v in enumerate(value)]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return change(path, value)

    return {name: changed((name,), value) for name, value in job.args.items()}


def inputs_by_path(job: ExportJob, program: torch.export.ExportedProgram) -> dict[Argument, fx.Node]:
    """Return the placeholder node of every input tensor of the program, by path in ``job.args``."""
    paths: list[Argument] = []
    map_arguments(job, lambda path, value: paths.append(path))
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    names = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    if len(names) != len(paths):
        raise Bug("inputs of an export do not line up", where=job.id, expected=len(paths), got=len(names))
    return {path: nodes[name] for path, name in zip(paths, names, strict=True)}


def with_numbers(job: ExportJob) -> ExportJob:
    """Return the job with concrete values, ones where a tensor has no values, and with constant sizes.

    Raises:
        Incomplete: the module is too large to be given values.
    """
    import torch

    from costproof.snapshots.copies import alike, materialize, with_values

    given = job if job.real is None else job.real()

    def numbered(value: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(value, device="cpu") if value.is_meta else value.detach().clone().cpu()

    same = alike(dict(given.args), numbered)
    module: Any = materialize(given.module)
    if rest := getattr(module, "rest", None):  # arguments that a wrapper adds are on the module's device
        module.rest = with_values(rest, torch.device("cpu"))
    args = map_arguments(given, lambda _, value: same(value))
    return replace(job, module=module, args=args, sizes=(), numbers=True)


def with_sizes(job: ExportJob, values: Mapping[str, int]) -> ExportJob:
    """Return the job at constant sizes; a job of repeated decode steps becomes a single step."""
    wanted: dict[Argument, dict[int, int]] = {}
    for size in job.sizes:
        wanted.setdefault(tuple(size.argument), {})[size.dim] = evaluate(parse(size.symbol), values)

    def made(path: Argument, value: Any) -> Any:
        shape = [wanted.get(path, {}).get(i, int(dim)) for i, dim in enumerate(value.shape)]
        # A tensor that has the size keeps its storage and strides.
        return value if shape == list(value.shape) else value.new_empty(shape)

    return replace(job, args=map_arguments(job, made), sizes=(), repeated=False)
