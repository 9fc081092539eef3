"""Operator rules in files of the user. A file is run, so nobody but the user names one."""

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
"""One file with rules, or several."""

_in_force: Final[dict[Path, tuple[str, ...]]] = {}


@contextmanager
def rules_from(files: Files) -> Iterator[None]:
    """Run files with operator rules; the rules hold as long as the context. If one fails, none of them holds.

    Files whose rules are in force already are not run again.

    Raises:
        BadInput: a file cannot be run, or it registers no rule.
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
                _run(file)
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
    """The files whose rules hold now."""
    return tuple(_in_force)


def versions_in_force() -> dict[str, str]:
    """Return the names and hashes of the rule files in force, as an entry of the environment; empty without any.

    These are the files of the user, and the modules of rules that other distributions offer.
    """
    files = [*_in_force, *(file for item in RULE_MODULES.all().values() if (file := _offered(item)) is not None)]
    texts = [f"{file.name} {sha256(file.read_bytes()).hexdigest()[:12]}" for file in files]
    return {RULES: ", ".join(texts)} if texts else {}


def _offered(item: Plugin[object]) -> Path | None:
    """Return the file of a module of rules of another distribution, which is not imported; ``None`` of ours."""
    if item.owner == OURS:
        return None
    top, *inner = item.what.partition(":")[0].strip().split(".")
    spec = None
    with suppress(ImportError, ValueError):  # no name of a module
        spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return None
    place = Path(spec.origin).parent.joinpath(*inner)
    files = (place.with_suffix(".py"), place / "__init__.py") if inner else (Path(spec.origin),)
    return next((file for file in files if file.is_file()), None)


def with_rules_in_force(work: Callable[..., T]) -> Callable[..., T]:
    """Return the same work for another process, where it runs the files whose rules hold here first."""
    return partial(_under, in_force(), work)


def _under(files: tuple[Path, ...], work: Callable[..., T], *arguments: Any, **named: Any) -> T:
    with rules_from(files):
        return work(*arguments, **named)


def _run(file: Path) -> None:
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
