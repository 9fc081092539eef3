"""How many errors planted into operator rules and accounting are found, and by whom; without any unit test.

``python -m benchmarks.rule_mutations`` exports and traces a tiny DeepSeek-OCR at its default workload and at an odd
one (three pages, other grids, shared key/value heads, eleven decode steps), and a small module with the operators
that it lacks; once. Then every error of ``rule_errors.txt`` is put into its function, graphs and traces are costed and
compared again, and the function is put back. *Sources*: formulas, static and dynamic differ. *Judge*: the second
judge of the run says otherwise. *Located*: the findings name the modules and metrics that the error changed, and no
others. Exit 1 unless all are found.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.rule_subjects import Subject, subjects
from costproof.compare.compare import compare
from costproof.compare.findings import Discrepancy
from costproof.compare.patterns import expand
from costproof.ledger.capture import Capture
from costproof.ledger.errors import CostproofError
from costproof.ledger.metrics import STAGE_WIDE
from costproof.opgraph.rules.registry import registered

ERRORS = Path(__file__).with_name("rule_errors.txt")


@dataclass(frozen=True, slots=True)
class Error:
    """One edit of one function, as somebody would make it."""

    kind: str
    where: str
    """``module:function``, below ``costproof``."""
    old: str
    new: str

    @property
    def name(self) -> str:
        """One line."""
        return f"{self.where}: {self.old.strip()} => {self.new.strip()}"


def errors() -> list[Error]:
    """Those of the file."""
    found, where = [], ""
    for line in ERRORS.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            where = line.strip("[]")
        elif line and not line.startswith("#"):
            kind, _, edit = line.partition(" | ")
            old, _, new = edit.replace("\\n", "\n").partition(" => ")
            found.append(Error(kind, where, old, new))
    return found


Spot = tuple[str, str, str, str]
"""Stage, invocation, module, metric."""


@contextmanager
def planted(error: Error) -> Iterator[None]:
    """The function with the error in it, under whatever name it is known, for the time of the block."""
    module, _, name = error.where.partition(":")
    outer: Any = getattr(importlib.import_module(f"costproof.{module}"), name)
    function = inspect.unwrap(outer)
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    text = ast.unparse(definition)
    if text.count(error.old) != 1:
        raise SystemExit(f"{error.name}: the text occurs {text.count(error.old)} times in\n{text}")
    space: dict[str, Any] = {}
    exec(
        compile(text.replace(error.old, error.new), error.where, "exec"),
        {**vars(sys.modules[function.__module__])},
        space,
    )
    right = function.__code__
    try:
        _forget()
        function.__code__ = space[name].__code__
        yield
    finally:
        function.__code__ = right
        _forget()


def _forget() -> None:
    """Empty every cache of results: those of a wrong function must not outlive it."""
    for name in [n for n in sys.modules if n.startswith("costproof.")]:
        if name.startswith(("costproof.opgraph", "costproof.ledger", "costproof.analytic")):
            for value in list(vars(sys.modules[name]).values()):
                if hasattr(value, "cache_clear") and value.__name__ not in ("_load", "_load_built_in"):
                    value.cache_clear()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one error at one subject."""

    there: bool
    """Whether it changes any number, or lets counting fail."""
    sources: bool
    judge: bool
    located: bool
    said: str
    fails: bool = False
    """Whether it is seen because counting fails."""


def judge(subject: Subject, clean: Capture, error: Error) -> Outcome:
    """Plant, count, compare."""
    try:
        with planted(error):
            wrong = subject.capture()
    except (CostproofError, ArithmeticError, LookupError, TypeError, ValueError) as failed:
        return Outcome(True, True, False, True, f"counting fails: {type(failed).__name__}", True)
    changed = _changed(clean, wrong)
    found = compare(wrong)
    by_sources, by_judge = bool(found.incomplete or _named(found, ("module",))), bool(_named(found, ("judge",)))
    named = _named(found, ("module", "judge"))
    located = bool(named) and named == changed
    said = ", ".join(sorted("/".join(filter(None, s[2:])) for s in (named - changed or changed - named))[:3])
    return Outcome(bool(changed), by_sources, by_judge, located, said)


def _quantities(capture: Capture) -> Mapping[tuple[str, str, Spot], tuple[int | None, str | None]]:
    """(source, kind, place) -> number and expression."""
    return {
        (x.source, n.kind, (n.stage, "" if m in STAGE_WIDE else n.invocation, n.module, m)): (n.cost(m), n.exprs.get(m))
        for x in capture.ledgers
        for n in x.nodes
        for m in n.costs
    }


def _changed(clean: Capture, wrong: Capture) -> set[Spot]:
    """Where an error changes a number or an expression of any source."""
    before, after = _quantities(clean), _quantities(wrong)
    return {key[2] for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def _named(found: Discrepancy, levels: tuple[str, ...]) -> set[Spot]:
    """The places of open findings."""
    return {
        (f.stage, f.invocation, module, f.metric)
        for f in found.findings
        if f.level in levels and f.status in ("unexplained", "unsupported")
        for module in expand(f.module)
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if every error is found somewhere."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.rule_mutations", description=__doc__)
    options.add_argument("--only", default="", help="errors whose line contains this")
    options.add_argument("--table", type=Path, help="also write the table there")
    given = options.parse_args(arguments)
    registered()
    start = time.perf_counter()
    every = subjects()
    clean = {s.name: s.capture() for s in every}
    for name, capture in clean.items():
        print(
            f"{name}: {compare(capture).verdict} before planting, {time.perf_counter() - start:.0f} s", file=sys.stderr
        )
    outcomes: dict[Error, dict[str, Outcome]] = {}
    for error in (e for e in errors() if given.only in e.name):
        outcomes[error] = {s.name: judge(s, clean[s.name], error) for s in every}
        at = outcomes[error].values()
        missed = not any(o.sources or o.judge for o in at)
        unlocated = [f"{n}: {o.said}" for n, o in outcomes[error].items() if o.there and not o.located]
        if missed or unlocated:
            print(f"{'NOT FOUND' if missed else 'not located'}: {error.name} | {'; '.join(unlocated)}", file=sys.stderr)
    text = table(outcomes, [s.name for s in every])
    print(text)
    found = sum(any(o.sources or o.judge for o in at.values()) for at in outcomes.values())
    failing = sum(any(o.fails for o in at.values()) for at in outcomes.values())
    print(
        f"planted {len(outcomes)}, found {found} ({failing} because counting fails), "
        f"{time.perf_counter() - start:.0f} s"
    )
    if given.table:
        given.table.write_text(text + "\n", encoding="utf-8")
    return 0 if found == len(outcomes) else 1


def table(outcomes: Mapping[Error, Mapping[str, Outcome]], names: Sequence[str]) -> str:
    """Planted, found and located, by subject and by kind of error."""
    lines = [f"{'':26}{'there':>8}{'sources':>9}{'judge':>8}{'report':>8}{'located':>9}"]

    @cache
    def row(label: str, rows: tuple[Outcome, ...]) -> str:
        counts = [sum(map(pick, rows)) for pick in _COLUMNS]
        return f"{label:26}{counts[0]:>8}{counts[1]:>9}{counts[2]:>8}{counts[3]:>8}{counts[4]:>9}"

    lines += [row(name, tuple(at[name] for at in outcomes.values() if at[name].there)) for name in names]
    best = {error: _best(at.values()) for error, at in outcomes.items()}
    lines += [row("anywhere", tuple(best.values())), ""]
    kinds = dict.fromkeys(e.kind for e in outcomes)
    lines += [row(kind, tuple(o for e, o in best.items() if e.kind == kind)) for kind in kinds]
    return "\n".join(lines)


_COLUMNS: tuple[Callable[[Outcome], bool], ...] = (
    lambda o: o.there, lambda o: o.sources, lambda o: o.judge, lambda o: o.sources or o.judge, lambda o: o.located,
)  # fmt: skip


def _best(at: Any) -> Outcome:
    """An error over all subjects: found and located if it is so anywhere."""
    outcomes = list(at)
    there, sources, by_judge, located = (any(map(pick, outcomes)) for pick in (*_COLUMNS[:3], _COLUMNS[4]))
    return Outcome(there, sources, by_judge, located, "")


if __name__ == "__main__":
    sys.exit(main())
