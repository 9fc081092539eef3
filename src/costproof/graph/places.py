"""Where a call counts: (stage, invocation) of every module's call."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from costproof.graph.graph import ModuleCall

Place = Callable[[str, int], tuple[str, str] | None]
"""(module path, number of its call) -> (stage, invocation), or ``None`` for scaffolding that is not counted."""

Locate = Callable[[str, int], tuple[str, str]]
"""(module path, call of its outermost repeated ancestor counted from 1) -> (stage, invocation)."""


class Placer:
    """(module, call) -> (stage, invocation), by the call of the outermost repeated ancestor."""

    def __init__(self, locate: Locate, calls: Iterable[ModuleCall]) -> None:
        self.locate = locate
        self.parents = {(c.module, c.call): c.parent for c in calls}
        self.totals: dict[str, int] = {}
        for module, call in self.parents:
            self.totals[module] = max(call, self.totals.get(module, 0))
        self.known: dict[tuple[str, int], tuple[str, str]] = {}

    def __call__(self, module: str, call: int) -> tuple[str, str]:
        key = (module, call)
        if key not in self.known:
            repeated, here = 1, key if key in self.parents else None
            while here is not None:
                if self.totals[here[0]] > 1:
                    repeated = here[1]
                here = self.parents[here]
            self.known[key] = self.locate(module, repeated)
        return self.known[key]
