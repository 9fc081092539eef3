"""Which dtypes autocast has during a run: on meta, and without its device, it casts nothing that operators show."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from costproof.ledger.metrics import ARITHMETIC
from costproof.opgraph.graph import AUTOCAST, Graph
from costproof.tracers.operands import dtype_name


@dataclass(slots=True)
class CastTo:
    """The dtypes of the autocast regions of a run."""

    on: set[str] = field(default_factory=set)
    """Of those that were entered, and cast."""
    missing: set[str] = field(default_factory=set)
    """Of those that torch turned off because this machine lacks their device."""


@contextmanager
def autocast_noted() -> Iterator[CastTo]:
    """Note the dtypes of all autocast regions that are made and entered."""
    import torch

    found = CastTo()
    kind: Any = torch.autocast
    init, enter = kind.__init__, kind.__enter__

    def making(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, *rest: Any, **named: Any) -> None:
        init(self, device_type, dtype, enabled, *rest, **named)
        if enabled and not self._enabled and self.fast_dtype is not None:
            found.missing.add(dtype_name(self.fast_dtype))

    def entering(self: Any) -> Any:
        if self._enabled and self.fast_dtype is not None:
            found.on.add(dtype_name(self.fast_dtype))
        return enter(self)

    kind.__init__, kind.__enter__ = making, entering
    try:
        yield found
    finally:
        kind.__init__, kind.__enter__ = init, enter


def under_autocast(graph: Graph, dtypes: Collection[str]) -> Graph:
    """Return a graph whose operators all say that they may be cast to the narrowest of some dtypes.

    A trace does not tell which of them ran under autocast, and a bound of time takes the fastest arithmetic.
    """
    if not dtypes:
        return graph
    narrowest = max(dtypes, key=lambda dtype: ARITHMETIC.index(dtype) if dtype in ARITHMETIC else len(ARITHMETIC))
    return replace(graph, ops=tuple(replace(op, attrs={**op.attrs, AUTOCAST: narrowest}) for op in graph.ops))
