"""``torch.profiler`` with ``with_flops``: events of operators, without modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from costproof.ledger.counter import CounterInfo
from costproof.tracers.counters.protocol import Counted, Row, counted
from costproof.tracers.counters.surroundings import Positional


class Profiler:
    """Rows are operators. An event inside another one that has FLOPs too is the same work once more."""

    info = CounterInfo("torch.profiler", "torch", ("2.13.0",), "flop", "operator")

    def count(self, model: Positional, args: tuple[Tensor, ...]) -> Counted:
        """Profile one forward."""
        with torch.no_grad(), torch.profiler.profile(with_flops=True, record_shapes=True) as profile:
            model(*args)
        rows = []
        for event in profile.events() or ():
            if event.flops:
                outer = _outer(event)
                kind = _bare(event.name) if outer is None else f"{_bare(outer)}>{_bare(event.name)}"
                rows.append(Row("[unattributed]", kind, int(event.flops)))
        total = sum(int(e.flops or 0) for e in profile.key_averages())
        return counted(total, rows)


def _bare(name: str) -> str:
    return name.replace("::", ".")


def _outer(event: Any) -> str | None:
    """The nearest enclosing event with FLOPs of its own."""
    parent = event.cpu_parent
    while parent is not None:
        if parent.flops:
            return str(parent.name)
        parent = parent.cpu_parent
    return None


COUNTER = Profiler()
