"""Read attributes of foreign objects, whose code may raise any exception."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any


def attribute(owner: object, name: str, default: Any = None) -> Any:
    """Return an attribute, or the default if it is missing or reading it raises.

    ``getattr`` with a default only handles ``AttributeError``; configurations of transformers whose values differ
    between layers raise ``RuntimeError``.
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
    """Yield the attributes in an object's dictionary or slots, without running code of its class."""
    held = getattr(owner, "__dict__", {})
    for name in names:
        if name in held:
            yield name, held[name]
        else:
            with suppress(AttributeError):  # an empty slot
                yield name, object.__getattribute__(owner, name)
