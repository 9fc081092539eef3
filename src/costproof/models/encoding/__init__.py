"""Base classes, formulas and proof domains of encoders that run in one stage and one forward."""

from __future__ import annotations

from typing import Final

STAGE: Final = "forward"
"""Name of the only stage of an encoder, and of its invocation and its run."""


def place(path: str, call: int) -> tuple[str, str]:
    """Return the only stage and invocation of an encoder, for any module call."""
    return STAGE, STAGE
