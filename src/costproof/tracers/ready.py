"""What processes that trace have imported when they begin."""

from __future__ import annotations

from typing import Final

from costproof.models.serving import options_of
from costproof.models.target import Target

_LIBRARIES: Final = ("torch", "transformers.modeling_utils")


def libraries(target: Target, *more: str) -> tuple[str, ...]:
    """Modules that tracing a target needs; none for a GPU, which a process may not have looked for before it forks."""
    return () if options_of(target).device == "cuda" else (*_LIBRARIES, *more)
