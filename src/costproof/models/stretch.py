"""A model cut to its first layers: how many it may keep, and what they say about the whole one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

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


def layers_cut(stack: str, layers: int, least: int, most: int, why: str = "") -> dict[str, str]:
    """What is left out of a stack that keeps so many of its ``most`` layers; nothing if it keeps all.

    Args:
        stack: ``decoder`` or ``encoder``, for messages.
        why: why it needs ``least`` layers, as the end of a clause.

    Raises:
        BadInput: the stack cannot be cut so.
    """
    if not least <= layers <= most:
        raise BadInput(
            f"the {stack} cannot be cut to this number of layers",
            where="--layers",
            expected=f"{least} to {most}{why}",
            got=layers,
        )
    return {f"{stack} layers": f"{layers} of {most}"} if layers < most else {}
