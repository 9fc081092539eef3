"""Load operator rules from Python files of the user, which are executed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

from costproof.foreign import contained
from costproof.ledger.environment import RULES
from costproof.ledger.errors import BadInput
from costproof.opgraph.rules.registry import RULES as RULE_MODULES
from costproof.opgraph.rules.registry import registered, unregister
from costproof.plugins import OURS, Plugin

T = TypeVar("T")
Files = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""One file with operator rules, or several."""

_in_force: Final[dict[Path, tuple[str, ...]]] = {}


@contextmanager
def rules_from(files: Files) -> Iterator[None]:
    """Execute files with operator rules and keep these rules registered inside the context.

    Files whose rules are already in force are not executed again. If one file fails, no rule of the others remains.

    Raises:
        BadInput: a file cannot be executed, or it registers no rule.
    """
    mine: list[Path] = []
    try:
        for file in dict.fromkeys(
            Path(f).absolute() for f in ([files] if isinstance(files, str | os.PathLike) else files)
        ):
            if file in _in_force:
                continue
            before = registered()
            mine.append(file)
            try:
                _execute(file)
            finally:
                _in_force[file] = tuple(registered() - before)
            if not _in_force[file]:
                raise BadInput(
                    "this file registers no operator rule",
                    where=str(file),
                    expected='a function with @costproof.operator_rule("mylib.my_operator")',
                    fix="see docs/extending.md",
                )
        yield
    finally:
        for file in mine:
            unregister(*_in_force.pop(file, ()))


def in_force() -> tuple[Path, ...]:
    """Return the rule files whose rules are registered now."""
    return tuple(_in_force)


def versions_in_force() -> dict[str, str]:
    """Return names and hashes of the rule files in force as an entry of the environment; empty if there are none.

    This covers files of the user and rule modules of other distributions.
    """
    files = [*_in_force, *(file for item in RULE_MODULES.all().values() if (file := _plugin_file(item)) is not None)]
    texts = [f"{file.name} {sha256(file.read_bytes()).hexdigest()[:12]}" for file in files]
    return {RULES: ", ".join(texts)} if texts else {}


def _plugin_file(item: Plugin[object]) -> Path | None:
    """Return the file of another distribution's rule module without importing it; ``None`` for built-in rules."""
    if item.owner == OURS:
        return None
    top, *inner = item.what.partition(":")[0].strip().split(".")
    spec = None
    with suppress(ImportError, ValueError):  # not a valid module name
        spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return None
    place = Path(spec.origin).parent.joinpath(*inner)
    files = (place.with_suffix(".py"), place / "__init__.py") if inner else (Path(spec.origin),)
    return next((file for file in files if file.is_file()), None)


def with_rules_in_force(work: Callable[..., T]) -> Callable[..., T]:
    """Wrap a task for another process so that it first loads the rule files in force here."""
    return partial(_with_rules, in_force(), work)


def _with_rules(files: tuple[Path, ...], work: Callable[..., T], *arguments: Any, **named: Any) -> T:
    with rules_from(files):
        return work(*arguments, **named)


def _execute(file: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"rules_{file.stem}", file) if file.suffix == ".py" else None
    if spec is None or spec.loader is None or not file.is_file():
        raise BadInput("there is no such Python file", where=str(file), expected="a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        with contained("a file with operator rules cannot be run", str(file), root=file):
            spec.loader.exec_module(module)
    except BadInput as error:
        if error.where != str(file):
            error.where = f"{file}: {error.where}"
        raise
