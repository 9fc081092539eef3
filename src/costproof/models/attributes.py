"""The attributes of objects of other code, which need not let themselves be listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def attributes(value: object) -> Mapping[str, Any] | None:
    """Return what an object holds by name; ``None`` if its class has no such dict, or fails to return it."""
    try:
        return vars(value)
    except Exception:
        return None
