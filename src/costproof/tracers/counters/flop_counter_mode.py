"""torch's own ``FlopCounterMode``: operators as they are dispatched."""

from __future__ import annotations

import torch
from torch import Tensor

from costproof.ledger.counter import CounterInfo
from costproof.tracers.counters.protocol import Counted, Row, counted
from costproof.tracers.counters.surroundings import INNER, Positional, inner_path


class FlopCounter:
    """Rows are (module, operator); a parent's figures contain its children's, so children are taken off."""

    info = CounterInfo("FlopCounterMode", "torch", ("2.13.0",), "flop", "operator")

    def count(self, model: Positional, args: tuple[Tensor, ...]) -> Counted:
        """Run one forward under the mode."""
        from torch.utils.flop_counter import FlopCounterMode

        with torch.no_grad(), FlopCounterMode(display=False) as mode:
            model(*args)
        figures = {path: {str(op): int(v) for op, v in ops.items()} for path, ops in mode.get_flop_counts().items()}
        figures.pop("Global", None)
        parents = {path: _parent(path, figures) for path in figures}
        rows = []
        for path, operators in figures.items():
            for kind, value in operators.items():
                own = value - sum(figures[c].get(kind, 0) for c in figures if parents[c] == path)
                rows.append(Row(inner_path(path) if INNER in path else "", kind, own))
        return counted(int(mode.get_total_flops()), rows)


def _parent(path: str, known: dict[str, dict[str, int]]) -> str | None:
    """The nearest ancestor with figures of its own: lists of modules are never called and have none."""
    while "." in path:
        path = path.rpartition(".")[0]
        if path in known:
            return path
    return None


COUNTER = FlopCounter()
