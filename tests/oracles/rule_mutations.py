"""Plant errors in operator rules and accounting, and judge whether the comparison finds them."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costproof.compare.compare import compare
from costproof.compare.findings import Discrepancy
from costproof.compare.patterns import expand
from costproof.ledger.capture import Capture
from costproof.ledger.errors import CostproofError
from costproof.ledger.metrics import STAGE_WIDE
from tests.oracles.rule_subjects import Subject

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
