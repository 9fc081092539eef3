"""A model cut to its first layers: how many it may keep, and what they say about the whole one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from costproof.ledger.errors import BadInput


@dataclass(frozen=True, slots=True)
class Stretch:
    """For how many modules of the whole model each module of a cut one stands."""

    parameters: int
    """Elements of the whole model's parameters, each tensor once; none of them needs memory to be counted."""
    times: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Path of a cut stack of layers -> for how many of them each kept one stands."""

    def of(self, path: str) -> int:
        """For how many modules the one at a path of the cut model stands."""
        return prod(_times(path, stack, times) for stack, times in self.times)


def _times(path: str, stack: str, times: Sequence[int]) -> int:
    if not path.startswith(f"{stack}."):
        return 1
    return times[int(path.removeprefix(f"{stack}.").partition(".")[0])]


EACH_KIND: Final = "one of each kind of layer"


def layers_cut(stack: str, layers: int, least: int, most: int, why: str = EACH_KIND) -> tuple[int, str]:
    """Return how many layers a stack keeps, and that in words: ``2 of 32``; empty if it keeps all.

    Args:
        stack: ``decoder`` or ``encoder``, for messages.
        layers: layers that were asked for; it keeps ``least`` at least.
        why: why it needs ``least`` layers.

    Raises:
        BadInput: the stack cannot be cut so.
    """
    if not 1 <= layers <= most or layers < least == most:
        what, expected = f"the {stack} cannot be cut to this number of layers", f"{least} to {most}: {why}"
        raise BadInput(what, where="--layers", expected=expected, got=layers)
    kept = max(layers, least)
    more = f" ({layers} asked: {why})" if kept > layers else ""
    return kept, f"{kept} of {most}{more}" if kept < most else ""
