"""What the first layers of a model say about the whole one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


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
