"""torch's own ``FlopCounterMode``: operators as they are dispatched."""

from __future__ import annotations

import torch
from torch import Tensor

from costproof.ledger.counter import CounterInfo
from costproof.tracers.counters.protocol import Counted, Row, counted, own
from costproof.tracers.counters.surroundings import INNER, Positional, inner_path


class FlopCounter:
    """Rows are (module, operator)."""

    info = CounterInfo("FlopCounterMode", "torch", ("2.13.0",), "flop", "operator")

    def count(self, model: Positional, args: tuple[Tensor, ...]) -> Counted:
        """Run one forward under the mode."""
        from torch.utils.flop_counter import FlopCounterMode

        with torch.no_grad(), FlopCounterMode(display=False) as mode:
            model(*args)
        figures = {path: {str(op): int(v) for op, v in ops.items()} for path, ops in mode.get_flop_counts().items()}
        figures.pop("Global", None)
        rows = [Row(inner_path(path) if INNER in path else "", kind, value) for path, kind, value in own(figures)]
        return counted(int(mode.get_total_flops()), rows)


COUNTER = FlopCounter()
