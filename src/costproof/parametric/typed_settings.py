"""Check settings of a target, and convert them to the types that the target declares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from costproof.ledger.errors import BadInput, CostproofError, Problems, did_you_mean, invalid_choice
from costproof.ledger.run import parse_integer
from costproof.models.target import Setting

TypedValue = int | str | tuple[int, ...]
ChoicePlace = Callable[[str], str]
"""Returns where a choice was made, for messages: ``--batch``, ``$.workload.batch``."""


def option(name: str) -> str:
    """Return the name of a choice on the command line."""
    return "--" + name.rpartition(".")[2].replace("_", "-")


def typed_settings(
    known: Iterable[Setting], given: Mapping[str, Any], place: ChoicePlace, problems: list[CostproofError]
) -> dict[str, TypedValue]:
    """Return settings converted to the types that a target declares; errors are appended to ``problems``."""
    by_name = {s.name: s for s in known}
    found: dict[str, TypedValue] = {}
    for name, value in given.items():
        if name in by_name:
            with collect_problems(problems):
                found[name] = _convert(by_name[name], value, place(name))
        else:
            where, expected = place(name[:60]), "one of " + ", ".join(by_name)
            problems.append(
                BadInput("no such setting", where=where, expected=expected, fix=did_you_mean(name, by_name))
            )
    return found


def _convert(setting: Setting, value: Any, where: str) -> TypedValue:
    if setting.kind == "integer":
        return parse_integer(value, where)
    if setting.kind == "file":
        return str(os.fspath(value))
    if setting.kind == "list":
        return value if isinstance(value, str) else ",".join(map(str, value))
    if isinstance(value, tuple | list):
        return tuple(parse_integer(v, where) for v in value)
    text = str(value)
    if setting.kind == "choice" and text not in setting.choices:
        raise invalid_choice(where, text, setting.choices)
    return text


@contextmanager
def collect_problems(problems: list[CostproofError]) -> Iterator[None]:
    """Append the errors that are raised in the context to a list, so that all of them can be reported at once."""
    try:
        yield
    except Problems as error:
        problems += error.problems
    except BadInput as error:
        problems.append(error)
