"""Sizes at which a form is compared with a fresh count: where it holds, near and far, and where it ends."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain, repeat
from operator import getitem
from typing import Any, Final

from costproof.compare.proof.closed_form import Limit
from costproof.ledger.errors import Incomplete
from costproof.ledger.symbols import parse
from costproof.models.jobs import ExportJob
from costproof.tracers.derive.subject import Subject
from costproof.tracers.exported import Exported
from costproof.tracers.guards import holds_at

Range = tuple[int, int]
_TRIES: Final = 300
"""Draws of each kind."""
_ROWS: Final = ("B", "n")
"""Symbols of which a few are many."""
FARTHEST: Final = 5_000
"""A bound of a range beyond is not counted at: a run could take minutes there."""
_FARTHEST_STEPS: Final = 32
"""The same for the side of an image, in its steps: positions are as many as its square."""


def examples(job: ExportJob) -> dict[str, int]:
    """The sizes at which the export was made."""
    args: Any = job.args
    plain = (s for s in job.sizes if s.symbol.isidentifier())  # and not one more than another
    return {s.symbol: int(reduce(getitem, s.argument, args).shape[s.dim]) for s in plain}


class Draw:
    """Random sizes of a subject at which its graph stands for it, and which the target can run."""

    def __init__(self, subject: Subject, exported: Exported, seed: int) -> None:
        self.subject, self.exported = subject, exported
        self.rng = random.Random(f"costproof:{seed}")
        names = {s.name for size in exported.job.sizes for s in parse(size.symbol).free_symbols}
        self.names = sorted(names)
        self.examples = examples(exported.job)

    def point(self, *, far: bool = False) -> dict[str, int]:
        """Usual sizes, or large ones; around those of the export where it holds at none of these.

        Raises:
            Incomplete: no sizes were found at which it holds.
        """
        kinds = ([self._far] if far else []) + [self._usual, self._around]
        for ranges in chain.from_iterable(repeat(kind, _TRIES // 30) for kind in kinds):
            drawn = [{name: self._size(name, ranges(name)) for name in self.names} for _ in range(30)]
            for sizes, held in zip(drawn, self._held(drawn), strict=True):
                if held and self.subject.runs(sizes):
                    return sizes
        raise Incomplete(
            "the graph is that of some sizes only: the model takes another way at others",
            where=self.exported.job.id,
            got="none of those drawn meets the conditions of the export",
        )

    def ends(self, holds: Sequence[Limit]) -> Iterator[dict[str, int]]:
        """Of every symbol of a condition the last sizes at which all hold, on both sides, the others as drawn."""
        symbols = {s.name for limit in holds for s in parse(limit.margin).free_symbols}
        start = self.point() if symbols else {}
        for name in sorted(symbols & start.keys()):
            step = self.subject.steps.get(name, 1)
            farthest = FARTHEST if step == 1 else _FARTHEST_STEPS * step
            for outside in (step, farthest):
                inside = start[name]
                while abs(outside - inside) > step:
                    middle = (inside + outside) // 2 // step * step
                    if self._held([{**start, name: middle}])[0]:
                        inside = middle
                    else:
                        outside = middle
                end = {**start, name: inside}
                if end != start and inside < farthest - step and self.subject.runs(end):
                    yield end

    def _held(self, points: Sequence[Mapping[str, int]]) -> tuple[bool, ...]:
        return holds_at(self.exported, points)

    def _size(self, name: str, between: Range) -> int:
        return self.subject.steps.get(name, 1) * self.rng.randint(*between)

    def _usual(self, name: str) -> Range:
        if name in self.subject.steps:
            return 4, 16
        return (2, 5) if name in _ROWS else (8, 64)

    def _far(self, name: str) -> Range:
        """Several times as large; a square of them has no more elements than values are followed of."""
        if name in self.subject.steps:
            return 17, 24
        return (9, 17) if name in _ROWS else (500, 1_000)

    def _around(self, name: str) -> Range:
        example = self.examples.get(name, 2 * self.subject.steps.get(name, 1)) // self.subject.steps.get(name, 1)
        return max(2, example // 2), max(3, 2 * example)
