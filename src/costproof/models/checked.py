"""The target factory of another distribution, checked: what it lacks, and what its methods return and raise."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, Final

from costproof.foreign import contained
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.schema import adapter
from costproof.ledger.workload import Invocation, TargetInfo, Workload
from costproof.models.target import NamedWorkload, Setting, Target
from costproof.plugins import Plugin

METHODS: Final = {"default": (), "from_file": ("path",), "settings": (), "presets": ()}
"""What every factory has, with the arguments that it is called with."""
_MAKERS: Final = ("default", "from_file", "from_folder", "from_normalised")
"""Methods that return a target."""
_TARGET: Final = tuple(name for name in vars(Target) if not name.startswith("_"))


def checked_factory(made: Any, plugin: Plugin[Any]) -> Any:
    """Return the factory with every method contained.

    Raises:
        BadInput: it lacks methods, or a class has them for its instances only.
    """
    wrong = [text for name, arguments in METHODS.items() if (text := _problem(made, name, arguments))]
    types = getattr(made, "model_types", ())
    if not (isinstance(types, tuple) and all(isinstance(t, str) for t in types)):
        wrong.append(f"model_types is {_named(types)}, not a tuple of names")
    if wrong:
        fix = "make them static or class methods of the class, or register an instance"
        raise BadInput("not a target factory", got="; ".join(wrong), expected=", ".join(METHODS), fix=fix)
    public = {name: getattr(made, name) for name in dir(made) if not name.startswith("_") and hasattr(made, name)}
    return SimpleNamespace(
        **{name: _contained(name, value, plugin) if callable(value) else value for name, value in public.items()}
    )


def _problem(made: Any, name: str, arguments: tuple[str, ...]) -> str | None:
    method = getattr(made, name, None)
    if not callable(method):
        return f"no method {name}()"
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError as error:
        return f"{name}({', '.join(arguments)}): {error}"
    except ValueError:  # of C code, which does not say what it takes
        return None
    return None


def _contained(name: str, method: Callable[..., Any], plugin: Plugin[Any]) -> Callable[..., Any]:
    where = f"{name}() of the target {plugin.name} = {plugin.what} ({plugin.owner})"

    def call(*arguments: Any, **named: Any) -> Any:
        with contained("a target of another distribution failed", where):
            found = method(*arguments, **named)
            wrong = _returned(name, found)
            wrong_part = _wrong_part(found) if wrong is None and name in _MAKERS else None
        what = "a target of another distribution returns something else"
        if wrong:
            raise BadInput(what, where=where, expected=wrong, got=_named(found))
        if wrong_part is not None:
            of, expected, got = wrong_part
            raise BadInput(what, where=f"{of}() of what {where} returns", expected=expected, got=got)
        return found

    return call


def _returned(name: str, found: Any) -> str | None:
    """What a method should have returned; ``None`` if it did."""
    one = {"settings": Setting, "presets": NamedWorkload, "proof_settings": Setting}.get(name)
    if one is not None and not (isinstance(found, tuple) and all(isinstance(item, one) for item in found)):
        return f"a tuple of {one.__name__}"
    if name in _MAKERS:
        lacking = [method for method in _TARGET if not hasattr(found, method)]
        return f"a target, with {', '.join(lacking)}" if lacking else None
    return None


def _wrong_part(target: Any) -> tuple[str, str, str] | None:
    """Return which method of a target returns something else than its type, what was expected, and what it returned.

    Invocations are those of the default workload.
    """
    if wrong := _unlike(target.info(), TargetInfo):
        return "info", *wrong
    try:
        workload = target.workload()
    except CostproofError:  # without settings there is no run of it; told where one is asked for
        return None
    if wrong := _unlike(workload, Workload):
        return "workload", *wrong
    calls = target.invocations(workload)
    if not isinstance(calls, tuple) or not all(isinstance(call, Invocation) for call in calls):
        return "invocations", "a tuple of Invocation", _named(calls)
    wrong = next(filter(None, (_unlike(call, Invocation) for call in calls)), None)
    return ("invocations", *wrong) if wrong else None


def _unlike(found: Any, kind: type[Any]) -> tuple[str, str] | None:
    """Return what was expected and found where a value, or a field of it, is not of its declared type."""
    if not isinstance(found, kind):
        return kind.__name__, _named(found)
    from pydantic import ValidationError

    try:
        adapter(kind).validate_python({f.name: getattr(found, f.name) for f in fields(kind)})
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False, include_input=False)
        return f"{kind.__name__}, {'.'.join(map(str, first['loc']))}: {first['msg']}", _named(found)
    return None


def _named(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(sorted({type(v).__name__ for v in value})) or 'nothing'}"
    return type(value).__name__
