"""Base classes, formulas and proof domains of encoders that run in one stage and one forward."""

from __future__ import annotations

from typing import Final

STAGE: Final = "forward"
"""Name of the stage of a model that runs in one forward, of its invocation, and of its run."""


def place(path: str, call: int) -> tuple[str, str]:
    """Return the only stage and invocation of an encoder."""
    return STAGE, STAGE
