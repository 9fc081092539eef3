"""Attributes of objects that other packages made: reading one may run their code, which raises what it likes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any


def attribute(owner: object, name: str, default: Any = None) -> Any:
    """Return an attribute, or the default where the object does not have it or refuses to read it.

    ``getattr`` with a default hides an ``AttributeError`` only. Configurations of transformers whose values differ
    from layer to layer raise a ``RuntimeError``.
    """
    try:
        return getattr(owner, name, default)
    except Exception:
        return default


def has_attribute(owner: object, name: str) -> bool:
    """Return whether an object has an attribute that can be read."""
    missing = object()
    return attribute(owner, name, missing) is not missing


def own_attributes(owner: object, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that an object holds itself, in its dictionary or its slots; no code of its class runs."""
    held = getattr(owner, "__dict__", {})
    for name in names:
        if name in held:
            yield name, held[name]
        else:
            with suppress(AttributeError):  # an empty slot
                yield name, object.__getattribute__(owner, name)
