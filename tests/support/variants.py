"""Cases of one test of which a few run in ``make test``, and the others in ``make test-thorough``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest


def with_variants(cases: Collection[str], always: Collection[str], *more: str) -> list[Any]:
    """The names of all cases; those beside ``always`` and ``more`` are marked as thorough."""
    kept = {*always, *more}
    return [pytest.param(name, marks=() if name in kept else pytest.mark.thorough) for name in cases]
