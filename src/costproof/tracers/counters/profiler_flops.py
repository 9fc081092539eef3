"""``torch.profiler`` with ``with_flops``: events of operators, without modules."""

from __future__ import annotations

import torch
from torch import Tensor

from costproof.ledger.counter import UNATTRIBUTED, CounterInfo
from costproof.tracers.counters.protocol import Counted, Row, counted
from costproof.tracers.counters.surroundings import Positional
from costproof.tracers.profiler import parents


class Profiler:
    """Rows are operators. An event inside another one that has FLOPs too is the same work once more."""

    info = CounterInfo("torch.profiler", "torch", ("2.13.0",), "flop", "operator")

    def count(self, model: Positional, args: tuple[Tensor, ...]) -> Counted:
        with torch.no_grad(), torch.profiler.profile(with_flops=True, record_shapes=True) as profile:
            model(*args)
        rows = []
        for event in profile.events() or ():
            if event.flops:
                outer = next((f"{p.name}>" for p in parents(event) if p.flops), "")
                kind = f"{outer}{event.name}".replace("::", ".")
                rows.append(Row(UNATTRIBUTED, kind, int(event.flops)))
        total = sum(int(e.flops or 0) for e in profile.key_averages())
        return counted(total, rows)


COUNTER = Profiler()
