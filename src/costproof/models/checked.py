"""The target factory of another distribution, checked: what it lacks, and what its methods return and raise."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from costproof.foreign import contained
from costproof.ledger.errors import BadInput
from costproof.models.target import NamedWorkload, Setting, Target
from costproof.plugins import Plugin

METHODS: Final = {"default": (), "from_file": ("path",), "settings": (), "presets": ()}
"""What every factory has, with the arguments that it is called with."""
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
        if wrong:
            what = "a target of another distribution returns something else"
            raise BadInput(what, where=where, expected=wrong, got=_named(found))
        return found

    return call


def _returned(name: str, found: Any) -> str | None:
    """What a method should have returned; ``None`` if it did."""
    one = {"settings": Setting, "presets": NamedWorkload, "proof_settings": Setting}.get(name)
    if one is not None and not (isinstance(found, tuple) and all(isinstance(item, one) for item in found)):
        return f"a tuple of {one.__name__}"
    if name in ("default", "from_file", "from_folder", "from_normalised"):
        lacking = [method for method in _TARGET if not hasattr(found, method)]
        return f"a target, with {', '.join(lacking)}" if lacking else None
    return None


def _named(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(sorted({type(v).__name__ for v in value})) or 'nothing'}"
    return type(value).__name__
