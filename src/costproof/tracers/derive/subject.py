"""Choose the export from which formulas are derived, name its constants, draw sizes, and find where it is valid."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain, product, repeat
from operator import getitem
from typing import TYPE_CHECKING, Any, Final

import sympy

from costproof.algebra.conditions import Condition, merge_bounds
from costproof.algebra.evaluation import compile_expression
from costproof.algebra.identity import free_symbols
from costproof.algebra.symbols import parse, sym
from costproof.ledger.errors import BadInput, Incomplete, Problems
from costproof.ledger.workload import Workload, counted_line
from costproof.models.generic.huggingface import counts_layers
from costproof.models.specs import ExportJob
from costproof.models.target import Derivable, Exportable, WithFormulas
from costproof.tracers.exported import Exported
from costproof.tracers.exporting import plain_sympy, with_sizes
from costproof.tracers.guards import GuardCondition, guard_conditions, holds_at

if TYPE_CHECKING:
    from torch import nn

POINTS: Final = 5
"""Default number of random sizes at which a derived form is checked."""
_SETTINGS: Final = {"B": "batch", "S": "text_tokens", "P": "text_tokens"}
"""Workload setting that each symbol stands for, if the prompt is text only."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The stage from which formulas are derived, with its export, symbols and named constants."""

    name: str
    stage: str
    job: ExportJob
    config: Mapping[str, int]
    """Configuration numbers by name, which give names to equal constants of the graph."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """Symbols of the workload that have fixed values in the graph."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """Number that a symbol must be a multiple of, by symbol."""
    at: Callable[[Mapping[str, int]], ExportJob | None] = lambda sizes: None
    """Function from sizes to the target's own export job at these sizes; ``None`` if a size is not a workload setting.

        Raises:
            Problems: the target has no such run.

    """
    counted: str = ""
    """Conditions of the count as text: dtype, attention, truncation, unused keys, formats that are not counted."""

    def runs(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the target accepts a run at these sizes; true if the target does not check sizes."""
        try:
            self.at(sizes)
        except (BadInput, Problems):
            return False
        return True


def subject(target: Exportable, stage: str, name: str = "") -> Subject:
    """Return the first symbolic export of a stage as the subject of a derivation.

    Args:
        name: name of the subject (default: that of the target).
    """
    made = target.derivable(stage) if isinstance(target, Derivable) else None
    source, workload, steps = made or (target, target.workload(), {})
    model = source.build(workload)
    jobs = source.export_jobs(model, workload)
    picked = next((j for j in jobs if stage in j.stages and j.sizes), None)
    if picked is None:
        raise Incomplete(
            "no input size of this stage can be symbolic in an export",
            where=f"{target.name} {stage}",
            expected="an input with a batch or a sequence of at least 2",
            fix="count a call with a larger batch or sequence",
        )
    symbolic = {name for size in picked.sizes for name in free_symbols(size.symbol)}
    calls = [i for i in source.invocations(workload) if (i.stage, i.id) == (stage, picked.invocations[0])]
    fixed = {name: value for call in calls for name, value in call.symbols.items() if name not in symbolic}

    def at(sizes: Mapping[str, int]) -> ExportJob | None:
        return _at(source, model, workload, picked, sizes)

    names = _names(target, workload, stage) if of_tokens(picked) else {}
    said = counted_line(target.info(), workload)
    return Subject(name or target.name, stage, picked, names, fixed, steps, at, said)


def _at(
    source: Exportable, model: nn.Module, workload: Workload, job: ExportJob, sizes: Mapping[str, int]
) -> ExportJob | None:
    if not sizes.keys() <= _SETTINGS.keys():
        return None
    steps = min(workload.new_tokens, 1)
    given: dict[str, Any] = {_SETTINGS[name]: size for name, size in sizes.items()}
    there = replace(workload, new_tokens=steps, **given)
    known = {(i.stage, i.id): i.symbols for i in source.invocations(there)}.get((job.stage, job.invocations[0]), {})
    if any(known.get(name) != size for name, size in sizes.items()):
        return None
    source.check(there)
    made = next((j for j in source.export_jobs(model, there) if j.id == job.id), None)
    return made and with_sizes(made, sizes)


def _names(target: Exportable, workload: Workload, stage: str) -> dict[str, int]:
    """Return the configuration sizes in the stage's formulas, by name; other sizes would match constants by chance."""
    known = target.info().symbols
    if not isinstance(target, WithFormulas):
        return known
    formulas = {e for n in target.formulas(workload).nodes if n.stage == stage for e in n.exprs.values()}
    used = {name for e in formulas for name in compile_expression(e).symbols}
    return {n: v for n, v in known.items() if n in used and not counts_layers(n)}


def of_tokens(job: ExportJob) -> bool:
    """Return whether an export's inputs are token sequences; then its constants are products of configuration sizes.

    An image or a spectrum has a fixed number of positions, which is a factor of all constants and matches names by
    chance.
    """
    fixed = {s.argument[0]: 0 for s in job.sizes}
    for name, value in job.args.items():
        if hasattr(value, "shape"):
            fixed[name] = value.dim() - len({s.dim for s in job.sizes if s.argument[0] == name})
    return all(count <= 1 for count in fixed.values()) and not any("H" in s.symbol for s in job.sizes)


SizeRange = tuple[int, int]
_TRIES: Final = 300
"""Number of samples of each kind."""
_ROWS: Final = ("B", "n")
"""Symbols that often have small values."""
FARTHEST: Final = 5_000
"""Largest size at which a run is counted, since a longer run could take minutes."""
_FARTHEST_STEPS: Final = 32
"""Largest side of an image at which a run is counted, in steps of the side; positions grow with its square."""


def example_sizes(job: ExportJob) -> dict[str, int]:
    """Return the example sizes that the export was made with."""
    args: Any = job.args
    plain = (s for s in job.sizes if s.symbol.isidentifier())  # not an expression
    return {s.symbol: int(reduce(getitem, s.argument, args).shape[s.dim]) for s in plain}


class SizeSampler:
    """Random generator of sizes at which a subject's graph is valid and its target can run."""

    def __init__(self, subject: Subject, exported: Exported, seed: int) -> None:
        self.subject, self.exported = subject, exported
        self.rng = random.Random(f"costproof:{seed}")
        names = {s.name for size in exported.job.sizes for s in parse(size.symbol).free_symbols}
        self.names = sorted(names)
        self.examples = example_sizes(exported.job)

    def point(self, *, far: bool = False) -> dict[str, int]:
        """Return typical or large sizes, or sizes near those of the export if the graph is valid at none of these.

        Raises:
            Incomplete: no sizes were found at which it holds.
        """
        kinds = ([self._far] if far else []) + [self._usual, self._around]
        for ranges in chain.from_iterable(repeat(kind, _TRIES // 30) for kind in kinds):
            drawn = [{name: self._size(name, ranges(name)) for name in self.names} for _ in range(30)]
            for sizes, held in zip(drawn, self._held(drawn), strict=True):
                if held and self.subject.runs(sizes):
                    return sizes
        raise Incomplete(
            "no sizes were found at which the exported graph is valid",
            where=f"export {self.exported.job.id}",
            expected="sizes at which the model takes the branches of the export",
            got=f"{len(kinds) * (_TRIES // 30) * 30} random choices of {', '.join(self.names)}; none is valid",
        )

    def ends(self, holds: Sequence[Condition]) -> Iterator[dict[str, int]]:
        """Yield, for each symbol in a condition, its least and greatest size at which all conditions hold."""
        symbols = {name for condition in holds for name in condition.symbols}
        start = self.point() if symbols else {}
        for name in sorted(symbols & start.keys()):
            step = self.subject.steps.get(name, 1)
            farthest = FARTHEST if step == 1 else _FARTHEST_STEPS * step
            for outside in (step, farthest):
                inside = start[name]
                while abs(outside - inside) > step:
                    middle = (inside + outside) // 2 // step * step
                    if self._held([{**start, name: middle}])[0]:
                        inside = middle
                    else:
                        outside = middle
                end = {**start, name: inside}
                if end != start and inside < farthest - step and self.subject.runs(end):
                    yield end

    def _held(self, points: Sequence[Mapping[str, int]]) -> tuple[bool, ...]:
        return holds_at(self.exported, points)

    def _size(self, name: str, between: SizeRange) -> int:
        return self.subject.steps.get(name, 1) * self.rng.randint(*between)

    def _usual(self, name: str) -> SizeRange:
        if name in self.subject.steps:
            return 4, 16
        return (2, 5) if name in _ROWS else (8, 64)

    def _far(self, name: str) -> SizeRange:
        """Return the range of large sizes of a symbol, limited to runs that are affordable."""
        if name in self.subject.steps:
            return 17, 24
        return (9, 17) if name in _ROWS else (500, 1_000)

    def _around(self, name: str) -> SizeRange:
        example = self.examples.get(name, 2 * self.subject.steps.get(name, 1)) // self.subject.steps.get(name, 1)
        return max(2, example // 2), max(3, 2 * example)


_SIZES: Final = (*range(2, 40), 63, 64, 65, 100, 127, 128, 1_000, 4_097, 131_072, 1_000_003)
_FEW: Final = (2, 3, 4, 5, 7, 13, 37, 64, 4_097)
_LONG: Final = 80
"""Length of a guard's text above which its numbers are coefficients rather than bounds."""
SizePoint = dict[str, int]


def size_limits(exported: Exported, steps: Mapping[str, int]) -> tuple[Condition, ...]:
    """Return the conditions on sizes that fail at some of the tried sizes, which limit where the graph is valid.

    Conditions on one expression are merged in integers. Those that exclude no more sizes than simpler ones are left
    out. That a symbol is at least 2 is not among them.

    Args:
        steps: symbols that are multiples of a number.

    Raises:
        Incomplete: a guard depends on something other than sizes of inputs, or a condition is not one on integers.
    """
    found = [c for c in guard_conditions(exported) if not all(map(c.met, _points_to_try(c, exported, steps)))]
    usual = [p for c in found for p in _points_to_try(c, exported, steps)]
    margins = list(map(parse, exported.job.holds))
    for condition in sorted(found, key=lambda c: len(c.text)):
        left = [p for p in usual if not condition.met(p)]
        if not left:
            continue
        usual = [p for p in usual if condition.met(p)]
        margins.append(_without_rounding(condition.margin(), steps))
    whole = (Condition.multiple(name, step) for name, step in steps.items())
    return (*map(Condition.from_margin, merge_bounds(margins, steps)), *whole)


def _without_rounding(margin: sympy.Expr, steps: Mapping[str, int]) -> sympy.Expr:
    """Remove ``floor`` and ``ceiling`` from a condition; exact for symbols that are multiples of their steps."""
    times = {sym(name): step * sym(name) for name, step in steps.items()}
    return plain_sympy(margin.xreplace(times)).xreplace({sym(name): sym(name) / step for name, step in steps.items()})


def _points_to_try(condition: GuardCondition, exported: Exported, steps: Mapping[str, int]) -> Iterator[SizePoint]:
    """Yield sizes at which a condition may fail: typical sizes, and sizes near the numbers in the condition."""
    names, sizes = sorted(condition.names), set(_SIZES if len(condition.names) == 1 else _FEW)
    numbers = {int(n) for n in re.findall(r"(?<![\w.])\d+(?![\w.])", condition.text)}
    if len(condition.text) <= _LONG:
        sizes |= {n * k // m + d for n in numbers for m in {1, *numbers} if m for k in (1, m) for d in (-1, 0, 1)}
        sizes |= {math.isqrt(n) + d for n in numbers for d in (-1, 0, 1)}
    every = (s.name for size in exported.job.sizes for s in parse(size.symbol).free_symbols)
    usual = {name: 7 * steps.get(name, 1) for name in every} | example_sizes(exported.job)
    for point in product(sorted(s for s in sizes if s >= 2), repeat=len(names)):
        yield usual | {name: size * steps.get(name, 1) for name, size in zip(names, point, strict=True)}
